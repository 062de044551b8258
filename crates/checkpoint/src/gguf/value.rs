//! Metadata values of a GGUF file.

/// One metadata value. Integers of all widths are widened; arrays of numbers keep one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned integer.
    Uint(u64),
    /// A signed integer.
    Int(i64),
    /// An f32.
    F32(f32),
    /// An f64.
    F64(f64),
    /// A truth value.
    Bool(bool),
    /// Text.
    String(String),
    /// Unsigned integers.
    Uints(Vec<u64>),
    /// Signed integers.
    Ints(Vec<i64>),
    /// f32 numbers.
    F32s(Vec<f32>),
    /// f64 numbers.
    F64s(Vec<f64>),
    /// Truth values.
    Bools(Vec<bool>),
    /// Texts.
    Strings(Vec<String>),
    /// Arrays.
    Arrays(Vec<Value>),
}

impl Value {
    /// What kind of value this is, for messages.
    pub(crate) fn kind(&self) -> String {
        match self {
            Self::Uint(value) => format!("the integer {value}"),
            Self::Int(value) => format!("the integer {value}"),
            Self::F32(value) => format!("the number {value}"),
            Self::F64(value) => format!("the number {value}"),
            Self::Bool(value) => format!("{value}"),
            Self::String(_) => "text".into(),
            Self::Uints(_) | Self::Ints(_) => "an array of integers".into(),
            Self::F32s(_) | Self::F64s(_) => "an array of numbers".into(),
            Self::Bools(_) => "an array of truth values".into(),
            Self::Strings(_) => "an array of texts".into(),
            Self::Arrays(_) => "an array of arrays".into(),
        }
    }

    /// A non-negative integer.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Uint(value) => Some(*value),
            Self::Int(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A number. An f32 becomes the f64 of its shortest decimal form, so that 1e-5 stays 1e-5.
    pub(crate) fn as_f64(&self) -> Option<f64> {
        match self {
            Self::F32(value) => Some(shortest(*value)),
            Self::F64(value) => Some(*value),
            _ => self.as_u64().map(|value| value as f64),
        }
    }
}

/// The f64 whose decimal form is the shortest one that gives `value` back as f32.
pub(crate) fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f32_numbers_keep_their_decimal_form() {
        assert_eq!(Value::F32(1e-5).as_f64(), Some(1e-5));
        assert_eq!(Value::F32(100_000.0).as_f64(), Some(100_000.0));
        assert!(Value::F32(f32::NAN).as_f64().unwrap().is_nan());
    }

    #[test]
    fn negative_integers_are_no_counts() {
        assert_eq!(Value::Int(-1).as_u64(), None);
        assert_eq!(Value::Int(3).as_u64(), Some(3));
        assert_eq!(Value::String("3".into()).as_u64(), None);
    }
}
