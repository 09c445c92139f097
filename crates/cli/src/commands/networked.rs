//! Shared by `train` and `predict`: the network's ends, the device, the plan in a file, times, and memory.

use std::path::Path;

use tightfit_conv::Device;
use tightfit_network::{LayerKind, Network, Shape};
use tightfit_plan::{Mode, Plan};
use tightfit_train::{Engine, Machine};
use tightfit_units::{Bytes, Nanos};

use crate::failure::Failure;

/// The input and the output of a network.
pub struct Ends {
    /// The shape of a sample.
    pub sample: Shape,
    /// The number of classes; of outputs, if it has no loss.
    pub classes: usize,
    /// Whether it ends in a loss, and so gives probabilities.
    pub has_loss: bool,
}

/// # Errors
/// [`Failure::Usage`] for a network without an input, and for a layer list, in which every layer has its own.
pub fn ends(network: &Network) -> Result<Ends, Failure> {
    if network.layers().iter().filter(|layer| matches!(layer.kind, LayerKind::Input { .. })).count() > 1 {
        let name = network.name();
        return Err(Failure::Usage(format!("{name} is a layer list: its layers are not connected, so it cannot run")));
    }
    let find = |wanted: fn(&LayerKind) -> bool| network.layers().iter().find(|layer| wanted(&layer.kind));
    let loss = find(|kind| *kind == LayerKind::SoftmaxLoss);
    match (find(|kind| matches!(kind, LayerKind::Input { .. })), loss.or(network.layers().last())) {
        (Some(input), Some(last)) => {
            Ok(Ends { sample: input.shape, classes: last.shape.len(), has_loss: loss.is_some() })
        }
        _ => Err(Failure::Usage(format!("{} has no input layer", network.name()))),
    }
}

/// Refuses a backend that runs nothing, and CUDA graphs on a CPU; `what` is the command's verb.
///
/// # Errors
/// [`Failure::Usage`].
pub fn must_compute(device: &Device, graph: bool, what: &str) -> Result<(), Failure> {
    match device.backend.as_str() {
        "cpu" if graph => Err(Failure::Usage("--graph needs a GPU: the CPU has no CUDA graphs".to_owned())),
        "cpu" | "cuda" => Ok(()),
        other => Err(Failure::Usage(format!("--backend {other} cannot {what}; use --backend cpu or cuda"))),
    }
}

/// The plan in a file with its network, if it is for these layers, this mode and this device.
///
/// # Errors
/// The errors of [`Plan::read`]; [`Failure::Usage`] for a plan for something else.
pub fn read_plan(path: &Path, network: &Network, mode: Mode, device: &Device) -> Result<(Network, Plan), Failure> {
    let (planned, plan) = Plan::read(path)?;
    if planned.layers() != network.layers() {
        let (planned, given) = (planned.name(), network.name());
        return Err(Failure::Usage(format!("{} is a plan for {planned}, not for {given}", path.display())));
    }
    if plan.mode != mode {
        let what = match plan.mode {
            Mode::Inference => "inference; make one without --inference",
            Mode::Training => "training; make one with --inference",
        };
        return Err(Failure::Usage(format!("{} is a plan for {what}", path.display())));
    }
    match &plan.device {
        Some(measured) if !is_same(measured, device) => Err(Failure::Usage(format!(
            "{} was planned with the times of {measured}, but this is {device}: algorithms and times may differ; plan again \
             here with `tightfit plan .. --out {}`",
            path.display(),
            path.display()
        ))),
        _ => Ok((planned, plan)),
    }
}

/// Whether both are one device with the same versions, on any number of threads; a recording answers for its device.
fn is_same(one: &Device, other: &Device) -> bool {
    let one = Device { backend: other.backend.clone(), threads: other.threads, ..one.clone() };
    one.more_specific(other).is_some()
}

/// The median time, without the first, which pays for first touches, unless it is the only one.
pub fn median(times: impl ExactSizeIterator<Item = Nanos>) -> Nanos {
    let first = usize::from(times.len() > 1);
    let mut times: Vec<Nanos> = times.skip(first).collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The most device memory in use so far, and whether it could be read; the planned peak where the machine does not track
/// it. An error of reading it is reported only if the run itself `ended` without one.
pub fn peak<M: Machine>(engine: &mut Engine<M>, ended: &Result<(), Failure>) -> (Bytes, Result<(), Failure>) {
    match engine.machine().high_water() {
        Ok(peak) => (peak.unwrap_or(engine.peak()), Ok(())),
        Err(_) if ended.is_err() => (engine.peak(), Ok(())),
        Err(error) => (engine.peak(), Err(error.into())),
    }
}
