//! Stretches in parts of the mini-batch. Where sums are exact, gradients and running statistics equal the results of whole
//! mini-batches. Elsewhere they are near these.

use std::collections::HashMap;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{DivisionCost, Types};
use tightfit_cpu::random;
use tightfit_network::{Builder, Filters, Layer, LayerId, LayerKind, Network, Shape, Window};
use tightfit_plan::step::{Phase, Stage};
use tightfit_plan::{
    Action, CostModel, Fronts, Instruction, Mode, NetworkTensor, Options as Asked, Plan, Workload, plan,
};
use tightfit_test_support::train::{THREADS, batch, configuration, dense, fork_and_join, residual};
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Machine, Poison, Solver};
use tightfit_units::Bytes;

const BATCH: usize = 8;

/// Fronts with one algorithm for the whole mini-batch and for every part of it.
fn kernels(workload: &Workload<'_>) -> Fronts {
    let mut all = HashMap::new();
    for problem in workload.problems().unwrap() {
        let sizes = (1..=workload.batch).rev().map(|size| problem.with_batch(size).unwrap());
        let candidates = sizes.flat_map(|part| configuration(&part, "explicit-gemm", BATCH).parts().to_vec());
        all.insert(problem, Candidates { candidates: candidates.collect(), cost: DivisionCost::default() });
    }
    Fronts::of(&all).unwrap()
}

fn planned(workload: &Workload<'_>, budget: Bytes, divide: bool) -> Plan {
    let step = workload.step(&kernels(workload), &CostModel::cpu()).unwrap();
    plan(&step, &CostModel::cpu(), &Asked { budget, divide, ..Asked::default() }).unwrap()
}

/// A plan with everything resident, and plans in parts: with the least memory, and with a little more.
fn plans(workload: &Workload<'_>) -> (Plan, Vec<Plan>) {
    let whole = planned(workload, Bytes::gib(1), false);
    let least = planned(workload, Bytes::gib(1), true).min_feasible;
    assert!(whole.in_parts.is_none() && least < whole.min_feasible, "{least} of {}", whole.min_feasible);
    let budgets = [least, Bytes(least.0 + least.0 / 8), Bytes((least.0 + whole.min_feasible.0) / 2)];
    let plans = budgets.map(|budget| planned(workload, budget, true));
    assert!(plans.iter().all(|plan| plan.peak <= plan.options.budget));
    assert!(plans[0].in_parts.is_some(), "whole mini-batches need more");
    (whole, plans.into_iter().filter(|plan| plan.in_parts.is_some()).collect())
}

/// Whether a normalization computes its sums in parts, going forward and backward.
fn sums_in_parts(plan: &Plan) -> bool {
    let phase = |instruction: &Instruction| match &instruction.action {
        Action::Compute(compute) => (compute.phase, plan.schedule.step().operation(compute.operation).stage),
        _ => (Phase::Whole, Stage::Update),
    };
    let phases: Vec<(Phase, Stage)> = plan.schedule.instructions.iter().map(phase).collect();
    [Stage::Forward, Stage::Backward].into_iter().all(|stage| phases.contains(&(Phase::Sums, stage)))
}

/// An engine whose streams check what they copy, and whose unused bytes are not numbers.
fn engine(workload: &Workload<'_>, plan: &Plan) -> Engine<CpuMachine> {
    let options = Options { threads: Some(THREADS), checksums: true, ..Options::default() };
    Engine::new(workload, &plan.schedule, CpuMachine::new(options), Solver::default(), Poison::Freed).unwrap()
}

/// The gradients of all parameters, by layer.
fn gradients(workload: &Workload<'_>, engine: &mut Engine<CpuMachine>) -> Vec<(String, Vec<f32>)> {
    let layers = workload.network.iter().filter(|(_, layer)| layer.parameters > 0);
    layers.map(|(id, layer)| (layer.name.clone(), of_parameters(workload, engine, id))).collect()
}

/// The running means and variances of all normalizations, by layer.
fn statistics(workload: &Workload<'_>, engine: &mut Engine<CpuMachine>) -> Vec<(String, Vec<f32>)> {
    let layers = workload.network.iter().filter(|(_, layer)| matches!(layer.kind, LayerKind::BatchNorm { .. }));
    let of = |(id, layer): (LayerId, &Layer)| {
        let all = engine.read(NetworkTensor::Statistics(id)).unwrap().unwrap();
        (layer.name.clone(), all)
    };
    layers.map(of).collect()
}

/// The gradient of a layer's parameters, without the gaps between them.
fn of_parameters(workload: &Workload<'_>, engine: &mut Engine<CpuMachine>, id: LayerId) -> Vec<f32> {
    let all = engine.read(NetworkTensor::WeightGradient(id)).unwrap().unwrap();
    let parameters = workload.parameters(id);
    parameters.iter().flat_map(|of| all[of.offset..of.offset + of.elements].to_vec()).collect()
}

fn chain() -> Network {
    let mut net = Builder::new("chain");
    net.input(Shape::image(3, 12, 12)).conv("a", Filters::new(8, 3).pad(1)).relu();
    net.conv("b", Filters::new(8, 3).pad(1)).relu().max_pool("pool", Window::new(2, 2));
    net.conv("c", Filters::new(4, 3).pad(1)).relu().flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// A wide stretch before a normalization.
fn normalized() -> Network {
    let mut net = Builder::new("normalized");
    net.input(Shape::image(3, 16, 16)).conv("a", Filters::new(8, 3).pad(1)).relu().dropout(0.3);
    net.conv("b", Filters::new(8, 3).pad(1)).relu().max_pool("pool", Window::new(2, 2));
    net.conv("c", Filters::new(8, 3).pad(1)).batch_norm().relu().global_average_pool("mean");
    net.flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// A wide normalization, then small ones.
fn stem() -> Network {
    let mut net = Builder::new("stem");
    net.input(Shape::image(3, 16, 16)).conv("stem", Filters::new(8, 3).pad(1).no_bias()).batch_norm().relu();
    let from = net.max_pool("pool", Window::new(2, 2)).here();
    net.conv("c1", Filters::new(8, 3).pad(1).no_bias()).batch_norm().relu();
    let long = net.conv("c2", Filters::new(8, 3).pad(1).no_bias()).batch_norm().here();
    net.add("sum", &[long, from]).relu().global_average_pool("mean");
    net.flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// A normalization in parallel with a map that goes on, in a network that may take all of its gradients in parts.
fn beside() -> Network {
    let mut net = Builder::new("beside");
    let from = net.input(Shape::image(3, 12, 12)).conv("first", Filters::new(8, 3).pad(1)).relu().here();
    let long = net.conv("long", Filters::new(8, 3).pad(1).no_bias()).batch_norm().here();
    net.add("sum", &[long, from]).relu().dropout(0.2).max_pool("pool", Window::new(2, 2));
    net.conv("last", Filters::new(4, 3).pad(1)).relu().flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// A normalization that halves: a variance of 1 and an epsilon of 3.
fn halving() -> Network {
    let mut net = Builder::new("halving");
    let a = net.input(Shape::image(4, 4, 4)).conv("a", Filters::new(8, 1).no_bias()).here();
    net.layer("norm", LayerKind::BatchNorm { epsilon: 3.0 }, &[a]).relu();
    net.conv("b", Filters::new(8, 3).pad(1)).relu().max_pool("pool", Window::new(2, 2));
    net.flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// -1, 0 and 1, times a factor.
fn whole_numbers(key: u64, count: usize, factor: f32) -> Vec<f32> {
    (0..count as u64).map(|n| (random::bits(random::key(&[key]), n) % 3) as f32 * factor - factor).collect()
}

/// -1 and 1 in equal numbers in each plane of `positions` positions.
fn signs(key: u64, count: usize, positions: usize) -> Vec<f32> {
    let sign = |at: u64| if random::bits(random::key(&[key]), at).is_multiple_of(2) { 1.0 } else { -1.0 };
    let half =
        |at: usize| if at % positions < positions / 2 { sign(at as u64) } else { -sign((at - positions / 2) as u64) };
    (0..count).map(half).collect()
}

/// Runs one step of each plan on whole numbers, where every gradient is a multiple of `1 / grain`, and compares them.
fn whole_numbers_agree(workload: &Workload<'_>, samples: &[f32], grain: f32) {
    let network = workload.network;
    let (whole, plans) = plans(workload);
    let labels: Vec<u32> = (0..BATCH as u32).collect();
    let run = |plan: &Plan| {
        let mut engine = engine(workload, plan);
        let mut learned = engine.learned().unwrap();
        for (tensor, numbers) in &mut learned {
            let NetworkTensor::Weights(layer) = *tensor else { continue };
            let factor = match network.layer(layer).kind {
                // A factor of 128 leaves no doubt of the class: other probabilities are too small for 32 bits.
                LayerKind::FullyConnected { .. } => 128.0,
                LayerKind::BatchNorm { .. } => 2.0,
                _ => 1.0,
            };
            *numbers = whole_numbers(2 + layer.index() as u64, numbers.len(), factor);
            if let LayerKind::Convolution { convolution, .. } = &network.layer(layer).kind
                && convolution.filter() == [1; 3]
            {
                // Each filter picks one of four channels.
                numbers.fill(0.0);
                (0..8).for_each(|filter| numbers[4 * filter + filter % 4] = if filter < 5 { 1.0 } else { -1.0 });
            }
        }
        engine.take_over(&learned).unwrap();
        let outcome = engine.step(samples, &labels).unwrap();
        (outcome.loss, gradients(workload, &mut engine), statistics(workload, &mut engine))
    };
    let truth = run(&whole);
    for (layer, numbers) in &truth.1 {
        assert!(numbers.iter().all(|number| (number * grain).fract() == 0.0), "{layer}");
        let exact = |number: &f32| number.abs() * grain < 1e6;
        assert!(numbers.iter().any(|number| *number != 0.0) && numbers.iter().all(exact), "{layer}");
    }
    for plan in plans {
        assert_eq!(sums_in_parts(&plan), !truth.2.is_empty(), "{:?} in {}", plan.in_parts, plan.peak);
        assert!(run(&plan) == truth, "{:?} in {}", plan.in_parts, plan.peak);
    }
}

#[test]
fn gradients_in_parts_equal_the_whole_mini_batch() {
    let network = chain();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    // The gradient of the loss is -1, 0 or 1 for each class, or a half between two, over the number of samples.
    whole_numbers_agree(&workload, &whole_numbers(1, BATCH * 3 * 12 * 12, 1.0), 2.0 * BATCH as f32);
}

#[test]
fn a_normalization_in_parts_equals_the_whole_mini_batch() {
    let network = halving();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    // The last layer's weights are multiples of 128, so its input gradient is a multiple of 8. Both sums are divided by
    // the 128 elements of a channel, and two factors are halves.
    whole_numbers_agree(&workload, &signs(1, BATCH * 4 * 16, 16), 64.0);
}

/// Losses of a few steps, and gradients and running statistics after them.
fn trained(workload: &Workload<'_>, plan: &Plan) -> (Vec<f64>, Vec<(String, Vec<f32>)>) {
    let mut engine = engine(workload, plan);
    let step = |step| {
        let (samples, labels) = batch(workload, step);
        engine.step(&samples, &labels).unwrap().loss
    };
    let losses = (0..3).map(step).collect();
    let mut gradients = gradients(workload, &mut engine);
    gradients.extend(statistics(workload, &mut engine));
    let used = engine.machine().high_water().unwrap();
    assert_eq!(used, Some(engine.peak()), "the arena is used up to where the plan says");
    assert!(engine.peak() <= plan.peak);
    (losses, gradients)
}

#[test]
fn every_layer_in_parts_trains_as_the_whole() {
    let lenet = Network::open("lenet").unwrap();
    let networks = [chain(), normalized(), stem(), beside(), halving(), fork_and_join(), dense(), residual(), lenet];
    // Of seven samples, no two parts are equal; equal ones train on the mocks (`tests/cuda/parts.rs`), and here once.
    for (network, samples) in networks.iter().map(|network| (network, 7)).chain([(&networks[1], BATCH)]) {
        let name = format!("{} of {samples}", network.name());
        let workload = Workload::new(network, samples, Types::F32, Mode::Training).unwrap();
        let least = planned(&workload, Bytes::gib(1), true).min_feasible;
        if planned(&workload, least, true).in_parts.is_none() {
            // More than one normalization needs the most.
            assert!(["dense", "residual"].contains(&network.name()), "{name}");
            continue;
        }
        let (whole, plans) = plans(&workload);
        let truth = trained(&workload, &whole);
        assert_eq!(
            sums_in_parts(&plans[0]),
            ["normalized", "stem", "beside", "halving"].contains(&network.name()),
            "{name}"
        );
        for plan in plans {
            let what = format!("{name}, {:?} in {}", plan.in_parts, plan.peak);
            let given = trained(&workload, &plan);
            let near = |one: f64, two: f64| (one - two).abs() <= 1e-4 * two.abs().max(1e-2);
            assert!(given.0.iter().zip(&truth.0).all(|(given, truth)| near(*given, *truth)), "{what}: {given:?}");
            for ((layer, given), (_, truth)) in given.1.iter().zip(&truth.1) {
                let size = truth.iter().fold(0.0, |most, number| number.abs().max(most));
                let differs = given.iter().zip(truth).position(|(given, truth)| (given - truth).abs() > 1e-3 * size);
                assert_eq!(differs, None, "{what}: {layer}");
            }
        }
    }
}
