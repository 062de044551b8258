//! Plain YAML scalars to typed values, by the rules of YAML 1.1 as OmegaConf's loader applies them.
//!
//! | kind   | spellings |
//! |--------|-----------|
//! | null   | `~`, `null`, `Null`, `NULL`, nothing at all |
//! | bool   | `yes no true false on off`, also capitalised or in capitals; `y` and `n` are strings |
//! | int    | `10`, `+1_000`, `0x1F`, `0b101`, octal `017`, base 60 `1:30` |
//! | float  | `1.`, `.5`, `1e-5`, `1.5E+3`, `1_0.5`, base 60 `1:30.5`, `.inf`, `-.inf`, `.nan` |
//! | string | everything else: dates, `nan`, `0o17`, `08`, `-.5`, `None` |
//!
//! Numbers: integers are kept exactly up to 127 bits; a longer one stays a string, so that a field that wants an
//! integer refuses it by name.

use crate::node::Value;

/// The value of a plain (unquoted) scalar.
pub fn resolve_plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Value::Bool(true),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Value::Bool(false),
        _ if !text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) => Value::String(text.to_owned()),
        _ => {
            let number = parse_int(text).map(Value::Int).or_else(|| parse_float(text).map(Value::Float));
            number.unwrap_or_else(|| Value::String(text.to_owned()))
        }
    }
}

/// An integer in any of its spellings.
pub(crate) fn parse_int(text: &str) -> Option<i128> {
    let (negative, body) = split_sign(text);
    let magnitude = if let Some(digits) = body.strip_prefix("0b") {
        radix(digits, 2)?
    } else if let Some(digits) = body.strip_prefix("0x") {
        radix(digits, 16)?
    } else if body == "0" {
        0
    } else if body.starts_with('0') {
        radix(body, 8)?
    } else if body.contains(':') {
        base_60(body)?
    } else {
        body.starts_with(|c: char| c.is_ascii_digit()).then(|| radix(body, 10)).flatten()?
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// A float in any of its spellings; integers are not floats here.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let (negative, body) = split_sign(text);
    let signed = |x: f64| if negative { -x } else { x };
    match body {
        ".inf" | ".Inf" | ".INF" => return Some(signed(f64::INFINITY)),
        ".nan" | ".NaN" | ".NAN" if body.len() == text.len() => return Some(f64::NAN),
        _ => {}
    }
    let unsigned = body.len() == text.len();
    if body.contains(':') {
        return base_60_float(body).map(signed);
    }
    let (mantissa, exponent) = match body.find(['e', 'E']) {
        Some(at) => (&body[..at], Some(&body[at + 1..])),
        None => (body, None),
    };
    if let Some(exponent) = exponent {
        let (_, digits) = split_sign(exponent);
        if !all_digits(digits) {
            return None;
        }
    }
    match mantissa.split_once('.') {
        // `.5` takes no sign, and its exponent must have one.
        Some(("", fraction)) => {
            let signed_exponent = exponent.is_none_or(|e| e.starts_with(['+', '-']));
            if !unsigned || !signed_exponent || !digits_or_underscores(fraction) || all_underscores(fraction) {
                return None;
            }
        }
        Some((whole, fraction)) => {
            if !number_body(whole) || !(fraction.is_empty() || digits_or_underscores(fraction)) {
                return None;
            }
        }
        None if exponent.is_some() && number_body(mantissa) => {}
        None => return None,
    }
    body.replace('_', "").parse().ok().map(signed)
}

fn split_sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn radix(digits: &str, radix: u32) -> Option<i128> {
    if digits.is_empty() || !digits.chars().all(|c| c == '_' || c.is_digit(radix)) {
        return None;
    }
    i128::from_str_radix(&digits.replace('_', ""), radix).ok()
}

/// `h:m:s` with the first group not starting with zero and the others below 60.
fn base_60(body: &str) -> Option<i128> {
    let mut groups = body.split(':');
    let first = groups.next()?;
    if first.starts_with('0') || !number_body(first) {
        return None;
    }
    let mut total = radix(first, 10)?;
    for group in groups {
        total = total.checked_mul(60)?.checked_add(i128::from(sixty(group)?))?;
    }
    Some(total)
}

fn base_60_float(body: &str) -> Option<f64> {
    let (whole, fraction) = body.split_once('.')?;
    if !(fraction.is_empty() || digits_or_underscores(fraction)) {
        return None;
    }
    let mut groups = whole.split(':');
    let first = groups.next()?;
    if !number_body(first) {
        return None;
    }
    let mut total: f64 = first.replace('_', "").parse().ok()?;
    for group in groups {
        total = total * 60.0 + f64::from(sixty(group)?);
    }
    let fraction: f64 = format!("0.{}", fraction.replace('_', "")).parse().ok()?;
    Some(total + fraction)
}

fn sixty(group: &str) -> Option<u8> {
    let value: u8 = if matches!(group.len(), 1 | 2) && all_digits(group) { group.parse().ok()? } else { return None };
    (value < 60).then_some(value)
}

fn all_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn digits_or_underscores(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'_')
}

fn all_underscores(text: &str) -> bool {
    text.bytes().all(|b| b == b'_')
}

fn number_body(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit()) && digits_or_underscores(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_and_bools() {
        for text in ["", "~", "null", "Null", "NULL"] {
            assert_eq!(resolve_plain(text), Value::Null, "{text}");
        }
        for text in ["yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"] {
            assert_eq!(resolve_plain(text), Value::Bool(true), "{text}");
        }
        for text in ["no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"] {
            assert_eq!(resolve_plain(text), Value::Bool(false), "{text}");
        }
    }

    #[test]
    fn integers() {
        for (text, value) in [
            ("0", 0),
            ("-0", 0),
            ("1", 1),
            ("+5", 5),
            ("-1", -1),
            ("1_000", 1000),
            ("0x10", 16),
            ("0x1F", 31),
            ("-0x1f", -31),
            ("0b101", 5),
            ("010", 8),
            ("017", 15),
            ("0_7", 7),
            ("0_", 0),
            ("00", 0),
            ("1:30", 90),
            ("-1:30", -90),
            ("12:30:45", 45045),
            ("18446744073709551615", u64::MAX.into()),
        ] {
            assert_eq!(resolve_plain(text), Value::Int(value), "{text}");
        }
    }

    #[test]
    fn floats() {
        for (text, value) in [
            ("1.0", 1.0),
            ("1.", 1.0),
            (".5", 0.5),
            ("1e-4", 1e-4),
            ("1E4", 1e4),
            ("+1e3", 1e3),
            ("2e5", 2e5),
            ("1.5e+3", 1500.0),
            ("1.0e-5", 1e-5),
            ("12e03", 12000.0),
            ("0.1_2", 0.12),
            ("1_0.5_0", 10.5),
            ("09.5", 9.5),
            ("-2.5", -2.5),
            ("1:30.5", 90.5),
            ("-1:30.", -90.0),
            (".inf", f64::INFINITY),
            ("+.Inf", f64::INFINITY),
            ("-.INF", f64::NEG_INFINITY),
            (".NaN", f64::NAN),
        ] {
            assert_eq!(resolve_plain(text), Value::Float(value), "{text}");
        }
    }

    #[test]
    fn everything_else_is_a_string() {
        for text in [
            "y",
            "n",
            "none",
            "None",
            "NONE",
            "nan",
            "inf",
            "+inf",
            "NaN",
            "0o17",
            "08",
            "09",
            "1e5_0",
            "1e",
            "e5",
            "-.5",
            ".5e3",
            "-.nan",
            ".",
            "-",
            "+",
            "..",
            "1.2.3",
            "2024-01-01",
            "2024-01-01 10:00:00",
            "1:60",
            "0:30",
            "1:",
            "0x",
            "0b2",
            "1__e",
            "/tmp/x",
            "torch.optim.AdamW",
            "tRue",
            "._",
            "1,2",
            "12:30:45:",
            "0xg",
            "1 2",
            "\u{661}",
        ] {
            assert_eq!(resolve_plain(text), Value::String(text.to_owned()), "{text}");
        }
        let long = "9".repeat(60);
        assert_eq!(resolve_plain(&long), Value::String(long.clone()));
    }
}
