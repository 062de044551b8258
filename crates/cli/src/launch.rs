//! torchrun's options, which stand before the recipe's name in `tune run`.
//!
//! torchrun starts one Python process a rank and lets them find each other. Here ranks need no processes and no rendezvous
//! on one machine, so most options have nothing to act on: they are accepted with one notice. Options that would change
//! what runs, or how often, are given their meaning or refused with the reason.

use recipes::registry::Recipe;

use crate::exit::Failure;

/// torchrun's options. Dashes and underscores mean the same.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct LaunchArgs {
    /// Ranks on this machine: a number, `cpu` for one a core, `gpu` for one a GPU, `auto` for GPUs or else cores
    #[arg(long, alias = "nproc_per_node", value_name = "N")]
    nproc_per_node: Option<String>,

    /// What ranks are: `threads` of this process, or `mpi` processes that `mpirun` starts [default: threads]
    #[arg(long, value_enum, value_name = "WHAT", hide_possible_values = true)]
    launcher: Option<Launcher>,

    /// Machines, `N` or `MIN:MAX`; more than one is started by `mpirun` or `srun` themselves
    #[arg(long, value_name = "N")]
    nnodes: Option<String>,

    /// This machine's number; only 0, as for `--nnodes`
    #[arg(long, alias = "node_rank", value_name = "N")]
    node_rank: Option<String>,

    /// Times to start a failed run again; only 0: `resume_from_checkpoint=True` goes on from the last checkpoint
    #[arg(long, alias = "max_restarts", value_name = "N")]
    max_restarts: Option<String>,

    /// Accepted without effect: ranks of one machine need no rendezvous
    #[arg(long)]
    standalone: bool,

    /// Accepted without effect, as `--standalone`
    #[arg(long, alias = "rdzv_backend", value_name = "NAME")]
    rdzv_backend: Option<String>,

    /// Accepted without effect, as `--standalone`
    #[arg(long, alias = "rdzv_endpoint", value_name = "HOST:PORT")]
    rdzv_endpoint: Option<String>,

    /// Accepted without effect, as `--standalone`
    #[arg(long, alias = "rdzv_id", value_name = "ID")]
    rdzv_id: Option<String>,

    /// Accepted without effect, as `--standalone`
    #[arg(long, alias = "rdzv_conf", value_name = "KEY=VALUE,...")]
    rdzv_conf: Option<String>,

    /// Accepted without effect, as `--standalone`
    #[arg(long, alias = "master_addr", value_name = "HOST")]
    master_addr: Option<String>,

    /// Accepted without effect, as `--standalone`
    #[arg(long, alias = "master_port", value_name = "PORT")]
    master_port: Option<String>,

    /// Accepted without effect, as `--standalone`
    #[arg(long, alias = "local_addr", value_name = "HOST")]
    local_addr: Option<String>,

    /// Accepted without effect: there are no worker processes to watch
    #[arg(long, alias = "monitor_interval", value_name = "SECONDS", hide = true)]
    monitor_interval: Option<String>,

    /// Accepted without effect
    #[arg(long, alias = "start_method", value_name = "METHOD", hide = true)]
    start_method: Option<String>,

    /// Accepted without effect
    #[arg(long, alias = "event_log_handler", value_name = "NAME", hide = true)]
    event_log_handler: Option<String>,

    /// Accepted without effect
    #[arg(long, value_name = "NAME", hide = true)]
    role: Option<String>,

    /// Accepted without effect: all ranks speak through one process
    #[arg(long, alias = "log_dir", value_name = "DIR", hide = true)]
    log_dir: Option<String>,

    /// Accepted without effect
    #[arg(short, long, value_name = "WHICH", hide = true)]
    redirects: Option<String>,

    /// Accepted without effect
    #[arg(short, long, value_name = "WHICH", hide = true)]
    tee: Option<String>,

    /// Accepted without effect
    #[arg(long, alias = "local_ranks_filter", value_name = "RANKS", hide = true)]
    local_ranks_filter: Option<String>,

    /// Accepted without effect
    #[arg(long, alias = "logs_specs", value_name = "NAME", hide = true)]
    logs_specs: Option<String>,

    /// Accepted without effect
    #[arg(long, alias = "numa_binding", value_name = "MODE", hide = true)]
    numa_binding: Option<String>,

    /// Refused: it runs a Python module
    #[arg(short, long, hide = true)]
    module: bool,

    /// Refused: it runs another program
    #[arg(long, alias = "no_python", hide = true)]
    no_python: bool,

    /// Refused: it runs a Python script
    #[arg(long, alias = "run_path", hide = true)]
    run_path: bool,
}

/// What the ranks of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Launcher {
    /// Threads of one process.
    #[default]
    Threads,
    /// Processes that talk through MPI.
    Mpi,
}

/// How a recipe is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Launch {
    /// Ranks to run.
    pub(crate) num_ranks: usize,
    /// What they are.
    pub(crate) launcher: Launcher,
    /// One line for each option without effect.
    pub(crate) notices: Vec<String>,
}

impl LaunchArgs {
    /// What the options mean for `recipe`.
    pub(crate) fn launch(&self, recipe: &Recipe) -> Result<Launch, Failure> {
        for (given, option) in
            [(self.module, "--module"), (self.no_python, "--no-python"), (self.run_path, "--run-path")]
        {
            if given {
                return Err(refused(option, "it runs a program of your own instead of a recipe")
                    .hint("leave it out: recipes are part of this program"));
            }
        }
        let num_nodes = self.nnodes.as_deref().map_or(Ok(1), |text| nodes(text, "--nnodes"))?;
        if num_nodes > 1 {
            let option = format!("--nnodes {}", self.nnodes.as_deref().unwrap_or_default());
            return Err(refused(&option, "ranks that this program starts are on one machine")
                .hint("start it on all machines by `mpirun -n RANKS tune run ...` or `srun --mpi=pmix tune run ...`"));
        }
        if self.node_rank.as_deref().map_or(Ok(0), |text| number(text, "--node-rank"))? > 0 {
            let option = format!("--node-rank {}", self.node_rank.as_deref().unwrap_or_default());
            return Err(refused(&option, "ranks that this program starts are on one machine")
                .hint("start it on all machines by `mpirun -n RANKS tune run ...` or `srun --mpi=pmix tune run ...`"));
        }
        if self.max_restarts.as_deref().map_or(Ok(0), |text| number(text, "--max-restarts"))? > 0 {
            let option = format!("--max-restarts {}", self.max_restarts.as_deref().unwrap_or_default());
            return Err(refused(&option, "a run that failed is not started again by itself")
                .hint("leave it out, and go on with `resume_from_checkpoint=True`"));
        }
        let num_ranks = self.nproc_per_node.as_deref().map_or(Ok(1), ranks)?;
        if num_ranks > 1 && !recipe.supports_distributed {
            let twin = recipes::registry::find(&recipe.name.replace("single_device", "distributed"));
            let hint = match twin.filter(|twin| twin.supports_distributed) {
                Some(twin) => format!("run `{}`, or write `--nproc-per-node 1`", twin.name),
                None => "write `--nproc-per-node 1`".to_owned(),
            };
            let reason = format!("recipe `{}` runs on one device", recipe.name);
            let option = format!("--nproc-per-node {}", self.nproc_per_node.as_deref().unwrap_or_default());
            return Err(refused(&option, &reason).hint(hint));
        }
        Ok(Launch { num_ranks, launcher: self.launcher.unwrap_or_default(), notices: self.notices() })
    }

    fn notices(&self) -> Vec<String> {
        const RENDEZVOUS: &str = "ranks of one machine need no rendezvous";
        const PROCESSES: &str = "there are no worker processes";
        const OUTPUT: &str = "all ranks speak through one process";
        let given = [
            (self.standalone, "--standalone", RENDEZVOUS),
            (self.rdzv_backend.is_some(), "--rdzv-backend", RENDEZVOUS),
            (self.rdzv_endpoint.is_some(), "--rdzv-endpoint", RENDEZVOUS),
            (self.rdzv_id.is_some(), "--rdzv-id", RENDEZVOUS),
            (self.rdzv_conf.is_some(), "--rdzv-conf", RENDEZVOUS),
            (self.master_addr.is_some(), "--master-addr", RENDEZVOUS),
            (self.master_port.is_some(), "--master-port", RENDEZVOUS),
            (self.local_addr.is_some(), "--local-addr", RENDEZVOUS),
            (self.monitor_interval.is_some(), "--monitor-interval", PROCESSES),
            (self.start_method.is_some(), "--start-method", PROCESSES),
            (self.event_log_handler.is_some(), "--event-log-handler", PROCESSES),
            (self.role.is_some(), "--role", PROCESSES),
            (self.numa_binding.is_some(), "--numa-binding", PROCESSES),
            (self.log_dir.is_some(), "--log-dir", OUTPUT),
            (self.redirects.is_some(), "--redirects", OUTPUT),
            (self.tee.is_some(), "--tee", OUTPUT),
            (self.local_ranks_filter.is_some(), "--local-ranks-filter", OUTPUT),
            (self.logs_specs.is_some(), "--logs-specs", OUTPUT),
        ];
        let reasons = [RENDEZVOUS, PROCESSES, OUTPUT];
        let line = |reason| {
            let options: Vec<String> = given
                .iter()
                .filter(|(is, _, why)| *is && *why == reason)
                .map(|(_, name, _)| format!("`{name}`"))
                .collect();
            let verb = if options.len() == 1 { "has" } else { "have" };
            (!options.is_empty()).then(|| format!("{} {verb} no effect: {reason}", options.join(", ")))
        };
        reasons.into_iter().filter_map(line).collect()
    }
}

/// Whether `flag` (with its dashes) is one of the launch options, in either spelling.
pub(crate) fn is_launch_option(flag: &str) -> bool {
    let name = flag.split('=').next().unwrap_or(flag).trim_start_matches('-').replace('_', "-");
    let command = <LaunchArgs as clap::Args>::augment_args(clap::Command::new("launch"));
    command.get_arguments().any(|argument| argument.get_long() == Some(&name))
}

fn refused(option: &str, reason: &str) -> Failure {
    Failure::usage(format!("cannot use `{option}`\n  {reason}"))
}

fn number(text: &str, option: &str) -> Result<usize, Failure> {
    text.parse()
        .map_err(|_| Failure::usage(format!("wrong value for `{option}`\n  expected an integer >= 0, found `{text}`")))
}

/// Machines at most: `N` or `MIN:MAX`.
fn nodes(text: &str, option: &str) -> Result<usize, Failure> {
    let parts: Option<Vec<usize>> = text.split(':').map(|part| part.parse().ok().filter(|&n| n > 0)).collect();
    match parts.as_deref() {
        Some([number]) => Ok(*number),
        Some([least, most]) if least <= most => Ok(*most),
        _ => Err(Failure::usage(format!(
            "wrong value for `{option}`\n  expected a number of machines, `N` or `MIN:MAX`, found `{text}`"
        ))),
    }
}

fn ranks(text: &str) -> Result<usize, Failure> {
    let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match text {
        "auto" | "cpu" => Ok(cores()),
        "gpu" => Err(refused("--nproc-per-node gpu", "this build computes on CPUs")
            .hint("write `--nproc-per-node cpu`, or a number of ranks")),
        number => number.parse().ok().filter(|&ranks| ranks > 0).ok_or_else(|| {
            Failure::usage(format!(
                "wrong value for `--nproc-per-node`\n  expected an integer >= 1, `auto`, `cpu` or `gpu`, found `{text}`"
            ))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(recipe: &str, args: &LaunchArgs) -> Result<Launch, String> {
        let recipe = recipes::registry::find(recipe).expect("registered");
        args.launch(recipe).map_err(|failure| failure.to_string())
    }

    #[test]
    fn one_rank_suits_every_recipe() {
        let args = LaunchArgs { nproc_per_node: Some("1".into()), nnodes: Some("1:1".into()), ..LaunchArgs::default() };
        assert_eq!(
            launch("full_finetune_single_device", &args),
            Ok(Launch { num_ranks: 1, launcher: Launcher::Threads, notices: vec![] })
        );
    }

    #[test]
    fn several_ranks_need_a_distributed_recipe() {
        let args = || LaunchArgs { nproc_per_node: Some("2".into()), ..LaunchArgs::default() };
        assert_eq!(launch("full_finetune_distributed", &args()).expect("distributed").num_ranks, 2);
        let error = launch("full_finetune_single_device", &args()).expect_err("one device");
        assert!(error.contains("`full_finetune_single_device` runs on one device"), "{error}");
    }

    #[test]
    fn options_without_effect_are_told_once_a_reason() {
        let args = LaunchArgs {
            standalone: true,
            rdzv_endpoint: Some("localhost:0".into()),
            tee: Some("3".into()),
            ..LaunchArgs::default()
        };
        let notices = launch("generate", &args).expect("accepted").notices;
        assert_eq!(
            notices,
            [
                "`--standalone`, `--rdzv-endpoint` have no effect: ranks of one machine need no rendezvous",
                "`--tee` has no effect: all ranks speak through one process",
            ]
        );
    }

    #[test]
    fn machines_are_counted() {
        assert_eq!(nodes("1", "--nnodes").ok(), Some(1));
        assert_eq!(nodes("1:4", "--nnodes").ok(), Some(4));
        for bad in ["0", "", "2:1", "1:2:3", "two"] {
            assert!(nodes(bad, "--nnodes").is_err(), "{bad}");
        }
    }

    #[test]
    fn launch_options_are_known_in_both_spellings() {
        for flag in ["--nproc_per_node", "--nproc-per-node=2", "--rdzv_endpoint", "--standalone"] {
            assert!(is_launch_option(flag), "{flag}");
        }
        assert!(!is_launch_option("--batch_size"));
    }
}
