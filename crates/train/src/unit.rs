//! The store as the host of a pass: parameters come and go by unit, gradients find their home.

use std::sync::Arc;

use tensor::{GradientTarget, ParamId, ParamView, Phase, Result, UnitHost, UnitId, UnitKind};

use crate::ParamStore;

impl UnitHost for ParamStore {
    fn enter(&mut self, unit: UnitId, phase: Phase) -> Result<Arc<[ParamView]>> {
        let views = Arc::clone(&self.units[unit.0 as usize].views);
        if phase == Phase::Forward {
            for view in views.iter() {
                self.params[view.id.0 as usize].pending_uses += 1;
            }
        }
        Ok(views)
    }

    fn leave(&mut self, unit: UnitId, phase: Phase) -> Result<()> {
        if phase != Phase::Backward {
            return Ok(());
        }
        let views = Arc::clone(&self.units[unit.0 as usize].views);
        for view in views.iter() {
            let param = &mut self.params[view.id.0 as usize];
            param.pending_uses -= 1;
            let owner = param.unit;
            if self.policy.optimizer_in_bwd && self.is_finished(owner) {
                self.step_unit(owner, 1.0)?;
                self.drop_gradients(owner);
            }
        }
        Ok(())
    }

    fn recomputes(&self, unit: UnitId) -> bool {
        self.policy.recompute_blocks && self.layout.unit(unit).kind == UnitKind::Block
    }

    fn gradient(&mut self, param: ParamId) -> Result<GradientTarget> {
        let unit = self.params[param.0 as usize].unit;
        self.ensure_gradients(unit)?;
        let tensor = self.gradient_view(param)?;
        let accumulate = std::mem::replace(&mut self.params[param.0 as usize].has_gradient, true);
        Ok(GradientTarget { tensor, accumulate })
    }
}
