//! `qat_distributed`: QAT of every weight on several ranks.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune =
    Finetune { name: "qat_distributed", trains_adapter: false, on_ranks: true, quantises: true, aim: Aim::NextToken };
