//! Dotted paths: `a.b[0].c` names a value in the tree. Brackets index like dots, `a[b]` is `a.b`.

/// The segments of a path; `.a` starts with an empty segment, as does `=5` for the key "".
pub(crate) fn split_path(path: &str) -> Vec<String> {
    let mut segments = Vec::new();
    let mut current = String::new();
    // A segment closed by `]` is complete: the dot that follows does not start an empty one.
    let mut closed = false;
    let mut rest = path;
    while let Some(c) = rest.chars().next() {
        let tail = &rest[c.len_utf8()..];
        match c {
            '.' => {
                if !closed {
                    segments.push(std::mem::take(&mut current));
                }
                closed = false;
                rest = tail;
            }
            '[' if tail.contains(']') => {
                if !(closed || current.is_empty()) {
                    segments.push(std::mem::take(&mut current));
                }
                let end = tail.find(']').expect("checked by the guard");
                segments.push(tail[..end].to_owned());
                closed = true;
                rest = &tail[end + 1..];
            }
            c => {
                current.push(c);
                closed = false;
                rest = tail;
            }
        }
    }
    if !closed {
        segments.push(current);
    }
    segments
}

/// Segments as a user writes them.
pub(crate) fn join_path(segments: &[String]) -> String {
    segments.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_and_brackets_separate() {
        for (path, segments) in [
            ("a", vec!["a"]),
            ("a.b", vec!["a", "b"]),
            ("a[b]", vec!["a", "b"]),
            ("a[0].c", vec!["a", "0", "c"]),
            ("a[0][1]", vec!["a", "0", "1"]),
            ("a.0", vec!["a", "0"]),
            ("[a].b", vec!["a", "b"]),
            ("", vec![""]),
            ("a..b", vec!["a", "", "b"]),
            ("a.", vec!["a", ""]),
            ("a[", vec!["a["]),
            ("a[b", vec!["a[b"]),
        ] {
            assert_eq!(split_path(path), segments, "{path}");
        }
    }
}
