//! `cargo xtask bench step_rate`: whole training steps on one thread, alternating with two, and beside them one of the products
//! that they are made of.
//!
//! Runs as the bench `smollm2` does ([`crate::peer`]), in bf16. What two threads are worth is the ratio of tokens per second; how much
//! of the machine a step uses is its rate of arithmetic over that of the product.

use anyhow::{Context, Result, bail, ensure};

use crate::cargo::{cargo, root};
use crate::peer::{Line, PeerArgs, TOKENS_PER_STEP, UNCOUNTED_STEPS, logged_rates, machine, median, prepare, timed};
use crate::{op_ratios, smollm2};

/// The bench's name.
pub(crate) const NAME: &str = "step_rate";

/// Threads of the runs that are compared.
const THREADS: [&str; 2] = ["1", "2"];

/// Arithmetic of a token of SmolLM2-135M in rows of 512: six for each of 106.2 million weights of blocks, and attention. Padding costs
/// as much as any token.
const GFLOP_OF_BLOCKS: f64 = 0.70;

/// Arithmetic of the head for a token that bears a loss: six for each of 28.3 million weights. With the blocks', 0.87.
const GFLOP_OF_HEAD: f64 = 0.17;

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
    let (mut arithmetic, mut products) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        for (threads, speeds) in THREADS.iter().zip(&mut speeds) {
            let (overrides, env) = (["dtype=bf16", &steps], [("FERROTUNE_NUM_THREADS", *threads)]);
            let line = Line { overrides: &overrides, env: &env, ..Line::default() };
            let (ended, times) = timed(&dir, &tune, &line, args.limit)?;
            ensure!(!ended.stopped, "{threads} threads: took over {} s", args.limit);
            let rates = logged_rates(&dir)?;
            ensure!(!rates.is_empty() && times.len() > UNCOUNTED_STEPS, "{threads} threads: logs no step that counts");
            let steps =
                times.windows(2).skip(UNCOUNTED_STEPS - 1).map(|pair| pair[1].as_secs_f64() - pair[0].as_secs_f64());
            let positions = TOKENS_PER_STEP / median(steps.collect());
            let tokens = median(rates);
            speeds.push(positions);
            if *threads == "2" {
                arithmetic.push(GFLOP_OF_BLOCKS * positions + GFLOP_OF_HEAD * tokens);
            }
        }
        let options =
            ["matmul", "dtype=bf16", &format!("name={PRODUCT}"), "threads=2", "format=tsv"].map(str::to_owned);
        let shown = op_ratios::lines(op_ratios::limited(args.limit, ops.as_ref()).args(options))?;
        let rate =
            shown.first().and_then(|line| line.split('\t').nth(2)?.split_whitespace().next()?.parse::<f64>().ok());
        products.push(rate.with_context(|| format!("no rate of `{PRODUCT}` in {shown:?}"))?);
    }
    let [one, two] = speeds.map(median);
    let (step, product) = (median(arithmetic), median(products));
    println!("1 thread              {one:>8.1} tokens/s, padding counted");
    println!("2 threads             {two:>8.1} tokens/s   {:.2} times as fast", two / one);
    println!("arithmetic of a step  {step:>8.1} GFLOP/s");
    println!("{PRODUCT}  {product:.1} GFLOP/s    the step does {:.2} of that", step / product);
    Ok(())
}
