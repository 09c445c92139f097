//! A problem as the algorithms see it: sizes of one group, and the strides of the three tensors.

use std::ops::Range;

use tightfit_core::{Axis, Layout, Problem};

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
            x: layout.strides(convolution.channels(), convolution.inputs()),
            y: layout.strides(convolution.filters(), convolution.outputs()),
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

    /// Whether every output depends on the one input at its place: a filter of extent 1, neither stride nor padding.
    pub fn is_pointwise(&self) -> bool {
        self.taps() == 1 && self.axes.iter().all(|a| a.stride == 1 && a.pad_before == 0 && a.pad_after == 0)
    }

    /// Where the first channel of a group lies in a sample of x.
    pub fn x_group(&self, group: usize) -> usize {
        group * self.c * self.x[1]
    }

    /// Where the first filter of a group lies in a sample of y.
    pub fn y_group(&self, group: usize) -> usize {
        group * self.k * self.y[1]
    }

    /// The floats of w that belong to a group.
    pub fn w_group(&self, group: usize) -> Range<usize> {
        let floats = self.k * self.depth();
        group * floats..(group + 1) * floats
    }
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
