//! How often and how long to try again.

use std::time::Duration;

use crate::{Error, Progress, Result};

/// Tries without a byte of progress, the first one included.
const TRIES: u32 = 5;
/// Longest wait between two tries, and longest that a hub may ask for.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// A failed try.
#[derive(Debug)]
pub(crate) struct Trouble {
    pub error: Error,
    /// Whether another try may go better.
    pub again: bool,
    /// How long the hub asks to wait.
    pub wait: Option<Duration>,
}

impl Trouble {
    /// One that another try does not mend.
    pub fn last(error: Error) -> Self {
        Self { error, again: false, wait: None }
    }

    /// One that another try may mend.
    pub fn passing(error: Error) -> Self {
        Self { error, again: true, wait: None }
    }
}

/// The tries that are left.
pub(crate) struct Patience {
    failed: u32,
    first_wait: Duration,
}

impl Patience {
    pub fn new(first_wait: Duration) -> Self {
        Self { failed: 0, first_wait }
    }

    /// Something has arrived: all tries are there again.
    pub fn renew(&mut self) {
        self.failed = 0;
    }

    /// Waits until the next try, or gives the trouble back as what ends it.
    pub fn wait(&mut self, trouble: Trouble, progress: &dyn Progress) -> Result<()> {
        self.failed += 1;
        let wait = trouble.wait.unwrap_or_else(|| self.first_wait * (1 << (self.failed - 1).min(16)));
        if !trouble.again || self.failed == TRIES || wait > LONGEST_WAIT {
            return Err(trouble.error);
        }
        let heading = trouble.error.to_string();
        let heading = heading.lines().next().unwrap_or_default();
        let secs = wait.as_secs_f64();
        progress.notice(&format!("{heading}; trying again in {secs} s ({} of {TRIES} tries)", self.failed));
        std::thread::sleep(wait);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Silent;

    fn trouble(wait: Option<u64>) -> Trouble {
        let error = Error::RateLimited { url: "u".to_owned(), retry_after_secs: wait };
        Trouble { error, again: true, wait: wait.map(Duration::from_secs) }
    }

    #[test]
    fn tries_end() {
        let mut patience = Patience::new(Duration::ZERO);
        assert_eq!((0..10).take_while(|_| patience.wait(trouble(None), &Silent).is_ok()).count(), 4);
        patience.renew();
        assert!(patience.wait(trouble(None), &Silent).is_ok());
    }

    #[test]
    fn what_cannot_get_better_ends_at_once() {
        let mut patience = Patience::new(Duration::ZERO);
        assert!(patience.wait(Trouble::last(trouble(None).error), &Silent).is_err());
        assert!(Patience::new(Duration::ZERO).wait(trouble(Some(301)), &Silent).is_err());
    }
}
