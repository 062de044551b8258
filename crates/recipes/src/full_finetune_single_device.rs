//! `full_finetune_single_device`: every weight of a model trained on one device.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "full_finetune_single_device",
    trains_adapter: false,
    on_ranks: false,
    quantises: false,
    aim: Aim::NextToken,
};
