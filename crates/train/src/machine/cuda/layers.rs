//! Prepares tasks: the calls of a layer's pass, and the parts of the arena they use.

use std::sync::Arc;

use tightfit_conv::problem::Storage;
use tightfit_conv::{Convolution, Operation, Problem};
use tightfit_cuda::layers::{
    self as cuda, BatchNorm, FullyConnected, Libraries, Lrn, Map, Pool, Session, Solver, Statistics, Work, Write,
};
use tightfit_cuda::safe::Region;
use tightfit_cuda::{CudaBackend, CudaError};
use tightfit_network::{LayerKind, Part, PoolingMethod, Shape};
use tightfit_plan::step::Phase;
use tightfit_plan::{Access, Mode, ParameterKind, Pass, Role, channel_stride};

use super::faults::{failed, range, wrong};
use crate::Error;
use crate::machine::{Operand, Task};

/// Whether a task uploads the mini-batch.
pub(super) fn is_input(task: &Task) -> bool {
    task.kind.behavior().part == Part::Input
}

/// The places of an input layer's samples and labels.
pub(super) fn input(session: &Session, task: &Task) -> Result<(Region, Option<Region>), Error> {
    let operands = Operands { session, task };
    let y = operands.map(Role::Y, task.output)?;
    let bytes = y.samples * y.shape.len() * y.storage.size();
    let labels = match operands.find(Role::Labels)? {
        Some(labels) => Some(labels.part(0..task.samples * 4).map_err(|error| failed(&task.name, error))?),
        None => None,
    };
    Ok((y.region.part(0..bytes).map_err(|error| failed(&task.name, error))?, labels))
}

/// Prepares the work of a task.
///
/// # Errors
/// [`Error::Step`] for an operand that is missing or too small, or a layer that CUDA does not support; [`Error::Core`]
/// for an unsupported configuration.
pub(super) fn prepare(
    session: &Session,
    libraries: &Arc<Libraries>,
    backend: &mut CudaBackend,
    task: &Task,
) -> Result<Vec<Work>, Error> {
    let operands = Operands { session, task };
    if let (LayerKind::Convolution { convolution, bias }, Pass::Forward | Pass::BackwardData | Pass::BackwardFilter) =
        (&task.kind, task.pass)
    {
        return operands.convolution(libraries, backend, convolution, *bias);
    }
    operands.layer(libraries)
}

/// The operands of a task in the arena.
struct Operands<'a> {
    session: &'a Session,
    task: &'a Task,
}

impl Operands<'_> {
    fn failed(&self, error: CudaError) -> Error {
        failed(&self.task.name, error)
    }

    fn region(&self, place: &Operand) -> Result<Region, Error> {
        self.session.region(range(&place.bytes)).map_err(|error| self.failed(error))
    }

    fn find(&self, role: Role) -> Result<Option<Region>, Error> {
        self.task.place(role).map(|place| self.region(place)).transpose()
    }

    fn place(&self, role: Role) -> Result<&Operand, Error> {
        let missing = || {
            wrong(&self.task.name, format!("{:?} needs {role:?}, which the schedule does not provide", self.task.pass))
        };
        self.task.place(role).ok_or_else(missing)
    }

    fn get(&self, role: Role) -> Result<Region, Error> {
        self.region(self.place(role)?)
    }

    fn map(&self, role: Role, shape: Shape) -> Result<Map, Error> {
        let storage = self.task.types.storage();
        let Task { samples, layout, .. } = *self.task;
        Ok(Map { region: self.get(role)?, samples, shape, storage, layout })
    }

    /// Whether to overwrite an operand or add to it.
    fn write(&self, role: Role) -> Result<Write, Error> {
        Ok(if self.place(role)?.access == Access::Add { Write::Add } else { Write::Overwrite })
    }

    /// The same for an operand that may share the bytes of `from`, which are then changed in place.
    fn write_from(&self, from: Role, to: Role) -> Result<Write, Error> {
        if self.same(from, to) { Ok(Write::Overwrite) } else { self.write(to) }
    }

    /// Whether two operands share their bytes.
    fn same(&self, one: Role, other: Role) -> bool {
        match (self.task.place(one), self.task.place(other)) {
            (Some(one), Some(other)) => one.bytes == other.bytes,
            _ => false,
        }
    }

    /// One of the parameters in a role's block, with the given storage type; `None` if the layer has no such parameter.
    fn parameter(&self, role: Role, kind: ParameterKind, storage: Storage) -> Result<Option<Region>, Error> {
        let Some(parameter) = self.task.parameters.iter().find(|parameter| parameter.kind == kind) else {
            return Ok(None);
        };
        let start = parameter.offset * storage.size();
        let part = start..start + parameter.elements * storage.size();
        self.get(role)?.part(part).map(Some).map_err(|error| self.failed(error))
    }

    fn needed(&self, role: Role, kind: ParameterKind, storage: Storage) -> Result<Region, Error> {
        let missing = || wrong(&self.task.name, format!("the layer has no {kind:?}"));
        self.parameter(role, kind, storage)?.ok_or_else(missing)
    }

    /// The two numbers per channel in a role's block.
    fn statistics(&self, role: Role, channels: usize) -> Result<Statistics, Error> {
        let (whole, stride) = (self.get(role)?, channel_stride(channels) * 4);
        let part = |start: usize| whole.part(start..start + channels * 4).map_err(|error| self.failed(error));
        Ok(Statistics { mean: part(0)?, deviation: part(stride)? })
    }

    fn convolution(
        &self,
        libraries: &Arc<Libraries>,
        backend: &mut CudaBackend,
        convolution: &Convolution,
        bias: bool,
    ) -> Result<Vec<Work>, Error> {
        let task = self.task;
        let storage = task.types.storage();
        let output = Shape::output_of(convolution);
        let operation = match task.pass {
            Pass::Forward => Operation::Forward,
            Pass::BackwardData => Operation::BackwardData,
            Pass::BackwardFilter | Pass::Update => Operation::BackwardFilter,
        };
        let problem = Problem::new(*convolution, operation, task.samples, task.types, task.layout)?;
        let missing = || wrong(&task.name, "the schedule has no configuration".to_owned());
        let configuration = task.configuration.as_ref().ok_or_else(missing)?;
        let (data, other, result, write) = match operation {
            Operation::Forward => {
                let w = self.needed(Role::W, ParameterKind::Weight, storage)?;
                (self.get(Role::X(0))?, w, self.get(Role::Y)?, Write::Overwrite)
            }
            Operation::BackwardData => {
                let w = self.needed(Role::W, ParameterKind::Weight, storage)?;
                (self.get(Role::Dy)?, w, self.get(Role::Dx(0))?, self.write(Role::Dx(0))?)
            }
            Operation::BackwardFilter => {
                let dw = self.needed(Role::Dw, ParameterKind::Weight, Storage::F32)?;
                (self.get(Role::X(0))?, self.get(Role::Dy)?, dw, self.write(Role::Dw)?)
            }
        };
        let workspace = match self.find(Role::Workspace)? {
            Some(workspace) => workspace,
            None => self.session.region(0..0).map_err(|error| self.failed(error))?,
        };
        let memory = cuda::Convolution { data, other, output: result, workspace, write };
        let mut works = vec![memory.prepare(libraries, backend, &problem, configuration)?];
        if bias && operation == Operation::Forward {
            let bias = self.needed(Role::W, ParameterKind::Bias, storage)?;
            let y = self.map(Role::Y, output)?;
            works.push(cuda::add_bias(libraries, &bias, &y).map_err(|error| self.failed(error))?);
        }
        if bias && operation == Operation::BackwardFilter {
            let db = self.needed(Role::Dw, ParameterKind::Bias, Storage::F32)?;
            let dy = self.map(Role::Dy, output)?;
            works.push(cuda::bias_gradient(libraries, &dy, &db, write).map_err(|error| self.failed(error))?);
        }
        Ok(works)
    }

    fn layer(&self, libraries: &Arc<Libraries>) -> Result<Vec<Work>, Error> {
        let task = self.task;
        if task.pass == Pass::Update {
            return self.update(libraries);
        }
        let forward = task.pass == Pass::Forward;
        let input = task.inputs.first().copied().unwrap_or(task.output);
        let done = |work: Result<Work, CudaError>| work.map(|work| vec![work]).map_err(|error| self.failed(error));
        match &task.kind {
            LayerKind::Flatten | LayerKind::Reshape { .. } => Ok(Vec::new()),
            LayerKind::Other(other) => {
                let what = format!("CUDA does not support `{}`; use the cpu backend", other.operator);
                Err(wrong(&task.name, what))
            }
            LayerKind::Relu if forward => {
                done(cuda::relu(libraries, &self.map(Role::X(0), input)?, &self.map(Role::Y, task.output)?))
            }
            LayerKind::Relu => {
                let (y, dy) = (self.map(Role::Y, task.output)?, self.map(Role::Dy, task.output)?);
                let write = self.write_from(Role::Dy, Role::Dx(0))?;
                done(cuda::relu_gradient(libraries, &y, &dy, &self.map(Role::Dx(0), input)?, write))
            }
            LayerKind::Pooling(pooling) => {
                let pool = Pool::new(libraries, pooling, input.extents().len()).map_err(|error| self.failed(error))?;
                if forward {
                    return done(pool.forward(&self.map(Role::X(0), input)?, &self.map(Role::Y, task.output)?));
                }
                let (dy, dx) = (self.map(Role::Dy, task.output)?, self.map(Role::Dx(0), input)?);
                let write = self.write(Role::Dx(0))?;
                if pooling.method == PoolingMethod::Average {
                    // The gradients stand in for maps that are not read.
                    return done(pool.backward([&dy, &dy, &dx], &dx, write));
                }
                let (x, y) = (self.map(Role::X(0), input)?, self.map(Role::Y, task.output)?);
                done(pool.backward([&y, &dy, &x], &dx, write))
            }
            LayerKind::Lrn { size, alpha, beta, k } => {
                let lrn = Lrn::new(libraries, *size, [*alpha, *beta, *k]).map_err(|error| self.failed(error))?;
                let (x, y) = (self.map(Role::X(0), input)?, self.map(Role::Y, task.output)?);
                if forward {
                    return done(lrn.forward(&x, &y));
                }
                let (dy, dx) = (self.map(Role::Dy, task.output)?, self.map(Role::Dx(0), input)?);
                done(lrn.backward([&y, &dy, &x], &dx, self.write(Role::Dx(0))?))
            }
            LayerKind::BatchNorm { epsilon } => self.batch_norm(libraries, *epsilon, input),
            LayerKind::Dropout { rate } => self.dropout(libraries, *rate),
            LayerKind::FullyConnected { outputs, bias } => self.fully_connected(libraries, input, *outputs, *bias),
            LayerKind::Concat => self.concat(libraries),
            LayerKind::Add => self.add(libraries),
            LayerKind::SoftmaxLoss if forward => {
                done(cuda::softmax(libraries, &self.map(Role::X(0), input)?, &self.map(Role::Y, task.output)?))
            }
            LayerKind::SoftmaxLoss => {
                let (y, dx) = (self.map(Role::Y, task.output)?, self.map(Role::Dx(0), input)?);
                let write = self.write_from(Role::Y, Role::Dx(0))?;
                done(cuda::loss_gradient(libraries, &y, &self.get(Role::Labels)?, &dx, task.batch, write))
            }
            LayerKind::Input { .. } | LayerKind::Convolution { .. } => {
                Err(wrong(&task.name, format!("the layer has no separate {:?} pass", task.pass)))
            }
        }
    }

    fn batch_norm(&self, libraries: &Arc<Libraries>, epsilon: f32, input: Shape) -> Result<Vec<Work>, Error> {
        let (task, channels) = (self.task, input.channels());
        let scale = self.needed(Role::W, ParameterKind::Scale, Storage::F32)?;
        let shift = self.needed(Role::W, ParameterKind::Shift, Storage::F32)?;
        let norm = BatchNorm::new(libraries, channels, epsilon, [&scale, &shift], task.relu);
        let norm = norm.map_err(|error| self.failed(error))?;
        let x = self.map(Role::X(0), input)?;
        if task.phase == Phase::Whole && task.samples != task.batch && task.mode == Mode::Training {
            let what = "batch normalization of a part needs the sums of the whole mini-batch";
            return Err(wrong(&task.name, what.to_owned()));
        }
        match task.pass {
            Pass::Forward => self.batch_norm_forward(&norm, &x),
            _ => self.batch_norm_backward(libraries, &norm, &x),
        }
    }

    fn batch_norm_forward(&self, norm: &Arc<BatchNorm>, x: &Map) -> Result<Vec<Work>, Error> {
        let (task, channels) = (self.task, x.shape.channels());
        let running = || self.statistics(Role::Statistics, channels);
        let saved = || self.statistics(Role::Saved, channels);
        let y = || self.map(Role::Y, task.output);
        let works = match (task.mode, task.phase) {
            (Mode::Inference, _) => vec![norm.inference(x, &y()?, &running()?)],
            (_, Phase::Sums) => vec![norm.statistics_of_part(x, &saved()?, task.before)],
            (_, Phase::Whole) if !task.again => vec![norm.training(x, &y()?, &saved()?, &running()?)],
            // The first part of a mini-batch whose statistics are complete.
            (_, Phase::Apply) if self.place(Role::Statistics)?.is_changed() => {
                let update = norm.update_running(x, task.batch, &saved()?, &running()?);
                vec![update, norm.again(x, &y()?, &saved()?)]
            }
            _ => vec![norm.again(x, &y()?, &saved()?)],
        };
        works.into_iter().map(|work| work.map_err(|error| self.failed(error))).collect()
    }

    fn batch_norm_backward(
        &self,
        libraries: &Arc<Libraries>,
        norm: &Arc<BatchNorm>,
        x: &Map,
    ) -> Result<Vec<Work>, Error> {
        let (task, channels) = (self.task, x.shape.channels());
        let dy = self.map(Role::Dy, task.output)?;
        let gradients = [
            self.needed(Role::Dw, ParameterKind::Scale, Storage::F32)?,
            self.needed(Role::Dw, ParameterKind::Shift, Storage::F32)?,
        ];
        let (gradients, saved) = (gradients.each_ref(), self.statistics(Role::Saved, channels)?);
        if task.phase == Phase::Sums {
            let work = norm.backward_parameters([x, &dy], &saved, gradients, self.write(Role::Dw)?);
            return work.map(|work| vec![work]).map_err(|error| self.failed(error));
        }
        // If nothing upstream learns, the input's gradient is still computed, and discarded.
        let (dx, write) = match self.find(Role::Dx(0))? {
            Some(_) => (self.map(Role::Dx(0), x.shape)?, self.write_from(Role::Dy, Role::Dx(0))?),
            None => {
                let bytes = x.len() * x.storage.size();
                let region = libraries.scratch(bytes).map_err(|error| self.failed(error))?;
                (Map { region, ..x.clone() }, Write::Overwrite)
            }
        };
        let maps = [x, &dy, &dx];
        let work = match task.phase {
            Phase::Apply => norm.backward_data(maps, write, &saved, gradients, task.batch),
            Phase::Whole | Phase::Sums => norm.backward(maps, write, &saved, gradients),
        };
        work.map(|work| vec![work]).map_err(|error| self.failed(error))
    }

    fn dropout(&self, libraries: &Arc<Libraries>, rate: f32) -> Result<Vec<Work>, Error> {
        let task = self.task;
        let (from, to) = if task.pass == Pass::Forward { (Role::X(0), Role::Y) } else { (Role::Dy, Role::Dx(0)) };
        let (x, y) = (self.map(from, task.output)?, self.map(to, task.output)?);
        if task.mode == Mode::Inference && self.same(from, to) {
            return Ok(Vec::new());
        }
        let write = if task.pass == Pass::Forward { Write::Overwrite } else { self.write_from(from, to)? };
        let work = if task.mode == Mode::Inference {
            cuda::copy(libraries, &x, &y, write)
        } else if task.pass == Pass::Forward && !task.again {
            let place = (task.index, task.first * task.output.len());
            cuda::dropout(libraries, &x, &y, &self.get(Role::Saved)?, rate, (place, task.order))
        } else {
            cuda::masked(libraries, &x, &y, &self.get(Role::Saved)?, rate, write)
        };
        work.map(|work| vec![work]).map_err(|error| self.failed(error))
    }

    fn fully_connected(
        &self,
        libraries: &Arc<Libraries>,
        input: Shape,
        outputs: usize,
        bias: bool,
    ) -> Result<Vec<Work>, Error> {
        let (task, storage) = (self.task, self.task.types.storage());
        let failed = |error| self.failed(error);
        let sizes = [task.samples, input.len(), outputs];
        let layer = FullyConnected::new(libraries, sizes, task.types).map_err(failed)?;
        let mut works = Vec::new();
        match task.pass {
            Pass::Forward => {
                let w = self.needed(Role::W, ParameterKind::Weight, storage)?;
                works.push(layer.forward(&self.get(Role::X(0))?, &w, &self.get(Role::Y)?).map_err(failed)?);
                if bias {
                    let bias = self.needed(Role::W, ParameterKind::Bias, storage)?;
                    works.push(cuda::add_bias(libraries, &bias, &self.map(Role::Y, task.output)?).map_err(failed)?);
                }
            }
            Pass::BackwardData => {
                let w = self.needed(Role::W, ParameterKind::Weight, storage)?;
                let (dy, dx) = (self.get(Role::Dy)?, self.get(Role::Dx(0))?);
                works.push(layer.backward_data(&dy, &w, &dx, self.write(Role::Dx(0))?).map_err(failed)?);
            }
            Pass::BackwardFilter | Pass::Update => {
                let dw = self.needed(Role::Dw, ParameterKind::Weight, Storage::F32)?;
                let (x, dy) = (self.get(Role::X(0))?, self.map(Role::Dy, task.output)?);
                works.push(layer.backward_filter(&x, &dy.region, &dw, self.write(Role::Dw)?).map_err(failed)?);
                if bias {
                    let db = self.needed(Role::Dw, ParameterKind::Bias, Storage::F32)?;
                    works.push(cuda::bias_gradient(libraries, &dy, &db, self.write(Role::Dw)?).map_err(failed)?);
                }
            }
        }
        Ok(works)
    }

    fn concat(&self, libraries: &Arc<Libraries>) -> Result<Vec<Work>, Error> {
        let (task, mut works, mut first) = (self.task, Vec::new(), 0);
        for (i, shape) in task.inputs.iter().enumerate() {
            let channels = shape.channels();
            let work = if task.pass == Pass::Forward {
                let (x, y) = (self.map(Role::X(i), *shape)?, self.map(Role::Y, task.output)?);
                Some(cuda::copy_channels(libraries, (&x, 0), (&y, first), channels, Write::Overwrite))
            } else if task.place(Role::Dx(i)).is_some() {
                let (dy, dx) = (self.map(Role::Dy, task.output)?, self.map(Role::Dx(i), *shape)?);
                Some(cuda::copy_channels(libraries, (&dy, first), (&dx, 0), channels, self.write(Role::Dx(i))?))
            } else {
                None
            };
            works.extend(work.transpose().map_err(|error| self.failed(error))?);
            first += channels;
        }
        Ok(works)
    }

    fn add(&self, libraries: &Arc<Libraries>) -> Result<Vec<Work>, Error> {
        let (task, mut works) = (self.task, Vec::new());
        for i in 0..task.inputs.len() {
            let work = if task.pass == Pass::Forward {
                if i == 0 && self.same(Role::X(0), Role::Y) {
                    continue;
                }
                let (x, y) = (self.map(Role::X(i), task.output)?, self.map(Role::Y, task.output)?);
                let is_last = i + 1 == task.inputs.len();
                if i > 0 {
                    cuda::add(libraries, &x, &y, task.relu && is_last)
                } else {
                    cuda::copy(libraries, &x, &y, Write::Overwrite)
                }
            } else {
                let there = task.place(Role::Dx(i)).is_some();
                if !there || self.same(Role::Dy, Role::Dx(i)) {
                    continue;
                }
                let (dy, dx) = (self.map(Role::Dy, task.output)?, self.map(Role::Dx(i), task.output)?);
                cuda::copy(libraries, &dy, &dx, self.write(Role::Dx(i))?)
            };
            works.push(work.map_err(|error| self.failed(error))?);
        }
        Ok(works)
    }

    fn update(&self, libraries: &Arc<Libraries>) -> Result<Vec<Work>, Error> {
        let len = self.task.parameters.last().map_or(0, |last| last.offset + last.elements);
        let stored = self.get(Role::W)?;
        let (weights, stored) = match self.find(Role::Master)? {
            Some(master) => (master, Some((stored, self.task.types.storage()))),
            None => (stored, None),
        };
        let (change, second) = (self.find(Role::Momentum)?, self.find(Role::SecondMoment)?);
        let solver = Solver { weights, gradients: self.get(Role::Dw)?, change, second, stored };
        let work = cuda::update(libraries, &solver, len);
        work.map(|work| vec![work]).map_err(|error| self.failed(error))
    }
}
