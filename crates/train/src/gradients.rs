//! Gradients from where a rank computes them to the shards that updates read.
//!
//! With one shard a unit's local gradients are final when the last micro-batch has added to them. With several, each
//! micro-batch's local gradients are summed over the ranks into shards as soon as the unit's backward is done, while the
//! next unit computes; shards of replicas are summed once a step.

use tensor::{DType, ParamId, Shape, Tensor, UnitId};

use crate::store::{Reach, zeros};
use crate::{ParamStore, Result};

/// Units whose gradients may travel at once; their local gradients exist until they have arrived.
const MOST_REDUCING: usize = 1;

impl ParamStore {
    /// Whether all uses of a unit's parameters in this pass have had their backward.
    pub(crate) fn is_finished(&self, unit: UnitId) -> bool {
        let slots = &self.units[unit.0 as usize].group.slots;
        let mut params = slots.iter().map(|(id, _)| &self.params[id.0 as usize]);
        params.clone().all(|p| p.pending_uses == 0) && params.any(|p| p.has_gradient)
    }

    /// Takes the gradients of a unit whose backward is done in this micro-batch.
    pub(crate) fn finish_gradients(&mut self, unit: UnitId) -> Result<()> {
        if !self.is_alone() {
            return self.start_reducing(unit);
        }
        if self.policy.optimizer_in_bwd {
            self.step_unit(unit, 1.0)?;
            self.units[unit.0 as usize].grads = None;
            self.forget_contributions(unit);
        }
        Ok(())
    }

    /// Allocates a unit's local gradients if it has none; padding is zero, the rest undefined.
    pub(crate) fn ensure_gradients(&mut self, unit: UnitId) -> tensor::Result<()> {
        let in_f32 = self.is_alone() && self.policy.accumulate_in_f32;
        let dtype = if in_f32 { DType::F32 } else { self.dtype() };
        // Gradients that travel to shards are too short-lived for a file.
        let dir = self.gradients_dir().filter(|_| self.is_alone());
        let state = &mut self.units[unit.0 as usize];
        if state.grads.is_some() {
            return Ok(());
        }
        let grads = match dir {
            None => self.backend.alloc(Shape::from([state.group.len]), dtype)?,
            Some(dir) => zeros(&*self.backend, state.group.len, dtype, Some(&dir))?,
        };
        for gap in state.group.gaps() {
            self.backend.fill_zero(&mut grads.rows(gap)?)?;
        }
        state.grads = Some(grads);
        self.note_held();
        Ok(())
    }

    /// The local gradient of a parameter whose unit has gradients.
    pub(crate) fn gradient_view(&self, id: ParamId) -> tensor::Result<Tensor> {
        let param = &self.params[id.0 as usize];
        let state = &self.units[param.unit.0 as usize];
        let range = state.group.slots[param.slot].1.clone();
        let grads = state.grads.as_ref().expect("allocated by ensure_gradients");
        grads.rows(range)?.reshape(self.layout.param(id).shape)
    }

    /// Waits until all gradients of the running micro-batch have arrived in shards.
    pub(crate) fn finish_reducing(&mut self) -> Result<()> {
        while !self.reducing.is_empty() {
            self.finish_oldest()?;
        }
        Ok(())
    }

    /// This rank's shard of a unit's gradients, complete over micro-batches and ranks; `None` if the unit has none.
    pub(crate) fn reduced_gradients(&mut self, unit: UnitId) -> Result<Option<Tensor>> {
        let index = unit.0 as usize;
        if self.is_alone() {
            let any = self.complete_gradients(unit)?;
            return Ok(self.units[index].grads.clone().filter(|_| any));
        }
        let state = &mut self.units[index];
        if state.reduced == Reach::Shards {
            let shard = state.shard_grads.take().expect("it holds contributions");
            let _span = self.backend.span(|| "wait for gradients");
            state.shard_grads = Some(self.replicas.all_reduce(&self.backend, shard).wait()?);
            state.reduced = Reach::Replicas;
        }
        Ok(state.shard_grads.clone().filter(|_| state.reduced == Reach::Replicas))
    }

    /// Zeroes local gradients of a unit that got no contribution; false if the unit has no gradients at all.
    fn complete_gradients(&mut self, unit: UnitId) -> tensor::Result<bool> {
        let index = unit.0 as usize;
        if self.units[index].grads.is_none() {
            return Ok(false);
        }
        for slot in 0..self.units[index].group.slots.len() {
            let id = self.units[index].group.slots[slot].0;
            if !std::mem::replace(&mut self.params[id.0 as usize].has_gradient, true) {
                self.backend.fill_zero(&mut self.gradient_view(id)?)?;
            }
        }
        Ok(true)
    }

    fn forget_contributions(&mut self, unit: UnitId) {
        for (id, _) in &self.units[unit.0 as usize].group.slots {
            self.params[id.0 as usize].has_gradient = false;
        }
    }

    fn start_reducing(&mut self, unit: UnitId) -> Result<()> {
        self.complete_gradients(unit)?;
        self.forget_contributions(unit);
        let in_f32 = self.policy.accumulate_in_f32 || self.replicas.world_size() > 1;
        let dtype = if in_f32 { DType::F32 } else { self.dtype() };
        let dir = self.gradients_dir();
        let state = &mut self.units[unit.0 as usize];
        let accumulate = state.reduced != Reach::Nothing;
        let local = state.grads.take().expect("completed above");
        let shard = match state.shard_grads.take() {
            Some(shard) => shard,
            None => zeros(&*self.backend, state.group.shard_len, dtype, dir.as_deref())?,
        };
        let pending = self.shards.reduce_scatter(&self.backend, shard, local, accumulate);
        self.reducing.push_back((unit, pending));
        self.note_held();
        while self.reducing.len() > MOST_REDUCING {
            self.finish_oldest()?;
        }
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<()> {
        let Some((unit, pending)) = self.reducing.pop_front() else { return Ok(()) };
        let waiting = self.backend.span(|| "wait for gradients");
        let reduced = pending.wait()?;
        drop(waiting);
        drop(reduced.full);
        let state = &mut self.units[unit.0 as usize];
        state.shard_grads = Some(reduced.shard);
        state.reduced = Reach::Shards;
        if self.policy.optimizer_in_bwd {
            self.step_unit(unit, 1.0)?;
            let state = &mut self.units[unit.0 as usize];
            state.shard_grads = None;
            state.reduced = Reach::Nothing;
        }
        Ok(())
    }
}
