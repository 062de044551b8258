//! Prefix search in a vocabulary: pieces sorted by their bytes, narrowed byte by byte.

/// Pieces that can be found as prefixes of a text.
#[derive(Debug, Clone, Default)]
pub struct PieceIndex {
    sorted: Vec<(String, u32)>,
}

impl PieceIndex {
    /// An index of `pieces`, none of them empty.
    pub fn new(pieces: impl IntoIterator<Item = (String, u32)>) -> Self {
        let mut sorted: Vec<_> = pieces.into_iter().filter(|(piece, _)| !piece.is_empty()).collect();
        sorted.sort_unstable();
        Self { sorted }
    }

    /// Whether there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Every piece that `text` begins with, shortest first: length in bytes and id.
    pub fn prefixes<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, u32)> + 'a {
        let mut range = &self.sorted[..];
        let mut depth = 0;
        std::iter::from_fn(move || {
            while let Some(&byte) = text.as_bytes().get(depth) {
                let byte_at = |piece: &(String, u32)| piece.0.as_bytes().get(depth).copied();
                let from = range.partition_point(|piece| byte_at(piece).is_none_or(|b| b < byte));
                range = &range[from..];
                range = &range[..range.partition_point(|piece| byte_at(piece) == Some(byte))];
                depth += 1;
                let (piece, id) = range.first()?;
                if piece.len() == depth {
                    return Some((depth, *id));
                }
            }
            None
        })
    }

    /// The longest piece that `text` begins with.
    pub fn longest_prefix(&self, text: &str) -> Option<(usize, u32)> {
        if self.is_empty() { None } else { self.prefixes(text).last() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn finds_all_prefixes_shortest_first() {
        let index =
            PieceIndex::new([("abc", 1), ("a", 2), ("b", 3), ("ab\u{e9}", 4)].map(|(p, id)| (p.to_owned(), id)));
        assert_eq!(index.prefixes("abcd").collect::<Vec<_>>(), [(1, 2), (3, 1)]);
        assert_eq!(index.prefixes("ab\u{e9}").collect::<Vec<_>>(), [(1, 2), (4, 4)]);
        assert_eq!(index.longest_prefix("xabc"), None);
        assert_eq!(index.longest_prefix(""), None);
    }

    proptest! {
        #[test]
        fn agrees_with_a_linear_search(pieces in proptest::collection::btree_set("[ab\u{e9}]{1,4}", 0..12), text in "[ab\u{e9}]{0,8}") {
            let pieces: Vec<(String, u32)> = pieces.into_iter().zip(0..).collect();
            let mut expected: Vec<_> = pieces.iter().filter(|(p, _)| text.starts_with(p.as_str())).map(|(p, id)| (p.len(), *id)).collect();
            expected.sort_unstable();
            let index = PieceIndex::new(pieces);
            prop_assert_eq!(index.prefixes(&text).collect::<Vec<_>>(), expected);
        }
    }
}
