//! Plans of one step under several budgets as rows.

use crate::plan::{Plan, Swept};
use crate::report::{Align, Grid};
use crate::{Bytes, Error, Nanos};

/// One row per budget for programs: bytes, µs, and shares from 0 to 1; empty where there is no value.
pub fn sweep_values(plans: &[Swept], whole: Bytes) -> Grid {
    let names = [
        "share",
        "budget_bytes",
        "peak_bytes",
        "step_time_us",
        "overhead",
        "offloaded_bytes",
        "recomputed_us",
        "gap",
        "outcome",
        "needed_bytes",
    ];
    let head = |budget: Bytes| [format!("{:.4}", share(budget, whole)), budget.0.to_string()];
    let values = |plan: &Plan| {
        [
            plan.peak.0.to_string(),
            plan.step_time.as_micros().to_string(),
            plan.overhead().to_string(),
            plan.offloaded.0.to_string(),
            plan.recomputed.as_micros().to_string(),
            plan.gap.map_or_else(String::new, |gap| gap.to_string()),
        ]
    };
    grid(&names, plans, head, values)
}

/// One row per budget for people; a budget that is too small shows what is needed.
pub fn sweep_grid(plans: &[Swept], whole: Bytes) -> Grid {
    let names =
        ["share [%]", "budget", "peak", "step [ms]", "overhead [%]", "moved", "rebuilt [ms]", "gap [%]", "outcome"];
    let millis = |time: Nanos| format!("{:.2}", time.as_micros() / 1e3);
    let percent = |part: f64| format!("{:.2}", part * 100.0);
    let head = |budget: Bytes| [format!("{:.0}", share(budget, whole) * 100.0), budget.to_string()];
    let values = |plan: &Plan| {
        [
            plan.peak.to_string(),
            millis(plan.step_time),
            percent(plan.overhead()),
            plan.offloaded.to_string(),
            millis(plan.recomputed),
            plan.gap.map_or_else(String::new, percent),
        ]
    };
    grid(&names, plans, head, values)
}

/// One row per budget: what `head` says of it, what `values` says of its plan, the outcome, and the bytes needed if it is
/// too small; without the last cell where there is no column for it.
fn grid(
    names: &[&str],
    plans: &[Swept],
    head: impl Fn(Bytes) -> [String; 2],
    values: impl Fn(&Plan) -> [String; 6],
) -> Grid {
    let align = |name: &str| if name == "outcome" { Align::Left } else { Align::Right };
    let mut grid = Grid::new(names.iter().map(|name| (*name, align(name))));
    for (budget, plan) in plans {
        let values = plan.as_ref().map(&values).unwrap_or_default();
        let needed = match plan {
            Err(Error::OverBudget { needed, .. }) => needed.0.to_string(),
            _ => String::new(),
        };
        grid.push(head(*budget).into_iter().chain(values).chain([outcome(plan), needed]));
    }
    grid
}

fn share(budget: Bytes, whole: Bytes) -> f64 {
    budget.0 as f64 / whole.0.max(1) as f64
}

/// What was chosen, or why there is no plan.
fn outcome(plan: &Result<Plan, Error>) -> String {
    match plan {
        Ok(plan) => {
            plan.decisions.iter().find(|decision| decision.taken).map(|taken| taken.attempt.clone()).unwrap_or_default()
        }
        Err(Error::OverBudget { needed, layer, .. }) => format!("needs {needed} ({layer})"),
        Err(error) => error.to_string(),
    }
}
