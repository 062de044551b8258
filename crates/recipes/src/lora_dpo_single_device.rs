//! `lora_dpo_single_device`: an adapter trained on one device to prefer the better of two answers (DPO); the reference is the model without it.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "lora_dpo_single_device",
    trains_adapter: true,
    on_ranks: false,
    quantises: false,
    aim: Aim::Preference,
};
