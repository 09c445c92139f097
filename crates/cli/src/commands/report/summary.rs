//! The sums of a report.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tightfit_report::count;
use tightfit_units::{Bytes, Nanos};

use super::document::{Kernel, Report, Totals};

/// Decisions that are counted one by one; every other one is a reason why a kernel was left unchanged.
const DECISIONS: [&str; 3] = ["divided", "replaced", "kept"];

/// The sums of a report.
pub struct Summary<'a> {
    kernels: usize,
    /// Time of all calls of the kernels with both times: by their own choices, and now.
    times: [Nanos; 2],
    /// Kernels without one of the two.
    untimed: usize,
    /// The largest workspace of a kernel: by their own choices, and now.
    workspaces: [Bytes; 2],
    /// Kernels by decision.
    decisions: BTreeMap<&'a str, usize>,
    /// Calls left unchanged by reason.
    passed: BTreeMap<&'a str, u64>,
    totals: Totals,
}

impl Summary<'_> {
    /// Adds up a report.
    pub fn of(report: &Report) -> Summary<'_> {
        let kernels = &report.kernels;
        let timed = || kernels.iter().filter_map(|kernel| Some((kernel, kernel.framework.time?, kernel.ours.time?)));
        let largest = |workspace: fn(&Kernel) -> Bytes| kernels.iter().map(workspace).max().unwrap_or_default();
        let mut decisions = BTreeMap::new();
        for kernel in kernels {
            *decisions.entry(kernel.decision.as_str()).or_default() += 1;
        }
        let mut passed = BTreeMap::<_, u64>::new();
        for calls in &report.passed {
            let sum = passed.entry(calls.reason.as_str()).or_default();
            *sum = sum.saturating_add(calls.calls);
        }
        Summary {
            kernels: kernels.len(),
            times: [
                timed().map(|(kernel, theirs, _)| theirs * kernel.calls).sum(),
                timed().map(|(kernel, _, ours)| ours * kernel.calls).sum(),
            ],
            untimed: kernels.len() - timed().count(),
            workspaces: [largest(|kernel| kernel.framework.workspace), largest(|kernel| kernel.ours.workspace)],
            decisions,
            passed,
            totals: report.totals,
        }
    }

    /// The speedup of the convolutions.
    fn gain(&self) -> Option<f64> {
        let [theirs, ours] = self.times;
        (ours > Nanos::ZERO).then(|| theirs.ratio(ours))
    }

    fn decided(&self, decision: &str) -> usize {
        self.decisions.get(decision).copied().unwrap_or_default()
    }

    /// Kernels left unchanged, by reason.
    fn left(&self) -> impl Iterator<Item = (&str, usize)> {
        let left = self.decisions.iter().filter(|(decision, _)| !DECISIONS.contains(decision));
        left.map(|(reason, kernels)| (*reason, *kernels))
    }

    /// The sums as lines of text.
    pub fn text(&self) -> String {
        let Totals { tuning, tuning_measurements, cache_hits, shipped_hits, less_accurate, .. } = self.totals;
        let Totals { planned_only, undecided, .. } = self.totals;
        let mut lines = Vec::new();
        if self.kernels == 0 {
            lines.push(
                "no convolution ran; `tightfit doctor --preload` checks whether a program can be intercepted".into(),
            );
        } else {
            let ([theirs, ours], [own, now]) = (self.times, self.workspaces);
            let untimed = match self.untimed {
                0 => String::new(),
                n => format!("; {} without measured times not counted", count(n, "kernel")),
            };
            let time = self.gain().map_or_else(
                || "not measured".to_owned(),
                |gain| format!("{theirs} plain, {ours} now, {gain:.2}x as fast (calls x time of a call){untimed}"),
            );
            lines.push(format!("time        {time}"));
            lines.push(format!("workspace   {own} plain, {now} now (largest kernel)"));
        }
        let [divided, replaced, kept] = DECISIONS.map(|decision| self.decided(decision));
        let mut kernels = format!("kernels     {divided} divided, {replaced} replaced, {kept} kept");
        for (reason, left) in self.left() {
            kernels += &format!(", {left} unchanged ({reason})");
        }
        if planned_only > 0 {
            kernels += &format!("; {planned_only} more planned but never run");
        }
        lines.push(kernels);
        let tuning = tuning.map_or_else(|| "-".to_owned(), |time| time.to_string());
        let mut tuning = format!("tuning      {tuning}, {tuning_measurements} measured, {cache_hits} from the cache");
        if shipped_hits > 0 {
            tuning += &format!(", {shipped_hits} of them shipped");
        }
        if undecided > 0 {
            tuning += &format!("; not over when this was written: {} undecided", count(undecided, "kernel"));
        }
        if less_accurate > 0 {
            tuning += &format!("; {less_accurate} left out as less accurate");
        }
        lines.push(tuning);
        if !self.passed.is_empty() {
            let reasons: Vec<String> = self.passed.iter().map(|(reason, calls)| format!("{calls} {reason}")).collect();
            let calls = self.passed.values().fold(0_u64, |sum, calls| sum.saturating_add(*calls));
            lines.push(format!("unchanged   {calls} calls: {}", reasons.join(", ")));
        }
        lines.join("\n") + "\n"
    }

    /// The sums for programs.
    pub fn json(&self) -> Value {
        let Totals { tuning, tuning_measurements, cache_hits, shipped_hits, less_accurate, .. } = self.totals;
        let Totals { planned_only, undecided, .. } = self.totals;
        let times = self.gain().map(|_| self.times.map(Nanos::as_micros));
        json!({
            "framework_time_us": times.map(|[theirs, _]| theirs),
            "time_us": times.map(|[_, ours]| ours),
            "kernels_without_times": self.untimed,
            "framework_workspace_bytes": self.workspaces[0].0,
            "workspace_bytes": self.workspaces[1].0,
            "divided": self.decided("divided"),
            "replaced": self.decided("replaced"),
            "kept": self.decided("kept"),
            "left": self.left().collect::<BTreeMap<_, _>>(),
            "passed_through": self.passed,
            "tuning_us": tuning.map(Nanos::as_micros),
            "tuning_measurements": tuning_measurements,
            "cache_hits": cache_hits,
            "shipped_hits": shipped_hits,
            "less_accurate": less_accurate,
            "planned_only": planned_only,
            "undecided": undecided,
        })
    }
}
