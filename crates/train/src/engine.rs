//! Runs a schedule: sends its commands to a machine, step after step, and reads the loss at the end of each step.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::time::Instant;

use tightfit_conv::problem::Storage;
use tightfit_cpu::layers::softmax_loss;
use tightfit_network::{LayerId, Part, Rule};
use tightfit_onnx::Shared;
use tightfit_plan::{
    Action, Block, Checked, Holding, Lowered, Mode, NetworkTensor, Order, ParameterKind, Pass, Role, Schedule,
    Workload, channel_stride,
};
use tightfit_units::{Bytes, Nanos};

use crate::Error;
use crate::data::Batch;
use crate::initialize::first_numbers;
use crate::machine::{Iteration, Machine, Span, TaskId};
use crate::resolve::{Command, Commands, Poison, resolve};
use crate::sharing::{SharedStatistics, first_of_shared, share};
use crate::weights::{Learned, replace_weights};

/// Options of training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Solver {
    /// The update rule.
    pub rule: Rule,
    /// Factor of the loss before the backward passes.
    pub loss_scale: f32,
    /// Seed of the initial weights and of dropout.
    pub seed: u64,
}

impl Default for Solver {
    fn default() -> Solver {
        Solver { rule: Rule::default(), loss_scale: 1.0, seed: 1 }
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepResult {
    /// Mean cross-entropy over the mini-batch, with the weights before the step; 0 for a network without a loss.
    pub loss: f64,
    /// Number of correctly classified samples.
    pub correct: usize,
    /// Time from the first command to the end of all streams.
    pub time: Nanos,
}

/// A schedule on a machine, ready to run.
#[derive(Debug)]
pub struct Engine<M> {
    machine: M,
    commands: Commands,
    tasks: Vec<TaskId>,
    /// The location and storage type of all resident tensors.
    residents: BTreeMap<NetworkTensor, (Range<u64>, Storage)>,
    /// By layer, the elements of its parameters that the machine has in another order than files.
    turned: BTreeMap<LayerId, (Range<usize>, Order)>,
    /// Running statistics that layers share.
    statistics: Vec<SharedStatistics>,
    /// The location of the probabilities after a step, in sample order.
    probabilities: Vec<Range<u64>>,
    storage: Storage,
    batch: usize,
    sample: usize,
    classes: usize,
    peak: Bytes,
    /// Labels of the mini-batch that was fed and not run yet, or why it has none.
    fed: Option<Result<Vec<u32>, Error>>,
    step: u64,
    solver: Solver,
}

impl<M: Machine> Engine<M> {
    /// Reserves the memory, prepares every task, and writes the initial weights. Nothing is allocated afterwards.
    ///
    /// # Errors
    /// [`Error::Unsound`] if the schedule was checked against another workload, or if the workload lacks the memory of
    /// the solver's rule; the errors of the machine.
    pub fn new(
        workload: &Workload<'_>,
        schedule: &Checked,
        machine: M,
        solver: Solver,
        poison: Poison,
    ) -> Result<Engine<M>, Error> {
        Engine::with_shared(workload, schedule, machine, solver, poison, &[])
    }

    /// The same, where layers share numbers that are trained as one. They begin with equal ones; what
    /// [`Engine::take_over`] puts there must be equal too.
    ///
    /// # Errors
    /// The errors of [`Engine::new`]; [`Error::Unsound`] if layers cannot share their common parameters.
    pub fn with_shared(
        workload: &Workload<'_>,
        schedule: &Checked,
        mut machine: M,
        solver: Solver,
        poison: Poison,
        shared: &[Shared],
    ) -> Result<Engine<M>, Error> {
        let lowered = workload.lower()?;
        if *schedule.step() != lowered.step {
            let (batch, types) = (schedule.batch, schedule.types);
            let what = format!("it belongs to another network or workload, with {batch} samples in {types}");
            return Err(Error::Unsound { what });
        }
        if workload.mode == Mode::Training {
            check_memory(workload, &solver.rule)?;
        }
        let mut commands = resolve(workload, &lowered, schedule, poison)?;
        share(&mut commands, workload, shared)?;
        machine.reserve(schedule.device_bytes, schedule.host_bytes, commands.events)?;
        let probabilities = probabilities(&commands);
        let tasks = std::mem::take(&mut commands.tasks);
        let tasks = tasks.into_iter().map(|task| machine.prepare(task)).collect::<Result<Vec<_>, Error>>()?;
        let input = workload.network.iter().find(|(_, layer)| layer.kind.behavior().part == Part::Input);
        let loss = workload.network.iter().find(|(_, layer)| layer.kind.behavior().part == Part::Loss);
        let residents = residents(workload, &lowered, schedule);
        let place = |tensor| residents.get(&tensor).map(|(range, _): &(Range<u64>, Storage)| range.clone());
        let statistics = match workload.mode {
            Mode::Training => SharedStatistics::of(workload, shared, place),
            Mode::Inference => Vec::new(),
        };
        let mut engine = Engine {
            machine,
            commands,
            tasks,
            residents,
            statistics,
            turned: turned(workload),
            probabilities,
            storage: workload.types.storage(),
            batch: workload.batch,
            sample: input.map_or(0, |(_, layer)| layer.shape.len()),
            classes: loss.map_or(0, |(_, layer)| layer.shape.len()),
            fed: None,
            peak: schedule.blocks.iter().map(|block| Bytes(block.offset + block.bytes)).max().unwrap_or_default(),
            step: 0,
            solver,
        };
        engine.initialize(workload)?;
        let equal = first_of_shared(workload, shared, engine.solver.seed);
        if !equal.is_empty() {
            let mut learned = engine.learned()?;
            replace_weights(workload, &mut learned, &equal)?;
            engine.take_over(&learned)?;
        }
        Ok(engine)
    }

    /// Writes the initial content of all resident tensors.
    fn initialize(&mut self, workload: &Workload<'_>) -> Result<(), Error> {
        for (tensor, (range, storage)) in self.residents.clone() {
            let mut numbers = vec![0.0; (range.end - range.start) as usize / storage.size()];
            match tensor {
                NetworkTensor::Weights(layer) | NetworkTensor::MasterWeights(layer) => {
                    for parameter in workload.parameters(layer) {
                        let first = first_numbers(workload, layer, &parameter, self.solver.seed);
                        numbers[parameter.offset..][..parameter.elements].copy_from_slice(&first);
                    }
                }
                NetworkTensor::Statistics(layer) => {
                    let channels = workload.network.layer(layer).shape.channels();
                    numbers[channel_stride(channels)..][..channels].fill(1.0);
                }
                _ => {}
            }
            self.turn(tensor, &mut numbers, Order::to_device);
            self.machine.write(range.start, &storage.encode(&numbers))?;
        }
        Ok(())
    }

    /// Runs the schedule once on a mini-batch: samples one after another (c, h, w each), and a class for each.
    ///
    /// # Errors
    /// [`Error::Batch`] for a wrong number of elements or an unknown class; [`Error::Step`] for the first failure.
    pub fn step(&mut self, samples: &[f32], labels: &[u32]) -> Result<StepResult, Error> {
        self.feed(samples, labels)?;
        self.run(|| None)
    }

    /// Takes the mini-batch of the next step.
    ///
    /// # Errors
    /// [`Error::Batch`] for a wrong number of elements or an unknown class; [`Error::Step`].
    pub fn feed(&mut self, samples: &[f32], labels: &[u32]) -> Result<(), Error> {
        let wanted = self.batch * self.sample;
        if samples.len() != wanted || labels.len() != self.batch {
            let what = format!("{} elements and {} labels", samples.len(), labels.len());
            return Err(Error::Batch { what, wanted: format!("{wanted} and {}", self.batch) });
        }
        if let Some(label) = labels.iter().find(|label| self.classes > 0 && **label as usize >= self.classes) {
            let wanted = format!("labels below {}", self.classes);
            return Err(Error::Batch { what: format!("label {label}"), wanted });
        }
        self.machine.feed(samples, labels)?;
        self.fed = Some(Ok(labels.to_vec()));
        Ok(())
    }

    /// Runs the schedule once on the mini-batch that was fed last, and feeds the one that `next` returns while the machine computes. If the next
    /// batch cannot be read or fed, this step still counts, and the next call returns the error.
    ///
    /// # Errors
    /// [`Error::Batch`] if no mini-batch was fed; why it could not be; [`Error::Step`] for the first failure.
    pub fn run(&mut self, next: impl FnOnce() -> Option<Result<Batch, Error>>) -> Result<StepResult, Error> {
        let none = || Err(Error::Batch { what: "none was fed".to_owned(), wanted: "one for each step".to_owned() });
        let labels = self.fed.take().unwrap_or_else(none)?;
        let iteration = Iteration {
            step: self.step,
            seed: self.solver.seed,
            rule: self.solver.rule,
            loss_scale: self.solver.loss_scale,
        };
        let start = Instant::now();
        let before = self.statistics.iter().map(|shared| shared.before(&mut self.machine));
        let before = before.collect::<Result<Vec<_>, Error>>()?;
        let told = self.enqueue(&iteration);
        if told.is_ok()
            && let Some(next) = next()
            && let Err(error) = next.and_then(|next| self.feed(&next.samples, &next.labels))
        {
            self.fed = Some(Err(error));
        }
        // Wait for everything enqueued before an error, then report the error.
        let finished = self.machine.finish();
        finished.and(told)?;
        for (shared, before) in self.statistics.iter().zip(&before) {
            shared.after(&mut self.machine, before)?;
        }
        let time = Nanos::from(start.elapsed());
        self.step += 1;
        let (loss, correct) = match self.classes {
            0 => (0.0, 0),
            classes => softmax_loss::loss(classes, &self.probabilities()?, &labels),
        };
        Ok(StepResult { loss, correct, time })
    }

    /// Enqueues every command.
    fn enqueue(&mut self, iteration: &Iteration) -> Result<(), Error> {
        let machine = &mut self.machine;
        if !machine.begin(iteration)? {
            return machine.end();
        }
        for command in &self.commands.list {
            match command {
                Command::Compute(task) => machine.compute(self.tasks[*task], iteration)?,
                Command::Offload(stream, device, host) => machine.offload(*stream, device.clone(), host.clone())?,
                Command::Prefetch(stream, host, device) => machine.prefetch(*stream, host.clone(), device.clone())?,
                Command::Record(stream, event) => machine.record(*stream, *event)?,
                Command::Wait(stream, event) => machine.wait(*stream, *event)?,
                Command::Poison(stream, device) => machine.poison(*stream, device.clone())?,
            }
        }
        machine.end()
    }

    /// The probabilities of the last step, samples by classes.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn probabilities(&mut self) -> Result<Vec<f32>, Error> {
        let mut all = Vec::with_capacity(self.batch * self.classes);
        for range in &self.probabilities {
            all.extend(self.storage.decode(&self.machine.read(range.clone())?));
        }
        Ok(all)
    }

    /// Brings a tensor of a layer's parameters from the order of files to the machine's order, or back.
    fn turn(&self, tensor: NetworkTensor, numbers: &mut [f32], to: fn(Order, &[f32]) -> Vec<f32>) {
        let turned = owner(tensor).and_then(|layer| self.turned.get(&layer));
        let own = turned.and_then(|(range, order)| Some((numbers.get_mut(range.clone())?, order)));
        if let Some((own, order)) = own {
            let there = to(*order, own);
            own.copy_from_slice(&there);
        }
    }

    /// The content of a resident tensor, in the order of files; `None` if the schedule has no such tensor.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn read(&mut self, tensor: NetworkTensor) -> Result<Option<Vec<f32>>, Error> {
        let Some((range, storage)) = self.residents.get(&tensor).cloned() else { return Ok(None) };
        let mut numbers = storage.decode(&self.machine.read(range)?);
        self.turn(tensor, &mut numbers, Order::to_file);
        Ok(Some(numbers))
    }

    /// Weights and running statistics.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn learned(&mut self) -> Result<Learned, Error> {
        self.read_all(is_learned)
    }

    /// Everything a later run needs to continue: what [`Engine::learned`] has, and the solver's state.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn kept(&mut self) -> Result<Learned, Error> {
        self.read_all(is_kept)
    }

    /// Reads all resident tensors of a kind.
    fn read_all(&mut self, is_wanted: fn(&NetworkTensor) -> bool) -> Result<Learned, Error> {
        let tensors: Vec<NetworkTensor> = self.residents.keys().copied().filter(is_wanted).collect();
        let mut learned = Learned::new();
        for tensor in tensors {
            learned.extend(self.read(tensor)?.map(|numbers| (tensor, numbers)));
        }
        Ok(learned)
    }

    /// Copies everything that another engine of the same network has learned or kept, for the tensors that this engine
    /// has.
    ///
    /// # Errors
    /// [`Error::Batch`] for weights of another size; [`Error::Step`].
    pub fn take_over(&mut self, learned: &Learned) -> Result<(), Error> {
        for (tensor, numbers) in learned {
            let Some((range, storage)) = self.residents.get(tensor).cloned() else { continue };
            let mut numbers = numbers.clone();
            let given = (numbers.len() * storage.size()) as u64;
            if given != range.end - range.start {
                let wanted = format!("{}", Bytes(range.end - range.start));
                return Err(Error::Batch { what: format!("{tensor:?} of {}", Bytes(given)), wanted });
            }
            self.turn(*tensor, &mut numbers, Order::to_device);
            self.machine.write(range.start, &storage.encode(&numbers))?;
        }
        Ok(())
    }

    /// Continues a run that has taken `steps` steps: dropout draws what it would have drawn without the interruption.
    pub fn continue_after(&mut self, steps: u64) {
        self.step = steps;
    }

    /// Sets the learning rate of the following steps.
    pub fn set_learning_rate(&mut self, rate: f32) {
        self.solver.rule = self.solver.rule.with_learning_rate(rate);
    }

    /// Samples of one mini-batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Number of classes; 0 for a network without a loss.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Highest end of a block in the device arena.
    pub fn peak(&self) -> Bytes {
        self.peak
    }

    /// When each task and copy of the last step ran, with its index in the schedule; empty unless the machine records
    /// spans.
    pub fn spans(&mut self) -> Vec<(usize, Span)> {
        let placed = &self.commands.placed;
        let spans = self.machine.spans();
        let place = |span: Span| Some((*placed[span.stream.index()].get(span.place)?, span));
        spans.into_iter().filter_map(place).collect()
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }
}

/// Checks that the workload has memory for the rule's state, and for no other rule.
fn check_memory(workload: &Workload<'_>, rule: &Rule) -> Result<(), Error> {
    let what = match rule {
        Rule::Sgd(_) if workload.second_moment => "it is for AdamW, not for SGD".to_owned(),
        Rule::Sgd(sgd) if !workload.momentum && sgd.momentum != 0.0 => {
            format!("it has no memory for the solver's momentum of {}", sgd.momentum)
        }
        Rule::AdamW(_) if !workload.second_moment => "it has no memory for the two moments of AdamW".to_owned(),
        _ => return Ok(()),
    };
    Err(Error::Unsound { what })
}

/// The layer whose parameters a tensor has an element for each of.
fn owner(tensor: NetworkTensor) -> Option<LayerId> {
    match tensor {
        NetworkTensor::Weights(layer)
        | NetworkTensor::MasterWeights(layer)
        | NetworkTensor::WeightGradient(layer)
        | NetworkTensor::Momentum(layer)
        | NetworkTensor::SecondMoment(layer) => Some(layer),
        _ => None,
    }
}

/// The weights of every layer that lie on the device in another order than in files.
fn turned(workload: &Workload<'_>) -> BTreeMap<LayerId, (Range<usize>, Order)> {
    let turned = workload.network.iter().filter_map(|(layer, _)| {
        let order = workload.weight_order(layer)?;
        let weights = workload.parameters(layer).into_iter().find(|one| one.kind == ParameterKind::Weight)?;
        Some((layer, (weights.offset..weights.offset + weights.elements, order)))
    });
    turned.collect()
}

/// Whether training changes a tensor and inference needs it.
fn is_learned(tensor: &NetworkTensor) -> bool {
    matches!(tensor, NetworkTensor::Weights(_) | NetworkTensor::MasterWeights(_) | NetworkTensor::Statistics(_))
}

/// The outputs of the loss's forward passes, in sample order.
fn probabilities(commands: &Commands) -> Vec<Range<u64>> {
    let mut places = BTreeMap::new();
    for task in &commands.tasks {
        if let (Part::Loss, Pass::Forward, Some(place)) = (task.kind.behavior().part, task.pass, task.place(Role::Y)) {
            places.insert(task.first, place.bytes.clone());
        }
    }
    places.into_values().collect()
}

/// The bytes and storage types of all resident tensors that a step uses.
fn residents(
    workload: &Workload<'_>,
    lowered: &Lowered,
    schedule: &Schedule,
) -> BTreeMap<NetworkTensor, (Range<u64>, Storage)> {
    let stored = |tensor| match tensor {
        NetworkTensor::Weights(layer) => workload.parameter_storage(layer),
        _ => Storage::F32,
    };
    let computed = |action: &Action| match action {
        Action::Compute(compute) => Some(compute.operation),
        _ => None,
    };
    let computed = schedule.instructions.iter().filter_map(|instruction| computed(&instruction.action));
    let used: HashSet<_> =
        computed.flat_map(|operation| &lowered.step.operation(operation).uses).map(|used| used.tensor).collect();
    let resident = |block: &Block| match block.holds {
        Holding::Tensor(id) if block.resident && used.contains(&id) => {
            let tensor = lowered.tensors[id.0];
            let bytes = workload.bytes(tensor).0.min(block.bytes);
            Some((tensor, (block.offset..block.offset + bytes, stored(tensor))))
        }
        _ => None,
    };
    schedule.blocks.iter().filter_map(resident).collect()
}

/// Whether a run keeps a tensor between steps: what it has learned, and the solver's state.
fn is_kept(tensor: &NetworkTensor) -> bool {
    matches!(
        tensor,
        NetworkTensor::Weights(_)
            | NetworkTensor::MasterWeights(_)
            | NetworkTensor::Statistics(_)
            | NetworkTensor::Momentum(_)
            | NetworkTensor::SecondMoment(_)
    )
}
