//! Answers that divide a convolution into slices.
//!
//! ```text
//! measure     by the framework's own engine, before anything is timed: where not even one sample fits, every other engine
//!             may be several times slower. It reads views or, where it refuses them, copies. It computes small slices right
//!             first, for which the plan waits a little
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Problem};
use tightfit_cuda::{Guest, Host, must_be_proven, on_copies};
use tightfit_profile::survey::{Divide, Slicing};
use tightfit_units::{Bytes, Nanos};

use super::chooser::{Chooser, admission};
use super::proof::Prover;
use crate::kernel::Question;
use crate::session::Session;
use crate::settings::{Settings, Terms};

impl Chooser {
    /// The largest slices within the limit. Empty if samples fit as a whole, or if no slices fit.
    pub(super) fn in_slices(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
        host: &Arc<Host>,
    ) -> Option<Configuration> {
        let (problem, own, limit) = (&question.problem, &question.chosen.algorithm, terms.limit.bytes());
        let is_asked_for = terms.slices() && problem.batch() <= Divide::SMALL && question.chosen.workspace > limit;
        if !is_asked_for || !admission(question, settings).admits(question.chosen.notes) {
            return None;
        }
        let block = problem.with_batch(if terms.divide == Divide::Space { problem.batch() } else { 1 }).ok()?;
        let fits = |workspace: Bytes| workspace + Guest::division_workspace(problem) <= limit;
        if session.guest.workspace(&block, own).ok()?.is_some_and(fits) {
            return None;
        }
        let slicings = Slicing::axes(block);
        let sizes = |slicing: Slicing| slicing.ladder().into_iter().map(move |size| (slicing, size));
        let (engine, slicing, size, workspace) =
            [Some(own.clone()), on_copies(own)].into_iter().flatten().find_map(|engine| {
                slicings.iter().copied().flat_map(sizes).find_map(|(slicing, size)| {
                    let workspace = largest(&slicing.parts(size)?, &mut session.guest, &engine)?;
                    fits(workspace).then(|| (engine.clone(), slicing, size, workspace))
                })
            })?;
        let device = session.guest.device().clone();
        let cached = |problem: &Problem| self.cached(problem, settings, &device);
        let prover = Prover { proofs: self.proofs(), device: question.device, host, cached: &cached };
        let parts: BTreeSet<Problem> = slicing.parts(size)?.into_iter().filter(must_be_proven).collect();
        if !parts.iter().all(|part| prover.is_soon_right(part, &engine)) {
            return None;
        }
        let algorithm = slicing.slices(size, &engine).ok()?;
        let part = Candidate { micro_batch: block.batch(), algorithm, time: Nanos::ZERO, workspace };
        let cost = DivisionCost { time: Nanos::ZERO, workspace: Guest::division_workspace(problem) };
        let configuration = Configuration::new(vec![part; problem.batch() / block.batch()], cost);
        session.set_up(question, &configuration).map(|_| configuration)
    }
}

/// The largest workspace of these slices by an engine, or `None` if it refuses one.
fn largest(parts: &[Problem], guest: &mut Guest, engine: &Algorithm) -> Option<Bytes> {
    let distinct: BTreeSet<&Problem> = parts.iter().collect();
    let mut largest = Bytes::ZERO;
    for part in distinct {
        largest = largest.max(guest.workspace(part, engine).ok()??);
    }
    Some(largest)
}
