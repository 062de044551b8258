//! The store as the host of a pass: parameters come and go by unit, gradients find their home.

use std::sync::Arc;

use tensor::{GradientTarget, ParamId, ParamKind, ParamView, Phase, Result, UnitHost, UnitId, UnitKind};

use crate::{Error, ParamStore};

impl ParamStore {
    /// The parameters of a unit, over values that are here.
    fn views(&self, unit: UnitId) -> Result<Arc<[ParamView]>> {
        let spec = self.layout.unit(unit);
        let view = |&id: &ParamId| {
            let param = &self.params[id.0 as usize];
            let spec = self.layout.param(id);
            let range = self.groups[param.group.0].of_values().slots[param.slot].1.clone();
            let tensor = self.here(param.group).rows(range)?.reshape(spec.shape)?;
            Ok(ParamView { id, tensor, trainable: spec.kind == ParamKind::Trained, fake_quant: spec.fake_quant })
        };
        spec.owns.iter().chain(&spec.borrows).map(view).collect()
    }
}

impl UnitHost for ParamStore {
    fn enter(&mut self, unit: UnitId, phase: Phase) -> Result<Arc<[ParamView]>> {
        self.bring(unit, phase).map_err(host_error)?;
        let views = self.views(unit)?;
        if phase == Phase::Forward {
            for view in views.iter().filter(|view| view.trainable) {
                self.params[view.id.0 as usize].pending_uses += 1;
            }
        }
        Ok(views)
    }

    fn leave(&mut self, unit: UnitId, phase: Phase) -> Result<()> {
        if phase == Phase::Backward {
            let spec = self.layout.unit(unit);
            let trained = |id: &&ParamId| self.layout.param(**id).kind == ParamKind::Trained;
            for id in spec.owns.iter().chain(&spec.borrows).filter(trained) {
                self.params[id.0 as usize].pending_uses -= 1;
            }
            for at in 0..self.units[unit.0 as usize].needs.len() {
                let group = self.units[unit.0 as usize].needs[at];
                if self.is_finished(group) {
                    self.finish_gradients(group).map_err(host_error)?;
                }
            }
        }
        self.give_up(unit, phase);
        Ok(())
    }

    fn recomputes(&self, unit: UnitId) -> bool {
        let every = self.policy.recompute_every;
        // Block 0 is unit 1: the embedding comes before it.
        every > 0 && self.layout.unit(unit).kind == UnitKind::Block && (unit.0 as usize - 1).is_multiple_of(every)
    }

    fn gradient(&mut self, param: ParamId) -> Result<GradientTarget> {
        self.ensure_gradients(self.params[param.0 as usize].group)?;
        let tensor = self.gradient_view(param)?;
        let accumulate = std::mem::replace(&mut self.params[param.0 as usize].has_gradient, true);
        Ok(GradientTarget { tensor, accumulate })
    }
}

fn host_error(error: Error) -> tensor::Error {
    match error {
        Error::Tensor(error) => error,
        other => tensor::Error::Host { reason: other.to_string() },
    }
}
