//! Why a GGUF file cannot be used.

use crate::wording::shape_words;

/// How a GGUF file is broken, or what it holds that this program does not take.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GgufProblem {
    /// The file does not begin as GGUF files do.
    #[error("not a GGUF file: expected it to begin with `GGUF`, found {found:02x?}")]
    Magic {
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// A GGUF version other than 2 and 3.
    #[error("GGUF version {found}: expected 2 or 3")]
    Version {
        /// The version.
        found: u32,
    },
    /// A file for big-endian machines.
    #[error("the file is big-endian: expected little-endian")]
    BigEndian,
    /// The file ends too early.
    #[error("truncated file: {what} needs bytes {start}..{end}, the file has {length}")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it begins.
        start: u64,
        /// Where it would end.
        end: u64,
        /// The file's length.
        length: u64,
    },
    /// A count that the rest of the file cannot hold.
    #[error("{what} is impossible: found {count}, the rest of the file holds at most {limit}")]
    Count {
        /// What is counted.
        what: String,
        /// The count.
        count: u64,
        /// How many could be there.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} is not UTF-8 text")]
    Utf8 {
        /// Which text.
        what: String,
    },
    /// A value type that does not exist.
    #[error("unknown value type {found} of key `{key}`")]
    ValueType {
        /// The key.
        key: String,
        /// The type's number.
        found: u32,
    },
    /// Arrays in arrays in arrays.
    #[error("value of key `{key}` is nested too deeply")]
    Nesting {
        /// The key.
        key: String,
    },
    /// A key or tensor that occurs twice.
    #[error("{what} `{name}` occurs twice")]
    Duplicate {
        /// `key` or `tensor`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// An alignment that is no power of two.
    #[error("bad `general.alignment`: expected a power of two, found {found}")]
    Alignment {
        /// The alignment.
        found: u64,
    },
    /// A tensor of too many axes.
    #[error("tensor `{tensor}` has {found} axes: expected at most 4")]
    Axes {
        /// The tensor.
        tensor: String,
        /// How many axes it has.
        found: u32,
    },
    /// A q or k projection that does not have a head's rows for each head.
    #[error("tensor `{tensor}` has {found} rows: expected {expected} = heads * head dim")]
    Rows {
        /// The tensor.
        tensor: String,
        /// Rows by the metadata.
        expected: usize,
        /// Rows it has.
        found: usize,
    },
    /// A tensor with too many elements to count.
    #[error("shape of tensor `{tensor}` is too large: {}", shape_words(shape))]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape, outermost axis first.
        shape: Vec<usize>,
    },
    /// Rows that are no whole number of blocks.
    #[error("rows of tensor `{tensor}` have {row} elements: expected a multiple of {block} for {kind}")]
    PartBlock {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        row: usize,
        /// Elements of a block.
        block: usize,
        /// The block type.
        kind: String,
    },
    /// A tensor that does not begin where the alignment allows.
    #[error("tensor `{tensor}` begins at {offset}: expected a multiple of {alignment}")]
    Offset {
        /// The tensor.
        tensor: String,
        /// Its offset.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// A tensor type that cannot be dequantised.
    #[error("tensor `{tensor}` has type {found}, which is not supported")]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type's name.
        found: String,
    },
    /// A tensor name that the architecture does not have.
    #[error("unknown tensor `{tensor}` for architecture `{architecture}`")]
    TensorName {
        /// The tensor.
        tensor: String,
        /// The architecture.
        architecture: String,
    },
    /// A model architecture that is not built.
    #[error("architecture `{found}` is not supported: expected `llama`")]
    Architecture {
        /// Its name.
        found: String,
    },
    /// A key that must be there.
    #[error("no key `{key}`")]
    KeyMissing {
        /// The key.
        key: String,
    },
    /// A key whose value has the wrong type.
    #[error("bad value of key `{key}`: expected {expected}, found {found}")]
    KeyType {
        /// The key.
        key: String,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// Two facts of the file that cannot both hold.
    #[error("`{key}` is {found}: expected {expected}")]
    KeyValue {
        /// The key.
        key: String,
        /// What the rest of the file implies.
        expected: String,
        /// What it says.
        found: String,
    },
    /// Rotary factors that no known scaling gives.
    #[error("the factors in `rope_freqs.weight` are not those of Llama 3 rotary scaling")]
    RopeFactors,
}

impl GgufProblem {
    /// The one action that helps, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Truncated { .. } | Self::Count { .. } | Self::Utf8 { .. } => {
                Some("the file looks damaged or half downloaded; download it again".into())
            }
            Self::TensorType { .. } => Some(
                "choose a file in F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, a K-quant, IQ4_NL or IQ4_XS".into(),
            ),
            Self::Version { .. } | Self::BigEndian => Some("convert the model again with a recent converter".into()),
            Self::Architecture { .. } | Self::TensorName { .. } => {
                Some("give the model as a Hugging Face folder with safetensors".into())
            }
            _ => None,
        }
    }
}
