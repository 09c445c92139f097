//! A problem as the algorithms see it: sizes of one group, and the strides of the three tensors.

use std::ops::Range;

use tightfit_conv::{Axis, Layout, Problem};

/// Sizes and strides of one problem. Strides are in floats: of a tensor's sample (filter), channel and the three spatial
/// dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Samples.
    pub n: usize,
    /// Groups.
    pub groups: usize,
    /// Channels of one group.
    pub c: usize,
    /// Filters of one group.
    pub k: usize,
    /// The three spatial dimensions, the first of extent 1 where there are two.
    pub axes: [Axis; 3],
    /// Extents of the filter.
    pub filter: [usize; 3],
    /// Extents of the output.
    pub outputs: [usize; 3],
    /// Order of the dimensions.
    pub layout: Layout,
    /// Strides of x.
    pub x: [usize; 5],
    /// Strides of y.
    pub y: [usize; 5],
    /// Strides of w.
    pub w: [usize; 5],
}

impl Shape {
    /// The shape of a problem.
    pub fn new(problem: &Problem) -> Shape {
        let convolution = problem.convolution();
        let layout = problem.layout();
        let (c, k) = (convolution.channels() / convolution.groups(), convolution.filters() / convolution.groups());
        Shape {
            n: problem.batch(),
            groups: convolution.groups(),
            c,
            k,
            axes: convolution.axes3(),
            filter: convolution.filter(),
            outputs: convolution.outputs(),
            layout,
            x: problem.input_strides(),
            y: problem.output_strides(),
            w: layout.strides(c, convolution.filter()),
        }
    }

    /// Elements of one channel of one filter.
    pub fn taps(&self) -> usize {
        self.filter.iter().product()
    }

    /// Elements of one filter: the products that add up to one output.
    pub fn depth(&self) -> usize {
        self.c * self.taps()
    }

    /// Outputs of one sample and filter.
    pub fn positions(&self) -> usize {
        self.outputs.iter().product()
    }

    /// Whether every output depends on the one input at its place: a filter of extent 1, neither stride nor padding, and
    /// an input that is a matrix of channels and positions.
    pub fn is_pointwise(&self) -> bool {
        self.taps() == 1
            && self.axes.iter().all(|a| a.stride == 1 && a.pad_before == 0 && a.pad_after == 0)
            && in_steps(self.axes.map(|axis| axis.input), self.x)
    }

    /// Why the outputs of a sample are not a matrix of filters and positions; none if they are.
    pub fn no_matrix(&self) -> Option<String> {
        let reason = "its outputs must follow one another; of a slice along an inner axis they do not";
        (!in_steps(self.outputs, self.y)).then(|| reason.to_owned())
    }

    /// Whether the samples of both x and y follow one another without gaps.
    pub fn samples_follow(&self) -> bool {
        let [d, h, w] = self.axes.map(|axis| axis.input);
        self.n == 1
            || self.x[0] == self.groups * self.c * d * h * w && self.y[0] == self.groups * self.k * self.positions()
    }

    /// Where the first channel of a group lies in a sample of x.
    pub fn x_group(&self, group: usize) -> usize {
        group * self.c * self.x[1]
    }

    /// Where the first filter of a group lies in a sample of y.
    pub fn y_group(&self, group: usize) -> usize {
        group * self.k * self.y[1]
    }

    /// Multiplies a sample of x (from its first element on) by beta, and nothing between its elements.
    pub fn scale_x(&self, sample: &mut [f32], beta: f32) {
        scale(sample, self.groups * self.c, self.axes.map(|axis| axis.input), self.x, beta);
    }

    /// The floats of w that belong to a group.
    pub fn w_group(&self, group: usize) -> Range<usize> {
        let floats = self.k * self.depth();
        group * floats..(group + 1) * floats
    }
}

/// Multiplies by beta; beta = 0 writes zeros without reading.
pub fn prescale(output: &mut [f32], beta: f32) {
    if beta == 0.0 {
        output.fill(0.0);
    } else if beta != 1.0 {
        output.iter_mut().for_each(|value| *value *= beta);
    }
}

/// Multiplies the elements of a sample, or of one channel, by beta; beta = 0 writes zeros without reading.
pub fn scale(sample: &mut [f32], channels: usize, extents: [usize; 3], strides: [usize; 5], beta: f32) {
    let [d, h, w] = extents;
    let [_, channel, plane, row, element] = strides;
    if channel == 1 && element == channels {
        // Channels innermost: a row is contiguous.
        return for_starts([d, h, 1], [plane, row, 0], |start| {
            prescale(&mut sample[start..start + w * channels], beta)
        });
    }
    for_starts([channels, d, h], [channel, plane, row], |start| {
        if element == 1 {
            return prescale(&mut sample[start..start + w], beta);
        }
        let elements = sample[start..].iter_mut().step_by(element).take(w);
        elements.for_each(|value| *value = if beta == 0.0 { 0.0 } else { *value * beta });
    });
}

fn for_starts([a, b, c]: [usize; 3], strides: [usize; 3], mut visit: impl FnMut(usize)) {
    for i in 0..a {
        for j in 0..b {
            (0..c).for_each(|k| visit(i * strides[0] + j * strides[1] + k * strides[2]));
        }
    }
}

/// Whether the positions of a channel lie in equal steps: every row right after the one before.
fn in_steps([d, h, w]: [usize; 3], strides: [usize; 5]) -> bool {
    let [plane, row, element] = [strides[2], strides[3], strides[4]];
    (h == 1 || row == w * element) && (d == 1 || plane == h * w * element)
}

/// The outputs along an axis whose filter element `tap` lies on the input, not on padding.
pub fn inside(axis: &Axis, tap: usize) -> Range<usize> {
    let (before, at) = (axis.pad_before, tap * axis.dilation);
    let first = before.saturating_sub(at).div_ceil(axis.stride);
    let end = (axis.input + before).saturating_sub(at).div_ceil(axis.stride).min(axis.output());
    first.min(end)..end
}

/// The input under filter element `tap` of output `at`, or none on padding.
pub fn input_at(axis: &Axis, at: usize, tap: usize) -> Option<usize> {
    (at * axis.stride + tap * axis.dilation).checked_sub(axis.pad_before).filter(|&input| input < axis.input)
}
