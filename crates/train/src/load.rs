//! Values from disk into homes, a piece at a time.

use checkpoint::{ExpectedTensor, WeightSource, match_names};
use tensor::{ModelLayout, Tensor};

use crate::store::pieces;
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
        let parameters: Vec<(String, Tensor)> = self.parameters().map(|(n, t)| (n.to_owned(), t)).collect();
        self.fill(source, &parameters)
    }

    /// Fills the optimizer's states from a source that [`ParamStore::write_optimizer`] wrote, for a run that
    /// has made `step` steps.
    pub fn load_optimizer(&mut self, source: &WeightSource, step: u64) -> Result<()> {
        let states = self.restore_optimizer(step)?;
        self.fill(source, &states)
    }

    fn fill(&self, source: &WeightSource, tensors: &[(String, Tensor)]) -> Result<()> {
        let mut stage = Vec::new();
        for (name, tensor) in tensors {
            for (range, mut piece) in pieces(tensor)? {
                stage.resize(piece.len_bytes(), 0);
                source.read_range_into(&mut stage, name, range, tensor.dtype())?;
                self.backend.upload(&mut piece, &stage)?;
            }
        }
        Ok(())
    }
}
