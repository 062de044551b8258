//! The progress bar of a run, on stderr: redrawn in place on a terminal; elsewhere a plain line now and then.
//!
//! Numbers: redrawn at most 20 times a second on a terminal; otherwise one line at most every 10 seconds. The final
//!          line stays in both cases. The form of the line is that of `meter.rs`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::meter::{EIGHTHS, Line, Meter};
use crate::screen::Screen;

/// How often a stream that is no terminal gets a line.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);
/// Cells of the bar where the width of the screen is not known.
const PLAIN_BAR_CELLS: usize = 10;

/// A bar that counts steps. Dropping it, or [`Progress::finish`], leaves its final line.
pub struct Progress {
    screen: Screen,
    meter: Meter,
    started: Instant,
    drawn: Option<Drawn>,
    last_plain: Duration,
    is_finished: bool,
}

/// The bar on a terminal and the line it shows.
struct Drawn {
    bar: ProgressBar,
    line: Arc<Mutex<Line>>,
}

impl Progress {
    /// Begins a bar of `total` steps of which `initial` lie behind already (they do not count for the rate). With
    /// `total = 0` it shows a count without a share.
    pub fn start(total: u64, initial: u64, description: impl Into<String>) -> Self {
        Self::on(Screen::stderr(), total, initial, description.into())
    }

    /// Moves on by `num_steps`, with what to say in front of the bar (`1|5|Loss: 2.1480`).
    pub fn advance(&mut self, num_steps: u64, description: impl Into<String>) {
        let elapsed = self.started.elapsed();
        self.advance_at(num_steps, description.into(), elapsed);
    }

    /// Changes what stands in front of the bar.
    pub fn set_description(&mut self, description: impl Into<String>) {
        self.advance(0, description);
    }

    /// Ends the bar; its final line stays.
    pub fn finish(mut self) {
        self.close();
    }

    fn on(screen: &Screen, total: u64, initial: u64, description: String) -> Self {
        let meter = Meter::new(total, initial, description);
        let drawn = screen.bars().map(|bars| {
            let line = Arc::new(Mutex::new(meter.line(Duration::ZERO)));
            // The bar gets its style before its screen, so that nothing is drawn in the default style.
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
            bar.set_style(style(&line));
            bar.set_position(initial);
            let bar = bars.add(bar);
            bar.tick();
            Drawn { bar, line }
        });
        let screen = screen.clone();
        Self { screen, meter, started: Instant::now(), drawn, last_plain: Duration::ZERO, is_finished: false }
    }

    fn advance_at(&mut self, num_steps: u64, description: String, elapsed: Duration) {
        self.meter.description = description;
        self.meter.advance(num_steps, elapsed);
        if let Some(drawn) = &self.drawn {
            *drawn.line.lock().unwrap_or_else(PoisonError::into_inner) = self.meter.line(elapsed);
            let position = self.meter.position();
            drawn.bar.update(|state| state.set_pos(position));
        } else if elapsed.saturating_sub(self.last_plain) >= PLAIN_INTERVAL {
            self.last_plain = elapsed;
            self.screen.print_line(&self.meter.line(elapsed).with_bar(PLAIN_BAR_CELLS));
        }
    }

    fn close(&mut self) {
        if std::mem::replace(&mut self.is_finished, true) {
            return;
        }
        if let Some(drawn) = &self.drawn {
            drawn.bar.finish_and_clear();
        }
        self.screen.print_line(&self.meter.line(self.started.elapsed()).with_bar(PLAIN_BAR_CELLS));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.close();
    }
}

/// The line's parts around a bar that takes the room between them.
fn style(line: &Arc<Mutex<Line>>) -> ProgressStyle {
    let part = |pick: fn(&Line) -> &str| {
        let line = Arc::clone(line);
        move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
            // The buffer is a string: writing to it cannot fail.
            let _ = out.write_str(pick(&line.lock().unwrap_or_else(PoisonError::into_inner)));
        }
    };
    // The glyphs from full to empty; the empty one twice, since the drawing code sets the last one apart as background.
    let glyphs: String = EIGHTHS.iter().rev().chain([&EIGHTHS[0]]).collect();
    let has_share = line.lock().unwrap_or_else(PoisonError::into_inner).share.is_some();
    let template = if has_share { "{left}{wide_bar}{right}" } else { "{left}" };
    ProgressStyle::with_template(template)
        .expect("the template is a constant and well formed")
        .with_key("left", part(|line| &line.left))
        .with_key("right", part(|line| &line.right))
        .progress_chars(&glyphs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::screen::tests::{Recorded, Terminal};

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_terminal_shows_one_line_in_the_reference_form() {
        let terminal = Terminal::new();
        let screen = terminal.screen();
        let mut progress = Progress::on(&screen, 8, 0, "1|0".to_owned());
        assert_eq!(terminal.rows().len(), 1);
        assert!(terminal.rows()[0].starts_with("1|0:   0%|  "), "{:?}", terminal.rows());
        for step in 1..=5 {
            progress.advance_at(1, format!("1|{step}|Loss: 2.1480"), Duration::from_millis(1280 * step));
        }
        let rows = terminal.rows();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].chars().count(), 80);
        assert!(rows[0].starts_with("1|5|Loss: 2.1480:  62%|\u{2588}\u{2588}"), "{rows:?}");
        assert!(rows[0].ends_with(" | 5/8 [00:06<00:03,  1.28s/it]"), "{rows:?}");
    }

    #[test]
    fn the_drawn_bar_and_the_plain_bar_agree() {
        let terminal = Terminal::new();
        let screen = terminal.screen();
        let total = 64;
        let mut progress = Progress::on(&screen, total, 0, String::new());
        for step in 1..=total {
            progress.advance_at(1, String::new(), secs(step));
            let line = progress.meter.line(secs(step));
            let cells = 80 - line.with_bar(0).chars().count();
            assert_eq!(terminal.rows(), [line.with_bar(cells)]);
        }
    }

    #[test]
    fn notices_stand_above_the_bar_whole() {
        let terminal = Terminal::new();
        let screen = terminal.screen();
        let mut progress = Progress::on(&screen, 4, 0, "1|0".to_owned());
        progress.advance_at(1, "1|1".to_owned(), secs(1));
        screen.print_line("first notice");
        progress.advance_at(1, "1|2".to_owned(), secs(2));
        screen.print_line(&"wide ".repeat(30));
        progress.advance_at(1, "1|3".to_owned(), secs(3));
        let rows = terminal.rows();
        assert_eq!(rows.len(), 4, "{rows:?}");
        assert_eq!(rows[0], "first notice");
        assert_eq!(rows[1..3].join(" ").replace("  ", " "), "wide ".repeat(30).trim_end());
        assert!(rows[3].starts_with("1|3:  75%|"), "{rows:?}");
        progress.finish();
        screen.print_line("after");
        let rows = terminal.rows();
        assert_eq!(rows.len(), 5, "{rows:?}");
        assert!(rows[3].starts_with("1|3:  75%|") && rows[3].contains("| 3/4 ["), "{rows:?}");
        assert_eq!(rows[4], "after");
    }

    #[test]
    fn printing_past_the_bar_would_be_seen() {
        use std::io::Write;
        let mut terminal = Terminal::new();
        let _progress = Progress::on(&terminal.screen(), 4, 0, "1|0".to_owned());
        writeln!(terminal, "rogue").unwrap();
        assert!(terminal.rows().len() > 1 && terminal.rows()[0] != "rogue");
    }

    #[test]
    fn without_a_total_the_count_is_drawn() {
        let terminal = Terminal::new();
        let screen = terminal.screen();
        let mut progress = Progress::on(&screen, 0, 0, "reading".to_owned());
        progress.advance_at(3, "reading".to_owned(), secs(1));
        assert_eq!(terminal.rows(), ["reading: 3it [00:01,  3.00it/s]"]);
    }

    #[test]
    fn a_file_gets_few_lines_and_the_final_one() {
        let recorded = Recorded::default();
        let screen = Screen::new(ProgressDrawTarget::hidden(), Box::new(recorded.clone()));
        let mut progress = Progress::on(&screen, 30, 0, "1|0".to_owned());
        for step in 1..=25 {
            progress.advance_at(1, format!("1|{step}"), secs(step));
        }
        drop(progress);
        let text = recorded.text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0].starts_with("1|10:  33%|") && lines[0].ends_with("| 10/30 [00:10<00:20,  1.00it/s]"),
            "{text}"
        );
        assert!(lines[1].starts_with("1|20:  67%|"), "{text}");
        assert!(lines[2].starts_with("1|25:  83%|"), "{text}");
        assert!(!text.contains('\r') && !text.contains('\u{1b}'));
    }
}
