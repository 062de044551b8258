//! Counts, shapes, lists of names and byte sizes as messages word them.

/// `1 tensor`, `3 tensors`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// `(2048, 512)`.
pub(crate) fn shape_words(shape: &[usize]) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("({})", sizes.join(", "))
}

/// The first `limit` names in backticks and how many more there are; `nothing` for none.
pub(crate) fn name_list(names: &[String], limit: usize) -> String {
    if names.is_empty() {
        return "nothing".into();
    }
    let shown: Vec<String> = names.iter().take(limit).map(|name| format!("`{name}`")).collect();
    let rest = names.len().saturating_sub(limit);
    let tail = if rest > 0 { format!(", ... ({rest} more)") } else { String::new() };
    format!("{}{tail}", shown.join(", "))
}

/// A byte count in the largest unit that keeps it at least one.
pub(crate) fn gib(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    units
        .iter()
        .find(|(_, size)| bytes >= *size)
        .map_or_else(|| format!("{bytes} bytes"), |(unit, size)| format!("{:.1} {unit}", bytes as f64 / *size as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_their_unit() {
        assert_eq!(gib(12), "12 bytes");
        assert_eq!(gib(3 << 30), "3.0 GiB");
        assert_eq!(gib(1 << 20), "1.0 MiB");
    }

    #[test]
    fn long_lists_end_in_a_count() {
        let names: Vec<String> = (0..5).map(|i| format!("t{i}")).collect();
        assert_eq!(name_list(&names, 2), "`t0`, `t1`, ... (3 more)");
        assert_eq!(name_list(&names[..2], 2), "`t0`, `t1`");
        assert_eq!(name_list(&[], 2), "nothing");
        assert_eq!((counted(1, "tensor"), counted(0, "tensor")), ("1 tensor".into(), "0 tensors".into()));
        assert_eq!(shape_words(&[2, 3]), "(2, 3)");
    }
}
