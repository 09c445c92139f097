//! Stretches in parts of the mini-batch: where sums are exact the gradients are those of the whole, and elsewhere as near
//! to those in 64 bits.

use std::collections::HashMap;

use tightfit_core::candidate::Candidates;
use tightfit_core::network::{Builder, Filters, LayerId, LayerKind, Shape, Window};
use tightfit_core::plan::{CostModel, Fronts, Mode, NetworkTensor, Options as Asked, Plan, Workload, plan};
use tightfit_core::{Bytes, DivisionCost, Network, Types};
use tightfit_cpu::random;
use tightfit_test_support::train::{THREADS, batch, configuration, dense, fork_and_join, residual};
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Machine, Poison, Solver};

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

/// The gradient of a layer's parameters, without what lies between them.
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

/// A wide stretch before the first layer that needs the whole mini-batch.
fn normalized() -> Network {
    let mut net = Builder::new("normalized");
    net.input(Shape::image(3, 16, 16)).conv("a", Filters::new(8, 3).pad(1)).relu().dropout(0.3);
    net.conv("b", Filters::new(8, 3).pad(1)).relu().max_pool("pool", Window::new(2, 2));
    net.conv("c", Filters::new(8, 3).pad(1)).batch_norm().relu().global_average_pool("mean");
    net.flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// -1, 0 and 1, times a factor.
fn whole_numbers(key: u64, count: usize, factor: f32) -> Vec<f32> {
    (0..count as u64).map(|n| (random::bits(random::key(&[key]), n) % 3) as f32 * factor - factor).collect()
}

#[test]
fn gradients_of_whole_numbers_are_those_of_the_whole_mini_batch() {
    let network = chain();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let (whole, plans) = plans(&workload);
    let samples = whole_numbers(1, BATCH * 3 * 12 * 12, 1.0);
    let labels: Vec<u32> = (0..BATCH as u32).collect();
    let run = |plan: &Plan| {
        let mut engine = engine(&workload, plan);
        let mut learned = engine.learned().unwrap();
        for (tensor, numbers) in &mut learned {
            let NetworkTensor::Weights(layer) = *tensor else { continue };
            // The factor of the last layer leaves no doubt of the class: other probabilities are too small for 32 bits.
            let is_last = matches!(network.layer(layer).kind, LayerKind::FullyConnected { .. });
            *numbers = whole_numbers(2 + layer.index() as u64, numbers.len(), if is_last { 128.0 } else { 1.0 });
        }
        engine.take_over(&learned).unwrap();
        let outcome = engine.step(&samples, &labels).unwrap();
        (outcome.loss, gradients(&workload, &mut engine))
    };
    let truth = run(&whole);
    for (layer, numbers) in &truth.1 {
        // The gradient of the loss is -1, 0 or 1 for each class, or a half between two, over the number of samples.
        assert!(numbers.iter().all(|number| (number * 2.0 * BATCH as f32).fract() == 0.0), "{layer}");
        assert!(numbers.iter().any(|number| *number != 0.0) && numbers.iter().all(|n| n.abs() < 1e6), "{layer}");
    }
    for plan in plans {
        assert!(run(&plan) == truth, "{:?} in {}", plan.in_parts, plan.peak);
    }
}

/// Losses and gradients of a few steps.
fn trained(workload: &Workload<'_>, plan: &Plan) -> (Vec<f64>, Vec<(String, Vec<f32>)>) {
    let mut engine = engine(workload, plan);
    let step = |step| {
        let (samples, labels) = batch(workload, step);
        engine.step(&samples, &labels).unwrap().loss
    };
    let losses = (0..3).map(step).collect();
    let gradients = gradients(workload, &mut engine);
    let used = engine.machine().high_water().unwrap();
    assert_eq!(used, Some(engine.peak()), "the arena is used up to where the plan says");
    assert!(engine.peak() <= plan.peak);
    (losses, gradients)
}

#[test]
fn every_layer_in_parts_trains_as_the_whole() {
    let networks = [chain(), normalized(), fork_and_join(), dense(), residual(), Network::open("lenet").unwrap()];
    // Of seven samples, no two parts are equal.
    for (network, samples) in networks.iter().flat_map(|network| [(network, BATCH), (network, 7)]) {
        let name = format!("{} of {samples}", network.name());
        let workload = Workload::new(network, samples, Types::F32, Mode::Training).unwrap();
        let least = planned(&workload, Bytes::gib(1), true).min_feasible;
        if planned(&workload, least, true).in_parts.is_none() {
            // Normalizations everywhere leave no stretch.
            assert!(["dense", "residual"].contains(&network.name()), "{name}");
            continue;
        }
        let (whole, plans) = plans(&workload);
        let truth = trained(&workload, &whole);
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

/// Convolutions of 3x3 with a border of one, whose outputs are cut below 0, and a layer of all to all, in 64 bits.
mod in_64_bits {
    pub(super) struct Shape {
        pub(super) inputs: usize,
        pub(super) outputs: usize,
        pub(super) extent: usize,
    }

    impl Shape {
        /// Calls `each` with the places of a factor of the input, of the filters and of the output.
        fn walk(&self, mut each: impl FnMut(usize, usize, usize)) {
            let Shape { inputs, outputs, extent } = *self;
            for (k, c) in (0..outputs).flat_map(|k| (0..inputs).map(move |c| (k, c))) {
                for (place, (r, s)) in (0..9).map(|place| (place, (place / 3, place % 3))) {
                    for (y, x) in (0..extent).flat_map(|y| (0..extent).map(move |x| (y, x))) {
                        let (from_y, from_x) = (y + r, x + s);
                        if (1..=extent).contains(&from_y) && (1..=extent).contains(&from_x) {
                            let input = (c * extent + from_y - 1) * extent + from_x - 1;
                            each(input, (k * inputs + c) * 9 + place, (k * extent + y) * extent + x);
                        }
                    }
                }
            }
        }

        pub(super) fn forward(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
            let positions = self.extent * self.extent;
            let filters = self.outputs * self.inputs * 9;
            let mut out: Vec<f64> = (0..self.outputs * positions).map(|at| w[filters + at / positions]).collect();
            self.walk(|input, filter, output| out[output] += x[input] * w[filter]);
            out.iter_mut().for_each(|number| *number = number.max(0.0));
            out
        }

        /// Adds to the gradient of the filters; returns that of the input.
        pub(super) fn backward(&self, x: &[f64], w: &[f64], out: &[f64], dy: &[f64], dw: &mut [f64]) -> Vec<f64> {
            let positions = self.extent * self.extent;
            let filters = self.outputs * self.inputs * 9;
            let dy: Vec<f64> = dy.iter().zip(out).map(|(dy, out)| if *out > 0.0 { *dy } else { 0.0 }).collect();
            dy.iter().enumerate().for_each(|(at, dy)| dw[filters + at / positions] += dy);
            let mut dx = vec![0.0; x.len()];
            self.walk(|input, filter, output| {
                dw[filter] += x[input] * dy[output];
                dx[input] += w[filter] * dy[output];
            });
            dx
        }
    }
}

/// The gradients of two convolutions and a fully connected layer in 64 bits.
fn exact(weights: &[Vec<f64>], samples: &[f32], labels: &[u32], extent: usize) -> Vec<Vec<f64>> {
    let first = in_64_bits::Shape { inputs: 3, outputs: 8, extent };
    let second = in_64_bits::Shape { inputs: 8, outputs: 8, extent };
    let mut gradients: Vec<Vec<f64>> = weights.iter().map(|of| vec![0.0; of.len()]).collect();
    for (x, label) in samples.chunks(3 * extent * extent).zip(labels) {
        let x: Vec<f64> = x.iter().map(|number| f64::from(*number)).collect();
        let a = first.forward(&x, &weights[0]);
        let b = second.forward(&a, &weights[1]);
        let (rows, biases) = weights[2].split_at(10 * b.len());
        let dot = |row: &[f64]| row.iter().zip(&b).map(|(w, b)| w * b).sum::<f64>();
        let scores: Vec<f64> = rows.chunks(b.len()).zip(biases).map(|(row, bias)| dot(row) + bias).collect();
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        let mut db = vec![0.0; b.len()];
        for (class, score) in scores.iter().enumerate() {
            let wanted = if class == *label as usize { 1.0 } else { 0.0 };
            let d = (score.exp() / sum - wanted) / labels.len() as f64;
            for (at, value) in b.iter().enumerate() {
                gradients[2][class * b.len() + at] += d * value;
                db[at] += d * rows[class * b.len() + at];
            }
            gradients[2][10 * b.len() + class] += d;
        }
        let da = second.backward(&a, &weights[1], &b, &db, &mut gradients[1]);
        first.backward(&x, &weights[0], &a, &da, &mut gradients[0]);
    }
    gradients
}

#[test]
fn parts_are_as_near_to_the_gradients_in_64_bits() {
    const EXTENT: usize = 12;
    let mut net = Builder::new("plain");
    net.input(Shape::image(3, EXTENT, EXTENT)).conv("a", Filters::new(8, 3).pad(1)).relu();
    net.conv("b", Filters::new(8, 3).pad(1)).relu().flatten().fully_connected("fc", 10).softmax_loss();
    let network = net.finish().unwrap();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let (whole, plans) = plans(&workload);
    let (samples, labels) = batch(&workload, 0);
    // The distance of each layer's gradient, as a share of its length.
    let distances = |plan: &Plan| -> Vec<f64> {
        let mut engine = engine(&workload, plan);
        let learned = engine.learned().unwrap();
        let weights = |(tensor, numbers): (&NetworkTensor, &Vec<f32>)| {
            let NetworkTensor::Weights(layer) = *tensor else { return None };
            let parameters = workload.parameters(layer);
            let own = parameters.iter().flat_map(|of| &numbers[of.offset..of.offset + of.elements]);
            Some(own.map(|number| f64::from(*number)).collect())
        };
        let weights: Vec<Vec<f64>> = learned.iter().filter_map(weights).collect();
        let truth = exact(&weights, &samples, &labels, EXTENT);
        engine.step(&samples, &labels).unwrap();
        let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.map(|number| number * number).sum::<f64>().sqrt();
        let given = gradients(&workload, &mut engine);
        let distance = |((_, given), truth): (&(String, Vec<f32>), &Vec<f64>)| {
            let mut apart = given.iter().zip(truth).map(|(given, truth)| f64::from(*given) - truth);
            norm(&mut apart) / norm(&mut truth.iter().copied())
        };
        given.iter().zip(&truth).map(distance).collect()
    };
    let of_whole = distances(&whole);
    assert!(of_whole.iter().all(|distance| *distance > 0.0 && *distance < 1e-5), "{of_whole:?}");
    for plan in plans {
        let in_parts = distances(&plan);
        let is_near = in_parts.iter().zip(&of_whole).all(|(in_parts, whole)| *in_parts <= 2.0 * whole);
        assert!(is_near, "{:?}: {in_parts:?}, whole {of_whole:?}", plan.in_parts);
    }
}
