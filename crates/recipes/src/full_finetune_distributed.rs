//! `full_finetune_distributed`: every weight of a model trained on many ranks, each holding a shard of everything.
//!
//! Ranks are threads of this process, or processes under MPI. Both run the same code of `full_finetune`; here they are
//! started, agree that they can begin, and are told apart when one fails.

use std::fmt;

use config::{Merged, Notice, Problems};
use dist::{Cause, Communicator, Mesh};

use crate::full_finetune::{Kind, MeshShape, Run, check as check_config, mesh_shape};
use crate::settings::FullFinetuneSettings;
use crate::{Error, Launch, Ranks, Result, Share};

pub(crate) const NAME: &str = "full_finetune_distributed";

/// Runs the recipe.
pub(crate) fn run(config: &Merged, launch: &Launch<'_>) -> Result<()> {
    match &launch.ranks {
        Ranks::Threads(1) => {
            let run = prepare(config, launch, 1, true)?;
            run.train(&Mesh::alone(), &launch.open(run.device(), Share::ALL)?)
        }
        Ranks::Threads(num_ranks) => on_threads(config, launch, *num_ranks),
        Ranks::Processes { world, local } => on_processes(config, launch, world, *local),
    }
}

/// The checked config; `None` after its problems were reported.
pub(crate) fn check(config: &Merged, problems: &mut Problems) -> Option<FullFinetuneSettings> {
    check_config(config, problems, NAME, Kind::Distributed)
}

fn prepare<'a>(config: &'a Merged, launch: &Launch<'_>, num_ranks: usize, speaks: bool) -> Result<Run<'a>> {
    let mut problems = Problems::new();
    let settings = check(config, &mut problems);
    let mesh = settings.as_ref().map(|settings| mesh_shape(settings, num_ranks, config, &mut problems));
    let notices: Vec<Notice> = problems.finish()?;
    let (settings, mesh) = settings.zip(mesh).expect("whatever could not be read is a problem");
    Run::prepare(NAME, config, settings, &notices, mesh, launch, speaks)
}

fn on_threads(config: &Merged, launch: &Launch<'_>, num_ranks: usize) -> Result<()> {
    let run = prepare(config, launch, num_ranks, true)?;
    let train = |world: Communicator| {
        let share = Share { index: world.rank(), of: num_ranks };
        let MeshShape { replicate, shard } = run.mesh();
        run.train(&Mesh::new(world, replicate, shard)?, &launch.open(run.device(), share)?)
    };
    match dist::run_threads(num_ranks, train) {
        Ok(_) => Ok(()),
        Err(failure) => Err(match failure.cause {
            Cause::Error(error) => Error::OfRank { rank: failure.rank, source: Box::new(error) },
            Cause::Panic(message) => Error::RankPanicked { rank: failure.rank, message },
        }),
    }
}

fn on_processes(config: &Merged, launch: &Launch<'_>, world: &Communicator, local: Share) -> Result<()> {
    let text = config.to_yaml(config::Order::Sorted);
    let configs = world.gather_bytes(text.clone().into_bytes()).wait()?;
    if let Some(rank) = configs.iter().position(|other| *other != configs[0]) {
        let others = String::from_utf8_lossy(&configs[0]);
        let own = String::from_utf8_lossy(&configs[rank]);
        let difference = others.lines().zip(own.lines()).find(|(a, b)| a != b);
        let (first, other) = difference.unwrap_or_default();
        return Err(Error::OtherConfig { rank, first: first.trim().to_owned(), other: other.trim().to_owned() });
    }
    let run = agree(world, prepare(config, launch, world.world_size(), world.rank() == 0))?;
    let train = |world: Communicator| {
        let MeshShape { replicate, shard } = run.mesh();
        let mesh = Mesh::new(world, replicate, shard).map_err(Error::from)?;
        run.train(&mesh, &launch.open(run.device(), local)?).map_err(WithHint)
    };
    // A failure ends every process, this one too, with the cause on the screen.
    dist::run_rank(world, train).map_err(|cause| match cause {
        Cause::Error(WithHint(error)) => error,
        Cause::Panic(message) => Error::RankPanicked { rank: world.rank(), message },
    })
}

/// An error that is shown with its hint.
struct WithHint(Error);

impl From<Error> for WithHint {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for WithHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Told(&self.0).fmt(f)
    }
}

/// What this process made of something that all do; an error of any ends all. The first that failed says why before anybody
/// ends, because a launcher ends the others as soon as one has.
fn agree<T>(world: &Communicator, outcome: Result<T>) -> Result<T> {
    let failed = world.gather_bytes(vec![u8::from(outcome.is_err())]).wait()?;
    let Some(rank) = failed.iter().position(|failed| failed == &[1]) else { return outcome };
    let own = outcome.err();
    if let Some(error) = own.as_ref().filter(|_| rank == world.rank()) {
        metrics::notice(&format!("error: {}", Told(error)));
    }
    world.barrier().wait()?;
    Err(Error::ToldByRank { rank, exit_code: own.map_or(2, |error| error.exit_code()) })
}

/// An error with its causes and its hint.
struct Told<'a>(&'a Error);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        f.write_str(&text)?;
        let mut cause = std::error::Error::source(self.0);
        while let Some(inner) = cause {
            let line = inner.to_string();
            // Many errors print their cause themselves.
            if !text.contains(&line) {
                write!(f, "\n  caused by: {line}")?;
            }
            cause = inner.source();
        }
        self.0.hint().map_or(Ok(()), |hint| write!(f, "\n\nhint: {hint}"))
    }
}
