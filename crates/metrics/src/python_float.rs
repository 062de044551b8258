//! Floats in the form Python prints them, so that logs can be compared with the reference's, character by character.
//!
//! Numbers: the shortest digits that read back as the same f64; scientific form when the decimal exponent is below -4
//!          or at least 16, with a sign and at least two exponent digits; a whole number keeps its `.0`.
//! Source:  the Python language's documentation of `repr(float)`.

/// `repr(value)` as Python 3 prints it. An f32 is widened first (`f64::from`), as the reference does with its losses.
pub fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("`{:e}` always writes an exponent");
    let exponent: i32 = exponent.parse().expect("`{:e}` writes the exponent as an integer");
    if (-4..16).contains(&exponent) {
        format!("{value:?}")
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
