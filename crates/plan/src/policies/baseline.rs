//! The network-wide baseline: all maps stay for the whole step, as in frameworks of the time; only gradient maps share
//! memory.
//!
//! **Source**: Rhu et al. 2016, 4.1. The paper's baseline has one dX and one dY of the largest size. Here each gradient
//! map takes memory only while needed, which needs no more memory and also works for networks with forks.

use crate::script::Script;
use crate::step::Step;

pub(super) fn script(step: &Step) -> Script {
    Script::network_wide(step.operations.len())
}
