//! Runs what was decided: our configuration in the program's workspace, or in its part of the total.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use tightfit_core::backend::Scale;
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::{BackendDescriptor, CudnnStatus, Handle};
use tightfit_cuda::{CudaError, GuestProgram, NotEnqueued};

use crate::exports::{address, plan_of};
use crate::kernel::Kernel;
use crate::log::tell;
use crate::plan::{Decision, Ours, Plan, device, failed, ready};
use crate::reason::{Function, Reason, count};
use crate::session::session;
use crate::settings::settings;
use crate::shadow::{self, Made};
use crate::{original, report, total};

/// Runs our part of a call and catches panics; none if it panicked.
pub fn catch_panics<T>(part: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(part)).map_err(|_| tell!("a decision panicked; passing the call through")).ok()
}

/// Panics if a test asks for it; never in a release build.
fn panic_if_asked() {
    if cfg!(debug_assertions) && std::env::var_os("TIGHTFIT_TEST_PANIC").is_some() {
        std::panic::panic_any("asked for by TIGHTFIT_TEST_PANIC");
    }
}

/// Runs our configuration of a plan; none if the plan itself should run.
///
/// # Safety
/// As `cudnnBackendExecute`'s.
pub unsafe fn execute(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor) -> Option<CudnnStatus> {
    report::on_call();
    let left = |reason| count(reason, Function::cudnnBackendExecute);
    let Some(plan) = plan_of(plan) else {
        left(Reason::Descriptor);
        return None;
    };
    match &plan.decision {
        Decision::Left(reason, kernel) => {
            left(*reason);
            kernel.iter().for_each(|kernel| kernel.count());
            None
        }
        Decision::Kept(kernel) => {
            panic_if_asked();
            kernel.count();
            None
        }
        Decision::Shared(kernel) => {
            panic_if_asked();
            kernel.count();
            // SAFETY: forwarded to the caller.
            let done = unsafe { run_shared(handle, &plan, kernel, pack) };
            Some(done.unwrap_or_else(|reason| {
                left(reason);
                CudnnStatus::EXECUTION_FAILED
            }))
        }
        Decision::Ours(ours) => {
            panic_if_asked();
            ours.kernel.count();
            // SAFETY: forwarded to the caller.
            Some(unsafe { run(handle, &plan, ours, pack) })
        }
    }
}

/// Runs a configuration. If this fails, the only option left is an error, because the program has less workspace than
/// its own plan needs.
///
/// # Safety
/// As `cudnnBackendExecute`'s.
unsafe fn run(handle: Handle, plan: &Plan, ours: &Ours, pack: BackendDescriptor) -> CudnnStatus {
    let given = match Given::read(plan, pack) {
        Ok(given) => given,
        Err(status) => return status,
    };
    // SAFETY: forwarded to the caller.
    let Some(program) = (unsafe { on_handle(handle, plan, ours) }) else {
        count(Reason::Failed, Function::cudnnBackendExecute);
        return CudnnStatus::EXECUTION_FAILED;
    };
    // SAFETY: the caller owes tensors of the graph's sizes and a workspace of the size that it was told.
    status_of(unsafe { program.enqueue(given.tensors, given.workspace) })
}

/// What a variant pack gives a plan.
struct Given {
    scale: Scale,
    base: usize,
    /// Data, other and output.
    tensors: [DevicePtr; 3],
    workspace: DevicePtr,
}

impl Given {
    /// Reads it.
    ///
    /// # Errors
    /// The status to return: `NOT_SUPPORTED` for a pack that sets more than addresses, such as other shapes.
    fn read(plan: &Plan, pack: BackendDescriptor) -> Result<Given, CudnnStatus> {
        let Some(Made::Pack(pack)) = shadow::made(address(pack)) else {
            return Err(CudnnStatus::BAD_PARAM_NOT_FINALIZED);
        };
        let Some(Ok(recognized)) = plan.graph.as_ref().map(|graph| graph.convolution.as_ref()) else {
            return Err(CudnnStatus::BAD_PARAM);
        };
        if pack.is_special {
            return Err(CudnnStatus::NOT_SUPPORTED);
        }
        let [Some(data), Some(other), Some(output)] = recognized.ids.map(|id| pack.address(id)) else {
            return Err(CudnnStatus::BAD_PARAM);
        };
        let tensors = [data, other, output].map(DevicePtr);
        Ok(Given { scale: recognized.scale, base: recognized.base, tensors, workspace: DevicePtr(pack.workspace) })
    }
}

/// Runs a kernel in its part of the total.
///
/// # Safety
/// As `cudnnBackendExecute`'s.
unsafe fn run_shared(
    handle: Handle,
    plan: &Plan,
    kernel: &Arc<Kernel>,
    pack: BackendDescriptor,
) -> Result<CudnnStatus, Reason> {
    let given = match Given::read(plan, pack) {
        Ok(given) => given,
        Err(status) => return Ok(status),
    };
    // SAFETY: the caller owes tensors of the graph's sizes.
    unsafe { in_total(handle, kernel, (given.scale, given.base), given.tensors) }
}

/// Runs a kernel on these tensors in its part of the total.
///
/// # Errors
/// The reason why nothing was enqueued.
///
/// # Safety
/// The handle is alive and used on this thread; the tensors are of the kernel's sizes, as for
/// [`GuestProgram::enqueue`].
pub unsafe fn in_total(
    handle: Handle,
    kernel: &Arc<Kernel>,
    (scale, base): (Scale, usize),
    tensors: [DevicePtr; 3],
) -> Result<CudnnStatus, Reason> {
    let host = original::host().ok_or(Reason::Failed)?;
    let _beside = host.beside_captures().map_err(failed)?;
    // SAFETY: forwarded to the caller.
    let session = unsafe { session(host, handle, kernel.question.device) }.map_err(failed)?;
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    let enqueue = |program: &GuestProgram, workspace| {
        // SAFETY: forwarded to the caller; the part is as large as the program's workspace, and nobody else's
        // meanwhile.
        status_of(unsafe { program.enqueue(tensors, workspace) })
    };
    // SAFETY: forwarded to the caller.
    unsafe { total::run(host, handle, kernel, &mut session, (scale, base), enqueue) }
}

/// The configuration's program on the executing handle, which may differ from the one that the graph was made with.
///
/// # Safety
/// `handle` is alive and used on this thread.
unsafe fn on_handle(handle: Handle, plan: &Plan, ours: &Ours) -> Option<Arc<GuestProgram>> {
    if handle.0 as usize == ours.handle {
        return Some(ours.program.clone());
    }
    let recognized = plan.graph.as_ref()?.convolution.as_ref().ok()?;
    let host = original::host()?;
    let device = device(host, settings()?).ok()?;
    // SAFETY: forwarded to the caller.
    match unsafe { ready(host, device, ours.kernel.clone(), recognized, handle) } {
        Ok(Decision::Ours(ours)) => Some(ours.program),
        _ => None,
    }
}

/// The status for how our run ended.
pub fn status_of(result: Result<(), NotEnqueued>) -> CudnnStatus {
    match result {
        Ok(()) => CudnnStatus::SUCCESS,
        Err(NotEnqueued { error, .. }) => {
            tell!("{error}");
            match error {
                CudaError::Cudnn { status, .. } => status,
                CudaError::Misaligned { .. } => CudnnStatus::BAD_PARAM_MISALIGNED_POINTER,
                _ => CudnnStatus::EXECUTION_FAILED,
            }
        }
    }
}
