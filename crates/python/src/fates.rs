//! The fate of each tensor of a plan, and the facts that explain it.
//!
//! ```text
//! tensor   == read by conv1 forward |------- idle -------| read by conv1 backward-filter ==
//!             offloaded: a copy out, a copy back;  recomputed: operations that run again
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::{Value, json};
use tightfit_plan::step::{OperationId, Residence, Stage};
use tightfit_plan::{Access, Action, Holding, MapTreatment, Plan, Span, TensorDecision, Treatment};
use tightfit_units::Nanos;

/// Times of a plan by operation and by tensor.
#[derive(Default)]
struct Times {
    /// The first run of each operation.
    runs: HashMap<usize, Span>,
    /// All reruns of each operation.
    reruns: HashMap<usize, Nanos>,
    /// The operations whose reruns write each tensor.
    writers: HashMap<usize, Vec<usize>>,
    /// All copies of each tensor, both ways.
    copies: HashMap<usize, Nanos>,
}

impl Times {
    fn of(plan: &Plan) -> Times {
        let mut times = Times::default();
        for (instruction, span) in plan.schedule.instructions.iter().zip(&plan.simulation.spans) {
            let taken = Nanos(span.end.0.saturating_sub(span.start.0));
            match &instruction.action {
                Action::Compute(compute) if compute.again => {
                    let sum = times.reruns.entry(compute.operation.0).or_default();
                    *sum = *sum + taken;
                    let uses = plan.schedule.step().uses(compute.operation, compute.phase);
                    for (_, used) in uses.filter(|(_, used)| used.access_in_rerun() != Access::Read) {
                        times.writers.entry(used.tensor.0).or_default().push(compute.operation.0);
                    }
                }
                Action::Compute(compute) => {
                    let run = times.runs.entry(compute.operation.0).or_insert(*span);
                    run.end = run.end.max(span.end);
                }
                Action::Offload(block, _) | Action::Prefetch(_, block) => {
                    if let Holding::Tensor(tensor) = plan.schedule.blocks[block.0].holds {
                        let sum = times.copies.entry(tensor.0).or_default();
                        *sum = *sum + taken;
                    }
                }
                Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => {}
            }
        }
        times
    }
}

/// The tensors of a plan as a JSON list of objects, in the order of the step: name, kind, bytes, fate, times in µs, and
/// why in words.
pub fn json(plan: &Plan) -> String {
    let step = plan.schedule.step();
    let times = Times::of(plan);
    let decisions = plan.tensor_decisions();
    let decisions: BTreeMap<usize, &TensorDecision> = decisions.iter().map(|of| (of.tensor, of)).collect();
    let fates: HashMap<usize, MapTreatment> = plan.maps.iter().map(|map| (map.map.0, map.fate)).collect();
    let mut uses: Vec<Vec<usize>> = vec![Vec::new(); step.tensors.len()];
    for (operation, of) in step.operations.iter().enumerate() {
        of.uses.iter().for_each(|used| uses[used.tensor.0].push(operation));
    }
    let is_forward = |operation: &&usize| step.operations[**operation].stage == Stage::Forward;
    let name =
        |operation: usize| format!("{} {}", step.group_name(OperationId(operation)), step.operations[operation].name);

    let rows = step.tensors.iter().enumerate().filter(|(_, tensor)| tensor.alias.is_none());
    let rows = rows.map(|(index, tensor)| {
        let last_forward = uses[index].iter().rfind(is_forward).copied();
        let next = uses[index].iter().find(|operation| !is_forward(operation)).copied();
        let idle = last_forward.zip(next).and_then(|(last, next)| {
            let (last, next) = (times.runs.get(&last)?, times.runs.get(&next)?);
            Some(Nanos(next.start.0.saturating_sub(last.end.0)))
        });
        let copies = times.copies.get(&index).copied();
        let decision = decisions.get(&index);
        let rebuilt = decision.iter().flat_map(|of| &of.rebuilt).flat_map(|of| of.operations.iter().copied());
        // A tensor that lives only in the forward pass has no decision; it is recomputed for others.
        let made_again = times.writers.get(&index).into_iter().flatten().copied();
        let rebuilt: BTreeSet<usize> = if decision.is_some() { rebuilt.collect() } else { made_again.collect() };
        let fate = match (fates.get(&index), decision.map(|of| of.decision)) {
            (Some(fate), _) => *fate,
            (None, _) if tensor.residence == Residence::Resident => MapTreatment::Kept,
            (None, Some(Treatment::Keep)) => MapTreatment::Kept,
            (None, Some(Treatment::Offload)) => MapTreatment::Offloaded,
            (None, Some(Treatment::Recompute)) => MapTreatment::Recomputed,
            (None, None) => MapTreatment::Released,
        };
        let until = match next {
            Some(next) => format!("read again by {}", name(next)),
            None => "needed again for other tensors".to_owned(),
        };
        let after = idle.map(|idle| format!(", {idle} later")).unwrap_or_default();
        let why = match fate {
            _ if tensor.residence == Residence::Resident => "stays on the device between steps".to_owned(),
            MapTreatment::Kept if next.is_none() => "stays until its last use".to_owned(),
            MapTreatment::Kept => until + &after,
            MapTreatment::Released => match uses[index].last() {
                Some(&last) => format!("not read after {}", name(last)),
                None => "never read".to_owned(),
            },
            MapTreatment::Offloaded => {
                let copies = copies.map(|time| format!("; its copies out and back take {time}")).unwrap_or_default();
                until + &after + &copies
            }
            MapTreatment::Recomputed => {
                let again: Vec<String> = rebuilt.iter().map(|&operation| name(operation)).collect();
                let again = match &again[..] {
                    [] => String::new(),
                    [one] => format!("; {one} runs again"),
                    several => format!("; {} run again", several.join(", ")),
                };
                until + &after + &again
            }
        };
        let micros = |time: Option<Nanos>| time.map(Nanos::as_micros);
        json!({
            "tensor": tensor.name, "kind": tensor.kind.name(), "bytes": tensor.bytes, "fate": fate.name(),
            "idle_us": micros(idle),
            "copies_us": micros(copies),
            "recomputed_us": (fate == MapTreatment::Recomputed).then(|| {
                rebuilt.iter().filter_map(|operation| times.reruns.get(operation)).copied().sum::<Nanos>().as_micros()
            }),
            "why": why,
        })
    });
    Value::from_iter(rows).to_string()
}
