//! Optimizers as runs show them: weights rounded by chance, moments in 8 bits.

use super::common::{LoggedStep, read_log, succeed, tune};
use super::runs::{BF16, IN_BACKWARD, Place, STEPS, check_resuming};
use super::tiny_folder;

const BY_CHANCE: &str = "optimizer.stochastic_rounding=True";
const IN_F32: &str = "optimizer._component_=bitsandbytes.optim.AdamW";
/// With moments in 8 bits, of all matrices of the tiny model too.
const IN_8_BITS: [&str; 2] = ["optimizer._component_=bitsandbytes.optim.AdamW8bit", "optimizer.min_8bit_size=256"];

/// The bytes of the tensors of a safetensors file in bf16, as values.
fn bf16_values(file: &std::path::Path) -> Vec<f32> {
    let bytes = std::fs::read(file).expect("saved");
    let tensors = safetensors::SafeTensors::deserialize(&bytes).expect("well formed");
    let mut all: Vec<_> = tensors.tensors();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let value = |pair: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16);
    all.iter().flat_map(|(_, tensor)| tensor.data().chunks_exact(2).map(value).collect::<Vec<_>>()).collect()
}

/// Gives every weight of a checkpoint that is not 1 a magnitude in [1/4, 1/2), whose bf16 neighbours are 2^-9 away.
fn spread_weights(file: &std::path::Path) {
    let mut bytes = std::fs::read(file).expect("saved");
    let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    for (index, pair) in bytes[8 + header..].chunks_exact_mut(2).enumerate() {
        let bits = u16::from_le_bytes([pair[0], pair[1]]);
        if bits != 0x3f80 {
            let magnitude = 0x3e80 + (index * 37 % 128) as u16;
            pair.copy_from_slice(&((bits & 0x8000) | magnitude).to_le_bytes());
        }
    }
    std::fs::write(file, bytes).expect("writable");
}

fn mean_loss(steps: &[LoggedStep]) -> f64 {
    steps.iter().map(|step| step.get("loss").expect("logged")).sum::<f64>() / steps.len() as f64
}

#[test]
fn rounding_by_chance_learns_where_rounding_to_nearest_moves_no_weight() {
    let place = Place::new();
    let nothing = ["optimizer._component_=torch.optim.SGD", "optimizer.lr=0", "epochs=1", BF16];
    place.train("start", &nothing);
    spread_weights(&place.at("start/epoch_0/model.safetensors"));

    // An update is at most about lr, a third of half of the distance between neighbours.
    let small =
        ["~model", "checkpointer.checkpoint_dir=start/epoch_0", "optimizer.lr=3e-4", "shuffle=False", "epochs=20"];
    let run = |out: &str, more: &[&str]| {
        place.train(out, &[&small[..], &["save_every_n_steps=120"], more].concat());
        place.log(out)
    };
    let (exact, nearest, by_chance) =
        (run("exact", &[]), run("nearest", &[BF16]), run("by_chance", &[BF16, BY_CHANCE]));
    let start = bf16_values(&place.at("start/epoch_0/model.safetensors"));
    let moved = |out: &str| {
        let weights = bf16_values(&place.at(out).join("step_120/model.safetensors"));
        weights.iter().zip(&start).filter(|(a, b)| a != b).count()
    };
    assert_eq!(moved("nearest"), 0, "weights that moved");
    let (moved, of) = (moved("by_chance"), start.len());
    assert!(moved > of / 2, "{moved} of {of} weights moved");
    let fall = |log: &[LoggedStep]| mean_loss(&log[..STEPS as usize]) - mean_loss(&log[log.len() - STEPS as usize..]);
    let (exact, nearest, by_chance) = (fall(&exact), fall(&nearest), fall(&by_chance));
    assert_eq!(nearest, 0.0, "the loss falls");
    assert!(exact > 0.1, "in f32 the loss falls by {exact}");
    assert!((by_chance / exact - 1.0).abs() < 0.2, "the loss falls by {by_chance}, in f32 by {exact}");
}

#[test]
fn resuming_with_rounding_by_chance() {
    check_resuming("by chance", &[BF16, BY_CHANCE], 2 * STEPS, &[1, STEPS]);
    let sgd = ["optimizer._component_=torch.optim.SGD", "optimizer.momentum=0.9", "optimizer.lr=0.1"];
    check_resuming("SGD by chance", &[&sgd[..], &[BF16, BY_CHANCE]].concat(), 2 * STEPS, &[5]);
}

#[test]
fn resuming_with_moments_in_8_bits() {
    check_resuming("8 bits", &[&IN_8_BITS[..], &[IN_BACKWARD]].concat(), 2 * STEPS, &[4]);
    check_resuming("8 bits, by chance", &[&IN_8_BITS[..], &[BF16, BY_CHANCE]].concat(), 2 * STEPS, &[1, STEPS]);
}

#[test]
fn updates_inside_backward_are_the_same_with_moments_in_8_bits() {
    let place = Place::new();
    let overrides = [&IN_8_BITS[..], &[BF16, BY_CHANCE]].concat();
    place.train("plain", &overrides);
    place.train("inside", &[&overrides[..], &[IN_BACKWARD]].concat());
    place.assert_same_checkpoint("updates inside backward", "inside", "plain", "epoch_1");
}

#[test]
fn the_seed_decides_how_weights_are_rounded_and_nothing_else_of_an_update() {
    let place = Place::new();
    place.train("start", &["epochs=1", BF16]);
    let run = |out: &str, more: &[&str]| {
        let from = ["~model", "checkpointer.checkpoint_dir=start/epoch_0", BF16, "shuffle=False", "epochs=1"];
        place.train(out, &[&from[..], more].concat());
    };
    let same = |a: &str, b: &str| {
        let weights = |out: &str| bf16_values(&place.at(out).join("epoch_0/model.safetensors"));
        weights(a) == weights(b)
    };
    for (out, more) in [
        ("nearest", vec![]),
        ("nearest_12", vec!["seed=12"]),
        ("by_chance", vec![BY_CHANCE]),
        ("by_chance_again", vec![BY_CHANCE]),
        ("by_chance_12", vec![BY_CHANCE, "seed=12"]),
    ] {
        run(out, &more);
    }
    assert!(same("nearest", "nearest_12"), "rounding to nearest takes no seed");
    assert!(same("by_chance", "by_chance_again"), "the same seed");
    assert!(!same("by_chance", "by_chance_12"), "another seed");
    assert!(!same("by_chance", "nearest"), "to nearest");
}

/// On each second rank nothing can be learnt, so that sums over ranks are exact and every rank has the gradients of one rank alone.
#[test]
fn ranks_round_and_quantise_as_one_rank_does() {
    let masked = serde_json::json!({"input": "x".repeat(50), "output": "y"});
    let place = Place::with_rows((0..6).map(tiny_folder::row));
    let doubled = (0..6).flat_map(|index| [tiny_folder::row(index), masked.clone()]);
    tiny_folder::write_rows(&place.at("doubled.json"), doubled);
    let run = |out: &str, num_ranks: usize, overrides: &[&str]| {
        let mut command = tune(&place.at(""));
        command.env("FERROTUNE_NUM_THREADS", "1").args(["run", "--nproc_per_node", &num_ranks.to_string()]);
        command.args(["full_finetune_distributed", "--config", "run.yaml", &format!("output_dir={out}")]);
        let rows = if num_ranks == 1 { "rows.json" } else { "doubled.json" };
        command.args([&format!("dataset.data_files={rows}"), "batch_size=1", "shuffle=False"]);
        succeed(command.args(overrides));
    };
    let (bf16, by_chance) = (vec![BF16, BY_CHANCE], [&IN_8_BITS[..], &[BF16, BY_CHANCE]].concat());
    for (name, overrides) in [("bf16", bf16), ("8_bits", IN_8_BITS.to_vec()), ("8_bits_bf16", by_chance)] {
        let (one, two) = (format!("{name}_1"), format!("{name}_2"));
        run(&one, 1, &overrides);
        run(&two, 2, &overrides);
        assert_eq!(read_log(&place.at(&two)).len(), 12, "{name}: steps");
        place.assert_same_checkpoint(&format!("{name} on two ranks"), &two, &one, "epoch_1");

        // A run of two ranks goes on on one.
        let moved = format!("{name}_2_to_1");
        run(&moved, 2, &[&overrides[..], &["epochs=1"]].concat());
        let rest = ["dataset.data_files=doubled.json", "batch_size=2", "shuffle=False", "resume_from_checkpoint=True"];
        place.train_on(1, &moved, &[&overrides[..], &rest].concat());
        place.assert_same_checkpoint(&format!("{name} from two ranks to one"), &moved, &one, "epoch_1");
    }
}

#[test]
fn moments_in_8_bits_follow_the_curve_of_moments_in_f32() {
    let place = Place::new();
    for dtype in ["dtype=fp32", BF16] {
        let run = |out: String, optimizer: &[&str]| {
            let all = [optimizer, &[dtype, "epochs=9", "save_every_n_steps=54", "optimizer.lr=1e-3"]].concat();
            place.train(&out, &all);
            place.log(&out)
        };
        let (expected, found) = (run(format!("{dtype}_32"), &[IN_F32]), run(format!("{dtype}_8"), &IN_8_BITS));
        assert_eq!(expected.len(), 54);
        assert!(mean_loss(&expected[48..]) < 0.8 * mean_loss(&expected[..6]), "{dtype}: something is learnt");
        assert_ne!(found, expected, "{dtype}: 8 bits are not 32");
        for (found, expected) in found.iter().zip(&expected) {
            let loss = |step: &LoggedStep| step.get("loss").expect("logged");
            let off = (loss(found) / loss(expected) - 1.0).abs();
            assert!(off < 0.02, "{dtype}, step {}: {} instead of {}", found.step, loss(found), loss(expected));
        }
    }
}

#[test]
fn what_an_optimizer_asks_in_vain_is_told() {
    let place = Place::new();
    let rounding = "stochastic rounding has no effect with `dtype: fp32`";
    let paged = "`offload.optimizer: disk` puts them in files";
    let of = |name: &str| format!("optimizer._component_={name}");
    for (out, overrides, told) in [
        ("fp32", vec![BY_CHANCE.to_owned()], [true, false]),
        ("bf16", vec![BY_CHANCE.to_owned(), BF16.to_owned()], [false, false]),
        ("paged", vec![of("bitsandbytes.optim.PagedAdamW8bit")], [false, true]),
        ("paged_by_key", vec![of("bitsandbytes.optim.AdamW"), "optimizer.is_paged=True".to_owned()], [false, true]),
        ("in_files", vec![of("bitsandbytes.optim.PagedAdamW"), "offload.optimizer=disk".to_owned()], [false, false]),
        ("not_paged", vec![of("bitsandbytes.optim.AdamW8bit")], [false, false]),
    ] {
        let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
        let said = place.train(out, &[&overrides[..], &["epochs=1", "max_steps_per_epoch=1"]].concat());
        assert_eq!([said.contains(rounding), said.contains(paged)], told, "{out}: {said}");
    }
}

#[test]
fn paged_moments_change_nothing_and_go_on_without_pages() {
    let place = Place::new();
    let paged = ["optimizer._component_=bitsandbytes.optim.PagedAdamW8bit", "optimizer.min_8bit_size=256"];
    place.train("whole", &IN_8_BITS);
    place.train("paged", &[&paged[..], &["offload.optimizer=disk"]].concat());
    place.assert_same_checkpoint("in files", "paged", "whole", "epoch_1");
    place.resume("paged", "epoch_0", "resumed", &IN_8_BITS);
    place.assert_same_checkpoint("resumed without pages", "resumed", "whole", "epoch_1");
}
