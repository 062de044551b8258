//! Fake quantisation against torchao 0.9.0, bit for bit.
//!
//! `testdata/golden/fake_quantise.safetensors` holds inputs `x` (9, 64) and `w` (8, 64) in f32 and bf16, with rows of zeros, of one sign, tiny,
//! huge, alike, and what `FakeQuantizer` makes of them with the configs of `Int8DynActInt4WeightQATQuantizer(groupsize=32)` (`rows`, `int8int4`)
//! and in `Int4WeightOnlyQATLinear` with the same groups (`int4`).

use std::path::Path;

use safetensors::SafeTensors;
use tensor::ops::fake_quantise::{FakeQuant, Scheme};
use tensor::{Backend, DType, Tensor};

#[test]
fn fake_quantisation_has_the_bits_of_torchao() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/golden/fake_quantise.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    for isa in cpu::Isa::available() {
        let backend: &dyn Backend = &super::backend(2, isa);
        for (name, dtype) in [("f32", DType::F32), ("bf16", DType::Bf16)] {
            let stored = |part: &str| golden.tensor(&format!("{part}.{name}")).unwrap();
            let input = |part: &str| -> Tensor {
                let stored = stored(part);
                let mut tensor = backend.alloc(tensor::Shape::new(stored.shape()), dtype).unwrap();
                backend.upload(&mut tensor, stored.data()).unwrap();
                tensor
            };
            let check = |part: &str, y: &Tensor| {
                let values = |bytes: &[u8]| -> Vec<f32> {
                    match dtype {
                        DType::F32 => {
                            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
                        }
                        _ => bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
                    }
                };
                let (found, expected) = (backend.to_f32(y).unwrap(), values(stored(part).data()));
                for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    // Zeros of either sign are alike.
                    assert!(found == expected, "{part}, {name}, {isa:?}, element {at}: {found}, expected {expected}");
                }
                assert_eq!(found.len(), expected.len());
            };
            let (x, w) = (input("x"), input("w"));
            let mut y = backend.alloc(x.shape(), dtype).unwrap();
            backend.fake_quantise_rows(&mut y, &x).unwrap();
            check("rows", &y);
            let mut y = backend.alloc(w.shape(), dtype).unwrap();
            for (part, scheme) in [("int8int4", Scheme::Int8Int4), ("int4", Scheme::Int4)] {
                backend.fake_quantise_groups(&mut y, &w, FakeQuant { scheme, group_size: 32 }).unwrap();
                check(part, &y);
            }
        }
    }
}
