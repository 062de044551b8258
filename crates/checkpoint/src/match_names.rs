//! Do the tensors on disk fit the model? Names and shapes are compared before any weight is read.
//!
//! Errors: `Error::Names` with everything missing and unused together; `Error::WrongShape` for the first shape that
//!         differs, with the count of the others. Panics: never.

use crate::error::{Error, NamesMismatch, Result, ShapeMismatch};
use crate::source::WeightSource;
use crate::wording::counted;

/// A tensor the model needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The shape in words of `config.json`: `(num_key_value_heads * head_dim, hidden_size)`.
    pub meaning: String,
}

/// Compares what a model needs with what `source` holds; gives notices about tensors that are left aside.
///
/// Rotary tables (`rotary_emb.inv_freq`) are computed, not loaded: they never count as unused. `may_be_unused` says
/// which further names are no error when the model has no use for them (a tied model's `lm_head.weight`).
pub fn match_names(
    expected: &[ExpectedTensor],
    source: &WeightSource,
    may_be_unused: &dyn Fn(&str) -> bool,
) -> Result<Vec<String>> {
    let wanted: std::collections::HashSet<&str> = expected.iter().map(|tensor| tensor.name.as_str()).collect();
    let missing: Vec<String> =
        expected.iter().filter(|tensor| source.get(&tensor.name).is_none()).map(|tensor| tensor.name.clone()).collect();
    let (left_aside, unused): (Vec<&str>, Vec<&str>) = source
        .names()
        .filter(|name| !wanted.contains(name) && !name.ends_with("rotary_emb.inv_freq"))
        .partition(|name| may_be_unused(name));
    if !missing.is_empty() || !unused.is_empty() {
        let similar =
            missing.first().and_then(|name| Some((name.clone(), most_like(name, unused.iter().copied())?.to_owned())));
        let unused = unused.into_iter().map(Into::into).collect();
        return Err(Error::Names(Box::new(NamesMismatch { missing, unused, similar })));
    }
    check_shapes(expected, source)?;
    Ok(match left_aside[..] {
        [] => Vec::new(),
        [only] => vec![format!("tensor `{only}` of the checkpoint is not used")],
        [first, ..] => {
            vec![format!(
                "{} of the checkpoint are not used, the first is `{first}`",
                counted(left_aside.len(), "tensor")
            )]
        }
    })
}

fn check_shapes(expected: &[ExpectedTensor], source: &WeightSource) -> Result<()> {
    let mut wrong = expected.iter().filter_map(|wanted| {
        let found = source.get(&wanted.name)?;
        (found.shape != wanted.shape).then(|| ShapeMismatch {
            tensor: wanted.name.clone(),
            file: source.file_of(found),
            expected: wanted.shape.clone(),
            meaning: wanted.meaning.clone(),
            found: found.shape.clone(),
        })
    });
    match wrong.next() {
        None => Ok(()),
        Some(first) => Err(Error::WrongShape(Box::new(first), wrong.count())),
    }
}

/// The candidate most like `name`, if one is like it at all.
pub(crate) fn most_like<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Names share long stems, so what counts is how few edits lead from one to the other.
    let budget = name.len() / 3;
    candidates
        .map(|candidate| (strsim::levenshtein(name, candidate), candidate))
        .filter(|(edits, _)| *edits <= budget)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_wins_and_strangers_do_not_count() {
        let names = ["layers.0.mlp.up_proj.weight", "layers.0.mlp.down_proj.weight", "x"];
        assert_eq!(most_like("model.layers.0.mlp.up_proj.weight", names.into_iter()), Some(names[0]));
        assert_eq!(most_like("lm_head.weight", names.into_iter()), None);
    }
}
