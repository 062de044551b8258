//! Rules about source files that no compiler lint states.
//!
//! Rules:   `unsafe` stands only in the places of the table; every file starts with its `//!` docs; a file over 600
//!          lines is pointed out, without failing the check.
//! Errors:  every violation is reported as `path:line`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cargo::root;

/// Where `unsafe` may stand: folders (with a slash at the end) and files.
const UNSAFE_ALLOWED: &[&str] =
    &["crates/cpu/", "crates/wgpu/", "crates/cuda/", "crates/checkpoint/src/mmap.rs", "crates/dist/src/mpi.rs"];
/// Longer files are pointed out.
const MAX_LINES: usize = 600;

/// Checks every Rust file of the workspace.
pub(crate) fn check() -> Result<()> {
    let root = root();
    let mut files = Vec::new();
    for folder in ["crates", "xtask"] {
        collect_rust_files(&root.join(folder), &mut files)?;
    }
    if files.is_empty() {
        bail!("no Rust files found under `{}`", root.display());
    }
    files.sort();
    let mut violations = Vec::new();
    for file in &files {
        let text = fs::read_to_string(file).with_context(|| format!("cannot read `{}`", file.display()))?;
        let path = file.strip_prefix(&root).expect("files are collected below the root");
        let path = path.to_string_lossy().replace('\\', "/");
        violations.extend(file_violations(&path, &text));
        let num_lines = text.lines().count();
        if num_lines > MAX_LINES {
            eprintln!("notice: {path} has {num_lines} lines (guideline: {MAX_LINES}); is it one thing?");
        }
    }
    if !violations.is_empty() {
        bail!("source rule violations: {}\n  {}", violations.len(), violations.join("\n  "));
    }
    Ok(())
}

fn collect_rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list `{}`", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list `{}`", folder.display()))?;
        let path = entry.path();
        if entry.file_type().with_context(|| format!("cannot look at `{}`", path.display()))?.is_dir() {
            if entry.file_name() != "target" {
                collect_rust_files(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

fn file_violations(path: &str, text: &str) -> Vec<String> {
    let mut violations = Vec::new();
    if !text.starts_with("//!") {
        violations.push(format!("{path}:1: expected `//!` docs on the first line"));
    }
    let unsafe_allowed =
        UNSAFE_ALLOWED.iter().any(|&allowed| path == allowed || (allowed.ends_with('/') && path.starts_with(allowed)));
    if !unsafe_allowed {
        let code = code_only(text);
        for (index, line) in code.lines().enumerate() {
            if line.split(|symbol: char| !symbol.is_alphanumeric() && symbol != '_').any(|word| word == "unsafe") {
                violations.push(format!("{path}:{}: `unsafe` outside {}", index + 1, UNSAFE_ALLOWED.join(", ")));
            }
        }
    }
    violations
}

/// The text with comments and the contents of string and character literals taken out; line breaks stay.
fn code_only(text: &str) -> String {
    let symbols: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < symbols.len() {
        let end = literal_or_comment_end(&symbols, at);
        if end > at {
            code.push(' ');
            code.extend(symbols[at..end].iter().filter(|&&symbol| symbol == '\n'));
            at = end;
        } else {
            code.push(symbols[at]);
            at += 1;
        }
    }
    code
}

/// The end of the comment or literal that starts at `at`, or `at` itself if none does.
fn literal_or_comment_end(symbols: &[char], at: usize) -> usize {
    let next = |offset: usize| symbols.get(at + offset).copied();
    let within_word = at > 0 && (symbols[at - 1].is_alphanumeric() || symbols[at - 1] == '_');
    match symbols[at] {
        '/' if next(1) == Some('/') => find(symbols, at, |rest| rest[0] == '\n'),
        '/' if next(1) == Some('*') => block_comment_end(symbols, at),
        '"' => quoted_end(symbols, at + 1, '"'),
        // Raw strings: `r"..."`, `r#"..."#`, and the same after `b` or `c`; `r#name` is a word.
        'r' if !within_word || matches!(symbols[at - 1], 'b' | 'c') => {
            let num_hashes = symbols[at + 1..].iter().take_while(|&&symbol| symbol == '#').count();
            if next(1 + num_hashes) == Some('"') {
                let closes = |rest: &[char]| {
                    rest[0] == '"' && rest[1..].iter().take_while(|&&symbol| symbol == '#').count() >= num_hashes
                };
                (find(symbols, at + num_hashes + 2, closes) + 1 + num_hashes).min(symbols.len())
            } else {
                at
            }
        }
        // A lifetime is a quote followed by a word without a closing quote.
        '\'' if next(1) == Some('\\') || next(2) == Some('\'') => quoted_end(symbols, at + 1, '\''),
        _ => at,
    }
}

fn find(symbols: &[char], from: usize, matches: impl Fn(&[char]) -> bool) -> usize {
    (from..symbols.len()).find(|&at| matches(&symbols[at..])).unwrap_or(symbols.len())
}

/// Just after the closing `quote`, from inside the literal.
fn quoted_end(symbols: &[char], mut at: usize, quote: char) -> usize {
    while at < symbols.len() && symbols[at] != quote {
        at += if symbols[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(symbols.len())
}

/// Just after a block comment, which may hold others.
fn block_comment_end(symbols: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < symbols.len() {
        match symbols[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_keeps_the_rules() {
        check().unwrap();
    }

    #[test]
    fn unsafe_code_is_found_with_its_line() {
        let text = "//! Docs.\n\nfn f(p: *const u8) -> u8 {\n    unsafe { *p }\n}\n";
        let found = file_violations("crates/tensor/src/lib.rs", text);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("crates/tensor/src/lib.rs:4: `unsafe` outside"), "{found:?}");
        for allowed in ["crates/cpu/src/x.rs", "crates/cpu/tests/main.rs", "crates/checkpoint/src/mmap.rs"] {
            assert_eq!(file_violations(allowed, text), [""; 0], "{allowed}");
        }
        for like in ["crates/cpu2/src/x.rs", "crates/checkpoint/src/mmap.rs/x.rs", "crates/checkpoint/src/lib.rs"] {
            assert_eq!(file_violations(like, text).len(), 1, "{like}");
        }
    }

    #[test]
    fn only_the_keyword_counts() {
        let harmless = [
            "// unsafe\n",
            "/* unsafe /* unsafe */ unsafe */\n",
            "\"unsafe \\\" unsafe\";\n",
            "r#\"unsafe \" unsafe\"#;\n",
            "br\"unsafe\\\";\n",
            "#![deny(unsafe_code)]\n",
            "let not_unsafe = '\"'; // unsafe\n",
            "let quote = '\\''; // unsafe\n",
        ];
        for text in harmless {
            assert_eq!(file_violations("x.rs", &format!("//! Docs.\n{text}")), [""; 0], "{text}");
        }
        let harmful = [
            "fn f<'a>(x: &'a str) { unsafe {} }\n",
            "let text = \"a\"; unsafe {}\n",
            "let c = '\"'; unsafe {} // \"\n",
            "let c = r\"\\\"; unsafe {}\n",
            "let r#type = 1; unsafe {} let s = \"\";\n",
            "/* a */ unsafe /* b */ {}\n",
            "let bar\"x\"; unsafe {}\n",
            "unsafe impl Send for X {}\n",
        ];
        for text in harmful {
            assert_eq!(file_violations("x.rs", &format!("//! Docs.\n{text}")).len(), 1, "{text}");
        }
    }

    #[test]
    fn unfinished_literals_end_with_the_text() {
        for text in ["\"", "'\\", "r#\"", "/*", "//", "r", "b'\\''", "r###"] {
            assert!(code_only(text).len() <= text.len() + 1, "{text}");
        }
    }

    #[test]
    fn a_file_without_docs_is_found() {
        let found = file_violations("x.rs", "use std::fs;\n");
        assert_eq!(found, ["x.rs:1: expected `//!` docs on the first line"]);
        assert_eq!(file_violations("x.rs", "").len(), 1);
    }

    #[test]
    fn files_are_found_in_all_folders_but_target() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["a/b", "target"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(folder).join("x.rs"), "").unwrap();
            fs::write(dir.path().join(folder).join("x.txt"), "").unwrap();
        }
        let mut files = Vec::new();
        collect_rust_files(dir.path(), &mut files).unwrap();
        assert_eq!(files, [dir.path().join("a/b/x.rs")]);
    }
}
