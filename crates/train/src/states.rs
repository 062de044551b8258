//! The states that an optimizer keeps, as it describes them.
//!
//! Parameters of a group that have alike states and stand side by side are a run. A run's states are one tensor each, over this rank's
//! part of the run, padding included, and one update is one kernel call a run. Most optimizers treat all parameters alike: one run
//! a group.
//!
//! ```text
//! unit k   q_proj ......... | pad | k_proj .... | pad | norm | pad |
//! run 0    exp_avg        u8, an entry an element     |              run 1  exp_avg     f32
//!          exp_avg_absmax f32, an entry for 256       |                     exp_avg_sq  f32
//! ```
//!
//! Parameters and shards begin at multiples of [`ALIGN`](crate::group::ALIGN) elements, so elements that share an entry belong to
//! one parameter and one rank.

use std::ops::Range;
use std::path::Path;

use optim::{Optimizer, StateSpec};
use tensor::{Backend, DType, ModelLayout, Shape, Tensor};

use crate::group::{ALIGN, Group, Stretch};
use crate::store::{GroupId, Local, zeros};
use crate::{ParamStore, Result};

/// Parameters of a group side by side whose states are alike, and this rank's part of them.
#[derive(Debug)]
pub(crate) struct StateRun {
    /// What is kept of each parameter.
    pub(crate) specs: &'static [StateSpec],
    /// Which slots of the group.
    pub(crate) slots: Range<usize>,
    /// Which elements of this rank's shard; none if others hold the whole run.
    pub(crate) in_shard: Range<usize>,
    /// One for each spec; none if this rank holds no element.
    tensors: Vec<Tensor>,
}

/// One state of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateId {
    pub(crate) group: GroupId,
    pub(crate) run: usize,
    /// Which of the run's specs.
    pub(crate) state: usize,
}

impl StateRun {
    /// The runs of a group, with all states zero.
    pub(crate) fn all(
        layout: &ModelLayout,
        group: &Group,
        optimizer: &Optimizer,
        rank: usize,
        alloc: impl Fn(usize, Option<DType>) -> tensor::Result<Tensor>,
    ) -> tensor::Result<Vec<Self>> {
        let specs_of = |slot: usize| optimizer.states(layout.param(group.slots[slot].0).shape.num_elements());
        let (mut runs, mut first) = (Vec::new(), 0);
        while first < group.slots.len() {
            let specs = specs_of(first);
            let end = (first..group.slots.len()).find(|&slot| specs_of(slot) != specs).unwrap_or(group.slots.len());
            let in_group = group.slots[first].1.start..group.slots.get(end).map_or(group.len, |(_, slot)| slot.start);
            let in_shard = group.in_shard(rank, &in_group);
            let tensor = |spec: &StateSpec| {
                assert!(ALIGN.is_multiple_of(spec.elements_per_entry), "entries end where parameters begin");
                alloc(spec.num_entries(in_shard.len()), spec.dtype)
            };
            let tensors =
                if in_shard.is_empty() { Vec::new() } else { specs.iter().map(tensor).collect::<Result<_, _>>()? };
            runs.push(Self { specs, slots: first..end, in_shard, tensors });
            first = end;
        }
        Ok(runs)
    }

    /// Bytes of this rank's states.
    pub(crate) fn len_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.len_bytes() as u64).sum()
    }

    /// The states, for an update of the elements [`StateRun::in_shard`].
    pub(crate) fn tensors(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }

    /// What of a state belongs to a stretch of a parameter.
    fn local(&self, state: usize, stretch: &Stretch) -> Result<Local> {
        let per = self.specs[state].elements_per_entry;
        let start = (stretch.in_shard.start - self.in_shard.start) / per;
        let range = stretch.of_param.start / per..self.specs[state].num_entries(stretch.of_param.end);
        let tensor = self.tensors[state].rows(start..start + range.len())?;
        Ok(Local { param: stretch.param, range, tensor })
    }
}

/// The shape of a state of a parameter.
pub(crate) fn shape_of(spec: &StateSpec, param: Shape) -> Shape {
    if spec.elements_per_entry == 1 { param } else { Shape::from([spec.num_entries(param.num_elements())]) }
}

impl ParamStore {
    /// Allocates a group's states if it has none.
    pub(crate) fn ensure_states(&mut self, id: GroupId) -> Result<()> {
        let state = &self.groups[id.0];
        if let (true, Some(optimizer)) = (state.states.is_empty(), &self.optimizer) {
            let dir = self.files.as_ref().filter(|files| files.optimizer).map(|files| files.dir.as_path());
            let alloc = |len: usize, dtype: Option<DType>| self.zero_state(len, dtype, dir);
            let runs = StateRun::all(&self.layout, &state.group, optimizer, self.shards.rank(), alloc)?;
            self.groups[id.0].states = runs;
            self.note_held();
        }
        Ok(())
    }

    fn zero_state(&self, len: usize, dtype: Option<DType>, dir: Option<&Path>) -> tensor::Result<Tensor> {
        zeros(&*self.backend as &dyn Backend, len, dtype.unwrap_or(self.dtype()), dir)
    }

    /// All states in the order of a checkpoint; none before the first step. The same on all ranks.
    pub(crate) fn states(&self) -> Vec<StateId> {
        let mut all = Vec::new();
        for (group, held) in self.groups.iter().enumerate() {
            for (run, StateRun { specs, .. }) in held.states.iter().enumerate() {
                all.extend((0..specs.len()).map(|state| StateId { group: GroupId(group), run, state }));
            }
        }
        all
    }

    /// The run of a state.
    pub(crate) fn run_of(&self, id: StateId) -> &StateRun {
        &self.groups[id.group.0].states[id.run]
    }

    /// The description of a state.
    pub(crate) fn spec_of(&self, id: StateId) -> StateSpec {
        self.run_of(id).specs[id.state]
    }

    /// What this rank holds of a state, parameter by parameter; ranges count entries.
    pub(crate) fn local_state(&self, id: StateId) -> Result<Vec<Local>> {
        let (run, group) = (self.run_of(id), &self.groups[id.group.0].group);
        let of_run = |stretch: &Stretch| run.slots.contains(&stretch.slot);
        group.stretches(self.shards.rank()).filter(of_run).map(|stretch| run.local(id.state, &stretch)).collect()
    }
}
