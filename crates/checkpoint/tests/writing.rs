//! Writing safetensors: what is written is read back the same by an independent reader and by ours.

use std::collections::BTreeMap;
use std::fs;

use checkpoint::{
    CheckpointFiles, Error, INDEX_FILE, TensorSink, TensorSpec, WeightSource, write_model, write_safetensors,
};
use proptest::prelude::*;
use safetensors::SafeTensors;
use tensor::DType;

fn spec(name: &str, dtype: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: shape.into() }
}

fn seven(spec: &TensorSpec, sink: &mut TensorSink<'_>) -> Result<(), Error> {
    sink.write(&vec![7; spec.size_bytes() as usize])
}

#[test]
fn the_file_is_what_hugging_face_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let specs = [spec("half", DType::Bf16, &[3]), spec("full", DType::F32, &[2, 2]), spec("none", DType::F32, &[0, 4])];
    let record = write_safetensors(&path, &specs, &mut seven).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert_eq!((record.bytes, record.crc32), (bytes.len() as u64, crc32fast::hash(&bytes)));
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("full").unwrap().shape(), [2, 2]);
    assert_eq!(file.tensor("half").unwrap().dtype(), safetensors::Dtype::BF16);
    assert_eq!(metadata.info("full").unwrap().data_offsets.0 % 4, 0, "wide elements are aligned");
}

#[test]
fn a_tensor_of_the_wrong_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let specs = [spec("w", DType::F32, &[2])];
    for (count, name) in [(7, "short"), (9, "long")] {
        let error =
            write_safetensors::<Error>(&dir.path().join(name), &specs, &mut |_, sink| sink.write(&vec![0; count]));
        assert_eq!(
            error.unwrap_err().to_string(),
            format!("tensor `w` was written with the wrong size\n  expected 8 bytes, found {count}")
        );
    }
}

#[test]
fn a_name_twice_and_an_existing_file_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let twice = [spec("w", DType::F32, &[1]), spec("w", DType::F32, &[1])];
    assert!(matches!(write_safetensors(&path, &twice, &mut seven), Err(Error::WrittenTwice { .. })));
    fs::write(&path, b"precious").unwrap();
    assert!(matches!(write_safetensors(&path, &twice[..1], &mut seven), Err(Error::Io { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn errors_of_whoever_has_the_bytes_come_through() {
    #[derive(Debug)]
    enum Mine {
        Device,
        Files,
    }
    impl From<Error> for Mine {
        fn from(_: Error) -> Self {
            Self::Files
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let specs = [spec("w", DType::F32, &[1])];
    let failing = write_safetensors(&dir.path().join("a"), &specs, &mut |_, _| Err(Mine::Device));
    assert!(matches!(failing, Err(Mine::Device)));
    let nowhere = write_safetensors::<Mine>(&dir.path().join("no/b"), &specs, &mut |_, _| Ok(()));
    assert!(matches!(nowhere, Err(Mine::Files)));
}

fn dtypes() -> impl Strategy<Value = DType> {
    prop_oneof![Just(DType::F32), Just(DType::Bf16), Just(DType::I32)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_is_written_is_read_back(
        shapes in proptest::collection::vec((dtypes(), proptest::collection::vec(0usize..5, 0..4)), 1..8),
        limit in 1u64..400,
        piece in 1usize..50,
        seed: u8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let specs: Vec<TensorSpec> =
            shapes.into_iter().enumerate().map(|(i, (dtype, shape))| spec(&format!("t{i}"), dtype, &shape)).collect();
        let data: BTreeMap<&str, Vec<u8>> = specs
            .iter()
            .enumerate()
            .map(|(i, s)| (s.name.as_str(), (0..s.size_bytes()).map(|k| (k as u8).wrapping_mul(31) ^ seed ^ i as u8).collect()))
            .collect();
        let written = write_model::<Error>(dir.path(), &specs, limit, &mut |spec, sink| {
            data[spec.name.as_str()].chunks(piece).try_for_each(|piece| sink.write(piece))
        })
        .unwrap();

        // An independent reader.
        let mut seen = BTreeMap::new();
        for (name, record) in &written {
            let bytes = fs::read(dir.path().join(name)).unwrap();
            prop_assert_eq!(record.crc32, crc32fast::hash(&bytes));
            if name == INDEX_FILE {
                let index: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                prop_assert_eq!(index["weight_map"].as_object().unwrap().len(), specs.len());
                let total: u64 = specs.iter().map(TensorSpec::size_bytes).sum();
                prop_assert_eq!(&index["metadata"]["total_size"], total);
                continue;
            }
            for (tensor, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                seen.insert(tensor, (view.shape().to_vec(), view.data().to_vec()));
            }
        }
        prop_assert_eq!(seen.len(), specs.len());
        for spec in &specs {
            prop_assert_eq!(&seen[&spec.name], &(spec.shape.clone(), data[spec.name.as_str()].clone()));
        }

        // Ours.
        let source = WeightSource::open_folder(dir.path(), &CheckpointFiles::Found).unwrap();
        for spec in &specs {
            prop_assert_eq!(&source.get(&spec.name).unwrap().shape, &spec.shape);
            prop_assert_eq!(&source.read(&spec.name, spec.dtype).unwrap(), &data[spec.name.as_str()]);
        }
    }
}
