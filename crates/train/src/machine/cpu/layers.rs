//! Runs one task on the CPU: borrows the pass's operands from the arena, and computes.

use std::ops::Range;
use std::sync::MutexGuard;

use tightfit_conv::backend::Scale;
use tightfit_conv::{Convolution, Layout, Operation, Problem};
use tightfit_cpu::arena::{Arena, Read, Write};
use tightfit_cpu::layers::batch_norm::{Affine, PerChannel, PerChannelMut};
use tightfit_cpu::layers::fully_connected::Sizes;
use tightfit_cpu::layers::lrn::Normalization;
use tightfit_cpu::layers::{
    Flow, Store, activation, add, batch_norm, bias, concat, dropout, fully_connected, lrn, pooling, softmax_loss,
    solver,
};
use tightfit_cpu::{CpuBackend, Team, random};
use tightfit_network::{LayerKind, Part, Pooling, PoolingMethod, Rule};
use tightfit_plan::step::Phase;
use tightfit_plan::{Access, Mode, ParameterKind, Pass, Role, channel_stride};

use super::faults::{failed, refused};
use crate::Error;
use crate::machine::{Iteration, Operand, Task};

/// Checks that a task can be computed here, as far as known without its data.
pub fn check(backend: &CpuBackend, task: &Task) -> Result<(), Error> {
    let operand = |role| task.place(role).is_some();
    let convolution = matches!(task.kind, LayerKind::Convolution { .. }) && task.pass != Pass::Update;
    if convolution && task.configuration.is_none() {
        return Err(failed(&task.name, "the convolution has no configuration"));
    }
    let needs_all = !task.kind.behavior().samples_are_independent && task.phase == Phase::Whole;
    if needs_all && task.samples != task.batch && task.mode == Mode::Training {
        return Err(failed(&task.name, "batch normalization of a part needs the sums of the whole mini-batch"));
    }
    if let LayerKind::Other(other) = &task.kind
        && other.function.is_none()
    {
        return Err(unsupported(task, &other.operator));
    }
    if task.pass == Pass::Update && ![Role::W, Role::Dw].into_iter().all(operand) {
        return Err(failed(&task.name, "the update needs weights and their gradient"));
    }
    if let Some(gradient) = task.place(Role::Dw).filter(|place| place.access == Access::Add)
        && matches!(task.kind, LayerKind::BatchNorm { .. })
        && task.phase == Phase::Whole
    {
        return Err(failed(
            &task.name,
            format!("{gradient:?}: batch normalization at once cannot add to its gradients"),
        ));
    }
    if let (LayerKind::Convolution { convolution, .. }, Some(configuration)) = (&task.kind, &task.configuration) {
        let workspace = task.place(Role::Workspace).map_or(0, |place| place.bytes.end - place.bytes.start);
        for call in configuration.calls(&problem(task, convolution)?)? {
            backend.check(&call.part.problem, &call.algorithm, workspace)?;
        }
    }
    Ok(())
}

/// Samples one after another, and a class for each.
pub type MiniBatch = (Vec<f32>, Vec<u32>);

/// Computes a task in the arena of the device; `batch` locks the mini-batch of the step.
pub fn run<'a>(
    arena: &Arena,
    batch: impl FnOnce() -> MutexGuard<'a, MiniBatch>,
    backend: &CpuBackend,
    task: &Task,
    iteration: &Iteration,
) -> Result<(), Error> {
    let at = Runner { arena, task, team: backend.team(), iteration };
    if task.pass == Pass::Update {
        return at.update();
    }
    let forward = task.pass == Pass::Forward;
    match &task.kind {
        // Flattening computes nothing.
        kind if kind.behavior().part == Part::View => Ok(()),
        LayerKind::Input { .. } => at.input(&batch()),
        LayerKind::Convolution { convolution, .. } => at.convolution(backend, convolution),
        LayerKind::Relu if forward => at.flow(Role::X(0), Role::Y, |x| activation::forward(at.team, x)),
        LayerKind::Relu => {
            let y = at.read(Role::Y)?;
            let y = at.floats(&y)?;
            at.flow(Role::Dy, Role::Dx(0), |dy| activation::backward(at.team, y, dy))
        }
        LayerKind::Pooling(pooling) => at.pooling(pooling),
        &LayerKind::Lrn { size, alpha, beta, k } => at.lrn(Normalization { size, alpha, beta, k }),
        LayerKind::BatchNorm { epsilon } if forward => at.batch_norm_forward(*epsilon),
        LayerKind::BatchNorm { .. } => at.batch_norm_backward(),
        LayerKind::Dropout { rate } => at.dropout(*rate),
        LayerKind::FullyConnected { .. } => at.fully_connected(),
        LayerKind::Concat => at.concat(),
        LayerKind::Add => at.add(),
        LayerKind::SoftmaxLoss => at.softmax_loss(),
        LayerKind::Other(other) => match &other.function {
            Some(function) => at.function(function),
            None => Err(unsupported(task, &other.operator)),
        },
        kind => Err(failed(&task.name, format!("the CPU does not support `{}` layers", kind.name()))),
    }
}

fn unsupported(task: &Task, operator: &str) -> Error {
    failed(&task.name, format!("the CPU does not support `{operator}`"))
}

/// A convolution's problem for the samples of a task.
fn problem(task: &Task, convolution: &Convolution) -> Result<Problem, Error> {
    let operation = match task.pass {
        Pass::Forward => Operation::Forward,
        Pass::BackwardData => Operation::BackwardData,
        Pass::BackwardFilter | Pass::Update => Operation::BackwardFilter,
    };
    Ok(Problem::new(*convolution, operation, task.samples, task.types, Layout::Nchw)?)
}

/// A running task.
pub(super) struct Runner<'a> {
    arena: &'a Arena,
    pub(super) task: &'a Task,
    pub(super) team: &'a Team,
    pub(super) iteration: &'a Iteration,
}

impl<'a> Runner<'a> {
    fn place(&self, role: Role) -> Result<&'a Operand, Error> {
        self.task.place(role).ok_or_else(|| failed(&self.task.name, format!("the schedule has no operand {role:?}")))
    }

    pub(super) fn has(&self, role: Role) -> bool {
        self.task.place(role).is_some()
    }

    pub(super) fn read(&self, role: Role) -> Result<Read<'a>, Error> {
        self.arena.read(self.place(role)?.bytes.clone()).map_err(|error| refused(&self.task.name, error))
    }

    /// Borrows an operand for writing; also returns whether to add to it.
    pub(super) fn write(&self, role: Role) -> Result<(Write<'a>, Store), Error> {
        let place = self.place(role)?;
        let store = match place.access {
            Access::Write => Store::Write,
            Access::Add => Store::Add,
            Access::Read => return Err(failed(&self.task.name, format!("the schedule only allows reading {role:?}"))),
        };
        let bytes = self.arena.write(place.bytes.clone()).map_err(|error| refused(&self.task.name, error))?;
        Ok((bytes, store))
    }

    pub(super) fn floats<'b>(&self, bytes: &'b Read<'_>) -> Result<&'b [f32], Error> {
        bytes.elements().map_err(|error| refused(&self.task.name, error))
    }

    pub(super) fn floats_mut<'b>(&self, bytes: &'b mut Write<'_>) -> Result<&'b mut [f32], Error> {
        bytes.elements().map_err(|error| refused(&self.task.name, error))
    }

    /// Whether two operands share their bytes, so that the layer works in place.
    pub(super) fn same(&self, one: Role, other: Role) -> bool {
        let bytes = |role| self.task.place(role).map(|place| &place.bytes);
        bytes(one).is_some() && bytes(one) == bytes(other)
    }

    /// Computes element by element from one operand to another, or in place.
    pub(super) fn flow(&self, from: Role, to: Role, compute: impl FnOnce(Flow)) -> Result<(), Error> {
        let (mut target, store) = self.write(to)?;
        if self.same(from, to) {
            compute(Flow::InPlace(self.floats_mut(&mut target)?));
        } else {
            let source = self.read(from)?;
            compute(Flow::Between(self.floats(&source)?, self.floats_mut(&mut target)?, store));
        }
        Ok(())
    }

    /// The range of a parameter among the elements of its block.
    pub(super) fn parameter(&self, kind: ParameterKind) -> Option<Range<usize>> {
        let found = self.task.parameters.iter().find(|parameter| parameter.kind == kind);
        found.map(|parameter| parameter.offset..parameter.offset + parameter.elements)
    }

    pub(super) fn needed(&self, kind: ParameterKind) -> Result<Range<usize>, Error> {
        self.parameter(kind).ok_or_else(|| failed(&self.task.name, format!("the layer has no {kind:?}")))
    }

    /// Elements of one channel of the output.
    pub(super) fn positions(&self) -> usize {
        self.task.output.extents3().iter().product()
    }

    fn input(&self, batch: &MiniBatch) -> Result<(), Error> {
        let Task { first, samples, output, .. } = self.task;
        let (mut y, _) = self.write(Role::Y)?;
        let part = first * output.len()..(first + samples) * output.len();
        let given = batch.0.get(part).ok_or_else(|| failed(&self.task.name, "no mini-batch was fed"))?;
        self.floats_mut(&mut y)?.copy_from_slice(given);
        if self.has(Role::Labels) {
            let (mut labels, _) = self.write(Role::Labels)?;
            let labels = labels.elements::<u32>().map_err(|error| refused(&self.task.name, error))?;
            let given = batch.1.get(*first..first + samples);
            labels.copy_from_slice(given.ok_or_else(|| failed(&self.task.name, "labels are missing"))?);
        }
        Ok(())
    }

    fn convolution(&self, backend: &CpuBackend, convolution: &Convolution) -> Result<(), Error> {
        let problem = problem(self.task, convolution)?;
        let configuration = self.task.configuration.as_ref();
        let configuration = configuration.ok_or_else(|| failed(&self.task.name, "no configuration"))?;
        let (data, other, output) = match self.task.pass {
            Pass::Forward => (Role::X(0), Role::W, Role::Y),
            Pass::BackwardData => (Role::Dy, Role::W, Role::Dx(0)),
            _ => (Role::X(0), Role::Dy, Role::Dw),
        };
        let weight = self.needed(ParameterKind::Weight)?;
        let part = |role, all: Range<usize>| if matches!(role, Role::W | Role::Dw) { weight.clone() } else { all };
        let (data, second) = (self.read(data)?, self.read(other)?);
        let (data, all) = (self.floats(&data)?, self.floats(&second)?);
        let inputs = (data, &all[part(other, 0..all.len())]);
        let mut workspace = match self.has(Role::Workspace) {
            true => Some(self.write(Role::Workspace)?.0),
            false => None,
        };
        let workspace = match &mut workspace {
            Some(bytes) => self.floats_mut(bytes)?,
            None => &mut [],
        };
        let (mut bytes, store) = self.write(output)?;
        let target = self.floats_mut(&mut bytes)?;
        let scale = Scale { alpha: 1.0, beta: store.beta() };
        let range = part(output, 0..target.len());
        backend.run_in(&problem, configuration, inputs, &mut target[range], scale, workspace)?;
        match (self.task.pass, self.parameter(ParameterKind::Bias)) {
            (Pass::Forward, Some(numbers)) => bias::forward(self.team, &all[numbers], self.positions(), target),
            (Pass::BackwardFilter, Some(numbers)) => {
                bias::backward(self.team, all, self.positions(), &mut target[numbers], store);
            }
            _ => {}
        }
        Ok(())
    }

    fn fully_connected(&self) -> Result<(), Error> {
        let inputs = self.task.inputs.first().map_or(0, |shape| shape.len());
        let sizes = Sizes { samples: self.task.samples, inputs, outputs: self.task.output.len() };
        let (weight, numbers) = (self.needed(ParameterKind::Weight)?, self.parameter(ParameterKind::Bias));
        match self.task.pass {
            Pass::Forward => {
                let (x, w, (mut y, _)) = (self.read(Role::X(0))?, self.read(Role::W)?, self.write(Role::Y)?);
                let (x, w, y) = (self.floats(&x)?, self.floats(&w)?, self.floats_mut(&mut y)?);
                fully_connected::forward(self.team, sizes, x, &w[weight], numbers.map(|range| &w[range]), y);
            }
            Pass::BackwardData => {
                let (dy, w, (mut dx, store)) = (self.read(Role::Dy)?, self.read(Role::W)?, self.write(Role::Dx(0))?);
                let (dy, w, dx) = (self.floats(&dy)?, self.floats(&w)?, self.floats_mut(&mut dx)?);
                fully_connected::backward_data(self.team, sizes, dy, &w[weight], dx, store);
            }
            _ => {
                let (x, dy, (mut dw, store)) = (self.read(Role::X(0))?, self.read(Role::Dy)?, self.write(Role::Dw)?);
                let (x, dy, dw) = (self.floats(&x)?, self.floats(&dy)?, self.floats_mut(&mut dw)?);
                fully_connected::backward_filter(self.team, sizes, x, dy, &mut dw[weight], store);
                if let Some(range) = numbers {
                    bias::backward(self.team, dy, 1, &mut dw[range], store);
                }
            }
        }
        Ok(())
    }

    fn pooling(&self, by: &Pooling) -> Result<(), Error> {
        if self.task.pass == Pass::Forward {
            let (x, (mut y, _)) = (self.read(Role::X(0))?, self.write(Role::Y)?);
            pooling::forward(self.team, by, self.floats(&x)?, self.floats_mut(&mut y)?);
            return Ok(());
        }
        let (dy, (mut dx, store)) = (self.read(Role::Dy)?, self.write(Role::Dx(0))?);
        let (dy, dx) = (self.floats(&dy)?, self.floats_mut(&mut dx)?);
        if by.method == PoolingMethod::Average {
            pooling::backward(self.team, by, (None, None), dy, dx, store);
        } else {
            let (x, y) = (self.read(Role::X(0))?, self.read(Role::Y)?);
            let maps = (Some(self.floats(&x)?), Some(self.floats(&y)?));
            pooling::backward(self.team, by, maps, dy, dx, store);
        }
        Ok(())
    }

    fn lrn(&self, by: Normalization) -> Result<(), Error> {
        let (channels, positions) = (self.task.output.channels(), self.positions());
        let x = self.read(Role::X(0))?;
        let x = self.floats(&x)?;
        if self.task.pass == Pass::Forward {
            let (mut y, _) = self.write(Role::Y)?;
            lrn::forward(self.team, by, channels, positions, x, self.floats_mut(&mut y)?);
        } else {
            let (y, dy, (mut dx, store)) = (self.read(Role::Y)?, self.read(Role::Dy)?, self.write(Role::Dx(0))?);
            let (y, dy, dx) = (self.floats(&y)?, self.floats(&dy)?, self.floats_mut(&mut dx)?);
            lrn::backward(self.team, by, channels, positions, (x, y), dy, dx, store);
        }
        Ok(())
    }

    fn batch_norm_forward(&self, epsilon: f32) -> Result<(), Error> {
        let (channels, positions) = (self.task.output.channels(), self.positions());
        let stride = channel_stride(channels);
        let x = self.read(Role::X(0))?;
        let x = self.floats(&x)?;
        if self.task.mode == Mode::Training && self.task.phase != Phase::Apply && !self.task.again {
            self.batch_norm_statistics(epsilon, x)?;
        }
        if self.task.phase == Phase::Sums {
            return Ok(());
        }
        let (w, (mut y, _)) = (self.read(Role::W)?, self.write(Role::Y)?);
        let (w, y) = (self.floats(&w)?, self.floats_mut(&mut y)?);
        let (scales, shifts) = (&w[self.needed(ParameterKind::Scale)?], &w[self.needed(ParameterKind::Shift)?]);
        let relu = self.task.relu;
        if self.task.mode == Mode::Inference {
            let running = self.read(Role::Statistics)?;
            let (means, variances) = self.floats(&running)?.split_at(stride);
            let inverses = batch_norm::inverse(epsilon, &variances[..channels]);
            let by = Affine { means: &means[..channels], inverses: &inverses, scales, shifts, relu };
            batch_norm::forward(self.team, by, positions, x, y);
            return Ok(());
        }
        let saved = self.read(Role::Saved)?;
        let (means, inverses) = self.floats(&saved)?.split_at(stride);
        let (means, inverses) = (&means[..channels], &inverses[..channels]);
        // The first part of a mini-batch whose statistics are complete.
        if self.task.phase == Phase::Apply && self.task.place(Role::Statistics).is_some_and(Operand::is_changed) {
            let (mut running, _) = self.write(Role::Statistics)?;
            let (running_means, variances) = self.floats_mut(&mut running)?.split_at_mut(stride);
            let running = PerChannelMut(&mut running_means[..channels], &mut variances[..channels]);
            batch_norm::move_running(epsilon, self.task.batch * positions, PerChannel(means, inverses), running);
        }
        let by = Affine { means, inverses, scales, shifts, relu };
        batch_norm::forward(self.team, by, positions, x, y);
        Ok(())
    }

    /// Saves the statistics of the mini-batch, or adds the statistics of a part.
    fn batch_norm_statistics(&self, epsilon: f32, x: &[f32]) -> Result<(), Error> {
        let (channels, positions) = (self.task.output.channels(), self.positions());
        let stride = channel_stride(channels);
        let (mut saved, store) = self.write(Role::Saved)?;
        let (means, inverses) = self.floats_mut(&mut saved)?.split_at_mut(stride);
        let saved = PerChannelMut(&mut means[..channels], &mut inverses[..channels]);
        if self.task.phase == Phase::Sums {
            match store {
                Store::Write => batch_norm::statistics(self.team, epsilon, positions, x, saved, None),
                Store::Add => {
                    let before = self.task.before * positions;
                    batch_norm::add_statistics(self.team, epsilon, positions, x, saved, before);
                }
            }
            return Ok(());
        }
        let (mut running, _) = self.write(Role::Statistics)?;
        let (means, variances) = self.floats_mut(&mut running)?.split_at_mut(stride);
        let running = PerChannelMut(&mut means[..channels], &mut variances[..channels]);
        batch_norm::statistics(self.team, epsilon, positions, x, saved, Some(running));
        Ok(())
    }

    fn batch_norm_backward(&self) -> Result<(), Error> {
        let (channels, positions) = (self.task.output.channels(), self.positions());
        let (scale, shift) = (self.needed(ParameterKind::Scale)?, self.needed(ParameterKind::Shift)?);
        let (x, dy, saved) = (self.read(Role::X(0))?, self.read(Role::Dy)?, self.read(Role::Saved)?);
        let (x, dy) = (self.floats(&x)?, self.floats(&dy)?);
        let (means, inverses) = self.floats(&saved)?.split_at(channel_stride(channels));
        let w = self.read(Role::W)?;
        let w = self.floats(&w)?;
        let by = Affine {
            means: &means[..channels],
            inverses: &inverses[..channels],
            scales: &w[scale.clone()],
            shifts: &w[shift.clone()],
            relu: self.task.relu,
        };
        if self.task.phase != Phase::Apply {
            let (mut dw, store) = self.write(Role::Dw)?;
            let (scales, shifts) = self.floats_mut(&mut dw)?.split_at_mut(shift.start);
            let out = PerChannelMut(&mut scales[scale.clone()], &mut shifts[..channels]);
            batch_norm::backward_parameters(self.team, by, positions, (x, dy), out, store);
        }
        if self.task.phase != Phase::Sums && self.has(Role::Dx(0)) {
            let (dw, (mut dx, store)) = (self.read(Role::Dw)?, self.write(Role::Dx(0))?);
            let (dw, dx) = (self.floats(&dw)?, self.floats_mut(&mut dx)?);
            let gradients = PerChannel(&dw[scale], &dw[shift]);
            let sizes = (positions, self.task.batch * positions);
            batch_norm::backward_data(self.team, by, gradients, sizes, (x, dy), dx, store);
        }
        Ok(())
    }

    fn dropout(&self, rate: f32) -> Result<(), Error> {
        let (from, to) = match self.task.pass {
            Pass::Forward => (Role::X(0), Role::Y),
            _ => (Role::Dy, Role::Dx(0)),
        };
        if self.task.mode == Mode::Inference {
            return if self.same(from, to) { Ok(()) } else { self.flow(from, to, |x| x.map(self.team, |_, x| x)) };
        }
        if self.task.pass == Pass::Forward && !self.task.again {
            let Iteration { seed, step, .. } = *self.iteration;
            let key = random::key(&[seed, self.task.index as u64, step]);
            let first = self.task.first as u64 * self.task.output.len() as u64;
            let (mut mask, _) = self.write(Role::Saved)?;
            dropout::draw(self.team, rate, key, first, &mut mask);
        }
        let mask = self.read(Role::Saved)?;
        self.flow(from, to, |values| dropout::apply(self.team, rate, &mask, values))
    }

    fn concat(&self) -> Result<(), Error> {
        let length = self.task.output.len();
        let mut start = 0;
        for (number, shape) in self.task.inputs.iter().enumerate() {
            let range = start..start + shape.len();
            start = range.end;
            if self.task.pass == Pass::Forward {
                let (x, (mut y, _)) = (self.read(Role::X(number))?, self.write(Role::Y)?);
                concat::forward(self.team, self.floats(&x)?, self.floats_mut(&mut y)?, range, length);
            } else if self.has(Role::Dx(number)) {
                let (dy, (mut dx, store)) = (self.read(Role::Dy)?, self.write(Role::Dx(number))?);
                concat::backward(self.team, self.floats(&dy)?, self.floats_mut(&mut dx)?, range, length, store);
            }
        }
        Ok(())
    }

    fn add(&self) -> Result<(), Error> {
        let inputs = 0..self.task.inputs.len();
        if self.task.pass != Pass::Forward {
            let given = inputs.map(Role::Dx).filter(|&dx| self.has(dx) && !self.same(Role::Dy, dx));
            return given.into_iter().try_for_each(|dx| self.flow(Role::Dy, dx, |dy| add::backward(self.team, dy)));
        }
        let (mut y, _) = self.write(Role::Y)?;
        let y = self.floats_mut(&mut y)?;
        let in_place = self.same(Role::X(0), Role::Y);
        let maps = inputs.skip(usize::from(in_place)).map(|number| self.read(Role::X(number)));
        let maps = maps.collect::<Result<Vec<_>, Error>>()?;
        let mut maps = maps.iter().map(|map| self.floats(map)).collect::<Result<Vec<_>, Error>>()?;
        let first = (!in_place && !maps.is_empty()).then(|| maps.remove(0));
        add::forward(self.team, first, &maps, y);
        if self.task.relu {
            activation::forward(self.team, Flow::InPlace(y));
        }
        Ok(())
    }

    fn softmax_loss(&self) -> Result<(), Error> {
        let classes = self.task.output.len();
        if self.task.pass == Pass::Forward {
            return self.flow(Role::X(0), Role::Y, |x| softmax_loss::forward(self.team, classes, x));
        }
        let (y, labels, (mut dx, store)) = (self.read(Role::Y)?, self.read(Role::Labels)?, self.write(Role::Dx(0))?);
        let labels = labels.elements::<u32>().map_err(|error| refused(&self.task.name, error))?;
        let factor = self.iteration.loss_scale / self.task.batch as f32;
        softmax_loss::backward(self.team, classes, self.floats(&y)?, labels, factor, self.floats_mut(&mut dx)?, store);
        Ok(())
    }

    fn update(&self) -> Result<(), Error> {
        let Iteration { rule, loss_scale, step, .. } = *self.iteration;
        let (dw, (mut w, _)) = (self.read(Role::Dw)?, self.write(Role::W)?);
        let (dw, w) = (self.floats(&dw)?, self.floats_mut(&mut w)?);
        let mut momentum = self.task.place(Role::Momentum).map(|_| self.write(Role::Momentum)).transpose()?;
        let mut v = momentum.as_mut().map(|(v, _)| self.floats_mut(v)).transpose()?;
        let mut second = self.task.place(Role::SecondMoment).map(|_| self.write(Role::SecondMoment)).transpose()?;
        let mut second = second.as_mut().map(|(second, _)| self.floats_mut(second)).transpose()?;
        for parameter in &self.task.parameters {
            let range = parameter.offset..parameter.offset + parameter.elements;
            let (w, dw, v) = (&mut w[range.clone()], &dw[range.clone()], v.as_mut().map(|v| &mut v[range.clone()]));
            match (rule, v, second.as_mut().map(|second| &mut second[range])) {
                (Rule::Sgd(sgd), v, _) => solver::update(self.team, sgd, loss_scale, w, dw, v),
                (Rule::AdamW(adamw), Some(m), Some(v)) => {
                    solver::adamw(self.team, adamw, step, loss_scale, (w, dw), (m, v));
                }
                (Rule::AdamW(_), ..) => return Err(failed(&self.task.name, "the schedule has no moments for AdamW")),
            }
        }
        Ok(())
    }
}
