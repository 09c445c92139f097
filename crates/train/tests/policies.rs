//! Every policy trains to the bit as if everything stayed in memory: under slow streams, with freed memory poisoned and
//! copies compared.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{DivisionCost, Types};
use tightfit_network::{Builder, Filters, Network, Rule, Sgd, Shape, Window};
use tightfit_plan::{
    Action, Algorithms, Budgets, Checked, CostModel, Fronts, Mode, NetworkTensor, Options as Asked, Plan, Policy,
    Schedule, Stream, Workload, plan,
};
use tightfit_test_support::train::{
    THREADS, batch, bits, configuration, dense, everything_resident, fork_and_join, residual, sums,
};
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Error, Machine, Observation, Poison, Score, Solver, data, predict};
use tightfit_units::{Bytes, Nanos};

const BATCH: usize = 4;
const STEPS: u64 = 5;
const ALGORITHM: &str = "explicit-gemm";

/// Fronts with one choice each, so that every plan computes the same.
fn kernels(workload: &Workload<'_>, micro_batch: usize) -> Fronts {
    let mut all = HashMap::new();
    for problem in workload.problems().unwrap() {
        let candidates = configuration(&problem, ALGORITHM, micro_batch).parts().to_vec();
        all.insert(problem, Candidates { candidates, cost: DivisionCost::default() });
    }
    Fronts::of(&all).unwrap()
}

/// The losses of all steps, and every gradient of every map and parameter in each, as bits.
fn run(workload: &Workload<'_>, schedule: &Schedule, delays: [Duration; Stream::ALL.len()]) -> Vec<bits::Step> {
    let budgets = Budgets { device: schedule.device_bytes, host: schedule.host_bytes };
    let checked = Checked::new(&workload.lower().unwrap().step, schedule.clone(), budgets).unwrap();
    let observed = Observation::of(workload, &checked).unwrap();
    let options = Options { threads: Some(THREADS), delays, checksums: true, spans: false };
    let (machine, solver) = (CpuMachine::new(options), Solver::default());
    let mut engine = Engine::new(workload, &observed.schedule, machine, solver, Poison::Freed).unwrap();
    let prefetches = schedule.instructions.iter().filter(|step| matches!(step.action, Action::Prefetch(..))).count();
    let (all, copies) = bits::bits(&mut engine, &observed, (0..STEPS).map(|step| batch(workload, step))).unwrap();
    assert!(all.iter().all(|(loss, _)| f64::from_bits(*loss).is_finite()));
    assert_eq!(copies, [prefetches; STEPS as usize]);
    let used = engine.machine().high_water().unwrap();
    assert_eq!(used, Some(engine.peak()), "the arena is used up to where the plan says");
    all
}

fn planned(
    workload: &Workload<'_>,
    kernels: &Fronts,
    policy: Policy,
    budget: Bytes,
) -> Result<Plan, tightfit_units::Error> {
    // A stretch in parts has other bits (see `parts.rs`), so dividing is allowed only where kernels need it.
    let divide = workload.problems().unwrap().iter().any(|problem| kernels.front(problem).whole.is_empty());
    let asked = Asked { policy, algorithms: Algorithms::Memory, divide, budget, ..Asked::default() };
    plan(&workload.step(kernels, &CostModel::cpu()).unwrap(), &CostModel::cpu(), &asked)
}

/// Plans of every policy with plenty of memory and with the least that each can do with.
fn plans(workload: &Workload<'_>, kernels: &Fronts) -> Vec<(String, Plan)> {
    let mut all = Vec::new();
    for policy in Policy::ALL {
        let roomy = planned(workload, kernels, policy, Bytes::gib(1)).unwrap();
        let tight = planned(workload, kernels, policy, roomy.min_feasible).unwrap();
        assert!(
            planned(workload, kernels, policy, Bytes(roomy.min_feasible.0 - 256)).is_err(),
            "{policy}: one unit less"
        );
        all.push((format!("{policy} with room"), roomy));
        all.push((format!("{policy} in {}", tight.options.budget), tight));
    }
    all
}

fn policies_train_alike(network: &Network) {
    let workload = Workload::new(network, BATCH, Types::F32, Mode::Training).unwrap();
    let resident = everything_resident(&workload, ALGORITHM, BATCH);
    let truth = run(&workload, &resident, [Duration::ZERO; Stream::ALL.len()]);
    let of_maps = truth[0].1.iter().filter(|(tensor, _)| matches!(tensor, NetworkTensor::Gradient(_))).count();
    assert!(of_maps > network.convolutions().count(), "{of_maps} gradients of maps");
    let mut offloaded = 0;
    for (name, plan) in plans(&workload, &kernels(&workload, BATCH)) {
        for slow in 0..3 {
            let mut delays = [Duration::ZERO; Stream::ALL.len()];
            delays[slow] = Duration::from_micros(400);
            let given = run(&workload, &plan.schedule, delays);
            for (step, (given, truth)) in given.iter().zip(&truth).enumerate() {
                let what = format!("{} {name}, stream {slow} slow, step {step}", network.name());
                assert_eq!(given.0, truth.0, "{what}: loss");
                assert_eq!(given.1.len(), truth.1.len(), "{what}: gradients");
                let differs = given.1.iter().zip(&truth.1).find(|(given, truth)| given != truth);
                assert_eq!(differs.map(|(given, truth)| (given.0, truth.0)), None, "{what}: a gradient");
            }
        }
        offloaded += plan.offloaded.0;
    }
    assert!(offloaded > 0, "nothing was ever offloaded");
}

/// Branches side by side, and everything on one stream: the same bits, whichever stream is slow.
#[test]
fn branches_side_by_side_train_alike() {
    for network in [fork_and_join(), sums()] {
        let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
        let costs = CostModel { side_by_side: 1.9, launch: Nanos::ZERO, ..CostModel::cpu() };
        let asked = Asked { algorithms: Algorithms::Memory, divide: false, lanes: true, ..Asked::default() };
        let schedule =
            plan(&workload.step(&kernels(&workload, BATCH), &costs).unwrap(), &costs, &asked).unwrap().schedule;
        assert!(schedule.lanes() > 1);
        let truth =
            run(&workload, &everything_resident(&workload, ALGORITHM, BATCH), [Duration::ZERO; Stream::ALL.len()]);
        for slow in 0..Stream::ALL.len() {
            let mut delays = [Duration::ZERO; Stream::ALL.len()];
            delays[slow] = Duration::from_micros(400);
            assert!(run(&workload, &schedule, delays) == truth, "{}, stream {slow} slow", network.name());
        }
    }
}

#[test]
fn lenet() {
    policies_train_alike(&Network::open("lenet").unwrap());
}

#[test]
fn cifar10_quick() {
    policies_train_alike(&Network::open("cifar10-quick").unwrap());
}

#[test]
fn forks_and_joins() {
    policies_train_alike(&fork_and_join());
}

#[test]
fn residual_blocks() {
    policies_train_alike(&residual());
}

#[test]
fn dense_steps() {
    policies_train_alike(&dense());
}

/// A chain in which every map comes out of a dropout.
fn masked() -> Network {
    let mut net = Builder::new("masked");
    net.input(Shape::image(3, 8, 8));
    for name in ["a", "b", "c", "d", "e"] {
        net.conv(name, Filters::new(8, 3).pad(1)).relu().dropout(0.4);
    }
    net.global_average_pool("pool").flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// Wide maps from concatenations.
fn joined() -> Network {
    let mut net = Builder::new("joined");
    net.input(Shape::image(3, 8, 8)).conv("a", Filters::new(8, 3).pad(1)).relu();
    for name in ["b", "c", "d"] {
        let from = net.here();
        let grown = net.conv(name, Filters::new(4, 1)).relu().here();
        net.concat(format!("{name}.join"), &[from, grown]);
    }
    net.conv("e", Filters::new(4, 1)).relu().flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// Convolutions read averages, and sums of maps that others read too.
fn averaged_and_summed() -> Network {
    let mut net = Builder::new("averaged-and-summed");
    net.input(Shape::image(3, 8, 8)).conv("first", Filters::new(8, 3).pad(1)).relu();
    for name in ["a", "b", "c"] {
        let window = Window::new(3, 1).pad(1);
        let one = net.average_pool(format!("{name}.pool"), window).conv(name, Filters::new(8, 3).pad(1)).relu().here();
        let two = net.conv(format!("{name}.two"), Filters::new(8, 3).pad(1)).relu().here();
        let long = net.conv(format!("{name}.long"), Filters::new(8, 3).pad(1)).here();
        net.add(format!("{name}.sum"), &[one, two]);
        let short = net.conv(format!("{name}.short"), Filters::new(8, 3).pad(1)).here();
        net.add(format!("{name}.out"), &[long, short]).relu();
    }
    net.global_average_pool("pool").flatten().fully_connected("fc", 10).softmax_loss();
    net.finish().unwrap()
}

/// Batch normalizations, dropout, poolings, sums and concatenations run again, under budgets from the least on.
#[test]
fn recomputed_maps_train_alike() {
    let mut again = Vec::new();
    let lenet = Network::open("lenet").unwrap();
    for network in [residual(), dense(), fork_and_join(), masked(), joined(), averaged_and_summed(), lenet] {
        let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
        let truth =
            run(&workload, &everything_resident(&workload, ALGORITHM, BATCH), [Duration::ZERO; Stream::ALL.len()]);
        let kernels = kernels(&workload, BATCH);
        // Copies so slow that everything that can run again does.
        let costs = CostModel { offload_rate: 1e7, prefetch_rate: 1e7, both_rate: 1e7, ..CostModel::cpu() };
        let under = |budget| {
            let asked = Asked { policy: Policy::Optimal, divide: false, budget, ..Asked::default() };
            plan(&workload.step(&kernels, &costs).unwrap(), &costs, &asked).unwrap()
        };
        let roomy = under(Bytes::gib(1));
        assert_eq!((roomy.offloaded, roomy.recomputed), (Bytes::ZERO, Nanos::ZERO), "{}", network.name());
        for share in [0, 20, 40, 60, 80] {
            let budget = Bytes(roomy.min_feasible.0 + (roomy.peak.0 - roomy.min_feasible.0) * share / 100);
            let plan = under(budget);
            assert!(plan.peak <= budget);
            for instruction in &plan.schedule.instructions {
                if let Action::Compute(compute) = &instruction.action
                    && compute.again
                {
                    let group = plan.schedule.step().operation(compute.operation).group;
                    let layer = &network.layers()[group.0];
                    again.push(layer.kind.name());
                }
            }
            let name = format!("{} in {budget}", network.name());
            assert!(run(&workload, &plan.schedule, [Duration::ZERO; Stream::ALL.len()]) == truth, "{name}");
        }
    }
    again.sort_unstable();
    again.dedup();
    for kind in
        ["convolution", "batch-norm", "relu", "max-pooling", "average-pooling", "lrn", "add", "dropout", "concat"]
    {
        assert!(again.contains(&kind), "{kind} never ran again, only {again:?}");
    }
}

#[test]
fn without_momentum_every_policy_takes_less_and_trains_alike() {
    let network = residual();
    let with = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let without = with.clone().with_momentum(false);
    let kernels = kernels(&with, BATCH);
    let none = Solver { rule: Rule::Sgd(Sgd { momentum: 0.0, ..Sgd::default() }), ..Solver::default() };
    let losses = |workload: &Workload<'_>, plan: &Plan, solver| {
        let machine = CpuMachine::new(Options { threads: Some(THREADS), ..Options::default() });
        let mut engine = Engine::new(workload, &plan.schedule, machine, solver, Poison::Freed)?;
        (0..STEPS)
            .map(|step| batch(workload, step))
            .map(|(samples, labels)| Ok(engine.step(&samples, &labels)?.loss.to_bits()))
            .collect::<Result<Vec<u64>, Error>>()
    };
    let mut truth = None;
    for policy in Policy::ALL {
        let [full, less] =
            [&with, &without].map(|workload| planned(workload, &kernels, policy, Bytes::gib(1)).unwrap());
        assert!(less.peak < full.peak && less.min_feasible < full.min_feasible, "{policy}");
        let trained = [losses(&with, &full, none), losses(&without, &less, none)].map(Result::unwrap);
        let truth = truth.get_or_insert_with(|| trained[0].clone());
        assert!(trained.iter().all(|losses| losses == truth), "{policy}");
        let error = losses(&without, &less, Solver::default()).unwrap_err().to_string();
        assert!(error.contains("no memory for the solver's momentum of 0.9"), "{error}");
    }
}

/// The probabilities of some mini-batches as bits, and the bytes of the arena that were used.
fn predicted(workload: &Workload<'_>, schedule: &Schedule) -> (Vec<Vec<u32>>, Bytes) {
    let budgets = Budgets { device: schedule.device_bytes, host: schedule.host_bytes };
    let checked = Checked::new(&workload.lower().unwrap().step, schedule.clone(), budgets).unwrap();
    let machine = CpuMachine::new(Options { threads: Some(THREADS), checksums: true, ..Options::default() });
    let mut engine = Engine::new(workload, &checked, machine, Solver::default(), Poison::Freed).unwrap();
    let bits = (0..STEPS).map(|step| batch(workload, step)).map(|(samples, labels)| {
        engine.step(&samples, &labels).unwrap();
        engine.probabilities().unwrap().into_iter().map(f32::to_bits).collect()
    });
    let bits = bits.collect();
    (bits, engine.machine().high_water().unwrap().unwrap())
}

#[test]
fn forward_passes_predict_alike_under_every_policy_in_less_than_training() {
    for network in [fork_and_join(), residual(), dense(), Network::open("lenet").unwrap()] {
        let [training, inference] =
            [Mode::Training, Mode::Inference].map(|mode| Workload::new(&network, BATCH, Types::F32, mode).unwrap());
        let kernels = kernels(&training, BATCH);
        let (truth, resident) = predicted(&inference, &everything_resident(&inference, ALGORITHM, BATCH));
        assert!(truth.iter().flatten().all(|bits| f32::from_bits(*bits).is_finite()));
        for policy in Policy::ALL {
            let name = format!("{} under {policy}", network.name());
            let roomy = planned(&inference, &kernels, policy, Bytes::gib(1)).unwrap();
            let least = planned(&inference, &kernels, policy, roomy.min_feasible).unwrap();
            let of_training = planned(&training, &kernels, policy, Bytes::gib(1)).unwrap().min_feasible;
            for plan in [roomy, least] {
                let (bits, used) = predicted(&inference, &plan.schedule);
                assert!(bits == truth, "{name}");
                assert!(used <= plan.peak && plan.peak < of_training, "{name}: {} of {of_training}", plan.peak);
                assert!(policy == Policy::Baseline || used < resident, "{name}: {used} of {resident}");
                // The others move nothing where nothing is read again backward.
                assert!(policy == Policy::Optimal || plan.offloaded == Bytes::ZERO, "{name}");
            }
        }
    }
}

#[test]
fn a_source_is_predicted_once_and_in_order() {
    let network = Network::open("digits-net").unwrap();
    let inference = Workload::new(&network, 64, Types::F32, Mode::Inference).unwrap();
    let plan = planned(&inference, &kernels(&inference, 64), Policy::VdnnAll, Bytes::gib(1)).unwrap();
    let machine = || CpuMachine::new(Options { threads: Some(THREADS), ..Options::default() });
    let mut engine = Engine::new(&inference, &plan.schedule, machine(), Solver::default(), Poison::Nothing).unwrap();
    let digits = data::open("digits", network.layers()[0].shape, 10, 0).unwrap().test.unwrap();
    let run = |engine: &mut Engine<_>, most: usize| {
        let (mut scores, mut probabilities) = (Vec::new(), Vec::new());
        let ran = predict(engine, Arc::clone(&digits), |prediction| {
            scores.push(prediction.score);
            probabilities.extend_from_slice(prediction.probabilities);
            if scores.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        ran.unwrap();
        (scores, probabilities)
    };
    let (scores, all) = run(&mut engine, usize::MAX);
    // 599 samples: the last mini-batch is filled up, and the filling is not counted.
    assert_eq!(scores.iter().map(|score| score.samples).collect::<Vec<_>>(), [[64; 9].as_slice(), &[23]].concat());
    assert_eq!((all.len(), Score::of(&scores).samples), (5990, 599));
    let (first, some) = run(&mut engine, 2);
    assert_eq!((first.len(), &some[..]), (2, &all[..2 * 64 * 10]));
    let right = all.chunks(10).enumerate().filter(|(index, probabilities)| {
        let mut sample = vec![0.0; 64];
        let label = digits.read(*index, &mut sample).unwrap();
        (0..10).all(|class| probabilities[class] <= probabilities[label as usize])
    });
    assert_eq!(right.count(), Score::of(&scores).correct);
}

#[test]
fn divided_convolutions_train_alike_under_every_policy() {
    let network = fork_and_join();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let truth = run(&workload, &everything_resident(&workload, ALGORITHM, 2), [Duration::ZERO; Stream::ALL.len()]);
    let plans = plans(&workload, &kernels(&workload, 2)).into_iter();
    for (name, plan) in plans.filter(|(_, plan)| plan.in_parts.is_none()) {
        assert!(run(&workload, &plan.schedule, [Duration::ZERO; Stream::ALL.len()]) == truth, "{name}");
    }
}
