//! The protobuf message of a SentencePiece `.model` file, as far as encoding and decoding need it.
//!
//! `ModelProto { 1: pieces*, 2: trainer_spec, 3: normalizer_spec, 5: denormalizer_spec }`; defaults are those of the format.
//!
//! Source: `sentencepiece_model.proto` (field numbers, types and defaults).

/// The whole file.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelProto {
    /// The vocabulary; the position is the id.
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<Piece>,
    /// How the model was trained.
    #[prost(message, optional, tag = "2")]
    pub trainer_spec: Option<TrainerSpec>,
    /// What happens to text before it is split.
    #[prost(message, optional, tag = "3")]
    pub normalizer_spec: Option<NormalizerSpec>,
    /// What happens to text after it is joined.
    #[prost(message, optional, tag = "5")]
    pub denormalizer_spec: Option<NormalizerSpec>,
}

/// One entry of the vocabulary.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Piece {
    /// Its text, with spaces as U+2581.
    #[prost(string, optional, tag = "1")]
    pub text: Option<String>,
    /// Log-probability (unigram) or minus the merge rank (BPE).
    #[prost(float, optional, tag = "2")]
    pub score: Option<f32>,
    /// 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte.
    #[prost(int32, optional, tag = "3", default = "1")]
    pub kind: Option<i32>,
}

/// How the model was trained.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TrainerSpec {
    /// 1 unigram, 2 BPE, 3 word, 4 char.
    #[prost(int32, optional, tag = "3", default = "1")]
    pub model_type: Option<i32>,
    /// Whether the space belongs to the word before it.
    #[prost(bool, optional, tag = "24", default = "false")]
    pub treat_whitespace_as_suffix: Option<bool>,
    /// Whether unknown characters become byte pieces.
    #[prost(bool, optional, tag = "35", default = "false")]
    pub byte_fallback: Option<bool>,
    /// What an unknown id decodes to.
    #[prost(string, optional, tag = "44")]
    pub unk_surface: Option<String>,
    /// The piece that begins a text.
    #[prost(string, optional, tag = "46")]
    pub bos_piece: Option<String>,
    /// The piece that ends a text.
    #[prost(string, optional, tag = "47")]
    pub eos_piece: Option<String>,
    /// The piece that fills a batch.
    #[prost(string, optional, tag = "48")]
    pub pad_piece: Option<String>,
}

/// Normalisation of text.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NormalizerSpec {
    /// The replacement table, see [`super::charsmap`].
    #[prost(bytes = "vec", optional, tag = "2")]
    pub precompiled_charsmap: Option<Vec<u8>>,
    /// Whether a space is put before the text.
    #[prost(bool, optional, tag = "3", default = "true")]
    pub add_dummy_prefix: Option<bool>,
    /// Whether spaces at both ends and repeated spaces are removed.
    #[prost(bool, optional, tag = "4", default = "true")]
    pub remove_extra_whitespaces: Option<bool>,
    /// Whether spaces are written as U+2581.
    #[prost(bool, optional, tag = "5", default = "true")]
    pub escape_whitespaces: Option<bool>,
}
