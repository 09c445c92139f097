//! Brings the choice that runs for a plan in line with the limits that the program has set since the plan was made.
//!
//! ```text
//! a plan of conv1   reported 64 MiB    runs 60 MiB
//! workspace=16MiB                      runs 12 MiB     from the next execution on; 64 MiB stay the program's
//! workspace=1GiB                       runs 60 MiB     the reported bytes are not exceeded
//! conv2, at most 8 MiB, runs the plan  runs  7 MiB     equal convolutions of a thread share the least limit
//! ```

use std::sync::Arc;

use tightfit_cuda::sys::cudnn::Handle;

use crate::kernel::{ActiveChoice, Answer, Kernel};
use crate::layer;
use crate::limits::Limits;
use crate::lock::lock;
use crate::log::trace;
use crate::process::Process;
use crate::reason::{Reason, failed};
use crate::settings::{Limit, Terms};

/// Prepares an execution of a kernel: changes the choice if a call or another layer asks for it, and notes a capture. Takes
/// no lock if nothing changes.
///
/// # Safety
/// `handle` is alive, on the kernel's device, and used on this thread.
pub unsafe fn settle(process: &Process, kernel: &Kernel, handle: Handle) {
    let limits = process.limits.get();
    let is_known = |layer: Option<&str>| kernel.layers().iter().any(|known| known.as_deref() == layer);
    let is_new = !layer::with_current(is_known);
    if is_new {
        kernel.add_layers([layer::with_current(|layer| layer.map(str::to_owned))]);
        layer::sharing(kernel.question.device, &kernel.question.problem);
    }
    if is_new || !kernel.is_settled(limits) {
        // First, so that a failure is not repeated at every execution.
        kernel.set_settled(limits);
        // SAFETY: forwarded to the caller.
        if let Ok(Some(running)) = unsafe { changed(process, kernel, limits, handle) }
            && let Err(needed) = kernel.change(running)
        {
            trace!("{}: {needed} would be more than was reported", kernel.question.problem);
        }
    }
    if !kernel.is_captured()
        && (kernel.is_open() || matches!(kernel.running(), ActiveChoice::Ours(_)))
        && let Some(host) = process.host()
        // SAFETY: forwarded to the caller.
        && unsafe { host.is_capturing(handle) }
    {
        kernel.set_captured();
        kernel.close();
    }
}

/// The choice under these limits, or `None` if it stays as it is.
/// # Safety
/// As [`settle`].
unsafe fn changed(
    process: &Process,
    kernel: &Kernel,
    limits: &Limits,
    handle: Handle,
) -> Result<Option<ActiveChoice>, Reason> {
    let settings = process.settings().ok_or(Reason::Failed)?;
    let own = kernel.question.chosen.workspace;
    let Some(terms) = limits.shared_terms(settings, kernel.layers(), own) else { return Ok(None) };
    // A choice in a total uses our memory, whatever its size.
    let (Limit::PerKernel(_), Limit::PerKernel(limit)) = (kernel.terms.limit, terms.limit) else { return Ok(None) };
    let terms = Terms { limit: Limit::PerKernel(limit.min(kernel.reported().workspace())), ..terms };
    if let Some(known) = kernel.within(terms) {
        return Ok(Some(known));
    }
    let host = process.host().ok_or(Reason::Failed)?;
    let _beside = host.beside_captures().map_err(failed)?;
    // SAFETY: forwarded to the caller.
    let session = unsafe { process.sessions.on(host, handle, kernel.question.device) }.map_err(failed)?;
    let mut session = lock(&session);
    // SAFETY: forwarded to the caller.
    let is_capturing = unsafe { host.is_capturing(handle) };
    let (question, asked) = (&kernel.question, kernel.terms);
    let answer = process.chooser.choose_again(question, asked, terms, settings, &mut session, is_capturing);
    trace!("{}: now within {}: {}", question.problem, terms.limit.bytes(), super::answer::describe(question, &answer));
    let running = match answer {
        Answer::Ours(ours) => ActiveChoice::Ours(Arc::new(ours)),
        Answer::Kept => ActiveChoice::Kept,
        Answer::Left(reason) => ActiveChoice::Left(reason),
        Answer::Shared(_) => return Ok(None),
    };
    kernel.remember_within(terms, running.clone());
    Ok(Some(running))
}
