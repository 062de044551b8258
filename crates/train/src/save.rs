//! Homes to disk, a piece at a time: the model is never gathered in host memory.

use std::collections::HashMap;

use checkpoint::{CheckpointDir, TensorSink, TensorSpec};
use tensor::Tensor;

use crate::store::pieces;
use crate::{ParamStore, Result};

impl ParamStore {
    /// Writes all parameters as the model's weights.
    pub fn write_weights(&self, dir: &mut CheckpointDir) -> Result<()> {
        let tensors: Vec<(String, Tensor)> = self.parameters().map(|(n, t)| (n.to_owned(), t)).collect();
        dir.write_weights(&specs(&tensors), &mut self.pour(&tensors))
    }

    /// Writes all optimizer states; nothing if there are none.
    pub fn write_optimizer(&self, dir: &mut CheckpointDir) -> Result<()> {
        let states = self.optimizer_states()?;
        if states.is_empty() {
            return Ok(());
        }
        dir.write_optimizer(&specs(&states), &mut self.pour(&states))
    }

    /// Bytes that [`ParamStore::write_weights`] and [`ParamStore::write_optimizer`] write, headers aside.
    pub fn checkpoint_bytes(&self) -> Result<u64> {
        let weights: u64 = self.parameters().map(|(_, t)| t.len_bytes() as u64).sum();
        let states: u64 = self.optimizer_states()?.iter().map(|(_, t)| t.len_bytes() as u64).sum();
        Ok(weights + states)
    }

    /// Pours the bytes of a named tensor into a sink.
    fn pour<'a>(
        &'a self,
        tensors: &'a [(String, Tensor)],
    ) -> impl FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<()> + 'a {
        let by_name: HashMap<&str, &Tensor> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
        let mut stage = Vec::new();
        move |spec, sink| {
            let tensor = by_name[spec.name.as_str()];
            for (_, piece) in pieces(tensor)? {
                stage.resize(piece.len_bytes(), 0);
                self.backend.download(&mut stage, &piece)?;
                sink.write(&stage)?;
            }
            Ok(())
        }
    }
}

fn specs(tensors: &[(String, Tensor)]) -> Vec<TensorSpec> {
    let spec =
        |(name, t): &(String, Tensor)| TensorSpec { name: name.clone(), dtype: t.dtype(), shape: t.dims().to_vec() };
    tensors.iter().map(spec).collect()
}
