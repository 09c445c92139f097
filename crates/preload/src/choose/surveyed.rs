//! Which questions were measured to the end, as the cache itself knows them. A later process then takes its answer from the
//! cache alone, without setting up a single candidate but the winner.

use tightfit_core::profile::Mark;
use tightfit_core::{Bytes, Candidate, Device};

use super::admission;
use super::cache::{cache, read};
use crate::kernel::Question;
use crate::log::tell;
use crate::settings::{Limit, Settings};

/// One survey, by all that it depends on.
pub(super) struct Survey<'a> {
    settings: &'a Settings,
    device: &'a Device,
    mark: Mark,
}

impl<'a> Survey<'a> {
    /// What measuring a question under a limit surveys.
    pub fn new(question: &Question, limit: Bytes, settings: &'a Settings, device: &'a Device) -> Survey<'a> {
        let total = if matches!(settings.limit, Limit::Total(_)) { " total" } else { "" };
        let sizes = format!("{}{total}", settings.policy);
        let mark = Mark { problem: question.problem, sizes, limit, admission: admission(question, settings) };
        Survey { settings, device, mark }
    }

    /// Whether it was made before, by this process or another.
    pub fn is_done(&self) -> bool {
        let Some(cache) = cache(self.settings) else { return false };
        read(cache.is_surveyed(self.device, &self.mark)).unwrap_or(false)
    }

    /// Says that it was made, and found these candidates. Where one of them was not kept, or that cannot be written, the next
    /// process measures what the cache lacks.
    pub fn set_done(&self, candidates: &[Candidate]) {
        let Some(cache) = cache(self.settings) else { return };
        let marked = cache.mark_surveyed(self.device, &self.mark, candidates);
        if let Err(error) = marked.and_then(|_| cache.settle()) {
            tell!("that {} was measured to the end was not kept: {}", self.mark.problem, error.chain());
        }
    }
}
