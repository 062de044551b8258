//! Parameters, gradients and optimizer states in files: the same bits as in memory, and a model larger than what it may take.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use checkpoint::{CheckpointFiles, WeightSource};
use data::Batch;
use dist::Mesh;
use metrics::ResidentMemory;
use models::DecoderConfig;
use recipes::memory_plan::{Goal, MemoryPlan, MeshShape, Shape};
use recipes::objectives::NextToken;
use serde_json::Value;
use tensor::DType;
use train::{Files, Policy};

use crate::tiny::{Trainer, adamw, assert_same, backend, batch, rows, run_full_finetune, shape};
use crate::tiny_folder::{row, write_model, write_rows};

const MIB: u64 = 1 << 20;

/// A model of some megabytes.
fn wide(tie_word_embeddings: bool) -> DecoderConfig {
    let config = shape(tie_word_embeddings);
    DecoderConfig { vocab_size: 3000, hidden_size: 128, intermediate_size: 352, head_dim: 32, ..config }
}

/// Which of parameters, gradients and optimizer states live in files.
type InFiles = [bool; 3];

const ALL: InFiles = [true; 3];

fn files(dir: &Path, [parameters, gradients, optimizer]: InFiles) -> Files {
    Files { dir: dir.to_path_buf(), parameters, gradients, optimizer }
}

/// Windows of so many micro-batches for three steps.
fn windows(micro_batches: usize) -> Vec<Vec<Batch>> {
    let dataset = rows(60, &[(9, 2), (14, 0), (5, 1), (11, 3), (16, 0), (7, 2)]);
    (0..3).map(|step| (0..micro_batches).map(|i| batch(&dataset, [step, (step + 3 + i) % 6])).collect()).collect()
}

/// Panics unless nobody can see a file in the folder.
#[track_caller]
fn assert_empty(dir: &Path, when: &str) {
    let names: Vec<_> = std::fs::read_dir(dir).expect("a folder").map(|e| e.expect("listed").file_name()).collect();
    assert!(names.is_empty(), "{when}: {names:?}");
}

#[test]
fn what_lives_in_files_trains_to_the_same_bits() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let [parameters, gradients, optimizer] = [[true, false, false], [false, true, false], [false, false, true]];
    for (tied, dtype, in_files, optimizer_in_bwd, micro_batches) in [
        (true, DType::Bf16, ALL, false, 1),
        (false, DType::F32, ALL, false, 2),
        (true, DType::Bf16, ALL, false, 2),
        (false, DType::Bf16, ALL, true, 1),
        (false, DType::F32, parameters, false, 1),
        (true, DType::F32, gradients, true, 1),
        (true, DType::Bf16, gradients, false, 2),
        (false, DType::Bf16, optimizer, false, 1),
    ] {
        let what = format!("{dtype}, tied {tied}, {in_files:?}, in backward {optimizer_in_bwd}");
        let accumulate_in_f32 = dtype == DType::Bf16 && micro_batches > 1;
        let policy = Policy { optimizer_in_bwd, accumulate_in_f32, ..Policy::default() };
        let new = |files| Trainer::on_mesh(shape(tied), dtype, policy, adamw(), backend(2), &Mesh::alone(), files);
        let (mut in_memory, mut on_disk) = (new(None), new(Some(files(dir.path(), in_files))));
        for (step, window) in windows(micro_batches).iter().enumerate() {
            let what = format!("{what}, step {step}");
            assert_eq!(on_disk.step(window, 1e-2), in_memory.step(window, 1e-2), "{what}: loss and norm");
            assert_empty(dir.path(), &what);
            if !optimizer_in_bwd {
                assert_same(&format!("{what}: gradients"), &on_disk.gradients(), &in_memory.gradients());
            }
            assert_same(&format!("{what}: weights"), &on_disk.weights(), &in_memory.weights());
            assert_same(&format!("{what}: states"), &on_disk.states(), &in_memory.states());
        }
        let backend = on_disk.backend.clone();
        drop(on_disk);
        assert_eq!(backend.memory().file_bytes, 0, "{what}: files that outlive the store");
    }
}

/// A model trained for three steps, and the plan of that.
fn held_and_planned(config: &DecoderConfig, dtype: DType, files: Option<Files>) -> (Trainer, MemoryPlan) {
    let (tokens, num_rows, policy) = (32, 2, Policy::default());
    let window = [batch(&rows(70, &[(tokens, 0); 2]), 0..num_rows)];
    let mesh = Mesh::alone();
    let mut trainer = Trainer::on_mesh(config.clone(), dtype, policy, adamw(), backend(2), &mesh, files.clone());
    for _ in 0..3 {
        trainer.step(&window, 1e-3).expect("tokens to train on");
    }
    let mesh = MeshShape { replicate: 1, shard: 1 };
    let shape = Shape { mesh, policy, dtype, batch: num_rows, tokens, accumulation: 1, files };
    let plan =
        MemoryPlan::new(&Goal::NextToken(NextToken::default()), &trainer.model, &adamw(), &shape, &*trainer.backend)
            .expect("planned");
    (trainer, plan)
}

#[test]
fn what_lives_in_files_takes_no_memory_and_is_planned() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (tied, dtype) in [(true, DType::Bf16), (false, DType::F32)] {
        let (in_memory, in_memory_plan) = held_and_planned(&wide(tied), dtype, None);
        for in_files in [ALL, [true, false, false], [false, true, false], [false, false, true]] {
            let what = format!("{dtype}, tied {tied}, {in_files:?}");
            let (on_disk, plan) = held_and_planned(&wide(tied), dtype, Some(files(dir.path(), in_files)));
            let held = on_disk.backend.memory();
            let (found, expected) = ((held.peak_held_bytes + held.scratch_bytes) as u64, plan.total());
            assert!(found.abs_diff(expected) <= expected / 20, "{what}: planned {expected}, held {found}: {plan:?}");
            assert_eq!(held.peak_file_bytes as u64, plan.files, "{what}: in files");

            let parts = in_memory.store.most_held();
            let sizes = [parts.parameters, parts.gradients, parts.optimizer];
            let of_parts = [plan.parameters, plan.gradients, plan.optimizer];
            for ((size, of_part), in_file) in sizes.into_iter().zip(of_parts).zip(in_files) {
                assert_eq!(of_part, if in_file { 0 } else { size }, "{what}: {plan:?}");
            }
            let moved: u64 = sizes.iter().zip(in_files).filter(|(_, in_file)| *in_file).map(|(size, _)| size).sum();
            assert_eq!(plan.files, moved, "{what}: everything that moved is in files");
            // The pool keeps at most as much as was ever live, so what moved counts once or twice.
            let saved = in_memory_plan.total() - plan.total();
            assert!(saved >= moved * 9 / 10, "{what}: {saved} bytes of memory less, {moved} moved");
        }
    }
}

/// The config of a run in `dir`, with a model section and an offload section.
fn yaml(dir: &Path, out: &str, model: &str, offload: &str, more: &str) -> config::Merged {
    let yaml = format!(
        "output_dir: {dir}/{out}
model: {model}
dtype: bf16
seed: 5
log_level: ERROR
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: {dir}/base
  output_dir: ${{output_dir}}
tokenizer: {{_component_: ferrotune.tokenizers.auto, path: {dir}/base, max_seq_len: 64}}
dataset:
  _component_: torchtune.datasets.instruct_dataset
  source: json
  data_files: {dir}/rows.json
  packed: True
optimizer: {{_component_: torch.optim.AdamW, lr: 1e-3}}
clip_grad_norm: 1.0
metric_logger:
  _component_: torchtune.training.metric_logging.DiskLogger
  log_dir: ${{output_dir}}/logs
  output_fmt: jsonl
  filename: log.jsonl
offload: {{{offload}}}
{more}
",
        dir = dir.display(),
    );
    config::Merged::from_text("run.yaml", yaml).expect("valid YAML")
}

const DISK: &str = "parameters: disk, gradients: disk, optimizer: disk";

/// Loss and norm of each step of a run.
fn losses(out: &Path) -> Vec<(f64, f64)> {
    let log = std::fs::read_to_string(out.join("logs/log.jsonl")).expect("the run logs");
    let line = |line: &str| {
        let step: Value = serde_json::from_str(line).expect("JSON");
        let number = |key: &str| step[key].as_f64().expect("a number");
        (number("loss"), number("grad_norm"))
    };
    log.lines().map(line).collect()
}

#[test]
fn a_run_in_files_logs_saves_and_resumes_as_one_in_memory() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| dir.path().join(name);
    write_model(&at("base"), true);
    write_rows(&at("rows.json"), (0..40).map(row));
    let run = |out: &str, offload: &str, more: &str| {
        let more = format!("batch_size: 1\n{more}");
        run_full_finetune(&yaml(dir.path(), out, "{init: random}", offload, &more)).expect("runs");
    };
    run("memory", "", "epochs: 2");
    run("disk", DISK, "epochs: 1");
    assert!(!at("disk/offload").exists(), "the run has removed the folder that it made");
    let first = losses(&at("disk"));
    // Its own folder, and a second run that begins with what the first one saved.
    let own = format!("{DISK}, dir: {}/own", dir.path().display());
    std::fs::create_dir(at("own")).expect("writable");
    run("disk", &own, "epochs: 2\nresume_from_checkpoint: True");
    assert_empty(&at("own"), "after a run in a folder that was there");

    let in_memory = losses(&at("memory"));
    assert!(in_memory.len() >= 4 && in_memory.len().is_multiple_of(2), "two epochs of some steps: {in_memory:?}");
    assert_eq!(first, in_memory[..in_memory.len() / 2], "losses and norms of the first epoch");
    for epoch in ["epoch_0", "epoch_1"] {
        for file in ["model.safetensors", "optimizer.safetensors"] {
            let [found, expected] = ["disk", "memory"].map(|out| std::fs::read(at(out).join(epoch).join(file)));
            testing::assert_same_bits(file, &found.expect("saved"), &expected.expect("saved"));
        }
    }
}

/// The most anonymous memory that this process has while something runs, looked at every 50 ms.
fn peak_of<R>(run: impl FnOnce() -> R) -> (u64, R) {
    let anonymous = || ResidentMemory::read().map_or(0, |memory| memory.anonymous_bytes);
    let running = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut peak = anonymous();
            while running.load(Ordering::Relaxed) {
                peak = peak.max(anonymous());
                std::thread::sleep(Duration::from_millis(50));
            }
            peak
        });
        let result = run();
        running.store(false, Ordering::Relaxed);
        (watcher.join().expect("only looks"), result)
    })
}

#[test]
#[ignore = "slow: a step of a model of 1.2 billion weights, 17 GB of files while it runs"]
fn a_step_of_a_model_of_ten_gigabytes_takes_a_few_hundred_megabytes() {
    /// What a plan leaves out: rows, tokenizer, pieces that are read and written, stacks.
    const SLACK: u64 = 24 * MIB;
    let Some(before) = ResidentMemory::read() else {
        println!("skipped: this system tells no figures of a process");
        return;
    };
    let before = before.anonymous_bytes;
    let dir = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| dir.path().join(name);
    write_model(&at("base"), true);
    // The shape is the builder's.
    std::fs::remove_file(at("base/config.json")).expect("written above");
    write_rows(&at("rows.json"), (0..12).map(row));
    let model = "{_component_: torchtune.models.llama3_2.llama3_2_1b, init: random}";
    let config = yaml(dir.path(), "out", model, DISK, "batch_size: 1\nmax_steps_per_epoch: 1");

    let recipe = recipes::registry::find("full_finetune_single_device").expect("built");
    let open_backend: &recipes::OpenBackend<'_> = &|_, _| Ok(backend(2));
    let launch = recipes::Launch { open_backend, ranks: recipes::Ranks::Threads(1) };
    let report = recipes::plan(recipe, &config, &launch).expect("a plan");
    let started = Instant::now();
    let (peak, result) = peak_of(|| recipes::run(recipe, &config, &launch));
    result.expect("runs");

    let (grown, planned) = (peak - before, report.plan.total());
    println!("{report}");
    println!(
        "measured: {} MiB at the peak, {} MiB before; planned {} MiB, held {} MiB more than before; {:.0} s",
        peak / MIB,
        before / MIB,
        planned / MIB,
        grown / MIB,
        started.elapsed().as_secs_f64()
    );
    let losses = losses(&at("out"));
    assert_eq!(losses.len(), 1, "one step: {losses:?}");
    // A random model knows nothing: ln(128256) = 11.8.
    assert!((losses[0].0 - 11.8).abs() < 1.0, "{losses:?}");
    assert!(report.plan.files > 9_800_000_000, "parameters, gradients and states are in files: {report}");
    assert!(peak < 3 << 30, "{peak} bytes of anonymous memory at the peak");
    let slack = SLACK.max(grown * 15 / 100);
    assert!(planned.abs_diff(grown) <= slack, "planned {planned}, took {grown}");
    assert_empty(&at("out/offload"), "after the run");
    let saved = WeightSource::open_folder(&at("out/epoch_0"), &CheckpointFiles::Found).expect("readable");
    assert_eq!(saved.tensors().len(), 1 + 16 * 9 + 1, "every tensor is saved");
}
