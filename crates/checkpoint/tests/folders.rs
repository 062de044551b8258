//! Folders of safetensors: which files are read, and what is said when they do not fit together.

use std::fs;
use std::path::Path;

use checkpoint::{
    CheckpointFiles, Error, ExpectedTensor, INDEX_FILE, Stored, WeightSource, match_names, read_config_json,
};
use serde_json::json;
use tensor::DType;

use crate::{chain, f32_bytes, read_floats, safetensors_bytes, write_f32};

fn found(dir: &Path) -> checkpoint::Result<WeightSource> {
    WeightSource::open_folder(dir, &CheckpointFiles::Found)
}

fn listed(dir: &Path, names: &[&str]) -> checkpoint::Result<WeightSource> {
    WeightSource::open_folder(dir, &CheckpointFiles::Listed(names.iter().map(|name| (*name).into()).collect()))
}

fn write_index(dir: &Path, map: &[(&str, &str)]) {
    let map: serde_json::Map<_, _> = map.iter().map(|(tensor, file)| ((*tensor).into(), json!(file))).collect();
    fs::write(dir.join(INDEX_FILE), json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string()).unwrap();
}

/// Three shards of two tensors each, and their index.
fn sharded(dir: &Path) {
    let mut map = Vec::new();
    for shard in 1..=3 {
        let file = format!("model-0000{shard}-of-00003.safetensors");
        let names = [format!("a{shard}"), format!("b{shard}")];
        write_f32(&dir.join(&file), &[(&names[0], 2, shard as f32), (&names[1], 1, -(shard as f32))]);
        map.extend(names.map(|name| (name, file.clone())));
    }
    let map: Vec<(&str, &str)> = map.iter().map(|(name, file)| (name.as_str(), file.as_str())).collect();
    write_index(dir, &map);
}

#[test]
fn a_single_file_is_found_without_an_index() {
    let dir = tempfile::tempdir().unwrap();
    write_f32(&dir.path().join("model.safetensors"), &[("w", 3, 1.5)]);
    let source = found(dir.path()).unwrap();
    assert_eq!(read_floats(&source, "w"), [1.5; 3]);
    assert!(source.notices().is_empty());
    assert_eq!(source.dominant_dtype(), Some(DType::F32));
}

#[test]
fn an_index_leads_to_its_shards_whatever_they_are_called() {
    let dir = tempfile::tempdir().unwrap();
    sharded(dir.path());
    let source = found(dir.path()).unwrap();
    assert_eq!(source.tensors().len(), 6);
    assert_eq!(read_floats(&source, "a3"), [3.0; 2]);

    let other = tempfile::tempdir().unwrap();
    write_f32(&other.path().join("consolidated-x.safetensors"), &[("w", 1, 2.0)]);
    write_index(other.path(), &[("w", "consolidated-x.safetensors")]);
    assert_eq!(read_floats(&found(other.path()).unwrap(), "w"), [2.0]);
}

#[test]
fn a_missing_shard_is_named_with_its_tensors() {
    let dir = tempfile::tempdir().unwrap();
    sharded(dir.path());
    fs::remove_file(dir.path().join("model-00002-of-00003.safetensors")).unwrap();
    let error = found(dir.path()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no file `model-00002-of-00003.safetensors` in `{}`\n  named by `model.safetensors.index.json` for 2 tensors, \
             the first is `a2`",
            dir.path().display()
        )
    );
    assert!(error.hint().unwrap().contains("download"));
    let same = listed(dir.path(), &["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors"]);
    assert_eq!(same.unwrap_err().to_string(), error.to_string());
}

#[test]
fn a_stale_index_says_how_many_more_are_missing() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["x.safetensors", "y.safetensors"] {
        write_f32(&dir.path().join(file), &[("w", 1, 1.0)]);
    }
    write_index(
        dir.path(),
        &[("a", "1.safetensors"), ("b", "2.safetensors"), ("c", "3.safetensors"), ("d", "3.safetensors")],
    );
    let message = found(dir.path()).unwrap_err().to_string();
    assert!(message.starts_with("no file `1.safetensors`"), "{message}");
    assert!(message.ends_with("2 more files named there are missing too"), "{message}");
}

#[test]
fn a_stray_single_file_beside_shards_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    sharded(dir.path());
    let bf16 = vec![0x80, 0x3f];
    let stray = safetensors_bytes(&[("stray", "BF16", &[1], bf16)]);
    fs::write(dir.path().join("model.safetensors"), stray).unwrap();
    let source = found(dir.path()).unwrap();
    assert!(source.get("stray").is_none());
    assert_eq!(source.notices(), ["`model.safetensors` is ignored: `model.safetensors.index.json` does not name it"]);
}

#[test]
fn pickles_alone_are_said_to_be_pickles() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("pytorch_model.bin"), b"PK").unwrap();
    let error = found(dir.path()).unwrap_err();
    assert!(matches!(error, Error::OnlyPickle { .. }), "{error}");
    assert!(error.hint().unwrap().contains("safe_serialization=True"));
    // With an index for safetensors that are not there, and with a list of them, it is the same.
    write_index(dir.path(), &[("w", "model-00001-of-00001.safetensors")]);
    assert!(matches!(found(dir.path()), Err(Error::OnlyPickle { .. })));
    assert!(matches!(listed(dir.path(), &["model.safetensors"]), Err(Error::OnlyPickle { .. })));
    assert!(matches!(listed(dir.path(), &["pytorch_model.bin"]), Err(Error::FileKind { .. })));
}

#[test]
fn a_folder_without_weights_lists_candidates() {
    let dir = tempfile::tempdir().unwrap();
    assert!(found(dir.path()).unwrap_err().to_string().ends_with("found nothing"));
    write_f32(&dir.path().join("other.safetensors"), &[("w", 1, 1.0)]);
    let error = found(dir.path()).unwrap_err();
    assert_eq!(error.hint().unwrap(), "name the files: `checkpointer.checkpoint_files=[other.safetensors]`");
    assert!(listed(dir.path(), &["other.safetensors"]).is_ok());
    let absent = found(&dir.path().join("absent")).unwrap_err();
    assert!(absent.to_string().contains("given as `checkpointer.checkpoint_dir`"));
}

#[test]
fn a_listed_file_that_is_not_there_is_named_with_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    write_f32(&dir.path().join("model.safetensors"), &[("w", 1, 1.0)]);
    let error = listed(dir.path(), &["model.safetensors", "nope.safetensors"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("no file `nope.safetensors` in `{}`\n  named by `checkpointer.checkpoint_files`", dir.path().display())
    );
}

#[test]
fn an_index_must_agree_with_its_files() {
    let dir = tempfile::tempdir().unwrap();
    write_f32(&dir.path().join("a.safetensors"), &[("w", 1, 1.0), ("x", 1, 1.0)]);
    write_index(dir.path(), &[("w", "a.safetensors"), ("v", "a.safetensors")]);
    let error = found(dir.path()).unwrap_err();
    assert!(error.to_string().starts_with("no tensor `v` in"), "{error}");
    write_index(dir.path(), &[("w", "a.safetensors")]);
    let source = found(dir.path()).unwrap();
    assert_eq!(
        source.notices(),
        [
            "`model.safetensors.index.json` leaves out 1 tensor of its files, the first is `x`; they are read all the same"
        ]
    );
}

#[test]
fn an_index_may_not_lead_out_of_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    for bad in ["../a.safetensors", "/etc/passwd", "sub/a.safetensors", ".", ""] {
        write_index(dir.path(), &[("w", bad)]);
        assert!(matches!(found(dir.path()), Err(Error::IndexFileName { .. })), "{bad}");
    }
    fs::write(dir.path().join(INDEX_FILE), "{").unwrap();
    assert!(matches!(found(dir.path()), Err(Error::Json { .. })));
    fs::write(dir.path().join(INDEX_FILE), r#"{"weight_map": {"w": 3}}"#).unwrap();
    assert!(matches!(found(dir.path()), Err(Error::IndexFileName { .. })));
}

#[test]
fn the_same_tensor_in_two_files_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for file in ["a.safetensors", "b.safetensors"] {
        write_f32(&dir.path().join(file), &[("w", 1, 1.0)]);
    }
    let error = listed(dir.path(), &["a.safetensors", "b.safetensors"]).unwrap_err();
    assert_eq!(error.to_string(), "tensor `w` is in two files: `a.safetensors` and `b.safetensors`");
}

#[test]
fn quantised_weights_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let int8 = safetensors_bytes(&[
        ("model.layers.0.mlp.up_proj.weight", "I8", &[4], vec![1; 4]),
        ("model.layers.0.mlp.up_proj.SCB", "F32", &[1], f32_bytes(1.0, 1)),
    ]);
    fs::write(&path, int8).unwrap();
    let error = found(dir.path()).unwrap_err();
    assert!(error.to_string().contains("is already quantised\n  expected F32, BF16, F16 or F64, found I8"), "{error}");
    fs::write(&path, safetensors_bytes(&[("l.qweight", "I32", &[1], vec![0; 4])])).unwrap();
    assert!(matches!(found(dir.path()), Err(Error::Quantised { .. })));
    fs::write(&path, safetensors_bytes(&[("attn.bias", "BOOL", &[4], vec![1; 4])])).unwrap();
    assert!(found(dir.path()).is_ok());
}

#[test]
fn a_damaged_file_is_named_with_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write_f32(&path, &[("w", 3, 1.5)]);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = found(dir.path()).unwrap_err();
    assert_eq!(
        chain(&error),
        format!(
            "malformed safetensors file `{}`\n  truncated file: expected {} bytes, found {}",
            path.display(),
            whole.len(),
            whole.len() - 1
        )
    );
    assert!(error.hint().unwrap().contains("download it again"));
}

#[test]
fn reads_are_checked_before_they_convert() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    let ints: Vec<u8> = [7i32, -7].iter().flat_map(|value| value.to_le_bytes()).collect();
    let entries = [
        ("layers.w", "F32", &[2usize, 3][..], f32_bytes(1.0, 6)),
        ("ids", "I32", &[2], ints),
        ("b", "I64", &[1], vec![0; 8]),
    ];
    fs::write(&path, safetensors_bytes(&entries)).unwrap();
    let source = found(dir.path()).unwrap();
    assert_eq!(source.tensor("layers.w").unwrap().row_elements(), 3);
    let mut row = [0; 12];
    source.read_rows_into(&mut row, "layers.w", 1..2, DType::F32).unwrap();
    assert!(matches!(source.read_rows_into(&mut row, "layers.w", 2..3, DType::F32), Err(Error::Range { .. })));
    assert!(matches!(source.read_rows_into(&mut row, "layers.w", 0..usize::MAX, DType::F32), Err(Error::Range { .. })));
    assert!(matches!(
        source.read_rows_into(&mut row, "layers.w", 0..2, DType::F32),
        Err(Error::DestinationSize { .. })
    ));
    assert_eq!(
        source.read("ids", DType::F32).unwrap_err().to_string(),
        "cannot read tensor `ids` as fp32: it is stored as I32"
    );
    assert_eq!(source.read("ids", DType::I32).unwrap(), source.raw("ids").unwrap());
    assert!(matches!(source.read("b", DType::F32), Err(Error::Convert { stored: Stored::Opaque(_), .. })));
    let unknown = source.read("layer.w", DType::F32).unwrap_err();
    assert_eq!(unknown.hint().unwrap(), "did you mean `layers.w`?");
}

fn expect(name: &str, shape: &[usize]) -> ExpectedTensor {
    ExpectedTensor { name: name.into(), shape: shape.into(), meaning: "(hidden_size)".into() }
}

#[test]
fn names_and_shapes_are_compared_with_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write_f32(&path, &[("norm.weight", 3, 1.0), ("lm_head.weight", 3, 1.0), ("l.rotary_emb.inv_freq", 2, 0.0)]);
    let source = found(dir.path()).unwrap();
    let tied = |name: &str| name == "lm_head.weight";

    let notices = match_names(&[expect("norm.weight", &[3])], &source, &tied).unwrap();
    assert_eq!(notices, ["tensor `lm_head.weight` of the checkpoint is not used"]);

    let error = match_names(&[expect("norm.weight", &[3])], &source, &|_| false).unwrap_err();
    assert_eq!(
        error.to_string(),
        "checkpoint does not match the model: 0 tensors missing, 1 unused\n  unused:  `lm_head.weight`"
    );

    let error = match_names(&[expect("model.norm.weight", &[3])], &source, &tied).unwrap_err();
    assert_eq!(
        error.to_string(),
        "checkpoint does not match the model: 1 tensor missing, 1 unused\n  missing: `model.norm.weight`\n  unused:  \
         `norm.weight`"
    );
    assert_eq!(error.hint(), None, "a name of another length is no likely slip");

    let error = match_names(&[expect("norms.weight", &[3])], &source, &tied).unwrap_err();
    assert_eq!(error.hint().unwrap(), "did the file mean `norm.weight` for `norms.weight`?");

    let error = match_names(&[expect("norm.weight", &[4])], &source, &tied).unwrap_err();
    assert_eq!(
        error.to_string(),
        "wrong shape for tensor `norm.weight` in `model.safetensors`\n  expected (4) = (hidden_size), found (3)"
    );
}

#[test]
fn an_untied_model_without_a_head_is_told_which_flag_says_so() {
    let dir = tempfile::tempdir().unwrap();
    write_f32(&dir.path().join("model.safetensors"), &[("norm.weight", 3, 1.0)]);
    let source = found(dir.path()).unwrap();
    let wanted = [expect("norm.weight", &[3]), expect("lm_head.weight", &[3])];
    let error = match_names(&wanted, &source, &|_| false).unwrap_err();
    assert!(error.to_string().contains("missing: `lm_head.weight`"));
    assert!(error.hint().unwrap().contains("tie_word_embeddings"));
}

#[test]
fn config_json_is_read_or_absent_or_broken() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(read_config_json(dir.path()).unwrap(), None);
    fs::write(dir.path().join("config.json"), r#"{"hidden_size": 8}"#).unwrap();
    assert_eq!(read_config_json(dir.path()).unwrap().unwrap()["hidden_size"], 8);
    write_f32(&dir.path().join("model.safetensors"), &[("w", 1, 1.0)]);
    assert_eq!(found(dir.path()).unwrap().config().unwrap().unwrap()["hidden_size"], 8);
    fs::write(dir.path().join("config.json"), "[]").unwrap();
    assert!(matches!(read_config_json(dir.path()), Err(Error::Json { .. })));
}

#[cfg(unix)]
#[test]
fn links_and_names_with_spaces_are_files_like_others() {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("blobs \u{e9}");
    let model = dir.path().join("my model");
    fs::create_dir_all(&cache).unwrap();
    fs::create_dir_all(&model).unwrap();
    write_f32(&cache.join("0123"), &[("w", 1, 4.0)]);
    std::os::unix::fs::symlink(cache.join("0123"), model.join("model.safetensors")).unwrap();
    assert_eq!(read_floats(&found(&model).unwrap(), "w"), [4.0]);
}
