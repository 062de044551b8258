//! Tables of weights in 4 bits.
//!
//! Numbers: the same bytes and bits as the reference, which rounds after every step.

use tensor::ops::nf4::{self, packed_bytes};
use tensor::{Backend, DType};

use super::case::{Output, Table, Wrong, table};

/// None, one, blocks and groups of them, one more or less, enough for several tasks.
const LENGTHS: &[usize] = &[0, 1, 63, 64, 65, 127, 16_383, 16_384, 16_385, 100_003];

/// Weights of blocks of unlike sizes, some of them nothing but zeros.
fn weights(t: &mut Table<'_>, len: usize) -> Vec<f64> {
    let sizes = t.values_of(DType::F32, len.div_ceil(nf4::BLOCK), 1.0);
    let size = |i: usize| if i / nf4::BLOCK % 5 == 3 { 0.0 } else { sizes[i / nf4::BLOCK] };
    t.values(len, 1.0).into_iter().enumerate().map(|(i, v)| v * size(i)).collect()
}

fn pack(dtype: DType, w: &[f64]) -> Vec<u8> {
    let w: Vec<f32> = w.iter().map(|&w| w as f32).collect();
    let mut packed = vec![0; packed_bytes(w.len())];
    nf4::nf4_quantise(&mut packed, &w, dtype.rounding());
    packed
}

fn as_values(bytes: &[u8]) -> Vec<f64> {
    bytes.iter().map(|&byte| f64::from(byte)).collect()
}

/// Packing.
pub fn check_nf4_quantise(backend: &dyn Backend, dtype: DType) {
    table("nf4_quantise", backend, dtype, |t| {
        for &len in LENGTHS {
            t.case(format!("{len} weights"));
            let values = weights(t, len);
            let w = t.floats(&[len], dtype, &values);
            let bytes = pack(dtype, &w.values);
            let packed = Output::new("packed", &[bytes.len()], DType::U8, &as_values(&bytes));
            t.run(&[packed], |[packed]| backend.nf4_quantise(packed, &w.tensor));
        }
        t.case("nothing but zeros");
        let w = t.floats(&[200], dtype, &[0.0; 200]);
        let bytes = pack(dtype, &w.values);
        let packed = Output::new("packed", &[bytes.len()], DType::U8, &as_values(&bytes));
        t.run(&[packed], |[packed]| backend.nf4_quantise(packed, &w.tensor));

        t.case("a weight that is no number");
        let mut values = weights(t, 200);
        values[70] = f64::NAN;
        let w = t.floats(&[200], dtype, &values);
        let bytes = pack(dtype, &w.values);
        let mut back = vec![0.0; 200];
        nf4::nf4_dequantise(&mut back, &bytes, dtype.rounding());
        t.check(back[70].is_nan(), "the reference makes a number of it");
        let packed = Output::new("packed", &[bytes.len()], DType::U8, &as_values(&bytes));
        t.run(&[packed], |[packed]| backend.nf4_quantise(packed, &w.tensor));

        let (w, int) = (t.any(&[4, 32], dtype), t.any(&[4, 32], DType::I32));
        let (short, right) = ([packed_bytes(128) - 1], [packed_bytes(128)]);
        t.refuse(Wrong::Shape("packed"), [(&short, DType::U8)], |[packed]| backend.nf4_quantise(packed, &w));
        t.refuse(Wrong::DType("packed"), [(&right, DType::I32)], |[packed]| backend.nf4_quantise(packed, &w));
        t.refuse(Wrong::DType("w"), [(&right, DType::U8)], |[packed]| backend.nf4_quantise(packed, &int));
    });
}

/// Unpacking.
pub fn check_nf4_dequantise(backend: &dyn Backend, dtype: DType) {
    table("nf4_dequantise", backend, dtype, |t| {
        for &len in LENGTHS {
            t.case(format!("{len} weights"));
            let values = weights(t, len);
            let bytes = pack(dtype, &t.floats(&[len], dtype, &values).values);
            let mut expected = vec![0.0f32; len];
            nf4::nf4_dequantise(&mut expected, &bytes, dtype.rounding());
            let tensor = t.bytes(&bytes);
            let same = move |found: &[f64]| match found.iter().zip(&expected).position(|(f, e)| *f != f64::from(*e)) {
                Some(i) => Err(format!("weight {i}: expected {}, found {}", expected[i], found[i])),
                None => Ok(()),
            };
            t.run(&[Output::judged("w", &[len], dtype, same)], |[w]| backend.nf4_dequantise(w, &tensor));
        }
        let packed = t.bytes(&vec![0; packed_bytes(128)]);
        t.refuse(Wrong::Shape("packed"), [(&[3, 32], dtype)], |[w]| backend.nf4_dequantise(w, &packed));
        t.refuse(Wrong::DType("w"), [(&[4, 32], DType::I32)], |[w]| backend.nf4_dequantise(w, &packed));
    });
}
