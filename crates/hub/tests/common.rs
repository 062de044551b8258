//! A hub, a folder, and somebody who notes what is said.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hub::pattern::Pattern;
use hub::{Hub, Kind, Progress, Repo, Settings, Token, TokenSource};
use testing::hub_server::HubServer;

/// Everything a test needs.
pub(crate) struct Place {
    pub(crate) server: HubServer,
    pub(crate) folder: tempfile::TempDir,
    pub(crate) told: Arc<Told>,
}

/// Notes what it is told.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) notices: Mutex<Vec<String>>,
    /// Path, and the bytes that were there at the beginning.
    pub(crate) begun: Mutex<Vec<(String, u64)>>,
    /// Whether each file was fetched.
    pub(crate) ended: Mutex<Vec<bool>>,
}

impl Progress for Told {
    fn begin(&self, path: &str, _: Option<u64>, done: u64) {
        self.begun.lock().unwrap().push((path.to_owned(), done));
    }
    fn reached(&self, _: u64) {}
    fn end(&self, fetched: bool) {
        self.ended.lock().unwrap().push(fetched);
    }
    fn abandon(&self) {}
    fn notice(&self, text: &str) {
        self.notices.lock().unwrap().push(text.to_owned());
    }
}

/// Settings for an endpoint, quick to give up.
pub(crate) fn settings(endpoint: String, cache: &Path) -> Settings {
    Settings {
        endpoint,
        token: None,
        cache: cache.to_owned(),
        offline: None,
        certificates: None,
        use_proxy: false,
        connect_timeout: Duration::from_secs(5),
        read_timeout: Duration::from_millis(300),
        first_wait: Duration::from_millis(1),
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { server: HubServer::start(), folder: tempfile::tempdir().unwrap(), told: Arc::default() }
    }

    pub(crate) fn settings(&self) -> Settings {
        settings(self.server.endpoint(), &self.folder.path().join("cache"))
    }

    pub(crate) fn hub(&self) -> Hub {
        self.hub_with(self.settings())
    }

    pub(crate) fn hub_with(&self, settings: Settings) -> Hub {
        Hub::new(settings).unwrap().with_progress(Arc::clone(&self.told) as Arc<dyn Progress>)
    }

    /// The hub asked with a token.
    pub(crate) fn hub_as(&self, token: &str) -> Hub {
        let token = Token::new(token, TokenSource::Variable("HF_TOKEN")).unwrap();
        self.hub_with(Settings { token, ..self.settings() })
    }

    /// Where downloads go.
    pub(crate) fn target(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Downloads a model repository; its paths below the target.
    pub(crate) fn download(&self, id: &str, ignore: &[&str]) -> hub::Result<Vec<String>> {
        self.download_by(&self.hub(), id, ignore)
    }

    pub(crate) fn download_by(&self, hub: &Hub, id: &str, ignore: &[&str]) -> hub::Result<Vec<String>> {
        let listing = hub.list(&Repo::new(Kind::Model, id, None)?)?;
        let ignore: Vec<_> = ignore.iter().map(|pattern| Pattern::new(pattern)).collect();
        let paths = hub.download(&listing, &ignore, &self.target())?;
        let below = |path: PathBuf| path.strip_prefix(self.target()).unwrap().display().to_string();
        Ok(paths.into_iter().map(below).collect())
    }

    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.target().join(path)).unwrap()
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.target().join(path).exists()
    }

    pub(crate) fn notices(&self) -> Vec<String> {
        let here = self.server.endpoint();
        self.told.notices.lock().unwrap().iter().map(|notice| notice.replace(&here, "HUB")).collect()
    }
}

/// Bytes that differ from each other.
pub(crate) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 % 251) as u8).collect()
}
