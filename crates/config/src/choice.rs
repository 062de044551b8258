//! What [`choice!`](crate::choice) calls: a word of the config to one of a few values.

use crate::node::Node;
use crate::problems::Problems;
use crate::suggest;

/// Spellings of one value (the first is the name shown) and the value.
type Spellings<T> = [(&'static [&'static str], T)];

/// `` one of `a`, `b` ``.
pub fn one_of<T>(spellings: &Spellings<T>) -> String {
    let words: Vec<String> = spellings.iter().map(|(words, _)| format!("`{}`", words[0])).collect();
    if let [only] = &words[..] { only.clone() } else { format!("one of {}", words.join(", ")) }
}

/// The value whose spelling `node` holds, in any case.
pub fn choose<T: Copy>(spellings: &Spellings<T>, node: &Node, problems: &mut Problems) -> Option<T> {
    // A word such as `on` or `1` is a scalar of another type; its text counts.
    let scalar = !(node.is_null() || node.as_list().is_some() || node.as_map().is_some());
    let text = node.as_str().or_else(|| node.raw().filter(|_| scalar)).unwrap_or("");
    let is = |word: &&str| word.eq_ignore_ascii_case(text);
    if let Some((_, value)) = spellings.iter().find(|(words, _)| words.iter().any(is)) {
        return Some(*value);
    }
    let problem = problems.wrong_value(node, one_of(spellings));
    if let Some(meant) = suggest::nearest(text, spellings.iter().flat_map(|(words, _)| words.iter().copied())) {
        problem.hint(format!("did you mean `{meant}`?"));
    }
    None
}
