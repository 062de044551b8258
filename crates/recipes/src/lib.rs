//! One file a recipe, readable from top to bottom.
//!
//! [`run`] takes a recipe's name and a merged config. A recipe checks everything it can before it reads weights, and
//! reports all config problems together; then it trains or generates. What recipes share has a file of its own:
//! [`train_step`] (the arithmetic of a step), `components` (sections to things), `model_folder` (what a checkpoint folder
//! or GGUF file says and holds), `saving` (checkpoints and resuming), `console` (what is said on stderr).

mod components;
mod console;
mod error;
mod full_finetune_single_device;
mod generate;
mod model_folder;
mod sampling;
mod saving;
mod settings;
pub mod train_step;

use std::sync::Arc;

use config::Merged;

pub use error::{Error, Result};
pub use metrics::notice;
pub use settings::{FullFinetuneSettings, GenerateSettings, Precision, PromptSettings};
pub use tensor::Backend;

/// Opens the backend for a `device` key (`auto` when the config has none); given by the program, which knows what it was
/// built with.
pub type OpenBackend<'a> = dyn Fn(&str) -> Result<Arc<dyn Backend>> + 'a;

type Run = fn(&Merged, &OpenBackend<'_>) -> Result<()>;

/// The recipes of this version.
const RECIPES: &[(&str, Run)] =
    &[("full_finetune_single_device", full_finetune_single_device::run), ("generate", generate::run)];

/// The names of all recipes, in the order to show them.
pub fn names() -> impl Iterator<Item = &'static str> {
    RECIPES.iter().map(|(name, _)| *name)
}

/// Runs the recipe `name`.
pub fn run(name: &str, config: &Merged, open_backend: &OpenBackend<'_>) -> Result<()> {
    let (_, recipe) = RECIPES.iter().find(|(known, _)| *known == name).ok_or_else(|| Error::UnknownRecipe {
        name: name.to_owned(),
        available: names().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", "),
    })?;
    recipe(config, open_backend)
}
