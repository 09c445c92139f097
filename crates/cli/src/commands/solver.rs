//! The solver that the options of `train` and its plan name.

use tightfit_network::{AdamW, Rule, Sgd};
use tightfit_plan::Plan;
use tightfit_train::{Decay, LearningRate};

use crate::failure::Failure;
use crate::options::{ScheduleName, SolverName, TrainOptions};
use crate::planning::must_be_of_sgd;

/// The factor of a schedule by steps.
const DECAY: f32 = 0.1;

/// The update rule, if the plan has memory for its state.
///
/// # Errors
/// [`Failure::Usage`] for options that do not go together, or not with the plan.
pub fn rule(options: &TrainOptions, plan: &Plan) -> Result<Rule, Failure> {
    let planned = if plan.adamw { SolverName::Adamw } else { SolverName::Sgd };
    let usage = |what: &str| Err(Failure::Usage(what.to_owned()));
    let solver = options.solver.unwrap_or(planned);
    must_be_of_sgd(solver, options.momentum)?;
    match (solver, options.momentum) {
        (SolverName::Adamw, _) if !plan.adamw => {
            usage("--solver adamw: the plan has no memory for its two moments; make the plan with --solver adamw too")
        }
        (SolverName::Adamw, _) => {
            let default = AdamW::default();
            let learning_rate = options.learning_rate.unwrap_or(default.learning_rate);
            let weight_decay = options.weight_decay.unwrap_or(default.weight_decay);
            Ok(Rule::AdamW(AdamW { learning_rate, weight_decay, ..default }))
        }
        (SolverName::Sgd, _) if plan.adamw => {
            usage("--solver sgd: the plan is for adamw; drop the option, or make the plan without --solver adamw")
        }
        (SolverName::Sgd, Some(momentum)) if momentum != 0.0 && !plan.momentum => usage(&format!(
            "--momentum {momentum}: the plan has no memory for momentum; leave the option out, or make the plan with \
             the same --momentum"
        )),
        (SolverName::Sgd, momentum) => {
            let default = Sgd::default();
            Ok(Rule::Sgd(Sgd {
                learning_rate: options.learning_rate.unwrap_or(default.learning_rate),
                momentum: momentum.unwrap_or(if plan.momentum { default.momentum } else { 0.0 }),
                weight_decay: options.weight_decay.unwrap_or(default.weight_decay),
            }))
        }
    }
}

/// Refuses options of a schedule that is not chosen.
///
/// # Errors
/// [`Failure::Usage`] with the option.
pub fn check_schedule(options: &TrainOptions) -> Result<(), Failure> {
    let of_steps = [("--decay", options.decay.is_some()), ("--decay-every", options.decay_every.is_some())];
    match of_steps.into_iter().find(|(_, is_said)| *is_said && options.schedule != ScheduleName::Step) {
        Some((option, _)) => {
            Err(Failure::Usage(format!("{option} is for --schedule step alone; add that, or leave {option} out")))
        }
        None => Ok(()),
    }
}

/// The learning rate over a run of this number of steps.
pub fn learning_rate(options: &TrainOptions, rule: &Rule, steps: u64) -> LearningRate {
    let decay = match options.schedule {
        ScheduleName::Constant => Decay::Constant,
        ScheduleName::Step => {
            let every = options.decay_every.unwrap_or(steps.div_ceil(3));
            Decay::Step { every, factor: options.decay.unwrap_or(DECAY) }
        }
        ScheduleName::Cosine => Decay::Cosine,
    };
    LearningRate { base: rule.learning_rate(), warm_up: options.warm_up, decay, steps }
}
