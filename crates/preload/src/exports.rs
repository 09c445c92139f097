//! The functions of the backend interface that are not just handed on. Each hands the call on first or decides first, and
//! does its own part behind a wall: whatever panics or fails there, the program gets what cuDNN alone would have given.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

use tightfit_core::profile::Scale;
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::{Attribute, BackendDescriptor, CudnnStatus, ElementType, Handle, Kind};
use tightfit_cuda::{CudaError, GuestProgram, NotEnqueued};

use crate::kernel::Kernel;
use crate::log::tell;
use crate::plan::{Choice, Decision, Ours, Plan, consider, device, failed, set_up};
use crate::reason::{Function, Reason, count};
use crate::session::{forget, session};
use crate::settings::settings;
use crate::shadow::{self, Made, Pack, Value};
use crate::trampolines::hand_on;
use crate::{original, report, total};

/// Runs our part of a call; none if it panicked.
pub fn behind_wall<T>(part: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(part)).map_err(|_| tell!("a decision panicked; the call goes on as it is")).ok()
}

/// Our part of a call, where anything is asked for at all.
fn aside(part: impl FnOnce()) {
    if settings().is_some() {
        behind_wall(part);
    }
}

fn address(descriptor: BackendDescriptor) -> shadow::Address {
    descriptor.0 as shadow::Address
}

/// cuDNN's function of this name.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroy(handle: Handle) -> CudnnStatus {
    aside(|| forget(handle));
    hand_on!(cudnnDestroy(handle: Handle) -> CudnnStatus)
}

/// cuDNN's function of this name; begins a shadow.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: Kind, descriptor: *mut BackendDescriptor) -> CudnnStatus {
    let status = hand_on!(cudnnBackendCreateDescriptor(kind: Kind, descriptor: *mut BackendDescriptor) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS {
        // SAFETY: the call succeeded, so it wrote a descriptor there.
        aside(|| shadow::create(address(unsafe { *descriptor }), kind));
    }
    status
}

/// cuDNN's function of this name; ends a shadow.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: BackendDescriptor) -> CudnnStatus {
    // First, since the address may be given out again as soon as the call returns.
    aside(|| shadow::destroy(address(descriptor)));
    hand_on!(cudnnBackendDestroyDescriptor(descriptor: BackendDescriptor) -> CudnnStatus)
}

/// cuDNN's function of this name; the shadow keeps what cuDNN accepted.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendSetAttribute(
    descriptor: BackendDescriptor,
    attribute: Attribute,
    element: ElementType,
    len: i64,
    array: *const c_void,
) -> CudnnStatus {
    let status = hand_on!(cudnnBackendSetAttribute(descriptor: BackendDescriptor, attribute: Attribute, element: ElementType, len: i64, array: *const c_void) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS {
        aside(|| {
            // SAFETY: cuDNN accepted `len` elements of the type at `array`.
            let value = unsafe { Value::read(element, len, array) };
            shadow::set(address(descriptor), attribute, value);
        });
    }
    status
}

/// cuDNN's function of this name; a plan is decided about here, before anybody can ask for its workspace.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendFinalize(descriptor: BackendDescriptor) -> CudnnStatus {
    let status = hand_on!(cudnnBackendFinalize(descriptor: BackendDescriptor) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS {
        aside(|| {
            let Some((kind, attributes)) = shadow::take_attributes(address(descriptor)) else { return };
            let made = Made::new(kind, &attributes);
            // Known before it is decided about: should that panic, the plan is one that was left.
            shadow::fill(address(descriptor), made.clone());
            if let Made::NewPlan(graph) = made {
                // SAFETY: the plan was finalized by the caller just now, who keeps the handle of its graph alive and uses it
                // on this thread.
                let decision = unsafe { consider(&graph, Choice::Plan(descriptor), true) };
                shadow::fill(address(descriptor), Made::Plan(Arc::new(Plan { graph: Some(graph), decision })));
            }
        });
    }
    status
}

/// `CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API`
const NATIVE_GRAPH: i32 = 3;

/// cuDNN's function of this name; workspaces are those of what will run, and what is filled with objects learns its graph.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendGetAttribute(
    descriptor: BackendDescriptor,
    attribute: Attribute,
    element: ElementType,
    requested: i64,
    count: *mut i64,
    array: *mut c_void,
) -> CudnnStatus {
    // The caller's place for the count may be null.
    let mut given = 0;
    let place: *mut i64 = &mut given;
    let status = hand_on!(cudnnBackendGetAttribute(descriptor: BackendDescriptor, attribute: Attribute, element: ElementType, requested: i64, place: *mut i64, array: *mut c_void) -> CudnnStatus);
    if !count.is_null() {
        // SAFETY: the caller's place for it.
        unsafe { *count = given };
    }
    if status != CudnnStatus::SUCCESS || array.is_null() || requested < 1 {
        return status;
    }
    aside(|| {
        let filled = usize::try_from(given.min(requested)).unwrap_or(0);
        match attribute {
            Attribute::ENGINECFG_WORKSPACE_SIZE | Attribute::EXECUTION_PLAN_WORKSPACE_SIZE if filled == 1 => {
                if let Some(bytes) = workspace(descriptor) {
                    // SAFETY: cuDNN wrote one 64-bit integer there.
                    unsafe { *array.cast::<i64>() = bytes as i64 };
                }
            }
            // ENGINE_BEHAVIOR_NOTE: a graph of the engine's own kernels would take the workspace that we did not ask for.
            Attribute(1305) if is_ours_to_divide(descriptor) => {
                // SAFETY: cuDNN wrote that many notes there.
                let notes = unsafe { std::slice::from_raw_parts_mut(array.cast::<i32>(), filled) };
                let kept: Vec<i32> = notes.iter().copied().filter(|note| *note != NATIVE_GRAPH).collect();
                notes[..kept.len()].copy_from_slice(&kept);
                if !count.is_null() && kept.len() < filled {
                    // SAFETY: the caller's place for it.
                    unsafe { *count = given - (filled - kept.len()) as i64 };
                }
            }
            _ if element == ElementType::BACKEND_DESCRIPTOR => {
                let graph = shadow::made(address(descriptor)).and_then(|made| made.graph());
                // SAFETY: the caller put that many descriptors there, and cuDNN filled them.
                let objects = unsafe { std::slice::from_raw_parts(array.cast::<BackendDescriptor>(), filled) };
                for object in objects {
                    let made = graph.clone().map_or(Made::Other, Made::Of);
                    shadow::fill(address(*object), made);
                }
            }
            _ => {}
        }
    });
    status
}

/// Whether an engine's graph is a convolution that may be divided.
fn is_ours_to_divide(engine: BackendDescriptor) -> bool {
    let graph = shadow::made(address(engine)).and_then(|made| made.graph());
    graph.is_some_and(|graph| graph.convolution.is_ok())
}

/// Bytes of workspace to tell of a configuration or a plan in place of its own.
fn workspace(descriptor: BackendDescriptor) -> Option<usize> {
    match shadow::made(address(descriptor))? {
        Made::Plan(plan) => plan.workspace(),
        Made::Of(graph) if graph.convolution.is_ok() => {
            // SAFETY: the caller asks about it, so it is alive, as is the handle of its graph.
            match unsafe { consider(&graph, Choice::Configuration(descriptor), false) } {
                Decision::Ours(ours) => Some(ours.program.workspace()),
                Decision::Shared(_) => Some(0),
                Decision::Kept(_) | Decision::Left(..) => None,
            }
        }
        _ => None,
    }
}

/// What a plan's shadow is.
fn plan_of(descriptor: BackendDescriptor) -> Option<Arc<Plan>> {
    match shadow::made(address(descriptor))? {
        Made::Plan(plan) => Some(plan),
        _ => None,
    }
}

/// cuDNN's function of this name; runs our configuration where one was chosen.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendExecute(
    handle: Handle,
    plan: BackendDescriptor,
    pack: BackendDescriptor,
) -> CudnnStatus {
    if settings().is_some() {
        // SAFETY: forwarded to the caller.
        let done = behind_wall(|| unsafe { execute(handle, plan, pack) });
        match done {
            Some(Some(status)) => return status,
            Some(None) => {}
            None => count(Reason::Panicked, Function::cudnnBackendExecute),
        }
    }
    hand_on!(cudnnBackendExecute(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor) -> CudnnStatus)
}

/// Runs our configuration of a plan; none where the plan itself is to run.
///
/// # Safety
/// As `cudnnBackendExecute`'s.
unsafe fn execute(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor) -> Option<CudnnStatus> {
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
            kernel.count();
            None
        }
        Decision::Shared(kernel) => {
            kernel.count();
            // SAFETY: forwarded to the caller.
            let done = unsafe { run_shared(handle, &plan, kernel, pack) };
            Some(done.unwrap_or(CudnnStatus::EXECUTION_FAILED))
        }
        Decision::Ours(ours) => {
            ours.kernel.count();
            // SAFETY: forwarded to the caller.
            Some(unsafe { run(handle, &plan, ours, pack) })
        }
    }
}

/// Runs a configuration. The program has less workspace than its own plan needs, so that nothing but an error is left where
/// this fails.
///
/// # Safety
/// As `cudnnBackendExecute`'s.
unsafe fn run(handle: Handle, plan: &Plan, ours: &Ours, pack: BackendDescriptor) -> CudnnStatus {
    let Some(Made::Pack(pack)) = shadow::made(address(pack)) else { return CudnnStatus::BAD_PARAM_NOT_FINALIZED };
    let Some(Ok(recognized)) = plan.graph.as_ref().map(|graph| graph.convolution.as_ref()) else {
        return CudnnStatus::BAD_PARAM;
    };
    if pack.is_special {
        return CudnnStatus::NOT_SUPPORTED;
    }
    // SAFETY: forwarded to the caller.
    let Some(program) = (unsafe { on_handle(handle, plan, ours) }) else { return CudnnStatus::EXECUTION_FAILED };
    let [Some(data), Some(other), Some(output)] = recognized.ids.map(|id| pack.address(id)) else {
        return CudnnStatus::BAD_PARAM;
    };
    // SAFETY: the caller owes tensors of the graph's sizes and a workspace of the size that it was told.
    status_of(unsafe { program.enqueue([data, other, output].map(DevicePtr), workspace_of(&pack)) })
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
    let Some(Made::Pack(pack)) = shadow::made(address(pack)) else { return Ok(CudnnStatus::BAD_PARAM_NOT_FINALIZED) };
    let graph = plan.graph.as_ref().ok_or(Reason::Descriptor)?;
    let recognized = graph.convolution.as_ref().map_err(|reason| *reason)?;
    let [Some(data), Some(other), Some(output)] = recognized.ids.map(|id| pack.address(id)) else {
        return Ok(CudnnStatus::BAD_PARAM);
    };
    // SAFETY: the caller owes tensors of the graph's sizes.
    unsafe { in_total(handle, kernel, (recognized.scale, recognized.base), [data, other, output].map(DevicePtr)) }
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
    // SAFETY: forwarded to the caller.
    let session = unsafe { session(host, handle, kernel.question.device) }.map_err(failed)?;
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    let enqueue = |program: &GuestProgram, workspace| {
        // SAFETY: forwarded to the caller; the part is as large as the program's workspace, and nobody else's meanwhile.
        status_of(unsafe { program.enqueue(tensors, workspace) })
    };
    // SAFETY: forwarded to the caller.
    unsafe { total::run(host, handle, kernel, &mut session, (scale, base), enqueue) }
}

fn workspace_of(pack: &Pack) -> DevicePtr {
    DevicePtr(pack.workspace)
}

/// The configuration's program on the handle that executes, which need not be the one that the graph was made with.
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
    let session = unsafe { session(host, handle, device) }.ok()?;
    let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
    match set_up(ours.kernel.clone(), recognized, &mut session, handle.0 as usize) {
        Ok(Decision::Ours(ours)) => Some(ours.program),
        _ => None,
    }
}

/// The status that says how a run of ours ended.
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

/// cuDNN's function of this name; a divided plan has no graph of its own kernels to give.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendPopulateCudaGraph(
    handle: Handle,
    plan: BackendDescriptor,
    pack: BackendDescriptor,
    graph: *mut c_void,
) -> CudnnStatus {
    if refuses_graph(plan, Function::cudnnBackendPopulateCudaGraph) {
        return CudnnStatus::NOT_SUPPORTED;
    }
    hand_on!(cudnnBackendPopulateCudaGraph(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor, graph: *mut c_void) -> CudnnStatus)
}

/// cuDNN's function of this name; as [`cudnnBackendPopulateCudaGraph`].
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendUpdateCudaGraph(
    handle: Handle,
    plan: BackendDescriptor,
    pack: BackendDescriptor,
    graph: *mut c_void,
) -> CudnnStatus {
    if refuses_graph(plan, Function::cudnnBackendUpdateCudaGraph) {
        return CudnnStatus::NOT_SUPPORTED;
    }
    hand_on!(cudnnBackendUpdateCudaGraph(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor, graph: *mut c_void) -> CudnnStatus)
}

fn refuses_graph(plan: BackendDescriptor, function: Function) -> bool {
    let refuses = settings().is_some() && behind_wall(|| plan_of(plan)?.workspace()).flatten().is_some();
    if settings().is_some() {
        count(Reason::NativeGraph, function);
    }
    refuses
}

/// cuDNN's function of this name: the third way to ask for a plan's workspace.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetExecutionPlanWorkspaceSize(
    handle: Handle,
    plan: BackendDescriptor,
    pack: BackendDescriptor,
    bytes: *mut usize,
) -> CudnnStatus {
    let status = hand_on!(cudnnGetExecutionPlanWorkspaceSize(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor, bytes: *mut usize) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS
        && !bytes.is_null()
        && settings().is_some()
        && let Some(ours) = behind_wall(|| plan_of(plan)?.workspace()).flatten()
    {
        // SAFETY: cuDNN wrote a size there.
        unsafe { *bytes = ours };
    }
    status
}
