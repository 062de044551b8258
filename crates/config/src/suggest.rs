//! Did-you-mean: which known name a misspelled one is close to.

/// Characters beyond which a name is not compared.
const LONGEST_NAME: usize = 200;

/// The known name closest to `name`, if it is close enough to be a slip: another case or separator, a few letters'
/// distance (1 up to 5 letters, 2 up to 9, else 3), its initials (`learning_rate` for `lr`), the known name
/// without its first or last word (`warmup_steps` for `num_warmup_steps`), or the first half of it (`param` for `parameters`).
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for candidate in known {
        if let Some(distance) = closeness(name, candidate)
            && best.is_none_or(|(least, _)| distance < least)
        {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// The `count` known names most like `name`, best first, whether close or not.
pub fn most_alike<'a>(name: &str, known: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<&'a str> {
    if name.chars().count() > LONGEST_NAME {
        return Vec::new();
    }
    let last = name.rsplit('.').next().unwrap_or(name).to_lowercase();
    let mut scored: Vec<(f64, &str)> = known
        .into_iter()
        .map(|candidate| {
            let tail = candidate.rsplit('.').next().unwrap_or(candidate).to_lowercase();
            let score = strsim::normalized_damerau_levenshtein(&last, &tail)
                + 0.1 * strsim::normalized_damerau_levenshtein(name, candidate);
            (score, candidate)
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.into_iter().take(count).filter(|(score, _)| *score > 0.4).map(|(_, candidate)| candidate).collect()
}

fn closeness(name: &str, candidate: &str) -> Option<usize> {
    let (a, b) = (folded(name), folded(candidate));
    if a == b {
        return Some(0);
    }
    let longest = a.chars().count().max(b.chars().count());
    // Nothing so long is a slip, and its distance would cost the product of both lengths.
    if longest > LONGEST_NAME {
        return None;
    }
    let allowed = match longest {
        0..=2 => 0,
        3..=5 => 1,
        6..=9 => 2,
        _ => 3,
    };
    let distance = strsim::damerau_levenshtein(&a, &b);
    if distance <= allowed {
        return Some(distance);
    }
    let is_meant = initials_of(name) == candidate || one_word_short(name, candidate) || is_cut_short(&a, &b);
    is_meant.then_some(allowed + 1)
}

/// Whether a name is the beginning of a known one, and at least half of it.
fn is_cut_short(name: &str, candidate: &str) -> bool {
    const SHORTEST: usize = 5;
    name.len() >= SHORTEST && candidate.starts_with(name) && candidate.len() <= 2 * name.len()
}

fn folded(name: &str) -> String {
    name.trim().to_lowercase().replace('-', "_")
}

fn initials_of(name: &str) -> String {
    let words = name.split('_').filter(|word| !word.is_empty());
    words.filter_map(|word| word.chars().next()).collect()
}

fn one_word_short(name: &str, candidate: &str) -> bool {
    let (short, long): (Vec<&str>, Vec<&str>) = (name.split('_').collect(), candidate.split('_').collect());
    short.len() >= 2 && long.len() == short.len() + 1 && (long.ends_with(&short) || long.starts_with(&short))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 7] =
        ["lr", "num_warmup_steps", "gradient_accumulation_steps", "batch_size", "seed", "lora_rank", "parameters"];

    #[test]
    fn slips_are_recognised() {
        for (slip, meant) in [
            ("learning_rate", "lr"),
            ("LR", "lr"),
            ("warmup_steps", "num_warmup_steps"),
            ("gradient_acumulation_steps", "gradient_accumulation_steps"),
            ("batch-size", "batch_size"),
            ("batch_size ", "batch_size"),
            ("sede", "seed"),
            ("param", "parameters"),
        ] {
            assert_eq!(nearest(slip, KNOWN), Some(meant), "{slip}");
        }
    }

    #[test]
    fn other_words_are_not_slips() {
        for name in ["lora_alpha", "batch_size_val", "name", "profiler", "x", ""] {
            assert_eq!(nearest(name, KNOWN), None, "{name}");
        }
    }

    #[test]
    fn very_long_names_are_not_compared() {
        let name = "x".repeat(LONGEST_NAME);
        assert_eq!(nearest(&name[1..], [name.as_str()]), Some(name.as_str()));
        let longer = format!("{name}x");
        assert_eq!(nearest(&name, [longer.as_str()]), None);
        assert_eq!(most_alike(&longer, ["x"], 1), [""; 0]);
    }

    #[test]
    fn components_are_compared_by_their_last_word_first() {
        let known = ["torch.optim.AdamW", "torch.optim.SGD", "bitsandbytes.optim.PagedAdamW"];
        assert_eq!(most_alike("torch.optim.Adam", known, 2), ["torch.optim.AdamW", "bitsandbytes.optim.PagedAdamW"]);
        assert_eq!(most_alike("zzz", known, 2), [""; 0]);
    }
}
