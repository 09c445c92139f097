//! The cost of copies and layers on a device, estimated from a few rates.
//!
//! Convolutions take their times from their configurations. Their biases and all other layers except fully connected
//! ones are memory-bound: their time is the bytes they read and write divided by the memory rate, times a factor where
//! the library is known to be slower. The mini-batch is uploaded at the copy rate. A copy slows down while another runs
//! in the opposite direction.

use tightfit_conv::Layout;
use tightfit_network::{LayerId, LayerKind, PoolingMethod, Work};
use tightfit_units::{Bytes, Error, Nanos};

use crate::lowering::fronts::Fronts;
use crate::lowering::terms::Lowered;
use crate::lowering::workload::Workload;
use crate::step::rates::seconds;
use crate::step::{
    APART, AVERAGE_APART, Access, Again, BIAS, Cost, CostModel, DENSE, Direction, Front, Pass, SUM, Step,
};

impl CostModel {
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
        let kind = match &layer.kind {
            LayerKind::Pooling(pooling) if pooling.method == PoolingMethod::Maximum && pooling.is_apart() => APART,
            LayerKind::Pooling(pooling) if pooling.method == PoolingMethod::Maximum && pooling.is_dense() => DENSE,
            LayerKind::Pooling(pooling) if pooling.is_apart() && pooling.outputs() != [1; 3] => AVERAGE_APART,
            kind => kind.name(),
        };
        let slowness = self.slowness(kind, pass, workload.layout).unwrap_or(1.0);
        self.launch + Nanos::from_micros((time - self.launch).as_micros() * slowness)
    }

    /// Time of a rerun that reads and writes `bytes` in total, if it differs from the forward pass. Batch normalization is faster, because it already
    /// has its statistics.
    fn again(&self, workload: &Workload<'_>, layer: LayerId, bytes: Bytes) -> Option<Nanos> {
        let is_norm = matches!(workload.network.layer(layer).kind, LayerKind::BatchNorm { .. });
        is_norm.then(|| self.launch + seconds(bytes.0 as f64 / self.memory_rate))
    }

    /// Time of only the sums of a pass that takes `time`. The pass reads its inputs twice, once for the sums; so the sums take the share of one
    /// reading in all the traffic of these maps.
    fn sums(&self, time: Nanos, maps: impl Iterator<Item = (Access, Bytes)>) -> Nanos {
        let (mut read, mut moved) = (0, 0);
        for (access, bytes) in maps {
            read += if access == Access::Read { bytes.0 } else { 0 };
            moved += traffic(access, bytes).0;
        }
        let beside = (time - self.launch).as_micros();
        self.launch + Nanos::from_micros(beside * read as f64 / (read + moved).max(1) as f64)
    }

    /// Time of the bias in a pass of a convolution. The forward pass reads and writes its output. The filter pass reads the output's gradient, in two
    /// calls that end in one number per filter.
    fn bias(&self, workload: &Workload<'_>, layer: LayerId, pass: Pass) -> Nanos {
        let layer = workload.network.layer(layer);
        let (calls, accesses) = match (&layer.kind, pass) {
            (LayerKind::Convolution { bias: true, .. }, Pass::Forward) => (1, 2),
            (LayerKind::Convolution { bias: true, .. }, Pass::BackwardFilter) => (2, 1),
            _ => return Nanos::ZERO,
        };
        let bytes = accesses * layer.shape.len() * workload.batch * workload.types.storage().size();
        let slowness = self.slowness(BIAS, pass, workload.layout).unwrap_or(1.0);
        Nanos(calls * self.launch.0) + seconds(bytes as f64 / self.memory_rate * slowness)
    }

    /// Extra time of adding a convolution's result to `added` bytes instead of writing it; 0 if arithmetic hides it.
    fn sum(&self, workload: &Workload<'_>, pass: Pass, added: Bytes) -> Nanos {
        let slowness = self.slowness(SUM, pass, workload.layout);
        slowness.map_or(Nanos::ZERO, |slowness| seconds(added.0 as f64 / self.memory_rate * slowness))
    }

    /// The slowdown of this kind of work relative to the rates, if known.
    fn slowness(&self, kind: &str, pass: Pass, layout: Layout) -> Option<f64> {
        let last = if layout == Layout::Nhwc { self.slower_last } else { &[] };
        let slower = last.iter().chain(self.slower).find(|(slow, slow_pass, _)| *slow == kind && *slow_pass == pass);
        slower.map(|(.., times)| *times)
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
    /// Lowers this workload to a step with costs, the input of [`crate::plan()`].
    ///
    /// # Errors
    /// [`Error::BadProblem`] if the mini-batch is too large.
    pub fn step(&self, fronts: &Fronts, costs: &CostModel) -> Result<Step, Error> {
        let Lowered { mut step, passes, .. } = self.lower()?;
        let bytes: Vec<Bytes> = step.tensors.iter().map(|tensor| tensor.bytes).collect();
        for (operation, of) in step.operations.iter_mut().zip(&passes) {
            operation.cost = match &operation.cost {
                Cost::Choice(front) => {
                    let adds = operation.uses.iter().filter(|used| used.access == Access::Add);
                    let added = adds.map(|used| bytes[used.tensor.0]).sum();
                    let besides = costs.bias(self, of.layer, of.pass) + costs.sum(self, of.pass, added);
                    Cost::Choice(Box::new(Front { besides, ..fronts.front(&front.problem) }))
                }
                Cost::Fixed(_) | Cost::Listed(_) => {
                    let moved = operation.uses.iter().map(|used| traffic(used.access, bytes[used.tensor.0])).sum();
                    if operation.again == Again::Allowed {
                        operation.again = costs.again(self, of.layer, moved).map_or(Again::Allowed, Again::Taking);
                    }
                    let time = costs.pass(self, of.layer, of.pass, moved);
                    operation.sums = operation.sums.map(|_| {
                        let maps =
                            operation.uses.iter().filter(|used| step.tensors[used.tensor.0].sample_bytes.is_some());
                        costs.sums(time, maps.map(|used| (used.access, bytes[used.tensor.0])))
                    });
                    Cost::Fixed(time)
                }
            };
        }
        Ok(step)
    }
}

#[cfg(test)]
mod tests {
    use tightfit_network::{Builder, Filters, Network, Shape, Window};

    use tightfit_conv::Types;

    use super::*;
    use crate::{LayerPass, Mode};

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

    /// The cost of a pass of the first layer of this kind, for 64 samples.
    fn cost(network: &Network, costs: &CostModel, kind: &str, pass: Pass) -> Cost {
        let workload = Workload::new(network, 64, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&Fronts::default(), costs).unwrap();
        let passes = workload.lower().unwrap().passes;
        let is_it = |of: &LayerPass| network.layer(of.layer).kind.name() == kind && of.pass == pass;
        step.operations[passes.iter().position(is_it).unwrap()].cost.clone()
    }

    /// Microseconds of a pass of this kind, without the launch.
    fn time_in(network: &Network, costs: &CostModel, kind: &str, pass: Pass) -> f64 {
        match cost(network, costs, kind, pass) {
            Cost::Fixed(time) => (time - costs.launch).as_micros(),
            Cost::Choice(_) | Cost::Listed(_) => panic!("a {kind} has no choice"),
        }
    }

    /// The same of [`network`].
    fn time(costs: &CostModel, kind: &str, pass: Pass) -> f64 {
        time_in(&network(), costs, kind, pass)
    }

    fn assert_near(got: f64, bytes: usize, rate: f64) {
        let want = bytes as f64 / rate * 1e6;
        // Times are whole nanoseconds.
        assert!((got - want).abs() < 2e-3, "{got} us, not {want}");
    }

    #[test]
    fn passes_cost_their_reads_and_writes() {
        let costs = CostModel::k40();
        let (map, weights) = (64 * 8 * 32 * 32 * 4, (8 * 32 * 32 * 10 + 10) * 4);
        // In place: one read and one write of y, which is also x.
        let mut net = Builder::new("relu");
        net.input(Shape::image(3, 32, 32)).conv("conv", Filters::new(8, 3).pad(1)).relu();
        net.flatten().fully_connected("fc", 10).softmax_loss();
        let network = net.finish().unwrap();
        assert_near(time_in(&network, &costs, "relu", Pass::Forward), 2 * map, costs.memory_rate);
        // Weights and momentum are read and written; gradients are only read.
        assert_near(time(&costs, "fully-connected", Pass::Update), 5 * weights, costs.memory_rate);
        assert_near(time(&costs, "input", Pass::Forward), 64 * (3 * 32 * 32 * 4 + 4), costs.prefetch_rate);
    }

    #[test]
    fn a_bias_costs_a_pass_over_the_output() {
        let costs = CostModel { slower: &[("bias", Pass::BackwardFilter, 1.5)], ..CostModel::k40() };
        let besides = |filters: Filters, pass: Pass| {
            let mut net = Builder::new("one");
            net.input(Shape::image(3, 32, 32)).conv("conv", filters).flatten();
            net.fully_connected("fc", 10).softmax_loss();
            match cost(&net.finish().unwrap(), &costs, "convolution", pass) {
                Cost::Choice(front) => front.besides,
                Cost::Fixed(_) | Cost::Listed(_) => panic!("a convolution has a choice"),
            }
        };
        let filters = Filters::new(8, 3).pad(1);
        let output = 64 * 8 * 32 * 32 * 4;
        for (pass, calls, bytes) in [(Pass::Forward, 1, 2 * output), (Pass::BackwardFilter, 2, output / 2 * 3)] {
            let launches = Nanos(calls * costs.launch.0);
            assert_near((besides(filters, pass) - launches).as_micros(), bytes, costs.memory_rate);
            assert_eq!(besides(filters.no_bias(), pass), Nanos::ZERO);
        }
    }

    #[test]
    fn windows_apart_and_dense_ones_have_factors_of_their_own() {
        let pooling = |window: Window| {
            let mut net = Builder::new("pooled");
            net.input(Shape::image(3, 32, 32)).max_pool("pool", window).flatten();
            net.fully_connected("fc", 10).softmax_loss();
            net.finish().unwrap()
        };
        let costs = CostModel {
            slower: &[
                ("max-pooling", Pass::Forward, 2.0),
                ("max-pooling-apart", Pass::Forward, 3.0),
                ("max-pooling-dense", Pass::Forward, 4.0),
            ],
            ..CostModel::k40()
        };
        let plain = CostModel { slower: &[], ..CostModel::k40() };
        for (window, times) in [(Window::new(2, 2), 3.0), (Window::new(3, 2), 2.0), (Window::new(3, 1), 4.0)] {
            let network = pooling(window);
            let time = |costs: &CostModel| time_in(&network, costs, "max-pooling", Pass::Forward);
            let (slower, plain) = (time(&costs), time(&plain));
            assert!((slower - times * plain).abs() < 5e-3, "{slower} us, not {times} x {plain}");
        }
    }

    #[test]
    fn average_pooling_over_several_windows_has_a_factor_of_its_own() {
        let costs = CostModel {
            slower: &[("average-pooling", Pass::BackwardData, 8.0), ("average-pooling-apart", Pass::BackwardData, 2.0)],
            ..CostModel::k40()
        };
        let plain = CostModel { slower: &[], ..CostModel::k40() };
        for (window, times) in [(Window::new(2, 2), 2.0), (Window::new(32, 32), 8.0)] {
            let mut net = Builder::new("pooled");
            net.input(Shape::image(3, 32, 32)).conv("conv", Filters::new(8, 3).pad(1)).average_pool("pool", window);
            net.flatten().fully_connected("fc", 10).softmax_loss();
            let network = net.finish().unwrap();
            let time = |costs: &CostModel| time_in(&network, costs, "average-pooling", Pass::BackwardData);
            assert!((time(&costs) - times * time(&plain)).abs() < 5e-3, "{window:?}");
        }
    }

    #[test]
    fn a_convolution_that_adds_to_a_gradient_reads_it_where_the_channels_come_last() {
        let mut net = Builder::new("forked");
        let from = net.input(Shape::image(3, 32, 32)).conv("a", Filters::new(8, 3).pad(1)).here();
        let one = net.conv("b", Filters::new(8, 3).pad(1).no_bias()).here();
        let other = net.at(from).conv("c", Filters::new(8, 3).pad(1).no_bias()).here();
        net.add("sum", &[one, other]).flatten().fully_connected("fc", 10).softmax_loss();
        let network = net.finish().unwrap();
        let costs = CostModel { slower_last: &[("sum", Pass::BackwardData, 2.0)], ..CostModel::k40() };
        let besides = |layout: Layout| -> Vec<Nanos> {
            let workload =
                Workload::new(&network, 64, Types::Bf16, Mode::Training).unwrap().with_layout(layout).unwrap();
            let step = workload.step(&Fronts::default(), &costs).unwrap();
            let of = step.operations.iter().zip(workload.lower().unwrap().passes);
            let data = of.filter(|(_, of)| of.pass == Pass::BackwardData);
            data.filter_map(|(operation, _)| match &operation.cost {
                Cost::Choice(front) => Some(front.besides),
                Cost::Fixed(_) | Cost::Listed(_) => None,
            })
            .collect()
        };
        assert_eq!(besides(Layout::Nchw), [Nanos::ZERO; 2]);
        let last = besides(Layout::Nhwc);
        assert_eq!(last[0], Nanos::ZERO);
        assert_near(last[1].as_micros(), 2 * 64 * 8 * 32 * 32 * 2, costs.memory_rate);
    }

    #[test]
    fn a_rerun_of_a_normalization_has_its_statistics() {
        let network = network();
        let of = |costs: &CostModel, types: Types, layout: Layout| {
            let workload = Workload::new(&network, 64, types, Mode::Training).unwrap().with_layout(layout).unwrap();
            let step = workload.step(&Fronts::default(), costs).unwrap();
            let passes = workload.lower().unwrap().passes;
            let kind = |of: &LayerPass| network.layer(of.layer).kind.name();
            let place = passes.iter().position(|of| kind(of) == "batch-norm" && of.pass == Pass::Forward).unwrap();
            match (step.operations[place].again, &step.operations[place].cost) {
                (Again::Taking(again), Cost::Fixed(once)) => {
                    (*once - costs.launch).as_micros() / (again - costs.launch).as_micros()
                }
                other => panic!("{other:?}"),
            }
        };
        for (costs, types, layout, times) in [
            (CostModel::cpu(), Types::F32, Layout::Nchw, 1.5),
            (CostModel::h200(), Types::F32, Layout::Nchw, 1.44),
            (CostModel::h200(), Types::Bf16, Layout::Nhwc, 1.47),
            (CostModel::k40(), Types::F16F32, Layout::Nhwc, 1.5),
        ] {
            let found = of(&costs, types, layout);
            assert!((found - times).abs() < 1e-3, "{} {types}: {found}", costs.name);
        }
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
