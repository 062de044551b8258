//! The config section `profiler`, under torchtune's names.

use std::path::{Path, PathBuf};

use config::{FromNode, Names, Node, Problems};

use super::schedule::Schedule;

const WAIT_STEPS: u64 = 5;
const WARMUP_STEPS: u64 = 5;
const ACTIVE_STEPS: u64 = 2;
const NUM_CYCLES: u64 = 1;

config::component! {
    /// Records the ops of some steps. Each rank writes a Chrome trace and a table of its ops.
    pub struct ProfilerConfig {
        /// Whether to profile.
        pub enabled: bool = false,
        /// Folder for traces and tables; made if needed; `null` = `profiling_outputs` in the run's `output_dir`.
        pub output_dir: Option<PathBuf> = None,
        /// Record what the CPU computes; without effect, because that is all there is.
        pub cpu: bool = true,
        /// Record what GPUs compute; without effect on a CPU.
        pub cuda: bool = true,
        /// Record memory in use over time.
        pub profile_memory: bool = false,
        /// Record Python's stack; there is none.
        pub with_stack: bool = false,
        /// Tell calls of one op on other shapes apart.
        pub record_shapes: bool = true,
        /// Accepted and without effect: floating-point operations are always counted.
        pub with_flops: bool = false,
        /// Steps at the beginning of a cycle that are left alone; `null` = the default, as in the next three.
        pub wait_steps: Option<u64> = Some(WAIT_STEPS),
        /// Steps after them that are recorded and thrown away.
        pub warmup_steps: Option<u64> = Some(WARMUP_STEPS),
        /// Steps after them that are recorded and written.
        pub active_steps: Option<u64> [1..] = Some(ACTIVE_STEPS),
        /// Cycles; 0 = to the end of the run.
        pub num_cycles: Option<u64> = Some(NUM_CYCLES),
    }
}

impl ProfilerConfig {
    /// Where traces and tables go, for a run that writes to `output_dir`.
    pub(crate) fn dir(&self, output_dir: &Path) -> PathBuf {
        self.output_dir.clone().unwrap_or_else(|| output_dir.join("profiling_outputs"))
    }

    pub(crate) fn schedule(&self) -> Schedule {
        Schedule {
            wait: self.wait_steps.unwrap_or(WAIT_STEPS),
            warmup: self.warmup_steps.unwrap_or(WARMUP_STEPS),
            active: self.active_steps.unwrap_or(ACTIVE_STEPS),
            cycles: self.num_cycles.unwrap_or(NUM_CYCLES),
        }
    }
}

/// The `profiler` section.
#[derive(Debug, Clone, PartialEq)]
pub struct Profiler(pub ProfilerConfig);

impl FromNode for Profiler {
    fn expected() -> String {
        "a section with `_component_`, the name of a profiler".to_owned()
    }

    fn from_node(node: &Node, problems: &mut Problems) -> Option<Self> {
        // There is one profiler, and the reference puts its name in where it is left out.
        match node.as_map() {
            Some(keys) if keys.get("_component_").is_none() => check(node, problems),
            _ => PROFILERS.choose(node, problems)?(node, problems),
        }
    }
}

/// Reads the section of one profiler.
type Check = fn(&Node, &mut Problems) -> Option<Profiler>;

/// Components of `profiler`.
pub(crate) const PROFILERS: Names<Check> =
    Names { role: "profiler", built: &[(&["torchtune.training.setup_torch_profiler"], check)], not_built: &[] };

fn check(node: &Node, problems: &mut Problems) -> Option<Profiler> {
    let config = ProfilerConfig::check(node, problems)?;
    if config.enabled && config.with_stack {
        problems.notice("`profiler.with_stack` has no effect: there is no Python whose stack could be recorded");
    }
    if config.enabled && !config.cpu {
        problems.notice("`profiler.cpu=False` has no effect: ops run on the CPU and nowhere else");
    }
    Some(Profiler(config))
}

#[cfg(test)]
mod tests {
    use config::Merged;

    use super::*;

    /// The checked section and its notices, or what is wrong with it.
    fn read(section: &str) -> Result<(ProfilerConfig, Vec<String>), String> {
        let run = Merged::from_text("run.yaml", format!("profiler: {{{section}}}")).expect("valid YAML");
        let mut problems = Problems::new();
        let found = Profiler::from_node(run.root().at("profiler").expect("there"), &mut problems);
        let notices = problems.finish().map_err(|error| format!("{error}\nhint: {:?}", error.hint()))?;
        Ok((found.expect("no problem").0, notices.iter().map(ToString::to_string).collect()))
    }

    const NAME: &str = "_component_: torchtune.training.setup_torch_profiler";

    #[test]
    fn every_key_has_a_default() {
        let expected = ProfilerConfig { enabled: true, ..ProfilerConfig::default() };
        assert_eq!(read(&format!("{NAME}, enabled: True")), Ok((expected.clone(), vec![])));
        assert_eq!(read("enabled: True"), Ok((expected.clone(), vec![])));
        assert_eq!(expected.dir(Path::new("out")), Path::new("out/profiling_outputs"));
        assert_eq!(expected.schedule(), Schedule { wait: 5, warmup: 5, active: 2, cycles: 1 });
    }

    #[test]
    fn null_in_the_schedule_is_its_default() {
        let nulls = "wait_steps: null, warmup_steps: null, active_steps: null, num_cycles: null";
        let (config, notices) = read(nulls).expect("fine");
        assert_eq!(config.schedule(), ProfilerConfig::default().schedule());
        assert!(notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn the_shipped_section() {
        let section = format!(
            "{NAME}, enabled: True, output_dir: p, cpu: True, cuda: True, profile_memory: True, with_stack: False, \
             record_shapes: False, with_flops: True, wait_steps: 0, warmup_steps: 3, active_steps: 4, num_cycles: 0"
        );
        let (config, notices) = read(&section).expect("fine");
        assert_eq!(config.dir(Path::new("out")), Path::new("p"));
        assert_eq!(config.schedule(), Schedule { wait: 0, warmup: 3, active: 4, cycles: 0 });
        assert!(config.profile_memory && !config.record_shapes && notices.is_empty(), "{config:?} {notices:?}");
    }

    #[test]
    fn only_what_cannot_be_had_is_told() {
        let (_, notices) = read("enabled: True, with_stack: True, cpu: False").expect("fine");
        assert_eq!(notices.len(), 2, "{notices:?}");
        assert!(notices[0].contains("with_stack") && notices[1].contains("cpu=False"), "{notices:?}");
        let (_, notices) = read("enabled: False, with_stack: True, cpu: False").expect("fine");
        assert!(notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn wrong_keys_and_values_are_named() {
        for (section, expected) in [
            ("wait_step: 1", "profiler.wait_steps"),
            ("active_steps: 0", "an integer >= 1"),
            ("warmup_steps: -1", "profiler.warmup_steps"),
            ("_component_: torch.profiler.profile", "unknown profiler `torch.profiler.profile`"),
        ] {
            let error = read(section).expect_err("wrong");
            assert!(error.contains(expected), "{section}: {error}");
        }
    }
}
