//! Chosen outputs of a convolution in f64, straight from its definition.
//!
//! ```text
//! y[n, k, p] = sum over c, r of w[k, c, r] · x[n, c, p · stride - pad + r · dilation]
//! ```

use crate::backend::Scale;
use crate::{Axis, Operation, Problem};

/// The elements of a problem's tensors by flat index, in the problem's layout.
#[derive(Clone, Copy)]
pub struct Elements<'a> {
    /// As in [`crate::backend::Tensors`].
    pub data: &'a dyn Fn(usize) -> f64,
    /// As there.
    pub other: &'a dyn Fn(usize) -> f64,
    /// The output before the call; not read if beta is 0.
    pub output: &'a dyn Fn(usize) -> f64,
}

/// Outputs in f64.
///
/// `at` holds flat indices into the output of the problem's operation, in the problem's layout. An index beyond the output, or between its elements
/// if it is a view of a larger tensor, results in NaN. Every product and sum is in f64. Cost: one filter's products per element; for backward-filter,
/// one product per sample and output position (see [`products`]).
pub fn reference_of(problem: &Problem, elements: Elements<'_>, scale: Scale, at: &[usize]) -> Vec<f64> {
    let shape = Shape::new(problem);
    let element = |&index: &usize| {
        let sum = shape.sum(problem.operation(), elements, index)?;
        let kept = if scale.beta == 0.0 { 0.0 } else { f64::from(scale.beta) * (elements.output)(index) };
        Some(f64::from(scale.alpha) * sum + kept)
    };
    at.iter().map(|index| element(index).unwrap_or(f64::NAN)).collect()
}

/// The most products that add up to one output.
pub fn products(problem: &Problem) -> usize {
    let shape = Shape::new(problem);
    let taps: usize = shape.filter.iter().product();
    match problem.operation() {
        Operation::Forward => shape.channels * taps,
        Operation::BackwardData => shape.filters * taps,
        Operation::BackwardFilter => shape.samples * shape.outputs.iter().product::<usize>(),
    }
}

/// Sizes of one group, and strides: of sample (or filter), channel and the three spatial dimensions.
struct Shape {
    samples: usize,
    groups: usize,
    channels: usize,
    filters: usize,
    axes: [Axis; 3],
    filter: [usize; 3],
    outputs: [usize; 3],
    input_in: [usize; 3],
    output_in: [usize; 3],
    x: [usize; 5],
    y: [usize; 5],
    w: [usize; 5],
}

impl Shape {
    fn new(problem: &Problem) -> Shape {
        let (convolution, layout) = (problem.convolution(), problem.layout());
        let groups = convolution.groups();
        Shape {
            samples: problem.batch(),
            groups,
            channels: convolution.channels() / groups,
            filters: convolution.filters() / groups,
            axes: convolution.axes3(),
            filter: convolution.filter(),
            outputs: convolution.outputs(),
            input_in: problem.input_in(),
            output_in: problem.output_in(),
            x: problem.input_strides(),
            y: problem.output_strides(),
            w: layout.strides(convolution.channels() / groups, convolution.filter()),
        }
    }

    /// The sum of one output; `None` for an index without an output.
    fn sum(&self, operation: Operation, elements: Elements<'_>, index: usize) -> Option<f64> {
        let Elements { data, other, .. } = elements;
        let (strides, outermost, channels, extents, whole) = match operation {
            Operation::Forward => (self.y, self.samples, self.groups * self.filters, self.outputs, self.output_in),
            Operation::BackwardData => {
                let inputs = self.axes.map(|axis| axis.input);
                (self.x, self.samples, self.groups * self.channels, inputs, self.input_in)
            }
            Operation::BackwardFilter => (self.w, self.groups * self.filters, self.channels, self.filter, self.filter),
        };
        let outer = index / strides[0];
        if outer >= outermost {
            return None;
        }
        // A dimension's index: the remainder of the outer stride, divided by its own.
        let along = |dimension: usize, extent: usize| index / strides[dimension] % extent;
        let channel = along(1, channels);
        let place = [along(2, whole[0]), along(3, whole[1]), along(4, whole[2])];
        if place.iter().zip(extents).any(|(&at, extent)| at >= extent) {
            return None;
        }
        let mut sum = 0.0;
        match operation {
            Operation::Forward => {
                let group = channel / self.filters;
                for c in 0..self.channels {
                    for tap in places(self.filter) {
                        let Some(input) = each(|i| self.input_at(i, place[i], tap[i])) else { continue };
                        sum += data(offset(self.x, outer, group * self.channels + c, input))
                            * other(offset(self.w, channel, c, tap));
                    }
                }
            }
            Operation::BackwardData => {
                let (group, c) = (channel / self.channels, channel % self.channels);
                for k in group * self.filters..(group + 1) * self.filters {
                    for tap in places(self.filter) {
                        let Some(output) = each(|i| self.output_at(i, place[i], tap[i])) else { continue };
                        sum += data(offset(self.y, outer, k, output)) * other(offset(self.w, k, c, tap));
                    }
                }
            }
            Operation::BackwardFilter => {
                let group = outer / self.filters;
                for n in 0..self.samples {
                    for output in places(self.outputs) {
                        let Some(input) = each(|i| self.input_at(i, output[i], place[i])) else { continue };
                        sum += data(offset(self.x, n, group * self.channels + channel, input))
                            * other(offset(self.y, n, outer, output));
                    }
                }
            }
        }
        Some(sum)
    }

    /// The input under filter element `tap` of an output; `None` on padding.
    fn input_at(&self, dimension: usize, output: usize, tap: usize) -> Option<usize> {
        let axis = &self.axes[dimension];
        (output * axis.stride + tap * axis.dilation).checked_sub(axis.pad_before).filter(|&input| input < axis.input)
    }

    /// The output whose filter element `tap` is on an input, if any.
    fn output_at(&self, dimension: usize, input: usize, tap: usize) -> Option<usize> {
        let axis = &self.axes[dimension];
        let steps = (input + axis.pad_before).checked_sub(tap * axis.dilation)?;
        steps.is_multiple_of(axis.stride).then_some(steps / axis.stride).filter(|&at| at < self.outputs[dimension])
    }
}

fn offset(strides: [usize; 5], outer: usize, channel: usize, [a, b, c]: [usize; 3]) -> usize {
    outer * strides[0] + channel * strides[1] + a * strides[2] + b * strides[3] + c * strides[4]
}

/// All three, or `None`.
fn each(index: impl Fn(usize) -> Option<usize>) -> Option<[usize; 3]> {
    Some([index(0)?, index(1)?, index(2)?])
}

/// Every index of three dimensions.
fn places([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |l| [i, j, l])))
}
