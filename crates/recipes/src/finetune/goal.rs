//! What a recipe aims at, and what becomes of that with a config: the goal, and the model that it compares with.

use std::sync::Arc;

use models::Decoder;

use crate::components::{Checkpointer, ItemKind, Loss};
use crate::console::Console;
use crate::model_folder::ModelFolder;
use crate::objectives::{Averages, Goal, NextToken, PreferenceGoal, PreferenceLoss};
use crate::settings::FinetuneSettings;
use crate::{Error, Result};

use super::Finetune;

/// What a recipe trains for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Aim {
    /// Every next token of a row.
    NextToken,
    /// The better of two answers.
    Preference,
}

impl Aim {
    /// What its datasets hold.
    pub(crate) fn takes(self) -> ItemKind {
        match self {
            Self::NextToken => ItemKind::Rows,
            Self::Preference => ItemKind::Pairs,
        }
    }
}

impl Finetune {
    /// Whether it compares with a frozen model that is read from `ref_checkpointer`.
    pub(super) fn has_reference(&self) -> bool {
        self.aim == Aim::Preference && !self.trains_adapter
    }

    /// The same training of every weight or of an adapter, with layers quantised for show or not.
    pub(super) fn sibling(&self, trains_adapter: bool, quantises: bool) -> &'static str {
        match (self.aim, trains_adapter, quantises, self.on_ranks) {
            (Aim::NextToken, true, true, _) => "qat_lora_finetune_distributed",
            (Aim::NextToken, false, true, true) => "qat_distributed",
            (Aim::NextToken, false, true, false) => "qat_single_device",
            (Aim::NextToken, true, false, true) => "lora_finetune_distributed",
            (Aim::NextToken, true, false, false) => "lora_finetune_single_device",
            (Aim::NextToken, false, false, true) => "full_finetune_distributed",
            (Aim::NextToken, false, false, false) => "full_finetune_single_device",
            (Aim::Preference, true, _, true) => "lora_dpo_distributed",
            (Aim::Preference, true, _, false) => "lora_dpo_single_device",
            (Aim::Preference, false, _, _) => "full_dpo_distributed",
        }
    }

    fn goal(&self, settings: &FinetuneSettings, reference: Option<Decoder>) -> Goal {
        match self.aim {
            Aim::NextToken => {
                Goal::NextToken(NextToken { exact_steps: settings.fake_quant_after_n_steps.unwrap_or(0) })
            }
            Aim::Preference => Goal::Preference(PreferenceGoal {
                loss: match settings.loss {
                    Some(Loss::Preference(loss)) => loss,
                    _ => PreferenceLoss::default(),
                },
                averages: if self.on_ranks { Averages::All } else { Averages::Last },
                reference: reference.map(Arc::new),
            }),
        }
    }

    fn reference<'a>(&self, settings: &'a FinetuneSettings) -> Option<&'a Checkpointer> {
        settings.ref_checkpointer.as_ref().filter(|_| self.has_reference())
    }

    /// The goal of a run that trains `model`, and the folder of the model that it compares with, whose weights are not read yet.
    /// `Error::Reference` unless that has the shape of `model`.
    pub(super) fn open_goal(
        &self,
        settings: &FinetuneSettings,
        model: &Decoder,
        console: Console,
    ) -> Result<(Goal, Option<ModelFolder>)> {
        let Some(Checkpointer(checkpointer)) = self.reference(settings) else {
            return Ok((self.goal(settings, None), None));
        };
        let dir = &checkpointer.checkpoint_dir;
        let folder = ModelFolder::open(dir, &checkpointer.checkpoint_files, true).map_err(|error| match error {
            Error::Checkpoint(checkpoint::Error::NotAFolder { path, .. }) => {
                checkpoint::Error::NotAFolder { section: "ref_checkpointer", path }.into()
            }
            other => other,
        })?;
        if let Some(weights) = folder.weights() {
            train::check_weights(model.layout(), weights).map_err(|source| Error::Reference { source })?;
        }
        // What there is to say of the same folder has been said.
        let console = if *dir == settings.checkpointer.0.checkpoint_dir { Console::silent() } else { console };
        let reference = folder.build_model(&settings.model.clone().unwrap_or_default(), console)?;
        Ok((self.goal(settings, Some(reference)), Some(folder)))
    }

    /// The goal, without the files that the config speaks of.
    pub(crate) fn describe_goal(&self, settings: &FinetuneSettings) -> Result<Goal> {
        let describe = |reference: &Checkpointer| {
            ModelFolder::describe(&reference.0.checkpoint_dir, &settings.model.clone().unwrap_or_default())
        };
        Ok(self.goal(settings, self.reference(settings).map(describe).transpose()?))
    }
}
