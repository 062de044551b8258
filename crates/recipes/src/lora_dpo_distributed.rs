//! `lora_dpo_distributed`: DPO with an adapter on several ranks.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "lora_dpo_distributed",
    trains_adapter: true,
    on_ranks: true,
    quantises: false,
    aim: Aim::Preference,
};
