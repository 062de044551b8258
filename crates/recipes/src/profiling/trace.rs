//! A window as a Chrome trace, for `ui.perfetto.dev` and `chrome://tracing`.
//!
//! One JSON object: `traceEvents`, `displayTimeUnit`, and what the trace is of. Events:
//! ```text
//! "ph":"M"  names of the process (the rank) and of its threads
//! "ph":"X"  an op ("cat":"op", with its sizes, work and rates) or a span ("cat":"span"): ts, dur
//! "ph":"C"  memory in use: live and kept for reuse
//! ```
//! A rank is a process (`pid`), so that the events of several files can be put into one.
//!
//! Numbers: microseconds with three digits behind the point, on the clock of `tensor::profile`; rates in 10^9 a second.
//! Errors:  what the writer says.
//! Source:  the trace event format of Chromium's catapult.

use std::io::{self, Write};

use serde_json::{Value, json};
use tensor::profile::{Event, MemorySample, OpWork, Window};

/// Writes the trace of a rank, event by event.
pub(super) fn write_trace(out: &mut dyn Write, window: &Window, rank: usize, about: &Value) -> io::Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[")?;
    let name = |kind: &str, tid: usize, name: &str| json!({"ph": "M", "name": kind, "pid": rank, "tid": tid, "args": {"name": name}});
    write!(out, "\n{}", name("process_name", 0, &format!("rank {rank}")))?;
    for (thread, text) in window.threads.iter().enumerate() {
        write!(out, ",\n{}", name("thread_name", thread, text))?;
    }
    for event in &window.events {
        write!(out, ",\n{}", complete(event, rank))?;
    }
    for sample in &window.memory {
        write!(out, ",\n{}", counter(sample, rank))?;
    }
    out.write_all(b"\n]}\n")
}

/// Nanoseconds in the format's unit.
fn micros(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn complete(event: &Event, rank: usize) -> Value {
    let mut object = json!({
        "ph": "X",
        "cat": if event.op.is_some() { "op" } else { "span" },
        "name": event.name,
        "pid": rank,
        "tid": event.thread,
        "ts": micros(event.start_ns),
        "dur": micros(event.duration_ns()),
    });
    if let Some(work) = &event.op {
        object["args"] = args(work, event.duration_ns());
    }
    object
}

fn args(work: &OpWork, duration_ns: u64) -> Value {
    let mut args = json!({"dtype": work.dtype.name(), "bytes": work.bytes, "allocated_bytes": work.allocated_bytes});
    if !work.shapes.is_empty() {
        args["shapes"] = work.shapes.iter().map(|shape| json!(shape.dims())).collect();
    }
    if work.flops > 0.0 {
        args["flops"] = json!(work.flops);
    }
    if duration_ns > 0 {
        args["gb_per_s"] = json!(work.bytes as f64 / duration_ns as f64);
        if work.flops > 0.0 {
            args["gflop_per_s"] = json!(work.flops / duration_ns as f64);
        }
    }
    args
}

fn counter(sample: &MemorySample, rank: usize) -> Value {
    let MemorySample { at_ns, stats } = sample;
    let args = json!({"live_bytes": stats.live_bytes, "kept_bytes": stats.cached_bytes});
    json!({"ph": "C", "name": "memory", "pid": rank, "tid": 0, "ts": micros(*at_ns), "args": args})
}

#[cfg(test)]
mod tests {
    use tensor::{DType, MemoryStats, Shape};

    use super::*;

    #[test]
    fn events_have_the_fields_of_the_format() {
        let work = OpWork {
            shapes: vec![Shape::from([2, 3])],
            dtype: DType::F32,
            flops: 3000.0,
            bytes: 1500,
            allocated_bytes: 7,
        };
        let event = |name: &'static str, thread, start_ns, end_ns, op| Event {
            name: name.into(),
            thread,
            start_ns,
            end_ns,
            op,
        };
        let window = Window {
            start_ns: 1000,
            end_ns: 9001,
            events: vec![event("matmul_nt", 1, 2000, 3500, Some(work)), event("\"step\" 1", 0, 1001, 9000, None)],
            threads: vec!["main".to_owned(), "main dist".to_owned()],
            memory: vec![MemorySample {
                at_ns: 3500,
                stats: MemoryStats { live_bytes: 5, cached_bytes: 6, ..MemoryStats::default() },
            }],
        };
        let mut text = Vec::new();
        write_trace(&mut text, &window, 3, &json!({"steps": [1]})).expect("memory takes it");
        let trace: Value = serde_json::from_slice(&text).expect("valid JSON");
        assert_eq!(trace["otherData"]["steps"], json!([1]));
        let expected = json!([
            {"ph": "M", "name": "process_name", "pid": 3, "tid": 0, "args": {"name": "rank 3"}},
            {"ph": "M", "name": "thread_name", "pid": 3, "tid": 0, "args": {"name": "main"}},
            {"ph": "M", "name": "thread_name", "pid": 3, "tid": 1, "args": {"name": "main dist"}},
            {"ph": "X", "cat": "op", "name": "matmul_nt", "pid": 3, "tid": 1, "ts": 2.0, "dur": 1.5, "args": {
                "dtype": "fp32", "bytes": 1500, "allocated_bytes": 7, "shapes": [[2, 3]], "flops": 3000.0,
                "gb_per_s": 1.0, "gflop_per_s": 2.0}},
            {"ph": "X", "cat": "span", "name": "\"step\" 1", "pid": 3, "tid": 0, "ts": 1.001, "dur": 7.999},
            {"ph": "C", "name": "memory", "pid": 3, "tid": 0, "ts": 3.5, "args": {"live_bytes": 5, "kept_bytes": 6}},
        ]);
        assert_eq!(trace["traceEvents"], expected);
    }
}
