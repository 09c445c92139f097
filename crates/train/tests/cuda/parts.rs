//! Plans with a stretch in two parts of the mini-batch match the CPU's results for the whole.

use tightfit_conv::{Layout, Types};
use tightfit_cuda::Options;
use tightfit_network::{Builder, Filters, LayerKind, Network, Shape, Window};
use tightfit_plan::step::Phase;
use tightfit_plan::{Action, CostModel, Mode, NetworkTensor, Options as PlanOptions, Plan, Workload, plan};
use tightfit_test_support::mocks::Mocks;
use tightfit_test_support::train::{batch, fork_and_join};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Machine, Poison, Solver};

use crate::{BATCH, assert_close, kernels_of, on_cpu, train};

/// A normalization of the widest maps, then a smaller one.
fn normalized() -> Network {
    let mut net = Builder::new("normalized");
    net.input(Shape::image(3, 12, 12)).conv("a", Filters::new(8, 3).pad(1).no_bias()).batch_norm().relu();
    net.max_pool("pool", Window::new(2, 2)).conv("b", Filters::new(8, 3).pad(1).no_bias()).batch_norm().relu();
    net.global_average_pool("mean").flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// Whether a plan computes sums over samples in a separate phase.
fn has_sums(plan: &Plan) -> bool {
    let sums = |action: &Action| matches!(action, Action::Compute(compute) if compute.phase == Phase::Sums);
    plan.schedule.instructions.iter().any(|instruction| sums(&instruction.action))
}

/// The running means and variances after some steps.
fn statistics(workload: &Workload<'_>, plan: &Plan, machine: impl Machine) -> Vec<Vec<f32>> {
    let mut engine = Engine::new(workload, &plan.schedule, machine, Solver::default(), Poison::Freed).unwrap();
    for step in 0..2 {
        let (samples, labels) = batch(workload, step);
        engine.step(&samples, &labels).unwrap();
    }
    let layers = workload.network.iter().filter(|(_, layer)| matches!(layer.kind, LayerKind::BatchNorm { .. }));
    layers.map(|(id, _)| engine.read(NetworkTensor::Statistics(id)).unwrap().unwrap()).collect()
}

/// A plan in two parts needs the least memory for this network. Gradients equal the CPU's, and running statistics equal the
/// statistics of whole mini-batches.
fn parts_agree(options: &Options) {
    for network in [fork_and_join(), normalized(), Network::open("lenet").unwrap()] {
        let f32 = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
        let want = on_cpu(&f32, 2);
        for (types, layout, tolerance) in
            [(Types::F32, Layout::Nchw, 3e-2), (Types::F16F32, Layout::Nchw, 0.2), (Types::F16F32, Layout::Nhwc, 0.2)]
        {
            let workload = Workload::new(&network, BATCH, types, Mode::Training).unwrap().with_layout(layout).unwrap();
            let step = workload.step(&kernels_of(&workload, options, &[BATCH, BATCH / 2]), &CostModel::h200()).unwrap();
            let free = plan(&step, &CostModel::h200(), &PlanOptions::default()).unwrap();
            let tight = PlanOptions { budget: free.min_feasible, ..PlanOptions::default() };
            let plan = plan(&step, &CostModel::h200(), &tight).unwrap();
            let what = format!("{} {types} {}, {:?}", network.name(), layout.name(), plan.in_parts);
            assert_eq!(plan.in_parts.as_ref().map(|in_parts| in_parts.parts), Some(2), "{what}");
            assert_eq!(has_sums(&plan), network.name() == "normalized", "{what}");
            // A graph launches prepared work of every type.
            let graphs: &[bool] = if types == Types::F32 { &[false, true] } else { &[false] };
            for &graph in graphs {
                let machine = || CudaMachine::open(options, Modes { graph, ..Modes::default() }).unwrap();
                let got =
                    train(&workload, &plan.schedule, machine(), 2).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_close(&what, &got, &want, tolerance, None);
                let [given, truth] = [&plan, &free].map(|plan| statistics(&workload, plan, machine()));
                for (given, truth) in given.iter().flatten().zip(truth.iter().flatten()) {
                    // Other sums of the first step lead to other weights in the second.
                    let (given, truth) = (f64::from(*given), f64::from(*truth));
                    assert!((given - truth).abs() <= 0.1 * tolerance * truth.abs().max(0.1), "{what}: {given} {truth}");
                }
            }
        }
    }
}

#[test]
fn parts_match_the_whole_mini_batch_on_the_cpu() {
    let mocks = Mocks::new();
    parts_agree(&mocks.options());
    mocks.assert_nothing_left("training in parts");
}

#[test]
#[ignore = "needs a CUDA device"]
fn parts_on_a_gpu_match_the_whole_mini_batch_on_the_cpu() {
    parts_agree(&Options::default());
}
