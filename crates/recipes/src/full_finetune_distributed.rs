//! `full_finetune_distributed`: every weight of a model trained on many ranks, each holding a shard of everything.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "full_finetune_distributed",
    trains_adapter: false,
    on_ranks: true,
    quantises: false,
    aim: Aim::NextToken,
};
