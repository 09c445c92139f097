//! Descriptions of a schedule's instructions.

use tightfit_plan::{Action, Instruction, Plan};

/// Describes an instruction that takes time; `None` for one that takes none.
pub fn work(plan: &Plan, instruction: &Instruction) -> Option<String> {
    let what = plan.schedule.describe(&instruction.action)?;
    let configuration = match &instruction.action {
        Action::Compute(compute) => compute.configuration.as_ref(),
        _ => None,
    };
    Some(what + &configuration.map(|found| format!(", {found}")).unwrap_or_default())
}
