//! Which questions were measured to the end, beside the cache: a line of text for each. A later process then takes its answer
//! from the cache alone, without setting up a single candidate but the winner.

use std::collections::HashSet;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

use tightfit_core::{Bytes, Device};

use super::admission;
use super::cache::cache;
use crate::kernel::Question;
use crate::log::tell;
use crate::settings::{Limit, Settings};

/// Lines that are known to be in the file; none before it was read.
static DONE: Mutex<Option<HashSet<String>>> = Mutex::new(None);

/// One survey, by all that it depends on.
pub(super) struct Survey {
    line: String,
}

impl Survey {
    /// What measuring a question under a limit surveys.
    pub fn new(question: &Question, limit: Bytes, settings: &Settings, device: &Device) -> Survey {
        let admission = admission(question, settings);
        let class = admission.class.map_or("any".to_owned(), |class| class.0.to_string());
        let of_total = if matches!(settings.limit, Limit::Total(_)) { "total " } else { "" };
        let Bytes(bytes) = limit;
        let (policy, deterministic, without) = (settings.policy, admission.deterministic, admission.without.0);
        let problem = question.problem;
        Survey {
            line: format!("{device}\t{problem}\t{policy}\t{of_total}{bytes}\t{deterministic}\t{class}\t{without}"),
        }
    }

    /// Whether it was made before, by this process or another.
    pub fn is_done(&self, settings: &Settings) -> bool {
        let Some(cache) = cache(settings) else { return false };
        let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
        if done.as_ref().is_some_and(|done| done.contains(&self.line)) {
            return true;
        }
        // Another process may have made it since. A line that is still being written is not equal to any.
        let text = std::fs::read_to_string(cache.path().with_extension("surveyed")).unwrap_or_default();
        let lines: HashSet<String> = text.lines().map(str::to_owned).collect();
        done.insert(lines).contains(&self.line)
    }

    /// Says that it was made. Where that cannot be written, the next process measures what the cache lacks.
    pub fn set_done(&self, settings: &Settings) {
        let Some(cache) = cache(settings) else { return };
        let path = cache.path().with_extension("surveyed");
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        // One write, which other processes' writes do not part.
        if let Err(error) = file.and_then(|mut file| file.write_all(format!("{}\n", self.line).as_bytes())) {
            tell!("{}: {error}", path.display());
        }
    }
}
