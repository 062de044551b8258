//! The GGUF container: header, metadata, tensor descriptors.
//!
//! Layout:  `GGUF`, u32 version, u64 tensor count, u64 key count; per key: text name, u32 type, value; per tensor: text
//!          name, u32 axes, u64 size per axis (innermost first), u32 type, u64 offset into the data; padding to
//!          `general.alignment` (32); data, each tensor aligned. Text = u64 length and bytes; array = u32 type, u64
//!          length, values. All little-endian.
//! Errors:  one [`GgufProblem`] for every way to be malformed; every read is checked against the file's end, and no
//!          count allocates more than the bytes that are left could fill. Panics: never.
//! Source:  github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::blocks::BlockType;
use super::problem::GgufProblem;
use super::value::Value;
use crate::stored::Stored;

type Result<T> = std::result::Result<T, GgufProblem>;

const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_AXES: u32 = 4;
const MAX_NESTING: usize = 3;

/// A tensor's type number in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GgufTensorType(pub u32);

impl GgufTensorType {
    /// How the elements are stored, if this program reads that type.
    pub fn stored(self) -> Option<Stored> {
        Some(match self.0 {
            0 => Stored::F32,
            1 => Stored::F16,
            2 => Stored::Block(BlockType::Q4_0),
            3 => Stored::Block(BlockType::Q4_1),
            6 => Stored::Block(BlockType::Q5_0),
            7 => Stored::Block(BlockType::Q5_1),
            8 => Stored::Block(BlockType::Q8_0),
            10 => Stored::Block(BlockType::Q2_K),
            11 => Stored::Block(BlockType::Q3_K),
            12 => Stored::Block(BlockType::Q4_K),
            13 => Stored::Block(BlockType::Q5_K),
            14 => Stored::Block(BlockType::Q6_K),
            15 => Stored::Block(BlockType::Q8_K),
            20 => Stored::Block(BlockType::IQ4_NL),
            23 => Stored::Block(BlockType::IQ4_XS),
            26 => Stored::I32,
            28 => Stored::F64,
            30 => Stored::Bf16,
            _ => return None,
        })
    }

    /// The type's name, or its number where it has none that this program knows.
    pub fn name(self) -> String {
        let known = match self.0 {
            4 => "Q4_2",
            5 => "Q4_3",
            9 => "Q8_1",
            16 => "IQ2_XXS",
            17 => "IQ2_XS",
            18 => "IQ3_XXS",
            19 => "IQ1_S",
            21 => "IQ3_S",
            22 => "IQ2_S",
            24 => "I8",
            25 => "I16",
            27 => "I64",
            29 => "IQ1_M",
            34 => "TQ1_0",
            35 => "TQ2_0",
            39 => "MXFP4",
            number => return self.stored().map_or_else(|| format!("number {number}"), |stored| stored.to_string()),
        };
        known.into()
    }
}

/// One tensor of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    /// Its name in the file.
    pub name: String,
    /// How its elements are stored.
    pub stored: Stored,
    /// Its shape, outermost axis first.
    pub shape: Vec<usize>,
    /// Its bytes, counted from the start of the file; always inside it.
    pub span: Range<usize>,
}

/// A file taken apart: nothing of the tensors' data is copied.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufFile {
    /// 2 or 3.
    pub version: u32,
    /// The metadata.
    pub metadata: HashMap<String, Value>,
    /// The tensors, in the file's order.
    pub tensors: Vec<GgufTensor>,
    /// The values of tensor `rope_freqs.weight`: what each rotary frequency is divided by.
    pub rope_factors: Option<Vec<f32>>,
}

/// Takes the file apart whose bytes are `file`.
pub fn parse(file: &[u8]) -> Result<GgufFile> {
    let mut reader = Reader { file, at: 0 };
    let magic = &file[..file.len().min(4)];
    if magic != b"GGUF" {
        return Err(GgufProblem::Magic { found: magic.to_vec() });
    }
    reader.at = 4;
    let version = reader.u32(|| "the version".into())?;
    if version.swap_bytes() == 2 || version.swap_bytes() == 3 {
        return Err(GgufProblem::BigEndian);
    }
    if version != 2 && version != 3 {
        return Err(GgufProblem::Version { found: version });
    }
    let tensor_count = reader.u64(|| "the tensor count".into())?;
    let key_count = reader.u64(|| "the key count".into())?;
    let metadata = reader.metadata(key_count)?;
    let described = reader.descriptions(tensor_count)?;

    let alignment = match metadata.get("general.alignment") {
        None => DEFAULT_ALIGNMENT,
        Some(value) => value.as_u64().unwrap_or(0),
    };
    if !alignment.is_power_of_two() {
        return Err(GgufProblem::Alignment { found: alignment });
    }
    let data_start = (reader.at as u64).checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    let tensors = described
        .into_iter()
        .map(|description| description.place(data_start, alignment, file.len() as u64))
        .collect::<Result<Vec<_>>>()?;
    let rope_factors = tensors
        .iter()
        .find(|tensor: &&GgufTensor| tensor.name == "rope_freqs.weight" && tensor.stored == Stored::F32)
        .map(|tensor| file[tensor.span.clone()].as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect());
    Ok(GgufFile { version, metadata, tensors, rope_factors })
}

/// A tensor as described, its bytes not yet located.
struct Description {
    name: String,
    kind: GgufTensorType,
    shape: Vec<usize>,
    offset: u64,
}

impl Description {
    fn place(self, data_start: u64, alignment: u64, length: u64) -> Result<GgufTensor> {
        let Self { name, kind, shape, offset } = self;
        let Some(stored) = kind.stored() else {
            return Err(GgufProblem::TensorType { tensor: name, found: kind.name() });
        };
        if offset % alignment != 0 {
            return Err(GgufProblem::Offset { tensor: name, offset, alignment });
        }
        let row = shape.last().copied().unwrap_or(1);
        let block = stored.unit_elements();
        if row % block != 0 {
            return Err(GgufProblem::PartBlock { tensor: name, row, block, kind: kind.name() });
        }
        let elements = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
        let Some(bytes) = elements.and_then(|count| (count / block).checked_mul(stored.unit_bytes())) else {
            return Err(GgufProblem::Shape { tensor: name, shape });
        };
        let start = data_start.saturating_add(offset);
        let end = start.saturating_add(bytes as u64);
        if end > length {
            return Err(GgufProblem::Truncated { what: format!("tensor `{name}`"), start, end, length });
        }
        Ok(GgufTensor { name, stored, shape, span: start as usize..end as usize })
    }
}

struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn left(&self) -> u64 {
        (self.file.len() - self.at) as u64
    }

    /// The next `count` bytes; `what` names them should they not be there.
    fn take(&mut self, count: u64, what: impl Fn() -> String) -> Result<&'a [u8]> {
        if count > self.left() {
            let start = self.at as u64;
            let end = start.saturating_add(count);
            return Err(GgufProblem::Truncated { what: what(), start, end, length: self.file.len() as u64 });
        }
        let bytes = &self.file[self.at..self.at + count as usize];
        self.at += count as usize;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N]> {
        let bytes = self.take(N as u64, what)?;
        Ok(bytes.try_into().expect("take gives exactly N bytes"))
    }

    fn u32(&mut self, what: impl Fn() -> String) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    fn u64(&mut self, what: impl Fn() -> String) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    fn text(&mut self, what: impl Fn() -> String) -> Result<String> {
        let length = self.u64(&what)?;
        let bytes = self.take(length, &what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| GgufProblem::Utf8 { what: what() })
    }

    /// Refuses a count of things of at least `least_bytes` each that the rest of the file cannot hold.
    fn check_count(&self, count: u64, least_bytes: u64, what: impl Fn() -> String) -> Result<usize> {
        let limit = self.left() / least_bytes;
        if count > limit {
            return Err(GgufProblem::Count { what: what(), count, limit });
        }
        Ok(count as usize)
    }

    fn metadata(&mut self, key_count: u64) -> Result<HashMap<String, Value>> {
        // A key takes at least the length of its name, a type and one byte of value.
        let key_count = self.check_count(key_count, 13, || "the number of keys".into())?;
        let mut metadata = HashMap::with_capacity(key_count);
        for index in 0..key_count {
            let key = self.text(|| format!("the name of key {index}"))?;
            let kind = self.u32(|| format!("the type of key `{key}`"))?;
            let value = self.value(kind, &key, 0)?;
            if metadata.contains_key(&key) {
                return Err(GgufProblem::Duplicate { what: "key", name: key });
            }
            metadata.insert(key, value);
        }
        Ok(metadata)
    }

    fn value(&mut self, kind: u32, key: &str, depth: usize) -> Result<Value> {
        let what = || format!("the value of key `{key}`");
        Ok(match kind {
            0 => Value::Uint(self.array(what).map(u8::from_le_bytes)?.into()),
            1 => Value::Int(self.array(what).map(i8::from_le_bytes)?.into()),
            2 => Value::Uint(self.array(what).map(u16::from_le_bytes)?.into()),
            3 => Value::Int(self.array(what).map(i16::from_le_bytes)?.into()),
            4 => Value::Uint(self.u32(what)?.into()),
            5 => Value::Int(self.array(what).map(i32::from_le_bytes)?.into()),
            6 => Value::F32(self.array(what).map(f32::from_le_bytes)?),
            7 => Value::Bool(self.array::<1>(what)? != [0]),
            8 => Value::String(self.text(what)?),
            9 => {
                let element = self.u32(what)?;
                let count = self.u64(what)?;
                self.elements(element, count, key, depth + 1)?
            }
            10 => Value::Uint(self.u64(what)?),
            11 => Value::Int(self.array(what).map(i64::from_le_bytes)?),
            12 => Value::F64(self.array(what).map(f64::from_le_bytes)?),
            found => return Err(GgufProblem::ValueType { key: key.into(), found }),
        })
    }

    fn elements(&mut self, kind: u32, count: u64, key: &str, depth: usize) -> Result<Value> {
        Ok(match kind {
            0 => Value::Uints(self.numbers(count, key, |b| u8::from_le_bytes(b).into())?),
            1 => Value::Ints(self.numbers(count, key, |b| i8::from_le_bytes(b).into())?),
            2 => Value::Uints(self.numbers(count, key, |b| u16::from_le_bytes(b).into())?),
            3 => Value::Ints(self.numbers(count, key, |b| i16::from_le_bytes(b).into())?),
            4 => Value::Uints(self.numbers(count, key, |b| u32::from_le_bytes(b).into())?),
            5 => Value::Ints(self.numbers(count, key, |b| i32::from_le_bytes(b).into())?),
            6 => Value::F32s(self.numbers(count, key, f32::from_le_bytes)?),
            7 => Value::Bools(self.numbers(count, key, |b: [u8; 1]| b != [0])?),
            8 => {
                let count = self.check_count(count, 8, || format!("the length of key `{key}`"))?;
                let texts = (0..count).map(|index| self.text(|| format!("element {index} of key `{key}`")));
                Value::Strings(texts.collect::<Result<_>>()?)
            }
            9 if depth >= MAX_NESTING => return Err(GgufProblem::Nesting { key: key.into() }),
            9 => {
                let count = self.check_count(count, 12, || format!("the length of key `{key}`"))?;
                Value::Arrays((0..count).map(|_| self.value(9, key, depth)).collect::<Result<_>>()?)
            }
            10 => Value::Uints(self.numbers(count, key, u64::from_le_bytes)?),
            11 => Value::Ints(self.numbers(count, key, i64::from_le_bytes)?),
            12 => Value::F64s(self.numbers(count, key, f64::from_le_bytes)?),
            found => return Err(GgufProblem::ValueType { key: key.into(), found }),
        })
    }

    fn numbers<const N: usize, T>(&mut self, count: u64, key: &str, value: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let bytes = self.take(count.saturating_mul(N as u64), || format!("the value of key `{key}`"))?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|element| value(*element)).collect())
    }

    fn descriptions(&mut self, tensor_count: u64) -> Result<Vec<Description>> {
        // A descriptor takes at least the length of its name, axes, type and offset.
        let tensor_count = self.check_count(tensor_count, 24, || "the number of tensors".into())?;
        let mut names = HashSet::with_capacity(tensor_count);
        let mut described = Vec::with_capacity(tensor_count);
        for index in 0..tensor_count {
            let name = self.text(|| format!("the name of tensor {index}"))?;
            let what = || format!("the description of tensor `{name}`");
            let axes = self.u32(what)?;
            if axes > MAX_AXES {
                return Err(GgufProblem::Axes { tensor: name, found: axes });
            }
            let mut shape = (0..axes).map(|_| self.u64(what).map(|size| size as usize)).collect::<Result<Vec<_>>>()?;
            shape.reverse();
            let kind = GgufTensorType(self.u32(what)?);
            let offset = self.u64(what)?;
            if !names.insert(name.clone()) {
                return Err(GgufProblem::Duplicate { what: "tensor", name });
            }
            described.push(Description { name, kind, shape, offset });
        }
        Ok(described)
    }
}
