//! The whole values of a unit on the computing device: brought before a visit, given up after it.
//!
//! With one shard the home is the whole and nothing moves. With several, a visit gathers the groups it needs and starts
//! gathering the next visit's, which travel while this one computes.

use dist::Pending;
use tensor::{Phase, Shape, Tensor, UnitId};

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
            Phase::Backward => (unit.0 as usize).checked_sub(1),
        };
        let next = next.filter(|&next| next < self.units.len());
        for index in [Some(unit.0 as usize), next].into_iter().flatten() {
            for at in 0..self.units[index].owners.len() {
                self.start_bringing(self.units[index].owners[at])?;
            }
        }
        self.note_held();
        for at in 0..self.units[unit.0 as usize].owners.len() {
            let owner = self.units[unit.0 as usize].owners[at];
            let state = &mut self.units[owner.0 as usize];
            state.visits += 1;
            if let Values::Coming(_) = state.values
                && let Values::Coming(pending) = std::mem::replace(&mut state.values, Values::Away)
            {
                let _span = self.backend.span(|| "wait for parameters");
                state.values = Values::Here(pending.wait()?);
            }
        }
        Ok(())
    }

    fn start_bringing(&mut self, owner: UnitId) -> Result<()> {
        let state = &mut self.units[owner.0 as usize];
        if !matches!(state.values, Values::Away) {
            return Ok(());
        }
        state.values = if self.shards.world_size() == 1 {
            Values::Here(state.home.clone())
        } else {
            let whole = self.backend.alloc(Shape::from([state.group.len]), state.home.dtype())?;
            Values::Coming(self.shards.all_gather(&self.backend, whole, &state.home))
        };
        Ok(())
    }

    /// The values of a unit that [`ParamStore::bring`] brought.
    pub(crate) fn here(&self, owner: UnitId) -> &Tensor {
        match &self.units[owner.0 as usize].values {
            Values::Here(values) => values,
            _ => panic!("a visit brings the values that it uses"),
        }
    }

    /// Ends a visit of `unit`: gives up what no running or soon coming visit uses.
    pub(crate) fn give_up(&mut self, unit: UnitId, phase: Phase) {
        let is_last = unit.0 as usize + 1 == self.units.len();
        for at in 0..self.units[unit.0 as usize].owners.len() {
            let owner = self.units[unit.0 as usize].owners[at];
            let state = &mut self.units[owner.0 as usize];
            state.visits -= 1;
            let used_soon = match phase {
                Phase::Inference => false,
                // The last unit's backward visit comes at once.
                Phase::Forward => is_last || !self.policy.reshard_after_forward,
                Phase::Backward => {
                    let waits = state.group.slots.iter().any(|(id, _)| self.params[id.0 as usize].pending_uses > 0);
                    waits && !self.policy.reshard_after_forward
                }
            };
            if state.visits == 0 && !used_soon {
                state.values = Values::Away;
            }
        }
    }
}
