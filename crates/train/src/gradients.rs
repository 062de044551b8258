//! Gradients from where a rank computes them to the shards that updates read.
//!
//! With one shard a unit's local gradients are final when the last micro-batch has added to them. With several, each
//! micro-batch's local gradients are summed over the ranks into shards as soon as the unit's backward is done, while the
//! next unit computes; shards of replicas are summed once a step.

use tensor::{DType, ParamId, Shape, Tensor};

use crate::store::{GroupId, Reach, zeros};
use crate::{ParamStore, Result};

/// Groups whose gradients may travel at once; their local gradients exist until they have arrived.
const MOST_REDUCING: usize = 1;

impl ParamStore {
    /// Whether all uses of a group's parameters in this pass have had their backward.
    pub(crate) fn is_finished(&self, id: GroupId) -> bool {
        let slots = &self.groups[id.0].group.slots;
        let mut params = slots.iter().map(|(id, _)| &self.params[id.0 as usize]);
        params.clone().all(|p| p.pending_uses == 0) && params.any(|p| p.has_gradient)
    }

    /// Takes the gradients of a group whose backward is done in this micro-batch.
    pub(crate) fn finish_gradients(&mut self, id: GroupId) -> Result<()> {
        if !self.is_alone() {
            return self.start_reducing(id);
        }
        if self.policy.optimizer_in_bwd {
            self.step_group(id, 1.0)?;
            self.groups[id.0].grads = None;
            self.forget_contributions(id);
        }
        Ok(())
    }

    /// Allocates a group's local gradients if it has none; padding is zero, the rest undefined.
    pub(crate) fn ensure_gradients(&mut self, id: GroupId) -> tensor::Result<()> {
        let in_f32 = self.is_alone() && self.policy.accumulate_in_f32;
        let dtype = if in_f32 { DType::F32 } else { self.dtype() };
        // Gradients that travel to shards are too short-lived for a file.
        let dir = self.gradients_dir().filter(|_| self.is_alone());
        let state = &mut self.groups[id.0];
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

    /// The local gradient of a parameter whose group has gradients.
    pub(crate) fn gradient_view(&self, id: ParamId) -> tensor::Result<Tensor> {
        let param = &self.params[id.0 as usize];
        let state = &self.groups[param.group.0];
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

    /// This rank's shard of a group's gradients, complete over micro-batches and ranks; `None` if the group has none.
    pub(crate) fn reduced_gradients(&mut self, id: GroupId) -> Result<Option<Tensor>> {
        if self.is_alone() {
            let any = self.complete_gradients(id)?;
            return Ok(self.groups[id.0].grads.clone().filter(|_| any));
        }
        let state = &mut self.groups[id.0];
        if state.reduced == Reach::Shards {
            let shard = state.shard_grads.take().expect("it holds contributions");
            let _span = self.backend.span(|| "wait for gradients");
            state.shard_grads = Some(self.replicas.all_reduce(&self.backend, shard).wait()?);
            state.reduced = Reach::Replicas;
        }
        Ok(state.shard_grads.clone().filter(|_| state.reduced == Reach::Replicas))
    }

    /// Zeroes local gradients of a group that got no contribution; false if the group has no gradients at all.
    fn complete_gradients(&mut self, id: GroupId) -> tensor::Result<bool> {
        if self.groups[id.0].grads.is_none() {
            return Ok(false);
        }
        for slot in 0..self.groups[id.0].group.slots.len() {
            let param = self.groups[id.0].group.slots[slot].0;
            if !std::mem::replace(&mut self.params[param.0 as usize].has_gradient, true) {
                self.backend.fill_zero(&mut self.gradient_view(param)?)?;
            }
        }
        Ok(true)
    }

    fn forget_contributions(&mut self, id: GroupId) {
        for (param, _) in &self.groups[id.0].group.slots {
            self.params[param.0 as usize].has_gradient = false;
        }
    }

    fn start_reducing(&mut self, id: GroupId) -> Result<()> {
        self.complete_gradients(id)?;
        self.forget_contributions(id);
        let in_f32 = self.policy.accumulate_in_f32 || self.replicas.world_size() > 1;
        let dtype = if in_f32 { DType::F32 } else { self.dtype() };
        let dir = self.gradients_dir();
        let state = &mut self.groups[id.0];
        let accumulate = state.reduced != Reach::Nothing;
        let local = state.grads.take().expect("completed above");
        let shard = match state.shard_grads.take() {
            Some(shard) => shard,
            None => zeros(&*self.backend, state.group.shard_len, dtype, dir.as_deref())?,
        };
        let pending = self.shards.reduce_scatter(&self.backend, shard, local, accumulate);
        self.reducing.push_back((id, pending));
        self.note_held();
        while self.reducing.len() > MOST_REDUCING {
            self.finish_oldest()?;
        }
        Ok(())
    }

    fn finish_oldest(&mut self) -> Result<()> {
        let Some((id, pending)) = self.reducing.pop_front() else { return Ok(()) };
        let waiting = self.backend.span(|| "wait for gradients");
        let reduced = pending.wait()?;
        drop(waiting);
        drop(reduced.full);
        let state = &mut self.groups[id.0];
        state.shard_grads = Some(reduced.shard);
        state.reduced = Reach::Shards;
        if self.policy.optimizer_in_bwd {
            self.step_group(id, 1.0)?;
            let state = &mut self.groups[id.0];
            state.shard_grads = None;
            state.reduced = Reach::Nothing;
        }
        Ok(())
    }
}
