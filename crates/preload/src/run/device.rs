//! Shared by all ways of running: the device, a part of the total, the status.

use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::{CudnnStatus, Handle};
use tightfit_cuda::{CudaError, GuestProgram, Host, NotEnqueued};

use crate::decide::device;
use crate::kernel::Kernel;
use crate::lock::lock;
use crate::log::trace;
use crate::process::Process;
use crate::reason::{Reason, failed};

/// Runs a kernel on these tensors in its part of the total.
///
/// # Errors
/// The reason why nothing was enqueued.
///
/// # Safety
/// The handle is alive and used on this thread; the tensors are of the kernel's sizes, as for
/// [`GuestProgram::enqueue`].
pub unsafe fn run_in_total(
    process: &Process,
    handle: Handle,
    kernel: &Arc<Kernel>,
    (scale, base): (Scale, usize),
    tensors: [DevicePtr; 3],
) -> Result<CudnnStatus, Reason> {
    let host = process.host().ok_or(Reason::Failed)?;
    let _beside = host.beside_captures().map_err(failed)?;
    // SAFETY: forwarded to the caller.
    let session = unsafe { process.sessions.on(host, handle, kernel.question.device) }.map_err(failed)?;
    let mut session = lock(&session);
    let enqueue = |program: &GuestProgram, workspace| {
        // SAFETY: forwarded to the caller; the part is as large as the program's workspace, and no other kernel's
        // meanwhile.
        status_of(unsafe { program.enqueue(tensors, workspace) })
    };
    // SAFETY: forwarded to the caller.
    unsafe { process.totals.run(host, handle, kernel, &mut session, (scale, base), enqueue) }
}

/// Where the calling thread works.
///
/// # Errors
/// The reason why we may not run anything there.
pub fn place(process: &Process) -> Result<(&Host, usize), Reason> {
    let settings = process.settings().ok_or(Reason::Device)?;
    let host = process.host().ok_or(Reason::Failed)?;
    Ok((host, device(host, settings)?))
}

/// The status for how our run ended.
pub fn status_of(result: Result<(), NotEnqueued>) -> CudnnStatus {
    match result {
        Ok(()) => CudnnStatus::SUCCESS,
        Err(NotEnqueued { error, .. }) => {
            trace!("{error}");
            match error {
                CudaError::Cudnn { status, .. } => status,
                CudaError::Misaligned { .. } => CudnnStatus::BAD_PARAM_MISALIGNED_POINTER,
                _ => CudnnStatus::EXECUTION_FAILED,
            }
        }
    }
}
