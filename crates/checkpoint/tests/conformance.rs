//! Every block type of the conformance pack, read through a GGUF file.

use checkpoint::WeightSource;
use checkpoint::gguf::GgufTensorType;
use tensor::DType;
use tensor::ops::nf4;
use testing::conformance::{Cases, conformance_dir};

use crate::gguf_builder::tiny_model;
use crate::read_floats;

fn type_number(name: &str) -> u32 {
    (0..64).find(|number| GgufTensorType(*number).name() == name).unwrap_or_else(|| panic!("unknown type {name}"))
}

#[test]
fn every_type_dequantises_as_the_reference_does() {
    let Some(pack) = conformance_dir() else { return };
    let mut cases = Cases::new("quant");
    for entry in std::fs::read_dir(pack.join("quant")).unwrap() {
        let path = entry.unwrap().path();
        let Some(case) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let file = WeightSource::open_safetensors(&path).unwrap();
        if file.names().any(|name| name.strip_suffix(".raw").is_some()) {
            dequantise(&file);
            cases.ran(case);
        } else if file.get("nf4_table").is_some() {
            pack_in_4_bits(&file);
            cases.ran(case);
        } else {
            cases.skipped(case);
        }
    }
    cases.finish();
}

/// What packing and unpacking make of the file's weights: to the bit in bf16, where every step is rounded.
fn pack_in_4_bits(file: &WeightSource) {
    assert_eq!(read_floats(file, "nf4_table"), nf4::TABLE);
    for (input, output, dtype, bound) in
        [("weight", "dequant_bf16", DType::Bf16, 0.0), ("weight_f32_in", "dequant_f32", DType::F32, 1e-6)]
    {
        let (weights, expected) = (read_floats(file, input), read_floats(file, output));
        let round = dtype.rounding();
        let mut packed = vec![0; nf4::packed_bytes(weights.len())];
        nf4::nf4_quantise(&mut packed, &weights, round);
        let mut found = vec![0.0; weights.len()];
        nf4::nf4_dequantise(&mut found, &packed, round);
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!((found - expected).abs() <= bound, "{output}, weight {i}: expected {expected}, found {found}");
        }
    }
}

/// Each `<type>.raw` of the file becomes `<type>.expected`, to the bit.
fn dequantise(cases: &WeightSource) {
    let kinds: Vec<&str> = cases.names().filter_map(|name| name.strip_suffix(".raw")).collect();
    assert!(!kinds.is_empty());
    let dir = tempfile::tempdir().unwrap();
    for kind in kinds {
        let expected_name = format!("{kind}.expected");
        let expected = read_floats(cases, &expected_name);
        let shape: Vec<u64> = cases.get(&expected_name).unwrap().shape.iter().map(|size| *size as u64).collect();
        let raw = cases.raw(&format!("{kind}.raw")).unwrap();
        let path = dir.path().join(format!("{kind}.gguf"));
        std::fs::write(&path, tiny_model().tensor("output.weight", &shape, type_number(kind), raw).build()).unwrap();
        let source = WeightSource::open_gguf(&path).unwrap();

        let found = read_floats(&source, "lm_head.weight");
        assert_eq!(found.len(), expected.len(), "{kind}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert!(found == expected, "{kind}, element {i}: expected {expected}, found {found}");
        }
        let row = shape[1] as usize;
        let mut second = vec![0; 4 * row];
        source.read_rows_into(&mut second, "lm_head.weight", 1..2, DType::F32).unwrap();
        assert_eq!(crate::floats(&second), expected[row..2 * row], "{kind}");
    }
}
