//! Repositories into folders, by a hub that does what it should.

use testing::hub_server::{Hosted, HubServer};

use crate::common::{Place, bytes};

fn tiny() -> Hosted {
    Hosted::model("owner/tiny")
        .file("config.json", b"{}")
        .file("empty", b"")
        .file("original/a b#1.txt", b"odd name")
        .large("model.safetensors", &bytes(600_000))
}

#[test]
fn a_repository_arrives_whole() {
    let place = Place::new();
    place.server.add(tiny());
    let paths = place.download("owner/tiny", &[]).unwrap();
    assert_eq!(paths, ["config.json", "empty", "model.safetensors", "original/a b#1.txt"]);
    assert_eq!(place.read("model.safetensors"), bytes(600_000));
    assert_eq!(place.read("original/a b#1.txt"), b"odd name");
    assert_eq!(place.read("empty"), b"");
    assert!(!place.has("model.safetensors.part"));
    assert_eq!(*place.told.ended.lock().unwrap(), [true; 4]);
    assert!(place.notices().is_empty());
    // Files are asked for at the commit, so that a push in between changes nothing.
    assert_eq!(place.server.count(&format!("/resolve/{}/", "c0".repeat(20))), 3, "the empty file needs no request");
}

#[test]
fn complete_files_are_kept() {
    let place = Place::new();
    place.server.add(tiny());
    place.download("owner/tiny", &[]).unwrap();
    let before = place.server.count("/resolve/");
    std::fs::write(place.target().join("config.json"), "{} ").unwrap();
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.server.count("/resolve/"), before + 1);
    assert_eq!(place.read("config.json"), b"{}");
    assert_eq!(place.told.ended.lock().unwrap()[4..], [true, false, false, false]);
}

#[test]
fn a_file_of_the_right_length_and_wrong_bytes_is_replaced() {
    let place = Place::new();
    place.server.add(tiny());
    std::fs::create_dir_all(place.target()).unwrap();
    std::fs::write(place.target().join("model.safetensors"), vec![0; 600_000]).unwrap();
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.read("model.safetensors"), bytes(600_000));
}

#[test]
fn patterns_leave_files_out() {
    let place = Place::new();
    place.server.add(tiny());
    assert_eq!(place.download("owner/tiny", &["*.safetensors", "original/*"]).unwrap(), ["config.json", "empty"]);
    assert!(!place.has("original"));
    let error = place.download("owner/tiny", &["*"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing to download from model repository `owner/tiny`: all 4 files match the patterns to ignore"
    );
    assert_eq!((error.exit_code(), error.hint().unwrap().as_str()), (2, "ignore less with `--ignore-patterns`"));
}

#[test]
fn a_partial_file_is_gone_on_with() {
    let place = Place::new();
    place.server.add(tiny());
    std::fs::create_dir_all(place.target()).unwrap();
    std::fs::write(place.target().join("model.safetensors.part"), &bytes(600_000)[..500_000]).unwrap();
    place.download("owner/tiny", &["config.json"]).unwrap();
    assert_eq!(place.read("model.safetensors"), bytes(600_000));
    let requests = place.server.requests();
    let request = requests.iter().find(|request| request.target.ends_with("model.safetensors")).unwrap();
    assert_eq!(request.header("range"), Some("bytes=500000-"));
    assert!(place.told.begun.lock().unwrap().contains(&("model.safetensors".to_owned(), 500_000)));
}

#[test]
fn a_partial_file_that_is_complete_only_gets_its_name() {
    let place = Place::new();
    place.server.add(tiny());
    std::fs::create_dir_all(place.target()).unwrap();
    std::fs::write(place.target().join("model.safetensors.part"), bytes(600_000)).unwrap();
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.server.count("model.safetensors"), 0);
    assert_eq!(place.read("model.safetensors"), bytes(600_000));
}

#[test]
fn a_partial_file_of_something_else_is_thrown_away() {
    for part in [vec![1; 500_000], vec![1; 600_000], vec![1; 700_000]] {
        let place = Place::new();
        place.server.add(tiny());
        std::fs::create_dir_all(place.target()).unwrap();
        std::fs::write(place.target().join("model.safetensors.part"), part).unwrap();
        place.download("owner/tiny", &[]).unwrap();
        assert_eq!(place.read("model.safetensors"), bytes(600_000));
    }
}

#[test]
fn two_downloads_at_once_end_with_one_file() {
    let place = Place::new();
    place.server.add(Hosted::model("owner/tiny").large("model.safetensors", &bytes(5_000_000)));
    std::thread::scope(|scope| {
        let both = [0, 1].map(|_| scope.spawn(|| place.download("owner/tiny", &[])));
        for thread in both {
            assert_eq!(thread.join().unwrap().unwrap(), ["model.safetensors"]);
        }
    });
    assert_eq!(place.read("model.safetensors"), bytes(5_000_000));
    assert!(!place.has("model.safetensors.part"));
    assert_eq!(place.server.count("/resolve/"), 1);
}

#[test]
fn a_folder_that_cannot_be_written() {
    let place = Place::new();
    place.server.add(tiny());
    std::fs::write(place.target(), "a file").unwrap();
    let error = place.download("owner/tiny", &[]).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot write `{}`", place.target().display()));
    assert_eq!(error.exit_code(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk() {
    let place = Place::new();
    place.server.add(tiny());
    std::fs::create_dir_all(place.target()).unwrap();
    std::os::unix::fs::symlink("/dev/full", place.target().join("model.safetensors.part")).unwrap();
    let error = place.download("owner/tiny", &["config.json"]).unwrap_err();
    let path = place.target().join("model.safetensors.part");
    assert_eq!(error.to_string(), format!("no space left for `{}`: 585.9 KiB more are needed", path.display()));
    assert_eq!(error.hint().unwrap(), "free some space and run the same command again: what has arrived is kept");
}

#[test]
fn files_come_from_where_the_hub_redirects_to() {
    let place = Place::new();
    let store = HubServer::start();
    place.server.add(tiny());
    store.serve("/bucket/blob", &bytes(600_000));
    let to = format!("{}/bucket/blob?signature=secret", store.endpoint());
    place.server.fault("model.safetensors", 1, testing::hub_server::Fault::Redirect(to));
    place.download("owner/tiny", &[]).unwrap();
    assert_eq!(place.read("model.safetensors"), bytes(600_000));
    assert_eq!(store.count("/bucket/blob"), 1);
}
