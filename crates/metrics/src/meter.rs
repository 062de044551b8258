//! The text of a progress line, in the form of Python's tqdm, which the reference shows:
//! `1|5|Loss: 2.1480:  62%|<bar>| 5/8 [00:05<00:03,  1.28s/it]`
//! = description, share, bar, position/total, elapsed<remaining, rate.
//!
//! Numbers: the rate is a moving average over redraws (weight 0.3 on the latest, corrected for the short history),
//!          `it/s` when at least 1, else `s/it`; the remaining time follows from it. A cell of the bar fills in eighths.
//! Source:  tqdm's documentation and its visible output; no clock in here, the caller says what time it is.

use std::time::Duration;

/// Redraws closer together than this do not move the average.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Weight of the latest interval in the average.
const SMOOTHING: f64 = 0.3;
/// Cells by how many eighths of them are full.
pub(crate) const EIGHTHS: [char; 9] =
    [' ', '\u{258F}', '\u{258E}', '\u{258D}', '\u{258C}', '\u{258B}', '\u{258A}', '\u{2589}', '\u{2588}'];

/// Position, total and pace of a run.
#[derive(Debug)]
pub(crate) struct Meter {
    pub(crate) description: String,
    total: u64,
    initial: u64,
    position: u64,
    averaged_position: u64,
    averaged_elapsed: Duration,
    steps_per_interval: MovingAverage,
    secs_per_interval: MovingAverage,
}

/// A progress line in its parts; the bar between them is as wide as the screen leaves room for.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Line {
    /// Everything left of the bar, its border included.
    pub(crate) left: String,
    /// The share done in 0..=1, or `None` when there is no total to draw a bar for.
    pub(crate) share: Option<f64>,
    /// Everything right of the bar, its border included.
    pub(crate) right: String,
}

impl Meter {
    pub(crate) fn new(total: u64, initial: u64, description: String) -> Self {
        Self {
            description,
            total,
            initial,
            position: initial,
            averaged_position: initial,
            averaged_elapsed: Duration::ZERO,
            steps_per_interval: MovingAverage::default(),
            secs_per_interval: MovingAverage::default(),
        }
    }

    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Moves on by `num_steps`, `elapsed` after the start.
    pub(crate) fn advance(&mut self, num_steps: u64, elapsed: Duration) {
        self.position += num_steps;
        let interval = elapsed.saturating_sub(self.averaged_elapsed);
        let moved = self.position - self.averaged_position;
        if moved > 0 && interval >= MIN_INTERVAL {
            self.steps_per_interval.add(moved as f64);
            self.secs_per_interval.add(interval.as_secs_f64());
            self.averaged_position = self.position;
            self.averaged_elapsed = elapsed;
        }
    }

    /// The line as of `elapsed` after the start.
    pub(crate) fn line(&self, elapsed: Duration) -> Line {
        let label = match self.description.as_str() {
            "" => String::new(),
            text if text.ends_with(": ") => text.to_owned(),
            text => format!("{text}: "),
        };
        let rate = self.steps_per_second(elapsed);
        let pace = pace(rate);
        let clock = interval(elapsed.as_secs_f64());
        if self.total == 0 || self.position > self.total {
            let left = format!("{label}{}it [{clock}, {pace}]", self.position);
            return Line { left, share: None, right: String::new() };
        }
        let remaining = rate.map_or("?".to_owned(), |rate| interval((self.total - self.position) as f64 / rate));
        let share = self.position as f64 / self.total as f64;
        Line {
            left: format!("{label}{:3.0}%|", share * 100.0),
            share: Some(share),
            right: format!("| {}/{} [{clock}<{remaining}, {pace}]", self.position, self.total),
        }
    }

    fn steps_per_second(&self, elapsed: Duration) -> Option<f64> {
        let (steps, secs) = match (self.steps_per_interval.value(), self.secs_per_interval.value()) {
            (Some(steps), Some(secs)) => (steps, secs),
            _ => ((self.position - self.initial) as f64, elapsed.as_secs_f64()),
        };
        (steps > 0.0 && secs > 0.0).then(|| steps / secs)
    }
}

impl Line {
    /// The whole line with a bar of `width` cells.
    pub(crate) fn with_bar(&self, width: usize) -> String {
        match self.share {
            Some(share) => format!("{}{}{}", self.left, bar(share, width), self.right),
            None => self.left.clone(),
        }
    }
}

/// `width` cells, filled from the left up to `share`.
fn bar(share: f64, width: usize) -> String {
    let full = EIGHTHS.len() - 1;
    let eighths = (share * (width * full) as f64) as usize;
    (0..width).map(|cell| EIGHTHS[eighths.saturating_sub(cell * full).min(full)]).collect()
}

/// `MM:SS`, or `H:MM:SS` from one hour on.
fn interval(secs: f64) -> String {
    let secs = secs as u64;
    let (hours, minutes, secs) = (secs / 3600, secs / 60 % 60, secs % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{secs:02}") } else { format!("{minutes:02}:{secs:02}") }
}

fn pace(steps_per_second: Option<f64>) -> String {
    match steps_per_second {
        None => "?it/s".to_owned(),
        Some(rate) if rate < 1.0 => format!("{:5.2}s/it", 1.0 / rate),
        Some(rate) => format!("{rate:5.2}it/s"),
    }
}

/// An exponential moving average that starts unbiased.
#[derive(Debug, Default)]
struct MovingAverage {
    sum: f64,
    weight: f64,
}

impl MovingAverage {
    fn add(&mut self, value: f64) {
        self.sum = SMOOTHING * value + (1.0 - SMOOTHING) * self.sum;
        self.weight = SMOOTHING + (1.0 - SMOOTHING) * self.weight;
    }

    fn value(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Steps of 1.28 s, of which `num` are done.
    fn steady(num: u64, total: u64, description: &str) -> String {
        let mut meter = Meter::new(total, 0, description.to_owned());
        for step in 1..=num {
            meter.advance(1, ms(1280 * step));
        }
        meter.line(ms(1280 * num)).with_bar(10)
    }

    #[test]
    fn the_reference_form() {
        let line = steady(5, 8, "1|5|Loss: 2.1480");
        assert_eq!(
            line,
            "1|5|Loss: 2.1480:  62%|\u{2588}\u{2588}\u{2588}\u{2588}\u{2588}\u{2588}\u{258E}   | 5/8 [00:06<00:03,  1.28s/it]"
        );
    }

    #[test]
    fn start_and_end() {
        assert_eq!(steady(0, 8, "1|0"), "1|0:   0%|          | 0/8 [00:00<?, ?it/s]");
        let full = "\u{2588}".repeat(10);
        assert_eq!(steady(8, 8, ""), format!("100%|{full}| 8/8 [00:10<00:00,  1.28s/it]"));
        assert_eq!(steady(8, 8, "done: "), format!("done: 100%|{full}| 8/8 [00:10<00:00,  1.28s/it]"));
    }

    #[test]
    fn no_total_or_beyond_it_shows_a_count() {
        assert_eq!(steady(0, 0, ""), "0it [00:00, ?it/s]");
        assert_eq!(steady(2, 1, "x"), "x: 2it [00:02,  1.28s/it]");
    }

    #[test]
    fn fast_steps_are_per_second_and_slow_ones_take_hours() {
        let mut meter = Meter::new(1000, 0, String::new());
        meter.advance(25, ms(500));
        assert!(meter.line(ms(500)).with_bar(1).ends_with("25/1000 [00:00<00:19, 50.00it/s]"));
        let mut meter = Meter::new(100, 0, String::new());
        meter.advance(1, ms(3_723_000));
        assert!(meter.line(ms(3_723_000)).with_bar(1).ends_with("1/100 [1:02:03<102:22:57, 3723.00s/it]"));
    }

    #[test]
    fn the_rate_leans_towards_the_latest_interval() {
        let mut meter = Meter::new(10, 0, String::new());
        meter.advance(1, ms(1000));
        meter.advance(1, ms(4000));
        // Averages: steps 1; seconds (0.3 * 3 + 0.7 * 0.3 * 1) / (0.3 + 0.7 * 0.3) = 1.11 / 0.51.
        assert!(meter.line(ms(4000)).right.ends_with("2.18s/it]"), "{}", meter.line(ms(4000)).right);
    }

    #[test]
    fn steps_before_the_start_do_not_count_for_the_rate() {
        let mut meter = Meter::new(10, 6, String::new());
        assert_eq!(meter.line(ms(0)).right, "| 6/10 [00:00<?, ?it/s]");
        meter.advance(1, ms(50));
        assert_eq!(meter.line(ms(2000)).right, "| 7/10 [00:02<00:06,  2.00s/it]");
    }

    #[test]
    fn a_bar_never_changes_its_width_and_never_shrinks() {
        for width in [0, 1, 2, 7, 10, 33] {
            let mut last = String::new();
            for done in 0..=200 {
                let bar = bar(f64::from(done) / 200.0, width);
                assert_eq!(bar.chars().count(), width);
                let level = |text: &str| -> usize {
                    text.chars().filter_map(|cell| EIGHTHS.iter().position(|&glyph| glyph == cell)).sum()
                };
                assert!(level(&bar) >= level(&last), "{last:?} {bar:?}");
                last = bar;
            }
            assert!(last.chars().all(|cell| cell == EIGHTHS[8]));
        }
    }
}
