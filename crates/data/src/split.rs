//! The split grammar: which rows of which split a dataset takes.
//!
//! Grammar: `train`, `train[:6]`, `train[5:]`, `train[6:10]`, `train[:95%]`, `train[-10:]`, several joined by `+`.
//!          A name is made of letters, digits and `_-.`; `all` stands for every split. Digits may hold `_`.
//!          If either bound of a part is a percentage, both are.
//! Numbers: a negative bound counts from the end; bounds beyond the rows stop at the first or last row; a percentage
//!          stands for the nearest row border, ties to even.
//! Errors:  `Error::Split`, `Error::UnknownSplit`. Panics: never.
//! Source:  the behaviour of `ReadInstruction` in Hugging Face datasets.

use std::ops::Range;

use crate::{Error, Result};

/// Name that stands for all splits one after the other.
const ALL: &str = "all";

/// A parsed `split` string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    name: String,
    from: Option<i64>,
    to: Option<i64>,
    percent: bool,
}

impl Split {
    /// Reads a split string; whether its names exist is checked by `select`.
    pub fn parse(text: &str) -> Result<Self> {
        let parts = text.split('+').map(|part| Part::parse(part.trim(), text)).collect::<Result<_>>()?;
        Ok(Self { text: text.to_owned(), parts })
    }

    /// The string it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether rows of the split `name` may be taken.
    pub fn mentions(&self, name: &str) -> bool {
        self.parts.iter().any(|part| part.name == name || part.name == ALL)
    }

    /// Rows taken, in order: per part the index of a split in `lengths` (name and number of rows) and a range of its rows.
    pub fn select(&self, lengths: &[(String, usize)]) -> Result<Vec<(usize, Range<usize>)>> {
        let mut ranges = Vec::new();
        for part in &self.parts {
            if let Some(index) = lengths.iter().position(|(name, _)| *name == part.name) {
                ranges.push((index, part.range(lengths[index].1)));
            } else if part.name == ALL {
                part.select_from_all(lengths, &mut ranges);
            } else {
                let found = lengths.iter().map(|(name, _)| name.clone()).collect();
                return Err(Error::UnknownSplit { split: self.text.clone(), name: part.name.clone(), found });
            }
        }
        Ok(ranges)
    }
}

impl Part {
    fn parse(part: &str, text: &str) -> Result<Self> {
        let bad = || Error::Split { split: text.to_owned(), part: part.to_owned() };
        let (name, slice) = match part.split_once('[') {
            Some((name, rest)) => (name, Some(rest.strip_suffix(']').ok_or_else(bad)?)),
            None => (part, None),
        };
        let word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || !name.chars().all(word) {
            return Err(bad());
        }
        let (from, to) = match slice {
            Some(slice) => slice.split_once(':').ok_or_else(bad)?,
            None => ("", ""),
        };
        let percent = from.ends_with('%') || to.ends_with('%');
        let bound = |bound: &str| -> Result<Option<i64>> {
            if bound.is_empty() {
                return Ok(None);
            }
            let digits = bound.strip_suffix('%').unwrap_or(bound).replace('_', "");
            let value = digits.parse().map_err(|_| bad())?;
            if percent && !(-100..=100).contains(&value) { Err(bad()) } else { Ok(Some(value)) }
        };
        Ok(Self { name: name.to_owned(), from: bound(from)?, to: bound(to)?, percent })
    }

    fn range(&self, rows: usize) -> Range<usize> {
        let border = |bound: i64| {
            let at = if self.percent { (bound as f64 * rows as f64 / 100.0).round_ties_even() as i64 } else { bound };
            let at = if at < 0 { at.saturating_add(rows as i64) } else { at };
            at.clamp(0, rows as i64) as usize
        };
        let (from, to) = (self.from.map_or(0, border), self.to.map_or(rows, border));
        from..to.max(from)
    }

    fn select_from_all(&self, lengths: &[(String, usize)], ranges: &mut Vec<(usize, Range<usize>)>) {
        let wanted = self.range(lengths.iter().map(|(_, rows)| rows).sum());
        let mut start = 0;
        for (index, (_, rows)) in lengths.iter().enumerate() {
            let (from, to) = (wanted.start.max(start), wanted.end.min(start + rows));
            if from < to {
                ranges.push((index, from - start..to - start));
            }
            start += rows;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(split: &str, rows: usize) -> Range<usize> {
        let chosen = Split::parse(split).unwrap().select(&[("train".to_owned(), rows)]).unwrap();
        assert_eq!(chosen.len(), 1);
        chosen[0].1.clone()
    }

    #[test]
    fn slices_by_rows() {
        assert_eq!(select("train", 100), 0..100);
        assert_eq!(select("train[:]", 100), 0..100);
        assert_eq!(select("train[:6]", 100), 0..6);
        assert_eq!(select("train[6:10]", 100), 6..10);
        assert_eq!(select("train[5:]", 100), 5..100);
        assert_eq!(select("train[-10:]", 100), 90..100);
        assert_eq!(select("train[:-10]", 100), 0..90);
        assert_eq!(select("train[:1_000]", 100), 0..100);
        assert_eq!(select("train[-200:]", 100), 0..100);
        assert_eq!(select("train[200:]", 100), 100..100);
        assert_eq!(select("train[9:3]", 100), 9..9);
    }

    #[test]
    fn slices_by_percent_round_to_the_nearest_row() {
        assert_eq!(select("train[:95%]", 100), 0..95);
        assert_eq!(select("train[95%:]", 100), 95..100);
        assert_eq!(select("train[:33%]", 10), 0..3);
        assert_eq!(select("train[33%:66%]", 10), 3..7);
        assert_eq!(select("train[-10%:]", 52), 47..52);
        // 0.5 and 2.5 are ties.
        assert_eq!(select("train[:50%]", 1), 0..0);
        assert_eq!(select("train[:50%]", 5), 0..2);
        assert_eq!(select("train[10:20%]", 100), 10..20);
    }

    #[test]
    fn several_splits() {
        let lengths = [("train".to_owned(), 10), ("test".to_owned(), 4)];
        let select = |split: &str| Split::parse(split).unwrap().select(&lengths).unwrap();
        assert_eq!(select("train+test"), [(0, 0..10), (1, 0..4)]);
        assert_eq!(select("train[:2] + test[50%:]"), [(0, 0..2), (1, 2..4)]);
        assert_eq!(select("train[:1]+train[8:]"), [(0, 0..1), (0, 8..10)]);
        assert_eq!(select("all"), [(0, 0..10), (1, 0..4)]);
        assert_eq!(select("all[8:11]"), [(0, 8..10), (1, 0..1)]);
    }

    #[test]
    fn splits_that_are_mentioned() {
        let mentions = |split: &str, name| Split::parse(split).unwrap().mentions(name);
        assert!(mentions("train[:5]+test", "test") && mentions("all", "dev"));
        assert!(!mentions("train+test", "dev") && !mentions("train_sft", "train"));
    }

    #[test]
    fn malformed_splits() {
        for (split, part) in [
            ("", ""),
            ("train[", "train["),
            ("train[5]", "train[5]"),
            ("train[a:]", "train[a:]"),
            ("train[+1:]", "train["),
            ("train[:101%]", "train[:101%]"),
            ("train[:5", "train[:5"),
            ("train++test", ""),
            ("[:5]", "[:5]"),
            ("train test", "train test"),
            ("train[:1:2]", "train[:1:2]"),
            ("train[:99999999999999999999]", "train[:99999999999999999999]"),
        ] {
            assert_eq!(
                Split::parse(split).unwrap_err().to_string(),
                format!(
                    "cannot read `split: {split}`\n  expected parts like `train`, `train[:1000]`, `train[95%:]` or `train[-10:]`, joined by `+`, found `{part}`"
                )
            );
        }
    }

    #[test]
    fn unknown_split() {
        let lengths = [("train".to_owned(), 10), ("test".to_owned(), 4)];
        let error = Split::parse("train+dev").unwrap().select(&lengths).unwrap_err();
        assert_eq!(error.to_string(), "no split `dev` for `split: train+dev`\n  expected one of `train`, `test`");
    }
}
