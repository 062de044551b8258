//! `qat_single_device`: training of every weight as if it were quantised (QAT), on one device.

use crate::finetune::{Aim, Finetune};

/// The recipe.
pub(crate) const RECIPE: Finetune = Finetune {
    name: "qat_single_device",
    trains_adapter: false,
    on_ranks: false,
    quantises: true,
    aim: Aim::NextToken,
};
