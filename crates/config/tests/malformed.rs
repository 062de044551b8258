//! Damaged configs: whatever is cut, flipped or put in, reading ends in a tree or in an error that names a line.
//!
//! The configs are the seeds of the fuzz target, which is why they use every part of the grammars.

use std::fs;
use std::path::Path;

use config::{Error, Order, Written, to_yaml};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::round_trip::{check, holds, split};

/// Name and content of every seed.
fn seeds() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/config");
    let entries = fs::read_dir(folder).expect("the fuzz target has seeds");
    let paths = entries.map(|entry| entry.expect("listed").path());
    let mut seeds: Vec<(String, String)> =
        paths.map(|path| (path.display().to_string(), fs::read_to_string(&path).expect("text"))).collect();
    seeds.sort();
    seeds
}

#[test]
fn seeds_are_whole() {
    let seeds = seeds();
    assert!(seeds.len() >= 5, "{} seeds", seeds.len());
    for (name, seed) in &seeds {
        assert_eq!(check(seed.as_bytes(), to_yaml), Ok(()), "{name}");
        let (text, arguments) = split(seed);
        assert!(!arguments.is_empty(), "{name}");
        let environment = |name: &str| Some(name.to_lowercase());
        let merged = Written::parse(name.as_str(), text)
            .and_then(|written| written.with_overrides(&arguments))
            .and_then(|written| written.resolve_with(&environment));
        assert!(merged.is_ok(), "{}", merged.expect_err("checked"));
    }
}

#[test]
fn line_ends_make_no_difference() {
    for (name, seed) in seeds() {
        let (text, _) = split(&seed);
        let read = |text: String| Written::parse(name.as_str(), text).expect("whole").to_yaml(Order::File);
        let expected = read(text.to_owned());
        assert_eq!(read(text.replace('\n', "\r\n")), expected, "{name}");
        assert_eq!(read(text.replace('\n', "\r")), expected, "{name}");
        assert_eq!(read(format!("\u{feff}{text}")), expected, "{name}");
    }
}

/// What the fuzz target found, and what must not come back.
#[test]
fn found_inputs_hold() {
    for (text, arguments) in [
        // A key that is missing at the end stands on a line behind the last one.
        ("a: 1\n? ", &[""; 0][..]),
        ("a: 1\n? \n", &[]),
    ] {
        assert_eq!(holds(text, arguments, to_yaml), Ok(()), "{text:?}");
    }
}

/// One piece of damage, at places given as shares of the length.
fn damage(bytes: &mut Vec<u8>, kind: u8, at: Index, other: Index, byte: u8) {
    if bytes.is_empty() {
        return;
    }
    let (at, other) = (at.index(bytes.len()), other.index(bytes.len()));
    let (low, high) = (at.min(other), at.max(other));
    const PIECES: [&[u8]; 16] =
        [b"\t", b"[", b"]", b"{", b"}", b"\"", b"'", b": ", b"\n", b"\n ", b"- ", b"${", b"*x", b"&x ", b"|\n", b"\0"];
    match kind % 6 {
        0 => bytes.truncate(at),
        1 => bytes[at] ^= 1 << (byte % 8),
        2 => bytes[at] = byte,
        3 => drop(bytes.splice(at..at, PIECES[usize::from(byte) % PIECES.len()].iter().copied())),
        4 => drop(bytes.drain(low..high)),
        _ => {
            let piece = bytes[low..high].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let one = (any::<u8>(), any::<Index>(), any::<Index>(), any::<u8>());
    (any::<Index>(), prop::collection::vec(one, 1..6)).prop_map(|(seed, pieces)| {
        let seeds = seeds();
        let mut bytes = split(&seeds[seed.index(seeds.len())].1).0.as_bytes().to_vec();
        for (kind, at, other, byte) in pieces {
            damage(&mut bytes, kind, at, other, byte);
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_configs_read_or_name_a_line(bytes in damaged()) {
        let text = String::from_utf8_lossy(&bytes);
        prop_assert_eq!(holds(&text, &["optimizer.lr=1"], to_yaml), Ok(()));
    }

    #[test]
    fn damaged_files_read_or_name_a_line(bytes in damaged()) {
        let path = std::env::temp_dir().join(format!("ferrotune_malformed_{}.yaml", std::process::id()));
        fs::write(&path, &bytes).expect("written");
        let read = Written::read(&path);
        fs::remove_file(&path).expect("removed");
        match read {
            Ok(_) => {}
            Err(error @ Error::Problems(_)) => prop_assert!(error.to_string().contains(".yaml"), "{}", error),
            Err(Error::NotUtf8 { line, .. }) => {
                let lines = bytes.split(|byte| *byte == b'\n').count();
                prop_assert!((1..=lines).contains(&line) && std::str::from_utf8(&bytes).is_err());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }
}
