//! Limits on a field's value, written in brackets behind its type in [`component!`](crate::component).
//!
//! | written | accepts |
//! |---------|---------|
//! | `[positive]` | numbers > 0 |
//! | `[positive_or_inf]` | numbers > 0, and `.inf` |
//! | `[1..]`, `[0.0..]` | numbers from the first on |
//! | `[0.0..=1.0]` | numbers between the two, both included |
//! | `[0.0..1.0]` | the same without the last |
//! | `[one_of("a", "b")]` | these words |
//!
//! A check looks at the number or text inside an `Option`, and at every element of a list. Numbers are finite unless
//! infinity is named, with or without a limit; NaN is nowhere accepted.

use std::ops::{Range, RangeFrom, RangeInclusive};

use crate::from_node::Leaf;

/// A limit on a field's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// Greater than zero.
    Positive,
    /// Greater than zero, infinity too.
    PositiveOrInf,
    /// At least this.
    From(f64),
    /// From the first to the second, both included.
    Between(f64, f64),
    /// From the first to the second, without the second.
    Below(f64, f64),
    /// One of these words.
    OneOf(&'static [&'static str]),
}

impl Check {
    /// True if the value is within the limit.
    pub fn accepts(&self, leaf: &dyn Leaf) -> bool {
        match self {
            Self::OneOf(words) => leaf.text().is_some_and(|text| words.contains(&text)),
            limit => leaf.number().is_some_and(|x| match limit {
                Self::Positive => x > 0.0 && x.is_finite(),
                Self::PositiveOrInf => x > 0.0,
                Self::From(low) => x >= *low && x.is_finite(),
                Self::Between(low, high) => (*low..=*high).contains(&x),
                Self::Below(low, high) => (*low..*high).contains(&x),
                Self::OneOf(_) => false,
            }),
        }
    }

    /// What a value must be: the type's noun with the limit, such as `an integer >= 1`.
    pub fn describe(&self, noun: &str) -> String {
        // `an integer >= 0` with `[1..]` is `an integer >= 1`.
        let noun = noun.strip_suffix(" >= 0").unwrap_or(noun);
        match self {
            Self::Positive => format!("{noun} > 0"),
            Self::PositiveOrInf => format!("{noun} > 0 (or `.inf`)"),
            Self::From(low) => format!("{noun} >= {low}"),
            Self::Between(low, high) => format!("{noun} from {low} to {high}"),
            Self::Below(low, high) => format!("{noun} >= {low} and < {high}"),
            Self::OneOf(words) => {
                let words: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
                format!("one of {}", words.join(", "))
            }
        }
    }
}

macro_rules! from_ranges {
    ($($type:ty),*) => {$(
        impl From<RangeFrom<$type>> for Check {
            fn from(range: RangeFrom<$type>) -> Self {
                Self::From(range.start as f64)
            }
        }

        impl From<RangeInclusive<$type>> for Check {
            fn from(range: RangeInclusive<$type>) -> Self {
                Self::Between(*range.start() as f64, *range.end() as f64)
            }
        }

        impl From<Range<$type>> for Check {
            fn from(range: Range<$type>) -> Self {
                Self::Below(range.start as f64, range.end as f64)
            }
        }
    )*};
}

from_ranges!(i32, i64, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_accept_and_refuse() {
        let cases: [(Check, &[f64], &[f64]); 5] = [
            (Check::Positive, &[1e-300, 1.0], &[0.0, -1.0, f64::NAN, f64::INFINITY]),
            (Check::PositiveOrInf, &[1e-300, 1.0, f64::INFINITY], &[0.0, f64::NEG_INFINITY, f64::NAN]),
            (Check::from(1..), &[1.0, 2.0], &[0.0, 0.999, f64::NAN, f64::INFINITY]),
            (Check::from(0.0..=1.0), &[0.0, 1.0], &[-1e-9, 1.1, f64::NAN]),
            (Check::from(0.0..1.0), &[0.0, 0.5], &[1.0, f64::NAN]),
        ];
        for (check, good, bad) in cases {
            assert!(good.iter().all(|x| check.accepts(x)), "{check:?}");
            assert!(bad.iter().all(|x| !check.accepts(x)), "{check:?}");
        }
        let words = Check::OneOf(&["a", "b"]);
        assert!(words.accepts(&"a".to_owned()));
        assert!(!words.accepts(&"A".to_owned()));
    }

    #[test]
    fn limits_read_as_nouns() {
        assert_eq!(Check::from(1..).describe("an integer >= 0"), "an integer >= 1");
        assert_eq!(Check::Positive.describe("a number"), "a number > 0");
        assert_eq!(Check::PositiveOrInf.describe("a number"), "a number > 0 (or `.inf`)");
        assert_eq!(Check::from(0.0..=1.0).describe("a number"), "a number from 0 to 1");
        assert_eq!(Check::OneOf(&["a", "b"]).describe("text"), "one of `a`, `b`");
    }
}
