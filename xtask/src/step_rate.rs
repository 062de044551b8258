//! `cargo xtask bench step_rate`: whole training steps on one thread, alternating with two, and beside them one of the products
//! that they are made of.
//!
//! Runs as the bench `smollm2` does ([`crate::peer`]), in bf16. What two threads are worth is the ratio of tokens per second; how much
//! of the machine a step uses is its rate of arithmetic over that of the product.

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{cargo, root};
use crate::peer::{Line, PeerArgs, logged_rates, machine, median, prepare, remove_output, start};
use crate::{op_ratios, smollm2};

/// The bench's name.
pub(crate) const NAME: &str = "step_rate";

/// Threads of the runs that are compared.
const THREADS: [&str; 2] = ["1", "2"];

/// Arithmetic of a token of SmolLM2-135M in rows of 512: six for each of 134.5 million weights, and attention.
const GFLOP_PER_TOKEN: f64 = 0.87;

/// The product: 1024 tokens through the layer from 576 to 1536.
const PRODUCT: &str = "matmul_nt bf16 1024x576x1536";

/// Runs all of it and prints a table.
pub(crate) fn run(args: &PeerArgs) -> Result<()> {
    let Some(rows) = &args.rows else { bail!("bench `{NAME}` needs `--rows FILE`") };
    let Some(gguf) = smollm2::locate() else { bail!("bench `{NAME}` needs the real model") };
    cargo(["build", "--release", "--package", "ferrotune"]).run()?;
    let (dir, tune) = (root().join("target/bench/smollm2"), root().join("target/release/tune"));
    prepare(&dir, &tune, &gguf, rows)?;
    let ops = op_ratios::ops_program()?;
    println!("{}", machine());

    let steps = format!("max_steps_per_epoch={}", args.steps);
    let mut speeds = THREADS.map(|_| Vec::new());
    let mut products = Vec::new();
    for _ in 0..args.rounds {
        for (threads, speeds) in THREADS.iter().zip(&mut speeds) {
            remove_output(&dir)?;
            let (overrides, env) = (["dtype=bf16", &steps], [("FERROTUNE_NUM_THREADS", *threads)]);
            let ended = start(&dir, &tune, &Line { overrides: &overrides, env: &env, ..Line::default() }, args.limit)?;
            ensure!(!ended.stopped, "{threads} threads: took over {} s", args.limit);
            let rates = logged_rates(&dir)?;
            ensure!(!rates.is_empty(), "{threads} threads: logs no step that counts");
            speeds.push(median(rates));
        }
        let options =
            ["matmul", "dtype=bf16", &format!("name={PRODUCT}"), "threads=2", "format=tsv"].map(str::to_owned);
        let shown = op_ratios::lines(op_ratios::limited(args.limit, ops.as_ref()).args(options))?;
        let rate =
            shown.first().and_then(|line| line.split('\t').nth(2)?.split_whitespace().next()?.parse::<f64>().ok());
        products.push(rate.with_context(|| format!("no rate of `{PRODUCT}` in {shown:?}"))?);
    }
    let [one, two] = speeds.map(median);
    let (step, product) = (GFLOP_PER_TOKEN * two, median(products));
    println!("1 thread              {one:>8.1} tokens/s");
    println!("2 threads             {two:>8.1} tokens/s   {:.2} times as fast", two / one);
    println!("arithmetic of a step  {step:>8.1} GFLOP/s    at {GFLOP_PER_TOKEN} GFLOP a token");
    println!("{PRODUCT}  {product:.1} GFLOP/s    the step does {:.2} of that", step / product);
    Ok(())
}
