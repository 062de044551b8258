//! `tune download`: a model's repository into a folder, and the bars that show how far it is.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use hub::pattern::Pattern;
use hub::{Hub, Kind, Progress, Repo, Settings, Token, TokenSource};
use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::exit::{self, Failure, Result};

/// Arguments of `tune download`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A file that is complete already is kept, a partial one gone on with: after an interruption run the same command again.
Every file is checked against the hub's size and hash before it gets its name.

Environment: HF_ENDPOINT (another hub), HF_TOKEN, HF_HOME (where a saved token lies), HTTPS_PROXY, SSL_CERT_FILE.

Examples:
  tune download meta-llama/Llama-3.2-1B-Instruct --output-dir models/Llama-3.2-1B-Instruct
  tune download meta-llama/Llama-3.2-1B-Instruct --ignore-patterns \"original/*,*.pth\"
  tune download Qwen/Qwen2.5-0.5B --revision main")]
pub(crate) struct DownloadArgs {
    /// Repository of the model: `owner/name`
    #[arg(value_name = "REPO")]
    repo_id: String,

    /// Folder to write to; by default `/tmp/<NAME>`, NAME being the last part of the repository
    #[arg(long, alias = "output_dir", value_name = "DIR")]
    output_dir: Option<PathBuf>,

    /// Token for gated and private repositories, in place of `HF_TOKEN` or the saved one
    #[arg(long, alias = "hf_token", value_name = "TOKEN")]
    hf_token: Option<String>,

    /// Files to leave out: `*`, `?`, `[...]`; may be repeated, or hold several patterns with commas between them
    #[arg(long, alias = "ignore_patterns", value_name = "GLOB", value_delimiter = ',')]
    ignore_patterns: Vec<String>,

    /// Branch, tag or commit
    #[arg(long, value_name = "REVISION", default_value = hub::MAIN)]
    revision: String,

    /// Where to download from; `kaggle` is not available in this version
    #[arg(long, value_enum, default_value_t = Source::Huggingface)]
    source: Source,

    /// For `--source kaggle`
    #[arg(long, alias = "kaggle_username", value_name = "NAME", hide = true)]
    kaggle_username: Option<String>,

    /// For `--source kaggle`
    #[arg(long, alias = "kaggle_api_key", value_name = "KEY", hide = true)]
    kaggle_api_key: Option<String>,
}

/// Hubs that torchtune downloads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Source {
    Huggingface,
    Kaggle,
}

/// Downloads the repository and prints where its files are.
pub(crate) fn run(args: &DownloadArgs) -> Result {
    if args.source == Source::Kaggle || args.kaggle_username.is_some() || args.kaggle_api_key.is_some() {
        let refusal = "downloads from Kaggle are not available in this version: `tune` speaks the protocol of the Hugging Face Hub only";
        return Err(Failure::usage(refusal)
            .hint("download the model's repository on Hugging Face, or fetch it from Kaggle by other means"));
    }
    let mut settings = Settings::from_env()?;
    if let Some(token) = &args.hf_token {
        settings.token = Token::new(token, TokenSource::Flag("--hf-token"))?;
    }
    let repo = Repo::new(Kind::Model, args.repo_id.trim_end_matches('/'), Some(&args.revision))?;
    let folder = args.output_dir.clone().unwrap_or_else(|| default_folder(repo.id()));
    let ignore = args.ignore_patterns.iter().filter_map(|text| pattern(text)).collect::<hub::Result<Vec<_>>>()?;
    if !ignore.is_empty() {
        let words: Vec<String> = ignore.iter().map(|pattern| format!("`{pattern}`")).collect();
        recipes::notice(&format!("files that match {} are left out", words.join(", ")));
    }
    let bars = Arc::new(Bars::default());
    say_what_is_kept(Arc::clone(&bars), folder.clone());
    let hub = Hub::new(settings)?.with_progress(bars);
    let listing = hub.list(&repo)?;
    let mut paths = hub.download(&listing, &ignore, &folder)?;
    paths.push(write_repo_id(repo.id(), &folder)?);
    recipes::notice(&format!("`{}` is in `{}` (commit {})", repo.id(), folder.display(), listing.commit()));
    let lines = paths.iter().fold(String::new(), |lines, path| lines + &format!("{}\n", path.display()));
    super::print(&lines)
}

/// Shows on stderr how the downloads of other verbs go, those of datasets.
pub(crate) fn show_progress() {
    hub::install_progress(Arc::new(Bars::default()));
}

/// Where a model goes unless the user says so.
fn default_folder(id: &str) -> PathBuf {
    Path::new("/tmp").join(id.rsplit('/').next().unwrap_or(id))
}

/// A pattern of files to leave out; one that ends in `/` means all below that folder.
fn pattern(text: &str) -> Option<hub::Result<Pattern>> {
    match text.trim() {
        "" => None,
        folder if folder.ends_with('/') => Some(Pattern::checked(&format!("{folder}*"))),
        text => Some(Pattern::checked(text)),
    }
}

/// Lets Ctrl-C end the program with a line on what is kept. Whatever moment it comes at, a partial file holds the first bytes
/// of the whole.
#[expect(clippy::exit, reason = "the download waits for the network, so the thread that is told of the signal ends it")]
fn say_what_is_kept(bars: Arc<Bars>, folder: PathBuf) {
    // Without a handler the program ends all the same, and says nothing.
    let _ = ctrlc::set_handler(move || {
        let kept = match bars.current().take() {
            Some(current) => {
                current.bar.finish_and_clear();
                format!("`{}.part` is kept, and the same command goes on from it", folder.join(current.path).display())
            }
            None => "the same command goes on with what is missing".to_owned(),
        };
        recipes::notice(&format!("interrupted: {kept}"));
        std::process::exit(i32::from(exit::INTERRUPTED));
    });
}

/// Leaves the repository's name beside its files, where checkpoints look for their base model's.
fn write_repo_id(id: &str, folder: &Path) -> Result<PathBuf> {
    let path = folder.join("original_repo_id.json");
    let id = serde_json::Value::from(id);
    let written = std::fs::write(&path, format!("{{\n    \"repo_id\": {id}\n}}"));
    written.map_err(|source| Failure::Write { path: path.display().to_string(), source })?;
    Ok(path)
}

/// How often a stream that is no terminal gets a line.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// One bar a file on a terminal; elsewhere a line a file, and one now and then for large ones.
#[derive(Default)]
struct Bars {
    current: Mutex<Option<Current>>,
}

/// The file that is arriving.
struct Current {
    path: String,
    total: Option<u64>,
    bar: ProgressBar,
    last_line: Instant,
}

impl Bars {
    fn current(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress for Bars {
    fn begin(&self, path: &str, total: Option<u64>, done: u64) {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        let template = if total.is_some() {
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        } else {
            "{msg} {bytes} {bytes_per_sec}"
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant and well formed"));
        bar.set_message(path.to_owned());
        bar.set_position(done);
        bar.reset_eta();
        bar.set_draw_target(ProgressDrawTarget::stderr());
        *self.current() = Some(Current { path: path.to_owned(), total, bar, last_line: Instant::now() });
    }

    fn reached(&self, bytes: u64) {
        let mut current = self.current();
        let Some(current) = current.as_mut() else { return };
        current.bar.set_position(bytes);
        if current.bar.is_hidden() && current.last_line.elapsed() >= PLAIN_INTERVAL {
            current.last_line = Instant::now();
            let total = current.total.map_or(String::new(), |total| format!(" of {}", HumanBytes(total)));
            recipes::notice(&format!("`{}`: {}{total}", current.path, HumanBytes(bytes)));
        }
    }

    fn end(&self, fetched: bool) {
        let Some(current) = self.current().take() else { return };
        current.bar.finish_and_clear();
        let size = current.total.unwrap_or_else(|| current.bar.position());
        let what = if fetched { "fetched" } else { "complete already" };
        recipes::notice(&format!("`{}` {what}, {}", current.path, HumanBytes(size)));
    }

    fn abandon(&self) {
        if let Some(current) = self.current().take() {
            current.bar.finish_and_clear();
        }
    }

    fn notice(&self, text: &str) {
        match self.current().as_ref() {
            Some(current) => current.bar.suspend(|| recipes::notice(text)),
            None => recipes::notice(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_folder_is_the_last_word_of_the_id() {
        assert_eq!(default_folder("meta-llama/Llama-3.2-1B"), Path::new("/tmp/Llama-3.2-1B"));
        assert_eq!(default_folder("gpt2"), Path::new("/tmp/gpt2"));
    }

    #[test]
    fn a_folder_as_pattern_means_what_is_in_it() {
        assert!(pattern("original/").unwrap().unwrap().matches_name("original/a/b"));
        assert!(!pattern("original").unwrap().unwrap().matches_name("original/a"));
        assert!(pattern(" ").is_none());
    }
}
