//! Dataset sections from YAML text to tokens: keys, defaults, notices, and what is refused.

use std::path::PathBuf;

use config::{FromNode, Merged, Problems};
use data::{Dataset, DatasetList, Error, PreferenceDatasetConfig, Result};

use crate::bytes::{BOS, EOS, PAD, ids, tokenizer};

/// A folder with data files, and configs that name them.
struct Files(tempfile::TempDir);

impl Files {
    fn new(files: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Builds the dataset of a section, `$` standing for the folder.
    fn build(&self, section: &str, max_seq_len: Option<usize>) -> Result<Dataset> {
        let section = section.replace('$', self.0.path().to_str().unwrap());
        check::<DatasetList>(&section).unwrap().build(&tokenizer(max_seq_len))
    }

    /// The error of a section, `$` standing for the folder.
    fn error(&self, section: &str, max_seq_len: Option<usize>) -> (String, Option<String>) {
        let error = self.build(section, max_seq_len).unwrap_err();
        let message = error.to_string().replace(self.0.path().to_str().unwrap(), "$");
        (message.trim_end_matches("\n  in section `dataset`").to_owned(), error.hint())
    }
}

/// A checked section, or the text of its problems.
pub(crate) fn check<T: FromNode>(section: &str) -> std::result::Result<T, String> {
    let merged = Merged::from_text("run.yaml", format!("dataset: {section}")).unwrap();
    let mut problems = Problems::new();
    let value = T::from_node(merged.root().at("dataset").unwrap(), &mut problems);
    match problems.finish() {
        Ok(_) => Ok(value.unwrap()),
        Err(error) => Err(error.to_string()),
    }
}

const ROWS: &str = r#"{"input":"a","output":"b"}
{"input":"c","output":"dd"}
"#;

#[test]
fn instruct_rows_train_on_the_output_only() {
    let files = Files::new(&[("rows.jsonl", ROWS)]);
    let section = "{_component_: torchtune.datasets.instruct_dataset, source: json, data_files: $/rows.jsonl}";
    let dataset = files.build(section, None).unwrap();
    assert_eq!(dataset.len(), 2);
    let row = dataset.sample(1);
    assert_eq!(row.tokens, [vec![BOS], ids("cdd"), vec![EOS]].concat());
    assert_eq!(row.labels, [vec![-100], ids("dd"), vec![EOS, -100]].concat());
    assert!(dataset.notices().lines().is_empty());
    assert_eq!(dataset.notices().rows, 2);
}

#[test]
fn options_reach_the_rows() {
    let files = Files::new(&[("rows.jsonl", &ROWS.replace("input", "q").replace("output", "r"))]);
    let section = "{_component_: torchtune.datasets.instruct_dataset, source: json, data_files: [$/rows.jsonl],
        column_map: {input: q, output: r}, train_on_input: true, new_system_prompt: S, split: 'train[1:]'}";
    let dataset = files.build(section, None).unwrap();
    let row = dataset.sample(0);
    assert_eq!(row.tokens, [vec![BOS], ids("Scdd"), vec![EOS]].concat());
    assert_eq!(row.labels, [vec![-100], ids("cdd"), vec![EOS, -100]].concat());
}

#[test]
fn a_folder_is_a_source() {
    let files = Files::new(&[("train.jsonl", ROWS), ("test.jsonl", ROWS)]);
    let section = |split| format!("{{_component_: torchtune.datasets.instruct_dataset, source: $, split: {split}}}");
    assert_eq!(files.build(&section("train+test"), None).unwrap().len(), 4);
    assert_eq!(files.build(&section("'test[:50%]'"), None).unwrap().len(), 1);
    assert_eq!(
        files.error(&section("dev"), None).0,
        "no split `dev` for `split: dev`\n  expected one of `train`, `test`"
    );
}

#[test]
fn files_by_split() {
    let files = Files::new(&[("a.jsonl", ROWS), ("b.jsonl", ROWS)]);
    let section = "{_component_: torchtune.datasets.instruct_dataset, source: json, data_dir: $,
        data_files: {train: [a.jsonl, b.jsonl], test: b.jsonl}, split: 'train[1:3]+test'}";
    assert_eq!(files.build(section, None).unwrap().len(), 4);
}

#[test]
fn text_rows_are_cut_one_token_short_and_blank_ones_left_out() {
    let files = Files::new(&[("text.txt", "abc\n \t\nabcdefgh\n\nxy\n")]);
    let section = "{_component_: torchtune.datasets.text_completion_dataset, source: text, data_files: $/text.txt}";
    let dataset = files.build(section, Some(7)).unwrap();
    assert_eq!(dataset.len(), 3);
    assert_eq!(dataset.sample(0).tokens, [vec![BOS], ids("abc"), vec![EOS]].concat());
    assert_eq!(dataset.sample(0).labels, [ids("abc"), vec![EOS, -100]].concat());
    assert_eq!(dataset.sample(1).tokens, [vec![BOS], ids("abcde")].concat());
    assert_eq!(dataset.sample(1).labels, [ids("abcde"), vec![-100]].concat());
    let path = files.path("text.txt");
    assert_eq!(
        dataset.notices().lines(),
        [
            format!("1 of 5 rows longer than `max_seq_len` and cut, the first is `{}`, line 3", path.display()),
            format!("2 of 5 rows blank and left out, the first is `{}`, line 2", path.display()),
        ]
    );
    let section = section.replace("source: text", "source: text, add_eos: false");
    assert_eq!(files.build(&section, None).unwrap().sample(2).tokens, [vec![BOS], ids("xy")].concat());
}

#[test]
fn packed_text_fills_its_rows() {
    let files = Files::new(&[("text.txt", "abc\nde\nf\n")]);
    let section = "{_component_: torchtune.datasets.text_completion_dataset, source: $/text.txt, packed: true, split_across_pack: ?}";
    let dataset = files.build(&section.replace('?', "true"), Some(7)).unwrap();
    assert_eq!((0..dataset.len()).map(|i| dataset.sample(i).tokens.len()).collect::<Vec<_>>(), [7, 5]);
    let dataset = files.build(&section.replace('?', "false"), Some(7)).unwrap();
    assert_eq!((0..dataset.len()).map(|i| dataset.sample(i).tokens.len()).collect::<Vec<_>>(), [5, 7]);
    assert_eq!(dataset.packed_len(), Some(7));
}

#[test]
fn packing_needs_a_length() {
    let files = Files::new(&[("rows.jsonl", ROWS)]);
    let section =
        "{_component_: torchtune.datasets.instruct_dataset, source: json, data_files: $/rows.jsonl, packed: true}";
    let (error, hint) = files.error(section, None);
    assert_eq!(error, "`packed: True` needs `tokenizer.max_seq_len`, the length of a pack");
    assert_eq!(hint.unwrap(), "set `tokenizer.max_seq_len=<tokens>`, or `dataset.packed=False`");
}

#[test]
fn rows_that_are_cut_or_teach_nothing_are_counted() {
    let rows = r#"{"c":[{"from":"human","value":"aaaaaaaaa"},{"from":"gpt","value":"b"}]}
{"c":[{"from":"system","value":"a"},{"from":"human","value":"b"}]}
{"c":[{"from":"human","value":"a"},{"from":"gpt","value":""}]}"#;
    let files = Files::new(&[("rows.jsonl", rows)]);
    let section = "{_component_: torchtune.datasets.chat_dataset, source: json, data_files: $/rows.jsonl,
        conversation_column: c, conversation_style: sharegpt}";
    let dataset = files.build(section, Some(6)).unwrap();
    assert_eq!(dataset.len(), 3);
    assert_eq!(dataset.sample(0).tokens.len(), 6);
    let path = files.path("rows.jsonl");
    assert_eq!(
        dataset.notices().lines(),
        [
            format!("1 of 3 rows longer than `max_seq_len` and cut, the first is `{}`, line 1", path.display()),
            format!("2 of 3 rows without a token to train on, the first is `{}`, line 1", path.display()),
        ]
    );
}

#[test]
fn a_list_is_read_one_after_the_other() {
    let files = Files::new(&[("rows.jsonl", ROWS), ("text.txt", "abc\n")]);
    let rows = "{_component_: torchtune.datasets.instruct_dataset, source: json, data_files: $/rows.jsonl}";
    let text = "{_component_: torchtune.datasets.text_completion_dataset, source: $/text.txt, packed: false}";
    let dataset = files.build(&format!("[{rows}, {text}]"), Some(20)).unwrap();
    assert_eq!(dataset.len(), 3);
    assert_eq!(dataset.sample(2).tokens, [vec![BOS], ids("abc"), vec![EOS]].concat());
    assert_eq!(dataset.notices().rows, 3);
    let (error, hint) = files.error(&format!("[{rows}, {}]", text.replace("false", "true")), Some(20));
    assert_eq!(
        error,
        "`dataset[1]` cannot be joined to `dataset[0]`: expected `packed: False`, found `packed: True` with max_seq_len = 20"
    );
    assert_eq!(hint.unwrap(), "set `packed` alike in every dataset of the list");
}

#[test]
fn array_and_lines_give_the_same_tokens() {
    let array = format!("[{}]", ROWS.trim_end().replace('\n', ",\n"));
    let files = Files::new(&[("a.json", &array), ("b.jsonl", ROWS), ("c.jsonl", &array)]);
    let tokens = |name: &str| {
        let section =
            format!("{{_component_: torchtune.datasets.instruct_dataset, source: json, data_files: $/{name}}}");
        let dataset = files.build(&section, None).unwrap();
        (0..dataset.len()).map(|i| dataset.sample(i).tokens.to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(tokens("a.json"), tokens("b.jsonl"));
    assert_eq!(tokens("a.json"), tokens("c.jsonl"));
}

#[test]
fn a_wrong_column_is_named_with_the_ones_there_are() {
    let files = Files::new(&[("rows.jsonl", ROWS)]);
    let section = "{_component_: torchtune.datasets.alpaca_dataset, source: json, data_files: $/rows.jsonl}";
    let (error, hint) = files.error(section, None);
    assert_eq!(
        error,
        "bad record in `$/rows.jsonl`, line 1: no column `instruction`\n  found columns `input`, `output` in {\"input\":\"a\",\"output\":\"b\"}"
    );
    assert_eq!(
        hint.unwrap(),
        "name the file's columns in `dataset.column_map`, or with the builder's own key (`dataset.column`, `dataset.conversation_column`)"
    );
}

#[test]
fn a_column_map_must_name_what_is_needed() {
    let section = "{_component_: torchtune.datasets.alpaca_dataset, source: json, data_files: x, column_map: {instruction: a, out: b}}";
    let problem = check::<DatasetList>(section).unwrap_err();
    assert!(
        problem.starts_with(
            "cannot use `dataset.column_map` in `run.yaml`\n  `column_map` has no key `output`: expected keys `instruction`, `output`, found `instruction`, `out`\n"
        ),
        "{problem}"
    );
}

#[test]
fn words_that_say_where_rows_are_need_no_file_to_be_wrong() {
    for (keys, expected) in [
        ("source: json, data_files: x, split: 'train['", "cannot use `dataset.split`"),
        ("source: json, data_files: x, split: 'train[:200%]'", "cannot use `dataset.split`"),
        ("source: csv", "cannot use `dataset.source`"),
        ("source: json, data_files: x, filter_fn: my.filter", "cannot use `dataset.filter_fn`"),
    ] {
        let problem = check::<DatasetList>(&format!("{{_component_: torchtune.datasets.alpaca_dataset, {keys}}}"));
        let problem = problem.expect_err("wrong");
        assert!(problem.starts_with(expected), "{problem}");
    }
}

#[test]
fn the_section_of_a_list_is_named() {
    let files = Files::new(&[("rows.jsonl", ROWS), ("bad.jsonl", "{\"input\": \"a\"}\n")]);
    let section = "{_component_: torchtune.datasets.instruct_dataset, source: json, data_files: $/";
    let error = files.build(&format!("[{section}rows.jsonl}}, {section}bad.jsonl}}]"), None).unwrap_err();
    assert!(error.to_string().ends_with("\n  in section `dataset[1]`"), "{error}");
    assert!(error.hint().unwrap().contains("`dataset[1].column_map`"), "{:?}", error.hint());
    assert_eq!(error.exit_code(), 2);
}

#[test]
fn rows_without_a_token() {
    let files = Files::new(&[("text.txt", "\n\n")]);
    let section = "{_component_: torchtune.datasets.text_completion_dataset, source: $/text.txt}";
    assert_eq!(
        files.error(section, None).0,
        "no tokens in `$/text.txt`: all 2 rows are blank, or cut to nothing by `max_seq_len`"
    );
}

#[test]
fn the_tokenizer_names_the_row_it_refuses() {
    let message = tokenizers::Error::ZeroMaxSeqLen;
    let place = data::Place { file: std::path::Path::new("a.jsonl").into(), line: 3, row: None };
    let error = Error::Tokenize { place, cause: message };
    assert_eq!(error.to_string(), "bad record in `a.jsonl`, line 3: cannot be tokenised");
    assert!(std::error::Error::source(&error).is_some());
}

#[test]
fn defaults_are_the_reference_s() {
    let section = |name: &str| check::<DatasetList>(&format!("{{_component_: torchtune.datasets.{name}}}")).unwrap();
    let source = |name| section(name).sections[0].1.plan().unwrap().rows.source;
    assert_eq!(source("alpaca_dataset"), "tatsu-lab/alpaca");
    assert_eq!(source("alpaca_cleaned_dataset"), "yahma/alpaca-cleaned");
    assert_eq!(source("samsum_dataset"), "Samsung/samsum");
    assert_eq!(source("grammar_dataset"), "liweili/c4_200m");
    assert_eq!(source("slimorca_dataset"), "Open-Orca/SlimOrca-Dedup");
    let pairs = check::<PreferenceDatasetConfig>("{_component_: torchtune.datasets.stack_exchange_paired_dataset}");
    assert_eq!(pairs.unwrap().plan().unwrap().rows.data_dir.as_deref(), Some("data/rl"));
}

#[test]
fn sections_that_are_refused() {
    let message = |section| check::<DatasetList>(section).unwrap_err();
    let preference = message("{_component_: torchtune.datasets.preference_dataset, source: json}");
    assert!(
        preference.contains("`torchtune.datasets.preference_dataset` holds pairs for preference recipes"),
        "{preference}"
    );
    let style = message(
        "{_component_: torchtune.datasets.chat_dataset, source: json, conversation_column: c, conversation_style: share}",
    );
    assert!(style.contains("expected one of `sharegpt`, `openai`, found `share`"), "{style}");
    let files = message("{_component_: torchtune.datasets.instruct_dataset, source: json, data_files: [[a]]}");
    assert!(files.contains("data_files"), "{files}");
    let empty = message("[]");
    assert!(empty.contains("expected a dataset section with `_component_`, or a list of them"), "{empty}");
}

#[test]
fn pairs_collate_chosen_first() {
    let rows = r#"{"question":"q","response_j":"good","response_k":"no"}"#;
    let files = Files::new(&[("rows.jsonl", rows)]);
    let section = format!(
        "{{_component_: torchtune.datasets.stack_exchange_paired_dataset, source: json, data_files: {}}}",
        files.path("rows.jsonl").display()
    );
    let pairs = check::<PreferenceDatasetConfig>(&section).unwrap().plan().unwrap().build(&tokenizer(None)).unwrap();
    assert_eq!(pairs.len(), 1);
    let batch = pairs.collate(&[0], PAD);
    let good = [vec![BOS], ids("qgood"), vec![EOS]].concat();
    let bad = [vec![BOS], ids("qno"), vec![EOS, PAD, PAD]].concat();
    assert_eq!((batch.batch, batch.tokens), (2, [good, bad].concat()));
    assert_eq!(batch.num_unmasked, "good".len() + 1 + "no".len() + 1);
}
