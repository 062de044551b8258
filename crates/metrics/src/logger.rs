//! What a recipe logs: one record a step, its metrics in the order the recipe gives them.

use std::io::Write;

use config::python_float;

use crate::error::Error;
use crate::screen::suspend;

/// Keeps the metrics of a run. On many ranks only rank 0 has one.
pub trait MetricLogger: Send {
    /// Keeps the record of `step` (optimizer steps, counted from 1): names and values in the order given. An f32 is
    /// widened by the caller, without rounding.
    fn log(&mut self, step: u64, metrics: &[(&str, f64)]) -> Result<(), Error>;

    /// Brings every record so far to where it is kept.
    fn flush(&mut self) -> Result<(), Error>;

    /// Flushes and gives the place up; logging afterwards is an error. Closing twice is not.
    fn close(&mut self) -> Result<(), Error>;
}

/// Writes each record as a text line on stdout: `Step 3 | loss:7.47 lr:0.001 `.
#[derive(Debug, Default)]
pub struct StdoutLogger;

impl MetricLogger for StdoutLogger {
    fn log(&mut self, step: u64, metrics: &[(&str, f64)]) -> Result<(), Error> {
        let line = text_line(step, metrics);
        suspend(|| {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush())
        })
        .map_err(|source| Error::WriteStdout { step, source })
    }

    fn flush(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn close(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// `Step 3 | loss:7.47 lr:0.001 ` and a line feed; the blank at the end is the reference's.
pub(crate) fn text_line(step: u64, metrics: &[(&str, f64)]) -> String {
    let mut line = format!("Step {step} | ");
    for (name, value) in metrics {
        line.extend([name, ":", &python_float(*value), " "]);
    }
    line.push('\n');
    line
}

/// `{"step": 3, "loss": 7.47, "lr": 0.001}` and a line feed. Not-a-number and the infinities are `NaN`, `Infinity`,
/// `-Infinity`, as the reference writes them.
pub(crate) fn json_line(step: u64, metrics: &[(&str, f64)]) -> String {
    let mut line = format!("{{\"step\": {step}");
    for (name, value) in metrics {
        let name = serde_json::Value::from(*name);
        let value = match *value {
            value if value.is_nan() => "NaN".to_owned(),
            f64::INFINITY => "Infinity".to_owned(),
            f64::NEG_INFINITY => "-Infinity".to_owned(),
            value => python_float(value),
        };
        line.extend([", ", &name.to_string(), ": ", &value]);
    }
    line.push_str("}\n");
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &[(&str, f64)] = &[("loss", 7.742430686950684), ("lr", 9.549150281252633e-5)];

    #[test]
    fn text_has_the_reference_form() {
        assert_eq!(text_line(1, METRICS), "Step 1 | loss:7.742430686950684 lr:9.549150281252633e-05 \n");
        assert_eq!(text_line(2, &[]), "Step 2 | \n");
    }

    #[test]
    fn json_keeps_order_and_precision() {
        let line = json_line(1, METRICS);
        assert_eq!(line, "{\"step\": 1, \"loss\": 7.742430686950684, \"lr\": 9.549150281252633e-05}\n");
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(back["loss"].as_f64().unwrap(), METRICS[0].1);
        assert_eq!(json_line(2, &[("a\"b", f64::NAN)]), "{\"step\": 2, \"a\\\"b\": NaN}\n");
        assert_eq!(json_line(2, &[("x", f64::INFINITY), ("y", f64::NEG_INFINITY)]).matches("Infinity").count(), 2);
    }
}
