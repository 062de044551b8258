//! `tune run --profile` and the `profiler` section: what they write, what they say, and that they change nothing else.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use super::common::{read_log, succeed};
use super::tiny::Tiny;

const ONE: &str = "full_finetune_single_device";
const MANY: &str = "full_finetune_distributed";
const SHORT: [&str; 2] = ["profiler.wait_steps=1", "profiler.warmup_steps=1"];

/// A run of a recipe with launch options and overrides.
fn command(tiny: &Tiny, options: &[&str], recipe: &str, overrides: &[&str]) -> Command {
    let config = [recipe, "--config", "run.yaml"];
    let mut command = tiny.tune(&[&["run"], options, &config[..], overrides].concat());
    // What an op works in depends on the instruction set.
    command.env("FERROTUNE_CPU_ISA", "portable");
    command
}

fn run(tiny: &Tiny, options: &[&str], recipe: &str, overrides: &[&str]) -> Output {
    command(tiny, options, recipe, overrides).output().expect("the program starts")
}

/// What a run that succeeds says on stderr.
fn said(tiny: &Tiny, options: &[&str], recipe: &str, overrides: &[&str]) -> String {
    let output = succeed(&mut command(tiny, options, recipe, overrides));
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// Compares with the snapshot `name`, without what depends on the clock.
fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_snapshot_path("snapshots/profiling");
    settings.add_filter(r"log_\d+\.txt", "log_[TIME].txt");
    // The bar.
    settings.add_filter(r"(?m)^\d+\|\d+.*\n", "");
    // Rates may be so small that they are shown as nothing.
    settings.add_filter(r"\d+\.\d+ ms", "[TIME] ms");
    settings.add_filter(
        r"(?m)^(\S+ .*?\d+) +\d+\.\d{3} +\d+\.\d% +\d+\.\d{3} +(-|\d+\.\d) +(-|\d+\.\d) +",
        "$1 [TIMES AND RATES] ",
    );
    settings.add_filter(r"\d+\.\d%", "[SHARE]");
    settings.add_filter(r"(?m)^op .*$", "[HEADINGS]");
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// The order of rows is that of their times: here by name.
fn with_sorted_rows(text: &str) -> String {
    let (mut rows, mut rest) = (Vec::new(), Vec::new());
    let mut in_table = false;
    for line in text.lines() {
        let is_row = in_table && !line.starts_with("window") && !line.starts_with("and ");
        in_table = line.starts_with("op ") || is_row;
        if is_row { rows.push(line.split_whitespace().collect::<Vec<_>>().join(" ")) } else { rest.push(line) }
    }
    rows.sort();
    let end = rest.iter().position(|line| line.starts_with("window") || line.starts_with("and ")).unwrap_or(rest.len());
    let lines = rest[..end].iter().map(|line| (*line).to_owned()).chain(rows);
    lines.chain(rest[end..].iter().map(|line| (*line).to_owned())).map(|line| line + "\n").collect()
}

/// An event of a trace, in nanoseconds.
#[derive(Debug)]
struct Event {
    name: String,
    is_op: bool,
    thread: u64,
    start: u64,
    end: u64,
    args: Value,
}

/// The complete events of a trace of `rank`, after a look at the rest of it.
fn read_trace(file: &Path, rank: u64) -> Vec<Event> {
    let text = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let trace: Value = serde_json::from_slice(&text).expect("valid JSON");
    let events = trace["traceEvents"].as_array().expect("a list");
    assert!(events.iter().all(|event| event["pid"] == rank), "one process");
    let names = |kind: &str| events.iter().filter(|e| e["ph"] == "M" && e["name"] == kind).count();
    assert_eq!(names("process_name"), 1);
    let complete: Vec<Event> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let nanos = |key: &str| (event[key].as_f64().expect("a number") * 1e3).round() as u64;
            Event {
                name: event["name"].as_str().expect("a name").to_owned(),
                is_op: event["cat"] == "op",
                thread: event["tid"].as_u64().expect("a number"),
                start: nanos("ts"),
                end: nanos("ts") + nanos("dur"),
                args: event["args"].clone(),
            }
        })
        .collect();
    let most = complete.iter().map(|event| event.thread).max().expect("something happened");
    assert_eq!(names("thread_name") as u64, most + 1, "every thread has a name");
    check_nesting(&complete).unwrap_or_else(|problem| panic!("{}: {problem}", file.display()));
    complete
}

/// Two events of a thread lie apart or one in the other, and ops hold nothing.
fn check_nesting(events: &[Event]) -> Result<(), String> {
    let mut by_thread: BTreeMap<u64, Vec<&Event>> = BTreeMap::new();
    events.iter().for_each(|event| by_thread.entry(event.thread).or_default().push(event));
    for (_, mut events) in by_thread {
        events.sort_by_key(|event| (event.start, std::cmp::Reverse(event.end)));
        let mut open: Vec<&Event> = Vec::new();
        for event in events {
            while open.last().is_some_and(|outer| outer.end <= event.start) {
                open.pop();
            }
            if let Some(outer) = open.last()
                && (event.end > outer.end || outer.is_op)
            {
                return Err(format!("{event:?} reaches out of {outer:?}"));
            }
            open.push(event);
        }
    }
    Ok(())
}

#[test]
fn nesting_that_is_wrong_is_found() {
    let event = |is_op, start, end| Event { name: "x".to_owned(), is_op, thread: 0, start, end, args: Value::Null };
    assert_eq!(check_nesting(&[event(false, 0, 9), event(true, 0, 4), event(true, 4, 9)]), Ok(()));
    assert!(check_nesting(&[event(false, 0, 5), event(true, 4, 9)]).is_err());
    assert!(check_nesting(&[event(true, 0, 9), event(true, 4, 5)]).is_err());
}

fn spans(events: &[Event]) -> Vec<&str> {
    let mut spans: Vec<&Event> = events.iter().filter(|event| !event.is_op && event.thread == 0).collect();
    spans.sort_by_key(|span| (span.start, std::cmp::Reverse(span.end)));
    spans.iter().map(|span| span.name.as_str()).collect()
}

/// Every file below `dir` by its path from there.
fn files(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("listed") {
        let path = entry.expect("listed").path();
        let name = path.file_name().expect("named").to_string_lossy().into_owned();
        if path.is_dir() {
            all.extend(files(&path).into_iter().map(|file| format!("{name}/{file}")));
        } else {
            all.push(name);
        }
    }
    all.sort();
    all
}

#[test]
fn a_profiled_run_gives_the_same_bits_and_a_trace_of_its_steps() {
    let tiny = Tiny::new();
    said(&tiny, &[], ONE, &["output_dir=plain", "gradient_accumulation_steps=1", "batch_size=1"]);
    let text = said(
        &tiny,
        &["--profile"],
        ONE,
        &[
            "output_dir=profiled",
            "gradient_accumulation_steps=1",
            "batch_size=1",
            "enable_activation_checkpointing=True",
        ],
    );
    assert!(text.contains("Profile of steps 3 to 5 in profiled/profiling_outputs/iteration_5:\nop "), "{text}");
    for file in ["epoch_0/model.safetensors", "epoch_0/optimizer.safetensors"] {
        let read = |out: &str| std::fs::read(tiny.path(out).join(file)).expect("saved");
        testing::assert_same_bits(file, &read("profiled"), &read("plain"));
    }
    let log = |out: &str| {
        let mut steps = read_log(&tiny.path(out));
        steps.iter_mut().for_each(|step| step.values.retain(|(name, _)| name != "tokens_per_second_per_gpu"));
        steps
    };
    assert_eq!(log("profiled"), log("plain"));

    let dir = tiny.path("profiled/profiling_outputs");
    assert_eq!(files(&dir), ["iteration_5/rank0_ops.txt", "iteration_5/rank0_trace.json"]);
    let events = read_trace(&dir.join("iteration_5/rank0_trace.json"), 0);
    let step = |number: usize| {
        let step = format!("step {number}");
        let inside = "data, micro-batch 0, forward, unit 0 forward, unit 1 forward, unit 2 forward, backward, unit 2 backward, \
                      unit 1 backward, recompute, unit 0 backward, gradient norm, optimizer, update unit 0, update unit 1, \
                      update unit 2";
        std::iter::once(step).chain(inside.split(", ").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(spans(&events), [step(3), step(4), step(5)].concat());
    let steps: Vec<&Event> = events.iter().filter(|event| event.name.starts_with("step ")).collect();
    let ops = || events.iter().filter(|event| event.is_op);
    assert!(ops().all(|op| steps.iter().any(|step| step.start <= op.start && op.end <= step.end)));
    let (all, inside) = (steps[2].end - steps[0].start, ops().map(|op| op.end - op.start).sum::<u64>());
    assert!(0 < inside && inside <= all, "{inside} of {all}");
}

#[test]
fn a_traces_work_is_that_of_the_shapes() {
    let tiny = Tiny::new();
    said(
        &tiny,
        &["--profile"],
        ONE,
        &["dtype=bf16", "profiler.enabled=False", "save_every_n_steps=3", SHORT[0], SHORT[1]],
    );
    let events = read_trace(&tiny.path("out/profiling_outputs/iteration_4/rank0_trace.json"), 0);
    let spans = spans(&events);
    let around = ["step 3", "save", "step 4"].map(|name| spans.iter().position(|span| *span == name));
    assert!(around[0].is_some() && around.is_sorted(), "{around:?} of {spans:?}");
    let mut num_products = 0;
    for event in events.iter().filter(|event| event.name == "matmul_nt") {
        let sizes: Vec<u64> = event.args["shapes"]
            .as_array()
            .expect("a list")
            .iter()
            .flat_map(|shape| shape.as_array().expect("a list").iter().map(|size| size.as_u64().expect("a number")))
            .collect();
        let [m, k, n, same_k] = sizes[..] else { panic!("{event:?}") };
        assert_eq!(k, same_k);
        assert_eq!(event.args["flops"].as_f64(), Some((2 * m * k * n) as f64));
        assert_eq!(event.args["bytes"], 2 * (m * k + n * k + m * n), "{event:?}");
        assert_eq!(event.args["dtype"], "bf16");
        num_products += 1;
    }
    // Seven products of the block in each of two steps.
    assert_eq!(num_products, 14);
}

#[test]
fn the_table_and_what_is_said() {
    let tiny = Tiny::new();
    let text = said(&tiny, &["--profile"], ONE, &["profiler.record_shapes=False"]);
    // The section is the user's, so its schedule is, too.
    snapshot("said_with_a_section_of_ones_own", &with_sorted_rows(&text));
    let table = std::fs::read_to_string(tiny.path("out/profiling_outputs/iteration_4/rank0_ops.txt")).expect("written");
    assert!(text.contains(table.trim_end()), "stderr has the table, too\n{text}\n{table}");
}

#[test]
fn the_table_has_shapes() {
    let tiny = Tiny::new();
    said(&tiny, &["--profile"], ONE, &["batch_size=1", "max_steps_per_epoch=3", "dataset.packed=True"]);
    let table = std::fs::read_to_string(tiny.path("out/profiling_outputs/iteration_3/rank0_ops.txt")).expect("written");
    snapshot("table_with_shapes", &with_sorted_rows(&table));
}

#[test]
fn a_run_of_one_step_is_profiled() {
    let tiny = Tiny::new();
    let text = said(&tiny, &["--profile"], ONE, &["max_steps_per_epoch=1"]);
    let notice = "notice: the profiler is to begin after 2 steps, the run has 1 step: its last one is profiled\n";
    assert!(text.contains(notice), "{text}");
    assert!(text.contains("Profile of step 1 in out/profiling_outputs/iteration_1:"), "{text}");
    let text = said(&tiny, &["--profile"], ONE, &["max_steps_per_epoch=3", "output_dir=three"]);
    let notice = "notice: the profiler is to record 3 steps after 2, the run has 3 steps: it records 1\n";
    assert!(text.contains(notice), "{text}");
    assert_eq!(files(&tiny.path("three/profiling_outputs")).len(), 2);
}

#[test]
fn the_section_alone_profiles_too_and_cycles_go_on_over_epochs() {
    let tiny = Tiny::new();
    let text = said(
        &tiny,
        &[],
        ONE,
        &[
            "profiler.enabled=True",
            "profiler.wait_steps=0",
            "profiler.warmup_steps=1",
            "profiler.active_steps=2",
            "profiler.num_cycles=0",
            "profiler.output_dir=elsewhere",
            "profiler.profile_memory=True",
            "profiler.with_stack=True",
            "epochs=2",
        ],
    );
    assert!(text.contains("notice: `profiler.with_stack` has no effect"), "{text}");
    let expected = ["iteration_3", "iteration_6", "iteration_8"];
    let expected = expected.map(|dir| [format!("{dir}/rank0_ops.txt"), format!("{dir}/rank0_trace.json")]).concat();
    assert_eq!(files(&tiny.path("elsewhere")), expected);
    assert!(text.contains("Profile of step 8 in elsewhere/iteration_8"), "{text}");
    let trace = std::fs::read_to_string(tiny.path("elsewhere/iteration_3/rank0_trace.json")).expect("written");
    assert!(trace.contains("\"ph\":\"C\"") && trace.contains("live_bytes"), "memory over time");
    assert!(!tiny.path("out/profiling_outputs").exists());
}

#[test]
fn a_section_that_is_off_does_nothing() {
    let tiny = Tiny::new();
    let shipped = ["profiler._component_=torchtune.training.setup_torch_profiler", "profiler.enabled=False"];
    let text = said(&tiny, &[], ONE, &[&shipped[..], &["profiler.with_stack=True"]].concat());
    assert!(!text.contains("rofile"), "{text}");
    assert!(!tiny.path("out/profiling_outputs").exists());
}

#[test]
fn the_option_gives_a_null_section_a_profiler_and_is_found_out_of_place() {
    let tiny = Tiny::new();
    for (dir, section) in [("a", "profiler=null"), ("b", "profiler={_component_: null, wait_steps: 0}")] {
        let text = said(&tiny, &["--profile"], ONE, &[section, &format!("output_dir={dir}")]);
        assert!(text.contains("Profile of steps 3 to 4"), "{section}: {text}");
    }
    let output = run(&tiny, &[], ONE, &["--profile"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("unexpected launch option `--profile` behind the recipe's name"), "{text}");
    assert!(text.contains("hint: write it in front: `tune run --profile"), "{text}");
}

#[test]
fn every_rank_writes_its_own() {
    let tiny = Tiny::new();
    let options = ["--nproc_per_node", "2", "--profile"];
    let text = said(&tiny, &options, MANY, &["batch_size=1", "profiler.num_cycles=1", SHORT[0], SHORT[1]]);
    assert_eq!(text.matches("Profile of steps 3 to 4 in").count(), 1, "the first rank speaks\n{text}");
    assert!(text.contains("ops of other threads take"), "{text}");
    let dir = tiny.path("out/profiling_outputs/iteration_4");
    let names = ["rank0_ops.txt", "rank0_trace.json", "rank1_ops.txt", "rank1_trace.json"];
    assert_eq!(files(&dir), names);
    let traces = [0, 1].map(|rank| read_trace(&dir.join(format!("rank{rank}_trace.json")), rank));
    for events in &traces {
        let mut names: Vec<&str> = events.iter().filter(|event| !event.is_op).map(|event| &*event.name).collect();
        names.sort_unstable();
        names.dedup();
        for name in ["all_gather", "reduce_scatter", "wait for parameters", "wait for gradients", "step 3", "step 4"] {
            assert!(names.contains(&name), "{name} is in {names:?}");
        }
    }
    // Both are on one clock: steps of ranks that wait for each other overlap.
    let step = |rank: usize| traces[rank].iter().find(|event| event.name == "step 3").expect("profiled");
    assert!(step(0).start < step(1).end && step(1).start < step(0).end);
}

#[test]
fn profiles_are_no_run_and_no_checkpoint() {
    let tiny = Tiny::new();
    let profiled = ["--profile"];
    // As near to checkpoints as they can be.
    let here = "profiler.output_dir=out";
    said(&tiny, &profiled, ONE, &[here, SHORT[0], SHORT[1]]);
    said(&tiny, &profiled, ONE, &[here, "resume_from_checkpoint=True", "epochs=2"]);
    said(&tiny, &profiled, ONE, &[here, "overwrite_output_dir=True"]);
    let other = ["output_dir=other", "checkpointer.output_dir=other/checkpoints"];
    said(&tiny, &profiled, ONE, &other);
    std::fs::remove_dir_all(tiny.path("other/checkpoints")).expect("saved");
    std::fs::remove_dir_all(tiny.path("other/logs")).expect("logged");
    said(&tiny, &[], ONE, &["output_dir=other"]);
}

/// Exit code 2, nothing written, and the snapshot `name` on stderr.
fn refuse(name: &str, tiny: &Tiny, options: &[&str], recipe: &str, overrides: &[&str]) {
    let before = tiny.contents();
    let output = run(tiny, options, recipe, overrides);
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(tiny.contents() == before, "the folder has changed\n{stderr}");
    snapshot(name, &stderr);
}

#[test]
fn what_cannot_be_profiled_is_refused_before_training() {
    let tiny = Tiny::new();
    refuse("refused_unknown_key", &tiny, &[], ONE, &["profiler.enabled=True", "profiler.active_step=3"]);
    refuse("refused_value", &tiny, &["--profile"], ONE, &["profiler.active_steps=0"]);
    refuse("refused_folder_of_the_model", &tiny, &["--profile"], ONE, &["profiler.output_dir=model/profiles"]);
    refuse("refused_recipe", &tiny, &["--profile"], "generate", &[]);
    // A file stands where the folder should be: nobody can write there, root neither.
    tiny.write("out/profiling_outputs", "");
    refuse("refused_folder", &tiny, &["--profile"], ONE, &["overwrite_output_dir=True"]);
}

#[cfg(unix)]
#[test]
fn a_profile_that_cannot_be_written_costs_only_itself() {
    use std::os::unix::fs::symlink;

    let tiny = Tiny::new();
    // The folder can be written to, but the window's own is in the way.
    std::fs::create_dir_all(tiny.path("out/profiling_outputs")).expect("made");
    symlink("nowhere/at/all", tiny.path("out/profiling_outputs/iteration_4")).expect("made");
    let text = said(&tiny, &["--profile"], ONE, &[]);
    assert!(text.contains("notice: the profile of rank 0 up to step 4 is lost: cannot write profiles to"), "{text}");
    assert!(tiny.path("out/epoch_0/model.safetensors").exists());
}
