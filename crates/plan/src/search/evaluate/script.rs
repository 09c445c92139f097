//! Start times of copies back, and the script of the decisions.

use crate::schedule::script::{Move, Script};
use crate::search::evaluate::trace::Fetch;
use crate::search::evaluate::{Evaluator, PREFETCH_LEAD};
use crate::step::{OperationId, TensorId};

impl Evaluator<'_, '_> {
    /// Places the copies back, each as late as its time allows, or later if memory is short. Returns the time for which
    /// computations wait for them, and the moments at which any of them was counted.
    pub(super) fn come_back(&mut self) -> (u64, usize) {
        let (fetches, moments) = (&self.trace.fetches, &self.trace.moments);
        self.live.clone_from(&self.trace.live);
        self.prefetches.clear();
        let mut next = u64::MAX;
        let mut begin_by = vec![0; fetches.len()];
        for (fetch, begin_by) in fetches.iter().zip(&mut begin_by).rev() {
            let end = moments[fetch.needed].start.min(next);
            *begin_by = end.saturating_sub(self.model.copies[fetch.interval].1 * PREFETCH_LEAD);
            next = *begin_by;
        }
        let (mut earliest, mut free, mut stall, mut counted) = (0, 0, 0, 0);
        for (fetch, begin_by) in fetches.iter().zip(begin_by) {
            let Fetch { tensor, interval, from, needed } = *fetch;
            let bytes = self.model.bytes[tensor];
            let in_time = moments.partition_point(|moment| moment.start <= begin_by).saturating_sub(1);
            let mut at = in_time.max(earliest).max(from).min(needed);
            counted += needed - at;
            let limit = self.limit;
            if let Some(full) = self.live[at..needed].iter().rposition(|live| live + bytes > limit) {
                at += full + 1;
            }
            self.live[at..needed].iter_mut().for_each(|live| *live += bytes);
            self.prefetches.push((at, Move::Prefetch(TensorId(tensor))));
            earliest = at;
            free = (moments[at].start + stall).max(free) + self.model.copies[interval].1;
            stall += free.saturating_sub(moments[needed].start + stall);
        }
        (stall, counted)
    }

    /// The script of the decisions that were evaluated last.
    pub(in crate::search) fn script(&self) -> Script {
        let moments = &self.trace.moments;
        let mut script = Script::with_releases(self.model.touches.len());
        // By moment: first the actions after the previous moment, then the prefetches before this one.
        let after = self.trace.moves.iter().map(|(place, what)| (*place, false, *what));
        let before = self.prefetches.iter().map(|(place, what)| (*place, true, *what));
        let mut moves: Vec<(usize, bool, Move)> = after.chain(before).collect();
        moves.sort_by_key(|(place, is_before, _)| (*place, *is_before));
        let mut moves = moves.into_iter().peekable();
        let mut last: Option<usize> = None;
        for (place, moment) in moments.iter().enumerate() {
            while let Some((_, is_before, what)) = moves.next_if(|(of, ..)| *of <= place) {
                match last {
                    // The list before an operation also holds the actions after a rerun.
                    Some(last) if !is_before && moments[place - 1].last() == last && !moments[place - 1].again => {
                        script.after(last, what)
                    }
                    _ => script.before(moment.at(), what),
                }
            }
            if moment.again {
                script.before(moment.at(), Move::Rerun(OperationId(moment.operation())));
            } else {
                last = Some(moment.last());
            }
        }
        if let Some(last) = last {
            moves.for_each(|(.., what)| script.after(last, what));
        }
        script
    }
}
