//! vDNN's dynamic policy: the first of the paper's passes that fits.
//!
//! ```text
//! all(m) fits?            no -> nothing will
//! none(p) fits?           yes -> nothing moves
//! conv(p), all(p) fit?    yes -> the first that does
//! greedy conv, greedy all each layer the fastest algorithm that does not overflow the budget
//! all(m)
//! ```
//!
//! **Source**: Rhu et al. 2016, 3.3. With division allowed, the greedy passes divide mini-batches where that lets a faster
//! algorithm in.

use super::vdnn::{self, Moved};
use super::{Chosen, Floors};
use crate::Error;
use crate::plan::Algorithms;
use crate::plan::draft::{Draft, Drafter};

/// The passes after the test of feasibility, in order.
const PASSES: [(&str, Moved, Algorithms); 8] = [
    ("none(p)", Moved::None, Algorithms::Performance),
    ("conv(p)", Moved::Convolutions, Algorithms::Performance),
    ("all(p)", Moved::All, Algorithms::Performance),
    ("greedy conv", Moved::Convolutions, Algorithms::Fit),
    ("greedy all", Moved::All, Algorithms::Fit),
    ("all(m)", Moved::All, Algorithms::Memory),
    // Where copies back take more bytes than staying does, as in very small networks.
    ("conv(m)", Moved::Convolutions, Algorithms::Memory),
    ("none(m)", Moved::None, Algorithms::Memory),
];

pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<Chosen, Error> {
    let options = &drafter.options;
    let mut decisions = vec![floors.all.decision("all(m)", options)];
    for (name, moved, algorithms) in PASSES {
        let draft: Draft = match (moved, algorithms) {
            (Moved::All, Algorithms::Memory) => floors.all.clone(),
            (Moved::Convolutions, Algorithms::Memory) => floors.conv.clone(),
            (Moved::None, Algorithms::Memory) => floors.none.clone(),
            _ => drafter.draft(&vdnn::script(drafter.workload, drafter.program, moved), algorithms),
        };
        let mut decision = draft.decision(name, options);
        decision.taken = decision.fits;
        let taken = decision.taken;
        decisions.push(decision);
        if taken {
            return Ok(Chosen { draft, decisions });
        }
    }
    Err(drafter.too_large(floors.of_policy(options.policy), floors))
}
