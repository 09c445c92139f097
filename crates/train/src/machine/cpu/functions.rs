//! Runs the layers that are known by a [`Function`].

use tightfit_cpu::layers::fully_connected::Sizes;
use tightfit_cpu::layers::{
    Store, activation, bias, drop_samples, fully_connected, layer_norm, multiply, resize, scale, transpose,
};
use tightfit_cpu::random;
use tightfit_network::{Activation, Function, Sampling, Shape};
use tightfit_plan::{Mode, ParameterKind, Pass, Role};

use super::layers::Runner;
use crate::Error;
use crate::machine::Iteration;

impl Runner<'_> {
    /// Computes a pass of a function.
    pub(super) fn function(&self, function: &Function) -> Result<(), Error> {
        match function {
            Function::Activation(by) => self.activation(*by),
            Function::Multiply => self.multiply(),
            Function::Scale => self.scale(),
            Function::LayerNorm { epsilon } => self.layer_norm(*epsilon),
            Function::Linear { outputs, .. } => self.linear(*outputs),
            Function::Transpose { order } => self.transpose(order),
            Function::Resize { sampling, extents } => self.resize(*sampling, extents),
            Function::DropSamples { rate } => self.drop_samples(*rate),
        }
    }

    fn is_forward(&self) -> bool {
        self.task.pass == Pass::Forward
    }

    fn shape_of(&self, place: usize) -> Shape {
        self.task.inputs.get(place).copied().unwrap_or(self.task.output)
    }

    fn activation(&self, by: Activation) -> Result<(), Error> {
        if self.is_forward() {
            return self.flow(Role::X(0), Role::Y, |x| activation::forward_by(self.team, by, x));
        }
        let known = self.read(if by.reads_output() { Role::Y } else { Role::X(0) })?;
        let known = self.floats(&known)?;
        self.flow(Role::Dy, Role::Dx(0), |dy| activation::backward_by(self.team, by, known, dy))
    }

    /// One input is the map, the other the factor, which is as long or shorter.
    fn multiply(&self) -> Result<(), Error> {
        let lengths = [self.shape_of(0).len(), self.shape_of(1).len()];
        let (map, factor) = if lengths[0] < lengths[1] { (1, 0) } else { (0, 1) };
        let positions = lengths[map] / lengths[factor].max(1);
        if self.is_forward() {
            let (x, f, (mut y, _)) = (self.read(Role::X(map))?, self.read(Role::X(factor))?, self.write(Role::Y)?);
            multiply::forward(self.team, positions, self.floats(&x)?, self.floats(&f)?, self.floats_mut(&mut y)?);
            return Ok(());
        }
        // In the order of the inputs: inputs of one map share a gradient, which the first writes and the second adds to.
        for place in [0, 1] {
            if !self.has(Role::Dx(place)) {
                continue;
            }
            let (dy, other) = (self.read(Role::Dy)?, self.read(Role::X(1 - place))?);
            let (dy, other) = (self.floats(&dy)?, self.floats(&other)?);
            let (mut dx, store) = self.write(Role::Dx(place))?;
            let dx = self.floats_mut(&mut dx)?;
            if place == map {
                multiply::backward_map(self.team, positions, dy, other, dx, store);
            } else {
                multiply::backward_factor(self.team, positions, dy, other, dx, store);
            }
        }
        Ok(())
    }

    fn scale(&self) -> Result<(), Error> {
        let (w, positions, range) = (self.read(Role::W)?, self.positions(), self.needed(ParameterKind::Scale)?);
        let scales = &self.floats(&w)?[range.clone()];
        if self.is_forward() {
            let (x, (mut y, _)) = (self.read(Role::X(0))?, self.write(Role::Y)?);
            scale::apply(self.team, scales, positions, self.floats(&x)?, self.floats_mut(&mut y)?, Store::Write);
            return Ok(());
        }
        let (x, dy, (mut dw, store)) = (self.read(Role::X(0))?, self.read(Role::Dy)?, self.write(Role::Dw)?);
        let (x, dy, dw) = (self.floats(&x)?, self.floats(&dy)?, self.floats_mut(&mut dw)?);
        scale::backward_parameters(self.team, positions, x, dy, &mut dw[range], store);
        if self.has(Role::Dx(0)) {
            let (mut dx, store) = self.write(Role::Dx(0))?;
            scale::apply(self.team, scales, positions, dy, self.floats_mut(&mut dx)?, store);
        }
        Ok(())
    }

    fn layer_norm(&self, epsilon: f32) -> Result<(), Error> {
        let (scale, shift) = (self.needed(ParameterKind::Scale)?, self.needed(ParameterKind::Shift)?);
        let (x, w) = (self.read(Role::X(0))?, self.read(Role::W)?);
        let (x, w) = (self.floats(&x)?, self.floats(&w)?);
        if self.is_forward() {
            let (mut y, _) = self.write(Role::Y)?;
            layer_norm::forward(self.team, epsilon, (&w[scale], &w[shift]), x, self.floats_mut(&mut y)?);
            return Ok(());
        }
        let (dy, (mut dw, store)) = (self.read(Role::Dy)?, self.write(Role::Dw)?);
        let (dy, dw) = (self.floats(&dy)?, self.floats_mut(&mut dw)?);
        let (scales, shifts) = dw.split_at_mut(shift.start);
        let gradients = (&mut scales[scale.clone()], &mut shifts[..shift.len()]);
        layer_norm::backward_parameters(self.team, epsilon, (x, dy), gradients, store);
        if self.has(Role::Dx(0)) {
            let (mut dx, store) = self.write(Role::Dx(0))?;
            layer_norm::backward_data(self.team, epsilon, &w[scale], (x, dy), self.floats_mut(&mut dx)?, store);
        }
        Ok(())
    }

    fn linear(&self, outputs: usize) -> Result<(), Error> {
        let rows = self.task.samples * self.task.output.len() / outputs;
        let inputs = self.shape_of(0).len() / (self.task.output.len() / outputs);
        let sizes = Sizes { samples: rows, inputs, outputs };
        let (weight, numbers) = (self.needed(ParameterKind::Weight)?, self.parameter(ParameterKind::Bias));
        let (x, w) = (self.read(Role::X(0))?, self.read(Role::W)?);
        let (x, w) = (self.floats(&x)?, self.floats(&w)?);
        if self.is_forward() {
            let (mut y, _) = self.write(Role::Y)?;
            let y = self.floats_mut(&mut y)?;
            fully_connected::forward(self.team, sizes, x, &w[weight], numbers.map(|range| &w[range]), y);
            return Ok(());
        }
        let (dy, (mut dw, store)) = (self.read(Role::Dy)?, self.write(Role::Dw)?);
        let (dy, dw) = (self.floats(&dy)?, self.floats_mut(&mut dw)?);
        fully_connected::backward_filter(self.team, sizes, x, dy, &mut dw[weight.clone()], store);
        if let Some(range) = numbers {
            bias::backward(self.team, dy, 1, &mut dw[range], store);
        }
        if self.has(Role::Dx(0)) {
            let (mut dx, store) = self.write(Role::Dx(0))?;
            fully_connected::backward_data(self.team, sizes, dy, &w[weight], self.floats_mut(&mut dx)?, store);
        }
        Ok(())
    }

    fn transpose(&self, order: &[usize]) -> Result<(), Error> {
        let input = self.shape_of(0);
        let extents: Vec<usize> = [input.channels()].into_iter().chain(input.extents().iter().copied()).collect();
        if self.is_forward() {
            let (x, (mut y, _)) = (self.read(Role::X(0))?, self.write(Role::Y)?);
            transpose::forward(self.team, &extents, order, self.floats(&x)?, self.floats_mut(&mut y)?);
        } else {
            let (dy, (mut dx, store)) = (self.read(Role::Dy)?, self.write(Role::Dx(0))?);
            transpose::backward(self.team, &extents, order, self.floats(&dy)?, self.floats_mut(&mut dx)?, store);
        }
        Ok(())
    }

    fn resize(&self, sampling: Sampling, extents: &[usize]) -> Result<(), Error> {
        let input = self.shape_of(0);
        let extents = (input.extents(), extents);
        if self.is_forward() {
            let (x, (mut y, _)) = (self.read(Role::X(0))?, self.write(Role::Y)?);
            resize::forward(self.team, sampling, extents, self.floats(&x)?, self.floats_mut(&mut y)?);
        } else {
            let (dy, (mut dx, store)) = (self.read(Role::Dy)?, self.write(Role::Dx(0))?);
            resize::backward(self.team, sampling, extents, self.floats(&dy)?, self.floats_mut(&mut dx)?, store);
        }
        Ok(())
    }

    fn drop_samples(&self, rate: f32) -> Result<(), Error> {
        let (from, to) = if self.is_forward() { (Role::X(0), Role::Y) } else { (Role::Dy, Role::Dx(0)) };
        if self.task.mode == Mode::Inference {
            return if self.same(from, to) { Ok(()) } else { self.flow(from, to, |x| x.map(self.team, |_, x| x)) };
        }
        let Iteration { seed, step, .. } = *self.iteration;
        let key = random::key(&[seed, self.task.index as u64, step]);
        let length = self.task.output.len();
        self.flow(from, to, |values| drop_samples::apply(self.team, rate, key, self.task.first, length, values))
    }
}
