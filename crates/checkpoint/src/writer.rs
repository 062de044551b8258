//! Writes tensors as safetensors, one at a time: whoever has a tensor's bytes pours them into a sink.
//!
//! Layout:  see `safetensors_header`. Within a file wider elements come first, so every tensor starts at a multiple of
//!          its element size; otherwise the given order is kept. `__metadata__` says `{"format": "pt"}`.
//! Shards:  tensors are taken in order until the next one would pass the limit; a tensor over the limit gets a file of
//!          its own. One shard is `model.safetensors`; more are `model-0000i-of-0000N.safetensors` with an index.
//! Memory:  nothing of a tensor is kept here; sinks write through a small buffer and sum the checksum as they go.
//! Errors:  a tensor listed twice; a tensor given too few or too many bytes; the file system. Panics: never.

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};
use tensor::DType;

use crate::error::{Error, IoAction, Result};
use crate::folder::{INDEX_FILE, MODEL_FILE};

/// The largest file of a sharded model: 5 GB, as in Hugging Face folders.
pub const MAX_SHARD_BYTES: u64 = 5_000_000_000;

const BUFFER_BYTES: usize = 1 << 20;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the file.
    pub name: String,
    /// The type its bytes have.
    pub dtype: DType,
    /// Its shape.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// The bytes of its elements.
    pub fn size_bytes(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product::<u64>() * self.dtype.size_bytes() as u64
    }
}

/// Size and checksum of a written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its length.
    pub bytes: u64,
    /// CRC-32 (IEEE) of its bytes.
    pub crc32: u32,
}

/// A file that sums its checksum while it is written.
pub(crate) struct SummedFile {
    path: PathBuf,
    out: BufWriter<File>,
    checksum: crc32fast::Hasher,
    bytes: u64,
}

impl SummedFile {
    /// Creates the file; it must not be there yet.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).map_err(|source| write_error(path, source))?;
        let out = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { path: path.to_path_buf(), out, checksum: crc32fast::Hasher::new(), bytes: 0 })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|source| write_error(&self.path, source))?;
        self.checksum.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Brings everything to the disk.
    pub(crate) fn finish(self) -> Result<FileRecord> {
        let Self { path, out, checksum, bytes } = self;
        let file = out.into_inner().map_err(|error| write_error(&path, error.into_error()))?;
        file.sync_all().map_err(|source| write_error(&path, source))?;
        Ok(FileRecord { bytes, crc32: checksum.finalize() })
    }
}

fn write_error(path: &Path, source: std::io::Error) -> Error {
    Error::Io { action: IoAction::Write, path: path.to_path_buf(), source }
}

/// Takes the bytes of one tensor, in order, in pieces of any size.
pub struct TensorSink<'a> {
    file: &'a mut SummedFile,
    spec: &'a TensorSpec,
    left: u64,
}

impl TensorSink<'_> {
    /// The next bytes of the tensor: little-endian elements in row-major order.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let count = bytes.len() as u64;
        if count > self.left {
            return Err(self.wrong_size(self.spec.size_bytes() - self.left + count));
        }
        self.left -= count;
        self.file.write(bytes)
    }

    fn wrong_size(&self, found: u64) -> Error {
        Error::TensorBytes { tensor: self.spec.name.clone(), expected: self.spec.size_bytes(), found }
    }

    fn finish(self) -> Result<()> {
        match self.left {
            0 => Ok(()),
            left => Err(self.wrong_size(self.spec.size_bytes() - left)),
        }
    }
}

/// Writes one safetensors file; `fill` is called once a tensor, in the file's order.
pub fn write_safetensors<E: From<Error>>(
    path: &Path,
    specs: &[TensorSpec],
    fill: &mut dyn FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<(), E>,
) -> Result<FileRecord, E> {
    check_names(specs)?;
    let mut order: Vec<&TensorSpec> = specs.iter().collect();
    order.sort_by_key(|spec| std::cmp::Reverse(spec.dtype.size_bytes()));
    write_file(path, &order, fill)
}

/// Writes a model into folder `dir`: one file, or shards and an index. Gives the files' names and records.
pub fn write_model<E: From<Error>>(
    dir: &Path,
    specs: &[TensorSpec],
    max_shard_bytes: u64,
    fill: &mut dyn FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<(), E>,
) -> Result<Vec<(String, FileRecord)>, E> {
    check_names(specs)?;
    let shards = shards(specs, max_shard_bytes);
    let count = shards.len();
    let mut written = Vec::with_capacity(count + 1);
    let mut weight_map = Map::new();
    for (index, mut shard) in shards.into_iter().enumerate() {
        let name = match count {
            1 => MODEL_FILE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        };
        weight_map.extend(shard.iter().map(|spec| (spec.name.clone(), Json::from(name.as_str()))));
        shard.sort_by_key(|spec| std::cmp::Reverse(spec.dtype.size_bytes()));
        let record = write_file(&dir.join(&name), &shard, fill)?;
        written.push((name, record));
    }
    if count > 1 {
        let total: u64 = specs.iter().map(TensorSpec::size_bytes).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        let record = write_bytes(&dir.join(INDEX_FILE), format!("{index:#}\n").as_bytes())?;
        written.push((INDEX_FILE.into(), record));
    }
    Ok(written)
}

/// Writes a whole small file.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<FileRecord> {
    let mut file = SummedFile::create(path)?;
    file.write(bytes)?;
    file.finish()
}

fn check_names(specs: &[TensorSpec]) -> Result<()> {
    let mut names = HashSet::new();
    match specs.iter().find(|spec| !names.insert(spec.name.as_str())) {
        Some(spec) => Err(Error::WrittenTwice { tensor: spec.name.clone() }),
        None => Ok(()),
    }
}

/// The tensors of each file, in order; at least one file.
fn shards(specs: &[TensorSpec], max_shard_bytes: u64) -> Vec<Vec<&TensorSpec>> {
    let mut shards = vec![Vec::new()];
    let mut bytes = 0u64;
    for spec in specs {
        let size = spec.size_bytes();
        let current = shards.last_mut().expect("there is always a current shard");
        if !current.is_empty() && bytes + size > max_shard_bytes {
            shards.push(vec![spec]);
            bytes = size;
        } else {
            current.push(spec);
            bytes += size;
        }
    }
    shards
}

fn write_file<E: From<Error>>(
    path: &Path,
    order: &[&TensorSpec],
    fill: &mut dyn FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<(), E>,
) -> Result<FileRecord, E> {
    let mut file = SummedFile::create(path)?;
    file.write(&header(order))?;
    for spec in order {
        let mut sink = TensorSink { file: &mut file, spec, left: spec.size_bytes() };
        fill(spec, &mut sink)?;
        sink.finish()?;
    }
    Ok(file.finish()?)
}

/// Header length and header, padded so that the data begins at a multiple of eight.
fn header(order: &[&TensorSpec]) -> Vec<u8> {
    let mut map = Map::new();
    map.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut offset = 0u64;
    for spec in order {
        let end = offset + spec.size_bytes();
        let described =
            json!({ "dtype": safetensors_name(spec.dtype), "shape": spec.shape, "data_offsets": [offset, end] });
        map.insert(spec.name.clone(), described);
        offset = end;
    }
    let mut text = Json::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}

const fn safetensors_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::Bf16 => "BF16",
        DType::I32 => "I32",
        DType::U8 => "U8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, elements: usize) -> TensorSpec {
        TensorSpec { name: name.into(), dtype: DType::F32, shape: vec![elements] }
    }

    fn names(specs: &[TensorSpec], limit: u64) -> Vec<Vec<&str>> {
        shards(specs, limit).into_iter().map(|shard| shard.into_iter().map(|s| s.name.as_str()).collect()).collect()
    }

    #[test]
    fn shards_fill_up_in_order_and_a_giant_stands_alone() {
        let specs = [spec("a", 10), spec("b", 10), spec("giant", 100), spec("c", 20), spec("d", 1)];
        assert_eq!(names(&specs, 80), [vec!["a", "b"], vec!["giant"], vec!["c"], vec!["d"]]);
        assert_eq!(names(&specs, 1000), [vec!["a", "b", "giant", "c", "d"]]);
        assert_eq!(names(&[], 80), [Vec::<&str>::new()]);
    }

    #[test]
    fn data_begins_at_a_multiple_of_eight() {
        for length in 1..20 {
            let spec = spec(&"x".repeat(length), 3);
            assert_eq!(header(&[&spec]).len() % 8, 0);
        }
    }
}
