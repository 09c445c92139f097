//! What copies and layers cost on a device: a few rates, and measured times where there are some.
//!
//! Convolutions bring their own times with their configurations. All other layers but the fully connected ones are bound
//! by memory: their time is the bytes that they read and write over the memory's rate, longer by a factor where a library
//! was seen to be slower. The mini-batch comes at the rate of copies. A copy is slower while another goes the other way.

use std::collections::HashMap;

use super::{Access, Compute, Operand, Pass, Schedule, Workload};
use crate::network::{LayerId, LayerKind};
use crate::problem::Storage;
use crate::{Bytes, Error, Nanos, Problem, Types};

/// Rates of a device and of its link to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Name of the device that the rates are of.
    pub name: String,
    /// Copies to the host, bytes a second.
    pub offload_rate: f64,
    /// Copies from the host, bytes a second.
    pub prefetch_rate: f64,
    /// Copies each way while both directions run, bytes a second.
    pub both_rate: f64,
    /// By how much longer a computation takes while something is copied, as a share of its time.
    pub beside_copies: f64,
    /// Device memory as a layer uses it, bytes a second.
    pub memory_rate: f64,
    /// Products and sums in 32 bits, operations a second, a multiplication and an addition counted as two.
    pub f32_rate: f64,
    /// The same on tensor cores from 32-bit data.
    pub tf32_rate: f64,
    /// The same from 16-bit data.
    pub half_rate: f64,
    /// What each call costs beside its work.
    pub launch: Nanos,
    /// Kinds of layers (by [`LayerKind::name`]) and passes that take longer than by these rates, and how many times as long.
    pub slower: &'static [(&'static str, Pass, f64)],
    /// Measured times, which replace the rates.
    pub measured: HashMap<(LayerId, Pass), Nanos>,
}

/// Batch normalization reads its input for the statistics, and once more for the values.
const SLOWER: &[(&str, Pass, f64)] = &[("batch-norm", Pass::Forward, 1.5), ("batch-norm", Pass::BackwardData, 1.5)];

/// Measured with cuDNN 9.19 and this project's kernels, in steps of GoogLeNet, ResNet-50, AlexNet and VGG-19
/// (`scripts/gpu-train.sh`, 2026-11-21); average pooling over whole maps, fully connected layers of 64 and 128 samples.
const H200_SLOWER: &[(&str, Pass, f64)] = &[
    ("average-pooling", Pass::BackwardData, 16.0),
    ("batch-norm", Pass::Forward, 2.1),
    ("batch-norm", Pass::BackwardData, 2.9),
    ("fully-connected", Pass::BackwardFilter, 2.4),
    ("max-pooling", Pass::Forward, 2.2),
    ("max-pooling", Pass::BackwardData, 4.5),
];

impl Costs {
    /// An NVIDIA H200 on PCIe generation 5. Measured (driver 580.159, 2026-11-21): copies of 55 GB/s each way alone, 49.4
    /// both ways at once, 51 to 55 beside kernels, which then take 1 to 8 % longer; 51 Tflop/s in 32 bits. Copies are taken
    /// at 53 GB/s, layers beside them at 3 % more time, memory at 74 % of its 4.8 TB/s, which rectified units reach, and tensor
    /// cores at half of 400 and 800 Tflop/s.
    pub fn h200() -> Costs {
        Costs {
            name: "h200".to_owned(),
            offload_rate: 53e9,
            prefetch_rate: 53e9,
            both_rate: 49.4e9,
            beside_copies: 0.03,
            memory_rate: 0.74 * 4.8e12,
            f32_rate: 51e12,
            tf32_rate: 200e12,
            half_rate: 400e12,
            launch: Nanos(5_000),
            slower: H200_SLOWER,
            measured: HashMap::new(),
        }
    }

    /// The NVIDIA K40 of the vDNN paper (Rhu et al. 2016, 4.2): 288 GB/s of memory, 5 Tflop/s and 16 GB/s of PCIe 3 at
    /// most, taken at 80, 60 and 75 % of those.
    pub fn k40() -> Costs {
        Costs {
            name: "k40".to_owned(),
            offload_rate: 12e9,
            prefetch_rate: 12e9,
            both_rate: 12e9,
            beside_copies: 0.0,
            memory_rate: 0.8 * 288e9,
            f32_rate: 3e12,
            tf32_rate: 3e12,
            half_rate: 3e12,
            launch: Nanos(10_000),
            slower: SLOWER,
            measured: HashMap::new(),
        }
    }

    /// A processor whose arenas both lie in its own memory, with a few cores: expected, not measured.
    pub fn cpu() -> Costs {
        Costs {
            name: "cpu".to_owned(),
            offload_rate: 8e9,
            prefetch_rate: 8e9,
            both_rate: 4e9,
            beside_copies: 0.0,
            memory_rate: 8e9,
            f32_rate: 1e11,
            tf32_rate: 1e11,
            half_rate: 1e10,
            launch: Nanos(2_000),
            slower: SLOWER,
            measured: HashMap::new(),
        }
    }

    /// The costs of this name: `h200`, `k40` or `cpu`.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] for any other.
    pub fn named(name: &str) -> Result<Costs, Error> {
        match name {
            "h200" => Ok(Costs::h200()),
            "k40" => Ok(Costs::k40()),
            "cpu" => Ok(Costs::cpu()),
            _ => Err(Error::unknown_word("costs", name, ["h200", "k40", "cpu"])),
        }
    }

    /// With a measured time of one pass of a layer.
    pub fn with_measured(mut self, layer: LayerId, pass: Pass, time: Nanos) -> Costs {
        self.measured.insert((layer, pass), time);
        self
    }

    /// Time of a convolution that was not measured: its arithmetic or its memory traffic, whichever takes longer.
    pub fn convolution(&self, problem: &Problem) -> Nanos {
        self.product(problem.flops(), problem.tensor_bytes(), problem.types())
    }

    /// Time of copying this many bytes with nothing going the other way.
    pub fn copy(&self, bytes: Bytes, to_host: bool) -> Nanos {
        let rate = if to_host { self.offload_rate } else { self.prefetch_rate };
        self.launch + seconds(bytes.0 as f64 / rate)
    }

    /// Time of a compute step of `schedule`.
    pub fn compute(&self, workload: &Workload<'_>, schedule: &Schedule, step: &Compute) -> Nanos {
        let moved = |operand: &Operand| traffic(operand.access, Bytes(schedule.blocks[operand.block.0].bytes));
        let bytes = step.operands.iter().map(moved).sum();
        self.pass(workload, step.layer, step.pass, bytes, step.configuration.as_ref().map(|found| found.time()))
    }

    /// Time of a pass of a layer that reads and writes `bytes` in all; of a convolution, that of its configuration.
    pub fn pass(
        &self,
        workload: &Workload<'_>,
        layer: LayerId,
        pass: Pass,
        bytes: Bytes,
        configuration: Option<Nanos>,
    ) -> Nanos {
        if let Some(time) = self.measured.get(&(layer, pass)) {
            return *time;
        }
        let of = workload.network.layer(layer);
        let time = match (&of.kind, pass) {
            (LayerKind::Convolution { .. }, Pass::Forward | Pass::BackwardData | Pass::BackwardFilter) => {
                return configuration.unwrap_or_default();
            }
            (LayerKind::FullyConnected { .. }, Pass::Forward | Pass::BackwardData | Pass::BackwardFilter) => {
                let flops = 2.0 * of.parameters as f64 * workload.batch as f64;
                self.product(flops, bytes, workload.types)
            }
            (LayerKind::Input { .. }, _) => return self.copy(bytes, false),
            _ => self.launch + seconds(bytes.0 as f64 / self.memory_rate),
        };
        let slower = self.slower.iter().find(|(kind, of_pass, _)| *kind == of.kind.name() && *of_pass == pass);
        slower.map_or(time, |(.., times)| self.launch + Nanos::from_micros((time - self.launch).as_micros() * times))
    }

    fn product(&self, flops: f64, bytes: Bytes, types: Types) -> Nanos {
        let rate = match (types, types.storage()) {
            (Types::Tf32, _) => self.tf32_rate,
            (_, Storage::F32) => self.f32_rate,
            _ => self.half_rate,
        };
        self.launch + seconds((flops / rate).max(bytes.0 as f64 / self.memory_rate))
    }
}

/// Bytes that an operand of `bytes` has read and written.
pub(super) fn traffic(access: Access, bytes: Bytes) -> Bytes {
    match access {
        Access::Read | Access::Write => bytes,
        Access::Add => Bytes(2 * bytes.0),
    }
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_micros(seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Builder, Filters, Network, Shape};
    use crate::plan::{Action, Kernels, Options, plan};

    fn network() -> Network {
        let mut net = Builder::new("small");
        net.input(Shape::image(3, 32, 32));
        net.conv("conv", Filters::new(8, 3).pad(1))
            .batch_norm()
            .relu()
            .flatten()
            .fully_connected("fc", 10)
            .softmax_loss();
        net.finish().unwrap()
    }

    /// Microseconds beside the launch of a kind's pass, planned with all resident.
    fn time(costs: &Costs, kind: &str, pass: Pass) -> f64 {
        let network = network();
        let workload = Workload::new(&network, 64, Types::F32, false).unwrap();
        let kernels = Kernels::assumed(&workload, costs).unwrap();
        let plan = plan(&workload, &kernels, costs, &Options::default()).unwrap();
        let found = plan.schedule.steps.iter().find_map(|step| match &step.action {
            Action::Compute(compute) => {
                let is_it = network.layer(compute.layer).kind.name() == kind && compute.pass == pass;
                is_it.then_some(compute)
            }
            _ => None,
        });
        let compute = found.unwrap();
        (costs.compute(&workload, &plan.schedule, compute) - costs.launch).as_micros()
    }

    fn assert_near(got: f64, bytes: usize, rate: f64) {
        let want = bytes as f64 / rate * 1e6;
        // Times are whole nanoseconds.
        assert!((got - want).abs() < 2e-3, "{got} us, not {want}");
    }

    #[test]
    fn passes_cost_what_they_read_and_write() {
        let costs = Costs::k40();
        let (map, weights) = (64 * 8 * 32 * 32 * 4, (8 * 32 * 32 * 10 + 10) * 4);
        // In place: a read and a write of y, which is x.
        assert_near(time(&costs, "relu", Pass::Forward), 2 * map, costs.memory_rate);
        // Weights and momentum are read and written, gradients read.
        assert_near(time(&costs, "fully-connected", Pass::Update), 5 * weights, costs.memory_rate);
        assert_near(time(&costs, "input", Pass::Forward), 64 * (3 * 32 * 32 * 4 + 4), costs.prefetch_rate);
    }

    #[test]
    fn what_a_library_is_slower_at_takes_longer_by_its_factor() {
        let (plain, slower) = (Costs { slower: &[], ..Costs::k40() }, Costs::k40());
        for (pass, times) in [(Pass::Forward, 1.5), (Pass::BackwardData, 1.5), (Pass::Update, 1.0)] {
            let (plain, slower) = (time(&plain, "batch-norm", pass), time(&slower, "batch-norm", pass));
            assert!((slower - times * plain).abs() < 2e-3, "{pass:?}: {slower} us, not {times} x {plain}");
        }
    }
}
