//! `lora_finetune_single_device`: an adapter (LoRA, DoRA, QLoRA) trained on one device; the model itself stays as it is.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "lora_finetune_single_device",
    trains_adapter: true,
    on_ranks: false,
    quantises: false,
    aim: Aim::NextToken,
};
