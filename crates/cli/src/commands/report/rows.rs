//! One row per kernel.

use serde_json::{Value, json};
use tightfit_report::{Align, Grid, Terminal};
use tightfit_units::Nanos;

use super::document::{Kernel, Report};

/// The kernels of a report for people; a column for the device only if there are several.
pub fn table(report: &Report, terminal: Terminal) -> String {
    let (left, right) = (Align::Left, Align::Right);
    let mut columns = vec![("kernel", left)];
    if report.has_devices() {
        columns.push(("device", right));
    }
    columns.extend([
        ("operation", left),
        ("problem", left),
        ("calls", right),
        ("own choice", left),
        ("time [µs]", right),
        ("workspace", right),
        ("runs now", left),
        ("time [µs]", right),
        ("workspace", right),
        ("gain", right),
        ("decision", left),
    ]);
    let mut grid = Grid::new(columns);
    for kernel in &report.kernels {
        let mut row = vec![kernel.name.clone()];
        if report.has_devices() {
            row.push(kernel.device.to_string());
        }
        row.extend([
            kernel.problem.operation().to_string(),
            shape(kernel),
            kernel.calls.to_string(),
            kernel.framework.algorithm.clone(),
            micros(kernel.framework.time),
            kernel.framework.workspace.to_string(),
            runs(kernel),
            micros(kernel.ours.time),
            kernel.ours.workspace.to_string(),
            kernel.gain().filter(|_| !kernel.runs_own()).map_or_else(unknown, |gain| format!("{gain:.2}x")),
            kernel.decision.clone(),
        ]);
        grid.push(row);
    }
    grid.table(terminal)
}

/// The kernels of several reports for a spreadsheet; what is unknown is empty.
pub fn values(reports: &[Report]) -> Grid {
    let (left, right) = (Align::Left, Align::Right);
    let mut grid = Grid::new([
        ("file", left),
        ("name", left),
        ("device", right),
        ("problem", left),
        ("calls", right),
        ("framework_algorithm", left),
        ("framework_time_us", right),
        ("framework_workspace_bytes", right),
        ("configuration", left),
        ("time_us", right),
        ("workspace_bytes", right),
        ("decision", left),
    ]);
    for (report, kernel) in reports.iter().flat_map(|report| report.kernels.iter().map(move |kernel| (report, kernel)))
    {
        grid.push([
            report.file.clone(),
            kernel.name.clone(),
            kernel.device.to_string(),
            kernel.problem.to_string(),
            kernel.calls.to_string(),
            kernel.framework.algorithm.clone(),
            exact(kernel.framework.time),
            kernel.framework.workspace.0.to_string(),
            kernel.ours.configuration.to_string(),
            exact(kernel.ours.time),
            kernel.ours.workspace.0.to_string(),
            kernel.decision.clone(),
        ]);
    }
    grid
}

/// A kernel with the names of the columns of [`values`]; what is unknown is null.
pub fn object(kernel: &Kernel) -> Value {
    json!({
        "name": kernel.name,
        "device": kernel.device,
        "problem": kernel.problem.to_string(),
        "calls": kernel.calls,
        "framework_algorithm": kernel.framework.algorithm,
        "framework_time_us": kernel.framework.time.map(Nanos::as_micros),
        "framework_workspace_bytes": kernel.framework.workspace.0,
        "configuration": kernel.ours.configuration.to_string(),
        "time_us": kernel.ours.time.map(Nanos::as_micros),
        "workspace_bytes": kernel.ours.workspace.0,
        "decision": kernel.decision,
    })
}

/// The calls that run; most kernels keep their own choice, and the others should catch the eye.
fn runs(kernel: &Kernel) -> String {
    if kernel.runs_own() { "own choice".to_owned() } else { kernel.ours.configuration.to_string() }
}

/// The problem without its operation.
fn shape(kernel: &Kernel) -> String {
    let problem = kernel.problem.to_string();
    problem.split_once(' ').map_or(problem.clone(), |(_, shape)| shape.to_owned())
}

/// Microseconds for people.
fn micros(time: Option<Nanos>) -> String {
    time.map_or_else(unknown, |time| format!("{:.1}", time.as_micros()))
}

/// Microseconds to the nanosecond.
fn exact(time: Option<Nanos>) -> String {
    time.map(|time| time.as_micros().to_string()).unwrap_or_default()
}

fn unknown() -> String {
    "-".to_owned()
}
