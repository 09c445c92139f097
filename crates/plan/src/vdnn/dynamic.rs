//! vDNN's dynamic policy: takes the first of the paper's passes that fits.
//!
//! ```text
//! all(m) fits?            no -> the last two passes, with prefetches only where they fit
//! none(p) fits?           yes -> nothing moves
//! conv(p), all(p) fit?    yes -> the first that does
//! greedy conv, greedy all each layer the fastest algorithm that does not overflow the budget
//! all(m)
//! ```
//!
//! The paper does not specify the case of no room for a prefetch; here the map is fetched on demand. If division is allowed, the greedy passes divide
//! mini-batches to make room for faster algorithms.
//!
//! **Source**: Rhu et al. 2016, 3.3.

use tightfit_place::Effort;

use crate::attempts::PolicyResult;
use crate::memory::arena::{Draft, Drafter};
use crate::schedule::script::Script;
use crate::vdnn::scripts::{Offloads, limited, script};
use crate::vdnn::smallest::Smallest;
use crate::{Algorithms, Attempt};

/// The passes after the feasibility test, in order; the tested pass itself comes last.
const PASSES: [(&str, Offloads, Algorithms); 5] = [
    ("none(p)", Offloads::None, Algorithms::Performance),
    ("conv(p)", Offloads::Convolutions, Algorithms::Performance),
    ("all(p)", Offloads::All, Algorithms::Performance),
    ("greedy conv", Offloads::Convolutions, Algorithms::Fit),
    ("greedy all", Offloads::All, Algorithms::Fit),
];

/// The passes if the test fails; the last one needs the least memory.
const LIMITED: [(&str, Offloads, Algorithms); 3] = [
    ("greedy conv, limited", Offloads::Convolutions, Algorithms::Fit),
    ("greedy all, limited", Offloads::All, Algorithms::Fit),
    ("all(m), limited", Offloads::All, Algorithms::Memory),
];

pub(crate) fn choose(drafter: &Drafter<'_>, floors: &Smallest) -> Result<PolicyResult, Vec<Attempt>> {
    let mut passes = Passes { drafter, attempts: vec![floors.all.attempt("all(m)", &drafter.options)], chosen: None };
    if floors.all.fits(&drafter.options) {
        for (name, moved, algorithms) in PASSES {
            passes.run(name, || drafter.draft(&script(drafter, moved, None), algorithms, Effort::Plan));
        }
        passes.run("all(m)", || floors.all.clone());
    } else {
        // In very small networks, copying back can take more memory than keeping everything.
        passes.run("none(p)", || {
            drafter.draft(&Script::new(drafter.step.operations.len()), Algorithms::Performance, Effort::Plan)
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
        Some(draft) => Ok(PolicyResult { draft, attempts: passes.attempts, bound: None }),
        None => Err(passes.attempts),
    }
}

/// The passes so far; the first one that fits ends the search.
struct Passes<'a> {
    drafter: &'a Drafter<'a>,
    attempts: Vec<Attempt>,
    chosen: Option<Draft>,
}

impl Passes<'_> {
    fn run(&mut self, name: &str, draft: impl FnOnce() -> Draft) {
        if self.chosen.is_some() {
            return;
        }
        let draft = draft();
        let mut attempt = draft.attempt(name, &self.drafter.options);
        attempt.taken = attempt.fits;
        self.attempts.push(attempt);
        self.chosen = Some(draft).filter(|draft| draft.fits(&self.drafter.options));
    }
}
