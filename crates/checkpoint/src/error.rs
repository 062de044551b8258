//! Everything that can go wrong with files of weights, in the words the user sees.
//!
//! A message's first line is the headline (lower case, no final period, the user's own words in backticks); detail
//! lines are indented by two spaces. [`Error::hint`] is the one action that helps, where there is one.

use std::fmt::{self, Write as _};
use std::io;
use std::path::PathBuf;

use tensor::DType;

use crate::gguf::GgufProblem;
use crate::safetensors_header::HeaderProblem;
use crate::stored::Stored;
use crate::wording::{counted, gib, name_list, shape_words};

/// The result of this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What was being done to a path when the operating system said no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoAction {
    /// Reading a file or listing a folder.
    Read,
    /// Creating or writing a file.
    Write,
    /// Making a folder.
    CreateFolder,
    /// Giving a file or folder its final name.
    Rename,
    /// Deleting a file or folder.
    Remove,
}

impl fmt::Display for IoAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::CreateFolder => "create folder",
            Self::Rename => "rename",
            Self::Remove => "remove",
        })
    }
}

/// Who named a file that is not there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexMention {
    /// The index file's name.
    pub index: String,
    /// How many tensors the index places in the file.
    pub tensors: usize,
    /// The first of them, in the index's order.
    pub first: String,
}

/// One tensor whose shape is not the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeMismatch {
    /// The tensor's name.
    pub tensor: String,
    /// The file that holds it.
    pub file: String,
    /// The shape the model needs.
    pub expected: Vec<usize>,
    /// That shape in words: `(num_key_value_heads * head_dim, hidden_size)`.
    pub meaning: String,
    /// The shape in the file.
    pub found: Vec<usize>,
}

/// What differs between the tensors a model needs and those a source holds; printed as `1 tensor missing, 0 unused` and the names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamesMismatch {
    /// Needed and not there.
    pub missing: Vec<String>,
    /// There and not needed.
    pub unused: Vec<String>,
    /// For the first missing name, the unused name most like it.
    pub similar: Option<(String, String)>,
}

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {action} `{}`", path.display())]
    Io {
        /// What was tried.
        action: IoAction,
        /// On what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// `checkpoint_dir` is no folder.
    #[error("`{}` is not a folder\n  given as `{section}.checkpoint_dir`", path.display())]
    NotAFolder {
        /// The checkpointer that names it.
        section: &'static str,
        /// What is no folder.
        path: PathBuf,
    },
    /// A named file is absent.
    #[error("no file `{file}` in `{}`{}", dir.display(), mention_text(mention.as_ref(), *others))]
    MissingFile {
        /// The file's name.
        file: String,
        /// The folder it should be in.
        dir: PathBuf,
        /// What an index says of it.
        mention: Option<IndexMention>,
        /// How many more files of the same index or list are absent.
        others: usize,
    },
    /// No file of weights in a folder.
    #[error(
        "no weights in `{}`\n  expected `model.safetensors.index.json`, `model.safetensors` or one `.gguf` file, found {}",
        dir.display(),
        name_list(candidates, 4)
    )]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// Files there that look like weights.
        candidates: Vec<String>,
    },
    /// Only pickle files of weights in a folder.
    #[error("only pickle weights in `{}`\n  expected safetensors, found {}", dir.display(), name_list(files, 4))]
    OnlyPickle {
        /// The folder.
        dir: PathBuf,
        /// The pickle files.
        files: Vec<String>,
    },
    /// A listed file is neither safetensors nor GGUF.
    #[error("cannot read weights from `{file}` in `{}`\n  expected a name ending in `.safetensors` or `.gguf`", dir.display())]
    FileKind {
        /// The file's name.
        file: String,
        /// Its folder.
        dir: PathBuf,
    },
    /// A GGUF file is listed together with others.
    #[error("`{file}` must be the only entry of `checkpoint_files`\n  found {count} entries")]
    GgufNotAlone {
        /// The GGUF file.
        file: String,
        /// How many files are listed.
        count: usize,
    },
    /// `checkpoint_files: []`.
    #[error("`checkpointer.checkpoint_files` is empty\n  expected at least one file name")]
    NoFilesListed,
    /// `filename_format` without exactly two `{}`.
    #[error(
        "bad `checkpoint_files.filename_format`: `{format}`\n  expected exactly two placeholders `{{}}`, found {found}"
    )]
    FilenameFormat {
        /// What the user wrote.
        format: String,
        /// How many placeholders it has.
        found: usize,
    },
    /// `max_filename` that is not a positive count written in digits.
    #[error(
        "bad `checkpoint_files.max_filename`: expected a number from 1 to 99999 in digits such as \"00030\", found `{found}`"
    )]
    MaxFilename {
        /// What the user wrote.
        found: String,
    },
    /// An index or config file that is not the JSON it should be.
    #[error("cannot parse `{}`", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// An adapter with a feature that would change what it computes.
    #[error("adapters with `{feature}` are not available in this version\n  found in `{}`", path.display())]
    UnsupportedAdapter {
        /// Its config.
        path: PathBuf,
        /// The key and what it says.
        feature: String,
    },
    /// An index that names a file outside its folder.
    #[error("bad file name `{file}` in `{}`\n  expected a plain name, found a path", index.display())]
    IndexFileName {
        /// The index.
        index: PathBuf,
        /// The name in it.
        file: String,
    },
    /// An index that names a tensor its file does not hold.
    #[error("no tensor `{tensor}` in `{}`\n  `{index}` says that it is there", file.display())]
    IndexTensor {
        /// The tensor.
        tensor: String,
        /// The file.
        file: PathBuf,
        /// The index's name.
        index: String,
    },
    /// The same tensor in two files.
    #[error("tensor `{tensor}` is in two files: `{first}` and `{second}`")]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// The file read first.
        first: String,
        /// The other.
        second: String,
    },
    /// A safetensors file that breaks its format.
    #[error("malformed safetensors file `{}`", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// How it is broken.
        #[source]
        problem: HeaderProblem,
    },
    /// A GGUF file that breaks its format, or that this program cannot use.
    #[error("cannot use GGUF file `{}`", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        problem: GgufProblem,
    },
    /// Weights that were quantised before.
    #[error("tensor `{tensor}` in `{}` is already quantised\n  expected F32, BF16, F16 or F64, found {stored}", path.display())]
    Quantised {
        /// The tensor.
        tensor: String,
        /// The file.
        path: PathBuf,
        /// Its type there.
        stored: Stored,
    },
    /// A tensor asked for that the source does not hold.
    #[error("no tensor `{tensor}` in `{}`", source_path.display())]
    NoSuchTensor {
        /// The tensor.
        tensor: String,
        /// The folder or file searched.
        source_path: PathBuf,
        /// The name most like it.
        similar: Option<String>,
    },
    /// A type that cannot become the wanted one.
    #[error("cannot read tensor `{tensor}` as {wanted}: it is stored as {stored}")]
    Convert {
        /// The tensor.
        tensor: String,
        /// Its type in the file.
        stored: Stored,
        /// The wanted type.
        wanted: DType,
    },
    /// A range past the end of a tensor.
    #[error("elements {start}..{end} of tensor `{tensor}` do not exist: it has {elements}")]
    Range {
        /// The tensor.
        tensor: String,
        /// First element asked for.
        start: usize,
        /// One past the last.
        end: usize,
        /// How many there are.
        elements: usize,
    },
    /// A destination of the wrong length.
    #[error("destination for tensor `{tensor}` has the wrong size\n  expected {expected} bytes, found {found}")]
    DestinationSize {
        /// The tensor.
        tensor: String,
        /// Bytes needed.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A tensor whose shape is not the model's.
    #[error("{}", shape_text(.0, *.1))]
    WrongShape(
        /// The first one.
        Box<ShapeMismatch>,
        /// How many more.
        usize,
    ),
    /// Tensors missing or unused.
    #[error("checkpoint does not match the model: {0}")]
    Names(
        /// Which.
        Box<NamesMismatch>,
    ),
    /// A tensor whose writer gave too few or too many bytes.
    #[error("tensor `{tensor}` was written with the wrong size\n  expected {expected} bytes, found {found}")]
    TensorBytes {
        /// The tensor.
        tensor: String,
        /// Bytes by shape and type.
        expected: u64,
        /// Bytes given.
        found: u64,
    },
    /// Two tensors of one name to be written.
    #[error("tensor `{tensor}` is listed twice for writing")]
    WrittenTwice {
        /// The tensor.
        tensor: String,
    },
    /// A file recorded twice in one checkpoint.
    #[error("file `{file}` is written twice in one checkpoint")]
    FileTwice {
        /// The file.
        file: String,
    },
    /// Not enough room for what is to be written.
    #[error("not enough disk space in `{}`: {} needed, {} free", path.display(), gib(*needed_bytes), gib(*free_bytes))]
    DiskSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes free.
        free_bytes: u64,
    },
    /// `output_dir` equal to or inside `checkpoint_dir`.
    #[error(
        "output folder `{}` is {} checkpoint folder `{}`",
        output_dir.display(),
        if *equal { "the same as" } else { "inside" },
        checkpoint_dir.display()
    )]
    OutputInsideCheckpoint {
        /// As the user wrote it.
        output_dir: PathBuf,
        /// As the user wrote it.
        checkpoint_dir: PathBuf,
        /// Whether they are the same folder.
        equal: bool,
    },
    /// `output_dir` holds another run.
    #[error("output folder `{}` holds another run\n  found {}", output_dir.display(), name_list(found, 3))]
    OutputHoldsRun {
        /// The folder.
        output_dir: PathBuf,
        /// Logs and checkpoints there.
        found: Vec<String>,
    },
    /// `output_dir` cannot be written to.
    #[error("cannot write to output folder `{}`", output_dir.display())]
    OutputUnwritable {
        /// The folder.
        output_dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A folder without `recipe_state.json`.
    #[error("`{}` is not a complete checkpoint: it has no `recipe_state.json`", dir.display())]
    NotACheckpoint {
        /// The folder.
        dir: PathBuf,
    },
    /// A `recipe_state.json` of another version.
    #[error("`{}` has schema version {found}, expected {expected}", path.display())]
    StateVersion {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// This program's.
        expected: u64,
    },
    /// A checkpoint file of another size than recorded.
    #[error("`{}` is damaged\n  expected {expected} bytes, found {found}", path.display())]
    DamagedSize {
        /// The file.
        path: PathBuf,
        /// Bytes recorded.
        expected: u64,
        /// Bytes on disk.
        found: u64,
    },
    /// A checkpoint file whose bytes are not those recorded.
    #[error("`{}` is damaged\n  expected checksum {expected:08x}, found {found:08x}", path.display())]
    DamagedBytes {
        /// The file.
        path: PathBuf,
        /// CRC-32 recorded.
        expected: u32,
        /// CRC-32 of the bytes on disk.
        found: u32,
    },
    /// Nothing to resume from.
    #[error("cannot resume: no complete checkpoint in `{}`{}", output_dir.display(), skipped_text(skipped))]
    NothingToResume {
        /// The folder.
        output_dir: PathBuf,
        /// What was found and why it does not serve.
        skipped: Vec<String>,
    },
}

impl Error {
    /// The one action that helps, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Io { source, .. } | Self::OutputUnwritable { source, .. } => io_hint(source),
            Self::NotAFolder { .. } => Some("give a folder that holds a model; the path is relative to the working directory".into()),
            Self::MissingFile { dir, mention: Some(_), .. } => {
                Some(format!("the download looks incomplete; download the model again into `{}`", dir.display()))
            }
            Self::MissingFile { dir, mention: None, .. } => {
                Some(format!("leave out `checkpointer.checkpoint_files` to use what is in `{}`", dir.display()))
            }
            Self::NoWeights { candidates, .. } if !candidates.is_empty() => {
                Some(format!("name the files: `checkpointer.checkpoint_files=[{}]`", candidates.join(",")))
            }
            Self::NoWeights { .. } => Some("name a folder with weights, or start from random ones with `model.init=random`".into()),
            Self::OnlyPickle { .. } | Self::FileKind { .. } => Some(
                "load the model in Python transformers and write it again with `save_pretrained(folder, \
                 safe_serialization=True)`"
                    .into(),
            ),
            Self::FilenameFormat { .. } => Some("write it like `model-{}-of-{}.safetensors`".into()),
            Self::IndexTensor { .. } | Self::Safetensors { .. } => match self {
                Self::Safetensors { problem: HeaderProblem::LfsPointer, .. } => {
                    Some("run `git lfs pull` in that folder, or download the model again".into())
                }
                Self::Safetensors { problem: HeaderProblem::Gguf, .. } => {
                    Some("give the file a name that ends in `.gguf`".into())
                }
                _ => Some("the file looks damaged or half downloaded; download it again".into()),
            },
            Self::Gguf { problem, .. } => problem.hint(),
            Self::Quantised { .. } => Some("give the original weights; `quantize` makes quantised ones from them".into()),
            Self::NoSuchTensor { similar: Some(name), .. } => Some(format!("did you mean `{name}`?")),
            Self::WrongShape(mismatch, _) => Some(format!(
                "compare {} in `config.json` and the `model` section with what this file holds",
                mismatch.meaning
            )),
            Self::Names(mismatch) => names_hint(mismatch),
            Self::DiskSpace { .. } => Some("free some space, or choose another `output_dir`".into()),
            Self::OutputInsideCheckpoint { .. } => Some("choose a folder outside of `checkpointer.checkpoint_dir`, which is only read".into()),
            Self::OutputHoldsRun { .. } => Some(
                "continue it with `resume_from_checkpoint=True`, replace it with `overwrite_output_dir=True`, or choose \
                 another `output_dir`"
                    .into(),
            ),
            Self::NothingToResume { .. } => Some("start anew with `resume_from_checkpoint=False`".into()),
            Self::DamagedSize { .. } | Self::DamagedBytes { .. } | Self::NotACheckpoint { .. } => {
                Some("resume from an earlier checkpoint of the run".into())
            }
            _ => None,
        }
    }
}

fn io_hint(source: &io::Error) -> Option<String> {
    match source.kind() {
        io::ErrorKind::StorageFull => Some("the disk is full: free some space, or choose another `output_dir`".into()),
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            Some("a part of that path is a file: choose another folder".into())
        }
        io::ErrorKind::PermissionDenied => Some("check the permissions of the folder, or choose another one".into()),
        _ => None,
    }
}

fn names_hint(mismatch: &NamesMismatch) -> Option<String> {
    let adapter = |name: &String| name.contains("lora_") || name.contains("lora_magnitude_vector");
    if !mismatch.unused.is_empty() && mismatch.unused.iter().all(adapter) {
        return Some("the unused names are an adapter; load it as `checkpointer.adapter_checkpoint`".into());
    }
    if mismatch.missing.len() == 1 && mismatch.missing[0] == "lm_head.weight" {
        return Some(
            "the model is untied (`tie_word_embeddings: false` in `config.json`) but the file has no head; if the model \
             shares it with the embedding, set it to true"
                .into(),
        );
    }
    let (missing, unused) = mismatch.similar.as_ref()?;
    Some(format!("did the file mean `{unused}` for `{missing}`?"))
}

fn mention_text(mention: Option<&IndexMention>, others: usize) -> String {
    let mut text = String::new();
    match mention {
        Some(IndexMention { index, tensors, first }) => {
            let _ = write!(text, "\n  named by `{index}` for {}, the first is `{first}`", counted(*tensors, "tensor"));
        }
        None => text.push_str("\n  named by `checkpointer.checkpoint_files`"),
    }
    if others > 0 {
        let _ = write!(
            text,
            "\n  {} named there {} missing too",
            counted(others, "more file"),
            if others == 1 { "is" } else { "are" }
        );
    }
    text
}

fn shape_text(mismatch: &ShapeMismatch, others: usize) -> String {
    let ShapeMismatch { tensor, file, expected, meaning, found } = mismatch;
    let mut text = format!(
        "wrong shape for tensor `{tensor}` in `{file}`\n  expected {} = {meaning}, found {}",
        shape_words(expected),
        shape_words(found)
    );
    if others > 0 {
        let _ = write!(text, "\n  {} of the wrong shape", counted(others, "more tensor"));
    }
    text
}

impl fmt::Display for NamesMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} missing, {} unused", counted(self.missing.len(), "tensor"), self.unused.len())?;
        if !self.missing.is_empty() {
            write!(f, "\n  missing: {}", name_list(&self.missing, 4))?;
        }
        if !self.unused.is_empty() {
            write!(f, "\n  unused:  {}", name_list(&self.unused, 4))?;
        }
        Ok(())
    }
}

fn skipped_text(skipped: &[String]) -> String {
    skipped.iter().fold(String::new(), |mut text, line| {
        let _ = write!(text, "\n  {line}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_shard_reads_like_the_style_guide() {
        let error = Error::MissingFile {
            file: "model-00002-of-00002.safetensors".into(),
            dir: "/data/Llama-3.2-3B".into(),
            mention: Some(IndexMention {
                index: "model.safetensors.index.json".into(),
                tensors: 113,
                first: "model.layers.14.mlp.down_proj.weight".into(),
            }),
            others: 0,
        };
        assert_eq!(
            error.to_string(),
            "no file `model-00002-of-00002.safetensors` in `/data/Llama-3.2-3B`\n  named by \
             `model.safetensors.index.json` for 113 tensors, the first is `model.layers.14.mlp.down_proj.weight`"
        );
        assert!(error.hint().unwrap().contains("the download looks incomplete"));
    }

    #[test]
    fn a_wrong_shape_shows_both_sides_and_its_meaning() {
        let error = Error::WrongShape(
            Box::new(ShapeMismatch {
                tensor: "model.layers.0.self_attn.k_proj.weight".into(),
                file: "model.safetensors".into(),
                expected: vec![512, 2048],
                meaning: "(num_key_value_heads * head_dim, hidden_size)".into(),
                found: vec![2048, 2048],
            }),
            0,
        );
        assert_eq!(
            error.to_string(),
            "wrong shape for tensor `model.layers.0.self_attn.k_proj.weight` in `model.safetensors`\n  expected (512, \
             2048) = (num_key_value_heads * head_dim, hidden_size), found (2048, 2048)"
        );
    }

    #[test]
    fn names_missing_and_unused_are_listed_and_an_adapter_is_recognised() {
        let error = Error::Names(Box::new(NamesMismatch {
            missing: vec!["lm_head.weight".into(), "model.norm.weight".into()],
            unused: vec!["a.lora_A.weight".into(), "b.lora_A.weight".into(), "c.lora_B.weight".into()],
            similar: None,
        }));
        assert_eq!(
            error.to_string(),
            "checkpoint does not match the model: 2 tensors missing, 3 unused\n  missing: `lm_head.weight`, \
             `model.norm.weight`\n  unused:  `a.lora_A.weight`, `b.lora_A.weight`, `c.lora_B.weight`"
        );
        assert!(error.hint().unwrap().contains("adapter_checkpoint"));
    }

    #[test]
    fn an_error_fits_in_a_result_of_modest_size() {
        assert!(size_of::<Error>() <= 128, "{}", size_of::<Error>());
    }
}
