//! Many ranks: the conformance pack's curves from every split of the same rows, resuming on other numbers of ranks, and what
//! ends all ranks.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::common::{LoggedStep, read_log, succeed, tune};
use super::curves::{Curve, curve, own_curve};
use super::tiny::Tiny;

const RECIPE: &str = "full_finetune_distributed";

/// Ranks, rows of a micro-batch, micro-batches of a step: always eight rows.
const SPLITS: [[usize; 3]; 3] = [[1, 2, 4], [2, 2, 2], [4, 2, 1]];

/// `tune run` of the recipe on so many threads, up to the overrides.
fn on_ranks(dir: &Path, num_ranks: usize, config: &str) -> Command {
    recipe_on_ranks(dir, num_ranks, RECIPE, config)
}

fn recipe_on_ranks(dir: &Path, num_ranks: usize, recipe: &str, config: &str) -> Command {
    let mut command = tune(dir);
    command.env("FERROTUNE_NUM_THREADS", "1");
    command.args(["run", "--nproc_per_node", &num_ranks.to_string(), recipe, "--config", config]);
    command
}

/// A curve's run with further overrides; compares what it logs.
fn run_curve(conformance: &Path, curve: &Curve, [ranks, batch, accumulation]: [usize; 3], more: &[&str], out: &Path) {
    let config = format!("training/{}", curve.config);
    let mut command = recipe_on_ranks(conformance, ranks, &curve.recipe_on_ranks(), &config);
    command.args(curve.start()).args(&curve.overrides);
    command.args([format!("batch_size={batch}"), format!("gradient_accumulation_steps={accumulation}")]);
    command.args(more).arg(format!("output_dir={}", out.display()));
    succeed(&mut command);
    curve.compare(&read_log(out), &format!("{} on {ranks} ranks {more:?}", curve.name));
}

/// All tensors of a safetensors file, by name, as f32.
fn tensors(file: &Path) -> Vec<(String, Vec<f32>)> {
    let bytes = std::fs::read(file).expect("saved");
    let read = safetensors::SafeTensors::deserialize(&bytes).expect("well formed");
    let values = |t: &safetensors::tensor::TensorView<'_>| {
        assert_eq!(t.dtype(), safetensors::Dtype::F32);
        t.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let mut all: Vec<_> = read.tensors().iter().map(|(name, t)| (name.clone(), values(t))).collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Every tensor equal to rounding: the difference has at most `1e-5` of its norm.
fn assert_same_weights(found: &Path, expected: &Path, what: &str) {
    let (found, expected) = (tensors(found), tensors(expected));
    assert_eq!(found.len(), expected.len(), "{what}");
    for ((name, found), (other, expected)) in found.iter().zip(&expected) {
        assert_eq!((name, found.len()), (other, expected.len()), "{what}");
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
        let difference = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
        let size = norm(&mut expected.iter().copied());
        assert!(difference <= 1e-5 * size, "{what}: {name} differs by {:e} of its norm", difference / size);
    }
}

#[test]
fn every_split_of_the_rows_gives_the_references_curve_and_the_same_weights() {
    let Some(conformance) = testing::conformance_dir() else { return };
    for name in ["accum4", "accum4_sgd", "accum4_clip"] {
        let Some(curve) = curve(&conformance, name) else { continue };
        let out = tempfile::tempdir().expect("a temporary folder");
        let dir = |label: String| out.path().join(label);
        for split in SPLITS {
            for offload in ["False", "True"] {
                let label = format!("{}_{offload}", split[0]);
                let offload = format!("fsdp_cpu_offload={offload}");
                run_curve(&conformance, &curve, split, &[&offload], &dir(label.clone()));
                let weights = |label: String| dir(label).join("epoch_0/model.safetensors");
                assert_same_weights(
                    &weights(label.clone()),
                    &weights("1_False".to_owned()),
                    &format!("{name} {label}"),
                );
            }
        }
    }
}

#[test]
fn quantised_training_on_ranks_has_the_references_curves() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let mut runs = 0;
    let mut run = |name: &str, split, more: &[&str]| {
        runs += 1;
        run_curve(&conformance, &own_curve(name), split, more, &out.path().join(runs.to_string()));
    };
    let recompute = "enable_activation_checkpointing=True";
    for split in SPLITS {
        run("qat_accum", split, &[]);
        run("qat_int4_accum_sgd", split, &[recompute]);
    }
    run("qat_int4_accum_sgd", [4, 2, 1], &["data_parallel_replicate_dim=2", "data_parallel_shard_dim=2"]);
    let on_disk = ["offload.parameters=disk", "offload.gradients=disk", "offload.optimizer=disk"];
    run("qat_int4_accum_sgd", [4, 2, 1], &on_disk);
    // Two rows a step, in one micro-batch or one on each rank.
    for split in [[1, 2, 1], [2, 1, 1]] {
        for name in ["qat_lora", "qat_lora_sgd", "qat_int4_lora"] {
            run(name, split, &[recompute]);
        }
    }
}

#[test]
fn policies_and_meshes_give_the_same_curve() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let (Some(clip), Some(packed)) = (curve(&conformance, "accum4_clip"), curve(&conformance, "packed")) else {
        return;
    };
    let out = tempfile::tempdir().expect("a temporary folder");
    let full = "enable_activation_checkpointing=True";
    for (index, more) in [
        &[full][..],
        &["ac_mode=full"],
        &["ac_mode=selective", "ac_option=2"],
        &[full, "fsdp_reshard_after_forward=False"],
        &["data_parallel_replicate_dim=2", "data_parallel_shard_dim=2"],
        &["data_parallel_replicate_dim=4"],
        &["custom_sharded_layers=[tok_embeddings,output]"],
        &["offload.parameters=disk", "offload.gradients=disk", "offload.optimizer=disk"],
    ]
    .into_iter()
    .enumerate()
    {
        run_curve(&conformance, &clip, [4, 2, 1], more, &out.path().join(index.to_string()));
    }
    run_curve(&conformance, &packed, [2, 1, 1], &[], &out.path().join("packed"));
}

#[test]
fn updates_inside_backward_give_the_same_curve_on_ranks() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let Some(curve) = curve(&conformance, "accum4_sgd") else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    run_curve(&conformance, &curve, [4, 2, 1], &["optimizer_in_bwd=True"], &out.path().join("inside"));
    run_curve(&conformance, &curve, [4, 2, 1], &[], &out.path().join("plain"));
    let weights = |label: &str| out.path().join(label).join("epoch_0/model.safetensors");
    assert_same_weights(&weights("inside"), &weights("plain"), "updates inside backward");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_all_ranks() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let mut command = on_ranks(&conformance, 2, "training/tiny_full.yaml");
    command.args(["epochs=10000", &format!("output_dir={}", out.path().join("run").display())]);
    let child = command.stderr(std::process::Stdio::piped()).spawn().expect("the program starts");
    let start = Instant::now();
    while !out.path().join("run/epoch_0").exists() {
        assert!(start.elapsed() < Duration::from_secs(30), "no epoch ever ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    succeed(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let start = Instant::now();
    let output = child.wait_with_output().expect("a child");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(start.elapsed() < Duration::from_secs(5), "{stderr}");
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted: checkpoints saved so far are whole"), "{stderr}");
}

#[test]
fn a_run_goes_on_with_another_number_of_ranks() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let Some(curve) = curve(&conformance, "accum4") else { return };
    let out = tempfile::tempdir().expect("a temporary folder");
    let run = |[ranks, batch, accumulation]: [usize; 3], dir: &str, more: &[&str]| {
        let mut command = on_ranks(&conformance, ranks, &format!("training/{}", curve.config));
        command.args([format!("batch_size={batch}"), format!("gradient_accumulation_steps={accumulation}")]);
        command.args(["max_steps_per_epoch=2"]).args(more);
        succeed(command.arg(format!("output_dir={}", out.path().join(dir).display())));
    };
    run([1, 2, 4], "whole", &["epochs=2"]);
    run([4, 2, 1], "parts", &["epochs=1"]);
    run([2, 2, 2], "parts", &["epochs=2", "resume_from_checkpoint=True"]);
    for file in ["model.safetensors", "optimizer.safetensors"] {
        let of = |dir: &str| out.path().join(dir).join("epoch_1").join(file);
        assert_same_weights(&of("parts"), &of("whole"), file);
    }
}

#[cfg(not(feature = "mpi"))]
#[test]
fn a_program_without_mpi_says_so_under_mpirun() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let config = "llama3/8B_full";
    let mut under_mpirun = tune(dir.path());
    under_mpirun.envs([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")]);
    under_mpirun.args(["run", RECIPE, "--config", config]);
    let mut launcher = tune(dir.path());
    launcher.args(["run", "--launcher", "mpi", "--nproc_per_node", "2", RECIPE, "--config", config]);
    for (mut command, message) in [
        (under_mpirun, "error: MPI started 4 processes, but this program was built without MPI\n"),
        (launcher, "error: cannot use `--launcher mpi`\n  this program was built without MPI\n"),
    ] {
        let output = command.output().expect("the program starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(message) && stderr.contains("hint: build it with `--features mpi`"), "{stderr}");
    }
}

#[test]
fn tasks_of_slurm_that_are_no_ranks_stop_with_one_message() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (task, message) in [("0", "error: Slurm started 4 tasks, but not as the ranks of one run\n"), ("1", "")] {
        let mut command = tune(dir.path());
        command.envs([("SLURM_PROCID", task), ("SLURM_STEP_NUM_TASKS", "4")]);
        let output = command.args(["run", RECIPE, "--config", "llama3/8B_full"]).output().expect("the program starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.starts_with(message) && stderr.is_empty() == message.is_empty(), "{stderr}");
        assert_eq!(stderr.contains("srun --mpi=pmix"), task == "0", "{stderr}");
    }
}

#[test]
fn a_plan_of_70_billion_parameters_needs_none_of_them() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let plan = |num_ranks: &str| {
        let mut command = tune(dir.path());
        let output = succeed(command.args(["validate", "llama3_1/70B_full", "--plan", "--nproc-per-node", num_ranks]));
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let gib = |table: &str, part: &str| -> f64 {
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix(part)).expect("a line of the table");
        line.trim().strip_suffix(" GiB").expect("in GiB").parse().expect("a number")
    };
    let (eight, sixteen) = (plan("8"), plan("16"));
    // 70.55 billion parameters in bf16, and two states of each.
    assert!((gib(&eight, "parameters") - 70.55e9 * 2.0 / 8.0 / 1024f64.powi(3)).abs() < 0.1, "{eight}");
    assert!((gib(&eight, "optimizer state") - 2.0 * gib(&eight, "parameters")).abs() < 0.2, "{eight}");
    assert!(gib(&sixteen, "total") < gib(&eight, "total"), "{eight}\n{sixteen}");
    assert!(eight.contains("of each of 8 ranks, for batch_size 2 and rows of 2048 tokens, assumed"), "{eight}");
}

#[test]
fn layers_that_no_decoder_has_are_refused() {
    let Some(conformance) = testing::conformance_dir() else { return };
    let mut command = on_ranks(&conformance, 2, "training/tiny_full.yaml");
    let output = command
        .args(["output_dir=/tmp/none", "custom_sharded_layers=[tok_embeddings,outptu]", "data_parallel_shard_dim=3"])
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("found `outptu`"), "{stderr}");
    assert!(stderr.contains("1 * 3 is not the number of ranks, 2"), "{stderr}");
}

/// Runs the small folder's config on ranks, with overrides; gives what it logged and its weights.
fn run_tiny(tiny: &Tiny, ranks: usize, dir: &str, overrides: &[&str]) -> (Vec<LoggedStep>, Vec<(String, Vec<f32>)>) {
    let mut command = tiny.tune(&["run", "--nproc_per_node", &ranks.to_string(), RECIPE, "--config", "run.yaml"]);
    succeed(command.args(overrides).arg(format!("output_dir={dir}")));
    (read_log(&tiny.path(dir)), tensors(&tiny.path(dir).join("epoch_0/model.safetensors")))
}

#[test]
fn ranks_with_unequal_and_with_masked_rows_are_one_rank_with_all_of_them() {
    let tiny = Tiny::new();
    let row = |input: usize, output: usize| {
        serde_json::json!({"input": "i".repeat(input), "output": "o".repeat(output)}).to_string() + "\n"
    };
    // In file order rank 0 gets rows of few tokens, and in the last step only rows whose answer is cut off.
    let lengths =
        [(3, 5), (3, 13), (1, 1), (40, 20), (2, 7), (5, 3), (1, 2), (20, 40), (90, 9), (4, 8), (80, 5), (9, 17)];
    tiny.write("rows.jsonl", lengths.map(|(input, output)| row(input, output)).concat());
    let common = ["shuffle=False", "dataset.train_on_input=False", "clip_grad_norm=1.0", "optimizer=torch.optim.SGD"];
    let run = |ranks: usize, batch: usize, dir: &str| {
        run_tiny(&tiny, ranks, dir, &[&common[..], &["optimizer.lr=0.5", &format!("batch_size={batch}")]].concat())
    };
    let (one, two) = (run(1, 4, "one"), run(2, 2, "two"));
    assert_eq!((one.0.len(), two.0.len()), (3, 3));
    for (one, two) in one.0.iter().zip(&two.0) {
        for name in ["loss", "grad_norm"] {
            let (expected, found) = (one.get(name).expect("logged"), two.get(name).expect("logged"));
            assert!((found - expected).abs() <= 1e-5 * expected, "step {}: {name} {found}, {expected}", one.step);
        }
    }
    let file = |dir: &str| tiny.path(dir).join("epoch_0/model.safetensors");
    assert_same_weights(&file("two"), &file("one"), "two ranks");
}

#[test]
fn every_pair_of_options_works_or_is_refused_before_weights_are_read() {
    let tiny = Tiny::new();
    let options = [
        "optimizer_in_bwd=True",
        "gradient_accumulation_steps=2",
        "clip_grad_norm=1.0",
        "enable_activation_checkpointing=True",
        "dataset.packed=True",
        "fsdp_cpu_offload=True",
        "fsdp_reshard_after_forward=False",
        "data_parallel_replicate_dim=2",
        "offload.optimizer=disk",
        "offload.gradients=disk",
        "dtype=bf16",
    ];
    let mut refused = Vec::new();
    for (index, first) in options.iter().enumerate() {
        for second in &options[index + 1..] {
            let dir = format!("output_dir=out_{first}_{second}");
            let mut command = tiny.tune(&["run", "--nproc_per_node", "2", RECIPE, "--config", "run.yaml"]);
            let changes = [*first, *second, "batch_size=1", "max_steps_per_epoch=2", "epochs=1", &dir];
            let output = command.args(changes).output().expect("the program starts");
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            match output.status.code() {
                Some(0) => {}
                Some(2) => {
                    assert!(
                        !tiny.path(&dir["output_dir=".len()..]).exists(),
                        "{first} {second}: something was written"
                    );
                    refused.push((*first, *second));
                }
                other => panic!("{first} {second}: exit code {other:?}\n{stderr}"),
            }
        }
    }
    let inside = "optimizer_in_bwd=True";
    assert_eq!(refused, [(inside, "gradient_accumulation_steps=2"), (inside, "clip_grad_norm=1.0")]);
}

#[test]
fn the_8b_config_runs_as_it_is_with_a_small_model() {
    let tiny = Tiny::new();
    let row = |i: usize| {
        let row = serde_json::json!({"instruction": format!("Say {i}."), "input": "", "output": format!("It is {i}.")});
        row.to_string() + "\n"
    };
    tiny.write("alpaca.jsonl", (0..8).map(row).collect::<String>());
    let small = [
        "model=torchtune.models.llama3.llama3",
        "model.vocab_size=260",
        "model.num_layers=2",
        "model.num_heads=4",
        "model.num_kv_heads=2",
        "model.embed_dim=32",
        "model.intermediate_dim=64",
        "model.max_seq_len=512",
        "model.init=random",
        "tokenizer=ferrotune.tokenizers.auto",
        "tokenizer.path=model",
        "checkpointer.checkpoint_dir=model",
        "dataset.source=json",
        "dataset.data_files=alpaca.jsonl",
        "epochs=1",
        "batch_size=2",
    ];
    for clip in ["clip_grad_norm=None", "clip_grad_norm=1.0"] {
        let dir = format!("output_dir=out_{clip}");
        let mut command = tiny.tune(&["run", "--nproc_per_node", "2", RECIPE, "--config", "llama3/8B_full"]);
        command.args(["gradient_accumulation_steps=2", "fsdp_cpu_offload=True", clip]).args(small).arg(dir);
        let output = succeed(&mut command);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("Computing on 2 ranks"), "{stderr}");
        assert!(tiny.path(&format!("out_{clip}")).join("epoch_0/model.safetensors").exists(), "{stderr}");
    }
}
