//! Values from disk into homes, a piece at a time; every rank reads what it holds.

use checkpoint::{ExpectedTensor, WeightSource, match_names};
use optim::Optimizer;
use tensor::{DType, ModelLayout, ParamId, ParamKind};

use crate::states::shape_of;
use crate::store::{Local, pieces};
use crate::{ParamStore, Result};

/// Checks, before anything is read, that a source holds what a model needs; gives notices about what is left aside.
pub fn check_weights(layout: &ModelLayout, source: &WeightSource) -> Result<Vec<String>> {
    let expected: Vec<ExpectedTensor> = layout.base_params().map(|id| expected(layout, id)).collect();
    // A tied model has no head of its own; folders that carry a copy of the embedding under its name are common.
    let tied = layout.params.iter().all(|p| p.name != "lm_head.weight");
    Ok(match_names(&expected, source, &|name| tied && name == "lm_head.weight")?)
}

/// Checks, before anything is read, that a source holds the adapters of a model, and nothing else.
pub fn check_adapter(layout: &ModelLayout, source: &WeightSource) -> Result<()> {
    let expected: Vec<ExpectedTensor> = layout.adapter_params().map(|id| expected(layout, id)).collect();
    match_names(&expected, source, &|_| false)?;
    Ok(())
}

fn expected(layout: &ModelLayout, id: ParamId) -> ExpectedTensor {
    let param = layout.param(id);
    ExpectedTensor { name: param.name.clone(), shape: param.shape.dims().to_vec(), meaning: param.meaning.to_owned() }
}

/// Checks, before anything is read, that a source holds the states that an optimizer keeps of a model whose weights are in `dtype`;
/// gives notices about what is left aside.
pub fn check_optimizer(
    layout: &ModelLayout,
    optimizer: &Optimizer,
    dtype: DType,
    source: &WeightSource,
) -> Result<Vec<String>> {
    let mut expected = Vec::new();
    let mut dtypes = Vec::new();
    for param in layout.params.iter().filter(|param| param.kind == ParamKind::Trained) {
        for state in optimizer.states(param.shape.num_elements()) {
            let shape = shape_of(state, param.shape).dims().to_vec();
            let meaning = if state.elements_per_entry == 1 { param.meaning.to_owned() } else { "(blocks)".to_owned() };
            expected.push(ExpectedTensor { name: format!("{}.{}", state.name, param.name), shape, meaning });
            dtypes.push(state.dtype.unwrap_or(dtype));
        }
    }
    let notices = match_names(&expected, source, &|_| true)?;
    for (ExpectedTensor { name, .. }, wanted) in expected.iter().zip(dtypes) {
        let stored = source.tensor(name)?.stored;
        if !stored.converts_to(wanted) {
            return Err(checkpoint::Error::Convert { tensor: name.clone(), stored, wanted }.into());
        }
    }
    Ok(notices)
}

impl ParamStore {
    /// Fills the parameters that belong to no adapter from a source that [`check_weights`] accepted, converting to the store's
    /// dtype.
    pub fn load_weights(&mut self, source: &WeightSource) -> Result<()> {
        self.fill_all(source, self.layout.base_params().collect())
    }

    /// Fills the parameters of adapters from a source that [`check_adapter`] accepted.
    pub fn load_adapter(&mut self, source: &WeightSource) -> Result<()> {
        self.fill_all(source, self.layout.adapter_params().collect())
    }

    fn fill_all(&self, source: &WeightSource, chosen: Vec<ParamId>) -> Result<()> {
        for id in chosen {
            self.set_param(id, &|local| self.fill(source, &self.layout.param(id).name, local))?;
        }
        Ok(())
    }

    /// Sets a parameter to the given values, of which this rank takes its part.
    pub(crate) fn write_values(&self, id: ParamId, values: &[f32]) -> Result<()> {
        self.set_param(id, &|local| {
            let part = &values[local.range.clone()];
            let source = self.backend.from_f32([part.len()], local.tensor.dtype(), part)?;
            Ok(self.backend.copy(&mut local.tensor.clone(), &source)?)
        })
    }

    /// Fills the optimizer's states from a source that [`ParamStore::write_optimizer`] wrote, for a run that
    /// has made `step` steps, on any number of ranks.
    pub fn load_optimizer(&mut self, source: &WeightSource, step: u64) -> Result<()> {
        self.restore_optimizer(step)?;
        for id in self.states() {
            let name = self.spec_of(id).name;
            for local in self.local_state(id)? {
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
