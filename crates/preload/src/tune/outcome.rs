//! The end of a job: the kernel runs the result, and the cache keeps it for later processes.

use std::sync::Arc;

use tightfit_conv::Configuration;
use tightfit_profile::Decision;
use tightfit_units::Nanos;

use super::call::{Around, TunedCall};
use super::job::{Job, Verdict};
use crate::choose::Chooser;
use crate::kernel::{ActiveChoice, Kernel};
use crate::log::trace;
use crate::ranks;
use crate::reason::Reason;
use crate::session::Session;
use crate::settings::{Settings, Tune};

/// Takes over what another process has decided.
pub(super) fn adopt(kernel: &Kernel, decision: Decision) {
    if let Some(time) = decision.framework_time {
        kernel.set_framework_time(time);
    }
    if let Some(ours) = decision.configuration {
        run(kernel, ours);
    }
    kernel.close();
}

/// Runs a configuration from now on.
pub(super) fn run(kernel: &Kernel, ours: Configuration) {
    trace!("{}: {ours} from now on, {}", kernel.question.problem, ours.time());
    if let Err(needed) = kernel.adopt(ActiveChoice::Ours(Arc::new(ours))) {
        trace!("{}: {needed} would be more than was reported", kernel.question.problem);
    }
}

/// Carries a verdict out, and saves it for later processes.
pub(super) fn finish(call: &TunedCall<'_>, mut job: Job, verdict: Verdict) {
    save(call.around.chooser, call.around.settings, &mut job);
    let kernel = &job.kernel;
    if job.was_inaccurate() {
        call.around.chooser.spending().add_inaccurate();
    }
    let configuration: Option<Configuration> = match verdict {
        Verdict::Ours(ours) => {
            run(kernel, ours.clone());
            Some(ours)
        }
        Verdict::Stays => kernel.running().configuration().map(|now| (**now).clone()),
    };
    kernel.close();
    // A first guess is not worth remembering, and a wrong choice even less.
    let is_known = job.theirs().is_some() || configuration.as_ref().is_some_and(|ours| ours.time() > Nanos::ZERO);
    if is_known && !job.runs_wrong() {
        let decision = Decision { configuration, framework_time: job.theirs(), is_final: job.is_surveyed() };
        call.around.chooser.keep_decision(&kernel.question, kernel.terms, call.around.settings, &job.device, &decision);
    }
}

/// Ends a job that is not done. A current comparison decides the choice, the measurements are saved, and ranks that leave
/// the kernel to this one stop waiting.
pub(super) fn leave(call: &TunedCall<'_>, session: &mut Session, mut job: Job) {
    let Around { chooser, settings, .. } = *call.around;
    let found = job.settle();
    save(chooser, settings, &mut job);
    let kernel = &job.kernel;
    if job.was_inaccurate() {
        chooser.spending().add_inaccurate();
    }
    let is_here = kernel.question.device == call.device;
    let guess = |session: &mut Session| {
        let is_asked = job.runs_wrong() && is_here;
        is_asked.then(|| chooser.guess(&kernel.question, kernel.terms, settings, session)).flatten()
    };
    let found = found.filter(|ours| !is_here || session.set_up(&kernel.question, ours).is_some());
    // A choice that a graph captured stays, and so does a failed one.
    let stays = kernel.is_captured() || matches!(kernel.running(), ActiveChoice::Left(Reason::Failed));
    if let Some(ours) = found.or_else(|| guess(session)).filter(|_| !stays) {
        run(kernel, ours);
    }
    kernel.close();
    // Under an explicit limit, the running choice may only be a first guess.
    if ranks::are_several() && kernel.terms.is_auto {
        let running = kernel.running();
        let configuration =
            running.configuration().filter(|ours| ours.time() > Nanos::ZERO).map(|ours| (**ours).clone());
        let decision = Decision { configuration, framework_time: job.theirs(), is_final: false };
        chooser.keep_decision(&kernel.question, kernel.terms, settings, &job.device, &decision);
    }
}

/// Saves the measurements of a job.
pub(super) fn save(chooser: &Chooser, settings: &Settings, job: &mut Job) {
    let new = job.ledger().take_new();
    chooser.keep_measured(new, settings, job.kernel.terms.tune, &job.device);
    let new = job.take_compared();
    chooser.keep_compared(&job.kernel.question, new, settings, &job.device);
}

/// Saves which algorithms compute slices right, each for the device that has computed them.
pub(super) fn keep_proofs(chooser: &Chooser, settings: &Settings) {
    for (device, new) in chooser.proofs().take_new() {
        chooser.save(vec![new], settings, Tune::Measure, &device);
    }
}
