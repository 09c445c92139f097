//! Finds the largest mini-batch that fits in a budget, with plans that measure nothing.

use tightfit_conv::Problem;
use tightfit_network::Network;
use tightfit_plan::{Options, Stop, plan_until};
use tightfit_units::Bytes;

use crate::failure::Failure;
use crate::interrupt;
use crate::message;
use crate::options::{Batch, Budget, Common, Planning};
use crate::planning::{Goal, Prepared, assumed_of};
use crate::progress::Bar;

/// Returns the options with the largest mini-batch that fits. Prints this mini-batch, and the largest one with which
/// everything is kept.
///
/// # Errors
/// [`Failure::Usage`] without a budget in bytes; otherwise the errors of planning, as where a single sample does not fit.
pub fn with_largest(planning: &Planning, network: &Network, goal: Goal, common: &Common) -> Result<Planning, Failure> {
    let of = |samples| Planning { batch: Some(Batch::Samples(samples)), ..planning.clone() };
    let one = assumed_of(&of(1), network, goal, common)?.0;
    let budget = one.options.budget;
    if matches!(planning.budget, Some(Budget::Share(_))) || budget == Bytes::UNLIMITED {
        return Err(Failure::Usage(
            "--batch max needs a budget in bytes, such as --budget 8GiB, or --costs 4090".to_owned(),
        ));
    }
    let bar = Bar::new(format!("trying mini-batches of {}", network.name()), None);
    // Print the budget only once.
    let of = |samples| Planning { budget: Some(Budget::Bytes(budget)), ..of(samples) };
    let prepared = |samples| Ok::<_, Failure>(assumed_of(&of(samples), network, goal, common)?.0);
    let planned = largest(|samples| fits(&prepared(samples)?))?;
    let Some(planned) = planned else {
        drop(bar);
        // The error of the plan for a single sample names its need.
        return Ok(of(1));
    };
    let kept = largest(|samples| Ok::<_, Failure>(prepared(samples)?.plain()? <= budget))?;
    drop(bar);
    let kept = kept.map_or_else(|| "none".to_owned(), |samples| samples.to_string());
    message::note(format_args!("the largest mini-batch in {budget} is {planned}; without a plan, {kept}"));
    Ok(of(planned))
}

/// Whether a step has a plan within its budget.
fn fits(prepared: &Prepared) -> Result<bool, Failure> {
    let flag = interrupt::current();
    let stop = flag.as_deref().map_or(Stop::Never, Stop::WithNothing);
    // A larger mini-batch in parts only repeats the same work.
    let options = Options { divide: false, ..prepared.options };
    match plan_until(&prepared.step, &prepared.costs, &options, stop) {
        Ok(_) => Ok(true),
        Err(error) if error.is_over_limit() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The largest number for which a monotonic condition holds; `None` if it does not hold for 1.
fn largest<E>(mut holds: impl FnMut(usize) -> Result<bool, E>) -> Result<Option<usize>, E> {
    if !holds(1)? {
        return Ok(None);
    }
    let (mut low, mut high) = (1, 2);
    while high <= Problem::MOST_SAMPLES && holds(high)? {
        (low, high) = (high, high * 2);
    }
    let mut high = high.min(Problem::MOST_SAMPLES + 1);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if holds(middle)? { low = middle } else { high = middle }
    }
    Ok(Some(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_between_its_neighbors() {
        for most in [1, 2, 3, 7, 8, 100, 4095, Problem::MOST_SAMPLES] {
            let found = largest(|number| Ok::<_, ()>(number <= most)).unwrap();
            assert_eq!(found, Some(most));
        }
        assert_eq!(largest(|_| Ok::<_, ()>(false)).unwrap(), None);
    }
}
