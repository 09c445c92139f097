//! Runs the program's plans.

use std::sync::Arc;

use tightfit_conv::{Candidate, Configuration};
use tightfit_cuda::GuestProgram;
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::{BackendDescriptor, CudnnStatus, Handle, Kind};

use super::device::{place, run_in_total, status_of};
use crate::decide::{set_up, settle};
use crate::decision::{Decision, Object, Setup};
use crate::kernel::{ActiveChoice, Kernel};
use crate::log::trace;
use crate::panics::panic_if_asked;
use crate::process::Process;
use crate::reason::{Function, Reason, failed};
use crate::recognize::{Addresses, Computation, Graph};
use crate::report;
use crate::shadow::Address;

const FUNCTION: Function = Function::cudnnBackendExecute;

/// A plan that was decided about.
fn plan(process: &Process, descriptor: BackendDescriptor) -> Option<Arc<Object>> {
    let object = process.shadows.object(descriptor.0 as Address)?;
    (object.kind == Kind::EXECUTION_PLAN).then_some(object)
}

/// The decision about a plan, or `None` if it was not seen.
pub fn decision_of(process: &Process, descriptor: BackendDescriptor) -> Option<Decision> {
    plan(process, descriptor)?.notes.decision.get().cloned()
}

/// Runs our configuration of a plan, or `None` if the plan itself should run.
///
/// # Safety
/// As `cudnnBackendExecute`'s.
pub unsafe fn run_plan(
    process: &Process,
    handle: Handle,
    descriptor: BackendDescriptor,
    pack: BackendDescriptor,
) -> Option<CudnnStatus> {
    report::on_call(process);
    let count = |reason| process.counts.count(reason, FUNCTION);
    let plan = plan(process, descriptor);
    let Some((plan, decision)) = plan.as_ref().and_then(|plan| Some((plan, plan.notes.decision.get()?))) else {
        count(Reason::Descriptor);
        return None;
    };
    let setup = match decision {
        Decision::Kernel(setup) => setup,
        Decision::Left(reason) => {
            count(*reason);
            return None;
        }
    };
    // SAFETY: forwarded to the caller.
    unsafe { settle(process, &setup.kernel, handle) };
    // Found when the plan was decided about.
    let graph = plan.notes.graph.get().and_then(|graph| graph.as_deref());
    let ids = graph.and_then(|graph| graph.computation.as_ref().ok()).map(|computation| computation.ids);
    // SAFETY: forwarded to the caller, who executes this plan on the handle.
    unsafe { process.tune(&setup.kernel, handle, ids.map(|ids| (descriptor, ids))) };
    let running = setup.kernel.running_now();
    if let ActiveChoice::Left(reason) = running {
        count(*reason);
        setup.kernel.count();
        return None;
    }
    panic_if_asked();
    change_if_asked(&setup.kernel);
    setup.kernel.count();
    if *running == ActiveChoice::Kept {
        return None;
    }
    let is_own_possible = setup.kernel.can_run_own();
    let arguments = match Arguments::read(process, graph, pack) {
        Ok(arguments) => arguments,
        Err(status) => return Some(status),
    };
    let Arguments { computation, tensors, workspace } = arguments;
    let ran = match running {
        ActiveChoice::Ours(configuration) => {
            // SAFETY: forwarded to the caller.
            let program = unsafe { program(process, setup, configuration, computation, handle) };
            program.and_then(|program| {
                // SAFETY: the caller owes tensors of the graph's sizes and a workspace of the reported size.
                match unsafe { program.enqueue(tensors, workspace) } {
                    Err(failure) if is_own_possible && (!failure.is_begun || computation.scale.beta == 0.0) => {
                        setup.kernel.give_up();
                        Err(failed(failure.error))
                    }
                    ended => Ok(status_of(ended)),
                }
            })
        }
        _ => {
            let Computation { scale, base, .. } = *computation;
            // SAFETY: the caller owes tensors of the graph's sizes.
            unsafe { run_in_total(process, handle, &setup.kernel, (scale, base), tensors) }
        }
    };
    ran.map(Some).unwrap_or_else(|reason| {
        count(reason);
        // If less was reported to the program than its own plan needs, an error is the only option left.
        (!is_own_possible).then_some(CudnnStatus::EXECUTION_FAILED)
    })
}

/// Changes the choice from the second execution on, if a test asks for it; never in a release build.
fn change_if_asked(kernel: &Kernel) {
    if cfg!(debug_assertions)
        && std::env::var_os("TIGHTFIT_TEST_CHANGE").is_some()
        && kernel.calls() > 0
        && let ActiveChoice::Ours(configuration) = kernel.running()
    {
        // Sample by sample, which needs no more workspace.
        let sample = |part: &Candidate| Candidate { micro_batch: 1, ..part.clone() };
        let samples = configuration.parts().iter().flat_map(|part| vec![sample(part); part.micro_batch]).collect();
        let changed = ActiveChoice::Ours(Arc::new(Configuration::new(samples, configuration.cost())));
        let change = kernel.change(changed);
        trace!("{}: changed the choice: {change:?}", kernel.question.problem);
    }
}

/// The arguments of a variant pack.
struct Arguments<'a> {
    computation: &'a Computation,
    /// Data, other and output.
    tensors: [DevicePtr; 3],
    workspace: DevicePtr,
}

impl Arguments<'_> {
    /// Reads it.
    ///
    /// # Errors
    /// The status to return: `NOT_SUPPORTED` for a pack that sets more than addresses, such as other shapes.
    fn read<'a>(
        process: &Process,
        graph: Option<&'a Graph>,
        pack: BackendDescriptor,
    ) -> Result<Arguments<'a>, CudnnStatus> {
        let pack = process.shadows.object(pack.0 as Address);
        let Some(pack) = pack.as_deref().and_then(Addresses::read) else {
            return Err(CudnnStatus::BAD_PARAM_NOT_FINALIZED);
        };
        let Some(Ok(computation)) = graph.map(|graph| graph.computation.as_ref()) else {
            return Err(CudnnStatus::BAD_PARAM);
        };
        if pack.is_special {
            return Err(CudnnStatus::NOT_SUPPORTED);
        }
        let [Some(data), Some(other), Some(output)] = computation.ids.map(|id| pack.find(id)) else {
            return Err(CudnnStatus::BAD_PARAM);
        };
        let tensors = [data, other, output].map(DevicePtr);
        Ok(Arguments { computation, tensors, workspace: DevicePtr(pack.workspace) })
    }
}

/// A configuration's program on the executing handle, which may differ from the one that the graph was made with.
///
/// # Errors
/// [`Reason::Failed`] if it cannot be set up there.
///
/// # Safety
/// `handle` is alive and used on this thread.
unsafe fn program(
    process: &Process,
    setup: &Setup,
    configuration: &Arc<Configuration>,
    computation: &Computation,
    handle: Handle,
) -> Result<Arc<GuestProgram>, Reason> {
    if setup.is_on(handle)
        && let Some(program) = setup.program(configuration)
    {
        return Ok(program.clone());
    }
    let place = place(process).map_err(|_| Reason::Failed)?;
    // SAFETY: forwarded to the caller.
    let program = unsafe { set_up(process, place, &setup.kernel, configuration, computation, handle) };
    if !setup.is_on(handle) {
        return program;
    }
    // The choice has changed since the plan was last executed. If it cannot be set up here, the earlier choice stays for
    // good.
    let fits = |program: &Arc<GuestProgram>| program.workspace() as u64 <= setup.kernel.reported().workspace().0;
    let program = program.and_then(|program| if fits(&program) { Ok(program) } else { Err(Reason::Failed) });
    let program = program.or_else(|reason| setup.last_program().cloned().ok_or(reason))?;
    setup.keep(configuration.clone(), program.clone());
    Ok(program)
}
