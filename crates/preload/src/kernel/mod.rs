//! The convolutions of this process, each with the framework's choice, the workspace that was reported and the choice
//! that runs. Each is decided once and then counted.

mod active_choice;
mod index;
mod order;
mod question;
#[cfg(test)]
pub mod samples;
mod trial;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tightfit_profile::survey::Sizes;
use tightfit_units::{Bytes, Nanos};

use crate::layer::Layer;
use crate::limits::Limits;
use crate::lock::lock;
use crate::reason::Reason;
use crate::settings::{Limit, Terms};
use crate::swap_cell::SwapCell;
pub use active_choice::{ActiveChoice, Reported};
pub use index::{Kernels, Number};
use order::{FirstCall, Order};
pub use question::{Answer, Planned, Question, TotalOptions, bits};
use trial::Trial;

/// A choice that was executed more often than this is not being tried, though nothing else ran in between.
const MOST_TRIED: u64 = 200;

/// A convolution with its decision.
#[derive(Debug)]
pub struct Kernel {
    layers: SwapCell<Vec<Layer>>,
    /// The question.
    pub question: Question,
    /// The terms of the decision, from which follows the reported workspace.
    pub terms: Terms,
    reported: Reported,
    /// Time of the framework's choice, once it was measured.
    framework_time: OnceLock<Nanos>,
    /// The choice on the terms of the decision: the one known then, or found since.
    best: SwapCell<ActiveChoice>,
    running: SwapCell<ActiveChoice>,
    is_open: AtomicBool,
    trial: Trial,
    /// The choices on other terms.
    others: Mutex<Vec<(Terms, ActiveChoice)>>,
    /// The address of the limits with which the choice was last compared.
    settled: AtomicUsize,
    is_captured: AtomicBool,
    share: Option<TotalOptions>,
    calls: AtomicU64,
    /// Calls that ran the framework's own choice, for example while another one was on trial.
    own_calls: AtomicU64,
    /// Its place among the kernels that were called.
    place: OnceLock<FirstCall>,
    order: Arc<Order>,
}

impl Kernel {
    /// A kernel that was decided about under these limits; these are for the same convolution.
    fn new(planned: Planned, limits: &Limits, alike: &[Arc<Kernel>], order: Arc<Order>) -> Kernel {
        let Planned { question, terms, layers, answer, reported: least, is_open, framework_time } = planned;
        let own = Reported::Own(question.chosen.workspace);
        let (reported, running, share) = match answer {
            Answer::Ours(ours) => (Reported::Ours(ours.workspace()), ActiveChoice::Ours(Arc::new(ours)), None),
            Answer::Shared(share) => {
                (Reported::Ours(Bytes::ZERO), ActiveChoice::Shared(share.provisional.clone()), Some(share))
            }
            Answer::Kept => (own, ActiveChoice::Kept, None),
            Answer::Left(reason) => (own, ActiveChoice::Left(reason), None),
        };
        let reported = match least {
            Some(bytes) if bytes > reported.workspace() => Reported::Ours(bytes),
            _ => reported,
        };
        let kernel = Kernel {
            layers: SwapCell::default(),
            trial: Trial::new(alike.iter().map(|kernel| &kernel.trial)),
            question,
            terms,
            framework_time: framework_time.map(OnceLock::from).unwrap_or_default(),
            reported,
            best: SwapCell::new(running.clone()),
            running: SwapCell::new(running),
            is_open: AtomicBool::new(is_open),
            others: Mutex::default(),
            settled: AtomicUsize::new(address(limits)),
            is_captured: AtomicBool::new(false),
            share,
            calls: AtomicU64::new(0),
            own_calls: AtomicU64::new(0),
            place: OnceLock::new(),
            order,
        };
        kernel.add_layers(layers);
        kernel
    }

    /// The answer to the program.
    pub fn reported(&self) -> Reported {
        self.reported
    }

    /// The choice that runs now. Takes no lock, because every execution asks.
    pub fn running(&self) -> &ActiveChoice {
        self.running.get()
    }

    /// Time of the framework's choice, if it was measured.
    pub fn framework_time(&self) -> Option<Nanos> {
        self.framework_time.get().copied()
    }

    /// Remembers the time of the framework's choice; the first one counts.
    pub fn set_framework_time(&self, time: Nanos) {
        self.framework_time.get_or_init(|| time);
    }

    /// Whether a better choice is still to be found.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// The choice is found.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
    }

    /// Whether the framework's choice fits the reported workspace, so that it can run at any time.
    pub fn can_run_own(&self) -> bool {
        self.question.chosen.workspace <= self.reported.workspace()
    }

    /// Runs a choice that was found on the terms of the decision, from the next execution on; not while other limits hold.
    ///
    /// # Errors
    /// As [`Kernel::change`].
    pub fn adopt(&self, running: ActiveChoice) -> Result<(), Bytes> {
        self.check(&running)?;
        let is_on_own_terms = self.running() == self.best.get();
        self.best.replace(running.clone());
        if is_on_own_terms { self.change(running) } else { Ok(()) }
    }

    /// Changes the choice from the next execution on. A current execution continues.
    ///
    /// # Errors
    /// The workspace that it would need, if less was reported to the program: nothing changes then.
    pub fn change(&self, running: ActiveChoice) -> Result<(), Bytes> {
        self.check(&running)?;
        if *self.running() != running {
            self.running.replace(running);
        }
        Ok(())
    }

    /// Refuses a choice that needs more than the reported workspace, with the bytes that it needs.
    fn check(&self, running: &ActiveChoice) -> Result<(), Bytes> {
        let needed = running.needs(self.question.chosen.workspace);
        if needed > self.reported.workspace() { Err(needed) } else { Ok(()) }
    }

    /// The layer that was current when it was first planned, and all others that share it, each once.
    pub fn layers(&self) -> &[Layer] {
        self.layers.get()
    }

    /// These layers share it from now on.
    pub fn add_layers(&self, layers: impl IntoIterator<Item = Layer>) {
        self.layers.update(|known| {
            let mut all = known.clone();
            for layer in layers {
                if !all.contains(&layer) {
                    all.push(layer);
                }
            }
            all
        });
    }

    /// The known choice on these terms, which need no more than the reported bytes, or `None` if it is still to be found.
    pub fn within(&self, terms: Terms) -> Option<ActiveChoice> {
        let own = self.question.chosen.workspace;
        let best = self.best.get();
        if terms.sizes == self.terms.sizes && best.needs(own) <= terms.limit.bytes() {
            return Some(best.clone());
        }
        lock(&self.others).iter().find(|(known, _)| *known == terms).map(|(_, running)| running.clone())
    }

    /// Remembers the choice on these terms.
    pub fn remember_within(&self, terms: Terms, running: ActiveChoice) {
        lock(&self.others).push((terms, running));
    }

    /// Whether the choice was compared with these limits.
    pub fn is_settled(&self, limits: &Limits) -> bool {
        self.settled.load(Ordering::Relaxed) == address(limits)
    }

    /// The choice is being compared under these limits.
    pub fn set_settled(&self, limits: &Limits) {
        self.settled.store(address(limits), Ordering::Relaxed);
    }

    /// Whether a graph was captured while our configuration ran, or one was still to be found; the graph keeps its choice.
    pub fn is_captured(&self) -> bool {
        self.is_captured.load(Ordering::Relaxed)
    }

    /// A graph is captured.
    pub fn set_captured(&self) {
        self.is_captured.store(true, Ordering::Relaxed);
    }

    /// Whether these terms can hold for it as for a plan made now, or `None` for no limit at all. They cannot if the program has a larger or smaller
    /// reported workspace than it may now have, if no choice was searched for under the new limits, or if a graph keeps its choice.
    pub fn follows(&self, terms: Option<Terms>) -> bool {
        let Some(terms) = terms else { return false };
        if terms == self.terms {
            return true;
        }
        let is_within = match (self.terms.limit, terms.limit) {
            (Limit::PerKernel(asked), Limit::PerKernel(limit)) => self.reported.workspace() <= limit && limit <= asked,
            (asked, limit) => asked == limit,
        };
        let is_surveyed = match (self.terms.sizes, terms.sizes) {
            (_, Sizes::Undivided) | (Sizes::All, _) => true,
            (asked, sizes) => asked == sizes,
        };
        is_within && is_surveyed && terms.tune == self.terms.tune && !self.is_captured()
    }

    /// Its options with a part of a total, or `None` if it runs in the program's workspace.
    pub fn share(&self) -> Option<&TotalOptions> {
        self.share.as_ref()
    }

    /// The choice of this execution: the framework's as long as it is one of several that are being tried.
    pub fn running_now(&self) -> &ActiveChoice {
        let running = self.running();
        let is_replaced = matches!(running, ActiveChoice::Ours(_)) && self.can_run_own();
        if !self.may_be_replaced() && is_replaced { &ActiveChoice::Kept } else { running }
    }

    /// The choice has failed: from now on the framework's choice runs, whatever limits hold.
    pub fn give_up(&self) {
        self.close();
        // It can run: otherwise the choice would not be given up.
        let failed = ActiveChoice::Left(Reason::Failed);
        let _ = self.adopt(failed.clone()).and_then(|()| self.change(failed));
    }

    /// Whether tuning has still to decide the choice: not for a kernel that was only tried among others or hardly
    /// executed, or is captured.
    pub fn is_undecided(&self) -> bool {
        self.is_open() && !self.is_captured() && self.calls() > 1 && self.goes_on()
    }

    /// Whether it is still executed, or is the only choice for its convolution.
    fn goes_on(&self) -> bool {
        self.trial.goes_on() || self.calls() > MOST_TRIED
    }

    /// Whether it may be replaced at this execution: not while the framework tries several choices for the convolution.
    fn may_be_replaced(&self) -> bool {
        self.trial.is_over(&self.question.problem) || self.calls() > MOST_TRIED
    }

    /// Counts a call.
    pub fn count(&self) {
        if self.calls() == 0 {
            self.place.get_or_init(|| self.order.next(&self.question.problem));
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        if *self.running_now() == ActiveChoice::Kept {
            self.own_calls.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The layer that was current when it was first planned, if the program named it.
    pub fn layer(&self) -> Option<&str> {
        self.layers().first()?.as_deref()
    }

    /// Its layer's name, otherwise a name by its convolution's order of first call, which convolutions of one shape share,
    /// or `None` for an unnamed kernel that was never called.
    pub fn name(&self) -> Option<String> {
        let by_order = || self.place.get().map(|place| format!("conv{}", place.convolution + 1));
        self.layer().map(str::to_owned).or_else(by_order)
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Calls so far that did not run the framework's choice.
    pub fn replaced_calls(&self) -> u64 {
        self.calls().saturating_sub(self.own_calls.load(Ordering::Relaxed))
    }
}

/// By which limits are known: they live as long as the process, and equal ones are the same.
fn address(limits: &Limits) -> usize {
    std::ptr::from_ref(limits).addr()
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Configuration;

    use super::samples::{planned, question};
    use super::*;
    use crate::settings::Tune;

    fn configuration(bytes: u64) -> Configuration {
        samples::configuration("gemm", 1, bytes)
    }

    fn terms(limit: u64) -> Terms {
        samples::terms(Limit::PerKernel(Bytes(limit)))
    }

    fn kernel(answer: Answer) -> Arc<Kernel> {
        kernel_of("forward n4 c3 h8 w8 k4 r3 s3 f32", answer, &Kernels::default())
    }

    fn kernel_of(problem: &str, answer: Answer, kernels: &Kernels) -> Arc<Kernel> {
        kernel_reporting(problem, answer, None, kernels)
    }

    fn kernel_reporting(problem: &str, answer: Answer, reported: Option<Bytes>, kernels: &Kernels) -> Arc<Kernel> {
        let question = Question { problem: problem.parse().unwrap(), ..question("fft") };
        let planned = Planned { reported, ..planned(question, terms(1024), answer) };
        kernels.keep(planned, &Limits::default(), true)
    }

    #[test]
    fn operations_of_one_convolution_have_one_name() {
        let kernels = Kernels::default();
        let of = |operation: &str, channels: usize| {
            let problem = format!("{operation} n4 c{channels} h8 w8 k4 r3 s3 f32");
            kernel_of(&problem, Answer::Kept, &kernels)
        };
        // As in a training step: the last layer comes first in the backward pass.
        let step =
            [("forward", 3), ("forward", 8), ("backward-data", 8), ("backward-filter", 8), ("backward-filter", 3)];
        let called = step.map(|(operation, channels)| of(operation, channels));
        called.iter().for_each(|kernel| kernel.count());
        let names = called.map(|kernel| kernel.name().unwrap());
        assert_eq!(names, ["conv1", "conv2", "conv2", "conv2", "conv1"]);
        let in_order: Vec<String> = kernels.called().0.iter().map(|kernel| kernel.name().unwrap()).collect();
        assert_eq!(in_order, names, "by order of first call");
        assert_eq!(of("forward", 5).name(), None, "never called");
    }

    #[test]
    fn a_call_of_a_choice_on_trial_counts_as_the_frameworks_own() {
        let kernels = Kernels::default();
        let of = |problem: &str| kernel_reporting(problem, Answer::Ours(configuration(64)), Some(Bytes(512)), &kernels);
        let (one, other) = (of("forward n4 c3 h8 w8 k4 r3 s3 f32"), of("forward n4 c5 h8 w8 k4 r3 s3 f32"));
        // A second choice for the same convolution puts the first one on trial.
        Trial::new(std::iter::once(&one.trial));
        (0..3).for_each(|_| one.count());
        assert_eq!((one.calls(), one.replaced_calls()), (3, 0));
        other.count();
        one.count();
        assert_eq!((one.calls(), one.replaced_calls()), (4, 1));
        assert_eq!((other.calls(), other.replaced_calls()), (1, 1));
    }

    #[test]
    fn the_active_choice_never_needs_more_than_was_reported() {
        let ours = |bytes| ActiveChoice::Ours(Arc::new(configuration(bytes)));
        let share = TotalOptions { provisional: Arc::new(configuration(4096)), front: Vec::new() };
        for (answer, reported, refused) in [
            (
                Answer::Ours(configuration(64)),
                64,
                vec![ours(65), ActiveChoice::Kept, ActiveChoice::Left(Reason::Failed)],
            ),
            (Answer::Kept, 512, vec![ours(513)]),
            (Answer::Left(Reason::NothingFits), 512, vec![ours(513)]),
            (Answer::Shared(share), 0, vec![ours(1), ActiveChoice::Kept]),
        ] {
            let kernel = kernel(answer);
            assert_eq!(kernel.reported().workspace(), Bytes(reported));
            assert!(kernel.running().needs(Bytes(512)) <= Bytes(reported), "{:?}", kernel.running());
            let before = kernel.running().clone();
            for change in refused {
                let needed = change.needs(Bytes(512));
                assert_eq!(kernel.change(change), Err(needed));
                assert_eq!(*kernel.running(), before);
            }
            let within = ours(reported);
            assert_eq!(kernel.change(within.clone()), Ok(()));
            assert_eq!(*kernel.running(), within);
            assert_eq!(kernel.reported().workspace(), Bytes(reported), "fixed");
        }
    }

    #[test]
    fn terms_that_cannot_hold_for_the_reported_workspace_are_known() {
        let ours = kernel(Answer::Ours(configuration(64)));
        let with = |sizes, tune| Some(Terms { sizes, tune, ..terms(1024) });
        for (changed, follows) in [
            (Some(terms(1024)), true),
            (Some(terms(64)), true),
            (Some(terms(63)), false),
            (Some(terms(1025)), false),
            (None, false),
            (Some(Terms { limit: Limit::Total(Bytes(1024)), ..terms(1024) }), false),
            (with(Sizes::Undivided, Tune::Measure), true),
            (with(Sizes::PowerOfTwo, Tune::Measure), false),
            (with(Sizes::Fit, Tune::Cached), false),
        ] {
            assert_eq!(ours.follows(changed), follows, "{changed:?}");
        }
        ours.set_captured();
        assert!(ours.follows(Some(terms(1024))) && !ours.follows(Some(terms(64))));
    }

    #[test]
    fn a_failed_choice_is_replaced_under_all_limits() {
        let ours = || {
            let (problem, ours) = ("forward n4 c3 h8 w8 k4 r3 s3 f32", Answer::Ours(configuration(64)));
            kernel_reporting(problem, ours, Some(Bytes(4096)), &Kernels::default())
        };
        let given_up = |ours: &Kernel| {
            assert!(ours.can_run_own());
            ours.give_up();
            assert_eq!(*ours.running(), ActiveChoice::Left(Reason::Failed));
        };
        let refused = ours();
        assert_eq!(refused.adopt(ActiveChoice::Ours(Arc::new(configuration(8192)))), Err(Bytes(8192)));
        assert_eq!(refused.within(terms(64)).as_ref(), Some(refused.running()), "nothing was adopted");
        given_up(&refused);
        let limited = ours();
        limited.change(ActiveChoice::Ours(Arc::new(configuration(32)))).unwrap();
        given_up(&limited);
    }

    #[test]
    fn the_first_choice_returns_under_limits_that_it_fits() {
        let ours = kernel(Answer::Ours(configuration(64)));
        assert_eq!(ours.within(terms(64)).as_ref(), Some(ours.running()));
        assert_eq!(ours.within(terms(63)), None);
        ours.remember_within(terms(63), ActiveChoice::Left(Reason::NothingFits));
        assert_eq!(ours.within(terms(63)), Some(ActiveChoice::Left(Reason::NothingFits)));
        assert_eq!(ours.within(Terms { sizes: Sizes::Undivided, ..terms(64) }), None);
    }
}
