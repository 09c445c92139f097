//! Plans of one step under several budgets: as rows, as a picture, and as a page.

use tightfit_plan::{Plan, Rivals, Swept};
use tightfit_units::{Bytes, Error, Nanos};

#[cfg(feature = "tables")]
use super::{
    page::{framed, in_large, preformatted},
    pictures,
};
use crate::svg::{Curve, limits};
use crate::{Align, Grid, rounded};
#[cfg(feature = "tables")]
use crate::{Terminal, svg::canvas::escape};

/// Plans under rising budgets, and the times to compare them with.
#[derive(Clone, Copy)]
pub struct Sweep<'a> {
    /// The subject, such as `vgg16, mini-batch 256`.
    pub title: &'a str,
    /// Each budget with its plan, or the reason for having none.
    pub plans: &'a [Swept],
    /// For each budget: the step time of existing methods.
    pub rivals: &'a [Rivals],
    /// Plain, which budgets are shares of.
    pub whole: Bytes,
}

impl Sweep<'_> {
    /// One row per budget for programs: bytes, µs, and shares from 0 to 1; missing values are empty.
    pub fn values(&self) -> Grid {
        let (left, right) = (Align::Left, Align::Right);
        let columns = [
            ("share", right),
            ("budget_bytes", right),
            ("peak_bytes", right),
            ("step_time_us", right),
            ("overhead", right),
            ("offloaded_bytes", right),
            ("recomputed_us", right),
            ("gap", right),
            ("vdnn_step_time_us", right),
            ("checkpoints_step_time_us", right),
            ("outcome", left),
            ("needed_bytes", right),
        ];
        let head = |budget: Bytes| [format!("{:.4}", self.share(budget)), budget.0.to_string()];
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
        self.grid(&columns, head, values, |time| time.as_micros().to_string())
    }

    /// One row per budget for people; an insufficient budget shows the bytes needed.
    pub fn table(&self) -> Grid {
        let (left, right) = (Align::Left, Align::Right);
        let columns = [
            ("share [%]", right),
            ("budget", right),
            ("peak", right),
            ("step [ms]", right),
            ("overhead [%]", right),
            ("moved", right),
            ("rebuilt [ms]", right),
            ("gap [%]", right),
            ("vdnn [ms]", right),
            ("checkpoints [ms]", right),
            ("outcome", left),
        ];
        let percent = |part: f64| rounded(part * 100.0, 2);
        let head = |budget: Bytes| [format!("{:.0}", self.share(budget) * 100.0), budget.to_string()];
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
        self.grid(&columns, head, values, millis)
    }

    /// Draws the time of a step against the budget, for this planner, for existing methods and for plain.
    pub fn picture(&self) -> String {
        let curve = |name: &str, time: &dyn Fn(usize) -> Option<Nanos>| Curve {
            name: name.to_owned(),
            points: (0..self.plans.len()).filter_map(|at| Some((self.plans[at].0, time(at)?))).collect(),
        };
        let times = self.plans.iter().filter_map(|(_, plan)| plan.as_ref().ok());
        let plain = times.map(|plan| plan.baseline_time).next();
        let curves = [
            curve("optimal", &|at| self.plans[at].1.as_ref().ok().map(|plan| plan.step_time)),
            curve("vdnn-dynamic", &|at| self.rivals.get(at)?.vdnn),
            curve("checkpoints", &|at| self.rivals.get(at)?.checkpoints),
            Curve { name: "plain".to_owned(), points: plain.map(|time| (self.whole, time)).into_iter().collect() },
        ];
        limits(&format!("{}: time of a step", self.title), "budget", &curves)
    }

    #[cfg(feature = "tables")]
    /// Writes the rows, the picture, and the live memory over time under each budget as one self-contained HTML page.
    pub fn page(&self) -> String {
        let mut body = in_large(&self.three());
        body += &format!("<h2>Time and memory</h2>\n<p>{}</p>\n<div>{}</div>\n", escape(FRONT), self.picture());
        body += &preformatted(&self.table().table(Terminal::default()));
        for (budget, plan) in self.plans {
            let share = self.share(*budget) * 100.0;
            body += &format!("<h2>{budget}, {share:.0}%</h2>\n");
            body += &match plan {
                Ok(plan) => format!("<div>{}</div>\n<div>{}</div>\n", pictures::memory(plan), pictures::arena(plan)),
                Err(error) => format!("<p>{}</p>\n", escape(&error.to_string())),
            };
        }
        framed(self.title, &body)
    }

    #[cfg(feature = "tables")]
    /// Plain, the least budget, and the added time under the smallest budget that has a plan.
    fn three(&self) -> Vec<(String, String)> {
        let mut numbers = vec![(self.whole.to_string(), "plain".to_owned())];
        let least = self.plans.iter().filter_map(|(_, plan)| match plan {
            Ok(plan) => Some(plan.min_feasible),
            Err(Error::OverBudget { needed, .. }) => Some(*needed),
            Err(_) => None,
        });
        if let Some(least) = least.min() {
            numbers.push((least.rounded_up(), format!("least budget, {:.0}% of plain", self.share(least) * 100.0)));
        }
        if let Some((budget, Ok(plan))) = self.plans.iter().find(|(_, plan)| plan.is_ok()) {
            let added = rounded(plan.overhead() * 100.0, 1) + "%";
            numbers.push((added, format!("added time in {:.0}% of plain", self.share(*budget) * 100.0)));
        }
        numbers
    }

    /// One row per budget: `head`, the `values` of its plan, the times of existing methods, the outcome, and the bytes needed if the budget is too
    /// small. The last cell is omitted if its column is.
    fn grid(
        &self,
        columns: &[(&str, Align)],
        head: impl Fn(Bytes) -> [String; 2],
        values: impl Fn(&Plan) -> [String; 6],
        time: impl Fn(Nanos) -> String,
    ) -> Grid {
        let mut grid = Grid::new(columns.iter().copied());
        for (at, (budget, plan)) in self.plans.iter().enumerate() {
            let values = plan.as_ref().map(&values).unwrap_or_default();
            let rivals = self.rivals.get(at).copied().unwrap_or_default();
            let rivals = [rivals.vdnn, rivals.checkpoints].map(|of| of.map_or_else(String::new, &time));
            let needed = match plan {
                Err(Error::OverBudget { needed, .. }) => needed.0.to_string(),
                _ => String::new(),
            };
            grid.push(head(*budget).into_iter().chain(values).chain(rivals).chain([outcome(plan), needed]));
        }
        grid
    }

    fn share(&self, budget: Bytes) -> f64 {
        budget.0 as f64 / self.whole.0.max(1) as f64
    }
}

/// The caption of the picture.
#[cfg(feature = "tables")]
const FRONT: &str = "How long a step takes under each budget: planned here, under the policy vdnn-dynamic, with checkpoints, and plain. \
A curve begins at the least budget that its plans fit. Below, what is live over the step under each budget; point at a box for its \
name, size, life and fate.";

fn millis(time: Nanos) -> String {
    format!("{:.2}", time.as_micros() / 1e3)
}

/// The plan in short, or the reason for having none.
fn outcome(plan: &Result<Plan, Error>) -> String {
    match plan {
        Ok(plan) => {
            plan.decisions.iter().find(|decision| decision.taken).map(|taken| taken.attempt.clone()).unwrap_or_default()
        }
        Err(Error::OverBudget { needed, layer, .. }) => format!("needs {} ({layer})", needed.rounded_up()),
        Err(error) => error.to_string(),
    }
}
