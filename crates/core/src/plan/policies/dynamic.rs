//! vDNN's dynamic policy: the first of the paper's passes that fits.
//!
//! ```text
//! all(m) fits?            no -> the last two passes, with prefetches only where they fit
//! none(p) fits?           yes -> nothing moves
//! conv(p), all(p) fit?    yes -> the first that does
//! greedy conv, greedy all each layer the fastest algorithm that does not overflow the budget
//! all(m)
//! ```
//!
//! The paper does not say what becomes of a prefetch for which there are no bytes; here its map is fetched on demand. With
//! division allowed, the greedy passes divide mini-batches where that lets a faster algorithm in.
//!
//! **Source**: Rhu et al. 2016, 3.3.

use super::vdnn::{self, Moved, Room};
use super::{Chosen, Floors};
use crate::Error;
use crate::plan::draft::{Draft, Drafter};
use crate::plan::place::Effort;
use crate::plan::script::Script;
use crate::plan::{Algorithms, Decision};

/// The passes after the test of feasibility, in order; after them comes what was tested.
const PASSES: [(&str, Moved, Algorithms); 5] = [
    ("none(p)", Moved::None, Algorithms::Performance),
    ("conv(p)", Moved::Convolutions, Algorithms::Performance),
    ("all(p)", Moved::All, Algorithms::Performance),
    ("greedy conv", Moved::Convolutions, Algorithms::Fit),
    ("greedy all", Moved::All, Algorithms::Fit),
];

/// The passes where the test fails, the last of which needs the fewest bytes.
const LIMITED: [(&str, Moved, Algorithms); 3] = [
    ("greedy conv, limited", Moved::Convolutions, Algorithms::Fit),
    ("greedy all, limited", Moved::All, Algorithms::Fit),
    ("all(m), limited", Moved::All, Algorithms::Memory),
];

pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<Chosen, Error> {
    let mut passes = Passes { drafter, decisions: vec![floors.all.decision("all(m)", &drafter.options)], chosen: None };
    if floors.all.fits(&drafter.options) {
        for (name, moved, algorithms) in PASSES {
            let script = || vdnn::script(drafter, moved, None);
            passes.run(name, || drafter.draft(&script(), algorithms, Effort::Plan));
        }
        passes.run("all(m)", || floors.all.clone());
    } else {
        // Copies back can take more bytes than staying does, as in very small networks.
        passes.run("none(p)", || {
            let script = vdnn::script(drafter, Moved::None, None);
            drafter.draft(&script, Algorithms::Performance, Effort::Plan)
        });
        for (name, moved, algorithms) in LIMITED {
            passes.run(name, || {
                drafter.draft(&limited(drafter, moved, drafter.options.budget.0), algorithms, Effort::Plan)
            });
        }
        passes.run("all(m), on demand", || floors.on_demand.clone());
        passes.run("conv(m)", || floors.conv.clone());
        passes.run("none(m)", || floors.none.clone());
    }
    match passes.chosen {
        Some(draft) => Ok(Chosen { draft, decisions: passes.decisions }),
        None => Err(drafter.too_large(floors.of_policy(drafter.options.policy), &passes.decisions, floors.least())),
    }
}

/// The script of a static policy with prefetches only where `limit` leaves bytes for them.
pub(super) fn limited(drafter: &Drafter<'_>, moved: Moved, limit: u64) -> Script {
    let room = Room { live: drafter.live(), limit };
    vdnn::script(drafter, moved, Some(room))
}

/// The passes so far; once one fits, no more are made.
struct Passes<'a> {
    drafter: &'a Drafter<'a>,
    decisions: Vec<Decision>,
    chosen: Option<Draft>,
}

impl Passes<'_> {
    fn run(&mut self, name: &str, draft: impl FnOnce() -> Draft) {
        if self.chosen.is_some() {
            return;
        }
        let draft = draft();
        let mut decision = draft.decision(name, &self.drafter.options);
        decision.taken = decision.fits;
        self.decisions.push(decision);
        self.chosen = Some(draft).filter(|draft| draft.fits(&self.drafter.options));
    }
}
