//! A set of named tensors on disk, whatever the files: one reader for safetensors folders and GGUF files.
//!
//! Shapes:  a tensor's shape is the model's (outermost axis first); ranges count elements in row-major order, rows
//!          along the first axis. GGUF's row order of q and k is undone here, so readers never see it.
//! Numbers: see `stored`: same type copies bits, everything else is rounded once.
//! Errors:  names with did-you-mean, types that do not convert, ranges and destinations of the wrong size; all before
//!          the first byte is converted. Panics: never.
//! Memory:  files are mapped; a read converts straight into its destination. `Send + Sync`: several threads may read.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};
use tensor::DType;

use crate::error::{Error, Result};
use crate::gguf::{self, Vocabulary, permute};
use crate::mmap::MappedFile;
use crate::safetensors_header;
use crate::stored::Stored;

/// One tensor of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceTensor {
    /// Its Hugging Face name.
    pub name: String,
    /// Its shape, outermost axis first.
    pub shape: Vec<usize>,
    /// How the file stores its elements.
    pub stored: Stored,
    file: usize,
    span: Range<usize>,
    /// Where the rows of q and k are not as in a Hugging Face folder.
    order: Option<RowOrder>,
}

/// Another order of the rows of a head, with the head's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// Its two halves are interleaved: in a GGUF file, and where torchtune leaves them so.
    Interleaved(usize),
    /// Even rows come first, then odd ones: what taking interleaved rows apart makes of halves.
    TakenApart(usize),
}

impl RowOrder {
    /// Where a row is in the file.
    fn in_file(self, row: usize) -> usize {
        match self {
            Self::Interleaved(head_dim) => permute::gguf_row(row, head_dim),
            Self::TakenApart(head_dim) => permute::hugging_face_row(row, head_dim),
        }
    }
}

impl SourceTensor {
    /// How many elements it has.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements of one row: of everything but the first axis.
    pub fn row_elements(&self) -> usize {
        self.shape.iter().skip(1).product()
    }
}

/// What a GGUF file holds beside its tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufContents {
    /// Its configuration, in the words of `config.json`.
    pub config: Map<String, Json>,
    /// Its vocabulary.
    pub vocabulary: Option<Vocabulary>,
}

/// Named tensors on disk.
#[derive(Debug)]
pub struct WeightSource {
    path: PathBuf,
    files: Vec<MappedFile>,
    tensors: Vec<SourceTensor>,
    by_name: HashMap<String, usize>,
    notices: Vec<String>,
    gguf: Option<GgufContents>,
}

impl WeightSource {
    /// Lets go of the memory that holds what was read so far.
    pub fn release(&self) {
        self.files.iter().for_each(MappedFile::release);
    }

    /// Opens one safetensors file.
    pub fn open_safetensors(path: &Path) -> Result<Self> {
        let mut source = Self::empty(path);
        source.add_safetensors(path)?;
        Ok(source)
    }

    /// Opens one GGUF file of the Llama architecture.
    pub fn open_gguf(path: &Path) -> Result<Self> {
        let mut source = Self::empty(path);
        let file = MappedFile::open(path)?;
        let problem = |problem| Error::Gguf { path: path.to_path_buf(), problem };
        let parsed = gguf::parse(&file).map_err(problem)?;
        for named in gguf::llama_tensors(&parsed).map_err(problem)? {
            let gguf::LlamaTensor { name, tensor, rotary_head_dim } = named;
            let gguf::GgufTensor { stored, shape, span, .. } = tensor;
            let order = rotary_head_dim.map(RowOrder::Interleaved);
            source.add(SourceTensor { name, shape, stored, file: 0, span, order }, &file)?;
        }
        source.gguf = Some(GgufContents {
            config: gguf::llama_config(&parsed).map_err(problem)?,
            vocabulary: Vocabulary::read(&parsed).map_err(problem)?,
        });
        source.files.push(file);
        Ok(source)
    }

    /// Brings the rows of tensors into order while they are read; gives how many tensors that concerns.
    pub(crate) fn reorder(&mut self, order_of: impl Fn(&str) -> Option<RowOrder>) -> usize {
        for tensor in &mut self.tensors {
            tensor.order = order_of(&tensor.name);
        }
        self.tensors.iter().filter(|tensor| tensor.order.is_some()).count()
    }

    pub(crate) fn empty(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            files: Vec::new(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
            notices: Vec::new(),
            gguf: None,
        }
    }

    /// Adds the tensors of a safetensors file.
    pub(crate) fn add_safetensors(&mut self, path: &Path) -> Result<()> {
        let file = MappedFile::open(path)?;
        let header = safetensors_header::parse(&file)
            .map_err(|problem| Error::Safetensors { path: path.to_path_buf(), problem })?;
        let index = self.files.len();
        for tensor in header.tensors {
            let safetensors_header::HeaderTensor { name, dtype, shape, span } = tensor;
            let stored = Stored::from(dtype);
            self.add(SourceTensor { name, shape, stored, file: index, span, order: None }, &file)?;
        }
        self.files.push(file);
        Ok(())
    }

    fn add(&mut self, tensor: SourceTensor, file: &MappedFile) -> Result<()> {
        if let Some(&first) = self.by_name.get(&tensor.name) {
            // A file's own tensors are added before the file is.
            let other = self.files.get(self.tensors[first].file).unwrap_or(file);
            return Err(Error::DuplicateTensor {
                first: file_name(other.path()),
                second: file_name(file.path()),
                tensor: tensor.name,
            });
        }
        self.by_name.insert(tensor.name.clone(), self.tensors.len());
        self.tensors.push(tensor);
        Ok(())
    }

    /// Refuses weights that another program quantised: their integers mean nothing without its code.
    pub(crate) fn refuse_quantised(self) -> Result<Self> {
        let suffixes =
            [".SCB", ".qweight", ".qzeros", ".absmax", ".weight_scale", ".weight_scale_inv", ".weight_packed"];
        let quantised = self.tensors.iter().find(|tensor| {
            let packed = match tensor.stored {
                Stored::U8 => true,
                Stored::Opaque(dtype) => dtype.bitsize() <= 8,
                _ => false,
            };
            packed && tensor.name.ends_with("weight") || suffixes.iter().any(|suffix| tensor.name.ends_with(suffix))
        });
        match quantised {
            Some(tensor) => Err(Error::Quantised {
                tensor: tensor.name.clone(),
                path: self.files[tensor.file].path().to_path_buf(),
                stored: tensor.stored,
            }),
            None => Ok(self),
        }
    }

    pub(crate) fn notice(&mut self, text: String) {
        self.notices.push(text);
    }

    /// The folder or file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything worth a notice that opening found: stray files, tensors that an index leaves out.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Configuration and vocabulary, if this is a GGUF file.
    pub fn gguf(&self) -> Option<&GgufContents> {
        self.gguf.as_ref()
    }

    /// The tensors, in the order of the files.
    pub fn tensors(&self) -> &[SourceTensor] {
        &self.tensors
    }

    /// Their names, in the same order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// The tensor of that name, if there is one.
    pub fn get(&self, name: &str) -> Option<&SourceTensor> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    /// The tensor of that name; an error with the name most like it otherwise.
    pub fn tensor(&self, name: &str) -> Result<&SourceTensor> {
        self.get(name).ok_or_else(|| Error::NoSuchTensor {
            tensor: name.into(),
            source_path: self.path.clone(),
            similar: crate::match_names::most_like(name, self.names()).map(Into::into),
        })
    }

    /// The name of the file that holds `tensor`.
    pub fn file_of(&self, tensor: &SourceTensor) -> String {
        file_name(self.files[tensor.file].path())
    }

    /// The float type that most elements have, quantised blocks and f16 counting as f32; `None` without floats.
    pub fn dominant_dtype(&self) -> Option<DType> {
        let elements_of = |dtype| -> usize {
            let same = |tensor: &&SourceTensor| tensor.stored.nearest_dtype() == Some(dtype);
            self.tensors.iter().filter(same).map(SourceTensor::num_elements).sum()
        };
        let (full, half) = (elements_of(DType::F32), elements_of(DType::Bf16));
        match (full, half) {
            (0, 0) => None,
            _ if half > full => Some(DType::Bf16),
            _ => Some(DType::F32),
        }
    }

    /// The tensor's bytes as they stand in the file: for GGUF's q and k, rows still in GGUF's order.
    pub fn raw(&self, name: &str) -> Result<&[u8]> {
        let tensor = self.tensor(name)?;
        Ok(self.bytes(tensor))
    }

    fn bytes(&self, tensor: &SourceTensor) -> &[u8] {
        &self.files[tensor.file][tensor.span.clone()]
    }

    /// The whole tensor as `dtype`.
    pub fn read(&self, name: &str, dtype: DType) -> Result<Vec<u8>> {
        let elements = self.tensor(name)?.num_elements();
        let mut bytes = vec![0; elements * dtype.size_bytes()];
        self.read_range_into(&mut bytes, name, 0..elements, dtype)?;
        Ok(bytes)
    }

    /// The whole tensor as `dtype`, into `dst` of exactly its size.
    pub fn read_into(&self, dst: &mut [u8], name: &str, dtype: DType) -> Result<()> {
        let elements = self.tensor(name)?.num_elements();
        self.read_range_into(dst, name, 0..elements, dtype)
    }

    /// Some rows (indices of the first axis) as `dtype`, into `dst` of exactly their size.
    pub fn read_rows_into(&self, dst: &mut [u8], name: &str, rows: Range<usize>, dtype: DType) -> Result<()> {
        let row = self.tensor(name)?.row_elements();
        self.read_range_into(dst, name, rows.start.saturating_mul(row)..rows.end.saturating_mul(row), dtype)
    }

    /// Some elements as `dtype`, into `dst` of exactly their size.
    pub fn read_range_into(&self, dst: &mut [u8], name: &str, elements: Range<usize>, dtype: DType) -> Result<()> {
        let tensor = self.tensor(name)?;
        let (stored, size) = (tensor.stored, dtype.size_bytes());
        if !stored.converts_to(dtype) {
            return Err(Error::Convert { tensor: name.into(), stored, wanted: dtype });
        }
        let Range { start, end } = elements;
        let count = tensor.num_elements();
        if start > end || end > count {
            return Err(Error::Range { tensor: name.into(), start, end, elements: count });
        }
        let expected = (end - start) * size;
        if dst.len() != expected {
            return Err(Error::DestinationSize { tensor: name.into(), expected, found: dst.len() });
        }
        let bytes = self.bytes(tensor);
        let Some(order) = tensor.order else {
            stored.convert(dst, dtype, bytes, start);
            return Ok(());
        };
        let row_elements = tensor.row_elements();
        let mut at = start;
        let mut rest = dst;
        while at < end {
            let (row, within) = (at / row_elements, at % row_elements);
            let take = (row_elements - within).min(end - at);
            let (part, tail) = rest.split_at_mut(take * size);
            let from = order.in_file(row) * row_elements + within;
            stored.convert(part, dtype, bytes, from);
            rest = tail;
            at += take;
        }
        Ok(())
    }
}

/// The last part of a path, as text.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
