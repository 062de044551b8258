//! The precompiled replacement table of a normaliser: longest prefix to replacement.
//!
//! Bytes: `u32` size of the trie in bytes, little endian; the trie, one `u32` a node; replacements, each ended by a zero byte.
//! The trie is a double array: a node's low byte is its label, bit 8 says that a value hangs below, bits 10 to 30 are the
//! offset to its children (times 256 when bit 9 is set); a value node has bit 31 set and holds the position of the replacement.
//!
//! Errors: `SentencePieceProblem::CharsMap` for a table that is cut short. Nodes that point outside end the search.
//! Source: the format of the darts-clone library, as SentencePiece stores it.

use crate::SentencePieceProblem;

/// The table.
#[derive(Debug, Clone)]
pub struct CharsMap {
    nodes: Vec<u32>,
    replacements: String,
}

impl CharsMap {
    /// Reads the table.
    pub fn parse(bytes: &[u8]) -> Result<Self, SentencePieceProblem> {
        let damaged = |reason| SentencePieceProblem::CharsMap { reason };
        let (size, rest) = bytes.split_first_chunk::<4>().ok_or(damaged("it has no size"))?;
        let size = u32::from_le_bytes(*size) as usize;
        let trie = rest.get(..size).ok_or(damaged("the trie is cut short"))?;
        let (nodes, odd) = trie.as_chunks::<4>();
        if nodes.is_empty() || !odd.is_empty() {
            return Err(damaged("the trie is not a whole number of nodes"));
        }
        let replacements = std::str::from_utf8(&rest[size..]).map_err(|_| damaged("a replacement is not UTF-8"))?;
        Ok(Self {
            nodes: nodes.iter().map(|node| u32::from_le_bytes(*node)).collect(),
            replacements: replacements.to_owned(),
        })
    }

    /// The longest prefix of `text` that is replaced: its length and its replacement.
    pub fn longest_prefix(&self, text: &str) -> Option<(usize, &str)> {
        let mut best = None;
        let mut at = offset(self.nodes[0]);
        for (index, &byte) in text.as_bytes().iter().enumerate() {
            at ^= usize::from(byte);
            let Some(&node) = self.nodes.get(at) else { break };
            if node & (1 << 31 | 0xff) != u32::from(byte) {
                break;
            }
            at ^= offset(node);
            if node >> 8 & 1 == 1 {
                let Some(&value) = self.nodes.get(at) else { break };
                best = Some((index + 1, (value & 0x7fff_ffff) as usize));
            }
        }
        let (length, from) = best?;
        let replacement = self.replacements.get(from..)?;
        let end = replacement.find('\0').unwrap_or(replacement.len());
        text.is_char_boundary(length).then_some((length, &replacement[..end]))
    }
}

fn offset(node: u32) -> usize {
    ((node >> 10) << ((node & 1 << 9) >> 6)) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A table with the single rule `a` -> `bc`: root offset 1, so `a` is node 1 ^ 0x61, its value at offset 2 from there.
    fn table() -> Vec<u8> {
        let mut nodes = vec![0u32; 256];
        nodes[0] = 1 << 10;
        let a = 1 ^ 0x61;
        nodes[a] = 0x61 | 1 << 8 | 2 << 10;
        nodes[a ^ 2] = 1 << 31 | 1;
        let mut bytes = (nodes.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(nodes.iter().flat_map(|node| node.to_le_bytes()));
        bytes.extend(b"\0bc\0");
        bytes
    }

    #[test]
    fn finds_the_rule() {
        let map = CharsMap::parse(&table()).unwrap();
        assert_eq!(map.longest_prefix("abc"), Some((1, "bc")));
        assert_eq!(map.longest_prefix("b"), None);
        assert_eq!(map.longest_prefix(""), None);
    }

    #[test]
    fn a_cut_table_is_an_error() {
        let bytes = table();
        for end in [0, 3, 4, 100, 1027] {
            assert!(CharsMap::parse(&bytes[..end]).is_err(), "{end}");
        }
    }

    proptest! {
        #[test]
        fn damaged_tables_never_panic(at in 4usize..1000, value: u8, text: String) {
            let mut bytes = table();
            bytes[at] = value;
            if let Ok(map) = CharsMap::parse(&bytes) {
                map.longest_prefix(&text);
                map.longest_prefix("aa");
            }
        }
    }
}
