//! Configs that train nothing: generation, evaluation, quantisation.

use super::header;
use super::parts;
use super::table::Config;
use super::text::{Section, Text};
use super::train;

/// The first keys of all of them.
fn begin(config: &Config, what: &str, example: &str, output_dir: &str) -> Text {
    let mut text = Text::default();
    header::write(&mut text, config, what, example);
    text.blank();
    text.remark("Only other keys refer to this one: nothing is written");
    text.key("output_dir", output_dir);
    text.heading("Model and weights");
    text.section("model", parts::model(config));
    text.section("checkpointer", parts::own_checkpointer(config));
    text
}

/// Device, precision and seed.
fn device(text: &mut Text) {
    text.heading("Device, precision and chance");
    text.noted("device", "auto", "what is there");
    text.key("dtype", "bf16");
    text.noted("seed", "1234", "the same seed gives the same answers");
}

/// How tokens are drawn.
fn sampling(text: &mut Text, max_new_tokens: &str) {
    text.noted("max_new_tokens", max_new_tokens, "an answer that does not end by itself is cut off here");
    text.noted("temperature", "0.6", "0 = always the likeliest token");
    text.noted("top_k", "300", "how many tokens may be drawn; null = all");
}

/// The file of `generate`.
pub(super) fn generate(config: &Config) -> String {
    let what = format!("Asks {} and prints its answer.", config.model.title);
    let mut text = begin(config, &what, "prompt.user=\"Why is the sky blue?\"", "./");
    text.heading("Tokenizer");
    text.section("tokenizer", parts::tokenizer(config, true));
    text.heading("Prompt and answer");
    text.section("prompt", Section::default().key("system", "null").key("user", "Tell me a joke."));
    sampling(&mut text, "300");
    text.noted("enable_kv_cache", "True", "keeps what is known of earlier tokens");
    text.noted("quantizer", "null", "for weights that were quantised; null = they were not");
    device(&mut text);
    text.finish()
}

/// A file of `dev/generate_v2`.
pub(super) fn generate_v2(config: &Config) -> String {
    let is_vision = config.model.package == "llama3_2_vision";
    let asks = if is_vision { "about a picture" } else { "" };
    let what = format!("Asks {} {asks} and prints its answer.", config.model.title).replace("  ", " ");
    let example =
        if is_vision { "prompt.user.text=\"How high is it?\"" } else { "prompt.user=\"Why is the sky blue?\"" };
    let mut text = begin(config, &what, example, "./");
    text.heading("Tokenizer");
    text.section("tokenizer", parts::tokenizer(config, is_vision));
    text.heading("Prompt and answer");
    let prompt = if is_vision {
        let user = Section::default().key("image", STATUE).key("text", "What is in this image?");
        let system = "You are a helpful assistant who responds like the author Shakespeare.";
        Section::default().key("system", system).section("user", user)
    } else {
        let system = "You are a helpful and creative AI assistant.";
        Section::default().key("system", system).key("user", "What is the capital of France?")
    };
    text.section("prompt", prompt);
    sampling(&mut text, "200");
    device(&mut text);
    text.key("log_level", "INFO");
    text.finish()
}

const STATUE: &str = "https://cdn.britannica.com/61/93061-050-99147DCE/Statue-of-Liberty-Island-New-York-Bay.jpg";
const BABOON: &str =
    "https://upload.wikimedia.org/wikipedia/commons/thumb/4/4c/Olive_baboon.jpg/330px-Olive_baboon.jpg";

/// A file of `dev/generate_v2_distributed`.
pub(super) fn generate_v2_distributed(config: &Config) -> String {
    let is_llama4 = config.model.package == "llama4";
    let what =
        format!("Asks {}, each of its layers divided over several devices, and prints its answer.", config.model.title);
    let mut text = begin(config, &what, "prompt.user.text=\"Why is the sky blue?\"", "./");
    text.heading("Tokenizer");
    text.section("tokenizer", parts::tokenizer(config, !is_llama4));
    text.heading("Prompt and answer");
    let user = if is_llama4 {
        let user = Section::default().key("image", BABOON).key("text", "What is in this image?");
        let system = "You are a helpful assistant who responds like the author Shakespeare.";
        Section::default().key("system", system).section("user", user)
    } else {
        Section::default().key("system", "null").section("user", Section::default().key("text", "Tell a joke."))
    };
    text.section("prompt", user);
    sampling(&mut text, "200");
    text.heading("Several devices");
    text.section("tensor_parallel_plan", train::tensor_parallel_plan(config));
    if is_llama4 {
        text.noted("use_distributed_state_dict", "True", "each device reads its own part of the weights");
        text.noted("use_flex", "True", "concerns PyTorch alone");
    }
    device(&mut text);
    text.key("log_level", "INFO");
    text.finish()
}

/// A file of `eleuther_eval`.
pub(super) fn evaluation(config: &Config) -> String {
    let is_vision = config.model.package == "llama3_2_vision";
    let (task, about) = if is_vision {
        ("mmmu_val_science", "questions about scientific pictures (MMMU)")
    } else {
        ("truthfulqa_mc2", "questions that people often answer wrongly (TruthfulQA)")
    };
    let what = format!("Evaluates {} on {about}, with the EleutherAI evaluation harness.", config.model.title);
    let mut text = begin(config, &what, "limit=100", "./");
    text.heading("Tokenizer");
    text.section("tokenizer", parts::tokenizer(config, false));
    text.heading("Evaluation");
    text.noted("tasks", &format!("[{task}]"), "names of the harness");
    text.noted("limit", "null", "rows of each task at most; null = all");
    text.noted(
        "max_seq_length",
        if is_vision { "8192" } else { "4096" },
        "longest question with its answer, in tokens",
    );
    text.noted("batch_size", &config.batch_size.to_string(), "questions at once");
    text.noted("enable_kv_cache", "True", "keeps what is known of earlier tokens");
    text.noted("quantizer", "null", "for weights that were quantised; null = they were not");
    device(&mut text);
    text.finish()
}

/// The file of `quantize`.
pub(super) fn quantise(config: &Config) -> String {
    let what =
        format!("Quantises the weights of {} to 4 bits, and its activations to 8 as they come.", config.model.title);
    let mut text = Text::default();
    header::write(&mut text, config, &what, "quantizer.groupsize=128");
    text.blank();
    text.remark("The quantised weights go here");
    text.key("output_dir", "/tmp/torchtune/llama2_7B/quantized");
    text.heading("Model and weights");
    text.section("model", parts::model(config));
    text.section("checkpointer", parts::own_checkpointer(config));
    text.heading("Quantisation");
    text.section("quantizer", train::quantizer("Int8DynActInt4WeightQuantizer"));
    device(&mut text);
    text.finish()
}
