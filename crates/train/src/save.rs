//! Homes to disk, a piece at a time: no rank ever holds the whole model in host memory.
//!
//! One rank writes. The ranks that hold shards pass their part of each piece on, in the order in which it is written, so
//! all of them make the same calls.

use std::ops::Range;

use checkpoint::{ADAPTER_FILE, CheckpointDir, TensorSink, TensorSpec};
use optim::StateSpec;
use tensor::{ParamId, ParamKind, ParamSpec, Tensor};

use crate::states::{StateId, shape_of};
use crate::store::{Local, STAGE_BYTES};
use crate::{ParamStore, Result};

/// A tensor of a checkpoint: a parameter's values, or one of its states.
#[derive(Debug, Clone, Copy)]
struct Saved {
    param: ParamId,
    /// Which of the optimizer's states; `None` = the values.
    state: Option<StateId>,
}

impl ParamStore {
    /// Whether this rank is among those that save: those with shards of the first replica.
    pub fn saves(&self) -> bool {
        self.replicas.rank() == 0
    }

    /// Writes all parameters of a model without adapters as its weights; ranks without a folder pass their shards on.
    pub fn write_weights(&self, dir: Option<&mut CheckpointDir>) -> Result<()> {
        let (all, specs) = self.saved_values(self.layout.base_params());
        match dir {
            Some(dir) => dir.write_weights(&specs, &mut self.pour(&all)),
            None => self.pass_on(&all),
        }
    }

    /// Writes the parameters of adapters; ranks without a folder pass their shards on.
    pub fn write_adapter(&self, dir: Option<&mut CheckpointDir>) -> Result<()> {
        let (all, specs) = self.saved_values(self.layout.adapter_params());
        match dir {
            Some(dir) => dir.write_tensors(ADAPTER_FILE, &specs, &mut self.pour(&all)),
            None => self.pass_on(&all),
        }
    }

    /// Writes all optimizer states; nothing if there are none. Ranks without a folder pass their shards on.
    pub fn write_optimizer(&self, dir: Option<&mut CheckpointDir>) -> Result<()> {
        let all = self.saved_states();
        if all.is_empty() {
            return Ok(());
        }
        let specs: Vec<TensorSpec> = all.iter().map(|&saved| self.spec(saved)).collect();
        match dir {
            Some(dir) => dir.write_optimizer(&specs, &mut self.pour(&all)),
            None => self.pass_on(&all),
        }
    }

    /// Bytes of the model's weights, if `with_base`, of what is trained, and of the optimizer's states once a step was made, headers aside.
    pub fn checkpoint_bytes(&self, with_base: bool) -> u64 {
        let of_state = |state: &StateSpec, num_elements| {
            state.num_entries(num_elements) * state.dtype.unwrap_or(self.dtype()).size_bytes()
        };
        let of_param = |param: &ParamSpec| {
            let num_elements = param.shape.num_elements();
            let optimizer = self.optimizer.as_ref().filter(|_| param.kind == ParamKind::Trained);
            let states = optimizer.map_or(&[][..], |optimizer| optimizer.states(num_elements));
            let states: usize = states.iter().map(|state| of_state(state, num_elements)).sum();
            num_elements * self.dtype().size_bytes() + states
        };
        let params = self.layout.params.iter().filter(|param| with_base || param.kind == ParamKind::Trained);
        params.map(|param| of_param(param) as u64).sum()
    }

    fn saved_values(&self, params: impl Iterator<Item = ParamId>) -> (Vec<Saved>, Vec<TensorSpec>) {
        let all: Vec<Saved> = params.map(|param| Saved { param, state: None }).collect();
        let specs = all.iter().map(|&saved| self.spec(saved)).collect();
        (all, specs)
    }

    /// All states of all parameters, in the order in which they are written.
    fn saved_states(&self) -> Vec<Saved> {
        let of_state = |id: StateId| {
            let slots = &self.groups[id.group.0].group.slots[self.run_of(id).slots.clone()];
            slots.iter().map(move |(param, _)| Saved { param: *param, state: Some(id) })
        };
        let mut all: Vec<Saved> = self.states().into_iter().flat_map(of_state).collect();
        // Files begin with the widest elements, so that all are aligned.
        all.sort_by_key(|&saved| std::cmp::Reverse(self.spec(saved).dtype.size_bytes()));
        all
    }

    fn spec(&self, saved: Saved) -> TensorSpec {
        let param = self.layout.param(saved.param);
        let (name, dtype, shape) = match saved.state.map(|id| self.spec_of(id)) {
            None => (param.name.clone(), None, param.shape),
            Some(state) => (format!("{}.{}", state.name, param.name), state.dtype, shape_of(&state, param.shape)),
        };
        TensorSpec { name, dtype: dtype.unwrap_or(self.dtype()), shape: shape.dims().to_vec() }
    }

    /// What this rank holds of a tensor.
    fn local(&self, saved: Saved) -> Result<Option<Local>> {
        let group = self.params[saved.param.0 as usize].group;
        let all = match saved.state {
            None => self.local_of(group, &self.groups[group.0].home)?,
            Some(id) => self.local_state(id)?,
        };
        Ok(all.into_iter().find(|local| local.param == saved.param))
    }

    /// Pours the bytes of tensors into sinks, in the order of `all`.
    fn pour<'a>(&'a self, all: &'a [Saved]) -> impl FnMut(&TensorSpec, &mut TensorSink<'_>) -> Result<()> + 'a {
        let mut rest = all.iter();
        move |spec, sink| {
            let saved = *rest.next().expect("every tensor is written once, in order");
            debug_assert_eq!(self.spec(saved).name, spec.name);
            self.each_piece(saved, &mut |bytes| Ok(sink.write(bytes)?))
        }
    }

    fn pass_on(&self, all: &[Saved]) -> Result<()> {
        all.iter().try_for_each(|&saved| self.each_piece(saved, &mut |_| Ok(())))
    }

    /// The bytes of a tensor, in pieces, in order.
    fn each_piece(&self, saved: Saved, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let (spec, local) = (self.spec(saved), self.local(saved)?);
        let len: usize = spec.shape.iter().product();
        let step = STAGE_BYTES / spec.dtype.size_bytes();
        let mut stage = Vec::new();
        for start in (0..len).step_by(step) {
            let piece = start..(start + step).min(len);
            let mine = local.as_ref().and_then(|local| overlap(&local.range, &local.tensor, &piece).transpose());
            stage.clear();
            if let Some(mine) = mine.transpose()? {
                stage.resize(mine.len_bytes(), 0);
                self.backend.download(&mut stage, &mine)?;
            }
            if self.is_whole() {
                take(&stage)?;
            } else {
                // Shards lie in the order of ranks.
                for part in self.shards.gather_bytes(std::mem::take(&mut stage)).wait()? {
                    take(&part)?;
                }
            }
        }
        Ok(())
    }
}

/// The part of `tensor`, which holds the elements `range`, that belongs to `piece`.
fn overlap(range: &Range<usize>, tensor: &Tensor, piece: &Range<usize>) -> Result<Option<Tensor>> {
    let (start, end) = (range.start.max(piece.start), range.end.min(piece.end));
    if start >= end {
        return Ok(None);
    }
    Ok(Some(tensor.rows(start - range.start..end - range.start)?))
}
