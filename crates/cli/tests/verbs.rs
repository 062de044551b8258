//! Everything that a user sees of the verbs that run no recipe, and of launching one: exact words, exit codes, files.

use std::path::Path;
use std::process::Output;

use super::common::{succeed, tune};

const CONFIG: &str = "llama3_2/1B_full_single_device";

/// What came out, as one text.
fn transcript(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    let code = output.status.code().map_or("a signal".to_owned(), |code| code.to_string());
    format!("exit code: {code}\n--- stdout\n{}--- stderr\n{}", text(&output.stdout), text(&output.stderr))
}

fn snapshot(name: &str, arguments: &[&str], text: &str) {
    let quoted = |word: &&str| if word.contains([' ', '$', '~']) { format!("'{word}'") } else { (*word).to_owned() };
    let words: Vec<String> = ["tune"].iter().chain(arguments).map(quoted).collect();
    let mut settings = insta::Settings::clone_current();
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.set_description(words.join(" "));
    settings.set_snapshot_path("snapshots/verbs");
    settings.add_filter(r"/\S*/\.tmp\w+", "[TMP]");
    settings.bind(|| insta::assert_snapshot!(name, text));
}

/// A folder with a few files to work on.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("writable");
    write(
        "run.yaml",
        "# a run\noutput_dir: out\nbatch_size: 0\ncheckpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n  \
         checkpoint_dir: ${output_dir}/model\n  output_dir: ${output_dir}\ndataset:\n  _component_: torchtune.datasets.alpaca_dataset\n  \
         source: json\n  data_files: rows.json\n  pakced: True\noptimizer:\n  _component_: torch.optim.AdamW\n  learning_rate: 2e-5\n  \
         betas: [0.9, 1.5]\nbeta: .inf\n",
    );
    write("recipe.py", "print('hello')\n");
    write("broken.yaml", "a: [1, 2\nb: 3\n");
    write("faulty.yaml", "seed: 1\nseed: 2\nlr: !mine 3\nepochs: *nowhere\ndtype: =\nmodel: [1, 2\nb: 3\nb: 4\n");
    dir
}

/// One test a line: `name: arguments`.
macro_rules! shown {
    ($($name:ident: $($argument:expr),*;)*) => {$(
        #[test]
        fn $name() {
            let dir = folder();
            let arguments: &[&str] = &[$($argument),*];
            let output = tune(dir.path()).args(arguments).output().expect("the program starts");
            snapshot(stringify!($name), arguments, &transcript(&output));
        }
    )*};
}

shown! {
    help: "--help";
    help_without_arguments:;
    help_of_download: "download", "--help";
    help_of_ls: "ls", "--help";
    help_of_cp: "cp", "--help";
    help_of_run: "run", "--help";
    help_of_run_behind_a_recipe: "run", "generate", "--help";
    help_of_validate: "validate", "--help";
    help_of_cat: "cat", "--help";
    help_of_doctor: "doctor", "--help";
    help_of_completions: "completions", "--help";
    version: "--version";
    ls: "ls";

    cp_nothing: "cp";
    cp_to_a_name_without_ending: "cp", CONFIG, "mine";
    cp_to_another_ending: "cp", CONFIG, "mine.txt";
    cp_into_this_folder: "cp", CONFIG, ".";
    cp_over_a_file: "cp", CONFIG, "run.yaml";
    cp_without_clobber: "cp", CONFIG, "run.yaml", "-n";
    cp_into_a_missing_folder: "cp", CONFIG, "a/b/mine.yaml";
    cp_making_folders: "cp", CONFIG, "a/b/mine.yaml", "--make-parents";
    cp_below_a_file: "cp", CONFIG, "run.yaml/a/mine.yaml";
    cp_below_a_file_making_folders: "cp", CONFIG, "run.yaml/a/mine.yaml", "--make-parents";
    cp_a_recipe: "cp", "full_finetune_single_device", "mine.py";
    cp_a_misspelt_config: "cp", "llama3_2/1B_full_singel_device", "mine.yaml";
    cp_an_unknown_config: "cp", "nothing_like_it", "mine.yaml";

    cat_as_written: "cat", "run.yaml";
    cat_sorted: "cat", "run.yaml", "--sort";
    cat_with_changes: "cat", "run.yaml", "batch_size=4", "~optimizer.betas", "output_dir=/b";
    cat_resolved: "cat", "run.yaml", "output_dir=/b", "--resolved";
    cat_resolved_json: "cat", "run.yaml", "output_dir=/b", "--resolved", "--json";
    cat_json_of_what_is_not_resolved: "cat", "run.yaml", "--json";
    cat_a_recipe: "cat", "generate";
    cat_a_misspelt_config: "cat", "llama3_2/1b_full_single_devise";
    cat_a_config_by_its_file_name: "cat", "1B_full_single_device.yaml";
    cat_broken_yaml: "cat", "broken.yaml";
    cat_faulty_yaml: "cat", "faulty.yaml";
    cat_with_an_empty_key: "cat", "run.yaml", "=5", "a..b=1", "config=1";
    cat_with_references_to_nothing: "cat", "run.yaml", "a=${outptu_dir}", "output_dir=${nope}", "--resolved";
    cat_with_a_change_as_a_flag: "cat", "run.yaml", "--batch-size=4";
    cat_with_bad_changes: "cat", "run.yaml", "batch_size", "=", "4", "~nope", "optimizer.betas[7]=1", "a={b: =}";
    cat_with_a_reference_to_nothing: "cat", "run.yaml", "a=${outptu_dir}", "--resolved";

    validate_a_built_in_config: "validate", CONFIG, "optimizer=torch.optim.AdamW";
    validate_with_a_change: "validate", CONFIG, "optimizer=torch.optim.AdamW", "batch_size=none";
    validate_all_problems: "validate", "run.yaml";
    validate_for_another_recipe: "validate", CONFIG, "--recipe", "generate";
    validate_for_a_misspelt_recipe: "validate", CONFIG, "--recipe", "generat";
    validate_what_is_not_available: "validate", "llama4/scout_17B_16E_lora";
    validate_a_missing_file: "validate", "mine.yaml";
    validate_broken_yaml: "validate", "broken.yaml";
    validate_faulty_yaml: "validate", "faulty.yaml";
    validate_bad_references: "validate", "run.yaml", "output_dir=${nope}", "optimizer.lr=${epochs}", "epochs=${seed}", "seed=${epochs}";
    validate_bad_references_of_a_packed_dataset: "validate", CONFIG, "optimizer=torch.optim.AdamW", "dataset.packed=True",
        "tokenizer.max_seq_len=${length}";
    validate_bad_changes: "validate", "run.yaml", "batch_size", "=", "4", "~nope", "optimizer.betas[7]=1", "a={b: =}";
    validate_changes_that_set_nothing: "validate", CONFIG, "=5", "optimizer..lr=1", "batch..size=1", "config=mine.yaml";
    validate_numbers_that_are_none: "validate", CONFIG, "optimizer=torch.optim.AdamW", "optimizer.lr=.inf",
        "optimizer.weight_decay=.nan", "clip_grad_norm=.inf", "batch_size=99999999999999999999";

    validate_what_hides_nothing: "validate", CONFIG, "optimizer=torch.optim.AdamW", "device=tpu", "epochs=0", "clip_grad_norm=1",
        "checkpointer.model_type=T5_ENCODER";
    validate_misspelt_components: "validate", CONFIG, "optimizer=torch.optim.AdamX", "tokenizer=torchtune.models.llama3.llama3_tokenizr",
        "metric_logger=torchtune.training.metric_logging.DiskLoger";
    validate_sizes_that_do_not_divide: "validate", CONFIG, "optimizer=torch.optim.AdamW",
        "model=torchtune.models.llama3_2.llama3_2", "model.vocab_size=0", "model.embed_dim=7", "model.num_heads=3",
        "model.num_kv_heads=2";
    validate_packs_without_a_length: "validate", CONFIG, "optimizer=torch.optim.AdamW", "dataset.packed=True";
    validate_a_list_with_another_length: "validate", "run.yaml", "optimizer.betas[0]=0.9", "optimizer.betas[2]=0.9";
    validate_what_other_recipes_read: "validate", CONFIG, "optimizer=torch.optim.AdamW", "run_val_every_n_steps=10";
    run_with_two_configs: "run", "generate", "--config", "run.yaml", "--config", CONFIG;
    run_nothing: "run";
    run_without_a_config: "run", "generate";
    run_without_a_config_behind_the_flag: "run", "generate", "--config";
    run_a_python_file: "run", "recipe.py", "--config", CONFIG;
    run_a_python_file_of_a_known_name: "run", "recipes/full_finetune_single_device.py", "--config", CONFIG;
    run_a_misspelt_recipe: "run", "full_finetune_single_devise", "--config", CONFIG;
    run_a_recipe_that_is_not_available: "run", "eleuther_eval", "--config", "eleuther_evaluation";
    run_a_missing_config: "run", "generate", "--config", "mine.yaml";
    run_with_an_unknown_option: "run", "--nproc_per_nod", "2", "--frobnicate", "generate", "--config", "c.yaml";
    run_with_a_launch_option_behind: "run", "full_finetune_distributed", "--nproc_per_node", "2", "--config", "llama2/7B_full";
    run_one_device_on_two_ranks: "run", "--nproc_per_node", "2", "full_finetune_single_device", "--config", CONFIG;
    run_on_gpus: "run", "--nproc_per_node", "gpu", "full_finetune_distributed", "--config", "llama2/7B_full";
    run_on_half_a_rank: "run", "--nproc-per-node", "0.5", "full_finetune_distributed", "--config", "llama2/7B_full";
    run_on_two_machines: "run", "--nnodes", "1:2", "--nproc_per_node", "2", "full_finetune_distributed", "--config", "llama2/7B_full";
    run_a_module: "run", "-m", "full_finetune_distributed", "--config", "llama2/7B_full";
    run_with_restarts: "run", "--max_restarts=3", "full_finetune_distributed", "--config", "llama2/7B_full";
    run_with_a_rendezvous: "run", "--standalone", "--rdzv_endpoint", "localhost:0", "generate", "--config", "mine.yaml";

    completions_for_no_shell: "completions", "csh";
}

#[test]
fn a_copied_config_is_the_built_in_one_byte_for_byte() {
    let dir = folder();
    succeed(tune(dir.path()).args(["cp", CONFIG, "mine.yaml"]));
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../configs/{CONFIG}.yaml"));
    let read = |path: &Path| std::fs::read(path).expect("readable");
    assert_eq!(read(&dir.path().join("mine.yaml")), read(&built_in));
}

#[test]
fn without_clobber_a_file_stays() {
    let dir = folder();
    let path = dir.path().join("run.yaml");
    let before = std::fs::read(&path).expect("readable");
    let output = succeed(tune(dir.path()).args(["cp", CONFIG, "run.yaml", "--no-clobber"]));
    assert_eq!(std::fs::read(&path).expect("readable"), before);
    assert_eq!(output.stderr, b"");
}

#[test]
fn what_cat_prints_is_a_config_again() {
    let dir = folder();
    let output = succeed(tune(dir.path()).args(["cat", "run.yaml", "--resolved"]));
    std::fs::write(dir.path().join("again.yaml"), &output.stdout).expect("writable");
    let json = |file| succeed(tune(dir.path()).args(["cat", file, "--resolved", "--json"])).stdout;
    assert_eq!(json("run.yaml"), json("again.yaml"));
}

#[test]
fn doctor_tells_the_same_in_text_and_json() {
    let dir = folder();
    let mut command = tune(dir.path());
    command.env_remove("HF_TOKEN_PATH");
    let text = String::from_utf8(succeed(command.arg("doctor")).stdout).expect("UTF-8");
    let json: serde_json::Value =
        serde_json::from_slice(&succeed(command.arg("--json")).stdout).expect("one JSON object");
    for section in ["tune", "cpu", "memory", "gpu", "mpi", "hub", "disk"] {
        assert!(text.lines().any(|line| line.split_whitespace().next() == Some(section)), "{section}:\n{text}");
    }
    assert_eq!(json["cpu"]["threads"], 2, "the test's environment says so");
    assert!(json["memory"]["total_bytes"].as_u64().expect("bytes") > 0);
    assert!(json["hub"]["token_from"].is_null());
    assert!(text.contains("no token"), "{text}");
}

#[test]
fn doctor_never_prints_the_token() {
    let dir = folder();
    let mut command = tune(dir.path());
    command.env("HF_TOKEN", "hf_secret").arg("doctor");
    let text = transcript(&succeed(&mut command));
    assert!(text.contains("token from") && !text.contains("hf_secret"), "{text}");
}

#[test]
fn completions_know_recipes_and_configs() {
    let dir = folder();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = succeed(tune(dir.path()).args(["completions", shell]));
        let script = String::from_utf8(output.stdout).expect("UTF-8");
        assert!(script.contains("validate"), "{shell}");
    }
    let fish = String::from_utf8(succeed(tune(dir.path()).args(["completions", "fish"])).stdout).expect("UTF-8");
    assert!(fish.contains("doctor"));
    let bash = String::from_utf8(succeed(tune(dir.path()).args(["completions", "bash"])).stdout).expect("UTF-8");
    assert!(bash.contains(CONFIG) && bash.contains("lora_finetune_single_device"));
}

/// A pipe that closes early, as `head` does, is the end and no failure.
#[test]
fn a_reader_may_stop_reading() {
    let dir = folder();
    let mut child =
        tune(dir.path()).arg("ls").stdout(std::process::Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    assert!(child.wait().expect("ends").success());
}

/// A full disk is told once, with the exit code of what failed, by whatever prints.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure() {
    let dir = folder();
    for arguments in [
        &["ls"][..],
        &["cat", CONFIG],
        &["validate", CONFIG, "optimizer=torch.optim.AdamW"],
        &["cp", CONFIG, "mine.yaml"],
        &["cp", CONFIG, "run.yaml", "-n"],
        &["doctor"],
        &["doctor", "--json"],
        &["completions", "bash"],
        &["--help"],
        &[],
        &["--version"],
        &["run", "--help"],
        &["run", "generate", "--help"],
        &["download", "--help"],
    ] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("there");
        let output = tune(dir.path()).args(arguments).stdout(full).output().expect("the program starts");
        let expected = "error: cannot write `stdout`\n  caused by: No space left on device (os error 28)\n";
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected, "{arguments:?}");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_reader_of_help_may_stop_reading() {
    let dir = folder();
    for arguments in [&["--help"][..], &["run", "--help"], &["--version"]] {
        let mut command = tune(dir.path());
        let mut child =
            command.args(arguments).stdout(std::process::Stdio::piped()).spawn().expect("the program starts");
        drop(child.stdout.take());
        assert!(child.wait().expect("ends").success(), "{arguments:?}");
    }
}
