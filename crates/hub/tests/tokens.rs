//! Who gets in, and who gets to see the token.

use hub::{Kind, Repo};
use testing::hub_server::{Fault, GOOD_TOKEN, Hosted, HubServer, WEAK_TOKEN};

use crate::common::{Place, bytes};

fn gated(place: &Place) {
    place.server.add(Hosted::model("owner/gated").file("config.json", b"{}").gated());
}

fn error(place: &Place, token: Option<&str>, id: &str) -> (String, String, u8) {
    let hub = token.map_or_else(|| place.hub(), |token| place.hub_as(token));
    let error = place.download_by(&hub, id, &[]).unwrap_err();
    let clean = |text: String| text.replace(&place.server.endpoint(), "HUB");
    (clean(error.to_string()), clean(error.hint().unwrap_or_default()), error.exit_code())
}

#[test]
fn a_gated_repository_opens_with_the_right_token() {
    let place = Place::new();
    gated(&place);
    let hub = place.hub_as(GOOD_TOKEN);
    assert_eq!(place.download_by(&hub, "owner/gated", &[]).unwrap(), ["config.json"]);
    assert!(place.server.requests().iter().all(|r| r.header("authorization") == Some("Bearer hf_good")));
}

#[test]
fn a_gated_repository_explains_itself() {
    let place = Place::new();
    gated(&place);
    assert_eq!(
        error(&place, None, "owner/gated"),
        (
            "model repository `owner/gated` is gated: its terms have to be accepted first\n  no token was given".to_owned(),
            "accept the terms at HUB/owner/gated, make a token at HUB/settings/tokens, and set `HF_TOKEN` or pass `--hf-token` to `tune download`".to_owned(),
            2
        )
    );
    assert_eq!(
        error(&place, Some(WEAK_TOKEN), "owner/gated"),
        (
            "model repository `owner/gated` is gated: its terms have to be accepted first\n  the account of the token from `HF_TOKEN` has not accepted them, or the token may not read gated repositories".to_owned(),
            "open HUB/owner/gated with that account and accept the terms".to_owned(),
            2
        )
    );
    assert_eq!(place.server.count("/resolve/"), 2, "a refusal is not asked for again");
}

#[test]
fn a_missing_repository() {
    let place = Place::new();
    let (message, hint, code) = error(&place, None, "owner/nothing");
    assert_eq!(
        message,
        "model repository `owner/nothing` not found on HUB\n  it does not exist, or it is private and no token was given"
    );
    assert!(hint.contains("check the spelling") && hint.contains("--hf-token"), "{hint}");
    assert_eq!(code, 2);
    let (message, hint, _) = error(&place, Some(GOOD_TOKEN), "owner/nothing");
    assert!(
        message.ends_with("it does not exist, or the token has no access to it or is not valid any more"),
        "{message}"
    );
    assert_eq!(hint, "check the spelling, that the token is valid, and that its account can see the repository");
}

#[test]
fn a_private_repository_opens_with_the_right_token() {
    let place = Place::new();
    place.server.add(Hosted::model("owner/private").file("a", b"1").private());
    assert!(error(&place, None, "owner/private").0.contains("private and no token"));
    assert!(error(&place, Some(WEAK_TOKEN), "owner/private").0.contains("no access"));
    assert_eq!(place.download_by(&place.hub_as(GOOD_TOKEN), "owner/private", &[]).unwrap(), ["a"]);
}

#[test]
fn a_token_that_the_hub_does_not_know() {
    let place = Place::new();
    gated(&place);
    assert_eq!(
        error(&place, Some("hf_typo"), "owner/gated"),
        (
            "HUB does not accept the token from `HF_TOKEN`".to_owned(),
            "replace the token in `HF_TOKEN`, or remove it for public repositories".to_owned(),
            2
        )
    );
}

#[test]
fn a_missing_revision() {
    let place = Place::new();
    place.server.add(Hosted::model("owner/tiny").file("a", b"1").revision("v1"));
    let list = |revision| place.hub().list(&Repo::new(Kind::Model, "owner/tiny", Some(revision)).unwrap());
    assert!(list("v1").is_ok());
    let error = list("v2").unwrap_err();
    assert_eq!(error.to_string(), "no revision `v2` in model repository `owner/tiny`");
    assert_eq!((error.exit_code(), error.hint().unwrap().as_str()), (2, "leave the revision out to get `main`"));
}

#[test]
fn the_token_goes_to_the_hub_alone() {
    let place = Place::new();
    let store = HubServer::start();
    place.server.add(Hosted::model("owner/tiny").large("one.bin", &bytes(100)).large("two.bin", &bytes(200)));
    store.serve("/a", &bytes(100));
    place.server.serve("/moved", &bytes(200));
    // Another port of the same host is another host; a redirect to the hub itself is not.
    place.server.fault("one.bin", 1, Fault::Redirect(format!("{}/a", store.endpoint())));
    place.server.fault("two.bin", 1, Fault::Redirect("/moved".to_owned()));
    place.download_by(&place.hub_as(GOOD_TOKEN), "owner/tiny", &[]).unwrap();
    assert_eq!(store.requests().len(), 1);
    assert_eq!(store.requests()[0].header("authorization"), None);
    let requests = place.server.requests();
    let moved = requests.iter().find(|request| request.target == "/moved").unwrap();
    assert_eq!(moved.header("authorization"), Some("Bearer hf_good"));
}
