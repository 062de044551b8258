//! One file a recipe, readable from top to bottom.
//!
//! [`run`] takes a recipe's name and a merged config. A recipe checks everything it can before it reads weights, and
//! reports all config problems together; then it trains or generates. What recipes share has a file of its own:
//! [`train_step`] (the arithmetic of a step), [`memory_plan`] (what a run needs, before it loads), `components` (sections to things), `model_folder` (what a checkpoint folder
//! or GGUF file says and holds), `saving` (checkpoints and resuming), `profiling` (what is recorded of some steps), `console` (what is said on stderr).

mod check;
mod components;
mod console;
mod error;
mod full_finetune;
mod full_finetune_distributed;
mod full_finetune_single_device;
mod generate;
mod launch;
pub mod memory_plan;
mod model_folder;
mod plan_report;
mod profiling;
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
pub use plan_report::{PlanReport, plan};
pub use profiling::ProfilerConfig;
pub use reference_page::configuration_page;
pub use settings::{FullFinetuneSettings, GenerateSettings, Precision, PromptSettings};
pub use tensor::Backend;

/// A recipe of this version.
struct Built {
    name: &'static str,
    keys: &'static [FieldSpec],
    run: fn(&Merged, &Launch<'_>) -> Result<()>,
    check: fn(&Merged, &mut Problems),
}

const BUILT: &[Built] = &[
    Built {
        name: full_finetune_single_device::NAME,
        keys: FullFinetuneSettings::FIELDS,
        run: full_finetune_single_device::run,
        check: |config, problems| {
            full_finetune_single_device::check(config, problems);
        },
    },
    Built {
        name: full_finetune_distributed::NAME,
        keys: FullFinetuneSettings::FIELDS,
        run: full_finetune_distributed::run,
        check: |config, problems| {
            full_finetune_distributed::check(config, problems);
        },
    },
    Built {
        name: generate::NAME,
        keys: GenerateSettings::FIELDS,
        run: generate::run,
        check: |config, problems| {
            generate::check(config, problems);
        },
    },
];

fn built(name: &str) -> Option<&'static Built> {
    BUILT.iter().find(|built| built.name == name)
}

/// Whether a recipe has a `profiler` section; true for one that is not available in this version, which is refused as such.
pub fn is_profiled(recipe: &Recipe) -> bool {
    built(recipe.name).is_none_or(|built| built.keys.iter().any(|key| key.name == "profiler"))
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
