//! Plain checkpointing, to compare with.

use tightfit_place::Effort;

use crate::Algorithms;
use crate::attempts::{Attempts, PolicyResult};
use crate::memory::arena::Drafter;
use crate::search::decisions::checkpoints;
use crate::search::local::{Search, Work};
use crate::search::model::Model;
use crate::stop::End;
use crate::threads::on_threads;

/// The numbers of segments to try.
const SEGMENTS: [usize; 13] = [2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48];

/// The fastest checkpointing plan that fits. It keeps the tensors that cross the cuts between segments of equal bytes, recomputes everything else of
/// the forward pass, and moves nothing. `None` if none fits.
pub(crate) fn checkpointing(drafter: &Drafter<'_>) -> Option<PolicyResult> {
    let model = Model::of(drafter);
    let drafts = on_threads(SEGMENTS.len(), |place| {
        let decisions = checkpoints(&model, SEGMENTS[place]);
        let mut search = Search::new(&model, u64::MAX >> 1, 0);
        search.evaluate(&decisions, &mut Work { visits: u64::MAX, end: End::default() })?;
        let script = search.evaluator().script();
        Some(drafter.draft(&script, Algorithms::Fit, Effort::Draft))
    });
    let mut attempts = Attempts::new(drafter);
    for (segments, draft) in SEGMENTS.iter().zip(drafts) {
        draft.into_iter().for_each(|draft| _ = attempts.consider(&format!("{segments} segments"), draft));
    }
    attempts.outcome().ok()
}
