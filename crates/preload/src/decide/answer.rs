//! Answers questions, and sets the answers up.

use std::sync::Arc;

use tightfit_conv::Configuration;
use tightfit_cuda::sys::cudnn::Handle;
use tightfit_cuda::{Chosen, GuestProgram, Host};

use crate::choose::Choice;
use crate::kernel::{Answer, Kernel, Planned, Question, TotalOptions};
use crate::layer;
use crate::lock::lock;
use crate::log::trace;
use crate::process::Process;
use crate::reason::{Reason, failed};
use crate::recognize::Computation;
use crate::session::Session;
use crate::settings::{Limit, Settings, Terms};

/// The device that the calling thread works on, if the settings include it.
///
/// # Errors
/// [`Reason::Device`].
pub fn device(host: &Host, settings: &Settings) -> Result<usize, Reason> {
    let device = host.device().map_err(failed)?.ok_or(Reason::Device)?;
    let is_asked_for = settings.devices.as_ref().is_none_or(|devices| devices.contains(&device));
    if is_asked_for { Ok(device) } else { Err(Reason::Device) }
}

/// The answer to a question on the terms of the calling thread's layer, found now if it is new. An answer found without
/// measuring, because of a capture, holds for this plan alone: the next plan is decided again.
///
/// # Errors
/// [`Reason::NoLimit`] if nothing limits the layer; [`Reason::Capture`] if the memory of a total is not allocated yet,
/// which is impossible under capture.
pub fn answer(
    process: &Process,
    question: Question,
    settings: &Settings,
    session: &mut Session,
    host: &Arc<Host>,
    is_capturing: bool,
) -> Result<Arc<Kernel>, Reason> {
    let (limits, layers) = (process.limits.get(), layer::sharing(question.device, &question.problem));
    let own = question.chosen.workspace;
    let mut terms = limits.shared_terms(settings, &layers, own).ok_or(Reason::NoLimit)?;
    if let Some(kernel) = process.kernels.find(&question, terms, &layers) {
        return Ok(kernel);
    }
    if let Limit::Total(bytes) = terms.limit {
        let there = process.totals.reserve(host, question.device, bytes, is_capturing)?;
        terms = Terms { limit: Limit::Total(bytes.min(there)), ..terms };
        if let Some(kernel) = process.kernels.find(&question, terms, &layers) {
            return Ok(kernel);
        }
    }
    let Choice { answer, reported, is_open, framework_time, is_lasting } =
        process.chooser.choose(&question, terms, settings, session, host, is_capturing);
    process.report_state.on_device(session.guest.device());
    trace!("{}: {}", question.problem, describe(&question, &answer));
    if is_open {
        process.tuner.wake();
    }
    let planned = Planned { question, terms, layers, answer, reported, is_open, framework_time };
    Ok(process.kernels.keep(planned, limits, is_lasting))
}

/// An answer in words.
pub(super) fn describe(question: &Question, answer: &Answer) -> String {
    let Chosen { algorithm, workspace, .. } = &question.chosen;
    match answer {
        Answer::Shared(TotalOptions { provisional, front }) => {
            format!("{provisional} for {algorithm} in {workspace}, or one of {} in a segment", front.len())
        }
        Answer::Ours(ours) => format!("{ours} in {} for {algorithm} in {workspace}", ours.workspace()),
        Answer::Kept => format!("keeps {algorithm} in {workspace}"),
        Answer::Left(reason) => format!("leaves {algorithm} in {workspace}: {}", reason.words()),
    }
}

/// Sets a kernel's configuration up on a handle.
///
/// # Errors
/// [`Reason::Failed`] if it cannot be set up there, for example because the addresses are not aligned enough.
///
/// # Safety
/// `handle` is alive, on this device, and used on this thread.
pub unsafe fn set_up(
    process: &Process,
    (host, device): (&Host, usize),
    kernel: &Kernel,
    configuration: &Configuration,
    computation: &Computation,
    handle: Handle,
) -> Result<Arc<GuestProgram>, Reason> {
    let _beside = host.beside_captures().map_err(failed)?;
    // SAFETY: forwarded to the caller.
    let session = unsafe { process.sessions.on(host, handle, device) }.map_err(failed)?;
    let mut session = lock(&session);
    session
        .program(&kernel.question.problem, configuration, computation.scale, computation.base)
        .map_err(|error| failed(error.chain()))
}
