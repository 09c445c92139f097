//! Searches under smaller limits, so that more memory is never refused and hardly ever slower.
//!
//! ```text
//! bytes     0 ----- least ---------|---------|---------|---- budget -- plain      the grid depends on the step alone
//! ```
//!
//! A search under one limit takes another course than a search under another, and may end at a slower plan or none. Every plan of a smaller limit
//! also fits the larger one. If the best plan is near its lower bound, no smaller limit has a much faster plan, and nothing is searched.

use tightfit_units::{Bytes, Error};

use crate::Options;
use crate::attempts::Attempts;
use crate::memory::arena::Drafter;
use crate::search::floors::{Floors, hosts};
use crate::search::variants;

/// The points between the least and the plain bytes of a step, in eighths, from the largest.
const EIGHTHS: [u64; 5] = [6, 4, 2, 1, 0];

/// A plan that takes at most this much longer than its bound is near it.
const NEAR: f64 = 0.02;

/// Larger steps take too long to search several times.
const MAX_OPERATIONS: usize = 600;

/// Searches under smaller limits while the best attempt is far from its bound, if no deadline is set.
///
/// # Errors
/// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
pub(super) fn search(drafter: &Drafter<'_>, floors: &Floors, attempts: &mut Attempts<'_>) -> Result<(), Error> {
    let options = drafter.options;
    if drafter.end.is_timed() || drafter.step.operations.len() > MAX_OPERATIONS {
        return Ok(());
    }
    let (least, plain) = (floors.of_policy(options.policy).peak.0, floors.plain.peak.0);
    let budgets = EIGHTHS.map(|eighths| Bytes(least + plain.saturating_sub(least) / 8 * eighths));
    let budgets = budgets.into_iter().filter(|budget| *budget < options.budget);
    let budgets = budgets.map(|budget| Options { budget, ..options });
    let hosts = hosts(drafter).filter(|_| options.host_budget != Bytes::UNLIMITED);
    let hosts = hosts.map(|host_budget| Options { host_budget, ..options });
    for smaller in budgets.chain(hosts) {
        if attempts.gap().is_some_and(|gap| gap <= NEAR) || drafter.end.is_over() {
            break;
        }
        let drafter = Drafter::until(drafter.step, drafter.costs, smaller, drafter.end)?;
        let mut own = Attempts::against(&drafter, attempts.time());
        variants::search(&drafter, floors, &mut own)?;
        if let Ok(found) = own.outcome() {
            attempts.consider("smaller limit", found.draft);
        }
    }
    Ok(())
}
