//! The cache: shared with other programs, usable without the hub.

use std::path::Path;

use hub::{Hub, Kind, Repo, Settings};
use testing::hub_server::{Fault, Hosted};

use crate::common::{Place, bytes};

const COMMIT: &str = "c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0";

fn repo(revision: Option<&str>) -> Repo {
    Repo::new(Kind::Dataset, "owner/rows", revision).unwrap()
}

fn place() -> Place {
    let place = Place::new();
    place.server.add(
        Hosted::dataset("owner/rows")
            .file("README.md", b"rows")
            .file("data/b.jsonl", b"{}")
            .large("data/a.parquet", &bytes(100_000))
            .revision("refs/pr/1"),
    );
    place
}

fn fetch(hub: &Hub, path: &str) -> hub::Result<Vec<u8>> {
    Ok(std::fs::read(hub.snapshot(&repo(None))?.path(path)?).unwrap())
}

fn offline(place: &Place) -> Hub {
    place.hub_with(Settings { offline: Some("HF_HUB_OFFLINE"), ..place.settings() })
}

#[test]
fn files_are_fetched_when_asked_for_and_kept() {
    let place = place();
    let hub = place.hub();
    let snapshot = hub.snapshot(&repo(None)).unwrap();
    assert_eq!(snapshot.listing().files().len(), 3);
    assert_eq!(place.server.count("/resolve/"), 0);
    for _ in 0..2 {
        assert_eq!(fetch(&hub, "data/a.parquet").unwrap(), bytes(100_000));
    }
    assert_eq!(place.server.count("/resolve/"), 1);
    let error = snapshot.path("data/c.json").unwrap_err();
    assert_eq!(error.to_string(), "no file `data/c.json` in dataset repository `owner/rows`");
}

#[test]
fn the_layout_is_the_one_of_other_programs() {
    let place = place();
    fetch(&place.hub(), "data/b.jsonl").unwrap();
    let folder = place.folder.path().join("cache/datasets--owner--rows");
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    let link = std::fs::read_link(folder.join("snapshots").join(COMMIT).join("data/b.jsonl")).unwrap();
    assert_eq!(link, Path::new("../../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b"));
    assert_eq!(std::fs::read(folder.join("blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b")).unwrap(), b"{}");
}

#[test]
fn a_revision_with_slashes() {
    let place = place();
    place.hub().snapshot(&repo(Some("refs/pr/1"))).unwrap();
    let reference = place.folder.path().join("cache/datasets--owner--rows/refs/refs/pr/1");
    assert_eq!(std::fs::read_to_string(reference).unwrap(), COMMIT);
}

#[test]
fn what_was_fetched_is_there_without_the_hub() {
    let mut place = place();
    fetch(&place.hub(), "data/b.jsonl").unwrap();
    let hub = place.hub();
    place.server = testing::hub_server::HubServer::start();
    let reached = || place.server.requests().len();
    // The server of `hub` is gone.
    assert_eq!(fetch(&hub, "data/b.jsonl").unwrap(), b"{}");
    let notices = place.told.notices.lock().unwrap().clone();
    assert!(
        notices[0]
            .ends_with("connection refused; using dataset `owner/rows` as it was when last fetched (commit c0c0c0c)"),
        "{notices:?}"
    );
    assert!(fetch(&hub, "data/a.parquet").is_err());
    assert_eq!(reached(), 0);
}

#[test]
fn a_hub_that_fails_is_done_without() {
    let place = place();
    fetch(&place.hub(), "data/b.jsonl").unwrap();
    place.server.fault("/revision/", usize::MAX, Fault::Status(500, vec![]));
    assert_eq!(fetch(&place.hub(), "data/b.jsonl").unwrap(), b"{}");
}

#[test]
fn a_repository_that_is_gone_is_not_read_from_the_cache() {
    let place = place();
    fetch(&place.hub(), "data/b.jsonl").unwrap();
    place.server.fault("/revision/", 1, Fault::Status(404, vec![("X-Error-Code", "RepoNotFound".to_owned())]));
    assert!(fetch(&place.hub(), "data/b.jsonl").is_err());
}

#[test]
fn offline_means_no_request() {
    let place = place();
    fetch(&place.hub(), "data/b.jsonl").unwrap();
    let before = place.server.requests().len();
    let hub = offline(&place);
    assert_eq!(fetch(&hub, "data/b.jsonl").unwrap(), b"{}");
    let folder = place.folder.path().join("cache/datasets--owner--rows");
    let error = fetch(&hub, "data/a.parquet").unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "`data/a.parquet` of dataset repository `owner/rows` is not in the cache, and `HF_HUB_OFFLINE` forbids to ask the hub\n  looked in `{}`",
            folder.display()
        )
    );
    assert_eq!((error.exit_code(), error.hint().unwrap().as_str()), (2, "unset `HF_HUB_OFFLINE`"));
    let error = hub.snapshot(&repo(Some("v9"))).err().unwrap();
    assert!(error.to_string().starts_with("revision `v9` of dataset repository `owner/rows` is not in the cache"));
    let error = hub.list(&repo(None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot download dataset repository `owner/rows`: `HF_HUB_OFFLINE` forbids to ask the hub"
    );
    assert_eq!(place.server.requests().len(), before);
}

#[test]
fn a_commit_needs_no_hub_once_it_is_known() {
    let place = place();
    place.hub().snapshot(&repo(Some(COMMIT))).unwrap();
    let before = place.server.requests().len();
    place.hub().snapshot(&repo(Some(COMMIT))).unwrap();
    assert_eq!(place.server.requests().len(), before);
}

#[test]
fn a_cache_that_another_program_wrote() {
    let place = place();
    let folder = place.folder.path().join("cache/datasets--owner--rows");
    let snapshot = folder.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(snapshot.join("data")).unwrap();
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::create_dir_all(folder.join("blobs")).unwrap();
    std::fs::write(folder.join("refs/main"), COMMIT).unwrap();
    std::fs::write(folder.join("blobs/9e26"), "{}").unwrap();
    std::os::unix::fs::symlink("../../../blobs/9e26", snapshot.join("data/b.jsonl")).unwrap();
    std::os::unix::fs::symlink("../../../blobs/gone", snapshot.join("data/c.jsonl")).unwrap();
    let hub = offline(&place);
    let found = hub.snapshot(&repo(None)).unwrap();
    assert_eq!(found.listing().files().iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["data/b.jsonl"]);
    assert_eq!(fetch(&hub, "data/b.jsonl").unwrap(), b"{}");
    // With the hub there, a link to nothing is mended, and the other program's file is used as it is.
    place.hub().snapshot(&repo(None)).unwrap().path("data/b.jsonl").unwrap();
    assert_eq!(place.server.count("/resolve/"), 0);
}

#[test]
fn a_broken_link_is_mended() {
    let place = place();
    let hub = place.hub();
    fetch(&hub, "data/b.jsonl").unwrap();
    std::fs::remove_dir_all(place.folder.path().join("cache/datasets--owner--rows/blobs")).unwrap();
    assert_eq!(fetch(&hub, "data/b.jsonl").unwrap(), b"{}");
}

#[test]
fn references_that_lead_elsewhere_are_not_followed() {
    let place = place();
    let folder = place.folder.path().join("cache/datasets--owner--rows");
    std::fs::create_dir_all(folder.join("refs")).unwrap();
    std::fs::write(folder.join("refs/main"), "../../..").unwrap();
    assert!(offline(&place).snapshot(&repo(None)).is_err());
}
