//! `lora_finetune_distributed`: an adapter trained on many ranks, each holding a shard of it and of the model.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "lora_finetune_distributed",
    trains_adapter: true,
    on_ranks: true,
    quantises: false,
    aim: Aim::NextToken,
};
