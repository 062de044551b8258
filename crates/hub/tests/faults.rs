//! A hub that misbehaves, and what becomes of a download.

use std::time::{Duration, Instant};

use hub::Settings;
use testing::hub_server::{Fault, Hosted, HubServer};

use crate::common::{Place, bytes, settings};

const LEN: usize = 600_000;

fn place() -> Place {
    let place = Place::new();
    place.server.add(Hosted::model("owner/tiny").file("config.json", b"{}").large("weights", &bytes(LEN)));
    place
}

/// The error's text, hint and exit code, with the hub's address taken out.
fn error(place: &Place) -> (String, String, u8) {
    let error = place.download("owner/tiny", &[]).unwrap_err();
    let clean = |text: String| text.replace(&place.server.endpoint(), "HUB").replace(&"c0".repeat(20), "COMMIT");
    (clean(error.to_string()), clean(error.hint().unwrap_or_default()), error.exit_code())
}

const AGAIN: &str = "run the same command again: what has arrived is kept";

#[test]
fn dropped_connections_are_gone_on_from() {
    let place = place();
    // More often than there are tries: each brings something.
    place.server.fault("weights", 8, Fault::DropAfter(50_000));
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.read("weights"), bytes(LEN));
    let requests = place.server.requests();
    let ranges: Vec<_> = requests.iter().filter(|r| r.target.ends_with("weights")).map(|r| r.header("range")).collect();
    assert_eq!(ranges[..3], [None, Some("bytes=50000-"), Some("bytes=100000-")]);
    assert_eq!(ranges.len(), 9);
    assert!(place.notices()[0].contains("trying again in 0.001 s (1 of 5 tries)"), "{:?}", place.notices());
}

#[test]
fn a_connection_that_always_drops_leaves_a_partial_file() {
    let place = place();
    place.server.fault("weights", 1, Fault::DropAfter(1000));
    place.server.fault("weights", usize::MAX, Fault::DropAfter(0));
    let (message, hint, code) = error(&place);
    assert!(
        message
            .starts_with("the connection to HUB/owner/tiny/resolve/COMMIT/weights broke off: the other side hung up"),
        "{message}"
    );
    assert_eq!((hint.as_str(), code), (AGAIN, 1));
    assert!(!place.has("weights"));
    assert_eq!(place.read("weights.part"), bytes(LEN)[..1000]);
    assert!(place.has("config.json"));
}

#[test]
fn a_hub_that_cannot_go_on_begins_again() {
    let place = place();
    place.server.fault("weights", 1, Fault::DropAfter(1000));
    place.server.fault("weights", 1, Fault::IgnoreRange);
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.read("weights"), bytes(LEN));
}

#[test]
fn wrong_bytes_are_fetched_once_more() {
    let place = place();
    place.server.fault("weights", 1, Fault::Corrupt);
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.read("weights"), bytes(LEN));
    assert_eq!(place.notices(), ["wrong contents of `weights`; fetching it again"]);
}

#[test]
fn bytes_that_stay_wrong_are_refused() {
    for path in ["weights", "config.json"] {
        let place = place();
        place.server.fault(path, usize::MAX, Fault::Corrupt);
        let (message, hint, code) = error(&place);
        let hash = if path == "weights" { "sha256" } else { "git sha1" };
        assert!(message.starts_with(&format!("wrong contents of `{path}`\n  expected {hash} ")), "{message}");
        assert!(hint.starts_with("run the same command again; if it stays"), "{hint}");
        assert_eq!(code, 1);
        assert!(!place.has(path) && !place.has(&format!("{path}.part")));
        assert_eq!(place.server.count(&format!("/{path}")), 2);
    }
}

#[test]
fn a_wrong_length_is_refused() {
    for (fault, found) in [(Fault::Longer(5), LEN + 5), (Fault::Shorter(5), LEN - 5)] {
        let place = place();
        place.server.fault("weights", usize::MAX, fault);
        let (message, _, code) = error(&place);
        assert_eq!(message, format!("wrong length of `weights`: expected {LEN} bytes, found {found}"));
        assert_eq!(code, 1);
        assert!(!place.has("weights"));
    }
}

#[test]
fn a_hub_that_is_busy_once_is_waited_for() {
    let place = place();
    let wait = vec![("Retry-After", "1".to_owned())];
    place.server.fault("/revision/", 1, Fault::Status(429, wait));
    let begun = Instant::now();
    place.download("owner/tiny", &[]).unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(place.notices()[0].contains("limits how often it answers (status 429); trying again in 1 s"));
}

#[test]
fn a_hub_that_stays_busy() {
    let place = place();
    place.server.fault("weights", usize::MAX, Fault::Status(429, vec![("Retry-After", "0".to_owned())]));
    let (message, hint, code) = error(&place);
    assert_eq!(
        message,
        "HUB/owner/tiny/resolve/COMMIT/weights limits how often it answers (status 429)\n  it asks to wait 0 s"
    );
    assert_eq!((hint.as_str(), code), ("wait, or send a token: the limits are higher with one", 1));
    assert_eq!(place.server.count("weights"), 5);
}

#[test]
fn a_wait_that_is_too_long_ends_at_once() {
    let place = place();
    place.server.fault("weights", usize::MAX, Fault::Status(429, vec![("Retry-After", "7200".to_owned())]));
    assert!(error(&place).0.ends_with("it asks to wait 7200 s"));
    assert_eq!(place.server.count("weights"), 1);
}

#[test]
fn a_hub_that_fails() {
    let place = place();
    place.server.fault("/revision/", 2, Fault::Status(503, vec![]));
    place.server.fault("weights", usize::MAX, Fault::Status(500, vec![("X-Error-Message", "on fire".to_owned())]));
    let (message, hint, code) = error(&place);
    assert_eq!(message, "HUB/owner/tiny/resolve/COMMIT/weights fails with status 500\n  it says: on fire");
    assert_eq!((hint.as_str(), code), (AGAIN, 1));
    assert_eq!(place.server.count("/revision/"), 3);
}

#[test]
fn a_hub_that_never_answers() {
    let place = place();
    place.server.fault("/revision/", usize::MAX, Fault::Silence);
    let (message, hint, code) = error(&place);
    assert_eq!(message, "HUB/api/models/owner/tiny/revision/main stopped answering: nothing came for 0.3 s");
    assert_eq!((hint.as_str(), code), (AGAIN, 1));
}

#[test]
fn a_hub_that_falls_silent_is_gone_on_from() {
    let place = place();
    place.server.fault("weights", 1, Fault::StallAfter(100_000));
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.read("weights"), bytes(LEN));
    assert!(place.notices()[0].contains("stopped answering: nothing came for 0.3 s; trying again"));
}

#[test]
fn no_hub_at_all() {
    let gone = HubServer::start().endpoint();
    let folder = tempfile::tempdir().unwrap();
    let place = place();
    let unreachable = |endpoint: String, reason: &str| {
        let hub = place.hub_with(settings(endpoint.clone(), folder.path()));
        let error = place.download_by(&hub, "owner/tiny", &[]).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot reach {endpoint}: {reason}"));
        assert!(error.hint().unwrap().starts_with("check the network"));
        assert_eq!(error.exit_code(), 1);
    };
    unreachable(gone, "connection refused");
    // No name has a part of 64 letters, so this one is looked up nowhere.
    unreachable(format!("http://{}.invalid", "x".repeat(64)), "no such host, or no network");
    assert!(place.notices().is_empty(), "it is not waited for");
}

#[test]
fn an_answer_that_is_no_listing() {
    let place = place();
    for (body, reason) in
        [("<html>Log in to the hotel's network</html>", "expected value"), ("{\"sha\": 3}", "invalid type")]
    {
        place.server.fault("/revision/", 1, Fault::Body(body.to_owned()));
        let (message, hint, code) = error(&place);
        assert!(
            message.starts_with(
                "HUB/api/models/owner/tiny/revision/main answers with something that is no list of files\n  "
            ),
            "{message}"
        );
        assert!(message.contains(reason), "{message}");
        assert_eq!((hint.as_str(), code), ("check that `HF_ENDPOINT` is the address of a hub", 1));
    }
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    for name in ["../evil", "a/../../evil", "/tmp/evil", "a//b"] {
        let place = place();
        place.server.add(Hosted::model("owner/tiny").file(name, b"x").file("config.json", b"{}"));
        let (message, _, code) = error(&place);
        assert_eq!(message, format!("the hub lists a file `{name}`, whose name leads out of its folder"));
        assert_eq!(code, 1);
        assert!(!place.target().exists());
    }
}

#[test]
fn redirects_end() {
    let place = place();
    place.server.fault("/revision/", usize::MAX, Fault::Redirect("/api/models/owner/tiny/revision/main".to_owned()));
    assert_eq!(error(&place).0, "HUB/api/models/owner/tiny/revision/main redirects more than 10 times");
    let elsewhere = self::place();
    elsewhere.server.fault("/revision/", 1, Fault::Redirect("ftp://host/x?secret".to_owned()));
    let (message, ..) = error(&elsewhere);
    assert!(message.ends_with("expected an address to go on to, found `ftp://host/x`"), "{message}");
}

#[test]
fn a_signed_address_that_ran_out_is_asked_for_again() {
    let place = place();
    let store = HubServer::start();
    store.fault("/blob", 1, Fault::Status(403, vec![]));
    store.serve("/blob", &bytes(LEN));
    place.server.fault("weights", 2, Fault::Redirect(format!("{}/blob", store.endpoint())));
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(store.requests().len(), 2);
}

#[test]
fn another_refusal_is_passed_on() {
    let place = place();
    let message = vec![("X-Error-Message", "not from your country".to_owned())];
    place.server.fault("weights", 1, Fault::Status(451, message));
    assert_eq!(
        error(&place).0,
        "HUB/owner/tiny/resolve/COMMIT/weights refuses with status 451\n  it says: not from your country"
    );
}

#[test]
fn certificates_that_are_none() {
    let place = place();
    let file = place.folder.path().join("certificates.pem");
    std::fs::write(&file, "nothing").unwrap();
    let settings = Settings { certificates: Some(file.clone()), ..place.settings() };
    let error = hub::Hub::new(settings).err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("no certificate in `{}`\n  expected PEM blocks `BEGIN CERTIFICATE`", file.display())
    );
}

#[test]
fn a_file_that_is_gone_leaves_no_partial_file() {
    let place = place();
    place.server.fault("weights", 1, Fault::DropAfter(1000));
    place.server.fault("weights", usize::MAX, Fault::Status(404, vec![]));
    let (message, _, code) = error(&place);
    assert_eq!((message.as_str(), code), ("no file `weights` in model repository `owner/tiny`", 1));
    assert!(!place.has("weights") && !place.has("weights.part"));
}

#[test]
fn an_empty_partial_file_is_not_left() {
    let place = place();
    place.server.fault("weights", usize::MAX, Fault::Status(403, vec![]));
    error(&place);
    assert!(!place.has("weights.part"));
}

#[cfg(unix)]
#[test]
fn a_file_without_room_is_not_asked_for() {
    let place = place();
    let listing = serde_json::json!({
        "sha": "c0".repeat(20),
        "siblings": [{"rfilename": "weights", "size": 1_u64 << 60, "blobId": "0".repeat(40)}],
    });
    place.server.fault("/revision/", 1, Fault::Body(listing.to_string()));
    let (message, hint, code) = error(&place);
    let part = place.target().join("weights.part");
    let heading = format!("no space left for `{}`\n  expected 1073741824.0 GiB more, found ", part.display());
    assert!(message.starts_with(&heading) && message.ends_with(" free"), "{message}");
    assert!(hint.starts_with("free some space"), "{hint}");
    assert_eq!(code, 1);
    assert!(!place.has("weights.part"));
    assert!(place.server.requests().iter().all(|request| !request.target.ends_with("weights")));
}
