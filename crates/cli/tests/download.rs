//! `tune download` against a hub on loopback: what is written where, what is said, exit codes. The snapshots are the exact
//! words.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use testing::hub_server::{Fault, GOOD_TOKEN, Hosted, HubServer, WEAK_TOKEN};

use super::common::{succeed, tune};
use super::tiny::Tiny;

const COMMIT: &str = "c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0";
const LEN: usize = 100_000;

/// A hub, and a folder to work in.
struct Place {
    server: HubServer,
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { server: HubServer::start(), dir: tempfile::tempdir().expect("a temporary folder") };
        place.server.add(
            Hosted::model("owner/tiny")
                .file("config.json", b"{}")
                .file("original/params.json", b"[]")
                .large("model.safetensors", &weights()),
        );
        place.server.add(Hosted::model("owner/gated").file("config.json", b"{}").gated());
        place
    }

    /// `tune download` that asks the hub of this place.
    fn download(&self, arguments: &[&str]) -> Command {
        let mut command = tune(self.dir.path());
        command.arg("download").args(arguments).env_remove("HF_HUB_OFFLINE");
        command.env("HF_ENDPOINT", self.server.endpoint()).env("FERROTUNE_HUB_RETRY_MS", "1");
        command.env("HF_HUB_DOWNLOAD_TIMEOUT", "0.3");
        command
    }

    /// Runs a download whose transcript is the snapshot `name`.
    fn show(&self, name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Output {
        let output = self.download(arguments).envs(environment.iter().copied()).output().expect("the program starts");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        let code = output.status.code().map_or("a signal".to_owned(), |code| code.to_string());
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let mut settings = insta::Settings::clone_current();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        let mut words: Vec<String> = environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        words.extend(["tune", "download"].iter().chain(arguments).map(|word| (*word).to_owned()));
        settings.set_description(words.join(" "));
        settings.set_snapshot_path("snapshots/download");
        settings.add_filter(r"http://127\.0\.0\.1:\d+", "[HUB]");
        settings.add_filter(COMMIT, "[COMMIT]");
        let text = format!("exit code: {code}\n--- stdout\n{stdout}--- stderr\n{stderr}");
        settings.bind(|| insta::assert_snapshot!(name, text));
        output
    }

    fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(path)).expect("there")
    }

    fn has(&self, path: &str) -> bool {
        self.dir.path().join(path).exists()
    }
}

fn weights() -> Vec<u8> {
    (0..LEN).map(|i| (i * 31 % 251) as u8).collect()
}

const TINY: [&str; 3] = ["owner/tiny", "--output-dir", "out"];

#[test]
fn a_model_arrives() {
    let place = Place::new();
    place.show("a_model", &TINY, &[]);
    assert_eq!(place.read("out/model.safetensors"), weights());
    assert_eq!(place.read("out/original_repo_id.json"), b"{\n    \"repo_id\": \"owner/tiny\"\n}");
    place.show("a_model_again", &TINY, &[]);
}

#[test]
fn without_a_folder_it_goes_below_tmp() {
    let place = Place::new();
    let name = format!("tune-{}", std::process::id());
    place.server.add(Hosted::model(&format!("owner/{name}")).file("config.json", b"{}"));
    let output = succeed(&mut place.download(&[&format!("owner/{name}")]));
    let stdout = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(stdout, format!("/tmp/{name}/config.json\n/tmp/{name}/original_repo_id.json\n"));
    std::fs::remove_dir_all(format!("/tmp/{name}")).expect("written");
}

#[test]
fn patterns_leave_files_out() {
    let place = Place::new();
    let arguments =
        [&TINY[..], &["--ignore-patterns", "original/*,*.bin", "--ignore-patterns", "*.safetensors"]].concat();
    place.show("patterns", &arguments, &[]);
    assert!(!place.has("out/original") && !place.has("out/model.safetensors"));
    place.show("patterns_that_leave_nothing", &["owner/tiny", "--output-dir", "none", "--ignore-patterns", "*"], &[]);
    assert!(!place.has("none"));
    place.show("pattern_malformed", &["owner/tiny", "--output-dir", "none", "--ignore-patterns", "*.md,["], &[]);
    assert!(!place.has("none"));
}

#[test]
fn a_revision() {
    let place = Place::new();
    place.server.add(Hosted::model("owner/tiny").file("v2.json", b"2").revision("v2"));
    succeed(&mut place.download(&["owner/tiny", "--revision", "v2", "--output_dir", "out"]));
    assert_eq!(place.read("out/v2.json"), b"2");
    place.show("revision_missing", &[&TINY[..], &["--revision", "v3"]].concat(), &[]);
    place.show("revision_malformed", &[&TINY[..], &["--revision", "../v3"]].concat(), &[]);
}

#[test]
fn repositories_that_are_not_for_everyone() {
    let place = Place::new();
    let gated = ["owner/gated", "--output-dir", "out"];
    place.show("gated_without_token", &gated, &[]);
    place.show("gated_with_a_weak_token", &gated, &[("HF_TOKEN", WEAK_TOKEN)]);
    place.show("gated_with_an_unknown_token", &[&gated[..], &["--hf-token", "hf_typo"]].concat(), &[]);
    place.show("token_with_a_space", &[&gated[..], &["--hf-token", "hf_ty po"]].concat(), &[]);
    assert!(!place.has("out/original_repo_id.json"));
    // The flag counts before the variable.
    succeed(place.download(&[&gated[..], &["--hf-token", GOOD_TOKEN]].concat()).env("HF_TOKEN", WEAK_TOKEN));
    assert_eq!(place.read("out/config.json"), b"{}");
}

#[test]
fn a_saved_token_is_used() {
    let place = Place::new();
    std::fs::create_dir(place.dir.path().join("hf")).expect("writable");
    std::fs::write(place.dir.path().join("hf/token"), GOOD_TOKEN).expect("writable");
    succeed(&mut place.download(&["owner/gated", "--output-dir", "out"]));
    std::fs::write(place.dir.path().join("hf/token"), "hf_old").expect("writable");
    place.show("saved_token_is_old", &["owner/gated", "--output-dir", "out2"], &[]);
}

#[test]
fn repositories_that_are_not_there() {
    let place = Place::new();
    place.show("missing", &["owner/tinny", "--output-dir", "out"], &[]);
    place.show("missing_with_token", &["owner/tinny", "--output-dir", "out"], &[("HF_TOKEN", GOOD_TOKEN)]);
    place.show("id_malformed", &["owner/tiny/main"], &[]);
    place.show("id_that_leads_out", &["../../etc"], &[]);
    assert!(!place.has("out"));
}

#[test]
fn arguments_that_mean_nothing() {
    let place = Place::new();
    place.show("no_repository", &[], &[]);
    place.show("source_unknown", &["owner/tiny", "--source", "modelscope"], &[]);
    place.show("source_kaggle", &["metaresearch/llama-3.2/pytorch/1b", "--source", "kaggle"], &[]);
    place.show("kaggle_key", &["owner/tiny", "--kaggle-username", "me", "--kaggle-api-key", "secret"], &[]);
    assert!(place.server.requests().is_empty());
}

#[test]
fn environments_that_mean_nothing() {
    let place = Place::new();
    place.show("endpoint_malformed", &TINY, &[("HF_ENDPOINT", "huggingface.co")]);
    place.show("timeout_malformed", &TINY, &[("HF_HUB_DOWNLOAD_TIMEOUT", "soon")]);
    place.show("retry_malformed", &TINY, &[("FERROTUNE_HUB_RETRY_MS", "-1")]);
    place.show("certificates_missing", &TINY, &[("SSL_CERT_FILE", "nowhere.pem")]);
    place.show("certificates_empty", &TINY, &[("SSL_CERT_FILE", "/dev/null")]);
    place.show("offline", &TINY, &[("HF_HUB_OFFLINE", "1")]);
}

#[test]
fn hubs_that_cannot_be_had() {
    let place = Place::new();
    // No name has a part of 64 letters, so this one is looked up nowhere.
    let nameless = format!("http://{}.invalid", "x".repeat(64));
    place.show("no_such_host", &TINY, &[("HF_ENDPOINT", &nameless)]);
    let gone = HubServer::start().endpoint();
    // The address stands in the description, so it is not given there.
    let output = place.download(&TINY).env("HF_ENDPOINT", &gone).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr).replace(&gone, "HUB");
    assert!(stderr.starts_with("error: cannot reach HUB: connection refused\n\nhint: check the network"), "{stderr}");
    place.server.fault("/revision/", 1, Fault::Body("<html>Welcome to the hotel</html>".to_owned()));
    place.show("not_a_hub", &TINY, &[]);
    place.server.fault("/revision/", usize::MAX, Fault::Redirect("/api/models/owner/tiny/revision/main".to_owned()));
    place.show("redirects_without_end", &TINY, &[]);
}

/// One test a line: `name: part of the requests, times, what goes wrong`.
macro_rules! misbehaves {
    ($($name:ident: $part:expr, $times:expr, $fault:expr;)*) => {$(
        #[test]
        fn $name() {
            let place = Place::new();
            place.server.fault($part, $times, $fault);
            let output = place.show(stringify!($name), &TINY, &[]);
            assert_eq!(place.has("out/model.safetensors"), output.status.success());
            if output.status.success() {
                assert_eq!(place.read("out/model.safetensors"), weights());
            }
        }
    )*};
}

const ALWAYS: usize = usize::MAX;

fn retry_after(secs: u32) -> Vec<(&'static str, String)> {
    vec![("Retry-After", secs.to_string())]
}

fn says(text: &str) -> Vec<(&'static str, String)> {
    vec![("X-Error-Message", text.to_owned())]
}

misbehaves! {
    drops_once: "model.safetensors", 1, Fault::DropAfter(LEN / 2);
    drops_always: "model.safetensors", ALWAYS, Fault::DropAfter(0);
    falls_silent_once: "model.safetensors", 1, Fault::StallAfter(LEN / 2);
    never_answers: "/revision/", ALWAYS, Fault::Silence;
    sends_too_much: "model.safetensors", ALWAYS, Fault::Longer(7);
    sends_too_little: "model.safetensors", ALWAYS, Fault::Shorter(7);
    changes_a_byte_once: "model.safetensors", 1, Fault::Corrupt;
    changes_a_byte_always: "model.safetensors", ALWAYS, Fault::Corrupt;
    is_busy_once: "/revision/", 1, Fault::Status(429, retry_after(0));
    is_busy_always: "/revision/", ALWAYS, Fault::Status(429, retry_after(0));
    is_busy_for_hours: "model.safetensors", ALWAYS, Fault::Status(429, retry_after(7200));
    fails_once: "model.safetensors", 1, Fault::Status(502, vec![]);
    fails_always: "model.safetensors", ALWAYS, Fault::Status(500, says("Internal error"));
    refuses: "model.safetensors", ALWAYS, Fault::Status(403, says("Your account is suspended"));
    has_lost_the_file: "model.safetensors", ALWAYS, Fault::Status(404, vec![]);
}

#[test]
fn a_listing_that_leads_out_of_the_folder() {
    let place = Place::new();
    place.server.add(Hosted::model("owner/tiny").file("../../evil", b"x"));
    place.show("listing_leads_out", &TINY, &[]);
    assert!(!place.has("out"));
}

#[test]
fn folders_and_disks_that_take_nothing() {
    let place = Place::new();
    std::fs::write(place.dir.path().join("out"), "a file").expect("writable");
    place.show("folder_is_a_file", &TINY, &[]);
    #[cfg(target_os = "linux")]
    {
        std::fs::create_dir(place.dir.path().join("full")).expect("writable");
        let part = place.dir.path().join("full/model.safetensors.part");
        std::os::unix::fs::symlink("/dev/full", part).expect("writable");
        place.show("disk_full", &["owner/tiny", "--output-dir", "full"], &[]);
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("there");
        let output = place.download(&["owner/tiny", "--output-dir", "out2"]).stdout(full).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.contains("error: cannot write `stdout`"), "{stderr}");
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        // Beside the files, what is written last.
        std::fs::create_dir_all(place.dir.path().join("out3/original_repo_id.json")).expect("writable");
        place.show("no_room_for_the_repository_s_id", &["owner/tiny", "--output-dir", "out3"], &[]);
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_download_is_gone_on_with() {
    let place = Place::new();
    place.server.fault("model.safetensors", 1, Fault::StallAfter(LEN / 2));
    let mut child = place
        .download(&TINY)
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "60")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the program starts");
    let part = place.dir.path().join("out/model.safetensors.part");
    let begun = Instant::now();
    while part.metadata().map_or(0, |metadata| metadata.len()) < (LEN / 2) as u64 {
        assert!(begun.elapsed() < Duration::from_secs(30), "half of the file arrives");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What Ctrl-C sends.
    succeed(Command::new("kill").args(["-INT", &child.id().to_string()]));
    let status = child.wait().expect("it ends");
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
    assert_eq!(status.code(), Some(130), "{stderr}");
    let kept = "interrupted: `out/model.safetensors.part` is kept, and the same command goes on from it\n";
    assert!(stderr.ends_with(kept), "{stderr}");
    assert!(!place.has("out/model.safetensors") && place.has("out/model.safetensors.part"));
    place.show("after_an_interruption", &TINY, &[]);
    let requests = place.server.requests();
    let last = requests.iter().rfind(|request| request.target.ends_with("model.safetensors")).expect("asked for");
    assert_eq!(last.header("range"), Some(&*format!("bytes={}-", LEN / 2)));
    assert_eq!(place.read("out/model.safetensors"), weights());
}

#[test]
fn a_run_reads_a_dataset_by_its_id() {
    let tiny = Tiny::new();
    let place = Place::new();
    let rows = std::fs::read(tiny.path("rows.jsonl")).expect("there");
    place.server.add(Hosted::dataset("owner/rows").file("data/train.jsonl", &rows));
    let arguments = [
        "run",
        "full_finetune_single_device",
        "--config",
        "run.yaml",
        "dataset.source=owner/rows",
        "~dataset.data_files",
    ];
    let mut command = tiny.tune(&arguments);
    succeed(command.env("HF_ENDPOINT", place.server.endpoint()).env_remove("HF_HUB_OFFLINE"));
    drop(place);
    // The second time without a hub.
    std::fs::remove_dir_all(tiny.path("out")).expect("written");
    succeed(&mut tiny.tune(&arguments));
}
