//! The convolutions of this process, each with the framework's choice, what the program was told and what runs. Each is
//! decided once and then counted.

mod running;

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tightfit_core::backend::Scale;
use tightfit_core::{Bytes, Configuration, Nanos, Notes, Problem};
use tightfit_cuda::Chosen;

use crate::latest::Latest;
use crate::layer;
use crate::lock::lock;
use crate::reason::Reason;
pub use running::{Running, Told};

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

/// The decision, from which follow what the program is told and what runs at first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Run this configuration instead of the framework's choice.
    Ours(Configuration),
    /// Use a part of one total; which part is decided once the kernels of a step are known.
    Shared(Share),
    /// Run the framework's choice: it fits, and nothing faster was found.
    Kept,
    /// Run the framework's choice, although it may not fit.
    Left(Reason),
}

/// What a kernel can do with a part of a total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The configuration for all of the total, as long as it is not divided.
    pub provisional: Arc<Configuration>,
    /// The configurations for a part, by rising workspace; empty if no times are known.
    pub front: Vec<Configuration>,
}

/// A convolution with its decision.
#[derive(Debug)]
pub struct Kernel {
    /// The layer that was current when it was first planned, if the program named it.
    pub layer: Option<String>,
    /// The question.
    pub question: Question,
    /// Time of the framework's choice, where it was measured.
    pub framework_time: Option<Nanos>,
    told: Told,
    running: Latest<Running>,
    share: Option<Share>,
    calls: AtomicU64,
    /// Its place among the kernels that were called.
    place: OnceLock<usize>,
    /// How many kernels of the process were called.
    called: Arc<AtomicUsize>,
}

impl Kernel {
    /// What the program was told.
    pub fn told(&self) -> Told {
        self.told
    }

    /// What runs now. Takes no lock, because every execution asks.
    pub fn running(&self) -> &Running {
        self.running.get()
    }

    /// Changes what runs from the next execution on; what is being executed goes on.
    ///
    /// # Errors
    /// The workspace that it would need, if the program was told less: nothing changes then.
    pub fn change(&self, running: Running) -> Result<(), Bytes> {
        let needed = running.needs(self.question.chosen.workspace);
        if needed > self.told.workspace() {
            return Err(needed);
        }
        if *self.running() != running {
            self.running.replace(running);
        }
        Ok(())
    }

    /// What it can do with a part of a total; none if it runs in the program's workspace.
    pub fn share(&self) -> Option<&Share> {
        self.share.as_ref()
    }

    /// Counts a call.
    pub fn count(&self) {
        if self.calls() == 0 {
            self.place.get_or_init(|| self.called.fetch_add(1, Ordering::Relaxed));
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

/// A convolution under an algorithm's number, as the legacy interface names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Number {
    /// The device's ordinal.
    pub device: usize,
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The algorithm.
    pub algorithm: c_int,
}

#[derive(Default)]
struct Index {
    by_question: HashMap<Question, Arc<Kernel>>,
    /// So that a call need not query the workspace of an algorithm that it does not run. A decision made under capture
    /// is final here too: the program knows its workspace, and without a plan, calls before and after a new decision
    /// look alike.
    by_number: HashMap<Number, Arc<Kernel>>,
    all: Vec<Arc<Kernel>>,
}

/// The kernels of the process.
#[derive(Default)]
pub struct Kernels {
    index: Mutex<Index>,
    called: Arc<AtomicUsize>,
}

impl Kernels {
    /// The kernel of a question that already has an answer.
    pub fn find(&self, question: &Question) -> Option<Arc<Kernel>> {
        lock(&self.index).by_question.get(question).cloned()
    }

    /// The kernel of a number that was decided about.
    pub fn find_number(&self, number: &Number) -> Option<Arc<Kernel>> {
        lock(&self.index).by_number.get(number).cloned()
    }

    /// Stores the kernel of a number.
    pub fn keep_number(&self, number: Number, kernel: Arc<Kernel>) {
        lock(&self.index).by_number.insert(number, kernel);
    }

    /// Stores an answer; one that is final is found again. If another thread was first, its answer holds for both.
    pub fn keep(
        &self,
        question: Question,
        answer: Answer,
        framework_time: Option<Nanos>,
        is_lasting: bool,
    ) -> Arc<Kernel> {
        let mut index = lock(&self.index);
        if let Some(first) = index.by_question.get(&question) {
            return first.clone();
        }
        let own = Told::Own(question.chosen.workspace);
        let (told, running, share) = match answer {
            Answer::Ours(ours) => (Told::Ours(ours.workspace()), Running::Ours(Arc::new(ours)), None),
            Answer::Shared(share) => (Told::Ours(Bytes::ZERO), Running::Shared(share.provisional.clone()), Some(share)),
            Answer::Kept => (own, Running::Kept, None),
            Answer::Left(reason) => (own, Running::Left(reason), None),
        };
        let kernel = Arc::new(Kernel {
            layer: layer::current(),
            question: question.clone(),
            framework_time,
            told,
            running: Latest::new(running),
            share,
            calls: AtomicU64::new(0),
            place: OnceLock::new(),
            called: self.called.clone(),
        });
        if is_lasting {
            index.by_question.insert(question, kernel.clone());
        }
        index.all.push(kernel.clone());
        kernel
    }

    /// The kernels that were called, by order of first call, and how many were only planned.
    pub fn called(&self) -> (Vec<Arc<Kernel>>, usize) {
        let all = lock(&self.index).all.clone();
        let (mut called, planned): (Vec<_>, Vec<_>) = all.into_iter().partition(|kernel| kernel.calls() > 0);
        called.sort_by_key(|kernel| kernel.place.get().copied());
        (called, planned.len())
    }
}

#[cfg(test)]
mod tests {
    use tightfit_core::{Algorithm, Candidate, DivisionCost};

    use super::*;

    fn configuration(bytes: u64) -> Configuration {
        let part =
            Candidate { micro_batch: 4, algorithm: Algorithm::new("gemm"), time: Nanos(1), workspace: Bytes(bytes) };
        Configuration::new(vec![part], DivisionCost::default())
    }

    fn kernel(answer: Answer) -> Arc<Kernel> {
        let question = Question {
            device: 0,
            problem: "forward n4 c3 h8 w8 k4 r3 s3 f32".parse().unwrap(),
            chosen: Chosen { algorithm: Algorithm::new("fft"), workspace: Bytes(512), notes: Notes::NONE },
            admitted: Notes::NONE,
            factors: bits(Scale::OVERWRITE),
            base: 16,
        };
        Kernels::default().keep(question, answer, None, true)
    }

    #[test]
    fn what_runs_never_needs_more_than_was_told() {
        let ours = |bytes| Running::Ours(Arc::new(configuration(bytes)));
        let share = Share { provisional: Arc::new(configuration(4096)), front: Vec::new() };
        for (answer, told, refused) in [
            (Answer::Ours(configuration(64)), 64, vec![ours(65), Running::Kept, Running::Left(Reason::Failed)]),
            (Answer::Kept, 512, vec![ours(513)]),
            (Answer::Left(Reason::NothingFits), 512, vec![ours(513)]),
            (Answer::Shared(share), 0, vec![ours(1), Running::Kept]),
        ] {
            let kernel = kernel(answer);
            assert_eq!(kernel.told().workspace(), Bytes(told));
            assert!(kernel.running().needs(Bytes(512)) <= Bytes(told), "{:?}", kernel.running());
            let before = kernel.running().clone();
            for change in refused {
                let needed = change.needs(Bytes(512));
                assert_eq!(kernel.change(change), Err(needed));
                assert_eq!(*kernel.running(), before);
            }
            let within = ours(told);
            assert_eq!(kernel.change(within.clone()), Ok(()));
            assert_eq!(*kernel.running(), within);
            assert_eq!(kernel.told().workspace(), Bytes(told), "fixed");
        }
    }
}
