//! `cargo xtask bench ranks`: whole training steps of one rank on two threads, alternating with those of two ranks on one
//! thread each, on the same rows.
//!
//! Runs as the bench `smollm2` does ([`crate::peer`]), in bf16: its figures are tokens per second of all ranks together. Ranks as
//! MPI processes come in where MPI is there to build with. What ranks receive from each other must be what the formula in
//! `ARCHITECTURE.md` says, to the byte.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::{cargo, root};
use crate::peer::{Line, PeerArgs, logged_rates, machine, median, prepare, remove_output, start};
use crate::{mpi, smollm2};

/// The bench's name.
pub(crate) const NAME: &str = "ranks";

/// What is run.
struct Variant {
    name: &'static str,
    num_ranks: usize,
    launch: &'static [&'static str],
    recipe: &'static str,
    batch_size: &'static str,
    threads: &'static str,
}

const RECIPE: &str = "full_finetune_distributed";
const ONE: Variant = Variant {
    name: "1 rank, 2 rows, 2 threads",
    num_ranks: 1,
    launch: &[],
    recipe: "full_finetune_single_device",
    batch_size: "batch_size=2",
    threads: "2",
};
const THREADS: Variant = Variant {
    name: "2 ranks as threads, 1 row, 1 thread each",
    num_ranks: 2,
    launch: &["--nproc_per_node", "2"],
    recipe: RECIPE,
    batch_size: "batch_size=1",
    threads: "1",
};
const MPI: Variant = Variant {
    name: "2 ranks as MPI processes, the same",
    launch: &["--launcher", "mpi", "--nproc_per_node", "2"],
    ..THREADS
};

/// Lets Open MPI start as many processes as it is told, as anyone, and wait without burning the cores that others compute on.
const OPEN_MPI: [(&str, &str); 4] = [
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("OMPI_MCA_mpi_yield_when_idle", "1"),
];

/// What a run showed: tokens per second of all ranks, and what the first rank received in a step.
struct Shown {
    tokens_per_second: f64,
    traffic: Option<Traffic>,
}

/// Bytes that a rank receives in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Traffic {
    gathered: u64,
    reduced: u64,
}

/// Runs all variants and prints a table.
pub(crate) fn run(args: &PeerArgs) -> Result<()> {
    let Some(rows) = &args.rows else { bail!("bench `{NAME}` needs `--rows FILE`") };
    let Some(gguf) = smollm2::locate() else { bail!("bench `{NAME}` needs the real model") };
    let has_mpi = mpi::is_there("ranks as MPI processes");
    let features: &[&str] = if has_mpi { &["--features", "mpi"] } else { &[] };
    cargo(["build", "--release", "--package", "ferrotune"]).args(features).run()?;
    let (dir, tune) = (root().join("target/bench/smollm2"), root().join("target/release/tune"));
    prepare(&dir, &tune, &gguf, rows)?;
    let expected = formula(&dir.join("ckpt/config.json"), 2)?;
    println!("{}", machine());

    let variants = [Some(ONE), Some(THREADS), has_mpi.then_some(MPI)];
    let variants: Vec<Variant> = variants.into_iter().flatten().collect();
    let mut all: Vec<Vec<Shown>> = variants.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for (variant, shown) in variants.iter().zip(&mut all) {
            shown.push(one_run(&dir, &tune, variant, args)?);
        }
    }
    println!("{:42}{:>12}{:>8}{:>20}{:>20}", "", "tokens/s", "ratio", "gathered bytes/step", "reduced bytes/step");
    let speed = |runs: &[Shown]| median(runs.iter().map(|run| run.tokens_per_second).collect());
    let of_one = speed(&all[0]);
    for (variant, runs) in variants.iter().zip(&all) {
        let traffic = runs[0].traffic.unwrap_or(Traffic { gathered: 0, reduced: 0 });
        println!(
            "{:42}{:>12.1}{:>8.2}{:>20}{:>20}",
            variant.name,
            speed(runs),
            speed(runs) / of_one,
            traffic.gathered,
            traffic.reduced
        );
    }
    println!(
        "{:42}{:>12}{:>8}{:>20}{:>20}",
        "formula, for each of 2 ranks", "", "", expected.gathered, expected.reduced
    );
    for (variant, runs) in variants.iter().zip(&all).filter(|(variant, _)| variant.num_ranks > 1) {
        for run in runs {
            ensure!(run.traffic == Some(expected), "{}: {:?}, by the formula {expected:?}", variant.name, run.traffic);
        }
    }
    Ok(())
}

fn one_run(dir: &Path, tune: &Path, variant: &Variant, args: &PeerArgs) -> Result<Shown> {
    let steps = format!("max_steps_per_epoch={}", args.steps);
    let overrides = ["dtype=bf16", "log_level=DEBUG", variant.batch_size, &steps];
    let env: Vec<(&str, &str)> = OPEN_MPI.into_iter().chain([("FERROTUNE_NUM_THREADS", variant.threads)]).collect();
    let line = Line { launch: variant.launch, recipe: variant.recipe, overrides: &overrides, env: &env };
    remove_output(dir)?;
    let ended = start(dir, tune, &line, args.limit)?;
    ensure!(!ended.stopped, "{}: took over {} s", variant.name, args.limit);
    let rates = logged_rates(dir)?;
    ensure!(!rates.is_empty(), "{}: logs no step that counts", variant.name);
    Ok(Shown {
        tokens_per_second: median(rates) * variant.num_ranks as f64,
        traffic: told_traffic(&ended.stderr, args.steps),
    })
}

/// What the program tells at its end, a step.
fn told_traffic(stderr: &str, steps: u64) -> Option<Traffic> {
    let told = stderr.lines().find_map(|line| line.split_once("The first rank received "))?.1;
    let number = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let (gathered, rest) = told.split_once(" bytes of parameters and ")?;
    Some(Traffic { gathered: number(gathered)? / steps, reduced: number(rest)? / steps })
}

/// What each of `num_ranks` receives in a step of one micro-batch, for a Llama whose head is its embedding: its embedding
/// comes three times (embedding forward, head, embedding backward), a block twice, the head's norm once.
fn formula(config: &Path, num_ranks: u64) -> Result<Traffic> {
    let config: Value = serde_json::from_slice(&std::fs::read(config)?)?;
    let size = |key: &str| config[key].as_u64().with_context(|| format!("`config.json` has no `{key}`"));
    ensure!(config["tie_word_embeddings"] == true, "the bench's model has no head of its own");
    let (hidden, feed_forward, layers) = (size("hidden_size")?, size("intermediate_size")?, size("num_hidden_layers")?);
    let heads = size("num_attention_heads")?;
    let head_dim = config["head_dim"].as_u64().unwrap_or(hidden / heads);
    let (queries, keys) = (heads * head_dim, size("num_key_value_heads")? * head_dim);

    let embedding = shard_bytes(&[size("vocab_size")? * hidden], num_ranks);
    let square = hidden * queries;
    let narrow = hidden * keys;
    let wide = hidden * feed_forward;
    let block = shard_bytes(&[hidden, square, narrow, narrow, square, hidden, wide, wide, wide], num_ranks);
    let norm = shard_bytes(&[hidden], num_ranks);
    let others = num_ranks - 1;
    Ok(Traffic {
        gathered: others * (3 * embedding + 2 * layers * block + norm),
        reduced: others * (embedding + layers * block + norm),
    })
}

/// Bytes of a shard of a unit in bf16: every parameter and every shard begins at a multiple of 256 elements.
fn shard_bytes(elements: &[u64], num_ranks: u64) -> u64 {
    let len: u64 = elements.iter().map(|elements| elements.next_multiple_of(256)).sum();
    2 * len.div_ceil(num_ranks).next_multiple_of(256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_program_is_read() {
        let line =
            "1|2|Loss: 3\nThe first rank received 600 bytes of parameters and 90 bytes of gradients from the others.\n";
        assert_eq!(told_traffic(line, 3), Some(Traffic { gathered: 200, reduced: 30 }));
        assert_eq!(told_traffic("nothing of that kind", 3), None);
    }

    #[test]
    fn the_formula_counts_padding() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.json");
        let config = serde_json::json!({"tie_word_embeddings": true, "vocab_size": 3, "hidden_size": 8,
            "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1});
        std::fs::write(&path, config.to_string()).unwrap();
        // Units of 1, 9 and 1 parameters of at most 256 elements each; two shards of the block have 5 of those each.
        let [embedding, block, norm] = [512, 5 * 512, 512];
        let expected = Traffic { gathered: 3 * embedding + 2 * block + norm, reduced: embedding + block + norm };
        assert_eq!(formula(&path, 2).unwrap(), expected);
    }
}
