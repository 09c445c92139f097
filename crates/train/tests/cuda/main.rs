//! The CUDA machine against the CPU machine: on the mock libraries, and in ignored tests on a real GPU.

mod feeding;
mod lanes;
mod limits;
mod parts;
mod shared;

use std::collections::{BTreeMap, HashMap};

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, DivisionCost, Layout, Notes, Problem, Types};
use tightfit_cuda::{CudaBackend, Options};
use tightfit_network::{Builder, Filters, Layer, LayerKind, Network, Rule, Sgd, Shape, Window};
use tightfit_plan::step::Cost;
use tightfit_plan::{
    ALIGNMENT, Action, Algorithms, Block, BlockId, Budgets, Checked, CostModel, Fronts, Holding, Instruction, Mode,
    NetworkTensor, Options as PlanOptions, Plan, Policy, Schedule, Stream, Workload, footprint, plan,
};
use tightfit_profile::survey::Slicing;
use tightfit_test_support::mocks::Mocks;
use tightfit_test_support::train::{THREADS, batch, bits, dense, everything_resident, fork_and_join, residual, sums};
use tightfit_train::data::Batch;
use tightfit_train::machine::cpu::{CpuMachine, Options as CpuOptions};
use tightfit_train::machine::cuda::{CudaMachine, Modes, RESERVED};
use tightfit_train::{Engine, Error, Machine, Observation, Poison, Solver};
use tightfit_units::{Bytes, Nanos};

/// The samples of every step here.
const BATCH: usize = 6;

/// How convolutions are divided.
#[derive(Clone, Copy, Debug)]
enum Division {
    /// Into micro-batches of at most this number of samples.
    MicroBatches(usize),
    /// Into samples, and these in two along a spatial axis where they have one.
    Slices,
}

/// Algorithms with the same bits in every run, with the least workspace first.
fn exact(backend: &mut CudaBackend, problem: &Problem) -> Vec<(Bytes, Algorithm)> {
    let offers = backend.offers(problem).unwrap();
    let exact = |notes: &Notes| {
        ![Notes::NONDETERMINISTIC, Notes::FFT, Notes::WINOGRAD].into_iter().any(|note| notes.contains(note))
    };
    let usable = offers.iter().filter(|offer| exact(&offer.notes));
    // Backward-data through an engine, which may have to be asked to add.
    let mut found: Vec<(Bytes, Algorithm)> =
        usable.filter_map(|offer| Some((*offer.workspace.as_ref().ok()?, offer.algorithm.clone()))).collect();
    found.sort_by_key(|(workspace, _)| *workspace);
    found
}

/// Slices of a sample by one algorithm that computes all of them.
fn slices(backend: &mut CudaBackend, sample: Problem) -> Option<Candidate> {
    let slicing = Slicing::axes(sample).into_iter().next()?;
    let size = *slicing.ladder().first()?;
    let parts = slicing.parts(size)?;
    let of_all = |(_, algorithm): (Bytes, Algorithm), backend: &mut CudaBackend| {
        let workspaces: Result<Vec<Bytes>, _> = parts.iter().map(|part| backend.workspace(part, &algorithm)).collect();
        Some((workspaces.ok()?.into_iter().max()?, algorithm))
    };
    let usable = exact(backend, &parts[0]);
    let (workspace, algorithm) = usable.into_iter().find_map(|offer| of_all(offer, backend))?;
    Some(Candidate { micro_batch: 1, algorithm: slicing.slices(size, &algorithm).unwrap(), time: Nanos(1), workspace })
}

/// A deterministic configuration with as little workspace as there is.
fn configuration(backend: &mut CudaBackend, problem: &Problem, division: Division) -> Configuration {
    let mut left = problem.batch();
    let mut parts = Vec::new();
    while left > 0 {
        let size = if let Division::MicroBatches(size) = division { size.min(left) } else { 1 };
        let part = problem.with_batch(size).unwrap();
        let sliced = if let Division::Slices = division { slices(backend, part) } else { None };
        parts.push(sliced.unwrap_or_else(|| {
            let (workspace, algorithm) = exact(backend, &part).into_iter().next().unwrap();
            Candidate { micro_batch: size, algorithm, time: Nanos(1), workspace }
        }));
        left -= size;
    }
    Configuration::new(parts, backend.division_cost(problem).unwrap())
}

/// The schedule with convolutions that CUDA has, whose workspaces lie one after another in time at the end of the arena.
fn for_cuda(workload: &Workload<'_>, mut schedule: Schedule, options: &Options, division: Division) -> Schedule {
    let mut backend = CudaBackend::open(options).unwrap();
    let mut sliced = 0;
    let (offset, mut most, mut instructions) = (schedule.device_bytes.0, 0, Vec::new());
    let lowered = workload.lower().unwrap();
    for mut instruction in schedule.instructions {
        let mut scratch = None;
        if let Action::Compute(compute) = &mut instruction.action
            && let Cost::Choice(front) = &lowered.step.operation(compute.operation).cost
        {
            let configuration = configuration(&mut backend, &front.problem, division);
            sliced += usize::from(configuration.is_sliced());
            let bytes = configuration.workspace().0;
            compute.configuration = Some(configuration);
            compute.workspace = None;
            if bytes > 0 {
                let block = BlockId(schedule.blocks.len());
                let holds = Holding::Workspace(lowered.step.operation(compute.operation).group);
                schedule.blocks.push(Block { holds, offset, bytes, samples: 0..workload.batch, resident: false });
                compute.workspace = Some(block);
                (scratch, most) = (Some(block), most.max(bytes));
            }
        }
        let free = |action| Instruction { stream: Stream::Compute, action };
        instructions.extend(scratch.map(|block| free(Action::Allocate(block))));
        instructions.push(instruction);
        instructions.extend(scratch.map(|block| free(Action::Release(block))));
    }
    assert_eq!(sliced > 3, matches!(division, Division::Slices), "{sliced} kernels in slices");
    schedule.instructions = instructions;
    schedule.device_bytes = Bytes(offset + footprint(most));
    schedule
}

/// Losses of some steps, and the gradients of the first and the last.
type Results = (Vec<f64>, BTreeMap<(u64, NetworkTensor), Vec<f32>>);

/// How far gradients of later steps may be off at least: weights that differ by rounding cut one unit more or less, which moves
/// what lies before it by a few percent.
const LATER: f64 = 0.1;

fn train<M: Machine>(workload: &Workload<'_>, schedule: &Schedule, machine: M, steps: u64) -> Result<Results, Error> {
    let budgets = Budgets { device: schedule.device_bytes, host: schedule.host_bytes };
    let schedule = &Checked::new(&workload.lower().unwrap().step, schedule.clone(), budgets)?;
    let solver = Solver { loss_scale: 128.0, ..Solver::default() };
    let mut engine = Engine::new(workload, schedule, machine, solver, Poison::Nothing)?;
    let lowered = workload.lower()?;
    let (mut losses, mut gradients) = (Vec::new(), BTreeMap::new());
    for step in 0..steps {
        let (samples, labels) = batch(workload, step);
        let classes = workload.network.layers().last().unwrap().shape.len() as u32;
        let labels: Vec<u32> = labels.iter().map(|label| label % classes).collect();
        losses.push(engine.step(&samples, &labels)?.loss);
        for tensor in lowered.tensors.iter().filter(|_| step == 0 || step + 1 == steps) {
            if let NetworkTensor::WeightGradient(layer) = *tensor {
                let all = engine.read(*tensor)?.unwrap();
                // Between the parameters there is nothing.
                let parameters = workload.parameters(layer);
                let own = parameters.iter().flat_map(|p| all[p.offset..p.offset + p.elements].to_vec());
                gradients.insert((step, *tensor), own.collect());
            }
        }
    }
    Ok((losses, gradients))
}

fn on_cpu(workload: &Workload<'_>, steps: u64) -> Results {
    let machine = CpuMachine::new(CpuOptions { threads: Some(THREADS), ..CpuOptions::default() });
    train(workload, &everything_resident(workload, "direct", BATCH), machine, steps).unwrap()
}

/// `(tensor, factor)`: the gradient of one tensor may be off by `factor` times the tolerance.
fn assert_close(what: &str, got: &Results, want: &Results, tolerance: f64, wide: Option<(NetworkTensor, f64)>) {
    for (step, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
        // A mean over all samples averages most of the rounding away.
        assert!(
            (got - want).abs() <= 0.1 * tolerance * want.abs().max(1.0),
            "{what}: loss {got} in step {step}, not {want}"
        );
    }
    assert_eq!(got.1.len(), want.1.len());
    for (of @ (step, tensor), want) in &want.1 {
        let got = &got.1[of];
        let tolerance = if *step > 0 { tolerance.max(LATER) } else { tolerance };
        let norm = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        let off: Vec<f32> = got.iter().zip(want).map(|(got, want)| got - want).collect();
        let tolerance = wide.filter(|(wide, _)| wide == tensor).map_or(tolerance, |(_, factor)| factor * tolerance);
        // Biases before a batch normalization have a gradient of rounding errors alone.
        let (off, size) = (norm(&off), norm(want).max(1e-2));
        assert!(off <= tolerance * size, "{what}: gradient of {tensor:?} in step {step} off by {off} of {size}");
    }
}

/// Every layer, forward and backward, on both machines; the convolutions whole, in micro-batches, and in slices.
fn networks_agree(options: &Options, chain: Network) {
    for network in [fork_and_join(), residual(), chain] {
        let f32 = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
        let want = on_cpu(&f32, 2);
        // Rounding sometimes decides which element of a window is the largest, and whether a unit is cut: in f32 one
        // unit in cifar10-quick. A wrong computation is off by the size of the gradient itself.
        let normalization = network.iter().find(|(_, layer)| matches!(layer.kind, LayerKind::BatchNorm { .. }));
        // Its parameters have gradients that are small sums of large numbers: in f16-f32 20% off where halves are only
        // stored, as on the mocks, and 22% on an H200.
        let wide = normalization.map(|(first, _)| (NetworkTensor::WeightGradient(first), 1.25));
        for (types, layout, tolerance) in [
            (Types::F32, Layout::Nchw, 3e-2),
            (Types::Tf32, Layout::Nchw, 0.15),
            (Types::F16F32, Layout::Nchw, 0.2),
            (Types::F16F32, Layout::Nhwc, 0.2),
            (Types::Bf16, Layout::Nchw, 0.5),
            (Types::Bf16, Layout::Nhwc, 0.5),
        ] {
            let workload = Workload::new(&network, BATCH, types, Mode::Training).unwrap().with_layout(layout).unwrap();
            let normalizes = |layer: &Layer| matches!(layer.kind, LayerKind::Lrn { .. });
            if types == Types::Bf16 && network.layers().iter().any(normalizes) {
                let schedule = for_cuda(
                    &workload,
                    everything_resident(&workload, "direct", BATCH),
                    options,
                    Division::MicroBatches(BATCH),
                );
                let machine = CudaMachine::open(options, Modes::default()).unwrap();
                let error = train(&workload, &schedule, machine, 1).unwrap_err();
                assert!(error.to_string().contains("cuDNN does not support it in bf16"), "{error}");
                continue;
            }
            for division in [Division::MicroBatches(BATCH), Division::MicroBatches(4), Division::Slices] {
                let schedule = everything_resident(&workload, "direct", BATCH);
                let schedule = for_cuda(&workload, schedule, options, division);
                let machine = CudaMachine::open(options, Modes::default()).unwrap();
                let what = format!("{} {types} {} in {division:?}", network.name(), layout.name());
                let got = train(&workload, &schedule, machine, 2).unwrap_or_else(|error| panic!("{what}: {error}"));
                println!("{what}: losses {:?}, on the CPU {:?}", got.0, want.0);
                assert_close(&what, &got, &want, tolerance, wide);
            }
        }
    }
}

#[test]
fn every_layer_matches_the_cpu() {
    let mocks = Mocks::new();
    networks_agree(&mocks.options(), chain());
    mocks.assert_nothing_left("training");
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_layer_matches_the_cpu_on_a_gpu() {
    networks_agree(&Options::default(), Network::open("cifar10-quick").unwrap());
}

/// One exact candidate for every convolution, so that all policies compute the same.
fn kernels(workload: &Workload<'_>, options: &Options) -> Fronts {
    kernels_of(workload, options, &[workload.batch])
}

/// The same for each of these numbers of samples.
fn kernels_of(workload: &Workload<'_>, options: &Options, sizes: &[usize]) -> Fronts {
    let mut backend = CudaBackend::open(options).unwrap();
    let mut candidates = HashMap::new();
    for problem in workload.problems().unwrap() {
        let sized = sizes.iter().map(|size| problem.with_batch(*size).unwrap());
        let whole = |part: Problem, backend: &mut CudaBackend| {
            configuration(backend, &part, Division::MicroBatches(part.batch())).parts().to_vec()
        };
        let parts = sized.flat_map(|part| whole(part, &mut backend)).collect();
        candidates.insert(problem, Candidates { candidates: parts, cost: DivisionCost::default() });
    }
    Fronts::of(&candidates).unwrap()
}

/// The plan of a policy. Policies that choose by the budget get the least one.
fn plan_of(workload: &Workload<'_>, kernels: &Fronts, policy: Policy) -> Plan {
    let plan_under = |budget| {
        let algorithms = Algorithms::Memory;
        let host_budget = Bytes(1 << 30);
        let options = PlanOptions { policy, algorithms, divide: false, budget, host_budget, ..PlanOptions::default() };
        plan(&workload.step(kernels, &CostModel::h200()).unwrap(), &CostModel::h200(), &options).unwrap()
    };
    let free = plan_under(Bytes::UNLIMITED);
    match policy {
        Policy::VdnnDynamic | Policy::Overlap | Policy::Optimal => plan_under(free.min_feasible),
        Policy::Baseline | Policy::VdnnAll | Policy::VdnnConv => free,
    }
}

/// Four steps; and how many copies came back in each as they had been sent.
fn four_steps(
    workload: &Workload<'_>,
    schedule: &Checked,
    machine: CudaMachine,
) -> Result<(Vec<bits::Step>, Vec<usize>), Error> {
    let observed = Observation::of(workload, schedule)?;
    let mut engine = Engine::new(workload, &observed.schedule, machine, Solver::default(), Poison::Nothing)?;
    bits::bits(&mut engine, &observed, (0..4).map(|step| batch(workload, step)))
}

/// Networks in the forms that maps have on the device.
fn forms() -> [(Network, Types, Layout); 6] {
    let (f32, f16, bf16) = (Types::F32, Types::F16F32, Types::Bf16);
    let (first, last) = (Layout::Nchw, Layout::Nhwc);
    [
        (fork_and_join(), f32, first),
        (residual(), f32, first),
        (dense(), f32, first),
        (fork_and_join(), f16, last),
        (residual(), bf16, last),
        (dense(), f16, last),
    ]
}

#[test]
fn every_policy_gives_the_same_bits_whichever_stream_is_late() {
    for (network, types, layout) in forms() {
        let workload = Workload::new(&network, 2, types, Mode::Training).unwrap().with_layout(layout).unwrap();
        let (mut want, mut compared) = (None, 0);
        let mocks = Mocks::new();
        let kernels = kernels(&workload, &mocks.options());
        for policy in Policy::ALL {
            let plan = plan_of(&workload, &kernels, policy);
            // No stream is late, the compute stream, the offloading one, the prefetching one; and the step as a graph.
            for (late, graph) in [(None, false), (Some(0), false), (Some(1), false), (Some(2), false), (None, true)] {
                mocks.reset();
                late.iter().for_each(|&ordinal| mocks.delay_stream(ordinal, 300));
                let machine = CudaMachine::open(&mocks.options(), Modes { graph, ..Modes::default() }).unwrap();
                let (got, copies) = four_steps(&workload, &plan.schedule, machine).unwrap();
                compared += copies.iter().sum::<usize>();
                let same = *want.get_or_insert_with(|| got.clone()) == got;
                let what = format!("{} {types} {}", network.name(), layout.name());
                assert!(same, "{what} under {policy}, late {late:?}, graph {graph}");
                mocks.assert_nothing_left("a plan");
            }
        }
        assert!(compared > 0, "{}: nothing was ever copied", network.name());
    }
}

#[test]
fn a_step_is_one_graph_and_each_meeting_with_a_copy_cuts_it() {
    let network = residual();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let mocks = Mocks::new();
    let kernels = kernels(&workload, &mocks.options());
    for (policy, is_cut) in [(Policy::Baseline, false), (Policy::VdnnAll, true)] {
        let plan = plan_of(&workload, &kernels, policy);
        mocks.reset();
        let machine = CudaMachine::open(&mocks.options(), Modes { graph: true, ..Modes::default() }).unwrap();
        four_steps(&workload, &plan.schedule, machine).unwrap();
        // The first step runs as it is enqueued.
        let [graphs, launches] = ["cuGraphInstantiateWithFlags", "cuGraphLaunch"].map(|name| mocks.calls(name));
        assert_eq!((launches, graphs > 1), (3 * graphs, is_cut), "{policy}: {graphs} graphs");
    }
}

/// Forward passes alone, under every policy and with everything resident.
fn predictions_agree(options: &Options) {
    for network in [fork_and_join(), residual(), dense()] {
        let workload = Workload::new(&network, BATCH, Types::F32, Mode::Inference).unwrap();
        let kernels = kernels(&workload, options);
        let resident = for_cuda(
            &workload,
            everything_resident(&workload, "direct", BATCH),
            options,
            Division::MicroBatches(BATCH),
        );
        let budgets = Budgets { device: resident.device_bytes, host: resident.host_bytes };
        let resident = Checked::new(&workload.lower().unwrap().step, resident, budgets).unwrap();
        let predicted = |schedule: &Checked, graph| {
            let machine = CudaMachine::open(options, Modes { graph, ..Modes::default() }).unwrap();
            let mut engine = Engine::new(&workload, schedule, machine, Solver::default(), Poison::Freed).unwrap();
            let bits = (0..3).map(|step| batch(&workload, step)).map(|(samples, labels)| {
                engine.step(&samples, &labels).unwrap();
                engine.probabilities().unwrap().into_iter().map(f32::to_bits).collect()
            });
            bits.collect::<Vec<Vec<u32>>>()
        };
        let want = predicted(&resident, false);
        for policy in Policy::ALL {
            let plan = plan_of(&workload, &kernels, policy);
            // In the least memory, optimal moves maps that are read again going forward.
            let moves = policy == Policy::Optimal || plan.offloaded == Bytes::ZERO;
            assert!(moves && plan.peak <= resident.device_bytes, "{policy}");
            for graph in [false, true] {
                assert!(predicted(&plan.schedule, graph) == want, "{} under {policy}, graph {graph}", network.name());
            }
        }
    }
}

#[test]
fn forward_passes_predict_alike_under_every_policy() {
    let mocks = Mocks::new();
    predictions_agree(&mocks.options());
    mocks.assert_nothing_left("predicting");
}

#[test]
#[ignore = "needs a CUDA device"]
fn forward_passes_predict_alike_on_a_gpu_under_every_policy() {
    predictions_agree(&Options::default());
}

/// Steps of a solver without momentum, with memory for it and without.
fn without_momentum(options: &Options, types: Types) {
    let network = residual();
    let with = Workload::new(&network, BATCH, types, Mode::Training).unwrap();
    let without = with.clone().with_momentum(false);
    let solver = Solver { rule: Rule::Sgd(Sgd { momentum: 0.0, ..Sgd::default() }), ..Solver::default() };
    let kernels = kernels(&with, options);
    let steps = [&with, &without].map(|workload| {
        let plan = plan_of(workload, &kernels, Policy::VdnnAll);
        let machine = CudaMachine::open(options, Modes::default()).unwrap();
        let mut engine = Engine::new(workload, &plan.schedule, machine, solver, Poison::Nothing).unwrap();
        let losses = (0..3)
            .map(|step| batch(workload, step))
            .map(|(samples, labels)| engine.step(&samples, &labels).unwrap().loss.to_bits());
        (losses.collect::<Vec<u64>>(), engine.learned().unwrap(), plan.peak)
    });
    let [full, less] = steps;
    assert!((&full.0, &full.1) == (&less.0, &less.1), "{types}");
    assert!(less.2 < full.2, "{types}");
}

#[test]
fn without_momentum_it_learns_the_same_in_less_memory() {
    let mocks = Mocks::new();
    [Types::F32, Types::F16F32].into_iter().for_each(|types| without_momentum(&mocks.options(), types));
    mocks.assert_nothing_left("training");
}

#[test]
#[ignore = "needs a CUDA device"]
fn without_momentum_a_gpu_learns_the_same_in_less_memory() {
    [Types::F32, Types::F16F32].into_iter().for_each(|types| without_momentum(&Options::default(), types));
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_policy_gives_the_same_bits_on_a_gpu() {
    let options = Options::default();
    for (network, types, layout) in forms() {
        let workload = Workload::new(&network, BATCH, types, Mode::Training).unwrap().with_layout(layout).unwrap();
        let kernels = kernels(&workload, &options);
        let mut want = None;
        for policy in Policy::ALL {
            let plan = plan_of(&workload, &kernels, policy);
            for graph in [false, true] {
                let machine = CudaMachine::open(&options, Modes { graph, ..Modes::default() }).unwrap();
                let (got, _) = four_steps(&workload, &plan.schedule, machine).unwrap();
                let same = *want.get_or_insert_with(|| got.clone()) == got;
                assert!(same, "{} {types} {} under {policy}, graph {graph}", network.name(), layout.name());
            }
        }
    }
}

/// The smallest network with every kind of layer that stands in a chain.
fn chain() -> Network {
    let mut net = Builder::new("chain");
    net.input(Shape::image(2, 6, 6));
    net.conv("conv1", Filters::new(3, 3).pad(1)).batch_norm().relu().lrn().max_pool("pool", Window::new(2, 2));
    net.conv("conv2", Filters::new(2, 2)).relu().dropout(0.2).average_pool("mean", Window::new(2, 2)).flatten();
    net.fully_connected("fc", 3).softmax_loss();
    net.finish().unwrap()
}
