//! Clumsy and hostile input: each case ends with its own message and exit code 2 before anything is written. The
//! snapshots are the exact words on stderr.

use serde_json::json;

use super::tiny::{Shapes, Tiny, shapes};

const TRAIN: [&str; 4] = ["run", "full_finetune_single_device", "--config", "run.yaml"];
const RANKS: [&str; 6] = ["run", "--nproc_per_node", "2", "full_finetune_distributed", "--config", "run.yaml"];
const GENERATE: [&str; 4] = ["run", "generate", "--config", "generate.yaml"];
const ROW: &str = "{\"input\": \"a\", \"output\": \"b\"}\n";
const CHAT: [&str; 3] = [
    "dataset._component_=torchtune.datasets.chat_dataset",
    "dataset.conversation_column=messages",
    "dataset.conversation_style=openai",
];
const WEIGHTS: &str = "model/model.safetensors";

/// Runs the program in a folder that something is wrong with: exit code 2, nothing on stdout, nothing changed on disk,
/// and the snapshot `name` on stderr.
fn refuse(name: &str, tiny: &Tiny, arguments: &[&str], environment: &[(&str, &str)]) {
    let before = tiny.contents();
    let output = tiny.tune(arguments).envs(environment.iter().copied()).output().expect("the program starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    assert!(tiny.contents() == before, "the folder has changed\n{stderr}");
    snapshot(name, arguments, environment, &stderr);
}

fn snapshot(name: &str, arguments: &[&str], environment: &[(&str, &str)], text: &str) {
    let quoted =
        |argument: &&str| if argument.contains(' ') { format!("'{argument}'") } else { (*argument).to_owned() };
    let mut words: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.push("tune".to_owned());
    words.extend(arguments.iter().map(quoted));
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_description(words.join(" "));
    settings.set_snapshot_path("snapshots/bad_input");
    settings.add_filter(r"log_\d+\.txt", "log_[TIME].txt");
    settings.add_filter(r"[0-9.]+ [GM]iB free", "[FREE] free");
    // What products pack differs between processors.
    settings.add_filter(r"bring it to [0-9.]+ [GM]iB", "bring it to [NEEDED]");
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// One test a line: `name(arguments after the config): what is wrong with the folder`.
macro_rules! refused {
    ($($base:ident $name:ident($($argument:expr),*) $(: |$tiny:ident| $break:expr)?;)*) => {$(
        #[test]
        fn $name() {
            let tiny = Tiny::new();
            $({ let $tiny = &tiny; $break; })?
            let overrides: &[&str] = &[$($argument),*];
            refuse(stringify!($name), &tiny, &[&$base[..], overrides].concat(), &[]);
        }
    )*};
}

/// The weights with some of them renamed or reshaped.
fn changed_weights(tiny: &Tiny, change: impl Fn(&mut Shapes)) {
    let mut all = shapes();
    change(&mut all);
    tiny.write_weights(WEIGHTS, &all);
}

/// Rows of chat whose last one has these roles.
fn chat(roles: [&str; 2]) -> String {
    let row = |roles: [&str; 2]| {
        let messages = roles.map(|role| json!({"role": role, "content": "x"}));
        json!({"messages": messages}).to_string() + "\n"
    };
    row(["user", "assistant"]).repeat(3) + &row(roles)
}

/// A GGUF file with one key and one tensor, whose data is cut off.
fn gguf() -> Vec<u8> {
    let text = |s: &str| [&(s.len() as u64).to_le_bytes()[..], s.as_bytes()].concat();
    let mut file = b"GGUF".to_vec();
    file.extend(3_u32.to_le_bytes());
    file.extend([1_u64, 1].map(u64::to_le_bytes).concat());
    file.extend([text("general.architecture"), 8_u32.to_le_bytes().to_vec(), text("llama")].concat());
    file.extend([text("token_embd.weight"), 2_u32.to_le_bytes().to_vec()].concat());
    file.extend([16_u64, 260].map(u64::to_le_bytes).concat());
    file.extend([0; 12]);
    file.resize(file.len().next_multiple_of(32) + 1000, 0);
    file
}

fn only_gguf(tiny: &Tiny, contents: &[u8]) {
    tiny.remove(WEIGHTS);
    tiny.write("model/tiny.gguf", contents);
}

// The config file.
refused! {
    TRAIN config_is_not_yaml(): |t| t.write("run.yaml", "output_dir: out\nmodel: [1, 2\nbatch_size: 3\n");
    TRAIN config_is_a_list(): |t| t.write("run.yaml", "- a\n- b\n");
    TRAIN config_is_not_text(): |t| t.write("run.yaml", b"output_dir: \xff\xfe\n");
    TRAIN config_is_empty(): |t| t.write("run.yaml", "");
    TRAIN config_refers_to_a_missing_key("output_dir=${output_dri}");
    TRAIN config_refers_to_several_missing_keys("output_dir=${output_dri}", "seed=${oc.env:SEED_OF_NOBODY}");
    TRAIN config_has_several_faults(): |t| t.edit("run.yaml", "batch_size: 2", "batch_size: 2\nbatch_size: =\nseed: !x 1");
    TRAIN config_refers_in_a_circle("output_dir=${checkpointer.output_dir}");
}

// Adapters.
const LORA: [&str; 4] = ["run", "lora_finetune_single_device", "--config", "run.yaml"];
const ADAPTER: [&str; 2] = ["model.lora_attn_modules=[q_proj]", "model.lora_rank=2"];

refused! {
    LORA adapter_is_not_asked_for();
    LORA adapter_without_layers("model.lora_rank=4");
    LORA adapter_on_no_layer("model.lora_attn_modules=[]");
    LORA adapter_on_an_unknown_layer("model.lora_attn_modules=[q_proj, o_proj]");
    LORA adapter_that_drops_everything(ADAPTER[0], "model.lora_dropout=1.0");
    LORA adapter_of_rank_0(ADAPTER[0], "model.lora_rank=0");
    LORA adapter_on_a_builder_without_one("model._component_=torchtune.models.llama2.llama2", ADAPTER[0]);
    LORA adapter_is_not_there(ADAPTER[0], ADAPTER[1], "checkpointer.adapter_checkpoint=a/adapter_model.safetensors");
    LORA adapter_in_another_format(ADAPTER[0], ADAPTER[1], "checkpointer.adapter_checkpoint=model/adapter_0.pt");
    LORA adapter_of_another_rank(ADAPTER[0], "model.lora_rank=3", "checkpointer.adapter_checkpoint=a"): |t| write_adapter(t);
    LORA adapter_of_another_scale(ADAPTER[0], ADAPTER[1], "model.lora_alpha=8", "checkpointer.adapter_checkpoint=a"):
        |t| write_adapter(t);
    LORA adapter_of_other_layers("model.lora_attn_modules=[v_proj]", ADAPTER[1], "checkpointer.adapter_checkpoint=a"):
        |t| write_adapter(t);
    LORA adapter_with_patterns(ADAPTER[0], ADAPTER[1], "checkpointer.adapter_checkpoint=a"): |t| {
        write_adapter(t);
        t.write("a/adapter_config.json", "{\"r\": 2, \"lora_alpha\": 16, \"rank_pattern\": {\"q_proj\": 4}}");
    };
    LORA adapter_on_a_head_that_is_the_embedding(
        ADAPTER[0], "model.apply_lora_to_output=True", "model.tie_word_embeddings=True", "model.init=random");
    LORA adapter_on_the_head_with_dora(ADAPTER[0], "model.apply_lora_to_output=True", "model.use_dora=True");
    TRAIN adapter_in_a_full_run(ADAPTER[0], ADAPTER[1]);
    TRAIN adapter_to_start_a_full_run_from("checkpointer.adapter_checkpoint=a/adapter_model.safetensors");
    GENERATE adapter_to_answer_with("checkpointer.adapter_checkpoint=a/adapter_model.safetensors");
}

// Preferences.
const DPO: [&str; 4] = ["run", "full_dpo_distributed", "--config", "run.yaml"];
const LORA_DPO: [&str; 4] = ["run", "lora_dpo_single_device", "--config", "run.yaml"];
const REFERENCE: [&str; 3] = [
    "ref_checkpointer._component_=torchtune.training.FullModelHFCheckpointer",
    "ref_checkpointer.checkpoint_dir=model",
    "ref_checkpointer.output_dir=out",
];
const PAIRS: &str = "dataset._component_=torchtune.datasets.preference_dataset";
refused! {
    DPO preference_without_a_reference(PAIRS);
    DPO preference_with_rows(REFERENCE[0], REFERENCE[1], REFERENCE[2]);
    DPO preference_with_packed_pairs(PAIRS, "dataset.packed=True", REFERENCE[0], REFERENCE[1], REFERENCE[2]);
    DPO preference_with_the_loss_of_rows(
        PAIRS, REFERENCE[0], REFERENCE[1], REFERENCE[2], "loss._component_=torchtune.modules.loss.LinearCrossEntropyLoss");
    DPO preference_with_a_reference_that_is_not_there(
        PAIRS, REFERENCE[0], "ref_checkpointer.checkpoint_dir=nope", REFERENCE[2]);
    LORA_DPO preference_without_an_adapter(PAIRS);
    LORA_DPO preference_with_beta_0(PAIRS, ADAPTER[0], "loss._component_=torchtune.rlhf.loss.DPOLoss", "loss.beta=0");
    TRAIN preference_in_a_full_run(PAIRS);
}

// Training as if quantised.
const QAT: [&str; 4] = ["run", "qat_single_device", "--config", "run.yaml"];
const QAT_LORA: [&str; 4] = ["run", "qat_lora_finetune_distributed", "--config", "run.yaml"];
const QUANTIZER: &str = "quantizer._component_=torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer";
refused! {
    QAT quantizer_is_not_there();
    QAT quantizer_of_finished_weights("quantizer._component_=torchtune.training.quantization.Int8DynActInt4WeightQuantizer");
    QAT quantizer_is_misspelt("quantizer._component_=torchtune.training.quantization.Int8DynActInt4WeightQatQuantizer");
    QAT quantizer_with_an_unknown_key(QUANTIZER, "quantizer.group_size=8");
    QAT quantizer_with_groups_of_one(QUANTIZER, "quantizer.groupsize=1");
    QAT quantizer_whose_groups_do_not_fit(QUANTIZER);
    QAT quantizer_from_a_step_below_0(QUANTIZER, "fake_quant_after_n_steps=-1");
    QAT quantizer_with_an_adapter(QUANTIZER, ADAPTER[0], ADAPTER[1]);
    QAT_LORA quantizer_without_an_adapter(QUANTIZER);
    QAT_LORA quantizer_with_dora(QUANTIZER, "quantizer.groupsize=8", ADAPTER[0], "model.use_dora=True");
    QAT_LORA quantizer_on_weights_in_4_bits(QUANTIZER, "quantizer.groupsize=8", ADAPTER[0], "model.quantize_base=True");
    QAT_LORA quantizer_on_an_adapter_of_a_layer_with_a_bias(
        QUANTIZER, "quantizer.groupsize=8", ADAPTER[0], "model.init=random"): |t| t.describe(&json!({"model_type": "qwen2"}));
    TRAIN quantizer_in_a_full_run(QUANTIZER);
    LORA quantizer_in_a_run_with_an_adapter(QUANTIZER, ADAPTER[0]);
}

/// An adapter of rank 2 on the queries, with alpha 16.
fn write_adapter(tiny: &Tiny) {
    let name = |part: &str| format!("base_model.model.model.layers.0.self_attn.q_proj.{part}.weight");
    tiny.write_weights(
        "a/adapter_model.safetensors",
        &vec![(name("lora_A"), vec![2, 16]), (name("lora_B"), vec![16, 2])],
    );
    tiny.write("a/adapter_config.json", json!({"r": 2, "lora_alpha": 16, "peft_type": "LORA"}).to_string());
}

// Keys and values.
refused! {
    TRAIN unknown_key_at_top_level(): |t| t.edit("run.yaml", "batch_size: 2", "batch_siz: 2");
    TRAIN unknown_key_in_a_section(): |t| t.edit("run.yaml", "  lr: 1e-3", "  learning_rate: 1e-3");
    TRAIN unknown_key_on_the_command_line("gradient_acumulation_steps=8");
    TRAIN unknown_key_in_a_section_on_the_command_line("checkpointer.checkpoint_dirs=x");
    TRAIN batch_size_zero("batch_size=0");
    TRAIN batch_size_in_the_file_zero(): |t| t.edit("run.yaml", "batch_size: 2", "batch_size: 0");
    TRAIN epochs_zero("epochs=0");
    TRAIN lr_is_a_word("optimizer.lr=abc");
    TRAIN lr_is_nan("optimizer.lr=nan");
    TRAIN lr_is_infinite("optimizer.lr=.inf");
    TRAIN clip_grad_norm_is_minus_infinite("clip_grad_norm=-inf");
    TRAIN offload_of_params("offload.param=disk");
    TRAIN seed_is_too_large("seed=99999999999999999999");
    TRAIN clip_grad_norm_quoted_none("clip_grad_norm='None'");
    TRAIN clip_grad_norm_lower_case_none("clip_grad_norm=none");
    TRAIN shuffle_is_a_word("shuffle=maybe");
    TRAIN dtype_not_known("dtype=fp16");
    TRAIN device_not_there("device=cuda");
    TRAIN component_not_known("optimizer._component_=torch.optim.AdamV");
    TRAIN component_not_available("optimizer._component_=torchao.optim.AdamW4bit");
    TRAIN model_not_available("model._component_=torchtune.models.t5.t5_encoder");
    TRAIN cap_of_another_family("model.hidden_capping_value=50");
    TRAIN cap_beside_another_builder("model._component_=torchtune.models.llama3.llama3_8b", "model.final_capping_value=30");
    TRAIN several_problems("optimizer.lr=abc", "clip_grad_norm=none", "dtype=fp16"):
        |t| t.edit("run.yaml", "batch_size: 2", "batch_size: 0\nepochz: 3");
    TRAIN keys_of_bitsandbytes_that_are_not_available("optimizer._component_=bitsandbytes.optim.PagedAdamW8bit",
        "optimizer.block_wise=False", "optimizer.percentile_clipping=5", "optimizer.amsgrad=True",
        "optimizer.optim_bits=16", "optimizer.is_paged=False", "optimizer.args={}");
    TRAIN blocks_of_torchao_of_another_size("optimizer._component_=torchao.optim.AdamW8bit", "optimizer.block_size=128");
    TRAIN optimizer_in_bwd_with_clipping("optimizer_in_bwd=True", "clip_grad_norm=1.0");
    TRAIN optimizer_in_bwd_with_accumulation(): |t| {
        t.edit("run.yaml", "batch_size: 2", "batch_size: 2\noptimizer_in_bwd: True\ngradient_accumulation_steps: 2");
    };
}

// The command line.
refused! {
    TRAIN override_without_value("batch_size");
    TRAIN override_with_spaces("batch_size", "=4");
    TRAIN override_as_a_flag("--epochs", "3");
    TRAIN override_is_half_a_list("optimizer.betas=[0.9");
    TRAIN removed_key_is_not_there("~dataset.pakced");
    TRAIN several_bad_overrides("~dataset.pakced", "--epochs", "3", "optimizer.betas=[0.9", "seed");
    TRAIN override_of_the_config("config=other.yaml");
    TRAIN override_without_a_key("=5");
    TRAIN output_dir_is_none("output_dir=None");
}

// The checkpoint folder.
refused! {
    TRAIN checkpoint_dir_is_not_there("checkpointer.checkpoint_dir=nope");
    TRAIN weights_are_not_there(): |t| t.remove(WEIGHTS);
    TRAIN listed_weights_are_not_there("checkpointer.checkpoint_files=[weights.safetensors]");
    TRAIN index_names_a_missing_shard(): |t| {
        let map: serde_json::Map<_, _> = shapes().into_iter().map(|(name, _)| {
            let shard = if name.contains("norm") { 2 } else { 1 };
            (name, json!(format!("model-0000{shard}-of-00002.safetensors")))
        }).collect();
        t.write("model/model.safetensors.index.json", json!({"metadata": {}, "weight_map": map}).to_string());
        t.remove(WEIGHTS);
        t.write_weights("model/model-00001-of-00002.safetensors", &shapes());
    };
    TRAIN weights_of_a_wrong_kind("checkpointer.checkpoint_files=[weights.bin]"): |t| t.write("model/weights.bin", "x");
    TRAIN weights_are_pickles(): |t| { t.remove(WEIGHTS); t.write("model/pytorch_model.bin", "x") };
    TRAIN weights_are_a_text(): |t| t.write(WEIGHTS, "these are no weights at all");
    TRAIN weights_are_a_gguf_by_another_name(): |t| t.write(WEIGHTS, gguf());
    TRAIN weights_have_a_wrong_shape(): |t| changed_weights(t, |all| all[3].1 = vec![16, 16]);
    TRAIN weights_have_other_names(): |t| changed_weights(t, |all| {
        all[8].0 = "model.layers.0.mlp.upproj.weight".to_owned();
        all.push(("model.extra.weight".to_owned(), vec![2]));
    });
    TRAIN weights_have_no_head(): |t| changed_weights(t, |all| all.truncate(11));
    TRAIN safetensors_cut_in_its_data(): |t| t.truncate(WEIGHTS, -100);
    TRAIN safetensors_cut_in_its_header(): |t| t.truncate(WEIGHTS, 100);
    TRAIN safetensors_empty(): |t| t.write(WEIGHTS, "");
    TRAIN gguf_cut_in_its_data(): |t| only_gguf(t, &gguf());
    TRAIN gguf_cut_in_its_header(): |t| only_gguf(t, &gguf()[..50]);
    TRAIN gguf_is_a_text(): |t| only_gguf(t, b"these are no weights at all");
    TRAIN config_json_is_not_there(): |t| t.remove("model/config.json");
    TRAIN config_json_is_not_json(): |t| t.write("model/config.json", "{\"hidden_size\": 16,");
    TRAIN config_json_of_another_architecture(): |t| t.describe(&json!({"model_type": "gpt2"}));
    TRAIN config_json_holds_a_text(): |t| t.describe(&json!({"hidden_size": "16"}));
    TRAIN config_json_heads_do_not_divide(): |t| t.describe(&json!({"num_attention_heads": 3}));
    TRAIN config_json_has_a_billion_layers(): |t| t.describe(&json!({"num_hidden_layers": 1_000_000_000}));
    TRAIN config_json_has_more_layers(): |t| t.describe(&json!({"num_hidden_layers": 2}));
    TRAIN builder_of_another_size("model._component_=torchtune.models.llama2.llama2_7b");
}

// The tokenizer.
refused! {
    TRAIN tokenizer_is_not_there("tokenizer.path=nope.json");
    TRAIN tokenizer_is_not_in_the_folder(): |t| t.remove("model/tokenizer.json");
    TRAIN tokenizer_is_other_json(): |t| t.write("model/tokenizer.json", "{\"a\": 1}");
    TRAIN tokenizer_is_a_text(): |t| t.write("model/tokenizer.json", "hello");
    TRAIN tokenizer_is_no_sentencepiece_model(
        "tokenizer._component_=torchtune.models.llama2.llama2_tokenizer", "tokenizer.path=run.yaml");
    TRAIN vocabulary_smaller_than_a_token_id(): |t| {
        t.describe(&json!({"vocab_size": 200}));
        changed_weights(t, |all| for i in [0, 11] { all[i].1[0] = 200 });
    };
}

// The rows.
refused! {
    TRAIN dataset_is_not_there("dataset.data_files=nope.jsonl");
    TRAIN dataset_is_empty(): |t| t.write("rows.jsonl", "");
    TRAIN dataset_split_is_empty("dataset.split=train[8:]");
    TRAIN dataset_split_is_wrong("dataset.split=train[:x]");
    TRAIN dataset_on_a_hub("dataset.source=tatsu-lab/alpaca", "~dataset.data_files");
    TRAIN row_without_a_column(): |t| t.write("rows.jsonl", ROW.repeat(4) + "{\"input\": \"a\", \"answer\": \"b\"}\n");
    TRAIN row_of_the_second_dataset_without_a_column(): |t| {
        t.write("more.jsonl", "{\"input\": \"a\", \"answer\": \"b\"}\n");
        let section = "  _component_: torchtune.datasets.instruct_dataset\n  source: json\n  data_files:";
        let second = section.replacen("  _", "- _", 1);
        t.edit("run.yaml", &format!("{section} rows.jsonl\n"), &format!("{second} rows.jsonl\n{second} more.jsonl\n"));
    };
    TRAIN row_with_a_list_for_a_text(): |t| t.write("rows.jsonl", ROW.repeat(4) + "{\"input\": \"a\", \"output\": [1]}\n");
    TRAIN row_is_not_an_object(): |t| t.write("rows.jsonl", ROW.repeat(4) + "[\"a\"]\n");
    TRAIN row_is_not_json(): |t| t.write("rows.jsonl", ROW.repeat(4) + "{\"input\": \"a\", \"output\"\n");
    TRAIN row_is_not_utf8(): |t| {
        t.write("rows.jsonl", [ROW.repeat(4).as_bytes(), b"{\"input\": \"a\xff\", \"output\": \"b\"}\n"].concat());
    };
    TRAIN row_with_a_misspelt_role(CHAT[0], CHAT[1], CHAT[2]): |t| t.write("rows.jsonl", chat(["user", "asistant"]));
    TRAIN row_longer_than_the_model("~tokenizer.max_seq_len"): |t| {
        let long = json!({"input": "x".repeat(80), "output": "b"}).to_string();
        t.write("rows.jsonl", ROW.repeat(4) + &long + "\n" + ROW);
    };
    TRAIN pack_longer_than_the_model("dataset.packed=True", "tokenizer.max_seq_len=100");
    TRAIN rows_are_masked_whole("tokenizer.max_seq_len=8", "dataset.train_on_input=False"): |t| {
        let masked = json!({"input": "x".repeat(20), "output": "b"}).to_string() + "\n";
        t.write("rows.jsonl", masked.repeat(6));
    };
    TRAIN array_is_cut(): |t| t.write("rows.jsonl", "[{\"input\": \"a\", \"output\": \"b\"}, {\"input\":");
    TRAIN rows_too_few_for_one_step(): |t| t.write("rows.jsonl", ROW);
    TRAIN rows_too_few_to_accumulate("gradient_accumulation_steps=8");
    TRAIN batch_of_more_rows_than_can_be_counted("batch_size=8", "gradient_accumulation_steps=9223372036854775807");
}

// Several ranks.
refused! {
    RANKS rows_too_few_for_the_ranks("batch_size=8");
    RANKS layer_that_the_model_has_not("custom_sharded_layers=[tok_embeddings, layers.7]");
    RANKS checkpointing_of_single_ops("ac_mode=selective", "ac_option=op");
}

// The output folder.
refused! {
    TRAIN output_dir_below_a_file("output_dir=run.yaml/out");
    TRAIN output_dir_is_a_file("output_dir=run.yaml");
    TRAIN output_dir_inside_checkpoint_dir("output_dir=model/out");
    TRAIN output_dir_is_checkpoint_dir("output_dir=./model/../model");
    TRAIN own_output_dir_is_checkpoint_dir(
        "output_dir=model", "checkpointer.output_dir=out", "metric_logger.log_dir=logs");
    TRAIN log_dir_inside_checkpoint_dir("metric_logger.log_dir=model/logs");
    TRAIN log_dir_below_a_file("metric_logger.log_dir=run.yaml/logs");
    TRAIN output_dir_holds_another_run(): |t| t.train(&[]);
}

// Resuming.
refused! {
    TRAIN resume_without_a_checkpoint("resume_from_checkpoint=True");
    TRAIN resume_from_a_damaged_checkpoint("resume_from_checkpoint=True", "epochs=2"): |t| {
        t.train(&[]);
        t.truncate("out/epoch_0/model.safetensors", 500);
    };
    TRAIN resume_with_nothing_left("resume_from_checkpoint=True"): |t| t.train(&[]);
    TRAIN resume_with_another_optimizer(
        "resume_from_checkpoint=True", "epochs=2", "optimizer=torch.optim.SGD"): |t| t.train(&[]);
    TRAIN resume_with_moments_in_8_bits("resume_from_checkpoint=True", "epochs=2",
        "optimizer._component_=bitsandbytes.optim.AdamW", "optimizer.optim_bits=8"): |t| t.train(&[]);
    TRAIN resume_with_moments_no_longer_in_8_bits("resume_from_checkpoint=True", "epochs=2"): |t| {
        t.train(&["optimizer._component_=bitsandbytes.optim.AdamW", "optimizer.optim_bits=8"]);
    };
    TRAIN resume_with_another_shape("resume_from_checkpoint=True", "epochs=2"): |t| {
        t.train(&[]);
        t.describe(&json!({"intermediate_size": 16}));
        changed_weights(t, |all| {
            for (name, shape) in all.iter_mut().filter(|(name, _)| name.contains("mlp")) {
                shape[usize::from(name.contains("down_proj"))] = 16;
            }
        });
    };
}

// Generating.
refused! {
    GENERATE prompt_is_not_there(): |t| t.edit("generate.yaml", "prompt:\n  user: Say hello\n", "");
    GENERATE prompt_without_a_user(): |t| t.edit("generate.yaml", "  user: Say hello", "  system: Be brief");
    GENERATE prompt_longer_than_the_model(
        "prompt.user=Sixty-four tokens are not enough for a question that goes on and on like this one");
    GENERATE temperature_below_zero("temperature=-1");
    GENERATE model_to_ask_is_not_there("checkpointer.checkpoint_dir=nope");
}

#[test]
fn usage() {
    let tiny = Tiny::new();
    let recipe = TRAIN[1];
    for (name, arguments) in [
        ("unknown_verb", &["rum"][..]),
        ("config_is_not_there", &["run", recipe, "--config", "nope.yaml"]),
        ("config_is_not_given", &["run", recipe, "batch_size=2"]),
        ("recipe_is_not_given", &["run", "--config", "run.yaml"]),
        ("recipe_is_misspelt", &["run", "full_finetune_single_devise", "--config", "run.yaml"]),
        ("recipe_is_not_known", &["run", "my_recipe", "--config", "run.yaml"]),
        ("config_of_another_recipe", &["run", "generate", "--config", "run.yaml"]),
    ] {
        refuse(name, &tiny, arguments, &[]);
    }
}

#[test]
fn environment() {
    let tiny = Tiny::new();
    for (name, variable, value) in [
        ("threads_zero", "FERROTUNE_NUM_THREADS", "0"),
        ("threads_a_million", "FERROTUNE_NUM_THREADS", "1000000"),
        ("instruction_set_not_known", "FERROTUNE_CPU_ISA", "nonsense"),
    ] {
        refuse(name, &tiny, &TRAIN, &[(variable, value)]);
    }
}

#[test]
fn the_config_may_stand_anywhere_behind_the_recipe() {
    for arguments in [
        ["run", TRAIN[1], "epochs=1", "--config", "run.yaml"].as_slice(),
        &["run", TRAIN[1], "--config=run.yaml", "epochs=1"],
        &["run", TRAIN[1], "epochs=1", "--config=run.yaml", "seed=2"],
        &["run", "--config", "run.yaml", TRAIN[1], "epochs=1"],
    ] {
        let tiny = Tiny::new();
        super::common::succeed(&mut tiny.tune(arguments));
        assert!(tiny.path("out/epoch_0/model.safetensors").is_file());
    }
}

/// A run that fails in its course: exit code 1, and the snapshot `name` of what is said after the progress bar.
fn fail(name: &str, tiny: &Tiny, overrides: &[&str]) {
    let arguments = [&TRAIN[..], overrides].concat();
    let output = tiny.tune(&arguments).output().expect("the program starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
    snapshot(name, &arguments, &[], &stderr[stderr.find("error:").expect("an error")..]);
}

/// The checkpoints of a run, all of whose weights must be finite.
fn checkpoints(tiny: &Tiny) -> Vec<String> {
    let entries = std::fs::read_dir(tiny.path("out")).expect("listed");
    let names = entries.map(|entry| entry.expect("listed").file_name().to_string_lossy().into_owned());
    let mut found: Vec<String> = names.filter(|name| !["logs", "torchtune_config.yaml"].contains(&&**name)).collect();
    found.sort();
    for name in &found {
        let bytes = std::fs::read(tiny.path(&format!("out/{name}/model.safetensors"))).expect("saved");
        let file = safetensors::SafeTensors::deserialize(&bytes).expect("well formed");
        for (tensor, view) in file.tensors() {
            let mut values = view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes")));
            assert!(values.all(f32::is_finite), "{name}: {tensor}");
        }
    }
    found
}

#[test]
fn loss_that_is_not_finite_keeps_the_last_checkpoint() {
    let tiny = Tiny::new();
    fail("loss_is_not_finite", &tiny, &["optimizer.lr=1e14", "save_every_n_steps=1"]);
    assert_eq!(checkpoints(&tiny), ["step_1"]);
}

#[test]
fn loss_that_is_not_finite_before_the_first_checkpoint() {
    let tiny = Tiny::new();
    fail("loss_is_not_finite_early", &tiny, &["optimizer.lr=1e38"]);
    assert!(checkpoints(&tiny).is_empty());
}

#[test]
fn weights_that_are_not_finite_are_not_saved() {
    let tiny = Tiny::new();
    fail("weights_are_not_finite", &tiny, &["optimizer.lr=1e300", "save_every_n_steps=1"]);
    assert!(checkpoints(&tiny).is_empty());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_stdout_ends_a_run() {
    let tiny = Tiny::new();
    let logger = "metric_logger=torchtune.training.metric_logging.StdoutLogger";
    for arguments in [&GENERATE[..], &[&TRAIN[..], &[logger]].concat()] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("there");
        let output = tiny.tune(arguments).stdout(full).output().expect("the program starts");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        let error = &stderr[stderr.find("error:").expect("an error")..];
        assert!(error.contains("stdout") && error.contains("No space left on device"), "{error}");
        assert_eq!(error.matches("error").count(), 2, "said once: {error}");
        assert_eq!(output.status.code(), Some(1), "{error}");
    }
}

#[test]
fn an_answer_that_nobody_reads_is_no_failure() {
    let tiny = Tiny::new();
    let mut child = tiny.tune(&GENERATE).stdout(std::process::Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("ends").success());
}

/// A model and rows whose activations weigh more than everything else.
fn with_long_rows(tiny: &Tiny) {
    let row = |i: usize| json!({"input": format!("{i} {}", "ab ".repeat(650)), "output": "c"}).to_string() + "\n";
    tiny.write("rows.jsonl", (0..8).map(row).collect::<String>());
    tiny.write(
        "model/config.json",
        json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260, "hidden_size": 64,
            "intermediate_size": 1024, "num_hidden_layers": 20, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": true,
        })
        .to_string(),
    );
}

const LONG_ROWS: [&str; 3] = ["model.init=random", "tokenizer.max_seq_len=4096", "batch_size=4"];

#[cfg(target_os = "linux")]
#[test]
fn memory_is_not_enough_but_would_be() {
    let tiny = Tiny::new();
    with_long_rows(&tiny);
    let before = tiny.contents();
    let arguments = [&TRAIN[..], &LONG_ROWS].concat();
    let inner = tiny.tune(&arguments);
    let mut command = std::process::Command::new("sh");
    // The kernel's own limit, as on a machine or in a job that has no more.
    command.args(["-c", "ulimit -v 2000000 && exec \"$0\" \"$@\""]).arg(inner.get_program()).args(inner.get_args());
    command.current_dir(tiny.path("")).env("FERROTUNE_NUM_THREADS", "2").env("HF_HUB_OFFLINE", "1");
    let output = command.output().expect("a shell starts");
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(tiny.contents() == before, "the folder has changed");
    snapshot("memory_is_not_enough_but_would_be", &arguments, &[], &stderr);
}

#[test]
fn memory_is_not_enough_for_any_settings() {
    let tiny = Tiny::new();
    with_long_rows(&tiny);
    tiny.edit("model/config.json", "\"hidden_size\":64", "\"hidden_size\":1048576");
    refuse("memory_is_not_enough_for_any_settings", &tiny, &[&TRAIN[..], &LONG_ROWS].concat(), &[]);
}
