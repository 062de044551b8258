//! A list of steps that all run, and a table of how they went.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// The steps run so far.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<Step>,
}

struct Step {
    name: &'static str,
    elapsed: Duration,
    passed: bool,
}

impl Steps {
    /// Runs one step and remembers how it went; an error is printed, and later steps run all the same.
    pub(crate) fn run(&mut self, name: &'static str, step: impl FnOnce() -> Result<()>) {
        eprintln!("== {name}");
        let start = Instant::now();
        let result = step();
        if let Err(error) = &result {
            eprintln!("error: {error:#}");
        }
        self.done.push(Step { name, elapsed: start.elapsed(), passed: result.is_ok() });
    }

    /// Prints the table; an error names the steps that failed.
    pub(crate) fn finish(self) -> Result<()> {
        eprintln!("==");
        for step in &self.done {
            let verdict = if step.passed { "ok" } else { "FAILED" };
            eprintln!("{:<12} {:>7.1} s  {verdict}", step.name, step.elapsed.as_secs_f64());
        }
        let failed: Vec<&str> = self.done.iter().filter(|step| !step.passed).map(|step| step.name).collect();
        if !failed.is_empty() {
            bail!("{} of {} steps failed: {}", failed.len(), self.done.len(), failed.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_failure_fails_the_whole_and_stops_nothing() {
        let mut steps = Steps::default();
        let mut ran = 0;
        steps.run("a", || bail!("broken"));
        steps.run("b", || {
            ran += 1;
            Ok(())
        });
        assert_eq!(steps.finish().unwrap_err().to_string(), "1 of 2 steps failed: a");
        assert_eq!(ran, 1);

        let mut steps = Steps::default();
        steps.run("a", || Ok(()));
        assert!(steps.finish().is_ok());
    }
}
