//! What copies and layers cost on a device, by a few rates.
//!
//! Convolutions bring their own times with their configurations. All other layers but the fully connected ones are bound
//! by memory: their time is the bytes that they read and write over the memory's rate, longer by a factor where a library
//! was seen to be slower. The mini-batch comes at the rate of copies. A copy is slower while another goes the other way.

use super::step::{Access, Cost, Step};
use super::{Fronts, Lowered, Pass, Workload};
use crate::network::{LayerId, Work};
use crate::problem::Storage;
use crate::{Bytes, Error, Nanos, Problem, Types};

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host: an offload.
    ToHost,
    /// From the host to the device: a prefetch.
    FromHost,
}

/// Rates of a device and of its link to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
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
    /// Kinds of layers (by [`crate::network::LayerKind::name`]) and passes that take longer than by these rates, and how many times as long.
    pub slower: &'static [(&'static str, Pass, f64)],
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

impl CostModel {
    /// An NVIDIA H200 on PCIe generation 5. Measured (driver 580.159, 2026-11-21): copies of 55 GB/s each way alone, 49.4
    /// both ways at once, 51 to 55 beside kernels, which then take 1 to 8 % longer; 51 Tflop/s in 32 bits. Copies are taken
    /// at 53 GB/s, layers beside them at 3 % more time, memory at 74 % of its 4.8 TB/s, which rectified units reach, and tensor
    /// cores at half of 400 and 800 Tflop/s.
    pub fn h200() -> CostModel {
        CostModel {
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
        }
    }

    /// The NVIDIA K40 of the vDNN paper (Rhu et al. 2016, 4.2): 288 GB/s of memory, 5 Tflop/s and 16 GB/s of PCIe 3 at
    /// most, taken at 80, 60 and 75 % of those.
    pub fn k40() -> CostModel {
        CostModel {
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
        }
    }

    /// A processor whose arenas both lie in its own memory, with a few cores: expected, not measured.
    pub fn cpu() -> CostModel {
        CostModel {
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
        }
    }

    /// The costs of this name: `h200`, `k40` or `cpu`.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] for any other.
    pub fn named(name: &str) -> Result<CostModel, Error> {
        match name {
            "h200" => Ok(CostModel::h200()),
            "k40" => Ok(CostModel::k40()),
            "cpu" => Ok(CostModel::cpu()),
            _ => Err(Error::unknown_word("costs", name, ["h200", "k40", "cpu"])),
        }
    }

    /// Time of a convolution that was not measured: its arithmetic or its memory traffic, whichever takes longer.
    pub fn convolution(&self, problem: &Problem) -> Nanos {
        self.product(problem.flops(), problem.tensor_bytes(), problem.types())
    }

    /// Time of copying this many bytes with nothing going the other way.
    pub fn copy(&self, direction: Direction, bytes: Bytes) -> Nanos {
        self.launch + seconds(bytes.0 as f64 / self.copy_rate(direction))
    }

    /// Bytes a second of a copy with nothing going the other way.
    pub fn copy_rate(&self, direction: Direction) -> f64 {
        match direction {
            Direction::ToHost => self.offload_rate,
            Direction::FromHost => self.prefetch_rate,
        }
    }

    /// Time of a pass that reads and writes `bytes` in all; for a convolution, its configuration says.
    fn pass(&self, workload: &Workload<'_>, layer: LayerId, pass: Pass, bytes: Bytes) -> Nanos {
        let of = workload.network.layer(layer);
        let time = match (of.kind.behavior().work, pass) {
            (Work::Product, Pass::Forward | Pass::BackwardData | Pass::BackwardFilter) => {
                let flops = 2.0 * of.parameters as f64 * workload.batch as f64;
                self.product(flops, bytes, workload.types)
            }
            (Work::Upload, _) => return self.copy(Direction::FromHost, bytes),
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
fn traffic(access: Access, bytes: Bytes) -> Bytes {
    match access {
        Access::Read | Access::Write => bytes,
        Access::Add => Bytes(2 * bytes.0),
    }
}

impl Workload<'_> {
    /// The step of this workload, with what its operations cost: what [`super::plan()`] takes.
    ///
    /// # Errors
    /// [`Error::BadProblem`] for too large a mini-batch.
    pub fn step(&self, fronts: &Fronts, costs: &CostModel) -> Result<Step, Error> {
        let Lowered { mut step, passes, .. } = self.lower()?;
        let bytes: Vec<Bytes> = step.tensors.iter().map(|tensor| tensor.bytes).collect();
        for (operation, of) in step.operations.iter_mut().zip(&passes) {
            operation.cost = match &operation.cost {
                Cost::Choice(front) => Cost::Choice(Box::new(fronts.front(&front.problem))),
                Cost::Fixed(_) => {
                    let moved = operation.uses.iter().map(|used| traffic(used.access, bytes[used.tensor.0])).sum();
                    Cost::Fixed(costs.pass(self, of.layer, of.pass, moved))
                }
            };
        }
        Ok(step)
    }
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_micros(seconds * 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Builder, Filters, Network, Shape};
    use crate::plan::{LayerPass, Mode};

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

    /// Microseconds beside the launch of a kind's pass.
    fn time(costs: &CostModel, kind: &str, pass: Pass) -> f64 {
        let network = network();
        let workload = Workload::new(&network, 64, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&Fronts::default(), costs).unwrap();
        let passes = workload.lower().unwrap().passes;
        let is_it = |of: &LayerPass| network.layer(of.layer).kind.name() == kind && of.pass == pass;
        match step.operations[passes.iter().position(is_it).unwrap()].cost {
            Cost::Fixed(time) => (time - costs.launch).as_micros(),
            Cost::Choice(_) => panic!("a {kind} has no choice"),
        }
    }

    fn assert_near(got: f64, bytes: usize, rate: f64) {
        let want = bytes as f64 / rate * 1e6;
        // Times are whole nanoseconds.
        assert!((got - want).abs() < 2e-3, "{got} us, not {want}");
    }

    #[test]
    fn passes_cost_what_they_read_and_write() {
        let costs = CostModel::k40();
        let (map, weights) = (64 * 8 * 32 * 32 * 4, (8 * 32 * 32 * 10 + 10) * 4);
        // In place: a read and a write of y, which is x.
        assert_near(time(&costs, "relu", Pass::Forward), 2 * map, costs.memory_rate);
        // Weights and momentum are read and written, gradients read.
        assert_near(time(&costs, "fully-connected", Pass::Update), 5 * weights, costs.memory_rate);
        assert_near(time(&costs, "input", Pass::Forward), 64 * (3 * 32 * 32 * 4 + 4), costs.prefetch_rate);
    }

    #[test]
    fn what_a_library_is_slower_at_takes_longer_by_its_factor() {
        let (plain, slower) = (CostModel { slower: &[], ..CostModel::k40() }, CostModel::k40());
        for (pass, times) in [(Pass::Forward, 1.5), (Pass::BackwardData, 1.5), (Pass::Update, 1.0)] {
            let (plain, slower) = (time(&plain, "batch-norm", pass), time(&slower, "batch-norm", pass));
            assert!((slower - times * plain).abs() < 2e-3, "{pass:?}: {slower} us, not {times} x {plain}");
        }
    }
}
