//! The functions of the backend interface that do more than forward. Each forwards the call first or decides first, and
//! catches panics of our code. After a panic or failure, the program gets the same result as from cuDNN alone.

use std::ffi::c_void;

use tightfit_cuda::sys::cudnn::{Attribute, BackendDescriptor, BehaviorNote, CudnnStatus, ElementType, Handle, Kind};

use crate::decide::{decide_configuration, decide_plan, graph_of};
use crate::decision::Notes;
use crate::forward::forward;
use crate::panics::catch_panics;
use crate::process::{Process, active};
use crate::reason::{Function, Reason};
use crate::run::{decision_of, run_plan};
use crate::shadow::Address;

/// Runs our part of a call, if the settings ask for any.
fn aside(part: impl FnOnce(&Process)) {
    if let Some(process) = active() {
        catch_panics(|| part(process));
    }
}

/// A descriptor's address, the key of its shadow.
fn address(descriptor: BackendDescriptor) -> Address {
    descriptor.0 as Address
}

/// cuDNN's function of this name.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroy(handle: Handle) -> CudnnStatus {
    aside(|process| process.sessions.forget(handle));
    forward!(cudnnDestroy(handle: Handle) -> CudnnStatus)
}

/// cuDNN's function of this name; begins a shadow.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendCreateDescriptor(kind: Kind, descriptor: *mut BackendDescriptor) -> CudnnStatus {
    let status = forward!(cudnnBackendCreateDescriptor(kind: Kind, descriptor: *mut BackendDescriptor) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS {
        // SAFETY: the call succeeded, so it wrote a descriptor there.
        aside(|process| process.shadows.create(address(unsafe { *descriptor }), kind));
    }
    status
}

/// cuDNN's function of this name; ends a shadow.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendDestroyDescriptor(descriptor: BackendDescriptor) -> CudnnStatus {
    // This comes first, because the address may be reused as soon as the call returns.
    aside(|process| process.shadows.destroy(address(descriptor)));
    forward!(cudnnBackendDestroyDescriptor(descriptor: BackendDescriptor) -> CudnnStatus)
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
    let status = forward!(cudnnBackendSetAttribute(descriptor: BackendDescriptor, attribute: Attribute, element: ElementType, len: i64, array: *const c_void) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS {
        // SAFETY: cuDNN accepted `len` elements of the type at `array`.
        aside(|process| unsafe { process.shadows.set(address(descriptor), attribute, (element, len, array)) });
    }
    status
}

/// cuDNN's function of this name; decides about a plan, before the program can ask for its workspace.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendFinalize(descriptor: BackendDescriptor) -> CudnnStatus {
    let status = forward!(cudnnBackendFinalize(descriptor: BackendDescriptor) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS {
        aside(|process| {
            // The object is stored before the decision, so that a panic there leaves the plan unchanged.
            let Some(object) = process.shadows.finalize(address(descriptor)) else { return };
            if object.kind == Kind::EXECUTION_PLAN {
                // SAFETY: the plan was finalized by the caller just now, who keeps the handle of its graph alive and
                // uses it on this thread.
                unsafe { decide_plan(process, &object, descriptor) };
            } else if let Some(graph) = graph_of(&object) {
                // Plans live long, and need no more of it than the graph.
                process.shadows.fill(address(descriptor), Notes::of(Some(graph)));
            }
        });
    }
    status
}

/// cuDNN's function of this name; workspaces belong to the choice that will run, and an attribute that is filled with
/// objects learns its graph.
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
    let status = forward!(cudnnBackendGetAttribute(descriptor: BackendDescriptor, attribute: Attribute, element: ElementType, requested: i64, place: *mut i64, array: *mut c_void) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS && !count.is_null() {
        // SAFETY: the caller's place for it.
        unsafe { *count = given };
    }
    if status != CudnnStatus::SUCCESS || array.is_null() || requested < 1 {
        return status;
    }
    aside(|process| {
        let filled = usize::try_from(given.min(requested)).unwrap_or(0);
        match attribute {
            Attribute::ENGINECFG_WORKSPACE_SIZE | Attribute::EXECUTION_PLAN_WORKSPACE_SIZE if filled == 1 => {
                if let Some(bytes) = workspace(process, descriptor) {
                    // SAFETY: cuDNN wrote one 64-bit integer there.
                    unsafe { *array.cast::<i64>() = bytes as i64 };
                }
            }
            // A graph of the engine's own kernels would take the workspace that we did not ask for.
            Attribute::ENGINE_BEHAVIOR_NOTE if is_ours_to_divide(process, descriptor) => {
                // SAFETY: cuDNN wrote that many notes there.
                let notes = unsafe { std::slice::from_raw_parts_mut(array.cast::<BehaviorNote>(), filled) };
                let is_kept = |note: &BehaviorNote| *note != BehaviorNote::SUPPORTS_CUDA_GRAPH_NATIVE_API;
                let kept: Vec<BehaviorNote> = notes.iter().copied().filter(is_kept).collect();
                notes[..kept.len()].copy_from_slice(&kept);
                if !count.is_null() && kept.len() < filled {
                    // SAFETY: the caller's place for it.
                    unsafe { *count = given - (filled - kept.len()) as i64 };
                }
            }
            _ if element == ElementType::BACKEND_DESCRIPTOR => {
                let graph = process.shadows.object(address(descriptor)).and_then(|object| graph_of(&object));
                // SAFETY: the caller put that many descriptors there, and cuDNN filled them.
                let objects = unsafe { std::slice::from_raw_parts(array.cast::<BackendDescriptor>(), filled) };
                for object in objects {
                    process.shadows.fill(address(*object), Notes::of(graph.clone()));
                }
            }
            _ => {}
        }
    });
    status
}

/// Whether an engine's graph is a convolution that may be divided.
fn is_ours_to_divide(process: &Process, engine: BackendDescriptor) -> bool {
    let graph = process.shadows.object(address(engine)).and_then(|object| graph_of(&object));
    graph.is_some_and(|graph| graph.computation.is_ok())
}

/// Bytes of workspace to report for a configuration or a plan in place of cuDNN's.
fn workspace(process: &Process, descriptor: BackendDescriptor) -> Option<usize> {
    let object = process.shadows.object(address(descriptor))?;
    match object.kind {
        Kind::EXECUTION_PLAN => object.notes.decision.get()?.workspace(),
        // SAFETY: the caller asks about it, so it is alive, as is the handle of its graph.
        Kind::ENGINECFG => unsafe { decide_configuration(process, &object, descriptor) }?.workspace(),
        _ => None,
    }
}

/// Bytes of workspace that were reported for a plan in place of cuDNN's.
fn replacement(process: &Process, plan: BackendDescriptor) -> Option<usize> {
    decision_of(process, plan)?.workspace()
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
    if let Some(process) = active() {
        // SAFETY: forwarded to the caller.
        match catch_panics(|| unsafe { run_plan(process, handle, plan, pack) }) {
            Some(Some(status)) => return status,
            Some(None) => {}
            None => {
                process.counts.count(Reason::Panicked, Function::cudnnBackendExecute);
                // The workspace is not sized for the plan itself, so the call must not be forwarded.
                if catch_panics(|| replacement(process, plan)) != Some(None) {
                    return CudnnStatus::EXECUTION_FAILED;
                }
            }
        }
    }
    forward!(cudnnBackendExecute(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor) -> CudnnStatus)
}

/// cuDNN's function of this name; a divided plan has no single graph of kernels to return.
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
    forward!(cudnnBackendPopulateCudaGraph(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor, graph: *mut c_void) -> CudnnStatus)
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
    forward!(cudnnBackendUpdateCudaGraph(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor, graph: *mut c_void) -> CudnnStatus)
}

fn refuses_graph(plan: BackendDescriptor, function: Function) -> bool {
    let Some(process) = active() else { return false };
    process.counts.count(Reason::NativeGraph, function);
    catch_panics(|| replacement(process, plan)).flatten().is_some()
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
    let status = forward!(cudnnGetExecutionPlanWorkspaceSize(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor, bytes: *mut usize) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS
        && !bytes.is_null()
        && let Some(process) = active()
        && let Some(ours) = catch_panics(|| replacement(process, plan)).flatten()
    {
        // SAFETY: cuDNN wrote a size there.
        unsafe { *bytes = ours };
    }
    status
}
