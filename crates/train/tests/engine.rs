//! The engine on the CPU: a network learns, wrong schedules and batches become errors, debugging aids catch what they are
//! for.

use std::time::Duration;

use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Types};
use tightfit_network::{LayerKind, Network};
use tightfit_plan::step::Cost;
use tightfit_plan::{
    Action, Block, BlockId, Checked, Compute, Holding, HostBlock, HostBlockId, Instruction, InstructionId, LayerPass,
    Mode, NetworkTensor, Pass, Role, Schedule, Stream, Workload, footprint,
};
use tightfit_profile::survey::Slicing;
use tightfit_test_support::train::{THREADS, batch, everything_resident, fork_and_join, residual};
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Error, Machine, Poison, Solver};
use tightfit_units::{Bytes, Nanos};

fn machine() -> CpuMachine {
    CpuMachine::new(Options { threads: Some(THREADS), ..Options::default() })
}

/// An engine for a schedule that need not be sound.
fn engine(workload: &Workload<'_>, schedule: &Schedule) -> Engine<CpuMachine> {
    Engine::new(workload, &assumed(workload, schedule), machine(), Solver::default(), Poison::Freed).unwrap()
}

fn assumed(workload: &Workload<'_>, schedule: &Schedule) -> Checked {
    Checked::assume(&workload.lower().unwrap().step, schedule.clone())
}

#[test]
fn overfits_one_mini_batch() {
    let networks = [Network::open("digits-net").unwrap(), fork_and_join(), residual()];
    for network in &networks {
        let workload = Workload::new(network, 8, Types::F32, Mode::Training).unwrap();
        let schedule = everything_resident(&workload, "implicit-gemm", 8);
        let mut engine = engine(&workload, &schedule);
        let (samples, labels) = batch(&workload, 0);
        let first = engine.step(&samples, &labels).unwrap();
        assert!(first.loss > 1.0 && first.loss < 10.0, "{}: {first:?}", network.name());
        let last = (0..60).map(|_| engine.step(&samples, &labels).unwrap()).last().unwrap();
        assert!(last.loss < first.loss / 3.0 && last.correct >= 7, "{}: {first:?} to {last:?}", network.name());
    }
}

/// The losses of five steps.
fn losses(workload: &Workload<'_>, schedule: &Schedule) -> Vec<f64> {
    let mut engine = engine(workload, schedule);
    let step = |step| {
        let (samples, labels) = batch(workload, step);
        engine.step(&samples, &labels).unwrap().loss
    };
    (0..5).map(step).collect()
}

#[test]
fn frozen_layers_stay_and_the_others_train_as_before() {
    // Layers of each kind: below all that trains, between, and above.
    for (network, frozen) in [
        (Network::open("digits-net").unwrap(), &["conv1"][..]),
        (Network::open("digits-net").unwrap(), &["fc", "conv2"]),
        (fork_and_join(), &["a.", "b.3x3"]),
        (residual(), &["conv1", "b2"]),
        (residual(), &["b1", "b3.c2", "fc"]),
    ] {
        let whole = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let frozen: Vec<String> = frozen.iter().map(|&prefix| prefix.to_owned()).collect();
        let part = whole.clone().with_frozen(&frozen).unwrap();
        let run = |workload: &Workload<'_>, steps: u64| {
            let mut engine = engine(workload, &everything_resident(workload, "implicit-gemm", 4));
            let first = engine.learned().unwrap();
            let losses: Vec<f64> = (0..steps)
                .map(|step| {
                    let (samples, labels) = batch(workload, step);
                    engine.step(&samples, &labels).unwrap().loss
                })
                .collect();
            (first, engine.kept().unwrap(), losses)
        };
        let ((first, kept, losses), (same_first, expected, expected_losses)) = (run(&part, 1), run(&whole, 1));
        assert_eq!((&first, &losses), (&same_first, &expected_losses), "{}", network.name());
        assert!(first.keys().eq(kept.keys().filter(|tensor| first.contains_key(tensor))));
        let mut trained = 0;
        for (tensor, numbers) in &expected {
            match tensor {
                NetworkTensor::Weights(layer) if !part.trains(*layer) => assert_eq!(kept[tensor], first[tensor]),
                NetworkTensor::Momentum(layer) if !part.trains(*layer) => assert!(!kept.contains_key(tensor)),
                // One step has the same gradients of all that trains.
                _ => {
                    trained += usize::from(matches!(tensor, NetworkTensor::Weights(_)));
                    assert_eq!(&kept[tensor], numbers, "{}: {tensor:?}", network.name());
                }
            }
        }
        assert!(trained > 0);
        let (first, kept, _) = run(&part, 4);
        for (layer, of) in network.iter().filter(|(_, of)| of.parameters > 0) {
            let weights = NetworkTensor::Weights(layer);
            assert_eq!(first[&weights] == kept[&weights], !part.trains(layer), "{}", of.name);
        }
    }
}

/// The layer pass that a computation carries out.
fn pass_of(workload: &Workload<'_>, compute: &Compute) -> LayerPass {
    workload.lower().unwrap().passes[compute.operation.0].clone()
}

/// The computation of an instruction, if it is a forward pass between the input and the loss.
fn hidden_forward<'a>(workload: &Workload<'_>, step: &'a Instruction) -> Option<&'a Compute> {
    match &step.action {
        Action::Compute(compute) if pass_of(workload, compute).pass == Pass::Forward => {
            let kind = &workload.network.layer(pass_of(workload, compute).layer).kind;
            (!matches!(kind, LayerKind::Input { .. } | LayerKind::SoftmaxLoss)).then_some(&**compute)
        }
        _ => None,
    }
}

#[test]
fn forward_passes_run_again_give_the_same() {
    for network in [fork_and_join(), residual()] {
        let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let schedule = everything_resident(&workload, "implicit-gemm", 4);
        let mut twice = schedule.clone();
        let again = schedule.instructions.iter().filter_map(|step| hidden_forward(&workload, step)).map(|compute| {
            let compute = Compute { again: true, ..compute.clone() };
            Instruction { stream: Stream::Compute, action: Action::Compute(Box::new(compute)) }
        });
        let backward = |step: &Instruction| match &step.action {
            Action::Compute(compute) => pass_of(&workload, compute).pass == Pass::BackwardData,
            _ => false,
        };
        // Between the loss and its gradient, so that the probabilities of the first time are used.
        let at = schedule.instructions.iter().position(backward).unwrap();
        let mut again: Vec<Instruction> = again.collect();
        // The last layer lies under the probabilities, which its second run would overwrite.
        again.pop();
        assert!(again.len() > 10);
        twice.instructions.splice(at..at, again);
        assert_eq!(losses(&workload, &twice), losses(&workload, &schedule), "{}", network.name());
    }
}

#[test]
fn convolutions_in_slices_of_a_sample_learn_the_same() {
    let network = fork_and_join();
    let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
    let step = workload.lower().unwrap().step;
    let whole = everything_resident(&workload, "direct", 4);
    let mut sliced = whole.clone();
    let mut count = 0;
    for instruction in &mut sliced.instructions {
        if let Action::Compute(compute) = &mut instruction.action
            && let Cost::Choice(front) = &step.operation(compute.operation).cost
            && let Some(slicing) = Slicing::axes(front.problem.with_batch(1).unwrap()).first()
        {
            let algorithm = slicing.slices(slicing.ladder()[0], &Algorithm::new("direct")).unwrap();
            let part = Candidate { micro_batch: 1, algorithm, time: Nanos(1), workspace: Bytes::ZERO };
            compute.configuration = Some(Configuration::new(vec![part; 4], DivisionCost::default()));
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
    for (got, want) in losses(&workload, &sliced).into_iter().zip(losses(&workload, &whole)) {
        assert!((got - want).abs() <= 1e-5 * want, "{got}, not {want}");
    }
}

#[test]
fn inference_takes_over_the_learned_weights() {
    let network = residual();
    let training = Workload::new(&network, 8, Types::F32, Mode::Training).unwrap();
    let mut learner = engine(&training, &everything_resident(&training, "implicit-gemm", 8));
    let (samples, labels) = batch(&training, 0);
    for _ in 0..60 {
        learner.step(&samples, &labels).unwrap();
    }
    let learned = learner.learned().unwrap();
    let inference = Workload::new(&network, 4, Types::F32, Mode::Inference).unwrap();
    let mut user = engine(&inference, &everything_resident(&inference, "implicit-gemm", 4));
    let untrained = user.step(&samples[..samples.len() / 2], &labels[..4]).unwrap();
    user.take_over(&learned).unwrap();
    let trained = user.step(&samples[..samples.len() / 2], &labels[..4]).unwrap();
    assert!(trained.loss < untrained.loss / 2.0 && trained.correct >= 3, "{untrained:?} to {trained:?}");
    assert_eq!(learned, user.learned().unwrap(), "inference changes nothing");
}

#[test]
fn batches_and_types_that_do_not_fit_are_refused() {
    let network = Network::open("digits-net").unwrap();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let schedule = everything_resident(&workload, "direct", 2);
    let mut engine = engine(&workload, &schedule);
    let (samples, labels) = batch(&workload, 0);
    assert!(matches!(engine.step(&samples[1..], &labels), Err(Error::Batch { .. })));
    assert!(matches!(engine.step(&samples, &[1, 10]), Err(Error::Batch { .. })));
    engine.step(&samples, &labels).unwrap();

    let half = Workload::new(&network, 2, Types::Bf16, Mode::Training).unwrap();
    let schedule = assumed(&half, &everything_resident(&half, "direct", 2));
    let error = Engine::new(&half, &schedule, machine(), Solver::default(), Poison::Nothing).unwrap_err();
    assert_eq!(error.to_string(), "cpu does not support bf16; use f32, or the cuda backend");
    let error = Engine::new(&workload, &schedule, machine(), Solver::default(), Poison::Nothing).unwrap_err();
    assert!(matches!(error, Error::Unsound { .. }), "{error}");
}

#[test]
fn too_large_arenas_are_rejected_before_allocating() {
    let network = Network::open("digits-net").unwrap();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let schedule = everything_resident(&workload, "direct", 2);
    let device = Schedule { device_bytes: Bytes(1 << 50), ..schedule.clone() };
    let error = Engine::new(&workload, &assumed(&workload, &device), machine(), Solver::default(), Poison::Nothing)
        .unwrap_err();
    assert!(matches!(error, Error::DeviceMemory { .. }), "{error}");
    let host = Schedule { host_bytes: Bytes(1 << 50), ..schedule };
    let error =
        Engine::new(&workload, &assumed(&workload, &host), machine(), Solver::default(), Poison::Nothing).unwrap_err();
    assert!(matches!(error, Error::HostMemory { .. }), "{error}");
}

/// The step that writes the output of the first convolution.
fn first_convolution(workload: &Workload<'_>, schedule: &Schedule) -> usize {
    let convolves = |step: &Instruction| match &step.action {
        Action::Compute(compute) => {
            matches!(workload.network.layer(pass_of(workload, compute).layer).kind, LayerKind::Convolution { .. })
        }
        _ => false,
    };
    schedule.instructions.iter().position(convolves).unwrap()
}

/// Sends the input map to the host right after it was written, and fetches it back to other bytes before the first
/// convolution reads it, each on a separate stream. `waits` selects which of the three waits exist.
fn offloading(workload: &Workload<'_>, waits: [bool; 3]) -> Schedule {
    let mut schedule = everything_resident(workload, "direct", 2);
    let tensor = |block: &Block| match block.holds {
        Holding::Tensor(tensor) => Some(tensor),
        Holding::Workspace(_) => None,
    };
    // Maps come first among the tensors, the input's before all others.
    let is_input = |block: &Block| tensor(block).is_some_and(|tensor| tensor.0 == 0);
    let written = BlockId(schedule.blocks.iter().position(is_input).unwrap());
    let block = schedule.blocks[written.0].clone();
    let fetched = BlockId(schedule.blocks.len());
    schedule.blocks.push(Block { offset: schedule.device_bytes.0, ..block.clone() });
    schedule.device_bytes = Bytes(schedule.device_bytes.0 + footprint(block.bytes));
    schedule.host_bytes = Bytes(block.bytes);
    schedule.host_blocks.push(HostBlock { tensor: tensor(&block).unwrap(), offset: 0, bytes: block.bytes });

    let at = first_convolution(workload, &schedule);
    for step in &mut schedule.instructions[at..] {
        if let Action::Compute(compute) = &mut step.action {
            let reads = compute.blocks.iter_mut().filter(|block| **block == written);
            reads.for_each(|block| *block = fetched);
        }
    }
    let wait = |stream, step| Instruction { stream, action: Action::Wait(InstructionId(step)) };
    let mut inserted = Vec::new();
    if waits[0] {
        inserted.push(wait(Stream::Offload, at - 1));
    }
    let offload = at + inserted.len();
    inserted.push(Instruction { stream: Stream::Offload, action: Action::Offload(written, HostBlockId(0)) });
    if waits[1] {
        inserted.push(wait(Stream::Prefetch, offload));
    }
    let prefetch = at + inserted.len();
    inserted.push(Instruction { stream: Stream::Prefetch, action: Action::Prefetch(HostBlockId(0), fetched) });
    if waits[2] {
        inserted.push(wait(Stream::Compute, prefetch));
    }
    schedule.instructions.splice(at..at, inserted);
    schedule
}

#[test]
fn copies_on_slow_streams_change_nothing_and_missing_waits_are_errors() {
    let network = Network::open("digits-net").unwrap();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let run = |schedule: &Schedule, slow: usize, waits: bool| {
        let mut delays = [Duration::ZERO; Stream::ALL.len()];
        delays[slow] = Duration::from_millis(if waits { 3 } else { 30 });
        let options = Options { threads: Some(THREADS), delays, checksums: true, spans: true };
        let machine = CpuMachine::new(options);
        let mut engine =
            Engine::new(&workload, &assumed(&workload, schedule), machine, Solver::default(), Poison::Freed)?;
        let mut losses = Vec::new();
        for step in 0..5 {
            let (samples, labels) = batch(&workload, step);
            losses.push(engine.step(&samples, &labels)?.loss);
        }
        let copies = engine.spans().iter().filter(|(_, span)| span.stream != Stream::Compute).count();
        Ok::<_, Error>((losses, copies))
    };
    let (truth, copies) = run(&everything_resident(&workload, "direct", 2), 0, true).unwrap();
    assert_eq!(copies, 0);
    for slow in 0..3 {
        let losses = run(&offloading(&workload, [true; 3]), slow, true).unwrap();
        assert_eq!(losses, (truth.clone(), 2), "stream {slow} is slow");
    }
    // Without a wait, the slow stream is late: bytes are overwritten, or stale ones are read.
    for (missing, slow) in [(0, 0), (1, 1), (2, 2)] {
        let mut waits = [true; 3];
        waits[missing] = false;
        match run(&offloading(&workload, waits), slow, false) {
            Err(Error::Step { .. }) => {}
            Ok((losses, _)) => assert_ne!(format!("{losses:?}"), format!("{truth:?}"), "wait {missing} is missing"),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn poison_shows_in_the_loss() {
    let network = Network::open("digits-net").unwrap();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let mut schedule = everything_resident(&workload, "direct", 2);
    // The input layer's pass goes, so the first convolution reads what nobody has written.
    let input = schedule.instructions.iter().position(|step| matches!(step.action, Action::Compute(_))).unwrap();
    schedule.instructions.remove(input);
    let (samples, labels) = batch(&workload, 0);
    assert!(engine(&workload, &schedule).step(&samples, &labels).unwrap().loss.is_nan());
}

#[test]
fn failures_inside_a_step_are_reported_without_hanging() {
    let network = Network::open("digits-net").unwrap();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let mut schedule = offloading(&workload, [true; 3]);
    // The input layer is to write its labels into its samples, which it holds already.
    let computes = schedule.instructions.iter_mut().find_map(|next| match &mut next.action {
        Action::Compute(compute) => Some(compute),
        _ => None,
    });
    let input = computes.unwrap();
    let labels = pass_of(&workload, input).roles.iter().position(|role| *role == Role::Labels).unwrap();
    input.blocks[labels] = input.blocks[1 - labels];
    let (samples, labels) = batch(&workload, 0);
    let mut engine = engine(&workload, &schedule);
    for _ in 0..2 {
        let error = engine.step(&samples, &labels).unwrap_err().to_string();
        assert!(error.contains("input forward") && error.contains("could not borrow its bytes"), "{error}");
    }
    engine.machine().finish().unwrap();
}
