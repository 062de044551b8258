//! `tune doctor`: what this machine offers and what this build uses of it.
//!
//! Nothing is opened that could hang or cost money: the hub is not contacted, devices are looked for, not started. The token
//! is never printed, only where it comes from.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use sysinfo::{Disks, System};

use crate::args::DoctorArgs;
use crate::exit::Result;

/// Bytes of a GiB.
const GIB: f64 = (1u64 << 30) as f64;

/// Prints the report.
pub(crate) fn run(args: &DoctorArgs) -> Result {
    let report = Report::read();
    if args.json {
        let json = serde_json::to_value(&report).expect("plain data");
        return super::print(&format!("{json}\n"));
    }
    super::print(&report.to_text())
}

/// All that is found.
#[derive(Serialize)]
struct Report {
    version: &'static str,
    system: String,
    cpu: Cpu,
    memory: Memory,
    gpu: Part,
    mpi: Part,
    hub: Hub,
    disks: Vec<Disk>,
}

#[derive(Serialize)]
struct Cpu {
    model: Option<String>,
    architecture: &'static str,
    /// Cores this process may use; cgroup limits and affinity count.
    cores: usize,
    /// Threads that kernels run with; `FERROTUNE_NUM_THREADS` limits them.
    threads: usize,
    /// Instruction sets that kernels exist for and the processor has.
    instruction_sets: Vec<String>,
    /// The one in use; `FERROTUNE_CPU_ISA` overrides it.
    instruction_set: String,
    /// What the processor has beside them that matters for training.
    features: Vec<&'static str>,
    /// What is wrong with the environment variables, if anything.
    problem: Option<String>,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the unit is part of the JSON keys")]
struct Memory {
    total_bytes: Option<u64>,
    available_bytes: Option<u64>,
    /// The limit of the container, where there is one.
    limit_bytes: Option<u64>,
}

/// Something that may be there, and may be used.
#[derive(Serialize)]
struct Part {
    /// Whether runs use it.
    used: bool,
    /// What was found on the machine.
    found: Vec<String>,
    /// Why it is or is not used.
    reason: &'static str,
}

#[derive(Serialize)]
struct Hub {
    endpoint: String,
    /// Where the token comes from; `null` = there is none.
    token_from: Option<String>,
    cache: Option<PathBuf>,
    /// What is wrong with the environment variables, if anything.
    problem: Option<String>,
}

#[derive(Serialize)]
struct Disk {
    what: &'static str,
    path: PathBuf,
    free_bytes: Option<u64>,
}

impl Report {
    fn read() -> Self {
        let hub = Hub::read();
        let disks = Disks::new_with_refreshed_list().ok();
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
        let cache = hub.cache.clone().map(|cache| ("hub cache", cache));
        let places = [("working directory", here), ("temporary files", std::env::temp_dir())].into_iter().chain(cache);
        let os = System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_owned());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            system: os,
            cpu: Cpu::read(),
            memory: Memory::read(),
            gpu: Part { used: false, found: gpus(), reason: "this build computes on CPUs only" },
            mpi: Part {
                used: cfg!(feature = "mpi"),
                found: ["mpirun", "mpiexec", "srun"].into_iter().filter_map(on_path).collect(),
                reason: if cfg!(feature = "mpi") {
                    "`mpirun -n N tune run ...` and `tune run --launcher mpi ...` run ranks as processes"
                } else {
                    "built without `--features mpi`; `--nproc-per-node` runs ranks as threads"
                },
            },
            disks: places
                .map(|(what, path)| Disk {
                    what,
                    free_bytes: disks.as_ref().and_then(|disks| free_bytes(disks, &path)),
                    path,
                })
                .collect(),
            hub,
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:<14} {value}");
        };
        line("tune", &format!("{} on {}", self.version, self.system));
        let cpu = &self.cpu;
        line("cpu", cpu.model.as_deref().unwrap_or(cpu.architecture));
        line("", &format!("{} cores, {} threads compute (FERROTUNE_NUM_THREADS)", cpu.cores, cpu.threads));
        let sets = cpu.instruction_sets.join(", ");
        line("", &format!("kernels run with {} of {sets} (FERROTUNE_CPU_ISA)", cpu.instruction_set));
        if !cpu.features.is_empty() {
            line("", &format!("has {}", cpu.features.join(", ")));
        }
        if let Some(problem) = &cpu.problem {
            line("", &format!("problem: {problem}"));
        }
        line("memory", &self.memory.to_text());
        for (name, part) in [("gpu", &self.gpu), ("mpi", &self.mpi)] {
            let found = if part.found.is_empty() { "none found".to_owned() } else { part.found.join(", ") };
            line(name, &format!("{found}; {}: {}", if part.used { "used" } else { "not used" }, part.reason));
        }
        line("hub", &self.hub.endpoint);
        let token = self.hub.token_from.as_ref().map(|place| format!("token from {place}"));
        line("", token.as_deref().unwrap_or("no token: gated and private repositories cannot be read (HF_TOKEN)"));
        if let Some(problem) = &self.hub.problem {
            line("", &format!("problem: {problem}"));
        }
        for (i, disk) in self.disks.iter().enumerate() {
            let free =
                disk.free_bytes.map_or("unknown".to_owned(), |bytes| format!("{:.1} GiB free", bytes as f64 / GIB));
            line(if i == 0 { "disk" } else { "" }, &format!("{free} for {} `{}`", disk.what, disk.path.display()));
        }
        text
    }
}

impl Memory {
    fn read() -> Self {
        let Ok(mut system) = System::new() else {
            return Self { total_bytes: None, available_bytes: None, limit_bytes: None };
        };
        system.refresh_memory();
        let total = system.total_memory();
        let limit = system.cgroup_limits().map(|limits| limits.total_memory);
        Self {
            total_bytes: Some(total),
            available_bytes: Some(system.available_memory()),
            limit_bytes: limit.filter(|&limit| limit > 0 && limit < total),
        }
    }

    fn to_text(&self) -> String {
        let gib = |bytes: u64| bytes as f64 / GIB;
        let (Some(free), Some(total)) = (self.available_bytes, self.total_bytes) else { return "unknown".to_owned() };
        let limit = self.limit_bytes.map(|limit| format!(", limited to {:.1} GiB", gib(limit))).unwrap_or_default();
        format!("{:.1} GiB free of {:.1} GiB{limit}", gib(free), gib(total))
    }
}

impl Hub {
    fn read() -> Self {
        match hub::Settings::from_env() {
            Ok(settings) => Self {
                endpoint: settings.endpoint,
                token_from: settings.token.map(|token| token.source().to_string().replace('`', "")),
                cache: Some(settings.cache),
                problem: None,
            },
            Err(error) => {
                let problem = Some(error.to_string().replace('\n', ";"));
                Self { endpoint: "unknown".to_owned(), token_from: None, cache: None, problem }
            }
        }
    }
}

impl Cpu {
    fn read() -> Self {
        let model = System::new().ok().and_then(|mut system| {
            system.refresh_cpu_all();
            system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).filter(|name| !name.is_empty())
        });
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (threads, bad_threads) = match crate::ranks::threads() {
            Ok(threads) => (threads.unwrap_or(cores), None),
            Err(error) => (cores, Some(error.to_string())),
        };
        let (isa, bad_isa) = match cpu::Isa::from_env() {
            Ok(isa) => (isa, None),
            Err(error) => (cpu::Isa::detect(), Some(error.to_string())),
        };
        Self {
            model,
            architecture: std::env::consts::ARCH,
            cores,
            threads,
            instruction_sets: cpu::Isa::available().iter().map(ToString::to_string).collect(),
            instruction_set: isa.to_string(),
            features: features(),
            problem: bad_threads.or(bad_isa).map(|text| text.replace('\n', ";")),
        }
    }
}

/// Instructions that matter for matrix products in bf16 and int8.
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let all = [
            ("f16c", is_x86_feature_detected!("f16c")),
            ("avx512_bf16", is_x86_feature_detected!("avx512bf16")),
            ("avx512_fp16", is_x86_feature_detected!("avx512fp16")),
            ("avx512_vnni", is_x86_feature_detected!("avx512vnni")),
        ];
        found.extend(all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name));
    }
    #[cfg(target_arch = "aarch64")]
    {
        let all = [
            ("bf16", std::arch::is_aarch64_feature_detected!("bf16")),
            ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
            ("fp16", std::arch::is_aarch64_feature_detected!("fp16")),
            ("sve", std::arch::is_aarch64_feature_detected!("sve")),
        ];
        found.extend(all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name));
    }
    found
}

/// Drivers of GPUs, as the kernel shows them.
fn gpus() -> Vec<String> {
    let mut found = Vec::new();
    if let Ok(entries) = std::fs::read_dir("/proc/driver/nvidia/gpus") {
        for entry in entries.flatten() {
            let text = std::fs::read_to_string(entry.path().join("information")).unwrap_or_default();
            let model = text.lines().find_map(|line| line.strip_prefix("Model:")).map(str::trim);
            found.push(model.unwrap_or("an NVIDIA GPU").to_owned());
        }
    }
    if Path::new("/dev/kfd").exists() {
        found.push("an AMD GPU".to_owned());
    }
    if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
        found.push("an Apple GPU".to_owned());
    }
    found
}

/// The path of a program.
fn on_path(program: &str) -> Option<String> {
    let path = std::env::var_os("PATH")?;
    let found = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|path| path.is_file())?;
    Some(found.display().to_string())
}

/// Free bytes of the disk that holds `path`, or would.
fn free_bytes(disks: &Disks, path: &Path) -> Option<u64> {
    let path = std::path::absolute(path).ok()?;
    let there = path.ancestors().find_map(|ancestor| ancestor.canonicalize().ok())?;
    let holding = disks.iter().filter(|disk| there.starts_with(disk.mount_point()));
    holding.max_by_key(|disk| disk.mount_point().as_os_str().len()).map(sysinfo::Disk::available_space)
}
