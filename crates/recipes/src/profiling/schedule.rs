//! Which steps are profiled: `wait` steps nothing, `warmup` steps recorded and thrown away, `active` steps kept; over and over.
//!
//! Numbers: steps count from 0, from the first one of this run.

/// The steps of a cycle, and how many cycles there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) wait: u64,
    pub(crate) warmup: u64,
    /// At least 1.
    pub(crate) active: u64,
    /// 0 = to the end of the run.
    pub(crate) cycles: u64,
}

/// What is done in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing.
    Wait,
    /// Recorded and thrown away: the first steps under a recorder are not like others.
    Warmup,
    /// Recorded.
    Active {
        /// Whether a window begins with it.
        first: bool,
        /// Whether a window ends with it.
        last: bool,
    },
}

impl Schedule {
    /// What is done in a step.
    pub(crate) fn phase(&self, step: u64) -> Phase {
        let skipped = self.wait.saturating_add(self.warmup);
        let len = skipped.saturating_add(self.active.max(1));
        if self.cycles > 0 && step / len >= self.cycles {
            return Phase::Wait;
        }
        match step % len {
            at if at < self.wait => Phase::Wait,
            at if at < skipped => Phase::Warmup,
            at => Phase::Active { first: at == skipped, last: at + 1 == len },
        }
    }

    /// The same for a run of `num_steps` steps, with so much waiting and warm-up left out that the run reaches an active step.
    pub(crate) fn fitted(self, num_steps: u64) -> Self {
        let room = num_steps.saturating_sub(1);
        let warmup = self.warmup.min(room);
        Self { wait: self.wait.min(room - warmup), warmup, ..self }
    }

    /// Active steps of the first window in a run of `num_steps` steps.
    pub(crate) fn first_window(&self, num_steps: u64) -> u64 {
        num_steps.saturating_sub(self.wait.saturating_add(self.warmup)).min(self.active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter a step: `.` wait, `w` warm-up, `[` first, `]` last, `|` both, `a` in between.
    fn shown(schedule: Schedule, num_steps: u64) -> String {
        let letter = |phase| match phase {
            Phase::Wait => '.',
            Phase::Warmup => 'w',
            Phase::Active { first: true, last: true } => '|',
            Phase::Active { first: true, .. } => '[',
            Phase::Active { last: true, .. } => ']',
            Phase::Active { .. } => 'a',
        };
        (0..num_steps).map(|step| letter(schedule.phase(step))).collect()
    }

    fn schedule(wait: u64, warmup: u64, active: u64, cycles: u64) -> Schedule {
        Schedule { wait, warmup, active, cycles }
    }

    #[test]
    fn cycles_are_wait_then_warmup_then_active() {
        for (schedule, expected) in [
            (schedule(5, 3, 2, 1), ".....www[].........."),
            (schedule(1, 1, 3, 1), ".w[a]..............."),
            (schedule(1, 1, 3, 2), ".w[a].w[a].........."),
            (schedule(0, 1, 2, 3), "w[]w[]w[]..........."),
            (schedule(2, 0, 1, 0), "..|..|..|..|..|..|.."),
            (schedule(0, 0, 1, 1), "|..................."),
            (schedule(0, 0, 4, 0), "[aa][aa][aa][aa][aa]"),
            (schedule(0, 3, 30, 1), "www[aaaaaaaaaaaaaaaa"),
            (schedule(u64::MAX, 1, 1, 0), "...................."),
        ] {
            assert_eq!(shown(schedule, 20), expected, "{schedule:?}");
        }
    }

    /// Small numbers, each combination of them.
    fn all() -> impl Iterator<Item = Schedule> {
        let numbers = move |most: u64| 0..=most;
        numbers(3).flat_map(move |wait| {
            numbers(3).flat_map(move |warmup| {
                (1..=3).flat_map(move |active| numbers(3).map(move |cycles| schedule(wait, warmup, active, cycles)))
            })
        })
    }

    #[test]
    fn windows_are_whole_and_as_many_as_cycles() {
        let mut num_seen = 0;
        for schedule in all() {
            let len = schedule.wait + schedule.warmup + schedule.active;
            let text = shown(schedule, 5 * len);
            let cycles = if schedule.cycles == 0 { 5 } else { schedule.cycles } as usize;
            let count = |letters: &str| text.chars().filter(|&c| letters.contains(c)).count();
            assert_eq!(count("[|"), cycles, "{schedule:?}: {text}");
            assert_eq!(count("]|"), cycles, "{schedule:?}: {text}");
            assert_eq!(count("[a]|"), cycles * schedule.active as usize, "{schedule:?}: {text}");
            assert_eq!(count("w"), cycles * schedule.warmup as usize, "{schedule:?}: {text}");
            num_seen += 1;
        }
        assert_eq!(num_seen, 4 * 4 * 3 * 4);
    }

    #[test]
    fn a_fitted_schedule_reaches_an_active_step_and_changes_no_more_than_it_must() {
        for schedule in all() {
            for num_steps in 1..12 {
                let fitted = schedule.fitted(num_steps);
                let text = shown(fitted, num_steps);
                assert!(text.contains(['[', '|']), "{schedule:?} in {num_steps} steps: {text}");
                let active = text.chars().take(schedule.active as usize + (fitted.wait + fitted.warmup) as usize);
                let window = active.filter(|c| "[a]|".contains(*c)).count() as u64;
                assert_eq!(fitted.first_window(num_steps), window, "{schedule:?} in {num_steps} steps: {text}");
                if schedule.wait + schedule.warmup < num_steps {
                    assert_eq!(fitted, schedule);
                }
            }
        }
        assert_eq!(shown(schedule(1, 1, 3, 1).fitted(1), 1), "[");
        assert_eq!(shown(schedule(1, 1, 3, 1).fitted(2), 2), "w[");
        assert_eq!(shown(schedule(5, 3, 2, 1).fitted(7), 7), "...www[");
    }
}
