//! The functions of the backend interface that do more than forward. Each forwards the call first or decides first, and
//! catches panics in its own part: whatever panics or fails there, the program gets what cuDNN alone would have
//! returned.

use std::ffi::c_void;
use std::sync::Arc;

use tightfit_cuda::sys::cudnn::{Attribute, BackendDescriptor, BehaviorNote, CudnnStatus, ElementType, Handle, Kind};

use crate::plan::{Choice, Plan, consider};
use crate::reason::{Function, Reason, count};
use crate::run::{catch_panics, execute};
use crate::session::forget;
use crate::settings::settings;
use crate::shadow::{self, Made, Value};
use crate::trampolines::forward;

/// Runs our part of a call, if there are any settings.
fn aside(part: impl FnOnce()) {
    if settings().is_some() {
        catch_panics(part);
    }
}

/// A descriptor's address, the key of its shadow.
pub fn address(descriptor: BackendDescriptor) -> shadow::Address {
    descriptor.0 as shadow::Address
}

/// cuDNN's function of this name.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroy(handle: Handle) -> CudnnStatus {
    aside(|| forget(handle));
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
    // This comes first, because the address may be reused as soon as the call returns.
    aside(|| shadow::destroy(address(descriptor)));
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
        aside(|| {
            // SAFETY: cuDNN accepted `len` elements of the type at `array`.
            let value = unsafe { Value::read(element, len, array) };
            shadow::set(address(descriptor), attribute, value);
        });
    }
    status
}

/// cuDNN's function of this name; decides about a plan, before anybody can ask for its workspace.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnBackendFinalize(descriptor: BackendDescriptor) -> CudnnStatus {
    let status = forward!(cudnnBackendFinalize(descriptor: BackendDescriptor) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS {
        aside(|| {
            let Some((kind, attributes)) = shadow::take_attributes(address(descriptor)) else { return };
            let made = Made::new(kind, &attributes);
            // Stored before the decision, so that a panic there leaves the plan unchanged.
            shadow::fill(address(descriptor), made.clone());
            if let Made::NewPlan(graph, asked) = made {
                let told = asked.filter(|asked| Arc::ptr_eq(&asked.graph, &graph));
                let decision = match told.and_then(|asked| asked.decision.get().cloned()) {
                    Some(decision) => {
                        if let Some(kernel) = decision.kernel() {
                            graph.admit(kernel.question.chosen.notes);
                        }
                        decision
                    }
                    // SAFETY: the plan was finalized by the caller just now, who keeps the handle of its graph alive
                    // and uses it on this thread.
                    None => unsafe { consider(&graph, Choice::Plan(descriptor), true) },
                };
                shadow::fill(address(descriptor), Made::Plan(Arc::new(Plan { graph: Some(graph), decision })));
            }
        });
    }
    status
}

/// cuDNN's function of this name; workspaces are those of what will run, and what is filled with objects learns its
/// graph.
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
    aside(|| {
        let filled = usize::try_from(given.min(requested)).unwrap_or(0);
        match attribute {
            Attribute::ENGINECFG_WORKSPACE_SIZE | Attribute::EXECUTION_PLAN_WORKSPACE_SIZE if filled == 1 => {
                if let Some(bytes) = workspace(descriptor) {
                    // SAFETY: cuDNN wrote one 64-bit integer there.
                    unsafe { *array.cast::<i64>() = bytes as i64 };
                }
            }
            // A graph of the engine's own kernels would take the workspace that we did not ask for.
            Attribute::ENGINE_BEHAVIOR_NOTE if is_ours_to_divide(descriptor) => {
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
                let graph = shadow::made(address(descriptor)).and_then(|made| made.graph());
                let is_configuration = [Attribute::ENGINEHEUR_RESULTS, Attribute::EXECUTION_PLAN_ENGINE_CONFIG];
                let make = if is_configuration.contains(&attribute) { Made::configuration } else { Made::Of };
                // SAFETY: the caller put that many descriptors there, and cuDNN filled them.
                let objects = unsafe { std::slice::from_raw_parts(array.cast::<BackendDescriptor>(), filled) };
                for object in objects {
                    let made = graph.clone().map_or(Made::Other, make);
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

/// Bytes of workspace to report for a configuration or a plan instead of its own.
fn workspace(descriptor: BackendDescriptor) -> Option<usize> {
    match shadow::made(address(descriptor))? {
        Made::Plan(plan) => plan.workspace(),
        Made::Configuration(asked) if asked.graph.convolution.is_ok() => {
            // Outside the cell, because `consider` may panic.
            let decision = match asked.decision.get() {
                Some(decision) => decision.clone(),
                // SAFETY: the caller asks about it, so it is alive, as is the handle of its graph.
                None => unsafe { consider(&asked.graph, Choice::Configuration(descriptor), false) },
            };
            asked.decision.get_or_init(|| decision).workspace()
        }
        _ => None,
    }
}

/// What a plan's shadow is.
pub fn plan_of(descriptor: BackendDescriptor) -> Option<Arc<Plan>> {
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
        let done = catch_panics(|| unsafe { execute(handle, plan, pack) });
        match done {
            Some(Some(status)) => return status,
            Some(None) => {}
            None => {
                count(Reason::Panicked, Function::cudnnBackendExecute);
                // The workspace is not sized for the plan itself, so the call must not be forwarded.
                if catch_panics(|| plan_of(plan)?.workspace()) != Some(None) {
                    return CudnnStatus::EXECUTION_FAILED;
                }
            }
        }
    }
    forward!(cudnnBackendExecute(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor) -> CudnnStatus)
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
    let refuses = settings().is_some() && catch_panics(|| plan_of(plan)?.workspace()).flatten().is_some();
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
    let status = forward!(cudnnGetExecutionPlanWorkspaceSize(handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor, bytes: *mut usize) -> CudnnStatus);
    if status == CudnnStatus::SUCCESS
        && !bytes.is_null()
        && settings().is_some()
        && let Some(ours) = catch_panics(|| plan_of(plan)?.workspace()).flatten()
    {
        // SAFETY: cuDNN wrote a size there.
        unsafe { *bytes = ours };
    }
    status
}
