//! A small hub on loopback, for tests: it lists and serves repositories, knows tokens, and misbehaves where told to.
//!
//! ```
//! use testing::hub_server::{Fault, Hosted, HubServer};
//!
//! let server = HubServer::start();
//! server.add(Hosted::model("owner/tiny").file("config.json", b"{}").large("model.safetensors", &[7; 1000]));
//! server.fault("model.safetensors", 1, Fault::DropAfter(10)); // once
//! assert!(server.endpoint().starts_with("http://127.0.0.1:"));
//! ```
//!
//! Tokens:  [`GOOD_TOKEN`] opens everything, [`WEAK_TOKEN`] is known but opens nothing; all others are refused.
//! Panics:  as tests do.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ring::digest;
use serde_json::{Value, json};

/// Opens gated and private repositories.
pub const GOOD_TOKEN: &str = "hf_good";
/// A token of an account without any access.
pub const WEAK_TOKEN: &str = "hf_weak";

/// How long a connection is held that never gets an answer.
const HELD: Duration = Duration::from_secs(20);

/// A repository to host.
#[derive(Debug, Clone)]
pub struct Hosted {
    plural: &'static str,
    id: String,
    commit: String,
    revisions: Vec<String>,
    files: BTreeMap<String, Contents>,
    is_gated: bool,
    is_private: bool,
}

#[derive(Debug, Clone)]
struct Contents {
    bytes: Vec<u8>,
    is_large: bool,
}

impl Hosted {
    /// An empty repository of a model.
    pub fn model(id: &str) -> Self {
        Self::new("models", id)
    }

    /// An empty repository of a dataset.
    pub fn dataset(id: &str) -> Self {
        Self::new("datasets", id)
    }

    fn new(plural: &'static str, id: &str) -> Self {
        Self {
            plural,
            id: id.to_owned(),
            commit: "c0".repeat(20),
            revisions: vec!["main".to_owned()],
            files: BTreeMap::new(),
            is_gated: false,
            is_private: false,
        }
    }

    /// Adds a file that git keeps itself.
    #[must_use]
    pub fn file(mut self, path: &str, bytes: &[u8]) -> Self {
        self.files.insert(path.to_owned(), Contents { bytes: bytes.to_vec(), is_large: false });
        self
    }

    /// Adds a file in large file storage.
    #[must_use]
    pub fn large(mut self, path: &str, bytes: &[u8]) -> Self {
        self.files.insert(path.to_owned(), Contents { bytes: bytes.to_vec(), is_large: true });
        self
    }

    /// Sets its commit, 40 hexadecimal digits.
    #[must_use]
    pub fn commit(mut self, commit: &str) -> Self {
        commit.clone_into(&mut self.commit);
        self
    }

    /// Adds a branch or tag beside `main`.
    #[must_use]
    pub fn revision(mut self, name: &str) -> Self {
        self.revisions.push(name.to_owned());
        self
    }

    /// Its files need accepted terms.
    #[must_use]
    pub fn gated(mut self) -> Self {
        self.is_gated = true;
        self
    }

    /// It is hidden from everyone without the right token.
    #[must_use]
    pub fn private(mut self) -> Self {
        self.is_private = true;
        self
    }

    fn has_revision(&self, revision: &str) -> bool {
        revision == self.commit || self.revisions.iter().any(|known| known == revision)
    }

    fn listing(&self) -> Value {
        let siblings = self.files.iter().map(|(path, contents)| {
            let blob = hex(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &git_blob(&contents.bytes)).as_ref());
            let mut entry = json!({"rfilename": path, "size": contents.bytes.len(), "blobId": blob});
            if contents.is_large {
                let sha256 = hex(digest::digest(&digest::SHA256, &contents.bytes).as_ref());
                entry["lfs"] = json!({"sha256": sha256, "size": contents.bytes.len(), "pointerSize": 134});
            }
            entry
        });
        json!({"id": self.id, "sha": self.commit, "siblings": siblings.collect::<Vec<_>>()})
    }
}

/// A way to misbehave.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Promises the file, sends so many bytes, hangs up.
    DropAfter(usize),
    /// Sends so many bytes and then nothing, with the connection open.
    StallAfter(usize),
    /// Accepts and never answers.
    Silence,
    /// Sends so many bytes more than the listing says.
    Longer(usize),
    /// Sends so many bytes fewer than the listing says.
    Shorter(usize),
    /// Changes the last byte.
    Corrupt,
    /// Sends the whole file, whatever was asked for.
    IgnoreRange,
    /// Answers with a status, headers and an empty body.
    Status(u16, Vec<(&'static str, String)>),
    /// Answers with this body and status 200.
    Body(String),
    /// Redirects.
    Redirect(String),
}

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Received {
    /// Path and query.
    pub target: String,
    headers: BTreeMap<String, String>,
}

impl Received {
    /// A header by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

struct PlannedFault {
    part_of_target: String,
    times: usize,
    fault: Fault,
}

#[derive(Default)]
struct State {
    repos: Mutex<Vec<Hosted>>,
    plain: Mutex<BTreeMap<String, Vec<u8>>>,
    faults: Mutex<Vec<PlannedFault>>,
    requests: Mutex<Vec<Received>>,
    is_stopped: AtomicBool,
}

/// The server; it stops when dropped.
pub struct HubServer {
    address: SocketAddr,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

impl HubServer {
    /// Starts on a free port of loopback.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has free ports");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if shared.is_stopped.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(stream), shared) = (stream, Arc::clone(&shared)) else { continue };
                std::thread::spawn(move || {
                    // A client that hangs up is no failure of the server.
                    let _ = shared.serve(stream);
                });
            }
        });
        Self { address, state, thread: Some(thread) }
    }

    /// Its address for `HF_ENDPOINT`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Hosts a repository, in place of one with the same id.
    pub fn add(&self, repo: Hosted) {
        let mut repos = lock(&self.state.repos);
        repos.retain(|other| (other.plural, &other.id) != (repo.plural, &repo.id));
        repos.push(repo);
    }

    /// Serves bytes at a path, as the hosts do that hubs redirect to.
    pub fn serve(&self, path: &str, bytes: &[u8]) {
        lock(&self.state.plain).insert(path.to_owned(), bytes.to_vec());
    }

    /// Misbehaves at the next requests whose path and query hold a text.
    pub fn fault(&self, part_of_target: &str, times: usize, fault: Fault) {
        lock(&self.state.faults).push(PlannedFault { part_of_target: part_of_target.to_owned(), times, fault });
    }

    /// What arrived so far.
    pub fn requests(&self) -> Vec<Received> {
        lock(&self.state.requests).clone()
    }

    /// Requests so far whose path and query hold a text.
    pub fn count(&self, part_of_target: &str) -> usize {
        self.requests().iter().filter(|request| request.target.contains(part_of_target)).count()
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.is_stopped.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An answer before it is spoilt.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn refusal(status: u16, code: &str, message: &str) -> Self {
        let headers = vec![("X-Error-Code", code.to_owned()), ("X-Error-Message", message.to_owned())];
        Self { status, headers, body: Vec::new() }
    }

    /// A file, or what of it is asked for.
    fn file(bytes: &[u8], request: &Received) -> Self {
        let first =
            request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        match first {
            None => Self { status: 200, headers: vec![], body: bytes.to_vec() },
            Some(first) if first >= bytes.len() => Self { status: 416, headers: vec![], body: vec![] },
            Some(first) => {
                let range = format!("bytes {first}-{}/{}", bytes.len() - 1, bytes.len());
                Self { status: 206, headers: vec![("Content-Range", range)], body: bytes[first..].to_vec() }
            }
        }
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let Some(mut request) = read_request(&stream)? else { return Ok(()) };
        lock(&self.requests).push(request.clone());
        let fault = self.next_fault(&request.target);
        if matches!(fault, Some(Fault::IgnoreRange)) {
            request.headers.remove("range");
        }
        let mut answer = self.answer(&request);
        let (mut send, mut hold) = (usize::MAX, false);
        match fault {
            None | Some(Fault::IgnoreRange) => {}
            Some(Fault::DropAfter(bytes)) => send = bytes,
            Some(Fault::StallAfter(bytes)) => (send, hold) = (bytes, true),
            Some(Fault::Silence) => {
                self.hold();
                return Ok(());
            }
            Some(Fault::Longer(bytes)) => answer.body.extend(vec![b'x'; bytes]),
            Some(Fault::Shorter(bytes)) => answer.body.truncate(answer.body.len().saturating_sub(bytes)),
            Some(Fault::Corrupt) => {
                if let Some(last) = answer.body.last_mut() {
                    *last ^= 1;
                }
            }
            Some(Fault::Status(status, headers)) => answer = Answer { status, headers, body: vec![] },
            Some(Fault::Body(text)) => answer = Answer { status: 200, headers: vec![], body: text.into_bytes() },
            Some(Fault::Redirect(to)) => {
                answer = Answer { status: 302, headers: vec![("Location", to)], body: vec![] };
            }
        }
        let mut head = format!("HTTP/1.1 {} Answer\r\nConnection: close\r\n", answer.status);
        head.push_str(&format!("Content-Length: {}\r\n", answer.body.len()));
        for (name, value) in &answer.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes())?;
        stream.write_all(&answer.body[..answer.body.len().min(send)])?;
        stream.flush()?;
        if hold {
            self.hold();
        }
        stream.shutdown(Shutdown::Both)
    }

    fn hold(&self) {
        let begun = Instant::now();
        while !self.is_stopped.load(Ordering::SeqCst) && begun.elapsed() < HELD {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn next_fault(&self, target: &str) -> Option<Fault> {
        let mut faults = lock(&self.faults);
        let planned = faults.iter_mut().find(|fault| fault.times > 0 && target.contains(&fault.part_of_target))?;
        planned.times -= 1;
        Some(planned.fault.clone())
    }

    fn answer(&self, request: &Received) -> Answer {
        let path = decoded(request.target.split('?').next().unwrap_or_default());
        if let Some(bytes) = lock(&self.plain).get(&path) {
            return Answer::file(bytes, request);
        }
        let token = request.header("authorization").map(|value| value.trim_start_matches("Bearer "));
        if token.is_some_and(|token| token != GOOD_TOKEN && token != WEAK_TOKEN) {
            return Answer::refusal(401, "", "Invalid credentials in Authorization header");
        }
        let repos = lock(&self.repos);
        let found = repos.iter().find_map(|repo| Some((repo, repo.target(&path)?)));
        let Some((repo, (revision, file))) = found.filter(|(repo, _)| !repo.is_private || token == Some(GOOD_TOKEN))
        else {
            let status = if token.is_some() { 404 } else { 401 };
            return Answer::refusal(status, "RepoNotFound", "Repository not found");
        };
        if !repo.has_revision(&revision) {
            return Answer::refusal(404, "RevisionNotFound", &format!("Invalid rev id: {revision}"));
        }
        let Some(file) = file else {
            return Answer { status: 200, headers: vec![], body: repo.listing().to_string().into_bytes() };
        };
        if repo.is_gated && token != Some(GOOD_TOKEN) {
            let status = if token.is_some() { 403 } else { 401 };
            return Answer::refusal(status, "GatedRepo", "Access to this resource is restricted");
        }
        match repo.files.get(&file) {
            Some(contents) => Answer::file(&contents.bytes, request),
            None => Answer::refusal(404, "EntryNotFound", "Entry not found"),
        }
    }
}

impl Hosted {
    /// The revision that a path asks for, and the file, or `None` for the listing; nothing if it means another repository.
    fn target(&self, path: &str) -> Option<(String, Option<String>)> {
        let listing = format!("/api/{}/{}/revision/", self.plural, self.id);
        if let Some(revision) = path.strip_prefix(&listing) {
            return Some((revision.to_owned(), None));
        }
        let prefix = if self.plural == "datasets" { "/datasets" } else { "" };
        let rest = path.strip_prefix(&format!("{prefix}/{}/resolve/", self.id))?;
        let (revision, file) = rest.split_once('/')?;
        Some((revision.to_owned(), Some(file.to_owned())))
    }
}

fn read_request(stream: &TcpStream) -> std::io::Result<Option<Received>> {
    let mut reader = BufReader::new(stream.take(1 << 16));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let Some(target) = line.split(' ').nth(1).map(str::to_owned) else { return Ok(None) };
    let mut headers = BTreeMap::new();
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok(Some(Received { target, headers }));
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
}

/// Text with its `%` escapes replaced.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let escaped = after.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok());
        match (first, escaped) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn git_blob(bytes: &[u8]) -> Vec<u8> {
    [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |hex, byte| hex + &format!("{byte:02x}"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
