//! Decides about the program's plans and engine configurations.

use std::sync::Arc;

use tightfit_conv::Notes;
use tightfit_cuda::sys::cudnn::{BackendDescriptor, Handle, Kind};

use super::answer::{answer, device, set_up};
use crate::decision::{Decision, Object, Setup};
use crate::kernel::{ActiveChoice, Question, bits};
use crate::lock::lock;
use crate::process::Process;
use crate::reason::{Reason, failed};
use crate::recognize::{Graph, Link, link};

/// The graph that an object is or leads to, found when it is first asked for.
pub fn graph_of(object: &Object) -> Option<Arc<Graph>> {
    let find = || match link(object) {
        Link::Arrived(attributes) => Some(Arc::new(Graph::read(attributes))),
        Link::To { object: next, is_understood } => Some(match graph_of(next) {
            None => Arc::new(Graph::unknown(Reason::Descriptor)),
            Some(graph) if graph.computation.is_ok() && !is_understood => Arc::new(graph.refused(Reason::Attribute)),
            Some(graph) => graph,
        }),
        Link::Lost(reason) => Some(Arc::new(Graph::unknown(reason))),
        Link::Nowhere => None,
    };
    object.notes.graph.get_or_init(find).clone()
}

/// Decides about a plan that was just finalized, as its configuration was decided about if it was.
///
/// # Safety
/// As for [`consider`].
pub unsafe fn decide_plan(process: &Process, plan: &Object, descriptor: BackendDescriptor) {
    let Some(graph) = graph_of(plan) else { return };
    let configuration = match link(plan) {
        Link::To { object, .. } if object.kind == Kind::ENGINECFG => Some(object),
        _ => None,
    };
    // A plan with additional unknown attributes has another graph than its configuration.
    let configuration = configuration
        .filter(|configuration| graph_of(configuration).is_some_and(|its_graph| Arc::ptr_eq(&its_graph, &graph)));
    let decision = match configuration.and_then(|configuration| configuration.notes.decision.get()) {
        Some(decision) => {
            if let Some(kernel) = decision.kernel() {
                graph.admit(kernel.question.chosen.notes);
            }
            decision.clone()
        }
        // SAFETY: forwarded to the caller.
        None => unsafe { consider(process, &graph, Source::Plan(descriptor)) },
    };
    plan.notes.decision.get_or_init(|| decision);
}

/// The decision about an engine's configuration, made now if it was not before, or `None` if nothing of its graph may be
/// divided.
///
/// # Safety
/// As for [`consider`].
pub unsafe fn decide_configuration(
    process: &Process,
    configuration: &Object,
    descriptor: BackendDescriptor,
) -> Option<Decision> {
    let graph = graph_of(configuration).filter(|graph| graph.computation.is_ok())?;
    // Outside the cell, because `consider` may panic.
    let decision = match configuration.notes.decision.get() {
        Some(decision) => decision.clone(),
        // SAFETY: forwarded to the caller.
        None => unsafe { consider(process, &graph, Source::Configuration(descriptor)) },
    };
    Some(configuration.notes.decision.get_or_init(|| decision).clone())
}

/// An object that holds the framework's choice.
#[derive(Clone, Copy)]
enum Source {
    /// An engine's configuration.
    Configuration(BackendDescriptor),
    /// A plan.
    Plan(BackendDescriptor),
}

/// Decides about an engine that the program chose for a graph. A plan shows which arithmetic the program's mode allows; a
/// configuration does not.
///
/// # Safety
/// The descriptors and the graph's handle are alive, and the calling thread is the one that uses the handle.
unsafe fn consider(process: &Process, graph: &Graph, source: Source) -> Decision {
    let decided = || -> Result<Decision, Reason> {
        let settings = process.settings().ok_or(Reason::Device)?;
        let computation = graph.computation.as_ref().map_err(|reason| *reason)?;
        let host = process.host().ok_or(Reason::Failed)?;
        let handle = Handle(graph.handle as *mut _);
        let device = device(host, settings)?;
        let _beside = host.beside_captures().map_err(failed)?;
        // SAFETY: forwarded to the caller.
        let session = unsafe { process.sessions.on(host, handle, device) }.map_err(failed)?;
        let mut session = lock(&session);
        // SAFETY: forwarded to the caller.
        let chosen = unsafe {
            match source {
                Source::Configuration(raw) => session.guest.chosen(raw),
                Source::Plan(raw) => session.guest.chosen_by_plan(raw),
            }
        };
        let chosen = chosen.map_err(failed)?;
        let admitted = match source {
            Source::Plan(_) => graph.admit(chosen.notes),
            Source::Configuration(_) => graph.admit(Notes::NONE).with(chosen.notes),
        };
        let problem = computation.problem(admitted.contains(Notes::TENSOR_CORE))?;
        // SAFETY: forwarded to the caller.
        let is_capturing = unsafe { host.is_capturing(handle) };
        let question =
            Question { device, problem, chosen, admitted, factors: bits(computation.scale), base: computation.base };
        let kernel = answer(process, question, settings, &mut session, host, is_capturing)?;
        drop(session);
        let program = match kernel.running() {
            ActiveChoice::Ours(configuration) => {
                // SAFETY: forwarded to the caller.
                let program = unsafe { set_up(process, (host, device), &kernel, configuration, computation, handle) }?;
                Some((configuration.clone(), program))
            }
            _ => None,
        };
        Ok(Decision::Kernel(Arc::new(Setup::new(kernel, handle, program))))
    };
    decided().unwrap_or_else(Decision::Left)
}

#[cfg(test)]
mod tests {
    use tightfit_cuda::sys::cudnn::Attribute;

    use super::*;
    use crate::recognize::samples::{Description, graph};

    #[test]
    fn engines_configurations_and_plans_lead_to_their_graph_or_to_a_reason() {
        let graph = graph().make(Kind::OPERATIONGRAPH);
        let recognized = |object: &Object| graph_of(object).unwrap().computation.clone().map(|_| ());
        let engine = || {
            Description::new()
                .objects(Attribute::ENGINE_OPERATION_GRAPH, &[&graph])
                .with(Attribute::ENGINE_GLOBAL_INDEX, &[2])
        };
        let config = Description::new()
            .objects(Attribute::ENGINECFG_ENGINE, &[&engine().make(Kind::ENGINE)])
            .make(Kind::ENGINECFG);
        let plan = || {
            Description::new()
                .objects(Attribute::EXECUTION_PLAN_ENGINE_CONFIG, &[&config])
                .with(Attribute::EXECUTION_PLAN_HANDLE, &[64])
        };
        assert_eq!(recognized(&plan().make(Kind::EXECUTION_PLAN)), Ok(()));
        // Limited to some multiprocessors: a micro-batch's engine would not be.
        assert_eq!(
            recognized(&engine().with(Attribute::ENGINE_SM_COUNT_TARGET, &[8]).make(Kind::ENGINE)),
            Err(Reason::Attribute)
        );
        assert_eq!(
            recognized(&plan().with(Attribute::EXECUTION_PLAN_DEVICEPROP, &[1]).make(Kind::EXECUTION_PLAN)),
            Err(Reason::Attribute)
        );
        let restored = Description::new()
            .with(Attribute::EXECUTION_PLAN_HANDLE, &[64])
            .with(Attribute::EXECUTION_PLAN_JSON_REPRESENTATION, &[1])
            .make(Kind::EXECUTION_PLAN);
        assert_eq!(recognized(&restored), Err(Reason::Restored));
    }
}
