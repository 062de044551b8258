//! What reading a dataset found that is no error but should be said once.

use crate::rows::Place;

/// Rows of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub rows: usize,
    /// Where the first one stands.
    pub first: Option<Place>,
}

impl Count {
    pub(crate) fn add(&mut self, place: &Place) {
        self.rows += 1;
        self.first.get_or_insert_with(|| place.clone());
    }

    fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        self.first = self.first.take().or(other.first);
    }
}

/// Counts over the rows of a dataset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Notices {
    /// Rows read.
    pub rows: usize,
    /// Rows longer than the tokenizer's `max_seq_len`, which were cut.
    pub truncated: Count,
    /// Rows whose labels are all ignored: they cost time and teach nothing.
    pub untrained: Count,
    /// Rows of blank text, which were left out.
    pub blank: Count,
}

impl Notices {
    /// One line a finding, empty if all is well.
    pub fn lines(&self) -> Vec<String> {
        let findings = [
            (&self.truncated, "longer than `max_seq_len` and cut"),
            (&self.untrained, "without a token to train on"),
            (&self.blank, "blank and left out"),
        ];
        let line = |(count, what): (&Count, &str)| {
            let first = count.first.as_ref()?;
            Some(format!("{} of {} rows {what}, the first is {first}", count.rows, self.rows))
        };
        findings.into_iter().filter_map(line).collect()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        self.truncated.merge(other.truncated);
        self.untrained.merge(other.untrained);
        self.blank.merge(other.blank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn one_line_a_finding() {
        let place = |line| Place { file: Path::new("a.jsonl").into(), line, row: None };
        let mut notices = Notices { rows: 10, ..Notices::default() };
        assert!(notices.lines().is_empty());
        notices.truncated.add(&place(3));
        notices.truncated.add(&place(7));
        let mut other = Notices { rows: 2, ..Notices::default() };
        other.truncated.add(&place(1));
        other.blank.add(&place(2));
        notices.merge(other);
        assert_eq!(
            notices.lines(),
            [
                "3 of 12 rows longer than `max_seq_len` and cut, the first is `a.jsonl`, line 3",
                "1 of 12 rows blank and left out, the first is `a.jsonl`, line 2",
            ]
        );
    }
}
