//! Whether an MPI launcher started this process, and as which rank, from what it leaves in the environment.
//!
//! | launcher | variables |
//! |---|---|
//! | `mpirun` of Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK` |
//! | `mpirun` of MPICH and Intel MPI, `srun --mpi=pmi2` | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID` |
//! | `srun --mpi=pmix` and others | `PMIX_RANK`, `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID` |
//!
//! Slurm's own variables alone prove nothing: the shell of a batch job has them too, with `SLURM_NTASKS` tasks of which it
//! is none. They count only inside of a step (`SLURM_STEP_NUM_TASKS`, which `srun` sets for its tasks) for which MPI was
//! asked for: `PMIX_RANK` is there, or `SLURM_MPI_TYPE` names a type.

/// This process as an MPI launcher sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpiEnvironment {
    /// Its rank among all processes.
    pub rank: usize,
    /// How many processes there are; 1 if the launcher started only this one.
    pub world_size: usize,
    /// Its rank among the processes of its host; the rank itself if the launcher does not tell, as on one host.
    pub local_rank: usize,
}

/// What the launcher of this process left in the environment; `None` if no MPI launcher started it. Does not need the feature
/// `mpi`, so that a binary without it can say what is missing instead of training the same model once a rank.
pub fn mpi_environment() -> Option<MpiEnvironment> {
    MpiEnvironment::from_variables(|name| std::env::var(name).ok())
}

/// This process as a task of Slurm, and how many there are, if `srun` started several without telling them of each other:
/// MPI was not asked for, and each would train the whole model.
pub fn lone_slurm_task() -> Option<(usize, usize)> {
    lone_task(|name| std::env::var(name).ok())
}

fn lone_task(variable: impl Fn(&str) -> Option<String>) -> Option<(usize, usize)> {
    let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
    let (rank, num_tasks) = (number("SLURM_PROCID")?, number("SLURM_STEP_NUM_TASKS")?);
    let is_lone = num_tasks > 1 && rank < num_tasks && MpiEnvironment::from_variables(&variable).is_none();
    is_lone.then_some((rank, num_tasks))
}

impl MpiEnvironment {
    /// From the variables of any environment. Values that are not numbers, or that contradict each other, count as absent.
    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |name: &str| variable(name)?.trim().parse::<usize>().ok();
        let world = |rank: &str, world_size: &str| {
            let (rank, world_size) = (number(rank)?, number(world_size)?);
            (rank < world_size).then_some((rank, world_size))
        };
        let asks_for_mpi = || {
            let named = variable("SLURM_MPI_TYPE").is_some_and(|kind| !kind.is_empty() && kind != "none");
            named || number("PMIX_RANK").is_some()
        };
        let (rank, world_size) = world("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
            .or_else(|| world("PMI_RANK", "PMI_SIZE"))
            .or_else(|| world("SLURM_PROCID", "SLURM_STEP_NUM_TASKS").filter(|_| asks_for_mpi()))?;
        let local = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"];
        Some(Self { rank, world_size, local_rank: local.into_iter().find_map(number).unwrap_or(rank) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Variables in the form `A=1 B=2`.
    fn among(variables: &str) -> impl Fn(&str) -> Option<String> {
        |name| {
            let mut pairs = variables.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        }
    }

    /// What variables mean: (rank, world size, local rank).
    fn found(variables: &str) -> Option<(usize, usize, usize)> {
        MpiEnvironment::from_variables(among(variables)).map(|e| (e.rank, e.world_size, e.local_rank))
    }

    #[test]
    fn launchers_are_recognised() {
        let openmpi = "OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 PMIX_RANK=5";
        assert_eq!(found(openmpi), Some((5, 8, 1)));
        assert_eq!(found("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0"), Some((0, 2, 0)));
        assert_eq!(found("PMI_RANK=1 PMI_SIZE=2"), Some((1, 2, 1)), "one host unless told otherwise");
        let step = "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 SLURM_LOCALID=1";
        assert_eq!(found(&format!("{step} PMIX_RANK=3")), Some((3, 4, 1)));
        assert_eq!(found(&format!("{step} SLURM_MPI_TYPE=pmix")), Some((3, 4, 1)));
    }

    #[test]
    fn a_batch_shell_and_a_step_without_mpi_are_no_ranks() {
        assert_eq!(found(""), None);
        assert_eq!(found("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0"), None);
        assert_eq!(found("SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_MPI_TYPE=pmix"), None, "set for the job's steps");
        let step = "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4";
        assert_eq!(found(step), None);
        assert_eq!(found(&format!("{step} SLURM_MPI_TYPE=none")), None);
    }

    #[test]
    fn tasks_that_srun_tells_nothing_of_each_other_are_seen() {
        let step = "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4";
        assert_eq!(lone_task(among(step)), Some((3, 4)));
        assert_eq!(lone_task(among("SLURM_PROCID=0 SLURM_NTASKS=4")), None, "the shell of a batch job");
        assert_eq!(lone_task(among("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1")), None, "one task");
        assert_eq!(lone_task(among(&format!("{step} PMIX_RANK=3"))), None, "a rank");
        let under_mpirun = format!("{step} OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1");
        assert_eq!(lone_task(among(&under_mpirun)), None, "a rank of its own");
    }

    #[test]
    fn values_that_make_no_sense_count_as_absent() {
        assert_eq!(found("OMPI_COMM_WORLD_RANK=x OMPI_COMM_WORLD_SIZE=2"), None);
        assert_eq!(found("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=2"), None);
        assert_eq!(found("OMPI_COMM_WORLD_RANK=0"), None);
    }
}
