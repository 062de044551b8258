//! What can go wrong with a tokenizer file, a template or a message, as one typed error.
//!
//! Everything here is found before weights load: the CLI reports these with exit code 2.

use std::io;
use std::path::PathBuf;

use crate::Role;

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A problem with a tokenizer file, a template or a message.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that is named or needed cannot be read.
    #[error("cannot read tokenizer file `{path}`", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why the system refused.
        #[source]
        source: io::Error,
    },
    /// A folder holds none of the files that a tokenizer can be built from.
    #[error(
        "no tokenizer in folder `{folder}`\n  expected `tokenizer.json`, `tokenizer.model`, or `vocab.json` with `merges.txt`",
        folder = folder.display()
    )]
    NoTokenizer {
        /// The folder.
        folder: PathBuf,
    },
    /// The bytes of a file are not a tokenizer of the kind that is wanted.
    #[error("`{path}` is not a tokenizer file\n  expected {expected}, found {found}", path = path.display())]
    NotATokenizer {
        /// The file.
        path: PathBuf,
        /// The kinds of file that would do.
        expected: &'static str,
        /// What the first bytes look like.
        found: String,
    },
    /// A SentencePiece model contradicts itself or asks for something that is not built.
    #[error("cannot use SentencePiece model `{origin}`")]
    SentencePiece {
        /// The file, or the GGUF file the vocabulary came from.
        origin: String,
        /// What is wrong.
        #[source]
        problem: SentencePieceProblem,
    },
    /// A JSON file does not parse.
    #[error("cannot parse `{path}`", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A JSON value has another type than the one needed.
    #[error("wrong value for `{key}` in `{path}`\n  expected {expected}, found {found}", path = path.display())]
    JsonValue {
        /// The file.
        path: PathBuf,
        /// The key, dotted.
        key: String,
        /// The type that is needed.
        expected: &'static str,
        /// The type that is there.
        found: &'static str,
    },
    /// The Hugging Face engine refused a tokenizer description.
    #[error("cannot build the tokenizer of `{origin}`: {reason}")]
    HuggingFace {
        /// The file the description came from.
        origin: String,
        /// The engine's own words.
        reason: String,
    },
    /// The Hugging Face engine refused a text.
    #[error("tokenizer `{origin}` cannot encode a text of {bytes} bytes: {reason}")]
    Encode {
        /// The tokenizer's file.
        origin: String,
        /// Length of the text.
        bytes: usize,
        /// The engine's own words.
        reason: String,
    },
    /// A line of a tiktoken file is not a token and its rank.
    #[error("bad line {line} in tiktoken file `{path}`\n  expected {expected}, found `{found}`", path = path.display())]
    Tiktoken {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What a line must hold.
        expected: &'static str,
        /// The line, shortened.
        found: String,
    },
    /// A line of `merges.txt` is not a pair.
    #[error("bad line {line} in merges file `{path}`\n  expected two symbols separated by a space, found `{found}`", path = path.display())]
    Merges {
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The line, shortened.
        found: String,
    },
    /// The vocabulary inside a GGUF file is of a kind that is not built.
    #[error(
        "unknown vocabulary kind `{found}` in `{origin}`\n  key `tokenizer.ggml.model`, expected one of {}",
        names(known)
    )]
    GgufModel {
        /// The GGUF file.
        origin: String,
        /// The kind it names.
        found: String,
        /// The kinds that are built.
        known: &'static [&'static str],
    },
    /// The pre-tokeniser named by a GGUF file is not known.
    #[error(
        "unknown pre-tokenizer `{found}` in `{origin}`\n  key `tokenizer.ggml.pre`, expected one of {}",
        names(known)
    )]
    GgufPre {
        /// The GGUF file.
        origin: String,
        /// The name it gives.
        found: String,
        /// The names that are known.
        known: Vec<&'static str>,
    },
    /// Two lists of a GGUF vocabulary that belong together differ in length.
    #[error("bad vocabulary in `{origin}`: `{key}` has {found} entries, expected {expected}, one for each token")]
    GgufLength {
        /// The GGUF file.
        origin: String,
        /// The key of the list.
        key: &'static str,
        /// Number of tokens.
        expected: usize,
        /// Length of the list.
        found: usize,
    },
    /// A merge rule of a GGUF vocabulary is not a pair.
    #[error(
        "bad vocabulary in `{origin}`: entry {index} of `tokenizer.ggml.merges`\n  expected two symbols separated by a space, found `{found}`"
    )]
    GgufMerge {
        /// The GGUF file.
        origin: String,
        /// Position in the list, from 0.
        index: usize,
        /// The entry.
        found: String,
    },
    /// A GGUF file was given where its vocabulary, read by the checkpoint crate, is needed.
    #[error("`{path}` is a GGUF file, its vocabulary must be handed over with the checkpoint", path = path.display())]
    GgufFile {
        /// The file.
        path: PathBuf,
    },
    /// A special token that the message format needs is not in the special tokens file.
    #[error("special token `{token}` is missing in `{origin}`")]
    MissingSpecialToken {
        /// The token.
        token: String,
        /// The file that lists the special tokens.
        origin: String,
    },
    /// A special id lies outside the vocabulary.
    #[error("{name} id {id} of `{origin}` is outside its vocabulary of {vocab_size} tokens")]
    SpecialIdOutOfRange {
        /// `bos`, `eos`, `pad` or `unknown`.
        name: &'static str,
        /// The id.
        id: u32,
        /// The tokenizer's file.
        origin: String,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// The model has fewer embedding rows than the tokenizer has ids.
    #[error(
        "the model's vocabulary is smaller than the tokenizer's\n  expected at least {tokenizer} rows for the ids of `{origin}`, found vocab_size = {model}"
    )]
    VocabularyTooSmall {
        /// The tokenizer's file.
        origin: String,
        /// Highest id plus one.
        tokenizer: usize,
        /// Rows of the model's embedding.
        model: usize,
    },
    /// `prompt_template` names nothing that exists.
    #[error("unknown prompt template `{found}`\n  expected one of {}", names(known))]
    UnknownTemplate {
        /// The name the user wrote.
        found: String,
        /// The names that exist.
        known: &'static [&'static str],
    },
    /// A template does not know a role.
    #[error("role `{role}` is not supported by `{template}`")]
    UnsupportedRole {
        /// The role of the message.
        role: Role,
        /// The template or tokenizer kind.
        template: &'static str,
    },
    /// A role name is unknown.
    #[error("unknown role `{found}`\n  expected one of `system`, `user`, `assistant`, `ipython`, `tool`")]
    UnknownRole {
        /// The name.
        found: String,
    },
    /// A message holds an image and the tokenizer only takes text.
    #[error("message {index} (`{role}`) holds an image, `{format}` takes text only")]
    ImageContent {
        /// Position in the conversation, from 0.
        index: usize,
        /// Role of the message.
        role: Role,
        /// The tokenizer kind.
        format: &'static str,
    },
    /// A tool call that is not from the assistant.
    #[error("message of role `{role}` is marked as a tool call\n  expected role `assistant`")]
    ToolCallRole {
        /// Role of the message.
        role: Role,
    },
    /// A tool call that holds an image.
    #[error("a tool call holds an image, expected text only")]
    ToolCallImage,
    /// A template that writes the turn markers, for a tokenizer that writes them itself.
    #[error("prompt template `{template}` writes the turn markers that `{format}` writes itself")]
    DoubleTemplate {
        /// The prompt template.
        template: &'static str,
        /// The tokenizer kind.
        format: &'static str,
    },
    /// A chat template cannot be parsed or rendered.
    #[error("cannot render the chat template of `{origin}`")]
    ChatTemplate {
        /// The file that holds the template.
        origin: String,
        /// The line and the reason.
        #[source]
        source: Box<minijinja::Error>,
    },
    /// A chat template whose text for the first messages changes when more messages follow.
    #[error(
        "the chat template of `{origin}` does not render message by message: the text of message {index} (`{role}`) changes with what follows"
    )]
    ChatTemplateOrder {
        /// The file that holds the template.
        origin: String,
        /// Position of the message, from 0.
        index: usize,
        /// Role of the message.
        role: Role,
    },
    /// `max_seq_len` leaves no room for a token.
    #[error("max_seq_len is 0, expected an integer >= 1")]
    ZeroMaxSeqLen,
    /// Neither a path nor a vocabulary was given.
    #[error("the tokenizer has no source: `path` is not set and the checkpoint carries no vocabulary")]
    NoSource,
}

/// What is wrong with a SentencePiece model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SentencePieceProblem {
    /// A model type other than unigram and BPE.
    #[error("model type {found} is not supported, expected 1 (unigram) or 2 (BPE)")]
    ModelType {
        /// The number in the file.
        found: i32,
    },
    /// A piece type that does not exist.
    #[error("piece {id} has type {found}, expected 1 to 6")]
    PieceType {
        /// The piece's id.
        id: usize,
        /// The number in the file.
        found: i32,
    },
    /// There are no pieces.
    #[error("the vocabulary is empty")]
    Empty,
    /// A piece is the empty string.
    #[error("piece {id} is empty")]
    EmptyPiece {
        /// The piece's id.
        id: usize,
    },
    /// A piece occurs twice.
    #[error("piece `{piece}` is defined twice, as {first} and {second}")]
    DuplicatePiece {
        /// The piece.
        piece: String,
        /// Its first id.
        first: u32,
        /// Its second id.
        second: u32,
    },
    /// There is not exactly one unknown piece.
    #[error("expected one unknown piece, found {found}")]
    UnknownPieces {
        /// How many there are.
        found: usize,
    },
    /// Byte fallback without a piece for every byte.
    #[error("byte fallback needs 256 byte pieces, found {found}")]
    BytePieces {
        /// How many there are.
        found: usize,
    },
    /// A byte piece that is not written `<0xHH>`.
    #[error("byte piece {id} is `{piece}`, expected the form `<0x0A>`")]
    BytePieceName {
        /// The piece's id.
        id: usize,
        /// The piece.
        piece: String,
    },
    /// The normalisation table is damaged.
    #[error("the normalisation table is damaged: {reason}")]
    CharsMap {
        /// What does not hold.
        reason: &'static str,
    },
}

impl Error {
    /// One action that helps, when there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("check `tokenizer.path`, or download the tokenizer files of the model".into())
            }
            Self::NoTokenizer { .. } => {
                Some("the download looks incomplete, or `tokenizer.path` names another folder".into())
            }
            Self::NotATokenizer { found, .. } if found == GIT_LFS => {
                Some("the file is a pointer, run `git lfs pull` in its folder".into())
            }
            Self::GgufFile { .. } => {
                Some("name the file in `checkpointer.checkpoint_files` and leave `tokenizer.path` out".into())
            }
            Self::VocabularyTooSmall { tokenizer, .. } => {
                Some(format!("use the model's own tokenizer, or a model with vocab_size >= {tokenizer}"))
            }
            Self::MissingSpecialToken { .. } => {
                Some("leave `tokenizer.special_tokens_path` out to use the family's own ids".into())
            }
            Self::DoubleTemplate { .. } => Some("set `tokenizer.prompt_template=null`".into()),
            Self::UnknownTemplate { found, known } => {
                let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_ascii_lowercase();
                let wanted = last(found);
                let near = known.iter().find(|name| {
                    let name = last(name);
                    name == wanted || name.strip_suffix("template") == Some(wanted.as_str())
                })?;
                Some(format!("did you mean `{near}`?"))
            }
            Self::ChatTemplateOrder { .. } => {
                Some("use the tokenizer component of the model's family instead of `auto`".into())
            }
            Self::UnsupportedRole { role: Role::System, .. } => {
                Some("leave `new_system_prompt` out, or use another prompt template".into())
            }
            _ => None,
        }
    }
}

/// How the first bytes of a Git LFS pointer are described.
pub(crate) const GIT_LFS: &str = "a Git LFS pointer";

fn names(known: &[&str]) -> String {
    known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
