//! Values from disk into homes, a piece at a time; every rank reads what it holds.

use checkpoint::{ExpectedTensor, WeightSource, match_names};
use tensor::ModelLayout;

use crate::store::{Local, pieces};
use crate::{ParamStore, Result};

/// Checks, before anything is read, that a source holds what a model needs; gives notices about what is left aside.
pub fn check_weights(layout: &ModelLayout, source: &WeightSource) -> Result<Vec<String>> {
    let expected: Vec<ExpectedTensor> = layout
        .params
        .iter()
        .map(|p| ExpectedTensor { name: p.name.clone(), shape: p.shape.dims().to_vec(), meaning: p.meaning.to_owned() })
        .collect();
    // A tied model has no head of its own; folders that carry a copy of the embedding under its name are common.
    let tied = layout.params.iter().all(|p| p.name != "lm_head.weight");
    Ok(match_names(&expected, source, &|name| tied && name == "lm_head.weight")?)
}

impl ParamStore {
    /// Fills all parameters from a source that [`check_weights`] accepted, converting to the store's dtype.
    pub fn load_weights(&mut self, source: &WeightSource) -> Result<()> {
        for local in self.local_values()? {
            self.fill(source, &self.layout.param(local.param).name, &local)?;
        }
        Ok(())
    }

    /// Fills the optimizer's states from a source that [`ParamStore::write_optimizer`] wrote, for a run that
    /// has made `step` steps, on any number of ranks.
    pub fn load_optimizer(&mut self, source: &WeightSource, step: u64) -> Result<()> {
        self.restore_optimizer(step)?;
        for (unit, state, name) in self.states() {
            for local in self.local_of(unit, &self.units[unit].states[state])? {
                self.fill(source, &format!("{name}.{}", self.layout.param(local.param).name), &local)?;
            }
        }
        Ok(())
    }

    fn fill(&self, source: &WeightSource, name: &str, local: &Local) -> Result<()> {
        let mut stage = Vec::new();
        for (range, mut piece) in pieces(&local.tensor)? {
            stage.resize(piece.len_bytes(), 0);
            let range = local.range.start + range.start..local.range.start + range.end;
            source.read_range_into(&mut stage, name, range, piece.dtype())?;
            self.backend.upload(&mut piece, &stage)?;
        }
        Ok(())
    }
}
