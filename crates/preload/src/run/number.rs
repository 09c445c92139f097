//! Runs calls of the legacy interface, which names algorithms by numbers.

use std::ffi::c_void;

use tightfit_conv::backend::Scale;
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::{CudnnStatus, Handle};

use super::device::{place, run_in_total, status_of};
use crate::decide::{Action, Request};
use crate::process::Process;
use crate::reason::{Function, Reason, failed};
use crate::report;

/// The operands of a call.
pub struct NumberedCall {
    /// The function called.
    pub function: Function,
    /// Factor of the result.
    pub alpha: *const c_void,
    /// Factor of the output's earlier content.
    pub beta: *const c_void,
    /// Data, other and output, as in [`tightfit_conv::backend::Tensors`].
    pub tensors: [*const c_void; 3],
    /// The program's workspace.
    pub workspace: *mut c_void,
    /// Its size.
    pub bytes: usize,
}

/// How our part of a call ended.
pub enum CallResult {
    /// It ran, or failed with nothing left to try.
    Done(CudnnStatus),
    /// The algorithm itself should run; with the bytes that it needs, if known.
    Forward(Option<usize>),
}

/// Runs our configuration of a call.
///
/// # Safety
/// As the C function's; `own_workspace` returns the workspace of the algorithm itself.
pub unsafe fn run_number(
    process: &Process,
    request: Request,
    call: NumberedCall,
    own_workspace: impl Fn() -> Option<usize>,
) -> CallResult {
    report::on_call(process);
    let count = |reason| process.counts.count(reason, call.function);
    let left = |reason, own| {
        count(reason);
        CallResult::Forward(own)
    };
    if call.alpha.is_null() || call.beta.is_null() {
        return left(Reason::Attribute, None);
    }
    // SAFETY: factors of the types that are recognized are floats; others are not looked at.
    let scale = unsafe { Scale { alpha: *call.alpha.cast::<f32>(), beta: *call.beta.cast::<f32>() } };
    let addresses = call.tensors.map(|tensor| tensor as u64);
    let base = 1 << addresses.iter().fold(16, |all, address| all | address).trailing_zeros();
    // SAFETY: forwarded to the caller.
    let (kernel, action) = match unsafe { request.action(process, scale, base, &own_workspace) } {
        Ok(decided) => decided,
        Err(reason) => return left(reason, None),
    };
    let own = usize::try_from(kernel.question.chosen.workspace.0).ok();
    kernel.count();
    let program = match action {
        Action::Kept => return CallResult::Forward(own),
        Action::Left(reason) => return left(reason, own),
        Action::Shared => {
            // SAFETY: the caller owes tensors of the descriptors' sizes.
            let done =
                unsafe { run_in_total(process, request.handle, &kernel, (scale, base), addresses.map(DevicePtr)) };
            return CallResult::Done(done.unwrap_or_else(|reason| {
                count(reason);
                CudnnStatus::EXECUTION_FAILED
            }));
        }
        Action::Ours(program) => program,
    };
    let enqueue = |workspace: *mut c_void| {
        // SAFETY: the caller owes tensors of the descriptors' sizes and a workspace of the bytes it gives.
        unsafe { program.enqueue(addresses.map(DevicePtr), DevicePtr(workspace as u64)) }
    };
    if program.workspace() > call.bytes {
        // Undivided it would need still more, and the program may have sized this call by our answer.
        let is_sized_by_us = process.loans.at_most(call.bytes) >= own && own > Some(call.bytes);
        // SAFETY: forwarded to the caller.
        let lend = || unsafe { lend(process, request.handle, program.workspace(), enqueue) };
        let lent = is_sized_by_us.then(lend);
        return match lent {
            Some(Ok(result)) => {
                count(Reason::Lent);
                CallResult::Done(status_of(result))
            }
            _ => left(Reason::Workspace, own),
        };
    }
    match enqueue(call.workspace) {
        // The output is written again, and the workspace is large enough for the algorithm itself.
        Err(failure)
            if (!failure.is_begun || scale.beta == 0.0) && own_workspace().is_some_and(|bytes| bytes <= call.bytes) =>
        {
            if kernel.can_run_own() {
                kernel.give_up();
            }
            left(failed(failure.error), own)
        }
        result => CallResult::Done(status_of(result)),
    }
}

/// Runs the algorithm itself in a lent workspace, if our answer made the program's own too small, or `None` if it should
/// run unchanged.
///
/// # Safety
/// As the C function's; `enqueue` is the call in another workspace.
pub unsafe fn run_in_loan(
    process: &Process,
    handle: Handle,
    function: Function,
    given: usize,
    own: impl FnOnce() -> Option<usize>,
    enqueue: impl FnOnce(*mut c_void, usize) -> CudnnStatus,
) -> Option<CudnnStatus> {
    let most = process.loans.at_most(given)?;
    let needed = own().filter(|needed| (given + 1..=most).contains(needed))?;
    // SAFETY: forwarded to the caller.
    match unsafe { lend(process, handle, needed, |workspace| enqueue(workspace, needed)) } {
        Ok(status) => {
            process.counts.count(Reason::Lent, function);
            Some(status)
        }
        Err(reason) => {
            process.counts.count(reason, function);
            None
        }
    }
}

/// Runs `enqueue` in a lent workspace of this many bytes.
///
/// # Errors
/// The reason why nothing was lent, in which case nothing was run.
///
/// # Safety
/// The handle is alive and used on this thread; `enqueue` enqueues on its stream only.
pub unsafe fn lend<T>(
    process: &Process,
    handle: Handle,
    bytes: usize,
    enqueue: impl FnOnce(*mut c_void) -> T,
) -> Result<T, Reason> {
    let (host, device) = place(process)?;
    // SAFETY: forwarded to the caller, whose thread works on this device.
    unsafe { process.loans.lend(host, device, handle, bytes, enqueue) }
}
