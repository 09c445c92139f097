//! The inputs of choosing.

use std::collections::HashMap;
use std::sync::Mutex;

use tightfit_conv::{Candidate, Device, DivisionCost, Notes, Types};
use tightfit_profile::{Admission, Cache, ComparisonKey};
use tightfit_units::Nanos;

use super::cache::CacheFile;
use super::measurements::Measurements;
use super::proof::Proofs;
use super::shipped::Stores;
use super::spending::Spending;
use super::unsaved::Unsaved;
use crate::judge::Errors;
use crate::kernel::Question;
use crate::settings::{Settings, Tune};
use crate::torch;

/// Facts about a problem's candidates, and about the framework's choice among them.
#[derive(Clone)]
pub(super) struct Knowledge {
    pub candidates: Vec<Candidate>,
    pub cost: DivisionCost,
    pub framework_time: Option<Nanos>,
}

/// The comparisons on each device, read from the cache when first asked for.
type Compared = Mutex<HashMap<(Device, ComparisonKey), Errors>>;

/// Chooses configurations, and keeps the data for it.
#[derive(Default)]
pub struct Chooser {
    pub(super) cache: CacheFile,
    pub(super) shipped: Stores,
    pub(super) measurements: Measurements,
    pub(super) spending: Spending,
    pub(super) proofs: Proofs,
    pub(super) unsaved: Unsaved,
    pub(super) compared: Compared,
}

impl Chooser {
    /// The cache, or `None` if the settings name none or it cannot be opened.
    pub fn cache(&self, settings: &Settings, tune: Tune) -> Option<&Cache> {
        self.cache.open(settings, tune)
    }

    /// Which algorithms compute slices right.
    pub fn proofs(&self) -> &Proofs {
        &self.proofs
    }

    /// The cost of choosing.
    pub fn spending(&self) -> &Spending {
        &self.spending
    }
}

/// Whether the settings or the program ask for the same bits from run to run.
pub fn is_deterministic(settings: &Settings) -> bool {
    settings.is_deterministic || torch::asks_for_determinism()
}

/// Which algorithms the framework's own mode allows. Tensor cores matter only for f32: half types always use them.
pub fn admission(question: &Question, settings: &Settings) -> Admission {
    let is_single = matches!(question.problem.types(), Types::F32 | Types::Tf32);
    let guarded = Notes::DOWN_CONVERT.with(Notes::REDUCED_PRECISION);
    let guarded = if is_single { guarded.with(Notes::TENSOR_CORE) } else { guarded };
    Admission {
        deterministic: is_deterministic(settings) || !question.admitted.contains(Notes::NONDETERMINISTIC),
        class: settings.is_exact_class.then(|| question.chosen.notes.class()),
        without: Notes(guarded.0 & !question.admitted.0),
    }
}
