//! `full_finetune_single_device`: every weight of a model trained on one device.
//!
//! Checks the config; the run, which it shares with `full_finetune_distributed`, is in `full_finetune`.

use config::{Merged, Problems};
use dist::Mesh;

use crate::full_finetune::{Kind, MeshShape, Run, check as check_config};
use crate::settings::FullFinetuneSettings;
use crate::{Launch, Result, Share};

pub(crate) const NAME: &str = "full_finetune_single_device";

/// Runs the recipe.
pub(crate) fn run(config: &Merged, launch: &Launch<'_>) -> Result<()> {
    let mut problems = Problems::new();
    let settings = check(config, &mut problems);
    let notices = problems.finish()?;
    let settings = settings.expect("whatever could not be read is a problem");
    let run = Run::prepare(NAME, config, settings, &notices, MeshShape::ONE, launch, true)?;
    run.train(&Mesh::alone(), &launch.open(run.device(), Share::ALL)?)
}

/// The checked config; `None` after its problems were reported.
pub(crate) fn check(config: &Merged, problems: &mut Problems) -> Option<FullFinetuneSettings> {
    check_config(config, problems, NAME, Kind::Single)
}
