//! Where the ranks of `tune run` are: threads of this process, or processes that MPI has started or is asked to start.

use std::sync::Arc;

use cpu::{CpuBackend, CpuConfig};
use dist::MpiEnvironment;
use recipes::registry::Recipe;
use recipes::{Backend, Ranks, Share};

use crate::exit::{Failure, Result};
use crate::launch::{Launch, Launcher};

/// More threads than any machine this runs on has cores.
const MAX_THREADS: usize = 1024;

/// Limits how many threads compute, on each rank.
const THREADS_VARIABLE: &str = "FERROTUNE_NUM_THREADS";

/// The ranks of a run. With `--launcher mpi` this process ends here: `mpirun` takes its place.
pub(crate) fn ranks(launch: &Launch, recipe: &Recipe) -> Result<Ranks> {
    if let Some((task, num_tasks)) = dist::lone_slurm_task().filter(|_| recipe.supports_distributed) {
        return Err(lone_task(task, num_tasks));
    }
    match dist::mpi_environment() {
        Some(environment) if environment.world_size > 1 => processes(environment, launch, recipe),
        None if launch.launcher == Launcher::Mpi => Err(start_mpirun(launch)),
        _ => {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            if launch.num_ranks > cores {
                recipes::notice(&format!(
                    "notice: {} ranks share {}: they take turns",
                    launch.num_ranks,
                    if cores == 1 { "one core".to_owned() } else { format!("{cores} cores") }
                ));
            }
            Ok(Ranks::Threads(launch.num_ranks))
        }
    }
}

/// Slurm started several tasks, each of which would train the whole model into the same folder.
fn lone_task(task: usize, num_tasks: usize) -> Failure {
    if task > 0 {
        return recipes::Error::ToldByRank { rank: 0, exit_code: 2 }.into();
    }
    Failure::usage(format!("Slurm started {num_tasks} tasks, but not as the ranks of one run")).hint(
        "start them by `srun --mpi=pmix tune run ...` with a program that has MPI, or one task with `--nproc-per-node`",
    )
}

/// This process is one of several that MPI started.
fn processes(environment: MpiEnvironment, launch: &Launch, recipe: &Recipe) -> Result<Ranks> {
    let MpiEnvironment { world_size, .. } = environment;
    if !recipe.supports_distributed {
        return Err(Failure::usage(format!(
            "MPI started {world_size} processes, but recipe `{}` runs on one device",
            recipe.name
        ))
        .hint("start it without `mpirun`"));
    }
    if launch.num_ranks > 1 && launch.num_ranks != world_size && launch.launcher == Launcher::Threads {
        return Err(Failure::usage(format!(
            "MPI started {world_size} processes, found `--nproc-per-node {}`",
            launch.num_ranks
        ))
        .hint("leave `--nproc-per-node` out: the number of processes is the number of ranks"));
    }
    start_mpi(environment)
}

#[cfg(feature = "mpi")]
fn start_mpi(_: MpiEnvironment) -> Result<Ranks> {
    let world = dist::mpi::start().map_err(recipes::Error::from)?;
    // Who shares this machine is what the machines themselves say: launchers tell it in many ways, or not at all.
    let host = sysinfo::System::host_name().unwrap_or_default().into_bytes();
    let hosts = world.gather_bytes(host).wait().map_err(recipes::Error::from)?;
    let own = &hosts[world.rank()];
    let index = hosts[..world.rank()].iter().filter(|host| *host == own).count();
    let of = hosts.iter().filter(|host| *host == own).count();
    Ok(Ranks::Processes { world, local: Share { index, of } })
}

#[cfg(not(feature = "mpi"))]
fn start_mpi(environment: MpiEnvironment) -> Result<Ranks> {
    Err(Failure::usage(format!(
        "MPI started {} processes, but this program was built without MPI",
        environment.world_size
    ))
    .hint("build it with `--features mpi`, or start `tune run --nproc-per-node N` without `mpirun`"))
}

/// Becomes `mpirun`, which starts this program again as so many processes; gives the reason if that fails.
fn start_mpirun(launch: &Launch) -> Failure {
    if cfg!(not(feature = "mpi")) {
        return Failure::usage("cannot use `--launcher mpi`\n  this program was built without MPI")
            .hint("build it with `--features mpi`, or leave the option out to run the ranks as threads");
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            return Failure::usage(format!("cannot use `--launcher mpi`\n  this program has no path: {error}"));
        }
    };
    let mut mpirun = std::process::Command::new("mpirun");
    // Open MPI would else keep all threads of a rank on one core.
    mpirun
        .args(["-bind-to", "none", "-n", &launch.num_ranks.to_string()])
        .arg(program)
        .args(std::env::args_os().skip(1));
    #[cfg(unix)]
    let error = std::os::unix::process::CommandExt::exec(&mut mpirun);
    #[cfg(not(unix))]
    let error = match mpirun.status() {
        Ok(status) => std::process::exit(status.code().unwrap_or(1)),
        Err(error) => error,
    };
    Failure::usage(format!("cannot use `--launcher mpi`\n  `mpirun` does not start: {error}"))
        .hint("install Open MPI or MPICH, or leave the option out to run the ranks as threads")
}

/// The backend for a `device` key, on a share of the machine's cores.
pub(crate) fn open_backend(device: &str, share: Share) -> recipes::Result<Arc<dyn Backend>> {
    match device {
        "auto" | "cpu" => {
            let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            let threads = threads()?.unwrap_or((cores / share.of).max(1));
            let config =
                CpuConfig { threads: Some(threads), first_core: share.index * threads, ..CpuConfig::default() };
            let backend = CpuBackend::new(config).map_err(|e| recipes::Error::Backend { reason: e.to_string() })?;
            Ok(Arc::new(backend))
        }
        other => Err(recipes::Error::NoDevice {
            device: other.to_owned(),
            available: "`auto` or `cpu` in this version".to_owned(),
        }),
    }
}

/// Threads to compute with on each rank, from the environment; `None` = a rank's share of the cores.
pub(crate) fn threads() -> recipes::Result<Option<usize>> {
    let Some(text) = std::env::var_os(THREADS_VARIABLE) else { return Ok(None) };
    let text = text.to_string_lossy();
    match text.parse() {
        Ok(threads) if (1..=MAX_THREADS).contains(&threads) => Ok(Some(threads)),
        _ => Err(recipes::Error::Environment {
            variable: THREADS_VARIABLE,
            expected: "a number of threads from 1 to 1024",
            found: text.into_owned(),
        }),
    }
}
