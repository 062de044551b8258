//! `qat_lora_finetune_distributed`: training of an adapter on a model as if that were quantised, on several ranks.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "qat_lora_finetune_distributed",
    trains_adapter: true,
    on_ranks: true,
    quantises: true,
    aim: Aim::NextToken,
};
