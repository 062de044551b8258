//! The whole values of a unit on the computing device: brought before a visit, given up after it.
//!
//! With one shard the home is the whole and nothing moves. With several, a visit gathers the groups it needs and starts
//! gathering the next visit's, which travel while this one computes.

use dist::Pending;
use tensor::{Phase, Shape, Tensor, UnitId};

use crate::store::GroupId;
use crate::{ParamStore, Result};

/// A group's values on the computing device.
#[derive(Debug)]
pub(crate) enum Values {
    /// Not here.
    Away,
    /// On their way.
    Coming(Pending<Tensor>),
    /// Here, flat.
    Here(Tensor),
}

impl ParamStore {
    /// Brings the values that a visit of `unit` needs and starts bringing those of the next visit.
    pub(crate) fn bring(&mut self, unit: UnitId, phase: Phase) -> Result<()> {
        let next = match phase {
            Phase::Forward | Phase::Inference => Some(unit.0 as usize + 1),
            Phase::Backward => (unit.0 as usize).checked_sub(1).filter(|&next| next >= self.lowest_trained),
        };
        let next = next.filter(|&next| next < self.units.len());
        for index in [Some(unit.0 as usize), next].into_iter().flatten() {
            for at in 0..self.units[index].needs.len() {
                self.start_bringing(self.units[index].needs[at])?;
            }
        }
        for at in 0..self.units[unit.0 as usize].needs.len() {
            let id = self.units[unit.0 as usize].needs[at];
            self.groups[id.0].visits += 1;
            self.arrive(id)?;
        }
        self.note_held();
        Ok(())
    }

    fn start_bringing(&mut self, id: GroupId) -> Result<()> {
        let group = &mut self.groups[id.0];
        if !matches!(group.values, Values::Away) {
            return Ok(());
        }
        if self.shards.world_size() > 1 {
            let whole = self.backend.alloc(Shape::from([group.group.len]), group.home.dtype())?;
            group.values = Values::Coming(self.shards.all_gather(&self.backend, whole, &group.home));
        }
        Ok(())
    }

    /// Waits for a group's values and unpacks them.
    fn arrive(&mut self, id: GroupId) -> Result<()> {
        let group = &mut self.groups[id.0];
        let flat = match std::mem::replace(&mut group.values, Values::Away) {
            Values::Here(values) => {
                group.values = Values::Here(values);
                return Ok(());
            }
            Values::Coming(pending) => {
                let _span = self.backend.span(|| "wait for parameters");
                pending.wait()?
            }
            // With one shard the home is the whole.
            Values::Away => group.home.clone(),
        };
        let values = match &group.unpacked {
            None => flat,
            Some(unpacked) => {
                let _span = self.backend.span(|| "unpack parameters");
                let dense = self.backend.alloc(Shape::from([unpacked.len]), self.dtype)?;
                for ((_, packed), (_, range)) in group.group.slots.iter().zip(&unpacked.slots) {
                    self.backend.nf4_dequantise(&mut dense.rows(range.clone())?, &flat.rows(packed.clone())?)?;
                }
                dense
            }
        };
        self.groups[id.0].values = Values::Here(values);
        Ok(())
    }

    /// The values of a group that [`ParamStore::bring`] brought.
    pub(crate) fn here(&self, id: GroupId) -> &Tensor {
        match &self.groups[id.0].values {
            Values::Here(values) => values,
            _ => panic!("a visit brings the values that it uses"),
        }
    }

    /// Ends a visit of `unit`: gives up what no running or soon coming visit uses.
    pub(crate) fn give_up(&mut self, unit: UnitId, phase: Phase) {
        let is_last = unit.0 as usize + 1 == self.units.len();
        for at in 0..self.units[unit.0 as usize].needs.len() {
            let group = &mut self.groups[self.units[unit.0 as usize].needs[at].0];
            group.visits -= 1;
            let used_soon = match phase {
                Phase::Inference => false,
                // The last unit's backward visit comes at once.
                Phase::Forward => is_last || !self.policy.reshard_after_forward,
                Phase::Backward => {
                    let waits = group.group.slots.iter().any(|(id, _)| self.params[id.0 as usize].pending_uses > 0);
                    waits && !self.policy.reshard_after_forward
                }
            };
            if group.visits == 0 && !used_soon {
                group.values = Values::Away;
            }
        }
    }
}
