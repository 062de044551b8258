//! Stderr as shared by progress bars and everything else that is said there.
//!
//! On a terminal a bar is redrawn in place; whoever prints takes the bar off first and puts it back after
//! ([`suspend`]). Elsewhere (a file, a pipe) there is nothing to take off. What stderr refuses is dropped: there is no
//! other place to report it.

use std::io::{self, Write};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use indicatif::{MultiProgress, ProgressDrawTarget};

static STDERR: LazyLock<Screen> = LazyLock::new(|| Screen::new(ProgressDrawTarget::stderr(), Box::new(io::stderr())));

/// Prints one notice on stderr, as a line of its own, without disturbing a progress bar.
pub fn notice(text: &str) {
    Screen::stderr().print_line(text);
}

/// Runs `print` while no progress bar is on the terminal. `print` must not call this crate's printing functions.
pub fn suspend<R>(print: impl FnOnce() -> R) -> R {
    Screen::stderr().suspend(print)
}

/// A place where bars are drawn and lines are printed.
#[derive(Clone)]
pub(crate) struct Screen {
    bars: MultiProgress,
    text: Arc<Mutex<Box<dyn Write + Send>>>,
}

impl Screen {
    pub(crate) fn stderr() -> &'static Self {
        &STDERR
    }

    pub(crate) fn new(target: ProgressDrawTarget, text: Box<dyn Write + Send>) -> Self {
        Self { bars: MultiProgress::with_draw_target(target), text: Arc::new(Mutex::new(text)) }
    }

    /// Where bars are drawn, or `None` where there is no terminal.
    pub(crate) fn bars(&self) -> Option<&MultiProgress> {
        (!self.bars.is_hidden()).then_some(&self.bars)
    }

    pub(crate) fn print_line(&self, text: &str) {
        self.suspend(|| {
            // A thread that panicked while printing left at worst half a line.
            let mut stream = self.text.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = writeln!(stream, "{text}").and_then(|()| stream.flush());
        });
    }

    pub(crate) fn suspend<R>(&self, print: impl FnOnce() -> R) -> R {
        self.bars.suspend(print)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use indicatif::TermLike;

    /// A stream that several owners can write to and the test can read.
    #[derive(Clone, Default)]
    pub(crate) struct Recorded(Arc<Mutex<Vec<u8>>>);

    impl Recorded {
        pub(crate) fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Recorded {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A terminal of 80 columns that keeps its lines; the bar and the text stream write to the same one.
    #[derive(Clone, Debug)]
    pub(crate) struct Terminal(Arc<Mutex<Grid>>);

    #[derive(Debug)]
    struct Grid {
        rows: Vec<Vec<char>>,
        row: usize,
        column: usize,
    }

    const COLUMNS: usize = 80;

    impl Terminal {
        pub(crate) fn new() -> Self {
            Self(Arc::new(Mutex::new(Grid { rows: vec![vec![]], row: 0, column: 0 })))
        }

        /// What is on the screen: one string a row, trailing blanks and trailing empty rows removed.
        pub(crate) fn rows(&self) -> Vec<String> {
            let grid = self.0.lock().unwrap();
            let mut rows: Vec<String> =
                grid.rows.iter().map(|row| row.iter().collect::<String>().trim_end().to_owned()).collect();
            while rows.last().is_some_and(String::is_empty) {
                rows.pop();
            }
            rows
        }

        pub(crate) fn screen(&self) -> Screen {
            Screen::new(ProgressDrawTarget::term_like(Box::new(self.clone())), Box::new(self.clone()))
        }
    }

    impl Grid {
        fn put(&mut self, text: &str) {
            for symbol in text.chars() {
                match symbol {
                    '\r' => self.column = 0,
                    '\n' => self.move_to(self.row + 1, 0),
                    symbol => {
                        // As on real terminals, the line wraps when the first symbol beyond it arrives.
                        if self.column == COLUMNS {
                            self.move_to(self.row + 1, 0);
                        }
                        let row = &mut self.rows[self.row];
                        if row.len() <= self.column {
                            row.resize(self.column + 1, ' ');
                        }
                        row[self.column] = symbol;
                        self.column += 1;
                    }
                }
            }
        }

        fn move_to(&mut self, row: usize, column: usize) {
            (self.row, self.column) = (row, column);
            while self.rows.len() <= row {
                self.rows.push(vec![]);
            }
        }
    }

    impl Write for Terminal {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().put(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            COLUMNS as u16
        }
        fn move_cursor_up(&self, n: usize) -> io::Result<()> {
            let mut grid = self.0.lock().unwrap();
            grid.row -= n;
            Ok(())
        }
        fn move_cursor_down(&self, n: usize) -> io::Result<()> {
            let mut grid = self.0.lock().unwrap();
            let (row, column) = (grid.row + n, grid.column);
            grid.move_to(row, column);
            Ok(())
        }
        fn move_cursor_right(&self, n: usize) -> io::Result<()> {
            self.0.lock().unwrap().column += n;
            Ok(())
        }
        fn move_cursor_left(&self, n: usize) -> io::Result<()> {
            self.0.lock().unwrap().column -= n;
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().put(&format!("{text}\n"));
            Ok(())
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().put(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            let mut grid = self.0.lock().unwrap();
            let row = grid.row;
            grid.rows[row].clear();
            grid.column = 0;
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_reach_a_stream_that_is_no_terminal() {
        let recorded = Recorded::default();
        let screen = Screen::new(ProgressDrawTarget::hidden(), Box::new(recorded.clone()));
        screen.print_line("one");
        screen.print_line("two");
        assert!(screen.bars().is_none());
        assert_eq!(recorded.text(), "one\ntwo\n");
    }

    #[test]
    fn a_stream_that_refuses_is_ignored() {
        struct Refusing;
        impl Write for Refusing {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
        }
        Screen::new(ProgressDrawTarget::hidden(), Box::new(Refusing)).print_line("lost");
    }
}
