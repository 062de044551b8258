//! Tables of cases, one an op, that compare a backend with the naive references.
//!
//! Every check function runs its op's table in one dtype and panics with all cases that fail. A case
//! - rounds its random inputs to the dtype and hands the rounded values to the reference, which runs in f64,
//! - takes inputs and outputs as rows in the middle of larger tensors; around them everything is NaN, so that a read
//!   outside shows in the result, and a write outside shows in the bands,
//! - starts outputs that are to be overwritten as NaN, and outputs that accumulate at random values,
//! - runs twice and expects the same bits,
//! - for calls that cannot work, expects the typed error, and outputs as they were.
//!
//! ```text
//! #[test]
//! fn ops_equal_their_references() {
//!     testing::op_table::check_all(&Cpu::new(num_threads));
//! }
//! ```
//!
//! Numbers: bounds are NMSE. Expected values are rounded to the output's dtype before they are compared, so what remains is
//! the difference between f32 and f64 arithmetic: see [`nmse_bound`]. An op that may round more often has a bound of its
//! own beside its table.

use tensor::{Backend, DType};

mod adamw8bit;
mod adapters;
mod attention;
mod bias;
mod case;
mod elementwise;
mod embedding;
mod fake_quantise;
mod glu;
mod head_loss;
mod label_log_probs;
mod matmul;
mod memory;
mod nf4;
mod optimizers;
mod rms_norm;
mod rope;

pub use adamw8bit::check_adamw8bit_step;
pub use adapters::{
    check_copy_columns, check_dora_norm, check_dora_scale_backward, check_dora_scale_forward, check_dropout_in_place,
    check_scale_in_place,
};
pub use attention::{check_attention_backward, check_attention_forward};
pub use bias::{check_bias_backward, check_bias_in_place};
pub use elementwise::{check_add, check_add_in_place, check_soft_cap_in_place, check_sum_of_squares};
pub use embedding::{check_embedding_backward, check_embedding_forward};
pub use fake_quantise::{check_fake_quantise_groups, check_fake_quantise_rows};
pub use glu::{check_glu_backward, check_glu_forward};
pub use head_loss::check_head_loss;
pub use label_log_probs::{check_label_log_probs_backward, check_label_log_probs_forward};
pub use matmul::{check_matmul_nn, check_matmul_nt, check_matmul_tn};
pub use memory::{check_copy, check_memory};
pub use nf4::{check_nf4_dequantise, check_nf4_quantise};
pub use optimizers::{check_adamw_step, check_sgd_step};
pub use rms_norm::{check_rms_norm_backward, check_rms_norm_forward};
pub use rope::{check_rope_in_place, check_rope_table};

/// The NMSE allowed to `len` elements that were computed in f32 and rounded to `dtype` once.
///
/// f32: sums of a few hundred terms and approximated exponentials, about 16 units in the last place. bf16: a value that
/// noise moves across a tie is off by 2^-7 of itself. Few of many are, but one large one of a few weighs much.
pub fn nmse_bound(dtype: DType, len: usize) -> f64 {
    match dtype {
        DType::F32 => 1e-12,
        DType::Bf16 => (1e-3 / len as f64).clamp(1e-6, 6.2e-5),
        DType::I32 | DType::U8 => 0.0,
    }
}

/// A check function: runs one op's table on a backend in one dtype, and panics with every failing case.
pub type Check = fn(&dyn Backend, DType);

/// All tables by the name of their op.
pub const CHECKS: &[(&str, Check)] = &[
    ("memory", check_memory),
    ("copy", check_copy),
    ("matmul_nt", check_matmul_nt),
    ("matmul_nn", check_matmul_nn),
    ("matmul_tn", check_matmul_tn),
    ("bias_in_place", check_bias_in_place),
    ("bias_backward", check_bias_backward),
    ("embedding_forward", check_embedding_forward),
    ("embedding_backward", check_embedding_backward),
    ("rms_norm_forward", check_rms_norm_forward),
    ("rms_norm_backward", check_rms_norm_backward),
    ("rope_table", check_rope_table),
    ("rope_in_place", check_rope_in_place),
    ("attention_forward", check_attention_forward),
    ("attention_backward", check_attention_backward),
    ("glu_forward", check_glu_forward),
    ("glu_backward", check_glu_backward),
    ("head_loss", check_head_loss),
    ("label_log_probs_forward", check_label_log_probs_forward),
    ("label_log_probs_backward", check_label_log_probs_backward),
    ("dropout_in_place", check_dropout_in_place),
    ("dora_norm", check_dora_norm),
    ("dora_scale_forward", check_dora_scale_forward),
    ("dora_scale_backward", check_dora_scale_backward),
    ("nf4_quantise", check_nf4_quantise),
    ("nf4_dequantise", check_nf4_dequantise),
    ("fake_quantise_rows", check_fake_quantise_rows),
    ("fake_quantise_groups", check_fake_quantise_groups),
    ("add", check_add),
    ("copy_columns", check_copy_columns),
    ("scale_in_place", check_scale_in_place),
    ("add_in_place", check_add_in_place),
    ("soft_cap_in_place", check_soft_cap_in_place),
    ("adamw_step", check_adamw_step),
    ("adamw8bit_step", check_adamw8bit_step),
    ("sgd_step", check_sgd_step),
    ("sum_of_squares", check_sum_of_squares),
];

/// Runs every table in f32 and in bf16.
pub fn check_all(backend: &dyn Backend) {
    for (_, check) in CHECKS {
        for dtype in [DType::F32, DType::Bf16] {
            check(backend, dtype);
        }
    }
}
