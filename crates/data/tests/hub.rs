//! Datasets named by repository id, from a hub on loopback: which files are fetched, what becomes of their rows, and what
//! is said when they cannot be had.

use std::path::Path;
use std::time::Duration;

use data::builders::DatasetConfig;
use data::source::{DataFiles, SourceConfig};
use data::{Dataset, Result, Rows};
use hub::Settings;
use testing::hub_server::{Fault, Hosted, HubServer};

use crate::builders::check;
use crate::bytes::{BOS, EOS, ids, tokenizer};

const ALPACA: &str = r#"[{"instruction":"a","input":"","output":"b"},{"instruction":"c","input":"d","output":"e"}]"#;

/// Settings of a hub and of a cache.
fn settings(server: &HubServer, cache: &Path) -> Settings {
    Settings {
        endpoint: server.endpoint(),
        token: None,
        cache: cache.to_owned(),
        offline: None,
        certificates: None,
        use_proxy: false,
        connect_timeout: Duration::from_secs(5),
        read_timeout: Duration::from_secs(5),
        first_wait: Duration::ZERO,
    }
}

/// A hub with one dataset, and a cache.
struct Place {
    server: HubServer,
    cache: tempfile::TempDir,
}

impl Place {
    fn new(files: &[(&str, &str)]) -> Self {
        let server = HubServer::start();
        let add = |repo: Hosted, &(path, text): &(&str, &str)| repo.large(path, text.as_bytes());
        server.add(files.iter().fold(Hosted::dataset("owner/rows"), add));
        Self { server, cache: tempfile::tempdir().unwrap() }
    }

    fn config(&self) -> SourceConfig {
        SourceConfig {
            source: "owner/rows".to_owned(),
            split: "train".to_owned(),
            hub: Some(settings(&self.server, self.cache.path())),
            ..SourceConfig::default()
        }
    }

    /// The error, with the hub's address and the cache taken out.
    fn error(&self, config: &SourceConfig) -> (String, String) {
        let error = read(config).unwrap_err();
        (error.to_string().replace(&self.server.endpoint(), "HUB"), error.hint().unwrap_or_default())
    }

    /// The paths fetched so far.
    fn fetched(&self) -> Vec<String> {
        let requests = self.server.requests();
        let path = |target: &str| Some(target.split_once("/resolve/")?.1.split_once('/')?.1.to_owned());
        requests.iter().filter_map(|request| path(&request.target)).collect()
    }
}

/// The column `t` of the rows.
fn read(config: &SourceConfig) -> Result<Vec<String>> {
    let mut found = Vec::new();
    Rows::open(config)?.for_each(|row| {
        found.push(row.text("t")?.to_owned());
        Ok(())
    })?;
    Ok(found)
}

/// Rows with these values in the column `t`.
fn rows(values: &[&str]) -> String {
    values.iter().fold(String::new(), |rows, value| rows + &format!("{{\"t\": \"{value}\"}}\n"))
}

/// Tokens of the Alpaca dataset of the config's repository.
fn alpaca(config: &SourceConfig) -> Result<Dataset> {
    let section = format!(
        "{{_component_: torchtune.datasets.alpaca_dataset, source: {}, split: '{}'}}",
        config.source, config.split
    );
    let mut plan = check::<DatasetConfig>(&section).unwrap().plan()?;
    plan.rows.hub.clone_from(&config.hub);
    plan.build(&tokenizer(None))
}

fn alpaca_tokens(place: &Place) -> Vec<Vec<i32>> {
    let dataset = alpaca(&SourceConfig { split: "train[:95%]".to_owned(), ..place.config() }).unwrap();
    (0..dataset.len()).map(|index| dataset.sample(index).tokens.to_vec()).collect()
}

#[test]
fn alpaca_by_its_id_the_second_time_without_the_hub() {
    let mut place = Place::new(&[("alpaca_data.json", ALPACA), ("README.md", "# rows")]);
    let tokens = alpaca_tokens(&place);
    assert_eq!(tokens.len(), 2);
    let prompt = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n### Instruction:\na\n\n### Response:\n";
    assert_eq!(tokens[0], [vec![BOS], ids(prompt), ids("b"), vec![EOS]].concat());
    assert_eq!(place.fetched(), ["README.md", "alpaca_data.json"]);
    let config = place.config();
    place.server = HubServer::start();
    let again = alpaca(&SourceConfig { split: "train[:95%]".to_owned(), ..config }).unwrap();
    assert_eq!(again.sample(0).tokens, tokens[0]);
    assert!(place.server.requests().is_empty());
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_by_its_id_the_second_time_without_the_hub() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet_files");
    let bytes = std::fs::read(folder.join("snappy.parquet")).unwrap();
    let mut place = Place::new(&[]);
    place.server.add(Hosted::dataset("owner/rows").large("data/train-00000-of-00001-a09b74b3ef9c3b56.parquet", &bytes));
    let count = |config: &SourceConfig| {
        let mut count = 0;
        Rows::open(config)?.for_each(|row| row.text("instruction").map(|_| count += 1))?;
        Result::Ok(count)
    };
    let config = SourceConfig { split: "train[:95%]".to_owned(), ..place.config() };
    assert_eq!(count(&config).unwrap(), 38);
    place.server = HubServer::start();
    assert_eq!(count(&config).unwrap(), 38);
}

#[test]
fn only_the_split_asked_for_is_fetched() {
    let place = Place::new(&[
        ("data/train-00000-of-00002.jsonl", &rows(&["a"])),
        ("data/train-00001-of-00002.jsonl", &rows(&["b"])),
        ("data/test-00000-of-00001.jsonl", &rows(&["c"])),
    ]);
    assert_eq!(read(&place.config()).unwrap(), ["a", "b"]);
    assert_eq!(place.fetched(), ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"]);
    let config = |split: &str| SourceConfig { split: split.to_owned(), ..place.config() };
    assert_eq!(read(&config("test+train[1:]")).unwrap(), ["c", "b"]);
    assert_eq!(place.fetched().len(), 3);
    assert_eq!(place.error(&config("dev")).0, "no split `dev` for `split: dev`\n  expected one of `train`, `test`");
}

#[test]
fn the_card_says_which_files() {
    let card = "---\nconfigs:\n- config_name: en\n  default: true\n  data_files:\n  - split: train\n    path: en/*.csv\n- config_name: de\n  sep: \";\"\n  data_files: [{split: train, path: de.csv}]\n---\n";
    let place = Place::new(&[
        ("README.md", card),
        ("en/a.csv", "t,u\none,1\n"),
        ("de.csv", "t;u\neins;1\n"),
        ("other.csv", "t\nx\n"),
    ]);
    assert_eq!(read(&place.config()).unwrap(), ["one"]);
    let config = |name: &str| SourceConfig { name: Some(name.to_owned()), ..place.config() };
    assert_eq!(read(&config("de")).unwrap(), ["eins"]);
    assert_eq!(place.fetched(), ["README.md", "en/a.csv", "de.csv"]);
    assert_eq!(
        place.error(&config("fr")).0,
        "no config `fr` in dataset repository `owner/rows`\n  expected one of `en`, `de`"
    );
}

#[test]
fn files_and_folders_by_config() {
    let place = Place::new(&[
        ("data/rl/train.jsonl", &rows(&["a"])),
        ("data/sft/x.jsonl", &rows(&["b"])),
        ("y.tsv", "t\tu\nc\t1\n"),
    ]);
    let folder = SourceConfig { data_dir: Some("data/rl".to_owned()), ..place.config() };
    assert_eq!(read(&folder).unwrap(), ["a"]);
    let files = |files: DataFiles| SourceConfig { data_files: Some(files), ..place.config() };
    assert_eq!(read(&files(DataFiles::Train(vec!["data/*/*.jsonl".to_owned()]))).unwrap(), ["a", "b"]);
    let splits = DataFiles::Splits(vec![("test".to_owned(), vec!["y.tsv".to_owned()])]);
    let config = SourceConfig { split: "test".to_owned(), ..files(splits) };
    assert_eq!(read(&config).unwrap(), ["c"]);
    assert_eq!(
        place.error(&files(DataFiles::Train(vec!["z.json".to_owned()]))).0,
        "no file in dataset repository `owner/rows` matches `z.json`"
    );
}

#[test]
fn a_revision_is_another_set_of_files() {
    let place = Place::new(&[("train.jsonl", &rows(&["old"]))]);
    let commit = "d1".repeat(20);
    assert_eq!(read(&place.config()).unwrap(), ["old"]);
    place.server.add(
        Hosted::dataset("owner/rows").commit(&commit).file("train.jsonl", rows(&["new"]).as_bytes()).revision("v2"),
    );
    let config = |revision: &str| SourceConfig { revision: Some(revision.to_owned()), ..place.config() };
    assert_eq!(read(&config("v2")).unwrap(), ["new"]);
    assert_eq!(read(&config(&"c0".repeat(20))).unwrap(), ["old"], "a commit stays what it is");
    let (message, hint) = place.error(&config("v3"));
    assert_eq!(message, "no revision `v3` in dataset repository `owner/rows`");
    assert_eq!(hint, "leave the revision out to get `main`");
}

#[test]
fn conversions_have_a_folder_for_each_config() {
    let place = Place::new(&[]);
    let convert = |files: &[(&str, &str)]| {
        let repo = Hosted::dataset("owner/rows").revision("refs/convert/parquet");
        place.server.add(files.iter().fold(repo, |repo, (path, text)| repo.file(path, text.as_bytes())));
    };
    let config = |name: Option<&str>| SourceConfig {
        revision: Some("refs/convert/parquet".to_owned()),
        name: name.map(str::to_owned),
        ..place.config()
    };
    // The rows are JSON here: only the folders matter.
    convert(&[("default/train/0000.jsonl", &rows(&["a"])), ("default/test/0000.jsonl", &rows(&["b"]))]);
    assert_eq!(read(&config(None)).unwrap(), ["a"]);
    convert(&[("one/train/0000.jsonl", &rows(&["c"])), ("two/train/0000.jsonl", &rows(&["d"]))]);
    assert_eq!(read(&config(Some("two"))).unwrap(), ["d"]);
    let (message, hint) = place.error(&config(None));
    assert_eq!(
        message,
        "dataset repository `owner/rows` has several configs, and none is the default\n  expected `name` to be one of `one`, `two`"
    );
    assert_eq!(hint, "set `dataset.name=one`");
}

#[test]
fn what_cannot_be_read_is_named() {
    let place = Place::new(&[("rows.py", "import datasets"), ("README.md", "# rows")]);
    let head = "no data files in dataset repository `owner/rows`\n  expected files ending in .json, .jsonl, .csv, .tsv, .parquet or .txt, found ";
    let (message, hint) = place.error(&place.config());
    assert_eq!(message, format!("{head}`rows.py`"));
    assert_eq!(
        hint,
        "try `revision: refs/convert/parquet`, where a hub keeps its own conversion of datasets that come as a script"
    );
    let place = Place::new(&[("data/train.jsonl.gz", "x"), ("data/train.zip", "x")]);
    let (message, hint) = place.error(&place.config());
    assert_eq!(message, format!("{head}`data/train.jsonl.gz`, `data/train.zip`"));
    assert_eq!(hint, "unpack or convert the rows, and give the files as `source: json` and `data_files: <path>`");
    let file = SourceConfig { data_files: Some(DataFiles::Train(vec!["data/train.zip".to_owned()])), ..place.config() };
    assert!(place.error(&file).0.starts_with("cannot read dataset format of `data/train.zip` in this version"));
    assert!(place.fetched().is_empty());
}

#[test]
fn a_hub_s_refusals_reach_the_user() {
    let place = Place::new(&[("train.jsonl", &rows(&["a"]))]);
    let other = SourceConfig { source: "owner/none".to_owned(), ..place.config() };
    let (message, hint) = place.error(&other);
    assert_eq!(
        message,
        "dataset repository `owner/none` not found on HUB\n  it does not exist, or it is private and no token was given"
    );
    assert!(hint.starts_with("check the spelling"), "{hint}");
    place.server.fault("train.jsonl", usize::MAX, Fault::Corrupt);
    assert!(place.error(&place.config()).0.starts_with("wrong contents of `train.jsonl`"));
    assert_eq!(read(&place.config()).unwrap_err().exit_code(), 1);
    assert_eq!(read(&other).unwrap_err().exit_code(), 2);
}

#[test]
fn a_broken_row_is_named_by_its_file() {
    let place = Place::new(&[("train.jsonl", "{\"t\": \"a\"}\n{\"t\": 1}\n")]);
    let (message, _) = place.error(&place.config());
    let path = place.cache.path().join("datasets--owner--rows/snapshots").join("c0".repeat(20)).join("train.jsonl");
    assert_eq!(
        message,
        format!("bad record in `{}`, line 2: field `t`\n  expected a string, found the number `1`", path.display())
    );
}
