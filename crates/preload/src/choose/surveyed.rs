//! Marks in the cache for questions that were fully measured. A later process then answers from the cache alone and
//! sets up no candidate but the winner.

use tightfit_conv::{Candidate, Device};
use tightfit_profile::Mark;

use super::cache::CacheFile;
use super::chooser::admission;
use crate::kernel::Question;
use crate::log::trace;
use crate::settings::{Limit, Settings, Terms, Tune};

/// A survey, identified by everything it depends on.
pub(super) struct Survey<'a> {
    cache: &'a CacheFile,
    settings: &'a Settings,
    tune: Tune,
    device: &'a Device,
    mark: Mark,
}

impl<'a> Survey<'a> {
    /// The survey of a question on these terms.
    pub fn new(
        cache: &'a CacheFile,
        question: &Question,
        terms: Terms,
        settings: &'a Settings,
        device: &'a Device,
    ) -> Survey<'a> {
        let total = if matches!(terms.limit, Limit::Total(_)) { " total" } else { "" };
        let sizes = format!("{}{total}", terms.division());
        let (limit, admission) = (terms.limit.bytes(), admission(question, settings));
        let mark = Mark { problem: question.problem, sizes, limit, admission };
        Survey { cache, settings, tune: terms.tune, device, mark }
    }

    /// Whether this process or another has made it before.
    pub fn is_done(&self) -> bool {
        let Some(cache) = self.cache.open(self.settings, self.tune) else { return false };
        self.cache.read(cache.is_surveyed(self.device, &self.mark)).unwrap_or(false)
    }

    /// Marks it as made, with these candidates. If a candidate was not saved, or the mark cannot be written, the next
    /// process measures what the cache lacks.
    pub fn set_done(&self, candidates: &[Candidate]) {
        let Some(cache) = self.cache.open(self.settings, self.tune) else { return };
        let marked = cache.mark_surveyed(self.device, &self.mark, candidates);
        if let Err(error) = marked.and_then(|_| cache.settle()) {
            trace!("could not mark {} as fully measured: {}", self.mark.problem, error.chain());
        }
    }
}
