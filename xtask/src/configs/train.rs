//! Configs that learn from rows: full, LoRA, QAT, distillation, preferences.

use super::header;
use super::parts::{self, truth};
use super::table::{Config, Data};
use super::text::{Section, Text};

/// What a recipe teaches, beside whether all weights learn.
#[derive(Clone, Copy, PartialEq)]
enum Lesson {
    /// To continue the rows.
    Rows,
    /// To continue them while quantisation is simulated.
    Quantised,
    /// To answer as a teacher does.
    Teacher,
    /// To prefer the better of two answers.
    Preferences,
    /// To know the answer in earlier layers already.
    EarlyExit,
}

fn lesson(config: &Config) -> Lesson {
    match config.recipe {
        recipe if recipe.starts_with("qat") => Lesson::Quantised,
        recipe if recipe.starts_with("knowledge") => Lesson::Teacher,
        recipe if recipe.contains("dpo") => Lesson::Preferences,
        recipe if recipe.contains("early_exit") => Lesson::EarlyExit,
        _ => Lesson::Rows,
    }
}

/// The file.
pub(super) fn config(config: &Config) -> String {
    let mut text = Text::default();
    let lesson = lesson(config);
    header::write(&mut text, config, &what(config, lesson), &example(config, lesson));
    text.blank();
    place(&mut text, config);
    text.heading("Model");
    text.section("model", parts::model(config));
    if let Some((teacher, _)) = config.frozen.first().filter(|_| lesson == Lesson::Teacher) {
        text.section(
            "teacher_model",
            Section::of(&format!("torchtune.models.{}.{}", teacher.package, teacher.builder)),
        );
    }
    text.heading("Tokenizer");
    text.section("tokenizer", parts::tokenizer(config, false));
    checkpoints(&mut text, config, lesson);
    data(&mut text, config, lesson);
    training(&mut text, config, lesson);
    if lesson == Lesson::Quantised {
        text.heading("Quantisation that is simulated while training: activations in 8 bits, weights in 4");
        text.section("quantizer", quantizer("Int8DynActInt4WeightQATQuantizer"));
    }
    several_devices(&mut text, config);
    parts::logging(&mut text, config, "DiskLogger");
    if lesson != Lesson::Preferences && config.data != Data::CauldronMix {
        parts::profiler(&mut text, false);
    }
    text.finish()
}

/// A quantiser of weights in groups of 256.
pub(super) fn quantizer(class: &str) -> Section {
    Section::of(&format!("torchtune.training.quantization.{class}")).noted(
        "groupsize",
        "256",
        "weights with a common scale",
    )
}

/// The sentence that a config begins with.
fn what(config: &Config, lesson: Lesson) -> String {
    let (learner, rows, devices) = (header::learner(config), header::data(config.data), header::devices(config));
    match lesson {
        Lesson::Rows => format!("Trains {learner} on {rows}, {devices}."),
        Lesson::Quantised => format!(
            "Trains {learner} on {rows}, {devices}, as if weights had 4 bits: quantised afterwards, the model loses less \
             (quantisation-aware training)."
        ),
        Lesson::Teacher => {
            let teacher = config.frozen.first().map_or("a larger model", |(teacher, _)| teacher.title);
            format!("Trains {learner} to answer as {teacher} does, on {rows}, {devices} (knowledge distillation).")
        }
        Lesson::EarlyExit => {
            format!("Trains {learner} to know the answer in earlier layers already, on {rows}, {devices} (early exit).")
        }
        Lesson::Preferences => {
            format!("Trains {learner} to prefer the better of two answers, on {rows}, {devices} (DPO).")
        }
    }
}

/// An override worth knowing.
fn example(config: &Config, lesson: Lesson) -> String {
    match (lesson, &config.adapter) {
        (Lesson::Preferences, _) => "loss.beta=0.2".to_owned(),
        (Lesson::EarlyExit, _) => "layer_dropout.prob=0.1".to_owned(),
        (Lesson::Teacher, _) => "kd_ratio=0.25".to_owned(),
        (Lesson::Quantised, _) => "quantizer.groupsize=128".to_owned(),
        (Lesson::Rows, Some(adapter)) => {
            format!("model.lora_rank={} model.lora_alpha={}", 2 * adapter.rank, 2 * adapter.alpha)
        }
        (Lesson::Rows, None) if config.is_distributed => "batch_size=1 epochs=3".to_owned(),
        (Lesson::Rows, None) => "optimizer.lr=1e-5 epochs=3".to_owned(),
    }
}

/// Where the run writes to.
fn place(text: &mut Text, config: &Config) {
    text.remark("Checkpoints, logs and the config as it was run go here");
    if config.name == "dev/3B_sft_for_grpo" {
        // `dev/3B_full_grpo` goes on from this folder.
        text.key("name", "llama3B_gsm8k_sft_part0");
        text.key("output_dir", "/tmp/${name}");
    } else {
        text.key("output_dir", &parts::output_dir(config));
    }
}

fn checkpoints(text: &mut Text, config: &Config, lesson: Lesson) {
    text.heading("Checkpoints: where weights are read from, and the kind of model they are");
    text.section("checkpointer", parts::own_checkpointer(config));
    let other = match lesson {
        Lesson::Teacher => Some("teacher_checkpointer"),
        Lesson::Preferences => Some("ref_checkpointer"),
        _ => None,
    };
    if let (Some(key), Some((model, _))) = (other, config.frozen.first()) {
        let section = parts::checkpointer(model, &model.checkpoint_dir(), "${output_dir}", model.family.model_type);
        text.section(key, section.key("recipe_checkpoint", "null"));
    }
    text.noted("resume_from_checkpoint", "False", "True goes on from the newest checkpoint in output_dir");
    if config.adapter.is_some() {
        let note = "True leaves the merged model out of checkpoints";
        text.noted("save_adapter_weights_only", truth(config.only_adapter), note);
    }
    if config.low_cpu_ram {
        text.noted("low_cpu_ram", "False", "True loads quantised weights with less host memory");
    }
}

fn data(text: &mut Text, config: &Config, lesson: Lesson) {
    if config.data == Data::CauldronMix {
        return data_mix(text);
    }
    text.heading(if lesson == Lesson::Preferences {
        "Data: a question with a better and a worse answer"
    } else {
        "Data"
    });
    text.section("dataset", parts::dataset(config));
    text.key("shuffle", "True");
    text.noted("seed", config.seed.unwrap_or("null"), "null = another one each run");
    if config.model.package == "llama3_2_vision" {
        text.key("collate_fn", "torchtune.data.padded_collate_tiled_images_and_mask");
    }
    if config.validates {
        text.heading("Validation, on rows that are not trained on");
        text.noted("run_val_every_n_steps", "null", "null = never");
        text.section(
            "dataset_val",
            Section::of("torchtune.datasets.alpaca_cleaned_dataset").key("split", "train[95%:]"),
        );
        text.key("batch_size_val", "${batch_size}");
    }
}

/// Several datasets, drawn from by weight.
fn data_mix(text: &mut Text) {
    text.heading("Data: rows are drawn from all of these, by weight");
    let part = |subset: &str| {
        Section::default()
            .key("source", "HuggingFaceM4/the_cauldron")
            .key("subset", subset)
            .key("split", "train")
            .section("transform", Section::of("torchtune.datasets.multimodal.the_cauldron_transform"))
            .key("weight", "1.0")
    };
    text.list("datasets", ["ocrvqa", "dvqa", "docvqa", "tabmwp"].map(part).into());
    text.section(
        "dataloader",
        Section::default()
            .key("shuffle", "True")
            .key("collate_fn", "torchtune.data.padded_collate_tiled_images_and_mask")
            .key("parallel_method", "thread")
            .key("num_workers", "4")
            .key("pin_memory", "True")
            .key("packed", "False")
            .key("prefetch_factor", "2"),
    );
    text.noted("seed", "null", "null = another one each run");
}

fn training(text: &mut Text, config: &Config, lesson: Lesson) {
    let is_preference = lesson == Lesson::Preferences;
    text.heading("Training");
    text.noted(
        "batch_size",
        &config.batch_size.to_string(),
        if is_preference { "pairs of a micro-batch" } else { "rows of a micro-batch" },
    );
    text.noted("gradient_accumulation_steps", &config.accumulation.to_string(), "micro-batches of an optimizer step");
    text.noted("epochs", &config.epochs.to_string(), "passes over the rows");
    let (steps, note) = match (is_preference, config.data) {
        (true, _) => ("1000", "null = all rows"),
        (_, Data::CauldronMix) => ("50", "the rows of a mixture have no end"),
        _ => ("null", "null = all rows"),
    };
    text.noted("max_steps_per_epoch", steps, note);
    if !is_preference {
        text.noted("clip_grad_norm", config.clip.unwrap_or("null"), "longest gradient; null = no limit");
    }

    text.heading("Optimizer, learning rate and loss");
    text.section("optimizer", parts::optimizer(config));
    if takes_in_bwd(config) {
        let note = "True updates as gradients come and keeps none; needs gradient_accumulation_steps = 1";
        text.noted("optimizer_in_bwd", truth(config.optimizer_in_bwd), note);
    }
    parts::schedule(text, config);
    losses(text, config, lesson);

    text.heading("Device, precision and memory");
    text.noted("device", "auto", "what is there");
    text.key("dtype", "bf16");
    text.noted(
        "enable_activation_checkpointing",
        truth(config.recompute),
        "True computes activations twice instead of keeping them",
    );
    text.noted("enable_activation_offloading", truth(config.offload), "True keeps activations in host memory");
    text.noted("compile", truth(config.compile), "concerns PyTorch alone");
    if config.name == "dev/8B_full_experimental" {
        text.noted("ac_mode", "selective", "computes the activations of some blocks twice");
        text.noted("ac_option", "2", "of every second block");
        text.key("memory_efficient_fsdp_wrap", "False");
    }
}

/// Recipes that train every weight can update them during the backward pass.
fn takes_in_bwd(config: &Config) -> bool {
    config.adapter.is_none() && config.recipe != "full_dpo_distributed" && config.name != "dev/8B_full_experimental"
}

fn losses(text: &mut Text, config: &Config, lesson: Lesson) {
    match lesson {
        Lesson::Preferences => {
            let beta = if config.adapter.is_some() { "0.1" } else { "0.05" };
            let section = Section::of("torchtune.rlhf.loss.DPOLoss").noted(
                "beta",
                beta,
                "a higher one stays closer to the model as it was",
            );
            text.section("loss", section.key("label_smoothing", "0"));
        }
        Lesson::Teacher => {
            text.section("loss", Section::of("torchtune.modules.loss.CEWithChunkedOutputLoss"));
            text.section("kd_loss", Section::of("torchtune.modules.loss.ForwardKLWithChunkedOutputLoss"));
            text.noted("kd_ratio", "0.5", "how much the teacher counts; the rows count the rest");
        }
        Lesson::EarlyExit => early_exits(text),
        Lesson::Rows | Lesson::Quantised => {
            text.section("loss", Section::of("torchtune.modules.loss.LinearCrossEntropyLoss"));
        }
    }
}

/// The losses of earlier layers, and layers that are left out at random.
fn early_exits(text: &mut Text) {
    text.section("loss", Section::of("torch.nn.CrossEntropyLoss"));
    let exits = Section::default()
        .noted("layers", "\"0::4\"", "every fourth one has a loss")
        .noted("scale_fn", "torchtune.modules.early_exit_loss.sum_l_loss_scale", "later layers count more")
        .noted("scale", "1.0", "how much all of them count")
        .noted(
            "curriculum",
            "torchtune.modules.early_exit_loss.RotationalEarlyExitCurriculum",
            "other layers each step",
        );
    text.section("early_exit_loss", exits);
    let dropout = Section::default()
        .noted("prob", "0.2", "how often the last layer is left out")
        .noted("layers", "\":\"", "all of them")
        .noted("layers_scale", "exp", "earlier ones less often")
        .key("disable_on_eval", "True");
    text.section("layer_dropout", dropout);
}

fn several_devices(text: &mut Text, config: &Config) {
    let is_set = config.cpu_offload.is_some() || config.sharded.is_some() || config.tensor_parallel.is_some();
    if !is_set {
        return;
    }
    text.heading("Several devices");
    if let Some(offload) = config.cpu_offload {
        text.noted("fsdp_cpu_offload", truth(offload), "True keeps weights and optimizer states in host memory");
    }
    if let Some(layers) = config.sharded {
        text.noted("custom_sharded_layers", layers, "besides the blocks");
    }
    if let Some(ranks) = config.tensor_parallel {
        text.noted("tensor_parallel_dim", &ranks.to_string(), "devices that share each layer");
        text.section("tensor_parallel_plan", tensor_parallel_plan(config));
    }
    if config.mesh {
        text.noted("data_parallel_shard_dim", "-1", "devices that share the weights; -1 = those that are left");
        text.noted("data_parallel_replicate_dim", "1", "copies of the weights");
    }
}

/// How layers are divided.
pub(super) fn tensor_parallel_plan(config: &Config) -> Section {
    Section::of(match config.model.package {
        "llama4" => "torchtune.models.llama4.decoder_only_tp_plan",
        _ => "torchtune.models.llama3.base_llama_tp_plan",
    })
}
