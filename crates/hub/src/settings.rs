//! Where the hub is, who asks, where files are kept: read from the environment variables that other programs use.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `HF_ENDPOINT` | address of the hub | `https://huggingface.co` |
//! | `HF_TOKEN` (`HUGGING_FACE_HUB_TOKEN`) | token | the file `HF_TOKEN_PATH`, else `token` in `HF_HOME` |
//! | `HF_HUB_DISABLE_IMPLICIT_TOKEN` | send a token only if the command line gives one | 0 |
//! | `HF_HOME` | folder of token and cache | `$XDG_CACHE_HOME/huggingface`, `~/.cache/huggingface` |
//! | `HF_HUB_CACHE` (`HUGGINGFACE_HUB_CACHE`) | cached repositories | `hub` in `HF_HOME` |
//! | `HF_HUB_OFFLINE`, `HF_DATASETS_OFFLINE` | use the cache only | 0 |
//! | `HF_HUB_DOWNLOAD_TIMEOUT` | seconds without a byte before a connection counts as dead | 30 |
//! | `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` | certificates to trust | Mozilla's, built in |
//! | `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY` | proxies, read by the HTTP client | none |
//! | `FERROTUNE_HUB_RETRY_MS` | wait before the first retry in ms; doubles each time | 1000 |
//!
//! An empty variable counts as unset.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ureq::http::Uri;

use crate::{Error, Result};

/// The hub when `HF_ENDPOINT` names no other.
const ENDPOINT: &str = "https://huggingface.co";

/// Seconds without a byte before a connection counts as dead.
const DEFAULT_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Time to look up a host and connect to it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Wait before the first retry.
const DEFAULT_FIRST_WAIT: Duration = Duration::from_secs(1);

/// Where the hub is and how to speak with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Address of the hub, without a `/` at its end.
    pub endpoint: String,
    /// Who asks; `None` = nobody in particular.
    pub token: Option<Token>,
    /// Folder of the cached repositories.
    pub cache: PathBuf,
    /// The variable that says to use the cache only, if one does.
    pub offline: Option<&'static str>,
    /// File of certificates to trust in place of the built-in ones.
    pub certificates: Option<PathBuf>,
    /// Whether to use the proxies that the environment names.
    pub use_proxy: bool,
    /// Time to look up a host and connect to it.
    pub connect_timeout: Duration,
    /// Time without a byte before a connection counts as dead.
    pub read_timeout: Duration,
    /// Wait before the first retry; doubles each time.
    pub first_wait: Duration,
}

/// A token and where it comes from. Its text shows up in no message.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    text: String,
    source: TokenSource,
}

/// Where a token comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenSource {
    /// A command-line flag.
    Flag(&'static str),
    /// An environment variable.
    Variable(&'static str),
    /// A file.
    File(PathBuf),
}

impl Token {
    /// A token, without the white space around it; `None` if nothing is left.
    pub fn new(text: &str, source: TokenSource) -> Result<Option<Self>> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        if !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::BadToken { source_of_token: source });
        }
        Ok(Some(Self { text: text.to_owned(), source }))
    }

    /// Where it comes from.
    pub fn source(&self) -> &TokenSource {
        &self.source
    }

    /// The header's value.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.text)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.source)
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => write!(f, "`{name}`"),
            Self::File(path) => write!(f, "`{}`", path.display()),
        }
    }
}

impl Settings {
    /// The settings of this process's environment.
    pub fn from_env() -> Result<Self> {
        Self::read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// The settings of an environment.
    pub(crate) fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let first = |names: &[&'static str]| {
            let set = |&name: &&'static str| variable(name).filter(|value| !value.trim().is_empty()).map(|v| (name, v));
            names.iter().find_map(set)
        };
        let path = |names: &[&'static str]| first(names).map(|(_, value)| expanded(&value, variable));
        let home = path(&["HF_HOME"]).unwrap_or_else(|| {
            let caches = path(&["XDG_CACHE_HOME"]).unwrap_or_else(|| expanded("~/.cache", variable));
            caches.join("huggingface")
        });
        let endpoint = match first(&["HF_ENDPOINT"]) {
            Some((name, value)) => checked_endpoint(name, &value)?,
            None => ENDPOINT.to_owned(),
        };
        let token_file = path(&["HF_TOKEN_PATH"]).unwrap_or_else(|| home.join("token"));
        let token = if first(&["HF_HUB_DISABLE_IMPLICIT_TOKEN"]).is_some_and(|(_, value)| is_true(&value)) {
            None
        } else {
            match first(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]) {
                Some((name, value)) => Token::new(&value, TokenSource::Variable(name))?,
                None => token_of_file(&token_file)?,
            }
        };
        let offline = ["HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"];
        Ok(Self {
            endpoint,
            token,
            cache: path(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).unwrap_or_else(|| home.join("hub")),
            offline: offline.into_iter().find(|&name| first(&[name]).is_some_and(|(_, value)| is_true(&value))),
            certificates: path(&["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"]),
            use_proxy: true,
            connect_timeout: CONNECT_TIMEOUT,
            read_timeout: duration(first(&["HF_HUB_DOWNLOAD_TIMEOUT"]), 1000.0, 1.0, DEFAULT_READ_TIMEOUT)?,
            first_wait: duration(first(&["FERROTUNE_HUB_RETRY_MS"]), 1.0, 0.0, DEFAULT_FIRST_WAIT)?,
        })
    }
}

/// An address that requests can begin with.
fn checked_endpoint(variable: &'static str, text: &str) -> Result<String> {
    // A password in the address shows up in no message.
    let without_user = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://***{}", &text[..scheme], &text[at..]),
        (None, Some(at)) => format!("***{}", &text[at..]),
        _ => text.to_owned(),
    };
    let bad = || Error::BadEndpoint { variable, found: without_user.clone() };
    let trimmed = text.trim().trim_end_matches('/');
    let uri: Uri = trimmed.parse().map_err(|_| bad())?;
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if !is_http || has_user || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
        return Err(bad());
    }
    Ok(trimmed.to_owned())
}

fn token_of_file(path: &Path) -> Result<Option<Token>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Token::new(&text, TokenSource::File(path.to_owned())),
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(Error::Setting { path: path.to_owned(), what: "the saved token", cause }),
    }
}

/// A path whose `~` stands for the home folder.
fn expanded(path: &str, variable: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    let path = path.trim();
    match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let home = variable("HOME").filter(|home| !home.is_empty()).unwrap_or_else(|| "/".to_owned());
            Path::new(&home).join(rest.trim_start_matches('/'))
        }
        _ => PathBuf::from(path),
    }
}

/// The words that mean yes.
fn is_true(value: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].contains(&value.trim().to_ascii_uppercase().as_str())
}

/// A duration of `unit_ms` milliseconds a unit, at least `least_ms`, at most a day.
fn duration(
    variable: Option<(&'static str, String)>,
    unit_ms: f64,
    least_ms: f64,
    default: Duration,
) -> Result<Duration> {
    let Some((variable, text)) = variable else { return Ok(default) };
    match text.trim().parse::<f64>().map(|value| value * unit_ms) {
        Ok(ms) if (least_ms..=86_400_000.0).contains(&ms) => Ok(Duration::from_secs_f64(ms / 1000.0)),
        _ => Err(Error::BadDuration { variable, found: text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Settings::read(&find)
    }

    #[test]
    fn defaults() {
        let settings = read(&[("HOME", "/home/me")]).unwrap();
        assert_eq!(settings.endpoint, "https://huggingface.co");
        assert_eq!(settings.cache, Path::new("/home/me/.cache/huggingface/hub"));
        assert_eq!((settings.token, settings.offline, settings.certificates), (None, None, None));
        assert_eq!(settings.read_timeout, Duration::from_secs(30));
    }

    #[test]
    fn folders_follow_from_each_other() {
        let cache = |variables: &[_]| read(variables).unwrap().cache;
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x")]), Path::new("/x/huggingface/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf"), ("HOME", "/h")]), Path::new("/h/hf/hub"));
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")]), Path::new("/c"));
        assert_eq!(cache(&[("HF_HOME", "/hf"), ("HF_HUB_CACHE", "")]), Path::new("/hf/hub"));
    }

    #[test]
    fn the_token_s_places_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let token = |variables: &[(&str, &str)]| {
            let token = read(&[variables, &[("HF_HOME", home)]].concat()).unwrap().token;
            token.map(|token| (token.bearer(), token.source().to_string()))
        };
        let from = |text: &str, source: &str| Some((format!("Bearer {text}"), format!("`{source}`")));
        assert_eq!(token(&[("HF_TOKEN", " a \n"), ("HUGGING_FACE_HUB_TOKEN", "b")]), from("a", "HF_TOKEN"));
        assert_eq!(token(&[("HUGGING_FACE_HUB_TOKEN", "b")]), from("b", "HUGGING_FACE_HUB_TOKEN"));
        assert_eq!(token(&[("HF_TOKEN", "")]), from("hf_file", &format!("{home}/token")));
        assert_eq!(token(&[("HF_TOKEN", "a"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "true")]), None);
        assert_eq!(token(&[("HF_TOKEN_PATH", "/nowhere/token")]), None);
    }

    #[test]
    fn a_token_is_never_shown() {
        let settings = read(&[("HF_TOKEN", "hf_secret")]).unwrap();
        assert!(!format!("{settings:?}").contains("secret"));
        let error = read(&[("HF_TOKEN", "hf_se cret")]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("cret"));
    }

    #[test]
    fn endpoints() {
        let endpoint = |value| read(&[("HF_ENDPOINT", value)]).map(|settings| settings.endpoint);
        assert_eq!(endpoint("http://127.0.0.1:8080/").unwrap(), "http://127.0.0.1:8080");
        assert_eq!(endpoint("https://mirror.example/hf").unwrap(), "https://mirror.example/hf");
        for bad in ["huggingface.co", "ftp://x", "http://", "http://u:p@h", "http://h/?a=b", "http://a b"] {
            assert!(matches!(endpoint(bad), Err(Error::BadEndpoint { .. })), "{bad}");
        }
    }

    #[test]
    fn switches_and_durations() {
        let offline = |name, value| read(&[(name, value)]).unwrap().offline;
        assert_eq!(offline("HF_HUB_OFFLINE", "1"), Some("HF_HUB_OFFLINE"));
        assert_eq!(offline("HF_DATASETS_OFFLINE", "yes"), Some("HF_DATASETS_OFFLINE"));
        assert_eq!(offline("HF_HUB_OFFLINE", "0"), None);
        let timeout = |value| read(&[("HF_HUB_DOWNLOAD_TIMEOUT", value)]).map(|settings| settings.read_timeout);
        assert_eq!(timeout("0.5").unwrap(), Duration::from_millis(500));
        for bad in ["0", "-1", "soon", "NaN", "1e300"] {
            assert!(matches!(timeout(bad), Err(Error::BadDuration { .. })), "{bad}");
        }
        assert_eq!(read(&[("FERROTUNE_HUB_RETRY_MS", "0")]).unwrap().first_wait, Duration::ZERO);
    }
}
