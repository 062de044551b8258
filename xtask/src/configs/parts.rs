//! Sections that configs of several recipes have.

use super::models::{Files, Model};
use super::table::{Config, Data, Optimizer};
use super::text::{Section, Text};

/// `True` or `False`, as configs of the reference are written.
pub(super) fn truth(value: bool) -> &'static str {
    if value { "True" } else { "False" }
}

/// The folder that a run writes to: model and size, then what is done.
pub(super) fn output_dir(config: &Config) -> String {
    let (family, rest) = config.name.split_once('/').unwrap_or(("", config.name));
    let starts = ["_full", "_lora", "_qlora", "_dora", "_qdora", "_qat", "_KD"];
    let at = starts.iter().filter_map(|start| rest.find(start)).min().unwrap_or(rest.len());
    let (size, what) = (rest[..at].replace('.', "_"), rest[at..].trim_start_matches('_'));
    format!("/tmp/torchtune/{family}_{size}/{what}")
}

/// The model, with its adapter.
pub(super) fn model(config: &Config) -> Section {
    let model = config.model;
    let prefix = match &config.adapter {
        None => "",
        Some(adapter) if adapter.quantised && !adapter.dora => "qlora_",
        Some(_) => "lora_",
    };
    let mut section = Section::of(&format!("torchtune.models.{}.{prefix}{}", model.package, model.builder));
    let is_vision = model.package == "llama3_2_vision";
    if is_vision || model.package == "llama4" {
        section = trained_parts(section, config);
    }
    if let Some(adapter) = &config.adapter {
        let few = config.data == Data::CauldronMix;
        section = section
            .key("lora_attn_modules", if few { "[q_proj, v_proj]" } else { "[q_proj, v_proj, output_proj]" })
            .key("apply_lora_to_mlp", truth(!few))
            .when(!model.is_tied(), |section| section.key("apply_lora_to_output", truth(adapter.on_output)))
            .noted("lora_rank", &adapter.rank.to_string(), "a higher one learns more and needs more memory")
            .noted("lora_alpha", &adapter.alpha.to_string(), "the adapter counts lora_alpha / lora_rank times")
            .key("lora_dropout", "0.0")
            .when(adapter.dora, |section| section.key("use_dora", "True"))
            .when(adapter.dora && adapter.quantised, |section| section.key("quantize_base", "True"));
    }
    if model.package == "llama2" && model.builder == "llama2" {
        section = tiny_llama(section);
    }
    section.when(is_vision && config.is_training(), |section| {
        section.noted("image_size", "560", "of a tile, as tokenizer.image_size")
    })
}

/// Which parts of a model with images are trained.
fn trained_parts(section: Section, config: &Config) -> Section {
    let [decoder, encoder, fusion] = match (config.model.package, &config.adapter) {
        ("llama4", Some(_)) => ["lora", "frozen", "lora"],
        (_, Some(_)) => ["frozen", "lora", "lora"],
        ("llama3_2_vision", None) if config.is_training() => ["False", "True", "True"],
        (_, None) => return section,
    };
    section.key("decoder_trainable", decoder).key("encoder_trainable", encoder).key("fusion_trainable", fusion)
}

/// The sizes of TinyLlama, which has no builder of its own.
pub(super) fn tiny_llama(section: Section) -> Section {
    section
        .key("vocab_size", "32000")
        .key("num_layers", "22")
        .key("num_heads", "32")
        .key("num_kv_heads", "4")
        .key("embed_dim", "2048")
        .key("intermediate_dim", "5632")
        .key("max_seq_len", "2048")
        .key("attn_dropout", "0.0")
        .key("norm_eps", "1e-5")
}

/// The tokenizer; `template` is whether to say that there is none.
pub(super) fn tokenizer(config: &Config, template: bool) -> Section {
    let (model, family) = (config.model, config.model.family);
    let mut section = Section::of(&format!("torchtune.models.{}", family.tokenizer));
    for (key, file) in family.tokenizer_files {
        section = section.key(key, &format!("{}/{file}", model.folder()));
    }
    let is_vision = model.package == "llama3_2_vision";
    let longest = match config.max_seq_len {
        Some(tokens) => tokens.to_string(),
        None if is_vision => "8192".to_owned(),
        None => "null".to_owned(),
    };
    let note = if longest == "null" {
        "in tokens; longer rows are cut, null = no limit"
    } else {
        "in tokens; longer rows are cut"
    };
    section
        .when(is_vision && config.is_training(), |section| section.key("image_size", "560"))
        .when(family.says_max_seq_len, |section| section.noted("max_seq_len", &longest, note))
        .when(model.package == "llama4", |section| section.key("max_num_tiles", "16"))
        .when(template, |section| section.key("prompt_template", "null"))
}

/// A checkpointer that reads `model`.
pub(super) fn checkpointer(model: &Model, checkpoint_dir: &str, output_dir: &str, model_type: &str) -> Section {
    let class = if model.is_meta_format() { "FullModelMetaCheckpointer" } else { "FullModelHFCheckpointer" };
    let section = Section::of(&format!("torchtune.training.{class}")).key("checkpoint_dir", checkpoint_dir);
    let numbered = |n: usize, of: usize| format!("model-{n:05}-of-{of:05}.safetensors");
    let section = match model.files {
        Files::One(name) => section.key("checkpoint_files", &format!("[{name}]")),
        Files::Listed(of) => {
            let names: Vec<String> = (1..=of).map(|n| numbered(n, of)).collect();
            section.list("checkpoint_files", &names)
        }
        Files::Numbered(last) => section.section(
            "checkpoint_files",
            Section::default()
                .key("filename_format", "model-{}-of-{}.safetensors")
                .key("max_filename", &format!("\"{last}\"")),
        ),
    };
    section.key("output_dir", output_dir).key("model_type", model_type)
}

/// The checkpointer of the model that a config is for.
pub(super) fn own_checkpointer(config: &Config) -> Section {
    let model = config.model;
    let model_type = config.model_type.unwrap_or(model.family.model_type);
    checkpointer(model, &model.checkpoint_dir(), "${output_dir}", model_type)
        .when(config.is_training(), |section| section.key("recipe_checkpoint", "null"))
        .when(config.keep_last.is_some(), |section| {
            let keep = config.keep_last.unwrap_or_default().to_string();
            section.noted("keep_last_n_checkpoints", &keep, "the oldest are removed")
        })
}

/// The rows to train on.
pub(super) fn dataset(config: &Config) -> Section {
    let packed =
        |section: Section| section.noted("packed", "False", "True lays rows end to end; needs tokenizer.max_seq_len");
    match config.data {
        Data::AlpacaCleaned => packed(Section::of("torchtune.datasets.alpaca_cleaned_dataset"))
            .when(config.holds_out, |section| section.key("split", "train[:95%]")),
        Data::Alpaca => packed(Section::of("torchtune.datasets.alpaca_dataset")),
        Data::Cauldron => Section::of("torchtune.datasets.multimodal.the_cauldron_dataset")
            .key("packed", "False")
            .key("subset", "ocrvqa"),
        Data::StackExchange => Section::of("torchtune.datasets.stack_exchange_paired_dataset"),
        Data::Reviews => Section::of("torchtune.datasets.text_completion_dataset")
            .key("source", "trl-internal-testing/sentiment-trl-style")
            .key("split", "train")
            .key("column", "prompt")
            .key("add_eos", "False"),
        Data::Gsm8k => Section::of("torchtune.dev.grpo.gsm8k.gsm8k_dataset").noted(
            "partition",
            "1-9/10",
            "of every ten rows, all but the first",
        ),
        Data::Gsm8kSolutions => Section::of("torchtune.dev.grpo.gsm8k.gsm8k_sft").noted(
            "partition",
            "0-0/10",
            "of every ten rows, the first",
        ),
        Data::Commands => Section::of("torchtune.datasets.instruct_dataset")
            .key("source", "WillHeld/top_v2")
            .key("split", "train")
            .key("column_map", "{input: utterance, output: semantic_parse}"),
        Data::CauldronMix => unreachable!("a list of its own"),
    }
}

/// The optimizer.
pub(super) fn optimizer(config: &Config) -> Section {
    let class = match config.optimizer {
        Optimizer::AdamW => "torch.optim.AdamW",
        Optimizer::Paged => "bitsandbytes.optim.PagedAdamW",
        Optimizer::Paged8bit => "bitsandbytes.optim.PagedAdamW8bit",
    };
    // One kernel for all weights, unless they are elsewhere.
    let fused = !(config.cpu_offload == Some(true) || config.model.package == "llama4");
    let is_ppo = config.recipe.starts_with("ppo");
    Section::of(class)
        .key("lr", config.lr)
        .when(config.weight_decay.is_some(), |section| {
            section.key("weight_decay", config.weight_decay.unwrap_or_default())
        })
        .when(config.optimizer == Optimizer::AdamW && !is_ppo, |section| section.key("fused", truth(fused)))
}

/// The learning rate's schedule, if there is one.
pub(super) fn schedule(text: &mut Text, config: &Config) {
    if let Some(steps) = config.warmup {
        text.section(
            "lr_scheduler",
            Section::of("torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup")
                .key("num_warmup_steps", &steps.to_string()),
        );
    }
}

/// What is logged and where.
pub(super) fn logging(text: &mut Text, config: &Config, logger: &str) {
    text.heading("Logging");
    text.section(
        "metric_logger",
        Section::of(&format!("torchtune.training.metric_logging.{logger}")).key("log_dir", "${output_dir}/logs"),
    );
    text.key("log_every_n_steps", &config.log_every.to_string());
    text.key("log_peak_memory_stats", truth(config.memory_stats));
    text.key("log_level", "INFO");
}

/// The profiler.
pub(super) fn profiler(text: &mut Text, enabled: bool) {
    text.heading(if enabled { "Profiler" } else { "Profiler, off unless enabled" });
    text.section(
        "profiler",
        Section::of("torchtune.training.setup_torch_profiler")
            .key("enabled", truth(enabled))
            .key("output_dir", "${output_dir}/profiling_outputs")
            .key("cpu", "True")
            .key("cuda", "True")
            .key("profile_memory", truth(enabled))
            .key("with_stack", truth(enabled))
            .key("record_shapes", "True")
            .key("with_flops", "False")
            .key("wait_steps", "5")
            .key("warmup_steps", "3")
            .key("active_steps", "2")
            .key("num_cycles", "1"),
    );
}
