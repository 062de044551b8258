//! The home of every parameter, its gradient and its optimizer states.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dist::{Communicator, Mesh, Pending, Reduced};
use optim::{Optimizer, Place, StepScale};
use tensor::ops::nf4::packed_bytes;
use tensor::rng::Stream;
use tensor::{Backend, DType, Init, ModelLayout, ParamId, ParamKind, Shape, Tensor, UnitId};

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
    pub(crate) groups: Vec<GroupState>,
    pub(crate) units: Vec<UnitState>,
    /// The first unit that trains something: backward goes no further down.
    pub(crate) lowest_trained: usize,
    /// Gradients on their way into shards, oldest first.
    pub(crate) reducing: VecDeque<(GroupId, Pending<Reduced>)>,
    pub(crate) dtype: DType,
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
    /// The group that holds it.
    pub(crate) group: GroupId,
    /// Which slot of that group it is.
    pub(crate) slot: usize,
    /// Visits in the running pass whose backward has not come yet.
    pub(crate) pending_uses: u32,
    /// Whether its local gradient holds contributions of the running step, or of the running micro-batch with several shards.
    pub(crate) has_gradient: bool,
}

/// Numbers the groups in the order of their units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupId(pub(crate) usize);

/// One unit.
#[derive(Debug)]
pub(crate) struct UnitState {
    /// The groups that a visit needs: those of its parameters, and those it borrows from.
    pub(crate) needs: Vec<GroupId>,
}

/// Parameters of one unit that are held alike, in one flat buffer.
#[derive(Debug)]
pub(crate) struct GroupState {
    /// The unit that owns them.
    pub(crate) unit: UnitId,
    pub(crate) kind: ParamKind,
    /// How the parameters lie in their home.
    pub(crate) group: Group,
    /// How their values lie where they are used, if not as in their home.
    pub(crate) unpacked: Option<Group>,
    /// This rank's shard of the group's values, flat.
    pub(crate) home: Tensor,
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
        let (mut groups, mut units) = (Vec::new(), Vec::with_capacity(layout.units.len()));
        for (index, spec) in layout.units.iter().enumerate() {
            let first = groups.len();
            for kind in [ParamKind::Trained, ParamKind::Frozen, ParamKind::Nf4] {
                let alike: Vec<ParamId> =
                    spec.owns.iter().copied().filter(|id| layout.param(*id).kind == kind).collect();
                if alike.is_empty() {
                    continue;
                }
                let num_shards = mesh.shard.world_size();
                let (group, unpacked, dtype) = match kind {
                    ParamKind::Nf4 => {
                        let group = Group::packed(&layout, &alike, num_shards);
                        (group, Some(Group::new(&layout, &alike, 1)), DType::U8)
                    }
                    ParamKind::Trained | ParamKind::Frozen => (Group::new(&layout, &alike, num_shards), None, dtype),
                };
                let dir = files.as_ref().filter(|files| files.parameters).map(|files| files.dir.as_path());
                let home = zeros(&*backend, group.shard_len, dtype, dir)?;
                for (slot, (id, _)) in group.slots.iter().enumerate() {
                    let group = GroupId(groups.len());
                    params[id.0 as usize] = Some(ParamState { group, slot, pending_uses: 0, has_gradient: false });
                }
                groups.push(GroupState::new(UnitId(index as u32), kind, group, unpacked, home));
            }
            units.push(UnitState { needs: (first..groups.len()).map(GroupId).collect() });
        }
        let params: Vec<ParamState> =
            params.into_iter().map(|p| p.expect("every parameter belongs to one unit")).collect();
        for (unit, spec) in units.iter_mut().zip(&layout.units) {
            for group in spec.borrows.iter().map(|id| params[id.0 as usize].group) {
                if !unit.needs.contains(&group) {
                    unit.needs.push(group);
                }
            }
        }
        let trains = |unit: &UnitState| unit.needs.iter().any(|id| groups[id.0].kind == ParamKind::Trained);
        let lowest_trained = units.iter().position(trains).unwrap_or(units.len());
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
            groups,
            units,
            lowest_trained,
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
        for group in &self.groups {
            held.parameters += group.home.len_bytes() as u64;
            if (!self.is_whole() || group.unpacked.is_some()) && !matches!(group.values, Values::Away) {
                held.gathered += bytes(group.of_values().len, self.dtype);
            }
            let local = if self.is_alone() && in_files(|f| f.gradients) { 0 } else { of(&group.grads) };
            let shard = if in_files(|f| f.gradients) { 0 } else { of(&group.shard_grads) };
            held.gradients += local + shard;
            held.optimizer += group.states.iter().map(StateRun::len_bytes).sum::<u64>();
        }
        for (id, _) in &self.reducing {
            let group = &self.groups[id.0].group;
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

    /// Names and values of all parameters but those in 4 bits, in checkpoint order. Writing to the tensors writes to the homes.
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
        for id in self.trained_groups() {
            if let Some(grads) = self.reduced_gradients(id)? {
                all.extend(self.whole(self.local_of(id, &grads)?)?);
            }
        }
        Ok(all)
    }

    /// What this rank holds of all parameters but those in 4 bits, in checkpoint order.
    pub(crate) fn local_values(&self) -> Result<Vec<Local>> {
        let mut all = Vec::new();
        for (index, group) in self.groups.iter().enumerate().filter(|(_, group)| group.kind != ParamKind::Nf4) {
            all.extend(self.local_of(GroupId(index), &group.home)?);
        }
        all.sort_by_key(|local| local.param);
        Ok(all)
    }

    /// The groups that are trained.
    pub(crate) fn trained_groups(&self) -> Vec<GroupId> {
        let trained = |id: &GroupId| self.groups[id.0].kind == ParamKind::Trained;
        (0..self.groups.len()).map(GroupId).filter(trained).collect()
    }

    /// The stretches of parameters in a shard of the group, which may hold values, gradients or states.
    pub(crate) fn local_of(&self, group: GroupId, shard: &Tensor) -> Result<Vec<Local>> {
        let stretches = self.groups[group.0].group.stretches(self.shards.rank());
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

    /// Fills all parameters that belong to no adapter as their specs say, from a seed: the same for every dtype up to rounding, and
    /// for any shards.
    pub fn init_random(&mut self, seed: u64) -> Result<()> {
        self.init_some(seed, self.layout.base_params().collect())
    }

    /// Fills the parameters of adapters so that they change nothing: all others must have their values.
    pub fn init_adapters(&mut self, seed: u64) -> Result<()> {
        self.init_some(seed, self.layout.adapter_params().collect())?;
        self.init_magnitudes()
    }

    fn init_some(&mut self, seed: u64, chosen: Vec<ParamId>) -> Result<()> {
        for id in chosen {
            let stream = Stream::new(seed, u64::from(id.0));
            self.set_param(id, &|local| self.init(local, stream))?;
        }
        // No step needs memory of these sizes again.
        self.backend.trim();
        Ok(())
    }

    /// Fills a stretch of a parameter as its spec says.
    fn init(&self, local: &Local, stream: Stream) -> Result<()> {
        let spec = self.layout.param(local.param);
        let mut values = Vec::new();
        for (range, mut piece) in pieces(&local.tensor)? {
            values.clear();
            values.resize(range.len(), if spec.init == Init::Zeros { 0.0f32 } else { 1.0 });
            let at = (local.range.start + range.start) as u64;
            match spec.init {
                Init::Normal => stream.fill_normal_from(at, &mut values, 0.02),
                Init::Uniform => {
                    let columns = spec.shape.rows_cols().1 as f64;
                    stream.fill_uniform_from(at, &mut values, 1.0 / columns.sqrt());
                }
                Init::Ones | Init::Zeros => {}
            }
            let source = self.backend.from_f32([values.len()], DType::F32, &values)?;
            self.backend.copy(&mut piece, &source)?;
        }
        Ok(())
    }

    /// Lets `fill` write what this rank holds of a parameter. One in 4 bits is filled whole, and packed then.
    pub(crate) fn set_param(&self, id: ParamId, fill: &dyn Fn(&Local) -> Result<()>) -> Result<()> {
        let held = self.params[id.0 as usize].group;
        let group = &self.groups[held.0];
        if group.kind != ParamKind::Nf4 {
            let all = self.local_of(held, &group.home)?;
            return all.iter().filter(|local| local.param == id).try_for_each(fill);
        }
        let len = self.layout.param(id).shape.num_elements();
        let whole = self.backend.alloc(Shape::from([len]), self.dtype)?;
        fill(&Local { param: id, range: 0..len, tensor: whole.clone() })?;
        let mut packed = self.backend.alloc(Shape::from([packed_bytes(len)]), DType::U8)?;
        self.backend.nf4_quantise(&mut packed, &whole)?;
        for stretch in group.group.stretches(self.shards.rank()).filter(|stretch| stretch.param == id) {
            let mut home = group.home.rows(stretch.in_shard)?;
            self.backend.copy(&mut home, &packed.rows(stretch.of_param)?)?;
        }
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
        for group in &mut self.groups {
            group.reduced = Reach::Nothing;
            group.visits = 0;
            group.values = Values::Away;
        }
        Ok(())
    }

    /// The norm of all gradients of the running step together, over all ranks; 0 if updates ran inside backward.
    pub fn gradient_norm(&mut self) -> Result<f64> {
        self.finish_reducing()?;
        let mut sum = 0.0;
        for id in self.trained_groups() {
            if let Some(grads) = self.reduced_gradients(id)? {
                sum += self.backend.sum_of_squares(&grads)?;
            }
        }
        Ok(self.over_shards(sum)?.sqrt())
    }

    /// Whether no weight that is trained has become infinite, NaN, or so large that its square is.
    pub fn weights_are_finite(&self) -> Result<bool> {
        let mut sum = 0.0;
        for id in self.trained_groups() {
            sum += self.backend.sum_of_squares(&self.groups[id.0].home)?;
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
            for id in self.trained_groups() {
                self.step_group(id, grad_scale)?;
            }
        }
        self.step += 1;
        Ok(())
    }

    /// Allocates the optimizer states, for filling them from a checkpoint taken after `step` steps.
    pub(crate) fn restore_optimizer(&mut self, step: u64) -> Result<()> {
        self.step = step;
        for id in self.trained_groups() {
            self.ensure_states(id)?;
        }
        Ok(())
    }

    /// Updates this rank's shard of one group.
    pub(crate) fn step_group(&mut self, id: GroupId, grad_scale: f32) -> Result<()> {
        let Some(grads) = self.reduced_gradients(id)? else { return Ok(()) };
        let unit = self.groups[id.0].unit;
        let _span = self.backend.span(|| format!("update unit {}", unit.0));
        self.ensure_states(id)?;
        let scale = StepScale { lr: self.lr, step: self.step + 1, grad_scale };
        let optimizer = self.optimizer.as_ref().expect("training sets an optimizer first");
        let GroupState { group, home, states, .. } = &mut self.groups[id.0];
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

impl GroupState {
    fn new(unit: UnitId, kind: ParamKind, group: Group, unpacked: Option<Group>, home: Tensor) -> Self {
        Self {
            unit,
            kind,
            group,
            unpacked,
            home,
            values: Values::Away,
            visits: 0,
            grads: None,
            shard_grads: None,
            reduced: Reach::Nothing,
            states: Vec::new(),
        }
    }

    /// How the values lie where they are used.
    pub(crate) fn of_values(&self) -> &Group {
        self.unpacked.as_ref().unwrap_or(&self.group)
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
