//! The home of every parameter, its gradient and its optimizer states.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dist::{Communicator, Mesh, Pending, Reduced};
use optim::{Optimizer, Place, StepScale};
use tensor::rng::Stream;
use tensor::{Backend, DType, Init, ModelLayout, ParamId, Shape, Tensor, UnitId};

use crate::Result;
use crate::gather::Values;
use crate::group::Group;
use crate::states::{StateRun, shape_of};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Every how many blocks one runs again in backward instead of keeping its activations; 0 = none, 1 = all.
    pub recompute_every: usize,
    /// A unit's update runs as soon as its gradients are complete, which are then freed.
    pub optimizer_in_bwd: bool,
    /// Gradients are kept in f32, because several micro-batches add up in them.
    pub accumulate_in_f32: bool,
    /// Gathered values of a unit are given up after its forward visit and gathered again for backward.
    pub reshard_after_forward: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { recompute_every: 0, optimizer_in_bwd: false, accumulate_in_f32: false, reshard_after_forward: true }
    }
}

/// What lives in files between its uses, and during them: the system brings pages in and writes them back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Files {
    /// The folder, which must be there. Files in it have no name and are gone with the store.
    pub dir: PathBuf,
    /// Parameters live there.
    pub parameters: bool,
    /// Gradients live there.
    pub gradients: bool,
    /// Optimizer states live there.
    pub optimizer: bool,
}

/// Bytes of memory, files aside, that the store has held at most; each figure by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// This rank's share of the parameters.
    pub parameters: u64,
    /// Whole units of which this rank has a shard.
    pub gathered: u64,
    /// Gradients.
    pub gradients: u64,
    /// This rank's share of the optimizer's states.
    pub optimizer: u64,
}

/// Owns parameters, gradients and optimizer states, and hosts the units of a pass.
///
/// With several ranks each holds a shard of every unit's buffers. The same calls must then be made on all ranks in the same
/// order.
pub struct ParamStore {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) layout: Arc<ModelLayout>,
    pub(crate) policy: Policy,
    /// The ranks that hold the shards of one copy of the model.
    pub(crate) shards: Communicator,
    /// The ranks that hold the same shard as this one.
    pub(crate) replicas: Communicator,
    /// All ranks.
    world: Communicator,
    pub(crate) files: Option<Files>,
    held: Held,
    pub(crate) params: Vec<ParamState>,
    pub(crate) units: Vec<UnitState>,
    /// Gradients on their way into shards, oldest first.
    pub(crate) reducing: VecDeque<(UnitId, Pending<Reduced>)>,
    dtype: DType,
    pub(crate) optimizer: Option<Optimizer>,
    /// Of what the optimizer draws.
    seed: u64,
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
    pub(crate) slot: usize,
    /// Visits in the running pass whose backward has not come yet.
    pub(crate) pending_uses: u32,
    /// Whether its local gradient holds contributions of the running step, or of the running micro-batch with several shards.
    pub(crate) has_gradient: bool,
}

/// One unit.
#[derive(Debug)]
pub(crate) struct UnitState {
    pub(crate) group: Group,
    /// This rank's shard of the group's values, flat.
    pub(crate) home: Tensor,
    /// The units whose groups a visit of this one needs: itself, and those it borrows from.
    pub(crate) owners: Vec<UnitId>,
    /// The whole group's values, while they are here.
    pub(crate) values: Values,
    /// Running visits that use the group's values.
    pub(crate) visits: u32,
    /// The whole group's gradients as this rank computes them, flat; only while they exist.
    pub(crate) grads: Option<Tensor>,
    /// This rank's shard of the gradients of all ranks; with one shard there is none, `grads` is it.
    pub(crate) shard_grads: Option<Tensor>,
    /// What `shard_grads` holds of the running step.
    pub(crate) reduced: Reach,
    /// This rank's part of the optimizer's states; empty before the first step.
    pub(crate) states: Vec<StateRun>,
}

/// Whose gradients a shard of gradients is the sum of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Nobody's yet.
    Nothing,
    /// Those of the ranks that hold one copy of the model.
    Shards,
    /// Those of all ranks.
    Replicas,
}

/// A stretch of a parameter, or of a state of one, on this rank.
#[derive(Debug, Clone)]
pub(crate) struct Local {
    pub(crate) param: ParamId,
    /// Which elements of the parameter, or which entries of the state.
    pub(crate) range: std::ops::Range<usize>,
    /// Their values, flat.
    pub(crate) tensor: Tensor,
}

impl ParamStore {
    /// Homes for all parameters of a model on one rank, with undefined values. `Error::Tensor` if they do not fit into memory.
    pub fn new(backend: Arc<dyn Backend>, layout: Arc<ModelLayout>, dtype: DType, policy: Policy) -> Result<Self> {
        Self::on_mesh(backend, layout, dtype, policy, &Mesh::alone(), None)
    }

    /// Homes for this rank's shards of all parameters, in memory or in files, with undefined values.
    pub fn on_mesh(
        backend: Arc<dyn Backend>,
        layout: Arc<ModelLayout>,
        dtype: DType,
        policy: Policy,
        mesh: &Mesh,
        files: Option<Files>,
    ) -> Result<Self> {
        let mut params: Vec<Option<ParamState>> = layout.params.iter().map(|_| None).collect();
        let mut units = Vec::with_capacity(layout.units.len());
        for (index, spec) in layout.units.iter().enumerate() {
            let group = Group::new(&layout, &spec.owns, mesh.shard.world_size());
            let dir = files.as_ref().filter(|files| files.parameters).map(|files| files.dir.as_path());
            let home = zeros(&*backend, group.shard_len, dtype, dir)?;
            for (slot, (id, _)) in group.slots.iter().enumerate() {
                let unit = UnitId(index as u32);
                params[id.0 as usize] = Some(ParamState { unit, slot, pending_uses: 0, has_gradient: false });
            }
            units.push(UnitState {
                group,
                home,
                owners: vec![UnitId(index as u32)],
                values: Values::Away,
                visits: 0,
                grads: None,
                shard_grads: None,
                reduced: Reach::Nothing,
                states: Vec::new(),
            });
        }
        let params: Vec<ParamState> =
            params.into_iter().map(|p| p.expect("every parameter belongs to one unit")).collect();
        for (unit, spec) in units.iter_mut().zip(&layout.units) {
            for owner in spec.borrows.iter().map(|id| params[id.0 as usize].unit) {
                if !unit.owners.contains(&owner) {
                    unit.owners.push(owner);
                }
            }
        }
        let (shards, replicas) = (mesh.shard.clone(), mesh.replicate.clone());
        let reducing = VecDeque::new();
        Ok(Self {
            backend,
            layout,
            policy,
            shards,
            replicas,
            world: mesh.world.clone(),
            files,
            held: Held::default(),
            params,
            units,
            reducing,
            dtype,
            optimizer: None,
            seed: 0,
            step: 0,
            lr: 0.0,
        })
    }

    /// Sets the optimizer that later steps use, and the seed of what it draws at random.
    pub fn set_optimizer(&mut self, optimizer: Optimizer, seed: u64) {
        self.optimizer = Some(optimizer);
        self.seed = seed;
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

    /// All ranks that train this model.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// The most memory that the store has held.
    pub fn most_held(&self) -> Held {
        self.held
    }

    /// Looks at what the store holds at this moment.
    pub(crate) fn note_held(&mut self) {
        let in_files = |choose: fn(&Files) -> bool| self.files.as_ref().is_some_and(choose);
        let bytes = |len: usize, dtype: DType| (len * dtype.size_bytes()) as u64;
        let of = |tensor: &Option<Tensor>| tensor.as_ref().map_or(0, |t| t.len_bytes() as u64);
        let mut held = Held::default();
        for unit in &self.units {
            held.parameters += unit.home.len_bytes() as u64;
            if !self.is_whole() && !matches!(unit.values, Values::Away) {
                held.gathered += bytes(unit.group.len, self.dtype);
            }
            let local = if self.is_alone() && in_files(|f| f.gradients) { 0 } else { of(&unit.grads) };
            let shard = if in_files(|f| f.gradients) { 0 } else { of(&unit.shard_grads) };
            held.gradients += local + shard;
            held.optimizer += unit.states.iter().map(StateRun::len_bytes).sum::<u64>();
        }
        for (unit, _) in &self.reducing {
            let group = &self.units[unit.0 as usize].group;
            held.gradients += bytes(group.len + group.shard_len, self.dtype);
        }
        if in_files(|f| f.parameters) {
            held.parameters = 0;
        }
        if in_files(|f| f.optimizer) {
            held.optimizer = 0;
        }
        let most = &mut self.held;
        most.parameters = most.parameters.max(held.parameters);
        most.gathered = most.gathered.max(held.gathered);
        most.gradients = most.gradients.max(held.gradients);
        most.optimizer = most.optimizer.max(held.optimizer);
    }

    /// The folder for gradients, if they live in files.
    pub(crate) fn gradients_dir(&self) -> Option<PathBuf> {
        self.files.as_ref().filter(|files| files.gradients).map(|files| files.dir.clone())
    }

    /// Whether this rank holds whole parameters.
    pub(crate) fn is_whole(&self) -> bool {
        self.shards.world_size() == 1
    }

    /// Whether there is no other rank.
    pub(crate) fn is_alone(&self) -> bool {
        self.is_whole() && self.replicas.world_size() == 1
    }

    /// Names and values of all parameters, in checkpoint order. Writing to the tensors writes to the homes.
    /// `Error::Sharded` if this rank holds shards of them.
    pub fn parameters(&self) -> Result<Vec<(String, Tensor)>> {
        self.whole(self.local_values()?)
    }

    /// Names and values of all optimizer states, empty before the first step: `exp_avg.model.norm.weight`.
    /// `Error::Sharded` if this rank holds shards of them.
    pub fn optimizer_states(&self) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        self.check_whole()?;
        for id in self.states() {
            let state = self.spec_of(id);
            for local in self.local_state(id)? {
                let param = self.layout.param(local.param);
                let tensor = local.tensor.reshape(shape_of(&state, param.shape))?;
                all.push((format!("{}.{}", state.name, param.name), tensor));
            }
        }
        Ok(all)
    }

    /// Names and gradients of the running step, for parameters whose unit has gradients.
    /// `Error::Sharded` if this rank holds shards of them.
    pub fn gradients(&mut self) -> Result<Vec<(String, Tensor)>> {
        let mut all = Vec::new();
        for index in 0..self.units.len() {
            if let Some(grads) = self.reduced_gradients(UnitId(index as u32))? {
                all.extend(self.whole(self.local_of(index, &grads)?)?);
            }
        }
        Ok(all)
    }

    /// What this rank holds of all parameters, in checkpoint order.
    pub(crate) fn local_values(&self) -> Result<Vec<Local>> {
        let mut all = Vec::new();
        for (index, unit) in self.units.iter().enumerate() {
            all.extend(self.local_of(index, &unit.home)?);
        }
        all.sort_by_key(|local| local.param);
        Ok(all)
    }

    /// The stretches of parameters in a shard of the unit, which may hold values, gradients or states.
    pub(crate) fn local_of(&self, unit: usize, shard: &Tensor) -> Result<Vec<Local>> {
        let stretches = self.units[unit].group.stretches(self.shards.rank());
        let view =
            |s: crate::group::Stretch| Ok(Local { param: s.param, range: s.of_param, tensor: shard.rows(s.in_shard)? });
        stretches.map(view).collect()
    }

    fn check_whole(&self) -> Result<()> {
        if self.is_whole() { Ok(()) } else { Err(crate::Error::Sharded { num_shards: self.shards.world_size() }) }
    }

    fn whole(&self, all: Vec<Local>) -> Result<Vec<(String, Tensor)>> {
        self.check_whole()?;
        let named = |local: Local| {
            let spec = self.layout.param(local.param);
            Ok((spec.name.clone(), local.tensor.reshape(spec.shape)?))
        };
        all.into_iter().map(named).collect()
    }

    /// Fills all parameters as their specs say, from a seed: the same for every dtype up to rounding, and for any shards.
    pub fn init_random(&mut self, seed: u64) -> Result<()> {
        const STEP: usize = STAGE_BYTES / 4;
        let mut values = Vec::new();
        for local in self.local_values()? {
            let stream = Stream::new(seed, u64::from(local.param.0));
            let init = self.layout.param(local.param).init;
            for start in (0..local.range.len()).step_by(STEP) {
                let end = (start + STEP).min(local.range.len());
                values.clear();
                values.resize(end - start, if init == Init::Zeros { 0.0f32 } else { 1.0 });
                if init == Init::Normal {
                    stream.fill_normal_from((local.range.start + start) as u64, &mut values, 0.02);
                }
                let source = self.backend.from_f32([values.len()], DType::F32, &values)?;
                self.backend.copy(&mut local.tensor.rows(start..end)?, &source)?;
            }
        }
        // No step needs memory of these sizes again.
        self.backend.trim();
        Ok(())
    }

    /// Begins an optimizer step with the given learning rate; micro-batches follow.
    pub fn begin_step(&mut self, lr: f64) -> Result<()> {
        self.finish_reducing()?;
        self.lr = lr;
        for param in &mut self.params {
            param.has_gradient = false;
            param.pending_uses = 0;
        }
        for unit in &mut self.units {
            unit.reduced = Reach::Nothing;
            unit.visits = 0;
            unit.values = Values::Away;
        }
        Ok(())
    }

    /// The norm of all gradients of the running step together, over all ranks; 0 if updates ran inside backward.
    pub fn gradient_norm(&mut self) -> Result<f64> {
        self.finish_reducing()?;
        let mut sum = 0.0;
        for index in 0..self.units.len() {
            if let Some(grads) = self.reduced_gradients(UnitId(index as u32))? {
                sum += self.backend.sum_of_squares(&grads)?;
            }
        }
        Ok(self.over_shards(sum)?.sqrt())
    }

    /// Whether no weight has become infinite, NaN, or so large that its square is.
    pub fn weights_are_finite(&self) -> Result<bool> {
        let mut sum = 0.0;
        for unit in &self.units {
            sum += self.backend.sum_of_squares(&unit.home)?;
        }
        Ok(self.over_shards(sum)?.is_finite())
    }

    fn over_shards(&self, value: f64) -> Result<f64> {
        Ok(self.shards.sum(vec![value]).wait()?.iter().sum())
    }

    /// Ends an optimizer step: updates every unit that was not updated inside backward, with its gradients times
    /// `grad_scale`.
    pub fn finish_step(&mut self, grad_scale: f32) -> Result<()> {
        self.finish_reducing()?;
        if !self.policy.optimizer_in_bwd {
            for index in 0..self.units.len() {
                self.step_unit(UnitId(index as u32), grad_scale)?;
            }
        }
        self.step += 1;
        Ok(())
    }

    /// Allocates the optimizer states, for filling them from a checkpoint taken after `step` steps.
    pub(crate) fn restore_optimizer(&mut self, step: u64) -> Result<()> {
        self.step = step;
        for index in 0..self.units.len() {
            self.ensure_states(UnitId(index as u32))?;
        }
        Ok(())
    }

    /// Updates this rank's shard of one unit.
    pub(crate) fn step_unit(&mut self, unit: UnitId, grad_scale: f32) -> Result<()> {
        let Some(grads) = self.reduced_gradients(unit)? else { return Ok(()) };
        let _span = self.backend.span(|| format!("update unit {}", unit.0));
        self.ensure_states(unit)?;
        let scale = StepScale { lr: self.lr, step: self.step + 1, grad_scale };
        let optimizer = self.optimizer.as_ref().expect("training sets an optimizer first");
        let UnitState { group, home, states, .. } = &mut self.units[unit.0 as usize];
        let first = self.shards.rank() * group.shard_len;
        for run in states.iter_mut().filter(|run| !run.in_shard.is_empty()) {
            let range = run.in_shard.clone();
            let place = Place { seed: self.seed, unit: unit.0, start: (first + range.start) as u64 };
            let (mut param, grad) = (home.rows(range.clone())?, grads.rows(range)?);
            optimizer.step(&*self.backend, &mut param, run.tensors(), &grad, &scale, &place)?;
        }
        Ok(())
    }
}

/// A flat tensor of zeros, in memory or in a file in `dir`.
pub(crate) fn zeros(backend: &dyn Backend, len: usize, dtype: DType, dir: Option<&Path>) -> tensor::Result<Tensor> {
    match dir {
        None => backend.zeros(Shape::from([len]), dtype),
        Some(dir) => backend.alloc_in_file(Shape::from([len]), dtype, dir),
    }
}

impl std::fmt::Debug for ParamStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParamStore")
            .field("dtype", &self.dtype)
            .field("policy", &self.policy)
            .field("num_shards", &self.shards.world_size())
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}
