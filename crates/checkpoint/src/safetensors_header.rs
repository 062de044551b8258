//! The header of a safetensors file, checked before a byte of it is believed.
//!
//! Layout:  u64 LE header length N; N bytes of JSON, padded with spaces; tensor data, without gaps, to the end of file.
//!          The JSON maps a tensor's name to `{dtype, shape, data_offsets: [begin, end]}`, offsets counted from the end
//!          of the header; `__metadata__` maps strings to strings.
//! Errors:  one [`HeaderProblem`] for every way to be malformed. Panics: never; sums are checked for overflow, and
//!          nothing is allocated that the file's own bytes do not pay for.
//! Source:  <https://huggingface.co/docs/safetensors>; element types and their sizes from crate `safetensors`, whose
//!          own validation adds offsets without checking.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::wording::shape_words;

/// The longest header that is read: 100 MB, the format's own limit.
pub const MAX_HEADER_BYTES: u64 = 100_000_000;

const LENGTH_BYTES: usize = 8;

/// How a safetensors file is broken.
#[derive(Debug, thiserror::Error)]
pub enum HeaderProblem {
    /// The file ends before its header or data do.
    #[error("truncated file: expected {expected} bytes, found {found}")]
    Truncated {
        /// Bytes the file says it has.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The file goes on after its data.
    #[error("trailing bytes: expected a file of {expected} bytes, found {found}")]
    Trailing {
        /// Bytes the file says it has.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// A header longer than the format allows.
    #[error("header too long: expected at most {MAX_HEADER_BYTES} bytes, found {found}")]
    TooLong {
        /// Its length.
        found: u64,
    },
    /// A Git LFS pointer where the file should be.
    #[error("expected weights, found a Git LFS pointer")]
    LfsPointer,
    /// A GGUF file under the name of a safetensors file.
    #[error("expected safetensors, found a GGUF file")]
    Gguf,
    /// A header that is not JSON of the right form.
    #[error("bad header")]
    Json(#[source] serde_json::Error),
    /// One name twice.
    #[error("tensor `{tensor}` is in the header twice")]
    Duplicate {
        /// The name.
        tensor: String,
    },
    /// A tensor that overlaps another, leaves a gap, or runs backwards.
    #[error("bad offsets of tensor `{tensor}`: expected it to begin at {expected}, found {begin}..{end}")]
    Offsets {
        /// The tensor.
        tensor: String,
        /// Where the one before it ends.
        expected: usize,
        /// Where it begins.
        begin: usize,
        /// Where it ends.
        end: usize,
    },
    /// A tensor whose bytes are not those of its shape and type.
    #[error(
        "bad size of tensor `{tensor}`: expected {expected} bytes for {dtype} {}, found {found}",
        shape_words(shape)
    )]
    Size {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes by shape and type.
        expected: usize,
        /// Bytes by offsets.
        found: usize,
    },
    /// A shape too large to count.
    #[error("shape of tensor `{tensor}` is too large: {}", shape_words(shape))]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Elements smaller than a byte that do not fill their last byte.
    #[error("tensor `{tensor}` does not end at a whole byte: {dtype} {}", shape_words(shape))]
    PartByte {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderTensor {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the start of the file; always inside it.
    pub span: Range<usize>,
}

/// A checked header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The tensors, in the order of their data.
    pub tensors: Vec<HeaderTensor>,
    /// What `__metadata__` says.
    pub metadata: BTreeMap<String, String>,
}

/// Reads and checks the header of the file whose bytes are `file`.
pub fn parse(file: &[u8]) -> Result<Header, HeaderProblem> {
    let found = file.len() as u64;
    if file.starts_with(b"version https://git-lfs") {
        return Err(HeaderProblem::LfsPointer);
    }
    if file.starts_with(b"GGUF") {
        return Err(HeaderProblem::Gguf);
    }
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(HeaderProblem::Truncated { expected: LENGTH_BYTES as u64, found });
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(HeaderProblem::TooLong { found: length });
    }
    let Some(json) = rest.get(..length as usize) else {
        return Err(HeaderProblem::Truncated { expected: LENGTH_BYTES as u64 + length, found });
    };
    let written: Written = serde_json::from_slice(json).map_err(HeaderProblem::Json)?;
    if let Some(tensor) = written.duplicate {
        return Err(HeaderProblem::Duplicate { tensor });
    }
    let data_start = LENGTH_BYTES + length as usize;
    let (tensors, data_bytes) = place(written.tensors, data_start)?;
    let expected = (data_start as u64).saturating_add(data_bytes as u64);
    match expected.cmp(&found) {
        std::cmp::Ordering::Greater => Err(HeaderProblem::Truncated { expected, found }),
        std::cmp::Ordering::Less => Err(HeaderProblem::Trailing { expected, found }),
        std::cmp::Ordering::Equal => Ok(Header { tensors, metadata: written.metadata }),
    }
}

/// Checks that the tensors follow each other without gaps and have the size of their shape; gives their spans and the
/// bytes of all data.
fn place(
    mut written: Vec<(String, TensorInfo)>,
    data_start: usize,
) -> Result<(Vec<HeaderTensor>, usize), HeaderProblem> {
    written.sort_by_key(|(_, info)| info.data_offsets);
    let mut tensors = Vec::with_capacity(written.len());
    let mut position = 0usize;
    for (name, TensorInfo { dtype, shape, data_offsets: (begin, end) }) in written {
        if begin != position || end < begin {
            return Err(HeaderProblem::Offsets { tensor: name, expected: position, begin, end });
        }
        let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let Some(bits) = elements.and_then(|count| count.checked_mul(dtype.bitsize())) else {
            return Err(HeaderProblem::Overflow { tensor: name, shape });
        };
        if bits % 8 != 0 {
            return Err(HeaderProblem::PartByte { tensor: name, dtype, shape });
        }
        if end - begin != bits / 8 {
            return Err(HeaderProblem::Size { tensor: name, dtype, shape, expected: bits / 8, found: end - begin });
        }
        let (Some(first), Some(last)) = (data_start.checked_add(begin), data_start.checked_add(end)) else {
            return Err(HeaderProblem::Overflow { tensor: name, shape });
        };
        position = end;
        tensors.push(HeaderTensor { name, dtype, shape, span: first..last });
    }
    Ok((tensors, position))
}

/// The header as it stands in the file, with the first name that occurs twice.
#[derive(Default)]
struct Written {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, TensorInfo)>,
    duplicate: Option<String>,
}

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WrittenVisitor)
    }
}

struct WrittenVisitor;

impl<'de> Visitor<'de> for WrittenVisitor {
    type Value = Written;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map from tensor names to dtype, shape and data_offsets")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Written, A::Error> {
        let mut written = Written::default();
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                written.duplicate.get_or_insert(name.clone());
            }
            if name == "__metadata__" {
                written.metadata = map.next_value::<Option<_>>()?.unwrap_or_default();
            } else {
                written.tensors.push((name, map.next_value()?));
            }
        }
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use safetensors::SafeTensors;

    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    fn problem(header: &str, data: &[u8]) -> String {
        parse(&file(header, data)).expect_err("the file is malformed").to_string()
    }

    #[test]
    fn a_good_file_gives_names_shapes_spans_and_metadata() {
        let bytes = file(
            r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}  "#,
            &[7; 12],
        );
        let header = parse(&bytes).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(header.tensors[0].name, "a");
        assert_eq!(header.tensors[1].shape, [2]);
        assert_eq!(header.tensors[1].span, bytes.len() - 4..bytes.len());
    }

    #[test]
    fn tensors_of_no_elements_and_scalars_are_fine() {
        let header = r#"{"e":{"dtype":"F32","shape":[0,4],"data_offsets":[0,0]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
        assert_eq!(parse(&file(header, &[0; 4])).unwrap().tensors.len(), 2);
    }

    #[test]
    fn a_file_cut_in_its_length_header_or_data_says_how_long_it_should_be() {
        assert_eq!(parse(b"").unwrap_err().to_string(), "truncated file: expected 8 bytes, found 0");
        assert_eq!(parse(&[9, 0, 0]).unwrap_err().to_string(), "truncated file: expected 8 bytes, found 3");
        assert_eq!(
            parse(&[9, 0, 0, 0, 0, 0, 0, 0, b'{']).unwrap_err().to_string(),
            "truncated file: expected 17 bytes, found 9"
        );
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert_eq!(
            problem(header, &[0; 7]),
            format!("truncated file: expected {} bytes, found {}", header.len() + 16, header.len() + 15)
        );
    }

    #[test]
    fn trailing_bytes_are_reported() {
        let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        assert!(problem(header, &[0; 9]).starts_with("trailing bytes"));
    }

    #[test]
    fn a_huge_header_length_is_refused_before_any_allocation() {
        assert_eq!(
            parse(&u64::MAX.to_le_bytes()).unwrap_err().to_string(),
            format!("header too long: expected at most 100000000 bytes, found {}", u64::MAX)
        );
        assert!(parse(&100_000_001u64.to_le_bytes()).unwrap_err().to_string().contains("100000001"));
    }

    #[test]
    fn overlap_gap_and_backwards_offsets_name_the_tensor() {
        let two = |first: &str, second: &str| {
            format!(
                r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{first}}},"b":{{"dtype":"U8","shape":[4],"data_offsets":{second}}}}}"#
            )
        };
        assert_eq!(
            problem(&two("[0,4]", "[2,6]"), &[0; 6]),
            "bad offsets of tensor `b`: expected it to begin at 4, found 2..6"
        );
        assert!(problem(&two("[0,4]", "[5,9]"), &[0; 9]).contains("`b`"));
        assert!(problem(&two("[0,4]", "[4,0]"), &[0; 8]).contains("`b`"));
    }

    #[test]
    fn a_span_that_is_not_the_shape_is_refused() {
        assert_eq!(
            problem(r#"{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,8]}}"#, &[0; 8]),
            "bad size of tensor `a`: expected 24 bytes for F32 (2, 3), found 8"
        );
    }

    #[test]
    fn shapes_and_offsets_that_overflow_are_refused() {
        let huge = usize::MAX;
        assert!(
            problem(&format!(r#"{{"a":{{"dtype":"F32","shape":[{huge},{huge}],"data_offsets":[0,8]}}}}"#), &[0; 8])
                .starts_with("shape of tensor `a` is too large")
        );
        assert!(
            problem(&format!(r#"{{"a":{{"dtype":"U8","shape":[{huge}],"data_offsets":[0,{huge}]}}}}"#), &[0; 8])
                .starts_with("shape of tensor `a` is too large")
        );
    }

    #[test]
    fn a_name_twice_is_refused() {
        let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        assert_eq!(problem(header, &[0; 1]), "tensor `a` is in the header twice");
    }

    #[test]
    fn metadata_that_is_not_strings_and_json_that_is_not_json_are_refused() {
        assert_eq!(problem(r#"{"__metadata__":{"format":1}}"#, &[]), "bad header");
        assert_eq!(problem(r#"{"a":"#, &[]), "bad header");
        assert_eq!(problem("\u{feff}", &[]), "bad header");
        assert_eq!(problem(r#"{"a":{"dtype":"F31","shape":[1],"data_offsets":[0,1]}}"#, &[0]), "bad header");
        assert_eq!(problem(r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#, &[0]), "bad header");
        let mut not_utf8 = file(r#"{"a":1}"#, &[]);
        not_utf8[10] = 0xff;
        assert!(matches!(parse(&not_utf8), Err(HeaderProblem::Json(_))));
    }

    #[test]
    fn half_a_byte_is_refused() {
        assert!(
            problem(r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#, &[0])
                .contains("does not end at a whole byte")
        );
    }

    #[test]
    fn a_git_lfs_pointer_is_recognised() {
        assert!(matches!(
            parse(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"),
            Err(HeaderProblem::LfsPointer)
        ));
    }

    proptest! {
        /// What crate `safetensors` accepts is accepted here and the other way round, duplicates aside.
        #[test]
        fn small_damage_is_judged_as_the_safetensors_crate_judges_it(position in 0usize..200, byte: u8) {
            let mut bytes = file(
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]}}"#,
                &[1; 12],
            );
            let position = position % bytes.len();
            bytes[position] = byte;
            let ours = parse(&bytes);
            let theirs = SafeTensors::deserialize(&bytes);
            if !matches!(ours, Err(HeaderProblem::Duplicate { .. })) {
                prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} {:?}", ours, theirs.err());
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&bytes);
        }
    }
}
