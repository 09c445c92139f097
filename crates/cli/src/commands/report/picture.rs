//! Memory and time of each kernel, plain and now: the picture of layers that `optimize --plot` draws under two limits.

use tightfit_conv::candidate::Limit;
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost, Problem};
use tightfit_profile::answer::{NotUndivided, Optimized, OptimizedKernel, Profiling};
use tightfit_profile::survey::{Divide, Sizes};
use tightfit_report::{count, svg};
use tightfit_units::{Bytes, Nanos};

use super::document::{Kernel, Report};

/// Draws the kernels whose two times are known; kernels of one layer are added up.
pub fn draw(report: &Report) -> String {
    let timed = report.kernels.iter().filter_map(|kernel| Some((kernel, kernel.framework.time?, kernel.ours.time?)));
    let timed: Vec<(&Kernel, Nanos, Nanos)> = timed.collect();
    let left_out = match report.kernels.len() - timed.len() {
        0 => String::new(),
        n => format!(", {} without times left out", count(n, "kernel")),
    };
    let title = format!("{}, {}{left_out}", report.file, report.device.as_deref().unwrap_or("no device"));
    let plain = timed.iter().map(|(kernel, theirs, _)| bar(report, kernel, plain(kernel, *theirs)));
    let now = timed.iter().map(|(kernel, _, ours)| bar(report, kernel, now(kernel, *ours)));
    let (plain, now) = (result(plain.collect()), result(now.collect()));
    svg::per_layer(&title, &[("plain", &plain), ("now", &now)])
}

/// The program's own choice.
fn plain(kernel: &Kernel, time: Nanos) -> Configuration {
    let algorithm = Algorithm::new(&kernel.framework.algorithm);
    let (micro_batch, workspace) = (kernel.problem.batch(), kernel.framework.workspace);
    Configuration::new(vec![Candidate { micro_batch, algorithm, time, workspace }], DivisionCost::default())
}

/// The calls that run, with the time and the workspace of the whole, which may differ from the sum of the parts.
fn now(kernel: &Kernel, time: Nanos) -> Configuration {
    let mut parts = kernel.ours.configuration.parts().to_vec();
    if parts.is_empty() {
        parts = plain(kernel, time).parts().to_vec();
    }
    for (place, part) in parts.iter_mut().enumerate() {
        part.time = if place == 0 { time } else { Nanos::ZERO };
        part.workspace = kernel.ours.workspace;
    }
    Configuration::new(parts, DivisionCost::default())
}

fn bar(report: &Report, kernel: &Kernel, configuration: Configuration) -> OptimizedKernel {
    let layer = match report.has_devices() {
        true => format!("{} on {}", kernel.name, kernel.device),
        false => kernel.name.clone(),
    };
    let undivided = Err(NotUndivided::NotMeasured);
    OptimizedKernel { layer, problem: kernel.problem, undivided, configuration, front: None, verification: None }
}

/// Kernels in the form that pictures are drawn from. Fields that the picture does not show have a neutral value.
fn result(kernels: Vec<OptimizedKernel>) -> Optimized {
    let first = kernels.first().map(|kernel| kernel.problem);
    Optimized {
        network: String::new(),
        batch: None,
        device: Device { backend: String::new(), name: String::new(), library: String::new(), threads: 0 },
        types: first.map_or(tightfit_conv::Types::F32, |problem| problem.types()),
        layout: first.as_ref().map(Problem::layout).unwrap_or_default(),
        sizes: Sizes::default(),
        divide: Divide::default(),
        limit: Limit::PerKernel(Bytes::UNLIMITED),
        kernels,
        gap: 0.0,
        stop: None,
        profiling: Profiling::default(),
        least_workspace: None,
        groups: Vec::new(),
        overlapped: Vec::new(),
    }
}
