//! Python's way of writing values as text: what `str()` and `repr()` give, which mixed interpolations
//! and printed configs must reproduce.

use crate::node::{Node, Value};

/// Shortest digits that read back as the same number, in Python's layout: `1.0`, `1e-05`, `1e+16`, `inf`, `nan`.
pub fn python_float(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (mantissa, exponent) = scientific.split_once('e').expect("`{:e}` writes an exponent");
    let exponent: i32 = exponent.parse().expect("`{:e}` writes an integer exponent");
    if (-4..16).contains(&exponent) {
        let plain = format!("{x}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.abs())
}

/// Python's `str()` of a value, as it appears in a text that mixes words and `${…}`.
pub(crate) fn python_str(node: &Node) -> String {
    match node.value() {
        Value::String(text) => text.clone(),
        _ => python_repr(node),
    }
}

fn python_repr(node: &Node) -> String {
    match node.value() {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Int(i) => i.to_string(),
        Value::Float(x) => python_float(*x),
        Value::String(text) => python_quoted(text),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(python_repr).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let entries: Vec<String> =
                map.iter().map(|(key, node)| format!("{}: {}", key.python_repr(), python_repr(node))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

fn escaped(c: char) -> String {
    format!("\\x{:02x}", c as u32)
}

/// Python's `repr()` of a string: single quotes unless only double ones avoid escapes.
pub(crate) fn python_quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::from(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push_str(&escaped(c)),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (x, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (1000.0, "1000.0"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (2.5e-7, "2.5e-07"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(python_float(x), text);
        }
    }

    #[test]
    fn strings_are_quoted_as_python_quotes_them() {
        assert_eq!(python_quoted("it's"), "\"it's\"");
        assert_eq!(python_quoted("a\n\\\u{1}"), "'a\\n\\\\\\x01'");
        assert_eq!(python_quoted("'\""), "'\\'\"'");
    }

    #[test]
    fn known_values() {
        let cases: &[(f64, &str)] = &[
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.001, "0.001"),
            (0.1 + 0.2, "0.30000000000000004"),
            (0.0001, "0.0001"),
            (0.000123, "0.000123"),
            (0.00009999, "9.999e-05"),
            (1e-5, "1e-05"),
            (9.549150281252633e-5, "9.549150281252633e-05"),
            (-2.5e-7, "-2.5e-07"),
            (5e-324, "5e-324"),
            (2.2250738585072014e-308, "2.2250738585072014e-308"),
            (1e15, "1000000000000000.0"),
            (9007199254740993.0, "9007199254740992.0"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e16, "1e+16"),
            (1.5e16, "1.5e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e22, "1e+22"),
            (f64::MAX, "1.7976931348623157e+308"),
            (-1e100, "-1e+100"),
            (f64::NAN, "nan"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            // An f32 loss, widened.
            (f64::from(7.742_430_7_f32), "7.742430686950684"),
            (f64::from(0.1_f32), "0.10000000149011612"),
        ];
        for (value, text) in cases {
            assert_eq!(python_float(*value), *text);
        }
    }

    #[test]
    fn reads_back_as_the_same_number() {
        let mut bits: u64 = 0x9E37_79B9_7F4A_7C15;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let value = f64::from_bits(bits);
            if value.is_finite() {
                let text = python_float(value);
                let back: f64 = text.parse().expect("Rust reads Python's form");
                assert_eq!(back.to_bits(), value.to_bits(), "{text}");
            }
        }
    }
}
