//! Training as if quantised: gradients are those of the model with rounded weights, under every policy.

use dist::Mesh;
use models::{Decoder, DecoderConfig, LoraConfig, LoraModule};
use recipes::objectives::NextToken;
use tensor::ops::fake_quantise::{FakeQuant, Scheme};
use tensor::{DType, ParamKind};
use train::Policy;

use crate::tiny::{Trainer, adamw, assert_same, backend, batch, rows, sgd, shape};

const WEIGHTS: FakeQuant = FakeQuant { scheme: Scheme::Int4, group_size: 8 };
const INPUTS_TOO: FakeQuant = FakeQuant { scheme: Scheme::Int8Int4, group_size: 16 };

fn stacked() -> DecoderConfig {
    DecoderConfig { num_hidden_layers: 3, stacks_weights: true, attention_bias: true, ..shape(false) }
}

fn quantised(config: DecoderConfig, lora: Option<&LoraConfig>, quant: FakeQuant) -> Decoder {
    Decoder::with_adapters(config, lora).expect("possible").quantised(quant).expect("groups fit")
}

fn trainer(model: Decoder, dtype: DType, policy: Policy) -> Trainer {
    Trainer::of_model(model, dtype, policy, sgd(0.0), backend(2), &Mesh::alone(), None)
}

fn window() -> Vec<data::Batch> {
    let dataset = rows(40, &[(9, 2), (14, 0), (5, 1), (11, 3)]);
    vec![batch(&dataset, 0..2), batch(&dataset, 2..4)]
}

#[test]
fn gradients_are_those_of_the_model_with_rounded_weights() {
    let biased = DecoderConfig { attention_bias: true, ..shape(false) };
    for config in [shape(true), shape(false), biased, stacked(), DecoderConfig { attention_bias: false, ..stacked() }] {
        let mut found = trainer(quantised(config.clone(), None, WEIGHTS), DType::F32, Policy::default());
        let mut expected = trainer(Decoder::new(config.clone()).expect("possible"), DType::F32, Policy::default());
        let backend = std::sync::Arc::clone(&expected.backend);
        let (mut rounded, layout) = (0, found.model.layout());
        for ((_, mut weight), param) in expected.store.parameters().expect("whole").into_iter().zip(&layout.params) {
            let Some(quant) = param.fake_quant else { continue };
            let mut y = backend.alloc(weight.shape(), DType::F32).expect("room");
            backend.fake_quantise_groups(&mut y, &weight, quant).expect("fits");
            backend.copy(&mut weight, &y).expect("the same shape");
            rounded += 1;
        }
        let (of_qkv, others) = if config.stacks_weights { (1, 3) } else { (3, 4) };
        let per_block = others + if config.attention_bias { 0 } else { of_qkv };
        let head = usize::from(!config.tie_word_embeddings);
        assert_eq!(rounded, config.num_hidden_layers * per_block + head);
        let what = format!("{config:?}");
        let (of_found, of_expected) = (found.step(&window(), 0.0), expected.step(&window(), 0.0));
        assert_eq!(of_found, of_expected, "{what}");
        assert_same(&what, &found.gradients(), &expected.gradients());
    }
}

#[test]
fn policies_give_the_same_bits() {
    let modules = vec![LoraModule::Q, LoraModule::V, LoraModule::O, LoraModule::Down, LoraModule::Head];
    let lora = LoraConfig { rank: 4, alpha: 6.0, dropout: 0.2, modules, use_dora: false, quantize_base: false };
    let models: [&dyn Fn() -> Decoder; 4] = [
        &|| quantised(shape(false), None, INPUTS_TOO),
        &|| quantised(DecoderConfig { attention_bias: false, ..stacked() }, None, INPUTS_TOO),
        &|| quantised(DecoderConfig { attention_bias: true, ..shape(true) }, None, WEIGHTS),
        &|| quantised(shape(false), Some(&lora), INPUTS_TOO),
    ];
    for (number, model) in models.into_iter().enumerate() {
        for dtype in [DType::F32, DType::Bf16] {
            let policies = [(0, false), (1, false), (2, true)];
            let mut trainers = policies.map(|(recompute_every, optimizer_in_bwd)| {
                trainer(model(), dtype, Policy { recompute_every, optimizer_in_bwd, ..Policy::default() })
            });
            for step in 0..3 {
                let losses = trainers.each_mut().map(|t| t.step(&window()[..1], 0.1).expect("tokens").loss.to_bits());
                assert!(losses.iter().all(|loss| *loss == losses[0]), "{number}, {dtype}, step {step}: {losses:?}");
            }
            for other in &trainers[1..] {
                assert_same(&format!("{number}, {dtype}"), &other.weights(), &trainers[0].weights());
            }
        }
    }
}

#[test]
fn what_is_rounded_is_what_trains() {
    let of = |model: &Decoder, kind: ParamKind| -> Vec<String> {
        let params = model.layout().params.iter().filter(|param| param.fake_quant.is_some() && param.kind == kind);
        params.map(|param| param.name.clone()).collect()
    };
    let modules = vec![LoraModule::Q, LoraModule::Down];
    let lora = LoraConfig { rank: 4, alpha: 6.0, dropout: 0.0, modules, use_dora: false, quantize_base: false };
    let model = quantised(shape(true), Some(&lora), INPUTS_TOO);
    let expected = ["0.self_attn.q_proj", "0.mlp.down_proj", "1.self_attn.q_proj", "1.mlp.down_proj"]
        .map(|name| format!("model.layers.{name}.weight"));
    assert_eq!(of(&model, ParamKind::Frozen), expected);
    assert!(of(&model, ParamKind::Trained).is_empty());

    let biased = DecoderConfig { attention_bias: true, ..shape(false) };
    let model = quantised(biased.clone(), None, INPUTS_TOO);
    let of_block = ["self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    let names = |layer| of_block.map(|name| format!("model.layers.{layer}.{name}.weight"));
    let head = ["lm_head.weight".to_owned()];
    assert_eq!(of(&model, ParamKind::Trained), [&names(0)[..], &names(1), &head].concat(), "torchao prepares these");

    let adapted = |config| Decoder::with_adapters(config, Some(&lora)).expect("possible").quantised(INPUTS_TOO);
    assert!(matches!(adapted(biased), Err(models::Error::AdaptedBias { .. })), "queries have a bias");
    let in_one = adapted(DecoderConfig { attention_bias: false, ..stacked() });
    assert!(matches!(in_one, Err(models::Error::PartlyAdapted { .. })), "queries alone of one matrix");
    let wide = FakeQuant { group_size: 32, ..INPUTS_TOO };
    match Decoder::new(shape(false)).expect("possible").quantised(wide) {
        Err(models::Error::GroupSize { name, width, group_size, fits }) => {
            assert_eq!(name, "model.layers.0.mlp.down_proj.weight");
            assert_eq!((width, group_size, fits), (48, 32, 16));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn steps_before_it_begins_are_exact() {
    let mut late = trainer(quantised(shape(false), None, INPUTS_TOO), DType::F32, Policy::default());
    late.objective = Box::new(NextToken { exact_steps: 2 });
    let mut plain = trainer(
        Decoder::new(shape(false)).expect("possible"),
        DType::F32,
        Policy { recompute_every: 1, ..Policy::default() },
    );
    for step in 1..=3 {
        let [found, expected] = [&mut late, &mut plain].map(|t| t.step(&window(), 0.1).expect("tokens").loss);
        assert_eq!(found == expected, step <= 2, "step {step}: {found} and {expected}");
    }
}

#[test]
fn ranks_are_one_rank_with_all_rows() {
    let first = |mesh: &Mesh, window: &[data::Batch]| {
        let model = quantised(shape(false), None, INPUTS_TOO);
        let mut trainer = Trainer::of_model(model, DType::F32, Policy::default(), adamw(), backend(1), mesh, None);
        trainer.step(window, 0.0).expect("tokens")
    };
    let expected = first(&Mesh::alone(), &window());
    let reports = dist::run_threads(2, |world: dist::Communicator| {
        let mesh = Mesh::new(world.clone(), 1, 2)?;
        let report = first(&mesh, &window()[world.rank()..=world.rank()]);
        world.barrier().wait()?;
        Ok::<_, dist::Error>(report)
    });
    for found in reports.expect("all ranks end") {
        assert!((found.loss - expected.loss).abs() < 1e-6, "{found:?}, expected {expected:?}");
        let (norm, of_one) = (found.grad_norm.expect("computed"), expected.grad_norm.expect("computed"));
        assert!((norm - of_one).abs() < 1e-5 * of_one, "{norm}, expected {of_one}");
    }
}
