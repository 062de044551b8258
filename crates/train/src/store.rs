//! The home of every parameter, its gradient and its optimizer states.

use std::sync::Arc;

use optim::{Optimizer, StepScale};
use tensor::rng::Stream;
use tensor::{Backend, DType, Init, ModelLayout, ParamId, ParamView, Shape, Tensor, UnitId};

use crate::Result;
use crate::group::Group;

/// Rows are filled and moved through host memory in pieces of at most this many bytes.
pub(crate) const STAGE_BYTES: usize = 16 << 20;

/// A tensor as flat pieces that fit the stage, each with its first and last element.
pub(crate) fn pieces(tensor: &Tensor) -> Result<Vec<(std::ops::Range<usize>, Tensor)>> {
    let len = tensor.num_elements();
    let flat = tensor.reshape([len])?;
    let step = STAGE_BYTES / tensor.dtype().size_bytes();
    let ranges = (0..len).step_by(step).map(|start| start..(start + step).min(len));
    ranges.map(|range| Ok((range.clone(), flat.rows(range)?))).collect()
}

/// What the store does with units and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// Blocks run again in backward instead of keeping their activations.
    pub recompute_blocks: bool,
    /// A unit's update runs as soon as its gradients are complete, which are then freed.
    pub optimizer_in_bwd: bool,
    /// Gradients are kept in f32, because several micro-batches add up in them.
    pub accumulate_in_f32: bool,
}

/// Owns parameters, gradients and optimizer states, and hosts the units of a pass.
pub struct ParamStore {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) layout: Arc<ModelLayout>,
    pub(crate) policy: Policy,
    pub(crate) params: Vec<ParamState>,
    pub(crate) units: Vec<UnitState>,
    dtype: DType,
    optimizer: Option<Optimizer>,
    /// Finished optimizer steps.
    step: u64,
    /// Learning rate of the running step.
    lr: f64,
}

/// One parameter.
#[derive(Debug)]
pub(crate) struct ParamState {
    /// The unit that owns it.
    pub(crate) unit: UnitId,
    /// Which slot of that unit's group it is.
    slot: usize,
    /// Its values.
    home: Tensor,
    /// Visits in the running pass whose backward has not come yet.
    pub(crate) pending_uses: u32,
    /// Whether its gradient holds contributions of the running step.
    pub(crate) has_gradient: bool,
}

/// One unit.
#[derive(Debug)]
pub(crate) struct UnitState {
    group: Group,
    /// The group's values, flat.
    home: Tensor,
    /// Owned and borrowed parameters, as a running unit sees them.
    pub(crate) views: Arc<[ParamView]>,
    /// The group's gradients, flat; only while they exist.
    grads: Option<Tensor>,
    /// The group's optimizer states, flat, in the optimizer's order; empty before the first step.
    states: Vec<Tensor>,
}

impl ParamStore {
    /// Homes for all parameters of a model, with undefined values. `Error::Tensor` if they do not fit into memory.
    pub fn new(backend: Arc<dyn Backend>, layout: Arc<ModelLayout>, dtype: DType, policy: Policy) -> Result<Self> {
        let mut params: Vec<Option<ParamState>> = layout.params.iter().map(|_| None).collect();
        let mut homes = Vec::with_capacity(layout.units.len());
        for (index, spec) in layout.units.iter().enumerate() {
            let group = Group::new(&layout, &spec.owns, dtype);
            let home = backend.zeros(Shape::from([group.len]), dtype)?;
            for (slot, (id, range)) in group.slots.iter().enumerate() {
                let view = home.rows(range.clone())?.reshape(layout.param(*id).shape)?;
                let unit = UnitId(index as u32);
                params[id.0 as usize] =
                    Some(ParamState { unit, slot, home: view, pending_uses: 0, has_gradient: false });
            }
            homes.push((group, home));
        }
        let params: Vec<ParamState> =
            params.into_iter().map(|p| p.expect("every parameter belongs to one unit")).collect();
        let units = homes
            .into_iter()
            .zip(&layout.units)
            .map(|((group, home), spec)| {
                let used = spec.owns.iter().chain(&spec.borrows);
                let view =
                    |&id: &ParamId| ParamView { id, tensor: params[id.0 as usize].home.clone(), trainable: true };
                UnitState { group, home, views: used.map(view).collect(), grads: None, states: Vec::new() }
            })
            .collect();
        Ok(Self { backend, layout, policy, params, units, dtype, optimizer: None, step: 0, lr: 0.0 })
    }

    /// Sets the optimizer that later steps use.
    pub fn set_optimizer(&mut self, optimizer: Optimizer) {
        self.optimizer = Some(optimizer);
    }

    /// The backend that holds the homes.
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The dtype of the parameters.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Whether updates run inside backward, so that complete gradients never exist at once.
    pub fn updates_in_backward(&self) -> bool {
        self.policy.optimizer_in_bwd
    }

    /// Finished optimizer steps.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Names and values of all parameters, in checkpoint order. Writing to the tensors writes to the homes.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, Tensor)> + '_ {
        self.layout.params.iter().zip(&self.params).map(|(spec, state)| (spec.name.as_str(), state.home.clone()))
    }

    /// Fills all parameters as their specs say, from a seed: the same for every dtype up to rounding.
    pub fn init_random(&mut self, seed: u64) -> Result<()> {
        for (index, (spec, state)) in self.layout.params.iter().zip(&self.params).enumerate() {
            let flat = state.home.reshape([spec.shape.num_elements()])?;
            let stream = Stream::new(seed, index as u64);
            let mut values = vec![1.0f32; spec.shape.num_elements()];
            if spec.init == Init::Normal {
                stream.fill_normal(&mut values, 0.02);
            }
            for (chunk, start) in values.chunks(STAGE_BYTES / 4).zip((0..).step_by(STAGE_BYTES / 4)) {
                let source = self.backend.from_f32([chunk.len()], DType::F32, chunk)?;
                self.backend.copy(&mut flat.rows(start..start + chunk.len())?, &source)?;
            }
        }
        Ok(())
    }

    /// Begins an optimizer step with the given learning rate; micro-batches follow.
    pub fn begin_step(&mut self, lr: f64) {
        self.lr = lr;
        for param in &mut self.params {
            param.has_gradient = false;
            param.pending_uses = 0;
        }
    }

    /// The norm of all gradients of the running step together; 0 if updates ran inside backward.
    pub fn gradient_norm(&mut self) -> Result<f64> {
        let mut sum = 0.0;
        for index in 0..self.units.len() {
            let unit = UnitId(index as u32);
            if self.complete_gradients(unit)? {
                let grads = self.units[index].grads.as_ref().expect("completed above");
                sum += self.backend.sum_of_squares(grads)?;
            }
        }
        Ok(sum.sqrt())
    }

    /// Whether no weight has become infinite, NaN, or so large that its square is.
    pub fn weights_are_finite(&self) -> Result<bool> {
        let mut sum = 0.0;
        for (_, weights) in self.parameters() {
            sum += self.backend.sum_of_squares(&weights)?;
        }
        Ok(sum.is_finite())
    }

    /// Names and gradients of the running step, for parameters whose unit has gradients.
    pub fn gradients(&mut self) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for index in 0..self.units.len() {
            if !self.complete_gradients(UnitId(index as u32))? {
                continue;
            }
            for (id, _) in &self.units[index].group.slots {
                all.push((self.layout.param(*id).name.clone(), self.gradient_view(*id)?));
            }
        }
        Ok(all)
    }

    /// Ends an optimizer step: updates every unit that was not updated inside backward, with its gradients times
    /// `grad_scale`.
    pub fn finish_step(&mut self, grad_scale: f32) -> Result<()> {
        if !self.policy.optimizer_in_bwd {
            for index in 0..self.units.len() {
                self.step_unit(UnitId(index as u32), grad_scale)?;
            }
        }
        self.step += 1;
        Ok(())
    }

    /// Names and values of all optimizer states, empty before the first step: `exp_avg.model.norm.weight`.
    pub fn optimizer_states(&self) -> Result<Vec<(String, Tensor)>> {
        let Some(optimizer) = &self.optimizer else {
            return Ok(Vec::new());
        };
        let mut all = Vec::new();
        for unit in &self.units {
            for (state_name, state) in optimizer.state_names().iter().zip(&unit.states) {
                for (id, range) in &unit.group.slots {
                    let spec = self.layout.param(*id);
                    all.push((format!("{state_name}.{}", spec.name), state.rows(range.clone())?.reshape(spec.shape)?));
                }
            }
        }
        Ok(all)
    }

    /// Allocates the optimizer states, for filling them from a checkpoint taken after `step` steps.
    pub fn restore_optimizer(&mut self, step: u64) -> Result<Vec<(String, Tensor)>> {
        self.step = step;
        for index in 0..self.units.len() {
            self.ensure_states(index)?;
        }
        self.optimizer_states()
    }

    /// Whether all uses of a unit's parameters in this pass have had their backward.
    pub(crate) fn is_finished(&self, unit: UnitId) -> bool {
        let slots = &self.units[unit.0 as usize].group.slots;
        let mut params = slots.iter().map(|(id, _)| &self.params[id.0 as usize]);
        params.clone().all(|p| p.pending_uses == 0) && params.any(|p| p.has_gradient)
    }

    /// Updates one unit.
    pub(crate) fn step_unit(&mut self, unit: UnitId, grad_scale: f32) -> tensor::Result<()> {
        if !self.complete_gradients(unit)? {
            return Ok(());
        }
        let index = unit.0 as usize;
        self.ensure_states(index)?;
        let scale = StepScale { lr: self.lr, step: self.step + 1, grad_scale };
        let optimizer = self.optimizer.as_ref().expect("training sets an optimizer first");
        let UnitState { home, grads, states, .. } = &mut self.units[index];
        let grads = grads.as_ref().expect("completed above");
        optimizer.step(&*self.backend, home, states, grads, &scale)
    }

    /// Frees a unit's gradients.
    pub(crate) fn drop_gradients(&mut self, unit: UnitId) {
        let state = &mut self.units[unit.0 as usize];
        state.grads = None;
        for (id, _) in &state.group.slots {
            self.params[id.0 as usize].has_gradient = false;
        }
    }

    /// Allocates a unit's gradients if it has none; padding is zero, the rest undefined.
    pub(crate) fn ensure_gradients(&mut self, unit: UnitId) -> tensor::Result<()> {
        let dtype = if self.policy.accumulate_in_f32 { DType::F32 } else { self.dtype };
        let state = &mut self.units[unit.0 as usize];
        if state.grads.is_some() {
            return Ok(());
        }
        let grads = self.backend.alloc(Shape::from([state.group.len]), dtype)?;
        for gap in state.group.gaps() {
            self.backend.fill_zero(&mut grads.rows(gap)?)?;
        }
        state.grads = Some(grads);
        Ok(())
    }

    /// The gradient of a parameter whose unit has gradients.
    pub(crate) fn gradient_view(&self, id: ParamId) -> tensor::Result<Tensor> {
        let param = &self.params[id.0 as usize];
        let state = &self.units[param.unit.0 as usize];
        let range = state.group.slots[param.slot].1.clone();
        let grads = state.grads.as_ref().expect("allocated by ensure_gradients");
        grads.rows(range)?.reshape(self.layout.param(id).shape)
    }

    /// Zeroes gradients of a unit that got no contribution; false if the unit has no gradients at all.
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

    fn ensure_states(&mut self, index: usize) -> tensor::Result<()> {
        let num_states = self.optimizer.as_ref().map_or(0, |o| o.state_names().len());
        let state = &mut self.units[index];
        while state.states.len() < num_states {
            state.states.push(self.backend.zeros(Shape::from([state.group.len]), self.dtype)?);
        }
        Ok(())
    }
}

impl std::fmt::Debug for ParamStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParamStore")
            .field("dtype", &self.dtype)
            .field("policy", &self.policy)
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}
