//! The cost of copies and layers on a device, estimated from a few rates.
//!
//! Convolutions take their times from their configurations. All other layers except fully connected ones are
//! memory-bound: their time is the bytes they read and write divided by the memory rate, times a factor where the
//! library is known to be slower. The mini-batch is uploaded at the copy rate. A copy slows down while another runs in
//! the opposite direction.

use super::step::{Access, Cost, Step};
use super::{Fronts, Lowered, Pass, Workload};
use crate::network::{LayerId, LayerKind, Work};
use crate::problem::Storage;
use crate::{Bytes, Error, Nanos, Problem, Types};

/// The direction of a copy.
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
    /// Name of the device.
    pub name: String,
    /// Copy rate to the host, bytes per second.
    pub offload_rate: f64,
    /// Copy rate from the host, bytes per second.
    pub prefetch_rate: f64,
    /// Copy rate of each direction while both run, bytes per second.
    pub both_rate: f64,
    /// Slowdown of a computation while a copy runs, as a fraction of its time.
    pub beside_copies: f64,
    /// Device memory rate as layers achieve it, bytes per second.
    pub memory_rate: f64,
    /// 32-bit arithmetic, operations per second; a multiply-add counts as two.
    pub f32_rate: f64,
    /// The same on tensor cores from 32-bit data.
    pub tf32_rate: f64,
    /// The same from 16-bit data.
    pub half_rate: f64,
    /// Fixed overhead of each call.
    pub launch: Nanos,
    /// Layer kinds (by [`crate::network::LayerKind::name`]) and passes that are slower than these rates, each with its
    /// factor.
    pub slower: &'static [(&'static str, Pass, f64)],
}

/// Batch normalization reads its input twice: for the statistics and for the values.
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
    /// An NVIDIA H200 on PCIe generation 5. Measured (driver 580.159, 2026-11-21): copies of 55 GB/s each way alone,
    /// 49.4 with both at once, 51 to 55 beside kernels, which then take 1 to 8% longer; 51 Tflop/s in 32 bits. The
    /// model assumes 53 GB/s for copies, 3% more time for layers beside copies, 74% of the memory's 4.8 TB/s (which
    /// ReLU reaches), and half of 400 and 800 Tflop/s for tensor cores.
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

    /// The NVIDIA K40 of the vDNN paper (Rhu et al. 2016, 4.2): the model assumes 80%, 60% and 75% of its peak 288 GB/s
    /// of memory, 5 Tflop/s and 16 GB/s over PCIe 3.
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

    /// A CPU with a few cores and both arenas in its own memory. Estimated, not measured.
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

    /// Looks up a cost model by name: `h200`, `k40` or `cpu`.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] for any other name.
    pub fn named(name: &str) -> Result<CostModel, Error> {
        match name {
            "h200" => Ok(CostModel::h200()),
            "k40" => Ok(CostModel::k40()),
            "cpu" => Ok(CostModel::cpu()),
            _ => Err(Error::unknown_word("costs", name, ["h200", "k40", "cpu"])),
        }
    }

    /// Estimated time of an unmeasured convolution: its arithmetic or its memory traffic, whichever takes longer.
    pub fn convolution(&self, problem: &Problem) -> Nanos {
        self.product(problem.flops(), problem.tensor_bytes(), problem.types())
    }

    /// Time to copy this many bytes with no copy in the opposite direction.
    pub fn copy(&self, direction: Direction, bytes: Bytes) -> Nanos {
        self.launch + seconds(bytes.0 as f64 / self.copy_rate(direction))
    }

    /// Bytes per second of a copy with no copy in the opposite direction.
    pub fn copy_rate(&self, direction: Direction) -> f64 {
        match direction {
            Direction::ToHost => self.offload_rate,
            Direction::FromHost => self.prefetch_rate,
        }
    }

    /// Time of a pass that reads and writes `bytes` in total. Convolutions use their configuration's time instead.
    fn pass(&self, workload: &Workload<'_>, layer: LayerId, pass: Pass, bytes: Bytes) -> Nanos {
        let layer = workload.network.layer(layer);
        let time = match (layer.kind.behavior().work, pass) {
            (Work::Product, Pass::Forward | Pass::BackwardData | Pass::BackwardFilter) => {
                let multiply_adds = match (&layer.kind, pass) {
                    (LayerKind::Other(other), Pass::Forward) => other.multiply_adds as f64,
                    // The gradients of both factors, in one pass.
                    (LayerKind::Other(other), _) => 2.0 * other.multiply_adds as f64,
                    _ => layer.parameters as f64,
                };
                self.product(2.0 * multiply_adds * workload.batch as f64, bytes, workload.types)
            }
            (Work::Upload, _) => return self.copy(Direction::FromHost, bytes),
            _ => self.launch + seconds(bytes.0 as f64 / self.memory_rate),
        };
        let slower = self.slower.iter().find(|(kind, slow_pass, _)| *kind == layer.kind.name() && *slow_pass == pass);
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

/// Bytes of memory traffic for an operand of `bytes`.
fn traffic(access: Access, bytes: Bytes) -> Bytes {
    match access {
        Access::Read | Access::Write => bytes,
        Access::Add => Bytes(2 * bytes.0),
    }
}

impl Workload<'_> {
    /// Lowers this workload to a step with costs, the input of [`super::plan()`].
    ///
    /// # Errors
    /// [`Error::BadProblem`] if the mini-batch is too large.
    pub fn step(&self, fronts: &Fronts, costs: &CostModel) -> Result<Step, Error> {
        let Lowered { mut step, passes, .. } = self.lower()?;
        let bytes: Vec<Bytes> = step.tensors.iter().map(|tensor| tensor.bytes).collect();
        for (operation, of) in step.operations.iter_mut().zip(&passes) {
            operation.cost = match &operation.cost {
                Cost::Choice(front) => Cost::Choice(Box::new(fronts.front(&front.problem))),
                Cost::Fixed(_) | Cost::Listed(_) => {
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

    /// Microseconds of a pass of this kind, without the launch.
    fn time(costs: &CostModel, kind: &str, pass: Pass) -> f64 {
        let network = network();
        let workload = Workload::new(&network, 64, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&Fronts::default(), costs).unwrap();
        let passes = workload.lower().unwrap().passes;
        let is_it = |of: &LayerPass| network.layer(of.layer).kind.name() == kind && of.pass == pass;
        match step.operations[passes.iter().position(is_it).unwrap()].cost {
            Cost::Fixed(time) => (time - costs.launch).as_micros(),
            Cost::Choice(_) | Cost::Listed(_) => panic!("a {kind} has no choice"),
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
        // In place: one read and one write of y, which is also x.
        assert_near(time(&costs, "relu", Pass::Forward), 2 * map, costs.memory_rate);
        // Weights and momentum are read and written; gradients are only read.
        assert_near(time(&costs, "fully-connected", Pass::Update), 5 * weights, costs.memory_rate);
        assert_near(time(&costs, "input", Pass::Forward), 64 * (3 * 32 * 32 * 4 + 4), costs.prefetch_rate);
    }

    #[test]
    fn slow_passes_take_longer_by_their_factor() {
        let (plain, slower) = (CostModel { slower: &[], ..CostModel::k40() }, CostModel::k40());
        for (pass, times) in [(Pass::Forward, 1.5), (Pass::BackwardData, 1.5), (Pass::Update, 1.0)] {
            let (plain, slower) = (time(&plain, "batch-norm", pass), time(&slower, "batch-norm", pass));
            assert!((slower - times * plain).abs() < 2e-3, "{pass:?}: {slower} us, not {times} x {plain}");
        }
    }
}
