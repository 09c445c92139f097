//! What the steps of a schedule do, in words.

use crate::plan::{Action, BlockId, Plan, Step};

/// What a step that takes time does; nothing for one that takes none.
pub fn work(plan: &Plan, step: &Step) -> Option<String> {
    let block = |block: BlockId| plan.describe(plan.schedule.blocks[block.0].tensor);
    match &step.action {
        Action::Compute(compute) => {
            let how = compute.configuration.as_ref().map(|found| format!(", {found}")).unwrap_or_default();
            let again = if compute.again { " again" } else { "" };
            Some(format!("{} {}{again}{how}", plan.layer_name(compute.layer), compute.pass.name()))
        }
        Action::Offload(from, _) => Some(format!("offload {}", block(*from))),
        Action::Prefetch(_, to) => Some(format!("prefetch {}", block(*to))),
        Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => None,
    }
}
