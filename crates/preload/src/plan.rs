//! The program's plans, and what runs when one is executed.
//!
//! The decision is made before any workspace is reported, so that every query and the execution agree:
//!
//! ```text
//! ENGINECFG_WORKSPACE_SIZE  --\
//! EXECUTION_PLAN finalized  ---+--> consider --> ours: our workspace, our micro-batches
//!                              |            \--> kept or left: the plan's own
//! ```

use std::sync::{Arc, PoisonError};

use tightfit_core::Notes;
use tightfit_cuda::sys::cudnn::{BackendDescriptor, Handle};
use tightfit_cuda::{Chosen, GuestProgram, Host};

use crate::choose::{Decided, choose};
use crate::kernel::{self, Answer, Kernel, Question, Shared, bits};
use crate::log::tell;
use crate::reason::Reason;
use crate::recognize::Recognized;
use crate::session::{Session, session};
use crate::settings::{Limit, Settings, settings};
use crate::shadow::Graph;
use crate::{original, report, total};

/// A plan with its decision.
pub struct Plan {
    /// The graph it computes.
    pub graph: Option<Arc<Graph>>,
    /// What runs.
    pub decision: Decision,
}

/// What runs.
#[derive(Clone)]
pub enum Decision {
    /// Our configuration.
    Ours(Ours),
    /// A part of one total, in our own memory.
    Shared(Arc<Kernel>),
    /// The framework's choice, because it is the best.
    Kept(Arc<Kernel>),
    /// The framework's choice, because nothing could be decided or nothing fits.
    Left(Reason, Option<Arc<Kernel>>),
}

/// A configuration set up on the handle with which the program made its graph.
#[derive(Clone)]
pub struct Ours {
    /// The convolution.
    pub kernel: Arc<Kernel>,
    /// The configuration.
    pub program: Arc<GuestProgram>,
    /// The handle it is set up on.
    pub handle: usize,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl Plan {
    /// Bytes of workspace to tell the program; none if the plan's own answer holds.
    pub fn workspace(&self) -> Option<usize> {
        self.decision.workspace()
    }
}

impl Decision {
    /// Bytes of workspace to tell the program; none if the plan's own answer holds.
    pub fn workspace(&self) -> Option<usize> {
        self.kernel()?.reported_workspace()
    }

    /// The kernel decided about; none if there was no question.
    pub fn kernel(&self) -> Option<&Arc<Kernel>> {
        match self {
            Decision::Ours(ours) => Some(&ours.kernel),
            Decision::Shared(kernel) | Decision::Kept(kernel) => Some(kernel),
            Decision::Left(_, kernel) => kernel.as_ref(),
        }
    }
}

impl std::fmt::Debug for Decision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decision").field("workspace", &self.workspace()).finish_non_exhaustive()
    }
}

/// An object that holds the framework's choice.
#[derive(Clone, Copy)]
pub enum Choice {
    /// An engine's configuration.
    Configuration(BackendDescriptor),
    /// A plan.
    Plan(BackendDescriptor),
}

/// Decides what runs for an engine that the program chose for a graph. `is_built` tells whether the program has built a
/// plan of it, which shows what its mode allows.
///
/// # Safety
/// The descriptors and the graph's handle are alive, and the calling thread is the one that uses the handle.
pub unsafe fn consider(graph: &Graph, choice: Choice, is_built: bool) -> Decision {
    let decided = || -> Result<Decision, Reason> {
        let (settings, recognized) = (settings().ok_or(Reason::Device)?, graph.convolution.as_ref().map_err(|r| *r)?);
        let host = original::host().ok_or(Reason::Failed)?;
        let handle = Handle(graph.handle as *mut _);
        let device = device(host, settings)?;
        let _beside = host.beside_captures().map_err(failed)?;
        // SAFETY: forwarded to the caller.
        let session = unsafe { session(host, handle, device) }.map_err(failed)?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: forwarded to the caller.
        let chosen = unsafe {
            match choice {
                Choice::Configuration(raw) => session.guest.chosen(raw),
                Choice::Plan(raw) => session.guest.chosen_by_plan(raw),
            }
        };
        let chosen = chosen.map_err(failed)?;
        let admitted = if is_built { graph.admit(chosen.notes) } else { graph.admit(Notes::NONE).with(chosen.notes) };
        let problem = recognized.problem(admitted.contains(Notes::TENSOR_CORE))?;
        // SAFETY: forwarded to the caller.
        let is_capturing = unsafe { host.is_capturing(handle) };
        let question =
            Question { device, problem, chosen, admitted, factors: bits(recognized.scale), base: recognized.base };
        let kernel = answer(question, settings, &mut session, host, is_capturing)?;
        drop(session);
        // SAFETY: forwarded to the caller.
        unsafe { ready(host, device, kernel, recognized, handle) }
    };
    decided().unwrap_or_else(|reason| Decision::Left(reason, None))
}

/// Logs a failure of ours if `TIGHTFIT_LOG` requests it.
pub fn failed(error: impl std::fmt::Display) -> Reason {
    tell!("{error}");
    Reason::Failed
}

/// The device that the calling thread works on, if the settings include it.
///
/// # Errors
/// [`Reason::Device`].
pub fn device(host: &Host, settings: &Settings) -> Result<usize, Reason> {
    let device = host.device().map_err(failed)?.ok_or(Reason::Device)?;
    let is_asked_for = settings.devices.as_ref().is_none_or(|devices| devices.contains(&device));
    if is_asked_for { Ok(device) } else { Err(Reason::Device) }
}

/// The answer to a question, found now if it is new. An answer found without measuring, because of a capture, holds for
/// this plan alone: the next plan is decided again.
///
/// # Errors
/// [`Reason::Capture`] if the memory of a total is not allocated yet, which is impossible under capture.
pub fn answer(
    question: Question,
    settings: &Settings,
    session: &mut Session,
    host: &Host,
    is_capturing: bool,
) -> Result<Arc<Kernel>, Reason> {
    if let Some(kernel) = kernel::find(&question) {
        return Ok(kernel);
    }
    let (Limit::PerKernel(limit) | Limit::Total(limit)) = settings.limit;
    if let Limit::Total(bytes) = settings.limit {
        total::reserve(host, question.device, bytes, is_capturing)?;
    }
    let Decided { answer, framework_time, is_lasting } =
        choose(&question, limit, settings, session, host, is_capturing);
    report::on_device(session.guest.device());
    tell!("{}: {}", question.problem, described(&question, &answer));
    Ok(kernel::keep(question, answer, framework_time, is_lasting))
}

fn described(question: &Question, answer: &Answer) -> String {
    let Chosen { algorithm, workspace, .. } = &question.chosen;
    match answer {
        Answer::Shared(Shared { provisional, front }) => {
            format!("{provisional} for {algorithm} in {workspace}, or one of {} in a segment", front.len())
        }
        Answer::Ours(ours) => format!("{ours} in {} for {algorithm} in {workspace}", ours.workspace()),
        Answer::Kept => format!("keeps {algorithm} in {workspace}"),
        Answer::Left(reason) => format!("leaves {algorithm} in {workspace}: {}", reason.words()),
    }
}

/// Sets a kernel's answer up on a handle.
///
/// # Errors
/// [`Reason::Failed`] if it cannot be set up there, for example because the addresses are not aligned enough.
///
/// # Safety
/// `handle` is alive, on `device`, and used on this thread.
pub unsafe fn ready(
    host: &Host,
    device: usize,
    kernel: Arc<Kernel>,
    recognized: &Recognized,
    handle: Handle,
) -> Result<Decision, Reason> {
    match &kernel.answer {
        Answer::Ours(configuration) => {
            let _beside = host.beside_captures().map_err(failed)?;
            // SAFETY: forwarded to the caller.
            let session = unsafe { session(host, handle, device) }.map_err(failed)?;
            let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
            let program = session
                .program(&kernel.question.problem, configuration, recognized.scale, recognized.base)
                .map_err(|error| failed(error.chain()))?;
            Ok(Decision::Ours(Ours { kernel, program, handle: handle.0 as usize }))
        }
        Answer::Shared(_) => Ok(Decision::Shared(kernel)),
        Answer::Kept => Ok(Decision::Kept(kernel)),
        Answer::Left(reason) => Ok(Decision::Left(*reason, Some(kernel))),
    }
}
