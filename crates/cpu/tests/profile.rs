//! Recording ops changes nothing about them, and counts what they do.

use std::collections::BTreeSet;
use std::sync::Arc;

use cpu::{CpuBackend, CpuConfig, Isa};
use tensor::ops::IGNORE_INDEX;
use tensor::ops::attention::AttentionDims;
use tensor::ops::head_loss::HeadLossOut;
use tensor::profile::{OpWork, RecordOptions, Recorder, RecordingBackend, Window};
use tensor::{Backend, DType, Shape, Tensor};

/// A backend of one thread that is recorded.
fn recorded(options: RecordOptions) -> (RecordingBackend, Arc<Recorder>) {
    let config = CpuConfig { threads: Some(1), isa: Some(Isa::detect()), ..CpuConfig::default() };
    let inner = Arc::new(CpuBackend::new(config).expect("starts"));
    let recorder = Recorder::new(options);
    (RecordingBackend::new(inner, Arc::clone(&recorder)), recorder)
}

/// The only op of that name.
fn only<'a>(window: &'a Window, name: &str) -> &'a OpWork {
    let mut found = window.events.iter().filter(|event| event.name == name);
    let event = found.next().expect("it ran");
    assert!(found.next().is_none(), "`{name}` ran once");
    event.op.as_ref().expect("an op")
}

#[test]
fn recorded_ops_equal_their_references() {
    let (backend, recorder) = recorded(RecordOptions { shapes: true, memory: true });
    testing::op_table::check_all(&backend);
    assert_eq!(recorder.stop().events, [], "nothing was to be recorded");
    recorder.start();
    testing::op_table::check_all(&backend);
    let window = recorder.stop();
    let seen: BTreeSet<&str> = window.events.iter().map(|event| &*event.name).collect();
    let tables = testing::op_table::CHECKS.iter().map(|(name, _)| *name).filter(|name| *name != "memory");
    let others = ["alloc", "download", "fill_zero", "read_scalar", "upload"];
    assert_eq!(seen, tables.chain(others).collect(), "every op is recorded under its name");
    assert_eq!(window.memory.len(), window.events.len(), "memory is looked at after each op");
}

#[test]
fn what_a_backend_says_of_itself_is_passed_on() {
    let (backend, recorder) = recorded(RecordOptions::default());
    assert_eq!(backend.describe(), format!("cpu ({}, 1 thread)", describe_isa(&backend)));
    let dir = tempfile::tempdir().expect("a temporary folder");
    recorder.start();
    let tensor = backend.alloc_in_file(Shape::from([8]), DType::F32, dir.path()).expect("fits");
    assert_eq!((backend.memory().file_bytes, tensor.len_bytes()), (64, 32));
    backend.flush().expect("nothing is late");
    backend.trim();
    assert_eq!(backend.memory().cached_bytes, 0);
    let names: Vec<String> = recorder.stop().events.iter().map(|event| event.name.to_string()).collect();
    assert_eq!(names, ["alloc_in_file"]);
    let planner = backend.planner();
    assert!(planner.describe().starts_with("memory plan") && planner.recorder().is_none(), "{}", planner.describe());
}

fn describe_isa(backend: &RecordingBackend) -> String {
    let text = backend.describe();
    let (name, _) = text.split_once(',').expect("a name and a number of threads");
    name.trim_start_matches("cpu (").to_owned()
}

fn floats(backend: &dyn Backend, dims: &[usize], dtype: DType) -> Tensor {
    let shape = Shape::new(dims);
    backend.from_f32(shape, dtype, &vec![0.5; shape.num_elements()]).expect("fits")
}

#[test]
fn a_products_work_is_counted() {
    let (backend, recorder) = recorded(RecordOptions { shapes: true, memory: false });
    let (x, w) = (floats(&backend, &[33, 20], DType::Bf16), floats(&backend, &[48, 20], DType::Bf16));
    recorder.start();
    let mut y = backend.alloc(Shape::from([33, 48]), DType::Bf16).expect("fits");
    backend.matmul_nt(&mut y, &x, &w, false).expect("fits");
    backend.fill_zero(&mut y).expect("fits");
    let window = recorder.stop();
    assert_eq!(only(&window, "fill_zero").allocated_bytes, 0, "only the first to write is told");
    let work = only(&window, "matmul_nt");
    assert_eq!(work.shapes, [x.shape(), w.shape()]);
    assert_eq!(work.dtype, DType::Bf16);
    assert_eq!(work.flops, 2.0 * (33 * 20 * 48) as f64);
    assert_eq!(work.bytes, 2 * (33 * 20 + 48 * 20 + 33 * 48));
    let own = work.allocated_bytes - 2 * 33 * 48;
    assert_eq!(only(&window, "alloc").allocated_bytes, 0, "counted where it is written");

    recorder.start();
    backend.matmul_nt(&mut y, &x, &w, false).expect("fits");
    assert_eq!(only(&recorder.stop(), "matmul_nt").allocated_bytes, own, "the output was there already");

    // What a gradient adds to is read, too.
    let mut dw = floats(&backend, &[48, 20], DType::F32);
    for (accumulate, reads) in [(false, 0), (true, 4 * 48 * 20)] {
        recorder.start();
        backend.matmul_tn(&mut dw, &y, &x, accumulate).expect("fits");
        let window = recorder.stop();
        let work = only(&window, "matmul_tn");
        assert_eq!(work.flops, 2.0 * (33 * 20 * 48) as f64);
        assert_eq!(work.bytes, 2 * (33 * 20 + 33 * 48) + 4 * 48 * 20 + reads, "accumulate {accumulate}");
    }
}

#[test]
fn attention_counts_the_scores_that_are_seen() {
    let (backend, recorder) = recorded(RecordOptions::default());
    let dims = AttentionDims {
        batch: 1,
        tokens: 4,
        keys: 4,
        num_heads: 2,
        num_kv_heads: 1,
        head_dim: 8,
        query_offset: 0,
        window: None,
        scale: 1.0,
        soft_cap: None,
    };
    let (q, k) = (floats(&backend, &[4, 16], DType::F32), floats(&backend, &[4, 8], DType::F32));
    let (mut o, mut lse) = (floats(&backend, &[4, 16], DType::F32), floats(&backend, &[1, 2, 4], DType::F32));
    for (doc_start, num_scores) in [([0, 0, 0, 0], 10.0), ([0, 0, 2, 2], 6.0)] {
        let doc_start = (&backend as &dyn Backend).from_i32([1, 4], &doc_start).expect("fits");
        recorder.start();
        backend.attention_forward(&mut o, &mut lse, &q, &k, &k, &doc_start, &dims).expect("fits");
        let window = recorder.stop();
        let work = only(&window, "attention_forward");
        assert_eq!(work.flops, 2.0 * 2.0 * num_scores * 16.0);
        assert_eq!(work.shapes, [], "shapes are not recorded");
    }
}

#[test]
fn the_head_counts_unmasked_tokens() {
    let (backend, recorder) = recorded(RecordOptions::default());
    let (h, w) = (floats(&backend, &[3, 4], DType::F32), floats(&backend, &[5, 4], DType::F32));
    let labels = (&backend as &dyn Backend).from_i32([3], &[1, IGNORE_INDEX, 4]).expect("fits");
    let mut loss = floats(&backend, &[1], DType::F32);
    let (mut dh, mut dw) = (floats(&backend, &[3, 4], DType::F32), floats(&backend, &[5, 4], DType::F32));
    for (gradients, products) in [(false, 1.0), (true, 3.0)] {
        recorder.start();
        let (dh, dw) = (gradients.then_some(&mut dh), gradients.then_some((&mut dw, false)));
        backend.head_loss(HeadLossOut { loss: &mut loss, dh, dw }, &h, &w, &labels, 1.0, None).expect("fits");
        let window = recorder.stop();
        assert_eq!(only(&window, "head_loss").flops, products * 2.0 * (2 * 4 * 5) as f64);
    }
    recorder.start();
    let (mut log_probs, upstream) = (floats(&backend, &[3], DType::F32), floats(&backend, &[3], DType::F32));
    backend.label_log_probs_forward(&mut log_probs, &h, &w, &labels, None).expect("fits");
    backend.label_log_probs_backward(Some(&mut dh), None, &upstream, &h, &w, &labels, None).expect("fits");
    let window = recorder.stop();
    assert_eq!(only(&window, "label_log_probs_forward").flops, 2.0 * (2 * 4 * 5) as f64);
    assert_eq!(only(&window, "label_log_probs_backward").flops, 2.0 * 2.0 * (2 * 4 * 5) as f64);
}
