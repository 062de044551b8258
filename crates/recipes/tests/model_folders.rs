//! Logits, loss and every gradient of the conformance pack's model folders and adapters, in f32.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use checkpoint::{AdapterConfig, CheckpointDir, CheckpointFiles, CheckpointName, RecipeState, WeightSource};
use models::facts::{Facts, Sources};
use models::families::{Family, from_config_json};
use models::{Decoder, LoraConfig, LoraModule, ModelBatch};
use tensor::{Backend, Cx, DType};
use train::{ParamStore, Policy};

/// A folder's model with its weights loaded, and adapters of its own if asked for.
fn open(folder: &Path, lora: Option<&LoraConfig>, backend: Arc<dyn Backend>, policy: Policy) -> (Decoder, ParamStore) {
    let text = std::fs::read_to_string(folder.join("config.json")).expect("a model folder has a config.json");
    let (facts, nothing) = (from_config_json(&text).expect("supported"), Facts::default());
    let sources =
        Sources { user: &nothing, folder: Some(&facts), builder: &nothing, builder_name: "auto", reads_weights: true };
    let model = Decoder::with_adapters(sources.resolve().expect("complete").0, lora).expect("possible");
    let weights = WeightSource::open_folder(folder, &CheckpointFiles::Found).expect("readable");
    train::check_weights(model.layout(), &weights).expect("the weights fit");
    let mut store = ParamStore::new(backend, Arc::new(model.layout().clone()), DType::F32, policy).expect("fits");
    store.load_weights(&weights).expect("readable");
    (model, store)
}

/// A tensor of `expected.safetensors` as f32.
fn expected_f32(source: &WeightSource, name: &str) -> Vec<f32> {
    let bytes = source.read(name, DType::F32).expect("present");
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// An integer tensor of `expected.safetensors`, which holds them as 64 bits.
fn expected_i32(source: &WeightSource, name: &str) -> Vec<i32> {
    let bytes = source.raw(name).expect("present");
    match bytes.len() / source.tensor(name).expect("present").num_elements() {
        4 => bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("4 bytes"))).collect(),
        _ => bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")) as i32).collect(),
    }
}

/// The largest difference, relative to the largest expected value.
fn relative_to_max(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len(), "lengths");
    let max = expected.iter().fold(0.0f64, |m, &e| m.max(f64::from(e).abs()));
    let diff = found.iter().zip(expected).map(|(&f, &e)| (f64::from(f) - f64::from(e)).abs());
    let diff = diff.fold(0.0f64, |m, d| if d.is_nan() { f64::INFINITY } else { m.max(d) });
    if max == 0.0 { diff } else { diff / max }
}

fn backend() -> Arc<dyn Backend> {
    Arc::new(cpu::CpuBackend::new(cpu::CpuConfig::default()).expect("starts"))
}

fn check_folder(folder: &Path, policy: Policy) {
    let (model, mut store) = open(folder, None, backend(), policy);
    compare(folder, &model, &mut store);
}

/// The adapter of a folder on its base model, then the weights that it is worked into.
fn check_adapter(folder: &Path, policy: Policy) {
    let base = std::fs::read_to_string(folder.join("BASE")).expect("an adapter names its base");
    let config = AdapterConfig::read(&folder.join("adapter_config.json")).expect("readable").expect("there");
    let named = |module: &LoraModule| config.target_modules.iter().any(|name| name == module.name());
    let lora = LoraConfig {
        rank: config.rank,
        alpha: config.alpha,
        dropout: 0.0,
        modules: LoraModule::ALL.into_iter().filter(named).collect(),
        use_dora: config.use_dora,
        quantize_base: false,
    };
    assert_eq!(lora.modules.len(), config.target_modules.len(), "every layer is known");
    let base = folder.join("../../models").join(base.trim());
    let (model, mut store) = open(&base, Some(&lora), backend(), policy);
    let adapter = WeightSource::open_safetensors(&folder.join("adapter_model.safetensors")).expect("readable");
    train::check_adapter(model.layout(), &adapter).expect("names and shapes are PEFT's");
    store.load_adapter(&adapter).expect("readable");
    compare(folder, &model, &mut store);

    let out = tempfile::tempdir().expect("a temporary folder");
    let mut dir = CheckpointDir::begin(out.path(), CheckpointName::Epoch(0), 0).expect("begun");
    store.write_merged_weights(Some(&mut dir)).expect("written");
    store.write_adapter(Some(&mut dir)).expect("written");
    let saved = dir.commit(&RecipeState::default()).expect("complete");
    let (merged, again) = (saved.weights().expect("readable"), saved.adapter().expect("readable").expect("there"));
    let expected = WeightSource::open_safetensors(&folder.join("expected.safetensors")).expect("readable");
    let mut compared = 0;
    for name in expected.names().filter_map(|name| name.strip_prefix("merged.")) {
        let found = expected_f32(&merged, name);
        let error = relative_to_max(&found, &expected_f32(&expected, &format!("merged.{name}")));
        assert!(error < 1e-5, "{}: merged {name} differs by {error:e} of its maximum", folder.display());
        compared += 1;
    }
    assert!(compared > 0, "{}: there is something to compare", folder.display());
    let names = |source: &WeightSource| {
        let mut all: Vec<_> =
            source.names().map(|n| (n.to_owned(), source.tensor(n).expect("it").shape.clone())).collect();
        all.sort();
        all
    };
    assert_eq!(names(&again), names(&adapter), "what is saved has PEFT's names and shapes");
    for (name, _) in names(&adapter) {
        assert_eq!(expected_f32(&again, &name), expected_f32(&adapter, &name), "{name}");
    }
}

/// Compares a model with the answers in a folder.
fn compare(folder: &Path, model: &Decoder, store: &mut ParamStore) {
    let backend = Arc::clone(store.backend());
    let expected = WeightSource::open_safetensors(&folder.join("expected.safetensors")).expect("readable");
    let shape = &expected.tensor("input_ids").expect("present").shape;
    let (rows, cols) = (shape[0], shape[1]);
    let positions: Vec<i32> = (0..rows).flat_map(|_| 0..cols as i32).collect();
    let batch = ModelBatch {
        tokens: backend.from_i32([rows, cols], &expected_i32(&expected, "input_ids")).expect("fits"),
        positions: backend.from_i32([rows, cols], &positions).expect("fits"),
        doc_start: backend.from_i32([rows, cols], &vec![0; rows * cols]).expect("fits"),
    };

    let logits = model.logits(&mut Cx::inference(&*backend, store), &batch).expect("runs");
    let logits = backend.to_f32(&logits).expect("f32");
    let error = relative_to_max(&logits, &expected_f32(&expected, "logits"));
    assert!(error < 2e-5, "{}: logits differ by {error:e} of their maximum", folder.display());

    let shifted: Vec<i32> =
        expected_i32(&expected, "labels").chunks(cols).flat_map(|row| row[1..].iter().copied().chain([-100])).collect();
    let unmasked = shifted.iter().filter(|&&l| l != -100).count();
    let labels = backend.from_i32([rows, cols], &shifted).expect("fits");
    store.begin_step(0.0).expect("nothing runs");
    let mut cx = Cx::training(&*backend, store);
    let loss = model.loss(&mut cx, &batch, &labels, 1.0 / unmasked as f32).expect("runs");
    cx.backward().expect("runs");
    let (loss, wanted) = (backend.read_scalar(&loss).expect("f32"), expected_f32(&expected, "loss")[0]);
    assert!((loss - wanted).abs() < 1e-5, "{}: loss {loss}, expected {wanted}", folder.display());

    let gradients = store.gradients().expect("computed");
    let names: Vec<&str> = expected.names().filter(|n| n.starts_with("grad.")).collect();
    assert_eq!(gradients.len(), names.len(), "{}: one gradient a parameter", folder.display());
    for (name, gradient) in gradients {
        let found = backend.to_f32(&gradient).expect("f32");
        // PEFT's file of gradients calls a magnitude by its module's own name.
        let wanted = [format!("grad.{name}"), format!("grad.{name}.weight")];
        let wanted =
            wanted.iter().find(|wanted| expected.get(wanted).is_some()).expect("a gradient for each parameter");
        let error = relative_to_max(&found, &expected_f32(&expected, wanted));
        assert!(error < 1e-4, "{}: gradient of {name} differs by {error:e} of its maximum", folder.display());
    }
}

fn model_type(folder: &Path) -> String {
    let text = std::fs::read_to_string(folder.join("config.json")).expect("a model folder has a config.json");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["model_type"].as_str().expect("a name").to_owned()
}

#[test]
fn adapters_equal_the_reference() {
    let Some(dir) = testing::conformance_dir() else {
        println!("skipped: no conformance pack");
        return;
    };
    let mut cases = testing::conformance::Cases::new("peft");
    for entry in std::fs::read_dir(dir.join("peft")).expect("listed") {
        let folder = entry.expect("entry").path();
        for recompute_every in [0, 1] {
            check_adapter(&folder, Policy { recompute_every, ..Policy::default() });
        }
        cases.ran(&folder.file_name().expect("named").to_string_lossy());
    }
    cases.finish();
}

#[test]
fn logits_loss_and_gradients_equal_the_reference() {
    let Some(dir) = testing::conformance_dir() else {
        println!("skipped: no conformance pack");
        return;
    };
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(dir.join("models")).expect("listed").map(|e| e.expect("entry").path()).collect();
    folders.sort();
    let mut cases = testing::conformance::Cases::new("models");
    for folder in folders {
        let name = folder.file_name().expect("named").to_string_lossy().into_owned();
        if Family::ALL.into_iter().all(|family| family.model_type() != model_type(&folder)) {
            cases.skipped(&name);
            continue;
        }
        for recompute_every in [0, 1] {
            check_folder(&folder, Policy { recompute_every, ..Policy::default() });
        }
        cases.ran(&name);
    }
    cases.finish();
}
