//! The report of a program under `tightfit run --budget`, which the Python package writes (`tightfit/_budget/summary.py`).

use std::path::Path;

use serde::Deserialize;
use tightfit_report::{Align, Grid};
use tightfit_units::Bytes;

/// A report of a budget.
#[derive(Debug, Deserialize)]
struct Report {
    kind: String,
    steps: u64,
    step_ms: Option<f64>,
    peak_bytes: Option<u64>,
    models: Vec<Model>,
    graphs: Vec<Graph>,
}

#[derive(Debug, Deserialize)]
struct Model {
    model: String,
    device: String,
    budget_bytes: u64,
    plain_bytes: u64,
    peak_bytes: u64,
    moved_bytes: u64,
    recomputed_ms: f64,
    overhead: f64,
}

#[derive(Debug, Deserialize)]
struct Graph {
    budget_bytes: u64,
    plain_bytes: u64,
    peak_bytes: u64,
    overhead_us: f64,
    by: String,
}

/// The rows of a file that is a report of a budget, and what happened in all; `None` for other files.
pub fn read(path: &Path) -> Option<(Grid, String)> {
    // A pipe would be waited for, and is read once.
    path.is_file().then_some(())?;
    let report: Report = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    (report.kind == "budget").then(|| shown(&report))
}

fn shown(report: &Report) -> (Grid, String) {
    let right = ["budget", "plain", "predicted peak", "moved", "recomputed", "added time"];
    let mut columns = vec![("model", Align::Left)];
    columns.extend(right.map(|name| (name, Align::Right)));
    columns.push(("predicted for", Align::Left));
    let mut grid = Grid::new(columns);
    let size = |bytes: u64| Bytes(bytes).to_string();
    for model in &report.models {
        grid.push([
            model.model.clone(),
            size(model.budget_bytes),
            size(model.plain_bytes),
            size(model.peak_bytes),
            size(model.moved_bytes),
            format!("{:.1} ms", model.recomputed_ms),
            format!("{:.1}%", 100.0 * model.overhead),
            model.device.clone(),
        ]);
    }
    for graph in &report.graphs {
        grid.push([
            "compiled graph".to_owned(),
            size(graph.budget_bytes),
            size(graph.plain_bytes),
            size(graph.peak_bytes),
            "0 B".to_owned(),
            format!("by {}", graph.by),
            format!("{:.1} ms", graph.overhead_us / 1e3),
            String::new(),
        ]);
    }
    let step = report.step_ms.map_or_else(String::new, |time| format!(" of {time:.1} ms"));
    let peak = report.peak_bytes.map_or_else(|| "not counted on a CPU".to_owned(), size);
    (grid, format!("steps  {}{step}\npeak   {peak}\n", report.steps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_a_budget_has_a_row_for_each_model_and_graph() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        let text = r#"{"kind": "budget", "pid": 7, "steps": 60, "step_ms": 104.25, "peak_bytes": 8480000000,
            "models": [{"model": "ResNet", "device": "NVIDIA H200", "budget_bytes": 8589934592, "plain_bytes": 11925000000,
                        "peak_bytes": 8500000000, "seen_bytes": 8480000000, "moved_bytes": 1200000000, "host_bytes": 1200000000,
                        "dropped_bytes": 0, "recomputed_ms": 2.25, "overhead": 0.049, "planning_s": 1.5}],
            "graphs": [{"budget_bytes": 8589934592, "peak_bytes": 8000000000, "plain_bytes": 9000000000, "by": "tightfit",
                        "overhead_us": 1500}]}"#;
        std::fs::write(&path, text).unwrap();
        let (grid, end) = read(&path).unwrap();
        assert_eq!(grid.csv().lines().count(), 3);
        assert!(grid.csv().contains("NVIDIA H200") && grid.csv().contains("4.9%"), "{}", grid.csv());
        assert!(end.contains("60 of 104.2 ms") && end.contains("7.9 GiB"), "{end}");
        std::fs::write(&path, text.replace("\"budget\",", "\"other\",")).unwrap();
        assert!(read(&path).is_none());
    }
}
