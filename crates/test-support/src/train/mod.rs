//! A schedule written without any policy: every tensor has separate bytes from the beginning of the step to its end. And
//! small networks (`networks`), and the results of a step to the bit (`bits`).

pub mod bits;
pub mod networks;

use std::collections::{HashMap, HashSet};

use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, DivisionCost, Layout, Operation, Problem, Types};
use tightfit_cpu::CpuBackend;
use tightfit_network::{LayerId, LayerKind, Network, ParameterPass, Part};
use tightfit_plan::{
    ALIGNMENT, Access, Action, Block, BlockId, Compute, Holding, Instruction, Lowered, Mode, NetworkTensor, Pass, Role,
    Schedule, Stream, TensorId, Workload, footprint, step::GroupId, step::OperationId, step::Phase,
};
use tightfit_units::{Bytes, Nanos};

/// Threads of every test: workspaces depend on them.
pub const THREADS: usize = 2;

/// A small network with forks and joins, as in GoogLeNet.
pub fn fork_and_join() -> Network {
    networks::fork_and_join(12, 4).unwrap()
}

/// A small network with sums of branches.
pub fn sums() -> Network {
    networks::sums(10, 4).unwrap()
}

/// A small residual network.
pub fn residual() -> Network {
    networks::residual(10, [6, 8]).unwrap()
}

/// A small network of dense steps, with local response normalization.
pub fn dense() -> Network {
    networks::dense(12, 4).unwrap()
}

/// The samples and labels of a step: the same for the same number.
pub fn batch(workload: &Workload<'_>, step: u64) -> (Vec<f32>, Vec<u32>) {
    let sample = workload.network.layers()[0].shape.len();
    let key = tightfit_cpu::random::key(&[99, step]);
    let samples = (0..(workload.batch * sample) as u64).map(|i| tightfit_cpu::random::uniform(key, i)).collect();
    let labels = (0..workload.batch as u64).map(|n| tightfit_cpu::random::bits(!key, n) % 10).collect();
    (samples, labels)
}

/// One algorithm on micro-batches of at most this number of samples.
pub fn configuration(problem: &Problem, algorithm: &str, micro_batch: usize) -> Configuration {
    let mut backend = CpuBackend::new(Some(THREADS));
    let algorithm = Algorithm::new(algorithm);
    let mut left = problem.batch();
    let mut parts = Vec::new();
    while left > 0 {
        let size = micro_batch.min(left);
        let workspace = backend.workspace(&problem.with_batch(size).unwrap(), &algorithm).unwrap();
        parts.push(Candidate { micro_batch: size, algorithm: algorithm.clone(), time: Nanos(1000), workspace });
        left -= size;
    }
    Configuration::new(parts, DivisionCost::default())
}

/// The whole schedule.
pub fn everything_resident(workload: &Workload<'_>, algorithm: &str, micro_batch: usize) -> Schedule {
    let mut writer = Writer {
        workload,
        lowered: workload.lower().unwrap(),
        algorithm,
        micro_batch,
        blocks: Vec::new(),
        of: HashMap::new(),
        instructions: Vec::new(),
        added_to: HashSet::new(),
        end: 0,
    };
    let layers: Vec<LayerId> = workload.network.iter().map(|(id, _)| id).collect();
    layers.iter().for_each(|&id| writer.forward(id));
    if workload.mode == Mode::Training {
        layers.iter().rev().for_each(|&id| writer.backward(id));
    }
    let blocks = std::mem::take(&mut writer.blocks);
    let live = blocks.iter().enumerate().filter(|(_, block)| !block.resident).map(|(id, _)| BlockId(id));
    let run_free = |action| Instruction { stream: Stream::Compute, action };
    let mut instructions: Vec<Instruction> = live.clone().map(|id| run_free(Action::Allocate(id))).collect();
    instructions.append(&mut writer.instructions);
    instructions.extend(live.map(|id| run_free(Action::Release(id))));
    Schedule {
        batch: workload.batch,
        types: workload.types,
        device_bytes: Bytes(writer.end),
        host_bytes: Bytes::ZERO,
        blocks,
        host_blocks: Vec::new(),
        instructions,
    }
}

/// A tensor as a pass uses it.
#[derive(Clone, Debug)]
struct Operand {
    role: Role,
    block: BlockId,
    access: Access,
}

struct Writer<'a> {
    workload: &'a Workload<'a>,
    lowered: Lowered,
    algorithm: &'a str,
    micro_batch: usize,
    blocks: Vec<Block>,
    of: HashMap<NetworkTensor, BlockId>,
    instructions: Vec<Instruction>,
    /// Gradients that hold something.
    added_to: HashSet<NetworkTensor>,
    end: u64,
}

impl Writer<'_> {
    fn block(&mut self, tensor: NetworkTensor, bytes: u64) -> BlockId {
        if let Some(&id) = self.of.get(&tensor) {
            return id;
        }
        let resident = matches!(
            tensor,
            NetworkTensor::Weights(_)
                | NetworkTensor::MasterWeights(_)
                | NetworkTensor::WeightGradient(_)
                | NetworkTensor::Momentum(_)
                | NetworkTensor::SecondMoment(_)
                | NetworkTensor::Statistics(_)
        );
        let id = BlockId(self.blocks.len());
        let known = self.lowered.tensors.iter().position(|known| *known == tensor);
        let holds = match tensor {
            NetworkTensor::Workspace(layer) => Holding::Workspace(GroupId(layer.index())),
            tensor => Holding::Tensor(TensorId(known.unwrap_or_else(|| panic!("the step has no {tensor:?}")))),
        };
        self.blocks.push(Block { holds, offset: self.end, bytes, samples: 0..self.workload.batch, resident });
        self.end += footprint(bytes).max(ALIGNMENT);
        if !matches!(tensor, NetworkTensor::Workspace(_)) {
            self.of.insert(tensor, id);
        }
        id
    }

    fn operand(&mut self, role: Role, tensor: NetworkTensor, access: Access) -> Operand {
        let block = self.block(tensor, self.workload.bytes(tensor).0);
        Operand { role, block, access }
    }

    fn map(&self, layer: LayerId) -> NetworkTensor {
        NetworkTensor::FeatureMap(self.workload.maps.written_by(layer))
    }

    fn gradient(&self, layer: LayerId) -> NetworkTensor {
        NetworkTensor::Gradient(self.workload.maps.written_by(layer))
    }

    fn compute(&mut self, layer: LayerId, pass: Pass, mut operands: Vec<Operand>) {
        if self.lowered.passes.iter().any(|one| one.relu == Some(layer) && one.pass == pass) {
            return;
        }
        let operation = match pass {
            Pass::Forward => Some(Operation::Forward),
            Pass::BackwardData => Some(Operation::BackwardData),
            Pass::BackwardFilter => Some(Operation::BackwardFilter),
            Pass::Update => None,
        };
        let configuration = match (&self.workload.network.layer(layer).kind, operation) {
            (LayerKind::Convolution { convolution, .. }, Some(operation)) => {
                // The CPU's algorithms for all types. Another machine takes its own.
                let batch = self.workload.batch;
                let problem = Problem::new(*convolution, operation, batch, Types::F32, Layout::Nchw).unwrap();
                Some(configuration(&problem, self.algorithm, self.micro_batch))
            }
            _ => None,
        };
        let bytes = configuration.as_ref().map(|c| c.workspace().0).filter(|&bytes| bytes > 0);
        let workspace = bytes.map(|bytes| self.block(NetworkTensor::Workspace(layer), bytes));
        let samples = 0..self.workload.batch;
        // The step has the values that are derived here, in any order of its operands.
        let place = self.lowered.passes.iter().position(|one| one.layer == layer && one.pass == pass).unwrap();
        let (roles, operation) = (&self.lowered.passes[place].roles, OperationId(place));
        let uses = &self.lowered.step.operation(operation).uses;
        let mut blocks = Vec::new();
        for (role, used) in roles.iter().zip(uses) {
            let at = operands.iter().position(|operand| (operand.role, operand.access) == (*role, used.access));
            blocks.push(operands.remove(at.unwrap_or_else(|| panic!("{layer:?} {pass:?} has no {role:?}"))).block);
        }
        assert!(operands.is_empty(), "{layer:?} {pass:?} does not use {operands:?}");
        let compute = Compute {
            operation,
            phase: Phase::Whole,
            blocks,
            workspace,
            samples,
            configuration,
            again: false,
            adds: false,
        };
        self.instructions.push(Instruction { stream: Stream::Compute, action: Action::Compute(Box::new(compute)) });
    }

    fn forward(&mut self, id: LayerId) {
        let layer = self.workload.network.layer(id).clone();
        if layer.kind.behavior().part == Part::View {
            return;
        }
        let mut operands = Vec::new();
        for (number, &input) in layer.inputs.iter().enumerate() {
            operands.push(self.operand(Role::X(number), self.map(input), Access::Read));
        }
        operands.push(self.operand(Role::Y, self.map(id), Access::Write));
        if layer.parameters > 0 {
            operands.push(self.operand(Role::W, NetworkTensor::Weights(id), Access::Read));
        }
        let training = self.workload.mode == Mode::Training;
        match layer.kind {
            LayerKind::Input { .. } => operands.push(self.operand(Role::Labels, NetworkTensor::Labels, Access::Write)),
            LayerKind::BatchNorm { .. } => {
                let access = if training { Access::Add } else { Access::Read };
                operands.push(self.operand(Role::Statistics, NetworkTensor::Statistics(id), access));
            }
            _ => {}
        }
        if training && matches!(layer.kind, LayerKind::BatchNorm { .. } | LayerKind::Dropout { .. }) {
            operands.push(self.operand(Role::Saved, NetworkTensor::Saved(id), Access::Write));
        }
        self.compute(id, Pass::Forward, operands);
    }

    /// The operand of an input's gradient: the first layer with one writes it, the others add to it.
    fn input_gradient(&mut self, id: LayerId, number: usize) -> Option<Operand> {
        let input = self.workload.network.layer(id).inputs[number];
        let gradient = self.gradient(input);
        if !self.workload.maps.get(self.workload.maps.written_by(input)).gradient {
            return None;
        }
        let in_place = gradient == self.gradient(id);
        let access = if self.added_to.insert(gradient) || in_place { Access::Write } else { Access::Add };
        Some(self.operand(Role::Dx(number), gradient, access))
    }

    fn backward(&mut self, id: LayerId) {
        let layer = self.workload.network.layer(id).clone();
        let needs_gradient = self.workload.maps.get(self.workload.maps.written_by(id)).gradient;
        if matches!(layer.kind.behavior().part, Part::Input | Part::View) || !needs_gradient {
            return;
        }
        let reads = layer.kind.behavior().backward;
        let mut given = Vec::new();
        if layer.kind == LayerKind::SoftmaxLoss {
            given.push(self.operand(Role::Labels, NetworkTensor::Labels, Access::Read));
        } else {
            given.push(self.operand(Role::Dy, self.gradient(id), Access::Read));
        }
        if reads.inputs {
            for (number, &input) in layer.inputs.iter().enumerate() {
                given.push(self.operand(Role::X(number), self.map(input), Access::Read));
            }
        }
        if reads.output {
            given.push(self.operand(Role::Y, self.map(id), Access::Read));
        }
        if reads.saved {
            given.push(self.operand(Role::Saved, NetworkTensor::Saved(id), Access::Read));
        }
        let by_filter = matches!(layer.kind, LayerKind::Convolution { .. } | LayerKind::FullyConnected { .. });
        let trains = self.workload.trains(id);
        if by_filter && trains {
            let mut operands = given.clone();
            operands.push(self.operand(Role::Dw, NetworkTensor::WeightGradient(id), Access::Write));
            self.compute(id, Pass::BackwardFilter, operands);
        }
        let mut gradients = Vec::new();
        for number in 0..layer.inputs.len() {
            let shared = self.gradient(layer.inputs[number]) == self.gradient(id);
            if layer.kind == LayerKind::Add && shared {
                continue;
            }
            gradients.extend(self.input_gradient(id, number));
        }
        let with_data = layer.parameters > 0 && layer.kind.behavior().parameter_pass == ParameterPass::WithData;
        if !gradients.is_empty() || with_data && trains {
            let mut operands = given;
            operands.retain(|operand| !by_filter || operand.role == Role::Dy);
            operands.append(&mut gradients);
            if layer.parameters > 0 {
                operands.push(self.operand(Role::W, NetworkTensor::Weights(id), Access::Read));
            }
            if with_data {
                operands.push(self.operand(Role::Dw, NetworkTensor::WeightGradient(id), Access::Write));
            }
            self.compute(id, Pass::BackwardData, operands);
        }
        if trains {
            let mut operands = vec![
                self.operand(Role::W, NetworkTensor::Weights(id), Access::Add),
                self.operand(Role::Dw, NetworkTensor::WeightGradient(id), Access::Read),
            ];
            if self.workload.momentum {
                operands.push(self.operand(Role::Momentum, NetworkTensor::Momentum(id), Access::Add));
            }
            if self.workload.second_moment {
                operands.push(self.operand(Role::SecondMoment, NetworkTensor::SecondMoment(id), Access::Add));
            }
            if self.workload.has_master_weights(id) {
                operands.push(self.operand(Role::Master, NetworkTensor::MasterWeights(id), Access::Add));
            }
            self.compute(id, Pass::Update, operands);
        }
    }
}
