//! Plans of one step under several budgets as rows.

use crate::plan::{Plan, Swept};
use crate::report::{Align, Grid};
use crate::{Bytes, Error, Nanos};

/// One row per budget for programs: bytes, µs, and shares from 0 to 1; empty where there is no value.
pub fn sweep_values(plans: &[Swept], whole: Bytes) -> Grid {
    let right = Align::Right;
    let mut grid = Grid::new([
        ("share", right),
        ("budget_bytes", right),
        ("peak_bytes", right),
        ("step_time_us", right),
        ("overhead", right),
        ("offloaded_bytes", right),
        ("recomputed_us", right),
        ("gap", right),
        ("outcome", Align::Left),
        ("needed_bytes", right),
    ]);
    for (budget, plan) in plans {
        let values = plan.as_ref().ok().map(|plan| {
            [
                plan.peak.0.to_string(),
                plan.step_time.as_micros().to_string(),
                plan.overhead().to_string(),
                plan.offloaded.0.to_string(),
                plan.recomputed.as_micros().to_string(),
                plan.gap.map_or_else(String::new, |gap| gap.to_string()),
            ]
        });
        let needed = match plan {
            Err(Error::OverBudget { needed, .. }) => needed.0.to_string(),
            _ => String::new(),
        };
        let head = [format!("{:.4}", share(*budget, whole)), budget.0.to_string()];
        grid.push(head.into_iter().chain(values.unwrap_or_default()).chain([outcome(plan), needed]));
    }
    grid
}

/// One row per budget for people; a budget that is too small shows what is needed.
pub fn sweep_grid(plans: &[Swept], whole: Bytes) -> Grid {
    let right = Align::Right;
    let mut grid = Grid::new([
        ("share [%]", right),
        ("budget", right),
        ("peak", right),
        ("step [ms]", right),
        ("overhead [%]", right),
        ("moved", right),
        ("rebuilt [ms]", right),
        ("gap [%]", right),
        ("outcome", Align::Left),
    ]);
    let millis = |time: Nanos| format!("{:.2}", time.as_micros() / 1e3);
    let percent = |part: f64| format!("{:.2}", part * 100.0);
    for (budget, plan) in plans {
        let values = plan.as_ref().ok().map(|plan| {
            [
                plan.peak.to_string(),
                millis(plan.step_time),
                percent(plan.overhead()),
                plan.offloaded.to_string(),
                millis(plan.recomputed),
                plan.gap.map_or_else(String::new, percent),
            ]
        });
        let head = [format!("{:.0}", share(*budget, whole) * 100.0), budget.to_string()];
        grid.push(head.into_iter().chain(values.unwrap_or_default()).chain([outcome(plan)]));
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
