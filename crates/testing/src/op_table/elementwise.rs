//! Tables of sums of tensors, of the soft cap and of the sum of squares.
//!
//! Numbers: sums and caps within [`nmse_bound`](super::nmse_bound); the sum of squares within 1e-6 of itself.

use tensor::ops::elementwise;
use tensor::{Backend, DType};

use super::case::{Output, Wrong, table};

const SHAPES: &[&[usize]] = &[&[0], &[1], &[3], &[0, 7], &[17, 3], &[2, 3, 5, 7], &[33, 65], &[129, 511]];

/// `y = a + b`.
pub fn check_add(backend: &dyn Backend, dtype: DType) {
    table("add", backend, dtype, |t| {
        for &shape in SHAPES {
            t.case(format!("{shape:?}"));
            let (a, b) = (t.normal(shape, 1.0), t.normal(shape, 1.0));
            let mut y = vec![0.0; a.values.len()];
            elementwise::add(&mut y, &a.values, &b.values);
            t.run(&[Output::new("y", shape, dtype, &y)], |[y]| backend.add(y, &a.tensor, &b.tensor));
        }
        t.case("NaN and infinities");
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let (a, b) =
            (t.floats(&[5], dtype, &[inf, inf, nan, 1.0, -inf]), t.floats(&[5], dtype, &[1.0, -inf, 1.0, nan, 0.0]));
        let y = Output::new("y", &[5], dtype, &[inf, nan, nan, nan, -inf]);
        t.run(&[y], |[y]| backend.add(y, &a.tensor, &b.tensor));

        let (a, y, other) = (t.any(&[3, 4], dtype), (&[3, 4][..], dtype), t.other_dtype());
        let (turned, cast, int) = (t.any(&[4, 3], dtype), t.any(&[3, 4], other), t.any(&[3, 4], DType::I32));
        let foreign = t.elsewhere(&[3, 4], dtype);
        t.refuse(Wrong::Shape("b"), [y], |[y]| backend.add(y, &a, &turned));
        t.refuse(Wrong::Shape("y"), [(&[12], dtype)], |[y]| backend.add(y, &a, &a));
        t.refuse(Wrong::DType("b"), [y], |[y]| backend.add(y, &a, &cast));
        t.refuse(Wrong::DType("a"), [y], |[y]| backend.add(y, &int, &a));
        t.refuse(Wrong::DType("y"), [(&[3, 4], other)], |[y]| backend.add(y, &a, &a));
        t.refuse(Wrong::Device, [y], |[y]| backend.add(y, &a, &foreign));
    });
}

/// `y += x`.
pub fn check_add_in_place(backend: &dyn Backend, dtype: DType) {
    table("add_in_place", backend, dtype, |t| {
        for &shape in SHAPES {
            for &out in t.output_dtypes() {
                t.case(format!("{shape:?} into {out}"));
                let x = t.normal(shape, 1.0);
                let start = t.values_of(out, x.values.len(), 1.0);
                let mut y = start.clone();
                elementwise::add_in_place(&mut y, &x.values);
                let y = Output::new("y", shape, out, &y).starting_at(&start);
                t.run(&[y], |[y]| backend.add_in_place(y, &x.tensor));
            }
        }
        let (x, int) = (t.any(&[3, 4], dtype), t.any(&[3, 4], DType::I32));
        t.refuse(Wrong::Shape("y"), [(&[4, 3], dtype)], |[y]| backend.add_in_place(y, &x));
        t.refuse(Wrong::DType("y"), [(&[3, 4], DType::I32)], |[y]| backend.add_in_place(y, &x));
        t.refuse(Wrong::DType("x"), [(&[3, 4], dtype)], |[y]| backend.add_in_place(y, &int));
        if dtype == DType::F32 {
            t.refuse(Wrong::DType("y"), [(&[3, 4], DType::Bf16)], |[y]| backend.add_in_place(y, &x));
        }
    });
}

/// `y = cap tanh(y / cap)`.
pub fn check_soft_cap_in_place(backend: &dyn Backend, dtype: DType) {
    table("soft_cap_in_place", backend, dtype, |t| {
        for &shape in SHAPES {
            for (cap, std_dev) in [(30.0f32, 20.0), (0.5, 1.0), (50.0, 0.01)] {
                t.case(format!("{shape:?}, cap {cap} on values of {std_dev}"));
                let start = t.normal(shape, std_dev).values;
                let mut y = start.clone();
                elementwise::soft_cap_in_place(&mut y, cap.into());
                let y = Output::new("y", shape, dtype, &y).starting_at(&start);
                t.run(&[y], |[y]| backend.soft_cap_in_place(y, cap));
            }
        }
        t.case("NaN and infinities");
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let y = Output::new("y", &[3], dtype, &[2.0, nan, -2.0]).starting_at(&[inf, nan, -inf]);
        t.run(&[y], |[y]| backend.soft_cap_in_place(y, 2.0));
        t.refuse(Wrong::DType("y"), [(&[3, 4], DType::I32)], |[y]| backend.soft_cap_in_place(y, 1.0));
    });
}

/// The sum of the squares of all elements.
pub fn check_sum_of_squares(backend: &dyn Backend, dtype: DType) {
    table("sum_of_squares", backend, dtype, |t| {
        for len in [0, 1, 3, 17, 65, 129, 4097, 100_003] {
            t.case(format!("{len} elements"));
            let x = t.normal(&[len], 1.0);
            let expected = elementwise::sum_of_squares(&x.values);
            match (backend.sum_of_squares(&x.tensor), backend.sum_of_squares(&x.tensor)) {
                (Ok(found), Ok(again)) => {
                    t.check(
                        (found - expected).abs() <= 1e-6 * expected,
                        &format!("expected {expected}, found {found}"),
                    );
                    t.check(found.to_bits() == again.to_bits(), "two equal calls gave different bits");
                }
                (Err(error), _) | (_, Err(error)) => t.fail(format!("refused: {error}")),
            }
        }
        for (special, expected) in [(f64::NAN, f64::NAN), (f64::NEG_INFINITY, f64::INFINITY)] {
            t.case(format!("one element is {special}"));
            let mut values = t.values(33, 1.0);
            values[20] = special;
            let found = backend.sum_of_squares(&t.floats(&[33], dtype, &values).tensor);
            let same = |found: f64| found == expected || (found.is_nan() && expected.is_nan());
            t.check(found.as_ref().is_ok_and(|&found| same(found)), &format!("expected {expected}, found {found:?}"));
        }
        let int = t.any(&[3], DType::I32);
        t.refuse(Wrong::DType("x"), [], |[]| backend.sum_of_squares(&int).map(drop));
    });
}
