//! The ranks of a fine-tuning: threads of this process, or processes under MPI.
//!
//! Both run the same [`Run`]; here they are started, agree that they can begin, and are told apart when one fails.

use std::collections::BTreeMap;
use std::fmt;

use config::{Merged, Node};
use dist::{Cause, Communicator, Mesh};

use super::{Finetune, MeshShape, Run};
use crate::{Error, Launch, Ranks, Result, Share, told};

impl Finetune {
    /// Runs the recipe.
    pub(crate) fn run(&self, config: &Merged, launch: &Launch<'_>) -> Result<()> {
        match &launch.ranks {
            Ranks::Threads(1) => {
                let run = Run::prepare(self, config, launch, 1, true)?;
                run.train(&Mesh::alone(), &launch.open(run.device(), Share::ALL)?)
            }
            Ranks::Threads(num_ranks) => on_threads(self, config, launch, *num_ranks),
            Ranks::Processes { world, local } => on_processes(self, config, launch, world, *local),
        }
    }
}

fn on_threads(recipe: &Finetune, config: &Merged, launch: &Launch<'_>, num_ranks: usize) -> Result<()> {
    let run = Run::prepare(recipe, config, launch, num_ranks, true)?;
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

fn on_processes(
    recipe: &Finetune,
    config: &Merged,
    launch: &Launch<'_>,
    world: &Communicator,
    local: Share,
) -> Result<()> {
    check_same_config(config, world)?;
    let run = agree(world, Run::prepare(recipe, config, launch, world.world_size(), world.rank() == 0))?;
    let train = |world: Communicator| {
        let MeshShape { replicate, shard } = run.mesh();
        let mesh = Mesh::new(world, replicate, shard).map_err(Error::from)?;
        match run.train(&mesh, &launch.open(run.device(), local)?) {
            // All ranks have the same loss and the same weights: it is not this one that failed.
            Err(error @ Error::Diverged { .. }) => Ok(Some(error)),
            other => other.map(|()| None).map_err(WithHint),
        }
    };
    // A failure ends every process, this one too, with the cause on the screen.
    let diverged = dist::run_rank(world, train).map_err(|cause| match cause {
        Cause::Error(WithHint(error)) => error,
        Cause::Panic(message) => Error::RankPanicked { rank: world.rank(), message },
    })?;
    agree(world, diverged.map_or(Ok(()), Err))
}

/// `Error::OtherConfig` unless all processes were started with the same config.
fn check_same_config(config: &Merged, world: &Communicator) -> Result<()> {
    let own = flat(config);
    let texts: Vec<String> = own.iter().map(|(key, value)| format!("{key}\0{value}\0")).collect();
    let configs = world.gather_bytes(texts.concat().into_bytes()).wait()?;
    let Some(rank) = configs.iter().position(|other| *other != configs[0]) else { return Ok(()) };
    let entries = |bytes: &[u8]| -> BTreeMap<String, String> {
        let text = String::from_utf8_lossy(bytes);
        let mut parts = text.split('\0').map(str::to_owned);
        std::iter::from_fn(|| parts.next().zip(parts.next())).collect()
    };
    let [first, other] = [0, rank].map(|rank| entries(&configs[rank]));
    let key = first.keys().chain(other.keys()).filter(|key| first.get(*key) != other.get(*key)).min();
    let key = key.map_or("", String::as_str);
    let told = |entries: &BTreeMap<String, String>| match entries.get(key) {
        Some(value) => format!("`{key}: {value}`"),
        None => format!("no `{key}`"),
    };
    Err(Error::OtherConfig { rank, first: told(&first), other: told(&other) })
}

/// Every value of a config by its key.
fn flat(config: &Merged) -> BTreeMap<String, String> {
    fn walk(node: &Node, all: &mut BTreeMap<String, String>) {
        match (node.as_map(), node.as_list()) {
            (Some(map), _) if !map.is_empty() => map.iter().for_each(|(_, node)| walk(node, all)),
            (None, Some(list)) if !list.is_empty() => list.iter().for_each(|node| walk(node, all)),
            _ => {
                all.insert(node.path().to_owned(), config::to_json(node, config::Order::File).to_string());
            }
        }
    }
    let mut all = BTreeMap::new();
    walk(config.root(), &mut all);
    all
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
        let text = told(&self.0, self.0.hint().as_deref());
        f.write_str(text.strip_prefix("error: ").unwrap_or(&text))
    }
}

/// What this process made of something that all do; an error of any ends all. The first that failed says why before anybody
/// ends, because a launcher ends the others as soon as one has.
fn agree<T>(world: &Communicator, outcome: Result<T>) -> Result<T> {
    let failed = world.gather_bytes(vec![u8::from(outcome.is_err())]).wait()?;
    let Some(rank) = failed.iter().position(|failed| failed == &[1]) else { return outcome };
    let own = outcome.err();
    if let Some(error) = own.as_ref().filter(|_| rank == world.rank()) {
        metrics::notice(&told(error, error.hint().as_deref()));
    }
    world.barrier().wait()?;
    Err(Error::ToldByRank { rank, exit_code: own.map_or(2, |error| error.exit_code()) })
}
