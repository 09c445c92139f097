//! A part of a convolution: a block of samples, or a range of these samples along one spatial axis, exact at the seams.
//!
//! ```text
//! forward, filter 3, pad 1        x  . 0 1 2 3 4 5 6 7 .       . is padding
//! y = 0..8 in three ranges        y    [0 1 2|3 4 5|6 7]
//! first   y 0..3 reads x 0..4     pad before 1, after 0
//! inner   y 3..6 reads x 2..7     no padding: the halo is the neighbors' own input
//! last    y 6..8 reads x 5..8     pad before 0, after 1
//! ```
//!
//! A range lies along the tensor that the call writes: outputs for forward, inputs for backward-data. Backward-filter writes no such axis; it takes a
//! range of dy, and its parts add up. With s the stride, p the padding before, and reach = (r - 1) · dilation + 1:
//!
//! ```text
//! forward, backward-filter of outputs a..b   reads inputs   a·s - p .. (b-1)·s - p + reach
//!                                            pads what lies beyond the input
//! backward-data of inputs a..b               reads outputs  ⌈(a+p-reach+1)/s⌉ ..= ⌊(b-1+p)/s⌋, as far as they exist
//!                                            pads a + p - s·(first of them), at most reach - 1
//! ```
//!
//! All ranges of one size that touch no edge are one problem. A part reads and writes the whole tensors in place: its problem has their strides
//! ([`Problem::within`]).

use std::ops::Range;

use tightfit_units::{Error, by_name};

use super::{Axis, Convolution, Operation, Problem};

/// The address alignment for 16-byte loads.
const ALIGNMENT: i64 = 16;

/// A spatial dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// Depth, the outermost of three.
    D,
    /// Height.
    H,
    /// Width, the innermost.
    W,
}

impl Dimension {
    /// All three, outermost first.
    pub const ALL: [Dimension; 3] = [Dimension::D, Dimension::H, Dimension::W];

    /// The name used in text forms.
    pub fn name(self) -> &'static str {
        match self {
            Dimension::D => "d",
            Dimension::H => "h",
            Dimension::W => "w",
        }
    }

    /// Its index in [`Convolution::axes3`].
    pub fn index(self) -> usize {
        self as usize
    }

    /// The extent that parts of `problem` divide: of its input for backward-data, otherwise of its output.
    pub fn extent(self, problem: &Problem) -> usize {
        let axis = problem.convolution().axes3()[self.index()];
        if problem.operation() == Operation::BackwardData { axis.input } else { axis.output() }
    }
}

by_name!(Dimension, "dimensions");

/// One call of a divided convolution: its problem, and the offsets of its tensors in the whole ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The problem of the call; a view of the whole tensors, or separate tensors.
    pub problem: Problem,
    /// Elements before it in x; for backward-data in dy.
    pub data: usize,
    /// Elements before it in dy for backward-filter; otherwise 0, as every part reads all of w.
    pub other: usize,
    /// Elements before it in y or dx; 0 for backward-filter, whose parts add up in dw.
    pub output: usize,
}

impl Part {
    /// The part of `whole` that is a block of its samples.
    ///
    /// # Errors
    /// [`Error::BadProblem`] if `whole` lacks some of the samples, or `samples` is empty.
    pub fn of_samples(whole: &Problem, samples: Range<usize>) -> Result<Part, Error> {
        let problem = whole.with_batch(samples.len())?;
        if samples.end > whole.batch() {
            return bad(whole, format!("it has no samples {} to {}", samples.start, samples.end - 1));
        }
        let (x, y) = (samples.start * whole.input_strides()[0], samples.start * whole.output_strides()[0]);
        Ok(Part::at(problem, x, y))
    }

    /// The part of `whole` that is a `range` along `dimension` of a block of its samples; see [`Dimension::extent`].
    ///
    /// # Errors
    /// [`Error::BadProblem`] if `whole` lacks some of the samples or the range, or if one is empty. Also if the range cannot be computed alone:
    /// everything under it is padding, or (for backward-data) it begins between strides or no output depends on it. No range of [`Cuts`] fails this
    /// way, unless padding is larger than the filter's reach or input is left over.
    pub fn slice(
        whole: &Problem,
        samples: Range<usize>,
        dimension: Dimension,
        range: Range<usize>,
    ) -> Result<Part, Error> {
        let before = samples.start;
        let block = Part::of_samples(whole, samples)?;
        let extent = dimension.extent(whole);
        if range.is_empty() || range.end > extent {
            return bad(whole, format!("it has no range {}..{} of {dimension}{extent}", range.start, range.end));
        }
        let convolution = whole.convolution();
        let i = dimension.index();
        let axis = convolution.axes3()[i];
        let own = match whole.operation() {
            Operation::BackwardData => backward(&axis, &range),
            _ => forward(&axis, &range),
        };
        let Some(Own { axis: own, input, output }) = own else {
            let range = format!("{dimension} {}..{}", range.start, range.end);
            return bad(whole, format!("{range} cannot be computed alone; choose a larger range, or begin elsewhere"));
        };
        let mut axes = convolution.axes3();
        axes[i] = own;
        let axes = &axes[3 - convolution.axes().len()..];
        let convolution = Convolution::new(convolution.channels(), convolution.filters(), convolution.groups(), axes)?;
        let problem =
            Problem::new(convolution, whole.operation(), block.problem.batch(), whole.types(), whole.layout())?;
        let at = |strides: [usize; 5], along: usize| before * strides[0] + along * strides[2 + i];
        let (x, y) = (at(whole.input_strides(), input), at(whole.output_strides(), output));
        let view = problem.within(whole.input_in(), whole.output_in())?;
        let problem = if lies_packed(&view, &problem, dimension) { problem } else { view };
        Ok(Part::at(problem, x, y))
    }

    /// A problem whose x and y begin at these elements of the whole tensors.
    fn at(problem: Problem, x: usize, y: usize) -> Part {
        match problem.operation() {
            Operation::Forward => Part { problem, data: x, other: 0, output: y },
            Operation::BackwardData => Part { problem, data: y, other: 0, output: x },
            Operation::BackwardFilter => Part { problem, data: x, other: y, output: 0 },
        }
    }
}

fn bad<T>(whole: &Problem, what: String) -> Result<T, Error> {
    Err(Error::BadProblem { what: format!("{whole}: {what}") })
}

/// Whether the packed problem may stand for a view: their elements have the same strides (strides count only for extents over 1), and every position
/// along the axis has the alignment of separate memory.
fn lies_packed(view: &Problem, packed: &Problem, dimension: Dimension) -> bool {
    let convolution = packed.convolution();
    let size = packed.types().storage().size();
    let same = |channels: usize, [d, h, w]: [usize; 3], view: [usize; 5], own: [usize; 5]| {
        let extents = [packed.batch(), channels, d, h, w];
        let mut all = extents.into_iter().zip(view.into_iter().zip(own));
        (view[2 + dimension.index()] * size).is_multiple_of(ALIGNMENT as usize)
            && all.all(|(extent, (view, own))| extent == 1 || view == own)
    };
    same(convolution.channels(), convolution.inputs(), view.input_strides(), packed.input_strides())
        && same(convolution.filters(), convolution.outputs(), view.output_strides(), packed.output_strides())
}

/// One axis of a part, and the offsets of its input and output on the whole axis.
struct Own {
    axis: Axis,
    input: usize,
    output: usize,
}

/// The axis that computes `outputs` of `axis`; `None` if they read only padding.
fn forward(axis: &Axis, outputs: &Range<usize>) -> Option<Own> {
    // Both ends count from the first padding element.
    let (start, end) = (outputs.start * axis.stride, (outputs.end - 1) * axis.stride + axis.reach());
    let (first, last) = (start.max(axis.pad_before), end.min(axis.pad_before + axis.input));
    let input = last.checked_sub(first).filter(|&input| input > 0)?;
    let own = Axis { input, pad_before: first - start, pad_after: end - last, ..*axis };
    Some(Own { axis: own, input: first - axis.pad_before, output: outputs.start })
}

/// The axis whose input is `inputs` of `axis`; `None` if no output depends on them, or they begin between strides.
fn backward(axis: &Axis, inputs: &Range<usize>) -> Option<Own> {
    let first = (inputs.start + axis.pad_before + 1).saturating_sub(axis.reach()).div_ceil(axis.stride);
    let end = ((inputs.end - 1 + axis.pad_before) / axis.stride + 1).min(axis.output());
    let outputs = end.checked_sub(first).filter(|&outputs| outputs > 0)?;
    let pad_before = (inputs.start + axis.pad_before).checked_sub(first * axis.stride)?;
    let reached = (outputs - 1) * axis.stride + axis.reach();
    let pad_after = reached.saturating_sub(pad_before + inputs.len());
    Some(Own { axis: Axis { input: inputs.len(), pad_before, pad_after, ..*axis }, input: inputs.start, output: first })
}

/// The positions at which a problem may be cut along a dimension: on strides, and with both tensors aligned to 16 bytes if possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    extent: usize,
    first: usize,
    step: usize,
}

impl Cuts {
    /// The cuts of `problem` along `dimension`.
    pub fn new(problem: &Problem, dimension: Dimension) -> Cuts {
        let extent = dimension.extent(problem);
        let axis = problem.convolution().axes3()[dimension.index()];
        let (stride, pad) = (axis.stride, axis.pad_before);
        // Backward-data begins at the position of a filter's first element.
        let (first, step) = match problem.operation() {
            Operation::BackwardData => ((stride - pad % stride) % stride, stride),
            _ => (0, 1),
        };
        let size = problem.types().storage().size();
        let bytes = |strides: [usize; 5]| (strides[2 + dimension.index()] * size) as i64;
        let (x, y) = (bytes(problem.input_strides()), bytes(problem.output_strides()));
        let (stride, pad, reach) = (stride as i64, pad as i64, axis.reach() as i64);
        // Addresses at a cut far from the edges, relative to the first element.
        let aligned = |cut: usize| {
            let cut = cut as i64;
            let (input, output) = match problem.operation() {
                // The division rounds up.
                Operation::BackwardData => (cut, -(reach - 1 - cut - pad).div_euclid(stride)),
                _ => (cut * stride - pad, cut),
            };
            [(input * x) % ALIGNMENT == 0, (output * y) % ALIGNMENT == 0]
        };
        let written = usize::from(problem.operation() != Operation::BackwardData);
        // The finest steps that align both tensors, or at least the written one.
        let steps =
            [1, 2, 4, 8].into_iter().map(|times| times * step).filter(|&coarse| coarse == step || 2 * coarse <= extent);
        let places = |coarse: usize| (first..first + coarse).step_by(step).map(move |first| (first, coarse));
        let all: Vec<(usize, usize)> = steps.flat_map(places).collect();
        // Addresses grow evenly, so two neighboring cuts decide for all.
        let neighbors = |&(first, step): &(usize, usize)| [aligned(first), aligned(first + step)];
        let best = all.iter().find(|cuts| neighbors(cuts) == [[true; 2]; 2]);
        let best = best.or_else(|| all.iter().find(|cuts| neighbors(cuts).iter().all(|aligned| aligned[written])));
        let (first, step) = best.copied().unwrap_or((first, step));
        Cuts { extent, first, step }
    }

    /// The extent that is cut.
    pub fn extent(&self) -> usize {
        self.extent
    }

    /// The least distance between two cuts.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Whether a range may end here and the next begin.
    pub fn allow(&self, position: usize) -> bool {
        position == self.extent
            || position > 0 && position < self.extent && position % self.step == self.first % self.step
    }

    /// The ranges that cover the extent, of the largest possible size up to `size` except for the first and the last. One range if `size` is under
    /// the least distance.
    ///
    /// ```
    /// use tightfit_conv::problem::{Cuts, Dimension, Problem};
    /// let problem: Problem = "forward n1 c8 h8 w8 k8 r3 s3 pad1 f32".parse()?;
    /// assert_eq!(Cuts::new(&problem, Dimension::H).ranges(3), [0..3, 3..6, 6..8]);
    /// # Ok::<(), tightfit_units::Error>(())
    /// ```
    pub fn ranges(&self, size: usize) -> Vec<Range<usize>> {
        let size = size / self.step * self.step;
        if size == 0 || size >= self.extent {
            return std::iter::once(0..self.extent).collect();
        }
        // The first range is shorter if cuts are not at multiples of the step.
        let rest = self.first % self.step;
        let first = if rest == 0 { size } else { size - self.step + rest };
        let starts: Vec<usize> = [0].into_iter().chain((first..self.extent).step_by(size)).collect();
        let ends = starts[1..].iter().copied().chain([self.extent]);
        starts.iter().copied().zip(ends).map(|(start, end)| start..end).collect()
    }
}
