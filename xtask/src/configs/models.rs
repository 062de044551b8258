//! The models that configs are for: names, where their weights are, how large they are.
//!
//! Source: the `config.json` and the file list of each repository.

/// What the models of a family share.
pub(super) struct Family {
    /// The tokenizer's component, below `torchtune.models`.
    pub(super) tokenizer: &'static str,
    /// The tokenizer's keys for files, with their names in the model's folder.
    pub(super) tokenizer_files: &'static [(&'static str, &'static str)],
    /// Whether the tokenizer's section says how long rows may be.
    pub(super) says_max_seq_len: bool,
    /// What the checkpointer calls it.
    pub(super) model_type: &'static str,
    /// Files of the repository that are not needed.
    pub(super) ignored: Option<&'static str>,
}

/// The files of weights.
#[derive(Clone, Copy)]
pub(super) enum Files {
    /// One file of this name.
    One(&'static str),
    /// So many files, listed one by one.
    Listed(usize),
    /// Files up to this number, as a pattern.
    Numbered(&'static str),
}

/// How large a model is.
#[derive(Clone, Copy)]
pub(super) enum Size {
    /// A decoder: vocabulary, layers, width, query heads, key/value heads, width of a head, width of the feed-forward layer.
    Decoder([u64; 7], Head),
    /// Something else, of so many weights.
    Weights(u64),
}

/// Whether a decoder's head is its embedding.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Head {
    Own,
    Tied,
}

/// A model.
pub(super) struct Model {
    /// As people call it.
    pub(super) title: &'static str,
    /// The package of its builder, below `torchtune.models`.
    pub(super) package: &'static str,
    /// Its builder, which `lora_` and `qlora_` are put before.
    pub(super) builder: &'static str,
    /// Where it is on the hub. The last word is the folder in `/tmp`.
    pub(super) repository: &'static str,
    pub(super) files: Files,
    pub(super) family: &'static Family,
    pub(super) size: Size,
}

impl Model {
    /// The folder that it is downloaded to.
    pub(super) fn folder(&self) -> String {
        format!("/tmp/{}", self.repository.rsplit('/').next().unwrap_or(self.repository))
    }

    /// The command that downloads it.
    pub(super) fn download(&self) -> String {
        let ignored = self.family.ignored.map_or(String::new(), |files| format!(" --ignore-patterns \"{files}\""));
        format!("tune download {} --output-dir {}{ignored}", self.repository, self.folder())
    }

    /// The folder of its weights.
    pub(super) fn checkpoint_dir(&self) -> String {
        if self.is_meta_format() { format!("{}/original", self.folder()) } else { self.folder() }
    }

    /// Whether the weights are files of Meta's own form.
    pub(super) fn is_meta_format(&self) -> bool {
        matches!(self.files, One("consolidated.00.pth"))
    }

    /// Whether its head is its embedding, so that no adapter fits on it.
    pub(super) fn is_tied(&self) -> bool {
        matches!(self.size, Size::Decoder(_, Tied))
    }
}

use Files::{Listed, Numbered, One};
use Head::{Own, Tied};

const SENTENCEPIECE: &[(&str, &str)] = &[("path", "tokenizer.model")];
const TIKTOKEN: &[(&str, &str)] = &[("path", "original/tokenizer.model")];
const BYTE_LEVEL: &[(&str, &str)] = &[("path", "vocab.json"), ("merges_file", "merges.txt")];

const LLAMA2: Family = Family {
    tokenizer: "llama2.llama2_tokenizer",
    tokenizer_files: SENTENCEPIECE,
    says_max_seq_len: true,
    model_type: "LLAMA2",
    ignored: Some("*.bin"),
};
/// Repositories that hold nothing but pickled weights.
const TINY_LLAMA: Family = Family { ignored: None, ..LLAMA2 };
const LLAMA3: Family = Family {
    tokenizer: "llama3.llama3_tokenizer",
    tokenizer_files: TIKTOKEN,
    says_max_seq_len: true,
    model_type: "LLAMA3",
    ignored: Some("original/consolidated*"),
};
/// Meta's own files instead of Hugging Face's.
const LLAMA3_META: Family = Family { ignored: Some("*.safetensors"), ..LLAMA3 };
const LLAMA3_405B: Family = Family { tokenizer_files: &[("path", "original/mp8/tokenizer.model")], ..LLAMA3 };
const LLAMA3_2: Family = Family { model_type: "LLAMA3_2", ..LLAMA3 };
const LLAMA3_VISION: Family =
    Family { tokenizer: "llama3_2_vision.llama3_2_vision_transform", model_type: "LLAMA3_VISION", ..LLAMA3 };
const LLAMA4: Family = Family {
    tokenizer: "llama4.llama4_transform",
    tokenizer_files: SENTENCEPIECE,
    model_type: "LLAMA4",
    ignored: None,
    ..LLAMA3
};
const MISTRAL: Family = Family { tokenizer: "mistral.mistral_tokenizer", model_type: "MISTRAL", ..LLAMA2 };
const GEMMA: Family = Family {
    tokenizer: "gemma.gemma_tokenizer",
    tokenizer_files: SENTENCEPIECE,
    says_max_seq_len: false,
    model_type: "GEMMA",
    ignored: Some("*.gguf"),
};
const GEMMA2: Family = Family { model_type: "GEMMA2", ..GEMMA };
const PHI3: Family = Family { tokenizer: "phi3.phi3_mini_tokenizer", model_type: "PHI3_MINI", ignored: None, ..LLAMA2 };
const PHI4: Family = Family {
    tokenizer: "phi4.phi4_tokenizer",
    tokenizer_files: &[("vocab_path", "vocab.json"), ("merges_path", "merges.txt")],
    model_type: "PHI4",
    ..PHI3
};
/// A model with one score instead of a head.
const REWARD: Family = Family { model_type: "REWARD", ignored: None, ..LLAMA2 };
const QWEN2: Family =
    Family { tokenizer: "qwen2.qwen2_tokenizer", tokenizer_files: BYTE_LEVEL, model_type: "QWEN2", ..PHI3 };
const QWEN2_5: Family = Family { tokenizer: "qwen2_5.qwen2_5_tokenizer", ..QWEN2 };
const QWEN3: Family = Family { tokenizer: "qwen3.qwen3_tokenizer", model_type: "QWEN3", ..QWEN2 };
/// Its names of weights are those of Qwen 2.
const QWEN3_4B_FAMILY: Family = Family { model_type: "QWEN2", ..QWEN3 };

/// Declares models: constant, title, package and builder, repository, files, family, size.
macro_rules! models {
    ($($NAME:ident = $title:literal, $package:literal $builder:literal, $repository:literal, $files:expr, $family:ident, $size:expr;)+) => {
        $(pub(super) const $NAME: Model = Model {
            title: $title,
            package: $package,
            builder: $builder,
            repository: $repository,
            files: $files,
            family: &$family,
            size: $size,
        };)+
    };
}

const fn decoder(sizes: [u64; 7], head: Head) -> Size {
    Size::Decoder(sizes, head)
}

const fn billions(tenths: u64) -> Size {
    Size::Weights(tenths * 100_000_000)
}

#[rustfmt::skip]
models! {
    LLAMA2_7B = "Llama 2 7B", "llama2" "llama2_7b", "meta-llama/Llama-2-7b-hf", Listed(2), LLAMA2, decoder([32_000, 32, 4096, 32, 32, 128, 11_008], Own);
    LLAMA2_7B_CHAT = "Llama 2 7B Chat", "llama2" "llama2_7b", "meta-llama/Llama-2-7b-chat-hf", Listed(2), LLAMA2, decoder([32_000, 32, 4096, 32, 32, 128, 11_008], Own);
    LLAMA2_13B = "Llama 2 13B", "llama2" "llama2_13b", "meta-llama/Llama-2-13b-hf", Listed(3), LLAMA2, decoder([32_000, 40, 5120, 40, 40, 128, 13_824], Own);
    LLAMA2_70B = "Llama 2 70B", "llama2" "llama2_70b", "meta-llama/Llama-2-70b-hf", Numbered("00015"), LLAMA2, decoder([32_000, 80, 8192, 64, 8, 128, 28_672], Own);
    TINY_LLAMA_1B = "TinyLlama 1.1B", "llama2" "llama2", "TinyLlama/TinyLlama_v1.1", One("pytorch_model.bin"), TINY_LLAMA, decoder([32_000, 22, 2048, 32, 4, 64, 5632], Own);
    TINY_LLAMA_1B_REWARD = "another TinyLlama, which scores them,", "llama2" "llama2_classifier", "smohammadi/tinyllama_rm_sentiment_1b", One("model.safetensors"), REWARD, decoder([32_000, 22, 2048, 32, 4, 64, 5632], Tied);
    LLAMA3_8B = "Llama 3 8B", "llama3" "llama3_8b", "meta-llama/Meta-Llama-3-8B-Instruct", Listed(4), LLAMA3, decoder([128_256, 32, 4096, 32, 8, 128, 14_336], Own);
    LLAMA3_8B_META = "Llama 3 8B (base)", "llama3" "llama3_8b", "meta-llama/Meta-Llama-3-8B", One("consolidated.00.pth"), LLAMA3_META, decoder([128_256, 32, 4096, 32, 8, 128, 14_336], Own);
    LLAMA3_70B = "Llama 3 70B", "llama3" "llama3_70b", "meta-llama/Meta-Llama-3-70B-Instruct", Numbered("00030"), LLAMA3, decoder([128_256, 80, 8192, 64, 8, 128, 28_672], Own);
    LLAMA3_1_8B = "Llama 3.1 8B", "llama3_1" "llama3_1_8b", "meta-llama/Meta-Llama-3.1-8B-Instruct", Listed(4), LLAMA3, decoder([128_256, 32, 4096, 32, 8, 128, 14_336], Own);
    LLAMA3_1_70B = "Llama 3.1 70B", "llama3_1" "llama3_1_70b", "meta-llama/Meta-Llama-3.1-70B-Instruct", Numbered("00030"), LLAMA3, decoder([128_256, 80, 8192, 64, 8, 128, 28_672], Own);
    LLAMA3_1_405B = "Llama 3.1 405B", "llama3_1" "llama3_1_405b", "meta-llama/Meta-Llama-3.1-405B-Instruct", Numbered("00191"), LLAMA3_405B, decoder([128_256, 126, 16_384, 128, 8, 128, 53_248], Own);
    LLAMA3_2_1B = "Llama 3.2 1B", "llama3_2" "llama3_2_1b", "meta-llama/Llama-3.2-1B-Instruct", One("model.safetensors"), LLAMA3_2, decoder([128_256, 16, 2048, 32, 8, 64, 8192], Tied);
    LLAMA3_2_3B = "Llama 3.2 3B", "llama3_2" "llama3_2_3b", "meta-llama/Llama-3.2-3B-Instruct", Listed(2), LLAMA3_2, decoder([128_256, 28, 3072, 24, 8, 128, 8192], Tied);
    LLAMA3_2_3B_BASE = "Llama 3.2 3B (base)", "llama3_2" "llama3_2_3b", "meta-llama/Llama-3.2-3B", Listed(2), LLAMA3, decoder([128_256, 28, 3072, 24, 8, 128, 8192], Tied);
    LLAMA3_2_VISION_11B = "Llama 3.2 Vision 11B", "llama3_2_vision" "llama3_2_vision_11b", "meta-llama/Llama-3.2-11B-Vision-Instruct", Numbered("00005"), LLAMA3_VISION, billions(107);
    LLAMA3_2_VISION_90B = "Llama 3.2 Vision 90B", "llama3_2_vision" "llama3_2_vision_90b", "meta-llama/Llama-3.2-90B-Vision-Instruct", Numbered("00037"), LLAMA3_VISION, billions(886);
    LLAMA3_3_70B = "Llama 3.3 70B", "llama3_3" "llama3_3_70b", "meta-llama/Llama-3.3-70B-Instruct", Numbered("00030"), LLAMA3, decoder([128_256, 80, 8192, 64, 8, 128, 28_672], Own);
    LLAMA4_SCOUT = "Llama 4 Scout", "llama4" "llama4_scout_17b_16e", "meta-llama/Llama-4-Scout-17B-16E-Instruct", Numbered("00050"), LLAMA4, billions(1086);
    LLAMA4_MAVERICK = "Llama 4 Maverick", "llama4" "llama4_maverick_17b_128e", "meta-llama/Llama-4-Maverick-17B-128E-Instruct", Numbered("00055"), LLAMA4, billions(4017);
    MISTRAL_7B = "Mistral 7B", "mistral" "mistral_7b", "mistralai/Mistral-7B-v0.1", Listed(2), MISTRAL, decoder([32_000, 32, 4096, 32, 8, 128, 14_336], Own);
    MISTRAL_7B_INSTRUCT = "Mistral 7B Instruct", "mistral" "mistral_7b", "mistralai/Mistral-7B-Instruct-v0.2", Listed(3), MISTRAL, decoder([32_000, 32, 4096, 32, 8, 128, 14_336], Own);
    MISTRAL_7B_REWARD = "another Mistral 7B, which scores them,", "mistral" "mistral_classifier", "weqweasdas/RM-Mistral-7B", Listed(3), REWARD, decoder([32_000, 32, 4096, 32, 8, 128, 14_336], Tied);
    GEMMA_2B = "Gemma 2B", "gemma" "gemma_2b", "google/gemma-2b", Listed(2), GEMMA, decoder([256_000, 18, 2048, 8, 1, 256, 16_384], Tied);
    GEMMA_7B = "Gemma 7B", "gemma" "gemma_7b", "google/gemma-7b", Listed(4), GEMMA, decoder([256_000, 28, 3072, 16, 16, 256, 24_576], Tied);
    GEMMA2_2B = "Gemma 2 2B", "gemma2" "gemma2_2b", "google/gemma-2-2b", Listed(3), GEMMA2, decoder([256_000, 26, 2304, 8, 4, 256, 9216], Tied);
    GEMMA2_9B = "Gemma 2 9B", "gemma2" "gemma2_9b", "google/gemma-2-9b", Numbered("00008"), GEMMA2, decoder([256_000, 42, 3584, 16, 8, 256, 14_336], Tied);
    GEMMA2_27B = "Gemma 2 27B", "gemma2" "gemma2_27b", "google/gemma-2-27b", Numbered("00024"), GEMMA2, decoder([256_000, 46, 4608, 32, 16, 128, 36_864], Tied);
    PHI3_MINI = "Phi 3 mini", "phi3" "phi3_mini", "microsoft/Phi-3-mini-4k-instruct", Listed(2), PHI3, decoder([32_064, 32, 3072, 32, 32, 96, 8192], Own);
    PHI4_14B = "Phi 4 14B", "phi4" "phi4_14b", "microsoft/phi-4", Listed(6), PHI4, decoder([100_352, 40, 5120, 40, 10, 128, 17_920], Own);
    QWEN2_0_5B = "Qwen2 0.5B", "qwen2" "qwen2_0_5b", "Qwen/Qwen2-0.5B-Instruct", One("model.safetensors"), QWEN2, decoder([151_936, 24, 896, 14, 2, 64, 4864], Tied);
    QWEN2_1_5B = "Qwen2 1.5B", "qwen2" "qwen2_1_5b", "Qwen/Qwen2-1.5B-Instruct", One("model.safetensors"), QWEN2, decoder([151_936, 28, 1536, 12, 2, 128, 8960], Tied);
    QWEN2_7B = "Qwen2 7B", "qwen2" "qwen2_7b", "Qwen/Qwen2-7B-Instruct", Listed(4), QWEN2, decoder([152_064, 28, 3584, 28, 4, 128, 18_944], Own);
    QWEN2_5_0_5B = "Qwen2.5 0.5B", "qwen2_5" "qwen2_5_0_5b", "Qwen/Qwen2.5-0.5B-Instruct", One("model.safetensors"), QWEN2_5, decoder([151_936, 24, 896, 14, 2, 64, 4864], Tied);
    QWEN2_5_1_5B = "Qwen2.5 1.5B", "qwen2_5" "qwen2_5_1_5b_instruct", "Qwen/Qwen2.5-1.5B-Instruct", One("model.safetensors"), QWEN2_5, decoder([151_936, 28, 1536, 12, 2, 128, 8960], Tied);
    QWEN2_5_3B = "Qwen2.5 3B", "qwen2_5" "qwen2_5_3b", "Qwen/Qwen2.5-3B-Instruct", Listed(2), QWEN2_5, decoder([151_936, 36, 2048, 16, 2, 128, 11_008], Tied);
    QWEN2_5_3B_BASE = "Qwen2.5 3B (base)", "qwen2_5" "qwen2_5_3b", "Qwen/Qwen2.5-3B", Listed(2), QWEN2_5, decoder([151_936, 36, 2048, 16, 2, 128, 11_008], Tied);
    QWEN2_5_7B = "Qwen2.5 7B", "qwen2_5" "qwen2_5_7b_instruct", "Qwen/Qwen2.5-7B-Instruct", Listed(4), QWEN2_5, decoder([152_064, 28, 3584, 28, 4, 128, 18_944], Own);
    QWEN2_5_14B = "Qwen2.5 14B", "qwen2_5" "qwen2_5_14b_instruct", "Qwen/Qwen2.5-14B-Instruct", Numbered("00008"), QWEN2_5, decoder([152_064, 48, 5120, 40, 8, 128, 13_824], Own);
    QWEN2_5_32B = "Qwen2.5 32B", "qwen2_5" "qwen2_5_32b_instruct", "Qwen/Qwen2.5-32B-Instruct", Numbered("00017"), QWEN2_5, decoder([152_064, 64, 5120, 40, 8, 128, 27_648], Own);
    QWEN2_5_72B = "Qwen2.5 72B", "qwen2_5" "qwen2_5_72b_instruct", "Qwen/Qwen2.5-72B-Instruct", Numbered("00037"), QWEN2_5, decoder([152_064, 80, 8192, 64, 8, 128, 29_568], Own);
    QWEN3_0_6B = "Qwen3 0.6B", "qwen3" "qwen3_0_6b_instruct", "Qwen/Qwen3-0.6B", One("model.safetensors"), QWEN3, decoder([151_936, 28, 1024, 16, 8, 128, 3072], Tied);
    QWEN3_1_7B = "Qwen3 1.7B", "qwen3" "qwen3_1_7b_instruct", "Qwen/Qwen3-1.7B", Listed(2), QWEN3, decoder([151_936, 28, 2048, 16, 8, 128, 6144], Tied);
    QWEN3_4B = "Qwen3 4B", "qwen3" "qwen3_4b_instruct", "Qwen/Qwen3-4B", Listed(3), QWEN3_4B_FAMILY, decoder([151_936, 36, 2560, 32, 8, 128, 9728], Tied);
    QWEN3_8B = "Qwen3 8B", "qwen3" "qwen3_8b_instruct", "Qwen/Qwen3-8B", Listed(5), QWEN3, decoder([151_936, 36, 4096, 32, 8, 128, 12_288], Own);
    QWEN3_8B_BASE = "Qwen3 8B", "qwen3" "qwen3_8b_base", "Qwen/Qwen3-8B", Numbered("00005"), QWEN3, decoder([151_936, 36, 4096, 32, 8, 128, 12_288], Own);
    QWEN3_14B = "Qwen3 14B", "qwen3" "qwen3_14b_instruct", "Qwen/Qwen3-14B", Numbered("00008"), QWEN3, decoder([151_936, 40, 5120, 40, 8, 128, 17_408], Own);
    QWEN3_32B = "Qwen3 32B", "qwen3" "qwen3_32b", "Qwen/Qwen3-32B", Numbered("00017"), QWEN3, decoder([151_936, 64, 5120, 64, 8, 128, 25_600], Own);
}
