//! The built-in configs: the folder against the registry, every file against the recipe it is for, and the values that the
//! table they are made from must have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use config::{Merged, Node, Problem, ProblemKind, Written};
use recipes::registry::{self, BuiltInConfig, Recipe};

/// Every built-in config with the recipe it is for.
fn built_in() -> impl Iterator<Item = (&'static Recipe, &'static BuiltInConfig)> {
    registry::all().iter().flat_map(|recipe| recipe.configs.iter().map(move |config| (recipe, config)))
}

fn merged(config: &BuiltInConfig, overrides: &[String]) -> Merged {
    let written = Written::parse(config.name, config.text).unwrap_or_else(|e| panic!("{}: {e}", config.name));
    written.with_overrides(overrides).and_then(|w| w.resolve()).unwrap_or_else(|e| panic!("{}: {e}", config.name))
}

/// A config text checked as one of a recipe that is not built: what is wrong, and what is noticed.
fn check(text: &str) -> (Vec<Problem>, Vec<String>) {
    let recipe = registry::find("dev/early_exit_finetune_distributed").expect("registered");
    assert!(!recipe.is_available);
    let problems = recipes::check(recipe, &Merged::from_text("run.yaml", text).expect("valid YAML"));
    let is_recipe = |p: &&Problem| matches!(p.kind, ProblemKind::NotAvailable { role: "recipe", .. });
    let found = problems.iter().filter(|p| !is_recipe(p)).cloned().collect();
    (found, problems.notices().iter().map(ToString::to_string).collect())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a folder's entry").path();
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}

#[test]
fn the_folder_and_the_registry_hold_the_same_configs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let mut files = Vec::new();
    collect(&folder, &mut files);
    let name_of = |path: &PathBuf| {
        let path = path.strip_prefix(&folder).unwrap().with_extension("");
        path.components().map(|part| part.as_os_str().to_str().unwrap().to_owned()).collect::<Vec<_>>().join("/")
    };
    let there: BTreeMap<String, String> =
        files.iter().map(|path| (name_of(path), std::fs::read_to_string(path).unwrap())).collect();
    let registered: BTreeMap<String, String> =
        built_in().map(|(_, config)| (config.name.to_owned(), config.text.to_owned())).collect();
    assert!(files.iter().all(|path| path.extension().is_some_and(|extension| extension == "yaml")));
    assert_eq!(there.keys().collect::<Vec<_>>(), registered.keys().collect::<Vec<_>>());
    assert_eq!(there, registered);
    assert_eq!((built_in().count(), registered.len()), (198, 198), "each name once");
    assert_eq!(registry::all().len(), 22);
}

#[test]
fn recipes_and_configs_are_found_by_name() {
    for recipe in registry::all() {
        assert_eq!(registry::find(recipe.name).unwrap().name, recipe.name);
        assert!(recipe.summary.len() < 70 && !recipe.summary.ends_with('.'), "{}", recipe.summary);
    }
    for (recipe, config) in built_in() {
        assert_eq!(registry::find_config(config.name).unwrap().0.name, recipe.name);
    }
    let generate = registry::find("generate").unwrap();
    assert!(generate.is_available && !generate.supports_distributed);
    // A recipe may be given the config of another.
    assert_eq!(registry::find_config_for(generate, "llama3_2/1B_full").unwrap().name, "llama3_2/1B_full");
    assert!(registry::find_config_for(generate, "llama3_2/1B_ful").is_none());
    assert!(registry::find("llama3_2/1B_full").is_none() && registry::find_config("generate").is_none());
}

/// Problems that a file may have in this version: components that are known, and recipes.
fn only_not_available(recipe: &Recipe, config: &BuiltInConfig, overrides: &[String]) {
    let problems = recipes::check(recipe, &merged(config, overrides));
    for problem in problems.iter() {
        let known = matches!(problem.kind, ProblemKind::NotAvailable { .. });
        assert!(known, "{}: {}: {:?}", config.name, problem.key, problem.kind);
        // A recipe that is built takes every key and value of its own configs but for some components, model types and ways to
        // share the work.
        let may_be_missing = ["_component_", "collate_fn", "checkpointer.model_type", "tensor_parallel_dim"]
            .iter()
            .any(|key| problem.key.ends_with(key));
        assert!(may_be_missing || !recipe.is_available, "{}: {}", config.name, problem.key);
    }
    for notice in problems.notices() {
        let text = notice.to_string();
        assert!(text.contains("has no effect"), "{}: {text}", config.name);
    }
    if config.name == "generation" {
        assert!(problems.is_empty(), "everything that it needs is built");
    }
}

#[test]
fn every_config_checks_but_for_what_is_not_built() {
    let mut checked = 0;
    for (recipe, config) in built_in() {
        only_not_available(recipe, config, &[]);
        checked += 1;
    }
    assert_eq!(checked, 198);
}

#[test]
fn recipes_plan_every_config_of_theirs_but_these() {
    let open_backend: &recipes::OpenBackend<'_> = &|_, _| Ok(crate::tiny::backend(1));
    let launch = recipes::Launch { open_backend, ranks: recipes::Ranks::Threads(8) };
    let (mut planned, mut others) = (0, Vec::new());
    for (recipe, config) in built_in().filter(|(recipe, _)| recipe.is_available) {
        let merged = merged(config, &[]);
        if !recipes::check(recipe, &merged).is_empty() {
            others.push(config.name);
            continue;
        }
        let report = recipes::plan(recipe, &merged, &launch).unwrap_or_else(|e| panic!("{}: {e}", config.name));
        assert!(report.plan.parameters > 0, "{}", config.name);
        planned += 1;
    }
    assert_eq!(
        others,
        [
            "llama3_2_vision/11B_full_single_device",
            "llama3_3/70B_full_multinode",
            "llama3_2_vision/11B_full",
            "llama3_2_vision/90B_full",
            "llama4/scout_17B_16E_full",
            "llama4/maverick_17B_128E_full",
            "dev/3B_sft_for_grpo",
            "dev/8B_full_experimental",
            "llama3_2_vision/11B_lora_single_device",
            "llama3_2_vision/11B_qlora_single_device",
            "llama3_2_vision/11B_lora",
            "llama3_2_vision/11B_qlora",
            "llama3_2_vision/90B_lora",
            "llama3_2_vision/90B_qlora",
            "llama4/scout_17B_16E_lora",
        ]
    );
    assert_eq!(planned, 152);
}

#[test]
fn the_commands_in_a_file_are_those_of_the_file() {
    for (recipe, config) in built_in() {
        let commands: Vec<&str> = config.text.lines().filter_map(|line| line.strip_prefix("#   tune ")).collect();
        let merged = merged(config, &[]);
        let mut runs = 0;
        for command in commands {
            if let Some(download) = command.strip_prefix("download ") {
                // Weights and tokenizers are read from where they were downloaded to.
                let folder = download.split(" --output-dir ").nth(1).unwrap().split(' ').next().unwrap();
                assert!(
                    folder.ends_with(download.split(' ').next().unwrap().rsplit('/').next().unwrap()),
                    "{download}"
                );
                let text = config.text.lines().filter(|line| !line.starts_with('#')).collect::<String>();
                assert!(text.contains(folder), "{}: {folder}", config.name);
                continue;
            }
            let mut words = command.strip_prefix("run ").unwrap().split(' ').skip_while(|word| {
                assert_eq!(recipe.supports_distributed, command.contains("--nproc_per_node"), "{command}");
                *word != recipe.name
            });
            assert_eq!(words.next(), Some(recipe.name), "{command}");
            assert_eq!((words.next(), words.next()), (Some("--config"), Some(config.name)), "{command}");
            let rest = words.collect::<Vec<_>>().join(" ").replace('"', "");
            // Texts hold spaces; everything else is a word.
            let overrides: Vec<String> = if rest.starts_with("prompt.") {
                vec![rest]
            } else {
                rest.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
            };
            only_not_available(recipe, config, &overrides);
            let changed = self::merged(config, &overrides);
            assert_eq!(overrides.is_empty(), changed == merged, "{}: the example changes nothing", config.name);
            runs += 1;
        }
        assert_eq!(runs, 2, "{}: one run, one with an example", config.name);
    }
}

/// Every file with its `${...}` as texts.
fn unresolved() -> Vec<Merged> {
    let parse =
        |config: &BuiltInConfig| Merged::from_text(config.name, config.text.replace("${", "$ {")).expect("valid YAML");
    built_in().map(|(_, config)| parse(config)).collect()
}

/// How often a top-level or dotted key has a value over all files; sections and lists of them count as `...`.
fn values(files: &[Merged], key: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for node in files.iter().filter_map(|file| file.root().at(key)) {
        *counts.entry(text(node)).or_insert(0) += 1;
    }
    counts
}

fn text(node: &Node) -> String {
    match node.as_list() {
        Some(items) if items.iter().all(|item| item.raw().is_some()) => {
            format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        _ => node.raw().map_or("...".to_owned(), |raw| raw.replace("$ {", "${")),
    }
}

/// What the configs of the reference have, as `value x count`.
const STATISTICS: &[(&str, &str)] = &[
    ("ac_mode", "selective x1"),
    ("base_model_path", "/tmp/Qwen2.5-3B x2, /tmp/llama3B_gsm8k_sft_part0/epoch_0 x1"),
    ("batch_size", "1 x11, 128 x1, 16 x1, 2 x120, 4 x40, 8 x16"),
    ("batch_size_val", "${batch_size} x69"),
    ("checkpointer", "... x197"),
    ("collate_fn", "torchtune.data.padded_collate_tiled_images_and_mask x9"),
    ("compile", "False x175, True x3"),
    ("custom_sharded_layers", "[decoder.tok_embeddings] x2, [tok_embeddings, output] x8, [tok_embeddings] x1"),
    ("data_parallel_shard_dim", "-1 x3"),
    ("dataset", "... x178"),
    ("dataset_val.split", "train[95%:] x69"),
    ("dtype", "bf16 x197"),
    ("early_exit_loss", "... x1"),
    ("enable_activation_checkpointing", "False x52, True x126"),
    ("enable_kv_cache", "True x14"),
    ("epochs", "1 x173, 10 x2, 5 x1"),
    ("forward_batch_size", "1 x2, 128 x1, 16 x1"),
    ("fsdp_cpu_offload", "False x2, True x5"),
    ("gradient_accumulation_steps", "1 x63, 8 x113"),
    ("grpo_samples", "16 x2"),
    ("kd_ratio", "0.5 x6"),
    ("kl_coeff", "0.01 x2"),
    ("limit", "null x11"),
    ("log_peak_memory_stats", "False x16, True x163"),
    ("loss", "... x178"),
    ("low_cpu_ram", "False x9"),
    ("lr_scheduler", "... x112"),
    ("lr_scheduler.num_warmup_steps", "10 x15, 100 x94, 20 x1, 50 x2"),
    ("max_new_tokens", "200 x6, 300 x1"),
    ("max_seq_length", "4096 x10, 8192 x1"),
    ("max_steps_per_epoch", "1000 x5, 50 x1, null x168"),
    ("metric_logger.log_dir", "${output_dir}/logs x179"),
    ("model", "... x196"),
    ("model.apply_lora_to_mlp", "False x1, True x105"),
    ("model.lora_alpha", "128 x24, 16 x58, 32 x8, 64 x16"),
    ("model.lora_attn_modules", "[q_proj, v_proj, output_proj] x105, [q_proj, v_proj] x1"),
    ("model.lora_rank", "16 x8, 32 x16, 64 x27, 8 x55"),
    ("num_steps", "1000 x1, 10000 x1, 200 x2"),
    ("optimizer", "... x178"),
    ("optimizer.weight_decay", "0.01 x76, 0.05 x5"),
    ("policy_model", "... x2"),
    ("profiler.enabled", "False x171, True x2"),
    ("prompt", "... x7"),
    ("quantizer", "... x21, null x12"),
    ("quantizer.groupsize", "256 x21"),
    ("ref_checkpointer", "... x3"),
    ("run_val_every_n_steps", "null x69"),
    ("seed", "123 x1, 1234 x19, null x177"),
    ("shuffle", "False x3, True x175"),
    ("tasks", "[mmmu_val_science] x1, [truthfulqa_mc2] x10"),
    ("temperature", "0.6 x7, 0.7 x2, 1.0 x2"),
    ("tensor_parallel_dim", "1 x3, 2 x1, 8 x2"),
    ("tensor_parallel_plan", "... x10"),
    ("tokenizer", "... x197"),
    ("top_k", "300 x7, null x4"),
    ("dataset.split", "train x3, train[:95%] x71"),
];

/// Where every config has a key that the reference leaves out in some, what it has beside that key's default.
const NOT_DEFAULT: &[(&str, &str, &str)] = &[
    ("clip_grad_norm", "null", "1.0 x12"),
    ("enable_activation_offloading", "False", "True x4"),
    ("model.apply_lora_to_output", "False", "True x3"),
    ("model.lora_dropout", "0.0", ""),
    ("optimizer.fused", "True", "False x6"),
    ("optimizer_in_bwd", "False", "True x19"),
    ("save_adapter_weights_only", "False", "True x5"),
    ("tokenizer.max_seq_len", "null", "1024 x8, 2048 x2, 512 x2, 8192 x15"),
];

#[test]
fn values_are_those_of_the_reference() {
    let show = |counts: &BTreeMap<String, usize>| {
        counts.iter().map(|(value, count)| format!("{value} x{count}")).collect::<Vec<_>>().join(", ")
    };
    let files = unresolved();
    for (key, expected) in STATISTICS {
        assert_eq!(show(&values(&files, key)), *expected, "{key}");
    }
    for (key, default, expected) in NOT_DEFAULT {
        let mut counts = values(&files, key);
        assert!(counts.remove(*default).is_some(), "{key}");
        assert_eq!(show(&counts), *expected, "{key}");
    }
    assert_eq!(show(&values(&files, "device")), "auto x197");
}

/// Every component of every file, with how often it stands there.
fn components() -> BTreeMap<String, usize> {
    fn walk(node: &Node, counts: &mut BTreeMap<String, usize>) {
        if let Some(name) = node.component_name() {
            *counts.entry(name.to_owned()).or_insert(0) += 1;
        }
        node.as_map().into_iter().flat_map(config::Map::iter).for_each(|(_, node)| walk(node, counts));
        node.as_list().into_iter().flatten().for_each(|node| walk(node, counts));
    }
    let mut counts = BTreeMap::new();
    built_in().for_each(|(_, config)| walk(merged(config, &[]).root(), &mut counts));
    counts
}

#[test]
fn components_are_those_of_the_reference() {
    let counts = components();
    for (name, count) in [
        ("torch.optim.AdamW", 160),
        ("bitsandbytes.optim.PagedAdamW", 14),
        ("bitsandbytes.optim.PagedAdamW8bit", 5),
        ("torchtune.training.FullModelMetaCheckpointer", 1),
        ("torchtune.datasets.alpaca_cleaned_dataset", 146 + 69),
        ("torchtune.datasets.alpaca_dataset", 17),
        ("torchtune.datasets.stack_exchange_paired_dataset", 5),
        ("torchtune.datasets.multimodal.the_cauldron_transform", 4),
        ("torchtune.modules.loss.LinearCrossEntropyLoss", 162),
        ("torchtune.modules.loss.CEWithChunkedOutputLoss", 6),
        ("torchtune.rlhf.loss.DPOLoss", 5),
        ("torch.nn.CrossEntropyLoss", 1),
        ("torchtune.training.metric_logging.DiskLogger", 177),
        ("torchtune.training.metric_logging.WandBLogger", 2),
        ("torchtune.training.setup_torch_profiler", 173),
        ("torchtune.training.quantization.Int8DynActInt4WeightQATQuantizer", 20),
        ("torchtune.models.llama3.base_llama_tp_plan", 7),
        ("torchtune.models.llama3.llama3_tokenizer", 52),
        ("torchtune.models.qwen3.qwen3_tokenizer", 29),
        ("torchtune.models.qwen2_5.qwen2_5_tokenizer", 25),
        ("torchtune.models.gemma.gemma_tokenizer", 21),
        ("torchtune.models.llama2.llama2_tokenizer", 20),
        ("torchtune.models.llama2.llama2_7b", 8),
        ("torchtune.models.llama3.lora_llama3_8b", 6),
        ("torchtune.models.gemma2.qlora_gemma2_27b", 1),
    ] {
        assert_eq!(counts.get(name), Some(&count), "{name}");
    }
}

#[test]
fn every_known_name_resolves_in_both_spellings() {
    let names = include_str!("component_names.txt");
    let mut seen = BTreeSet::new();
    for name in names.split_whitespace() {
        // Behind a key that says nothing about the kind of component; a name that is built may lack keys.
        let (problems, _) = check(&format!("something: {{_component_: {name}}}"));
        let unknown = problems.iter().any(|p| matches!(p.kind, ProblemKind::UnknownComponent { .. }));
        let collator = names_a_collator(name);
        assert!(!unknown || collator, "{name}: {problems:?}");
        if collator {
            let (problems, _) = check(&format!("collate_fn: {name}"));
            assert!(
                problems.iter().all(|p| matches!(p.kind, ProblemKind::NotAvailable { .. })),
                "{name}: {problems:?}"
            );
        }
        seen.insert(name);
    }
    assert!(seen.len() > 500, "{}", seen.len());
    let unlisted: Vec<String> = components().into_keys().filter(|name| !seen.contains(name.as_str())).collect();
    assert_eq!(unlisted, [""; 0], "components of the configs that the list lacks");
}

fn names_a_collator(name: &str) -> bool {
    name.contains("collate") || name.ends_with("left_pad_sequence")
}

#[test]
fn misspelt_components_get_the_nearest_names() {
    for (section, hint) in [
        ("model: {_component_: torchtune.models.qwen2.qwen2_0_5}", "torchtune.models.qwen2.qwen2_0_5b"),
        ("model: {_component_: torchtune.models.llama3_2.llama3_2_1}", "torchtune.models.llama3_2.llama3_2_1b"),
        ("tokenizer: {_component_: torchtune.models.phi4.phi4_tokeniser}", "torchtune.models.phi4.phi4_tokenizer"),
        ("optimizer: {_component_: bitsandbytes.optim.PagedAdamW8bits}", "bitsandbytes.optim.PagedAdamW8bit"),
        ("kd_loss: {_component_: torchtune.modules.loss.ForwardKlLoss}", "torchtune.modules.loss.ForwardKLLoss"),
        ("quantizer: {_component_: torchtune.training.quantization.Int8QATQuantizer}", "QATQuantizer"),
        ("dataset: {_component_: torchtune.datasets.alpaca_datasets}", "torchtune.datasets.alpaca_dataset"),
        ("collate_fn: torchtune.data.padded_collate_stf", "torchtune.data.padded_collate_sft"),
        ("something: {_component_: torch.optim.AdamWW}", "torch.optim.AdamW"),
    ] {
        let (problems, _) = check(section);
        let [problem] = &problems[..] else { panic!("{section}: {problems:?}") };
        assert!(matches!(problem.kind, ProblemKind::UnknownComponent { .. }), "{section}: {problem:?}");
        let found = problem.hint.as_deref().unwrap_or_default();
        assert!(found.starts_with("did you mean") && found.contains(hint), "{section}: {found}");
    }
}

#[test]
fn a_config_that_is_wrong_is_found_out() {
    let broken = |text: &'static str, key: &str| {
        let (problems, _) = check(text);
        assert!(problems.iter().any(|p| p.key == key), "{text}: {problems:?}");
    };
    broken("batch_sise: 2", "batch_sise");
    broken("optimizer: {_component_: torch.optim.AdamW, lr: fast}", "optimizer.lr");
    broken(
        "training: {optimizer: {_component_: torch.optim.AdamW, learning_rate: 1}}",
        "training.optimizer.learning_rate",
    );
    broken("datasets: [{transform: {_component_: a.b}}]", "datasets[0].transform._component_");
    broken("reward_functions: [{_component_: torch.optim.AdamW}]", "reward_functions[0]._component_");
    broken("postprocessing: {x: {_component_: 3}}", "postprocessing.x._component_");
    let (problems, notices) =
        check("quantizer: {_component_: null, groupsize: 1}\nmy_own_thing: 1\nlr_scheduler: null");
    assert_eq!(problems, []);
    assert_eq!(notices, ["unknown key `my_own_thing` is ignored"]);
}
