//! Plans of one step under several budgets as rows.

use crate::plan::Swept;
use crate::report::{Align, Grid};
use crate::{Bytes, Error};

/// The columns for programs, beside those for people.
const EXACT: [&str; 6] =
    ["budget_bytes", "peak_bytes", "step_time_us", "offloaded_bytes", "recomputed_us", "needed_bytes"];

/// The rows of [`sweep_grid`] with more columns for programs, in bytes and µs; empty where there is no value.
pub fn sweep_values(plans: &[Swept], whole: Bytes) -> Grid {
    let exact = plans.iter().map(|(budget, plan)| {
        let values = match plan {
            Ok(plan) => [
                Some(plan.peak.0 as f64),
                Some(plan.step_time.as_micros()),
                Some(plan.offloaded.0 as f64),
                Some(plan.recomputed.as_micros()),
                None,
            ],
            Err(Error::OverBudget { needed, .. }) => [None, None, None, None, Some(needed.0 as f64)],
            Err(_) => [None; 5],
        };
        let values = values.map(|value| value.map_or_else(String::new, |value| value.to_string()));
        std::iter::once(budget.0.to_string()).chain(values)
    });
    sweep_grid(plans, whole).beside(EXACT.map(|name| (name, Align::Right)), exact)
}

/// One row per budget, as a share of `whole`; a budget that is too small shows what is needed.
pub fn sweep_grid(plans: &[Swept], whole: Bytes) -> Grid {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([
        ("share [%]", right),
        ("budget", right),
        ("peak", right),
        ("step [ms]", right),
        ("overhead [%]", right),
        ("moved", right),
        ("rebuilt [ms]", right),
        ("gap [%]", right),
        ("outcome", left),
    ]);
    for (budget, plan) in plans {
        let share = format!("{:.0}", budget.0 as f64 / whole.0.max(1) as f64 * 100.0);
        let millis = |time: crate::Nanos| format!("{:.2}", time.as_micros() / 1e3);
        match plan {
            Ok(plan) => {
                let chosen = plan.decisions.iter().find(|decision| decision.taken);
                grid.push([
                    share,
                    budget.to_string(),
                    plan.peak.to_string(),
                    millis(plan.step_time),
                    format!("{:.2}", plan.overhead() * 100.0),
                    plan.offloaded.to_string(),
                    millis(plan.recomputed),
                    plan.gap.map_or_else(String::new, |gap| format!("{:.2}", gap * 100.0)),
                    chosen.map(|decision| decision.attempt.clone()).unwrap_or_default(),
                ]);
            }
            Err(Error::OverBudget { needed, layer, .. }) => {
                let none = String::new;
                let outcome = format!("needs {needed} ({layer})");
                grid.push([share, budget.to_string(), none(), none(), none(), none(), none(), none(), outcome]);
            }
            Err(error) => {
                let none = String::new;
                grid.push([
                    share,
                    budget.to_string(),
                    none(),
                    none(),
                    none(),
                    none(),
                    none(),
                    none(),
                    error.to_string(),
                ]);
            }
        }
    }
    grid
}
