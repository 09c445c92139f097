//! The network-wide baseline: all maps for the whole step, as frameworks allocated them; only gradient maps share bytes.
//!
//! **Source**: Rhu et al. 2016, 4.1. The paper's baseline has one dX and one dY as large as the largest; here each
//! gradient map takes bytes only while it is needed, which is no more, and right for networks that fork.

use crate::plan::script::Script;
use crate::plan::step::Step;

pub(super) fn script(step: &Step) -> Script {
    Script::network_wide(step.operations.len())
}
