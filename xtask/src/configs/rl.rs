//! Configs that learn from rewards: PPO and GRPO.

use super::header;
use super::models::Model;
use super::parts::{self, truth};
use super::table::Config;
use super::text::{Section, Text};

/// A checkpointer without more than it needs.
fn reader(model: &Model, checkpoint_dir: &str, output_dir: &str) -> Section {
    parts::checkpointer(model, checkpoint_dir, output_dir, model.family.model_type)
}

/// A file of `ppo_full_finetune_single_device`.
pub(super) fn ppo(config: &Config) -> String {
    let mut text = Text::default();
    let reward = header::reward_model(config);
    let what = format!(
        "Trains every weight of {} to continue {} so that {} likes them, on one device (PPO).",
        config.model.title,
        header::data(config.data),
        reward.title
    );
    header::write(&mut text, config, &what, "kl_coeff=0.05");
    text.blank();
    text.remark("Checkpoints, logs and the config as it was run go here");
    text.key("output_dir", &parts::output_dir(config));

    text.heading("Models: the one that writes, and the one that scores");
    if config.model.builder == "llama2" {
        text.section("policy_model", parts::tiny_llama(Section::of("torchtune.models.llama2.llama2")));
        let scorer = Section::of("torchtune.models.llama2.llama2_classifier").key("num_classes", "1");
        text.section("reward_and_value_model", parts::tiny_llama(scorer));
    } else {
        text.section("policy_model", parts::model(config));
        text.section("reward_and_value_model", mistral_scorer());
    }
    text.heading("Tokenizer");
    text.section("tokenizer", parts::tokenizer(config, false));

    text.heading("Checkpoints: policy, the policy as it was, value and reward");
    let (dir, reward_dir) = (config.model.checkpoint_dir(), reward.checkpoint_dir());
    let policy = reader(config.model, &dir, "${output_dir}/policy");
    text.section("checkpointer", policy.key("recipe_checkpoint", "null"));
    text.section("ref_policy_checkpointer", reader(config.model, &dir, "${output_dir}/policy"));
    text.section("value_checkpointer", reader(reward, &reward_dir, "${output_dir}/value"));
    text.section("reward_checkpointer", reader(reward, &reward_dir, "${output_dir}/value"));
    text.noted("resume_from_checkpoint", "False", "True goes on from the newest checkpoint in output_dir");

    text.heading("Data: texts to be continued");
    text.section("dataset", parts::dataset(config));
    text.key("shuffle", "True");
    text.noted("seed", "null", "null = another one each run");

    ppo_numbers(&mut text, config);
    parts::logging(&mut text, config, "DiskLogger");
    parts::profiler(&mut text, false);
    text.finish()
}

/// Mistral 7B with a score for a head, its vocabulary larger by the padding token.
fn mistral_scorer() -> Section {
    Section::of("torchtune.modules.classifier_model")
        .key("base_model_path", "torchtune.models.mistral.mistral_7b")
        .key("num_classes", "1")
        .key("vocab_size", "32001")
        .key("num_layers", "32")
        .key("num_heads", "32")
        .key("num_kv_heads", "8")
        .key("embed_dim", "4096")
        .key("intermediate_dim", "14336")
        .key("max_seq_len", "32768")
        .key("attn_dropout", "0.0")
        .key("norm_eps", "1e-5")
}

fn ppo_numbers(text: &mut Text, config: &Config) {
    let is_mistral = config.model.package == "mistral";
    let batch = config.batch_size.to_string();
    text.heading("Texts: how they are written and scored");
    text.noted("batch_size", &batch, "texts between two updates");
    text.noted("forward_batch_size", &batch, "texts that are written at once");
    text.noted("num_steps", if is_mistral { "10000" } else { "1000" }, "texts in all");
    text.noted("max_generated_tokens", "58", "longest continuation");
    text.noted("min_response_length", "18", "shorter ones get reward_penalty");
    text.noted("penalise_no_eos", "True", "so do those that do not end by themselves");
    text.key("reward_penalty", "-3");
    let period = if is_mistral { "[2, 28723]" } else { "[2, 29889]" };
    text.noted("stop_token_ids", period, "end of text, period");
    text.noted("temperature", "0.7", "below 1 prefers likely tokens");
    text.noted("top_k", "null", "null = all tokens may be drawn");
    text.key("enable_kv_cache", "True");

    text.heading("Updates");
    text.noted("ppo_epochs", "1", "passes over the texts of a batch");
    text.noted("ppo_batch_size", &batch, "texts of an optimizer step");
    text.noted("gradient_accumulation_steps", "1", "parts that such a step is done in");
    text.noted("gamma", "1", "how much later rewards count");
    text.noted("lmbda", "0.95", "how far an advantage looks ahead");
    text.noted("kl_coeff", "0.01", "a higher one stays closer to the model as it was");
    text.noted("whiten_rewards", "False", "without effect");
    let loss = Section::of("torchtune.rlhf.loss.PPOLoss");
    text.section("loss", loss.key("epsilon", "0.2").key("value_coeff", "0.1").key("value_clip_range", "0.2"));
    text.section("optimizer", parts::optimizer(config));
    text.noted("optimizer_in_bwd", truth(config.optimizer_in_bwd), "True updates as gradients come and keeps none");
    parts::schedule(text, config);

    text.heading("Device, precision and memory");
    text.noted("device", "auto", "what is there");
    text.key("dtype", "bf16");
    text.noted("enable_activation_checkpointing", "True", "True computes activations twice instead of keeping them");
    text.noted("compile", truth(config.compile), "concerns PyTorch alone");
}

/// The rewards of an answer in tags.
fn rewards() -> Vec<Section> {
    vec![
        Section::of("torchtune.dev.rl.rewards.FormattedMathCorrectnessReward")
            .key("answer_tag", "answer")
            .key("positive_reward", "10.0")
            .key("negative_reward", "0.0"),
        Section::of("torchtune.dev.rl.rewards.ThinkingAnswerFormattingReward")
            .key("think_tag", "think")
            .key("answer_tag", "answer")
            .key("positive_reward", "1.0")
            .key("negative_reward", "0.0"),
    ]
}

/// Name and folders of a run, which other keys refer to.
fn grpo_place(text: &mut Text, name: &str, base_model_path: &str) {
    text.remark(
        "Checkpoints, logs and the config as it was run go to output_dir; training starts from base_model_path",
    );
    text.key("name", name);
    text.key("output_dir", "/tmp/checkpoints/${name}");
    text.key("base_model_path", base_model_path);
}

/// A file of `dev/grpo_full_finetune_distributed`.
pub(super) fn grpo(config: &Config) -> String {
    let mut text = Text::default();
    let is_llama = config.model.package == "llama3_2";
    let what = format!(
        "Trains every weight of {} to reason about {}, by rewarding right answers among several, {} (GRPO).",
        config.model.title,
        header::data(config.data),
        header::devices(config)
    );
    header::write(&mut text, config, &what, "grpo_samples=8");
    if is_llama {
        text.gap();
        text.remark(
            "It goes on from what config dev/3B_sft_for_grpo leaves behind, which has learnt the form of an answer.",
        );
    }
    text.blank();
    let (name, base) = if is_llama {
        ("grpo_llama3b", "/tmp/llama3B_gsm8k_sft_part0/epoch_0".to_owned())
    } else {
        ("grpo_sync_qwen3b", config.model.folder())
    };
    grpo_place(&mut text, name, &base);
    text.heading("Model");
    text.section("model", parts::model(config));
    text.heading("Tokenizer");
    text.section("tokenizer", parts::tokenizer(config, false));
    text.heading("Checkpoints: the model, and the model as it was");
    for (key, output_dir) in [("checkpointer", "${output_dir}"), ("ref_checkpointer", "${output_dir}/ref")] {
        let section = reader(config.model, "${base_model_path}", output_dir);
        text.section(key, section.key("recipe_checkpoint", "null"));
    }
    text.noted("resume_from_checkpoint", "False", "True goes on from the newest checkpoint in output_dir");
    text.key("save_every_n_epochs", "1");
    text.heading("Data");
    text.section("dataset", parts::dataset(config));
    text.key("shuffle", "False");
    text.noted("seed", "null", "null = another one each run");

    text.heading("Answers: how they are written and rewarded");
    text.noted("batch_size", "1", "questions of a step");
    text.noted("grpo_samples", "16", "answers to each");
    text.noted("forward_batch_size", "1", "questions that are answered at once");
    text.key("max_generated_tokens", "512");
    text.noted("temperature", "1.0", "below 1 prefers likely tokens");
    text.noted("top_k", "null", "null = all tokens may be drawn");
    if !is_llama {
        text.list("reward_functions", rewards());
    }

    text.heading("Updates");
    text.noted("epochs", "10", "passes over the questions");
    text.noted("num_steps", "200", "steps in all at most");
    text.noted("ppo_epochs", "1", "passes over the answers of a step");
    text.noted("clip_grad_norm", "1.0", "longest gradient; null = no limit");
    let loss = Section::of("torchtune.dev.grpo.loss.GRPOSimpleLoss");
    let kl = loss.noted("kl_coeff", "0.01", "a higher one stays closer to the model as it was");
    text.section("loss", kl.key("epsilon", "0.2"));
    text.section("optimizer", parts::optimizer(config));
    parts::schedule(&mut text, config);

    text.heading("Device, precision and memory");
    text.noted("device", "auto", "what is there");
    text.key("dtype", "bf16");
    text.noted("enable_activation_checkpointing", "True", "True computes activations twice instead of keeping them");
    text.noted("compile", "False", "concerns PyTorch alone");
    parts::logging(&mut text, config, if is_llama { "DiskLogger" } else { "WandBLogger" });
    parts::profiler(&mut text, true);
    text.finish()
}

/// The file of `dev/async_grpo_full_finetune_distributed`.
pub(super) fn async_grpo(config: &Config) -> String {
    let mut text = Text::default();
    let what = format!(
        "Trains every weight of {} to reason about {}, while other processes write and score the answers (GRPO).",
        config.model.title,
        header::data(config.data)
    );
    header::write(&mut text, config, &what, "inference.group_size=8 inference.total_batch_size=8");
    text.blank();
    grpo_place(&mut text, "grpo_async_qwen3b", &config.model.folder());
    text.heading("Model");
    text.section("model", parts::model(config));
    text.heading("Tokenizer");
    let tokenizer = Section::of("torchtune.models.qwen2_5.qwen2_5_tokenizer")
        .key("path", "${base_model_path}/vocab.json")
        .key("merges_file", "${base_model_path}/merges.txt")
        .noted("max_seq_len", "1024", "in tokens; longer rows are cut");
    text.section("tokenizer", tokenizer);
    text.heading("Data");
    text.section("dataset", parts::dataset(config));
    text.key("shuffle", "False");
    text.heading("Processes");
    text.section("orchestration", orchestration());
    text.heading("Writing answers");
    text.section("inference", inference());
    text.heading("Scoring answers");
    let reference = reader(config.model, "${base_model_path}", "${output_dir}/ref");
    text.section("postprocessing", Section::default().section("ref_checkpointer", reference));
    text.list("reward_functions", rewards());
    text.heading("Training");
    text.section("training", learning(config));
    parts::logging(&mut text, config, "WandBLogger");
    text.key("debug_logging_enabled", "False");
    text.key("debug_num_samples_per_step", "1");
    parts::profiler(&mut text, false);
    text.finish()
}

fn orchestration() -> Section {
    Section::default()
        .key("num_inference_workers", "4")
        .key("num_postprocessing_workers", "1")
        .key("num_training_workers", "2")
        .key("replay_buffer_size", "${inference.batch_size}")
        .key("num_steps", "250")
}

fn inference() -> Section {
    Section::default()
        .key("engine", "vllm")
        .key("model", "${base_model_path}")
        .key("top_k", "null")
        .key("temperature", "1.0")
        .key("tensor_parallel_dim", "1")
        .key("max_generated_tokens", "512")
        .noted("batch_size", "1", "questions at once")
        .noted("group_size", "16", "answers to each")
        .noted("total_batch_size", "16", "batch_size * group_size")
        .key("steps_before_weight_sync", "1")
        .noted("queue_maxsize", "8", "orchestration.num_inference_workers * training.steps_before_weight_sync")
}

fn learning(config: &Config) -> Section {
    let loss =
        Section::of("torchtune.dev.rl.linear_grpo_loss.LinearGRPOLoss").key("kl_coeff", "0.01").key("epsilon", "0.2");
    let checkpointer = reader(config.model, "${base_model_path}", "${output_dir}").key("recipe_checkpoint", "null");
    Section::default()
        .section("checkpointer", checkpointer)
        .noted("batch_size", &config.batch_size.to_string(), "answers of an optimizer step")
        .noted("ppo_epochs", "1", "passes over the answers")
        .key("clip_grad_norm", "1.0")
        .key("save_every_n_steps", "250")
        .section("optimizer", parts::optimizer(config))
        .section("loss", loss)
        .key("steps_before_weight_sync", "2")
        .key("device", "auto")
        .key("dtype", "bf16")
        .key("enable_activation_checkpointing", truth(config.recompute))
        .key("enable_activation_offloading", truth(config.offload))
        .key("compile", "False")
        .noted("seed", "null", "null = another one each run")
}
