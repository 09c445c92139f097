//! The convolutions of this process, each with the framework's choice and ours. Each is decided once and then counted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tightfit_core::backend::Scale;
use tightfit_core::{Configuration, Nanos, Notes, Problem};
use tightfit_cuda::Chosen;

use crate::layer;
use crate::reason::Reason;

/// What to decide. Equal questions have one answer across all threads and handles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The device's ordinal.
    pub device: usize,
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The framework's choice.
    pub chosen: Chosen,
    /// What the framework's mode allows beyond what every mode allows.
    pub admitted: Notes,
    /// Factors, by their bits.
    pub factors: [u32; 2],
    /// The alignment of every address.
    pub base: usize,
}

impl Question {
    /// The factors.
    pub fn scale(&self) -> Scale {
        let [alpha, beta] = self.factors.map(f32::from_bits);
        Scale { alpha, beta }
    }
}

/// The bits of factors, to compare them by.
pub fn bits(scale: Scale) -> [u32; 2] {
    [scale.alpha, scale.beta].map(f32::to_bits)
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Run this configuration instead of the framework's choice.
    Ours(Configuration),
    /// Use a part of one total; which part is decided once the kernels of a step are known.
    Shared(Shared),
    /// Run the framework's choice: it fits, and nothing faster was found.
    Kept,
    /// Run the framework's choice, although it may not fit.
    Left(Reason),
}

/// What a kernel can do with a part of a total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The configuration for all of the total, as long as it is not divided.
    pub provisional: Configuration,
    /// The configurations for a part, by rising workspace; empty if no times are known.
    pub front: Vec<Configuration>,
}

/// A convolution with its answer.
#[derive(Debug)]
pub struct Kernel {
    /// The layer that was current when it was first planned, if the program named it.
    pub layer: Option<String>,
    /// Its place among the kernels that were called.
    place: OnceLock<usize>,
    /// The question.
    pub question: Question,
    /// The answer.
    pub answer: Answer,
    /// Time of the framework's choice, where it was measured.
    pub framework_time: Option<Nanos>,
    calls: AtomicU64,
    allotted: Mutex<Option<Configuration>>,
}

impl Kernel {
    /// The configuration that runs in place of the framework's choice, if one does.
    pub fn ours(&self) -> Option<Configuration> {
        match &self.answer {
            Answer::Ours(ours) => Some(ours.clone()),
            Answer::Shared(shared) => {
                let allotted = self.allotted.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Some(allotted.unwrap_or_else(|| shared.provisional.clone()))
            }
            Answer::Kept | Answer::Left(_) => None,
        }
    }

    /// Records the configuration allotted to it.
    pub fn allot(&self, configuration: Configuration) {
        *self.allotted.lock().unwrap_or_else(PoisonError::into_inner) = Some(configuration);
    }

    /// Bytes of workspace to report to the program; none if the framework's choice runs.
    pub fn reported_workspace(&self) -> Option<usize> {
        match &self.answer {
            Answer::Ours(ours) => Some(usize::try_from(ours.workspace().0).unwrap_or(usize::MAX)),
            Answer::Shared(_) => Some(0),
            Answer::Kept | Answer::Left(_) => None,
        }
    }

    /// Counts a call.
    pub fn count(&self) {
        if self.calls() == 0 {
            self.place.get_or_init(|| CALLED.fetch_add(1, Ordering::Relaxed));
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Its layer's name, otherwise a name by order of first call; none for an unnamed kernel that was never called.
    pub fn name(&self) -> Option<String> {
        let by_order = || self.place.get().map(|place| format!("conv{}", place + 1));
        self.layer.clone().or_else(by_order)
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

#[derive(Default)]
struct Kernels {
    by_question: HashMap<Question, Arc<Kernel>>,
    all: Vec<Arc<Kernel>>,
}

static CALLED: AtomicUsize = AtomicUsize::new(0);
static KERNELS: Mutex<Option<Kernels>> = Mutex::new(None);

fn kernels() -> MutexGuard<'static, Option<Kernels>> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The kernel of a question that already has an answer.
pub fn find(question: &Question) -> Option<Arc<Kernel>> {
    kernels().as_ref()?.by_question.get(question).cloned()
}

/// Stores an answer; one that is final is found again. If another thread was first, its answer holds for both.
pub fn keep(question: Question, answer: Answer, framework_time: Option<Nanos>, is_lasting: bool) -> Arc<Kernel> {
    let mut kernels = kernels();
    let Kernels { by_question, all } = kernels.get_or_insert_default();
    if let Some(first) = by_question.get(&question) {
        return first.clone();
    }
    let kernel = Arc::new(Kernel {
        layer: layer::current(),
        place: OnceLock::new(),
        question: question.clone(),
        answer,
        framework_time,
        calls: AtomicU64::new(0),
        allotted: Mutex::new(None),
    });
    if is_lasting {
        by_question.insert(question, kernel.clone());
    }
    all.push(kernel.clone());
    kernel
}

/// The kernels that were called, by order of first call, and how many were only planned.
pub fn called() -> (Vec<Arc<Kernel>>, usize) {
    let all = kernels().as_ref().map(|kernels| kernels.all.clone()).unwrap_or_default();
    let (mut called, planned): (Vec<_>, Vec<_>) = all.into_iter().partition(|kernel| kernel.calls() > 0);
    called.sort_by_key(|kernel| kernel.place.get().copied());
    (called, planned.len())
}
