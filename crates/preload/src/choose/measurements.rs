//! The measurements of this process so far, and their tools.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use tightfit_conv::Problem;
use tightfit_conv::candidate::Candidates;
use tightfit_cuda::CudaBackend;
use tightfit_profile::Admission;
use tightfit_profile::survey::{Divide, Sizes};
use tightfit_units::Nanos;

use crate::kernel::Question;
use crate::lock::lock;
use crate::settings::{Limit, Terms};

/// See [`key`].
pub(super) type Key = (usize, Problem, Limit, (Sizes, Divide), AdmissionKey);
type AdmissionKey = (bool, Option<u32>, u32);

/// The measurements, and their tools.
#[derive(Default)]
pub(super) struct Measurements {
    /// Candidates by question, because a framework that tries many plans repeats its questions.
    candidates: Mutex<HashMap<Key, Arc<Candidates>>>,
    /// Times of the framework's choices.
    times: Mutex<HashMap<Question, Nanos>>,
    backends: Mutex<HashMap<usize, SharedBackend>>,
    stop: AtomicBool,
}

/// A device's backend, once it is started.
pub(super) type SharedBackend = Arc<Mutex<Option<CudaBackend>>>;

impl Measurements {
    /// The candidates of a question.
    pub fn find(&self, key: &Key) -> Option<Arc<Candidates>> {
        lock(&self.candidates).get(key).cloned()
    }

    /// Remembers the candidates of a question.
    pub fn remember(&self, key: Key, candidates: Candidates) {
        lock(&self.candidates).insert(key, Arc::new(candidates));
    }

    /// The time of the framework's choice, if it was measured.
    pub fn time(&self, question: &Question) -> Option<Nanos> {
        lock(&self.times).get(question).copied()
    }

    /// Remembers the time of the framework's choice.
    pub fn remember_time(&self, question: &Question, time: Nanos) {
        lock(&self.times).insert(question.clone(), time);
    }

    /// Never set, because measuring is never interrupted here.
    pub fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// A device's backend, which only one thread at a time may use.
    pub fn backend_of(&self, device: usize) -> SharedBackend {
        lock(&self.backends).entry(device).or_default().clone()
    }
}

/// The terms that candidates depend on.
pub(super) fn key(question: &Question, terms: Terms, admission: Admission) -> Key {
    let admission = (admission.deterministic, admission.class.map(|class| class.0), admission.without.0);
    (question.device, question.problem, terms.limit, (terms.sizes, terms.divide), admission)
}
