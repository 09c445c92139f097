//! The actions of instructions, as both schedule files write them. Each file has a separate form for computations.

use serde::{Deserialize, Serialize};

use crate::{Action, BlockId, Compute, HostBlockId, InstructionId};

/// The keys are a stable format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ActionObject<C> {
    Allocate(BlockId),
    Release(BlockId),
    Compute(Box<C>),
    Offload(BlockId, HostBlockId),
    Prefetch(HostBlockId, BlockId),
    Wait(InstructionId),
}

impl<C> ActionObject<C> {
    /// The object of an action, with `written` for a computation.
    pub fn of(action: &Action, written: impl FnOnce(&Compute) -> C) -> ActionObject<C> {
        match action {
            Action::Allocate(block) => ActionObject::Allocate(*block),
            Action::Release(block) => ActionObject::Release(*block),
            Action::Offload(block, host) => ActionObject::Offload(*block, *host),
            Action::Prefetch(host, block) => ActionObject::Prefetch(*host, *block),
            Action::Wait(on) => ActionObject::Wait(*on),
            Action::Compute(compute) => ActionObject::Compute(Box::new(written(compute))),
        }
    }

    /// The action, with `read` for a computation; its error, if it has one.
    pub fn action<E>(self, read: impl FnOnce(C) -> Result<Compute, E>) -> Result<Action, E> {
        Ok(match self {
            ActionObject::Allocate(block) => Action::Allocate(block),
            ActionObject::Release(block) => Action::Release(block),
            ActionObject::Offload(block, host) => Action::Offload(block, host),
            ActionObject::Prefetch(host, block) => Action::Prefetch(host, block),
            ActionObject::Wait(on) => Action::Wait(on),
            ActionObject::Compute(compute) => Action::Compute(Box::new(read(*compute)?)),
        })
    }
}
