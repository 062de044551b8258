//! `full_dpo_distributed`: DPO with every weight, compared with a frozen reference of the same shape, on several ranks.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "full_dpo_distributed",
    trains_adapter: false,
    on_ranks: true,
    quantises: false,
    aim: Aim::Preference,
};
