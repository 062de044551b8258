//! One file a recipe, readable from top to bottom.
//!
//! [`run`] takes a recipe's name and a merged config. A recipe checks everything it can before it reads weights, and
//! reports all config problems together; then it trains or generates. What recipes share has a file of its own:
//! [`train_step`] (the arithmetic of a step), [`objectives`] (what a step trains for), [`memory_plan`] (what a run needs, before it loads), `components` (sections to things), `model_folder` (what a checkpoint folder
//! or GGUF file says and holds), `saving` (checkpoints and resuming), `profiling` (what is recorded of some steps), `console` (what is said on stderr).

mod adapter;
mod check;
mod components;
mod console;
mod error;
mod finetune;
mod full_dpo_distributed;
mod full_finetune_distributed;
mod full_finetune_single_device;
mod generate;
mod launch;
mod lora_dpo_distributed;
mod lora_dpo_single_device;
mod lora_finetune_distributed;
mod lora_finetune_single_device;
pub mod memory_plan;
mod model_folder;
pub mod objectives;
mod plan_report;
mod profiling;
mod qat_distributed;
mod qat_lora_finetune_distributed;
mod qat_single_device;
mod reference_page;
pub mod registry;
mod sampling;
mod saving;
mod sections;
mod settings;
pub mod train_step;

use config::{FieldSpec, Merged, Problems};

use crate::registry::Recipe;

pub use check::{check, guess_recipe};
pub use error::{Error, Result, told};
pub use launch::{Launch, OpenBackend, Ranks, Share};
pub use metrics::notice;
pub use plan_report::PlanReport;
pub use profiling::ProfilerConfig;
pub use reference_page::configuration_page;
pub use settings::{FinetuneSettings, GenerateSettings, Precision, PromptSettings};
pub use tensor::Backend;

/// A recipe of this version.
struct Built {
    name: &'static str,
    keys: &'static [FieldSpec],
    run: fn(&Merged, &Launch<'_>) -> Result<()>,
    check: fn(&Merged, &mut Problems),
    /// What a run needs, if that is planned.
    plan: Option<fn(&Merged, &Launch<'_>) -> Result<PlanReport>>,
}

/// A fine-tuning, which takes the keys of all of them.
macro_rules! finetune {
    ($recipe:ident) => {
        Built {
            name: $recipe::RECIPE.name,
            keys: FinetuneSettings::FIELDS,
            run: |config, launch| $recipe::RECIPE.run(config, launch),
            check: |config, problems| {
                $recipe::RECIPE.check(config, problems);
            },
            plan: Some(|config, launch| $recipe::RECIPE.plan(config, launch)),
        }
    };
}

const BUILT: &[Built] = &[
    finetune!(full_finetune_single_device),
    finetune!(full_finetune_distributed),
    finetune!(lora_finetune_single_device),
    finetune!(lora_finetune_distributed),
    finetune!(lora_dpo_single_device),
    finetune!(lora_dpo_distributed),
    finetune!(full_dpo_distributed),
    finetune!(qat_single_device),
    finetune!(qat_distributed),
    finetune!(qat_lora_finetune_distributed),
    Built {
        name: generate::NAME,
        keys: GenerateSettings::FIELDS,
        run: generate::run,
        check: |config, problems| {
            generate::check(config, problems);
        },
        plan: Some(generate::plan),
    },
];

fn built(name: &str) -> Option<&'static Built> {
    BUILT.iter().find(|built| built.name == name)
}

/// Whether a recipe has a `profiler` section; true for one that is not available in this version, which is refused as such.
pub fn is_profiled(recipe: &Recipe) -> bool {
    built(recipe.name).is_none_or(|built| built.keys.iter().any(|key| key.name == "profiler"))
}

/// The memory plan of a config that checks clean; `Error::NoPlan` for recipes that have none in this version.
pub fn plan(recipe: &Recipe, config: &Merged, launch: &Launch<'_>) -> Result<PlanReport> {
    match built(recipe.name).and_then(|built| built.plan) {
        Some(plan) => plan(config, launch),
        None => Err(Error::NoPlan { recipe: recipe.name }),
    }
}

/// Runs a recipe; one that is not available in this version is refused with everything else that its config has wrong.
pub fn run(recipe: &Recipe, config: &Merged, launch: &Launch<'_>) -> Result<()> {
    match built(recipe.name) {
        Some(built) => (built.run)(config, launch),
        None => match check(recipe, config).finish() {
            Err(error) => Err(error.into()),
            Ok(_) => unreachable!("a recipe that is not available is a problem"),
        },
    }
}
