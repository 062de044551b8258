//! A window as a table: what each op cost, the most expensive one first.
//!
//! Rows: one an op, or one an op and shapes where shapes are recorded. A row with a rate of 0 floating-point operations shows a dash:
//! the op is no product of matrices.
//!
//! Numbers: rates are totals over totals, in 10^9 a second; shares are of the whole window.

use std::fmt;

use tensor::Shape;
use tensor::profile::Window;

/// What the calls of one op cost together.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) shapes: Vec<Shape>,
    pub(super) calls: u64,
    pub(super) total_ns: u64,
    pub(super) flops: f64,
    pub(super) bytes: u64,
    pub(super) allocated_bytes: u64,
}

/// The table of a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OpTable {
    /// By total time, longest first.
    pub(super) rows: Vec<Row>,
    pub(super) num_steps: u64,
    pub(super) window_ns: u64,
    /// Ops of the thread that makes the steps, and its name.
    pub(super) own_ns: u64,
    pub(super) thread: String,
    /// Ops of other threads.
    pub(super) other_ns: u64,
}

impl OpTable {
    pub(super) fn new(window: &Window, num_steps: u64) -> Self {
        let mut rows: Vec<Row> = Vec::new();
        let (mut own_ns, mut other_ns) = (0, 0);
        for event in &window.events {
            let Some(work) = &event.op else { continue };
            let time = event.duration_ns();
            *(if event.thread == 0 { &mut own_ns } else { &mut other_ns }) += time;
            let found = rows.iter().position(|row| row.name == event.name && row.shapes == work.shapes);
            let index = found.unwrap_or_else(|| {
                rows.push(Row {
                    name: event.name.to_string(),
                    shapes: work.shapes.clone(),
                    calls: 0,
                    total_ns: 0,
                    flops: 0.0,
                    bytes: 0,
                    allocated_bytes: 0,
                });
                rows.len() - 1
            });
            let row = &mut rows[index];
            row.calls += 1;
            row.total_ns += time;
            row.flops += work.flops;
            row.bytes += work.bytes;
            row.allocated_bytes += work.allocated_bytes;
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.total_ns));
        let thread = window.threads.first().cloned().unwrap_or_default();
        Self { rows, num_steps, window_ns: window.duration_ns(), own_ns, thread, other_ns }
    }

    /// The table with its most expensive `most` rows.
    pub(super) fn shown(&self, most: usize) -> Shown<'_> {
        Shown { table: self, most }
    }

    fn share(&self, ns: u64) -> f64 {
        100.0 * ns as f64 / self.window_ns.max(1) as f64
    }
}

/// A table as text.
pub(super) struct Shown<'a> {
    table: &'a OpTable,
    most: usize,
}

const HEADINGS: [&str; 9] = ["op", "shapes", "calls", "total ms", "share", "mean ms", "GFLOP/s", "GB/s", "allocated"];

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table;
        let mut lines = vec![HEADINGS.map(str::to_owned)];
        lines.extend(table.rows.iter().take(self.most).map(|row| cells(row, table)));
        let with_shapes = table.rows.iter().any(|row| !row.shapes.is_empty());
        let columns: Vec<usize> = (0..HEADINGS.len()).filter(|&column| column != 1 || with_shapes).collect();
        let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
        for line in &lines {
            let padded = columns.iter().map(|&column| match column {
                0 | 1 => format!("{:width$}", line[column], width = width(column)),
                _ => format!("{:>width$}", line[column], width = width(column)),
            });
            writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        let hidden = table.rows.len().saturating_sub(self.most);
        if hidden > 0 {
            writeln!(f, "and {hidden} more {}", if hidden == 1 { "row" } else { "rows" })?;
        }
        let steps = if table.num_steps == 1 { "1 step".to_owned() } else { format!("{} steps", table.num_steps) };
        write!(
            f,
            "window: {steps} in {} ms, of which ops of thread `{}` take ",
            millis(table.window_ns),
            table.thread
        )?;
        write!(f, "{} ms ({:.1}%)", millis(table.own_ns), table.share(table.own_ns))?;
        if table.other_ns > 0 {
            write!(f, "; ops of other threads take {} ms meanwhile", millis(table.other_ns))?;
        }
        writeln!(f)
    }
}

fn cells(row: &Row, table: &OpTable) -> [String; HEADINGS.len()] {
    let rate = |work: f64| match work / row.total_ns.max(1) as f64 {
        0.0 => "-".to_owned(),
        rate => format!("{rate:.1}"),
    };
    let shapes: Vec<String> = row.shapes.iter().map(ToString::to_string).collect();
    [
        row.name.clone(),
        shapes.join(" "),
        row.calls.to_string(),
        millis(row.total_ns),
        format!("{:.1}%", table.share(row.total_ns)),
        millis(row.total_ns / row.calls.max(1)),
        rate(row.flops),
        rate(row.bytes as f64),
        bytes_text(row.allocated_bytes),
    ]
}

fn millis(ns: u64) -> String {
    format!("{:.3}", ns as f64 / 1e6)
}

/// Bytes as people read them.
fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes == 0 {
        return "-".to_owned();
    }
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use tensor::DType;
    use tensor::profile::{Event, OpWork};

    use super::*;

    fn op(name: &'static str, thread: usize, times: [u64; 2], flops: f64, dims: [usize; 2]) -> Event {
        let work =
            OpWork { shapes: vec![Shape::from(dims)], dtype: DType::F32, flops, bytes: 8000, allocated_bytes: 3 << 19 };
        Event { name: name.into(), thread, start_ns: times[0], end_ns: times[1], op: Some(work) }
    }

    fn window() -> Window {
        let mut events = vec![
            op("add", 0, [0, 1_000_000], 0.0, [5, 7]),
            op("matmul_nt", 0, [1_000_000, 3_000_000], 4e9, [5, 7]),
            op("matmul_nt", 0, [3_000_000, 5_000_000], 4e9, [5, 7]),
            op("matmul_nt", 0, [5_000_000, 5_500_000], 1e6, [5, 9]),
            op("download", 1, [0, 2_000_000], 0.0, [5, 7]),
        ];
        events.push(Event { name: "step 1".into(), thread: 0, start_ns: 0, end_ns: 10_000_000, op: None });
        let threads = vec!["main".to_owned(), "main dist".to_owned()];
        Window { start_ns: 0, end_ns: 10_000_000, events, threads, memory: vec![] }
    }

    #[test]
    fn calls_of_one_op_and_shape_are_a_row() {
        let table = OpTable::new(&window(), 2);
        let text = table.shown(usize::MAX).to_string();
        let expected = "\
op         shapes  calls  total ms  share  mean ms  GFLOP/s  GB/s  allocated
matmul_nt  (5, 7)      2     4.000  40.0%    2.000   2000.0   0.0    3.0 MiB
download   (5, 7)      1     2.000  20.0%    2.000        -   0.0    1.5 MiB
add        (5, 7)      1     1.000  10.0%    1.000        -   0.0    1.5 MiB
matmul_nt  (5, 9)      1     0.500   5.0%    0.500      2.0   0.0    1.5 MiB
window: 2 steps in 10.000 ms, of which ops of thread `main` take 5.500 ms (55.0%); ops of other threads take 2.000 ms meanwhile
";
        assert_eq!(text, expected);
        assert_eq!(table.rows.iter().map(|row| row.total_ns).sum::<u64>(), table.own_ns + table.other_ns);
    }

    #[test]
    fn without_shapes_an_op_is_a_row_and_long_tables_are_cut() {
        let mut window = window();
        window.events.iter_mut().filter_map(|event| event.op.as_mut()).for_each(|work| work.shapes.clear());
        let text = OpTable::new(&window, 1).shown(2).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[1].starts_with("matmul_nt      3     4.500"), "{text}");
        assert_eq!(lines[3], "and 1 more row");
        assert!(lines[4].starts_with("window: 1 step in"), "{text}");
    }

    #[test]
    fn an_empty_window_has_a_table_too() {
        let window =
            Window { start_ns: 5, end_ns: 5, events: vec![], threads: vec!["main".to_owned()], memory: vec![] };
        let text = OpTable::new(&window, 1).shown(9).to_string();
        assert!(
            text.ends_with("window: 1 step in 0.000 ms, of which ops of thread `main` take 0.000 ms (0.0%)\n"),
            "{text}"
        );
    }

    #[test]
    fn bytes_are_told_in_the_unit_that_suits() {
        let texts = [0, 1, 1023, 1024, 1536, 1 << 20, 5 << 30, 3 << 50].map(bytes_text);
        assert_eq!(texts, ["-", "1 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "3072.0 TiB"]);
    }
}
