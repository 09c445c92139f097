//! A slice whose engine refuses strides: its tensors are copied to the workspace without gaps, and the result back.
//!
//! ```text
//! workspace   | x without gaps | y without gaps | the engine's own |
//! calls       copy x  ->  engine  ->  copy y
//! ```

use tightfit_conv::backend::Scale;
use tightfit_conv::problem::Storage;
use tightfit_conv::{Layout, Operation, Problem};

use crate::CudaError;
use crate::safe::{RowCopy, Rows, Slice};

/// The copies begin at multiples of this.
const ALIGNMENT: usize = 256;

/// The copies around a call.
pub(crate) struct Packing {
    /// Of data, other and output, or `None` for a tensor that has no gaps.
    rows: [Option<Rows>; 3],
    /// Whether the call reads the output.
    adds: bool,
}

impl Packing {
    /// The copies of a problem's tensors.
    ///
    /// # Errors
    /// [`CudaError::Unfit`] for a view along several axes.
    pub fn new(problem: &Problem, output: Storage, scale: Scale) -> Result<Packing, CudaError> {
        let unfit = |what: &str| CudaError::Unfit { layer: "packing a slice", what: what.to_owned() };
        let (convolution, own) = (problem.convolution(), problem.types().storage());
        let (channels, filters) = (convolution.channels(), convolution.filters());
        let x = (channels, convolution.inputs(), problem.input_in());
        let y = (filters, convolution.outputs(), problem.output_in());
        let rows = |(channels, own, whole): (usize, [usize; 3], [usize; 3]), storage| {
            rows(problem, channels, own, whole, storage).map_err(unfit)
        };
        let rows = match problem.operation() {
            Operation::Forward => [rows(x, own)?, None, rows(y, output)?],
            Operation::BackwardData => [rows(y, own)?, None, rows(x, output)?],
            Operation::BackwardFilter => [rows(x, own)?, rows(y, own)?, None],
        };
        Ok(Packing { rows, adds: scale.beta != 0.0 })
    }

    /// Bytes of the copies.
    pub fn len(&self) -> usize {
        self.rows.iter().flatten().map(|rows| rows.len().next_multiple_of(ALIGNMENT)).sum()
    }

    /// Binds the copies of data, other and output, which begin the workspace.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if memory is too short.
    pub fn bind<'a>(&self, mut tensors: [Slice<'a>; 3], workspace: Slice<'a>) -> Result<Copies<'a>, CudaError> {
        let (mut before, mut after, mut begin) = (Vec::new(), None, 0);
        for (place, rows) in self.rows.iter().enumerate() {
            let Some(rows) = *rows else { continue };
            let copy: Slice<'a> = workspace.part(begin..begin + rows.len())?;
            begin += rows.len().next_multiple_of(ALIGNMENT);
            if place < 2 || self.adds {
                before.push(RowCopy::new((tensors[place], rows), (copy, rows.packed()))?);
            }
            if place == 2 {
                after = Some(RowCopy::new((copy, rows.packed()), (tensors[place], rows))?);
            }
            tensors[place] = copy;
        }
        Ok(Copies { before, tensors, workspace: workspace.part(begin..workspace.len())?, after })
    }
}

/// The copies around one call, and the memory of the call.
pub(crate) struct Copies<'a> {
    /// To the copies.
    pub before: Vec<RowCopy<'a>>,
    /// Data, other and output without gaps.
    pub tensors: [Slice<'a>; 3],
    /// The workspace behind the copies.
    pub workspace: Slice<'a>,
    /// From the copy of the output.
    pub after: Option<RowCopy<'a>>,
}

/// The contiguous rows of a view. Empty if it has no gaps.
fn rows(
    problem: &Problem,
    channels: usize,
    own: [usize; 3],
    whole: [usize; 3],
    storage: Storage,
) -> Result<Option<Rows>, &'static str> {
    let mut cut = (0..3).filter(|&axis| own[axis] < whole[axis]);
    let Some(axis) = cut.next() else { return Ok(None) };
    if cut.next().is_some() {
        return Err("its tensor is longer along several axes");
    }
    let stride = problem.layout().strides(channels, whole)[2 + axis] * storage.size();
    let outer = own[..axis].iter().product::<usize>();
    let count = match problem.layout() {
        Layout::Nchw => problem.batch() * channels * outer,
        Layout::Nhwc => problem.batch() * outer,
    };
    Ok(Some(Rows { count, bytes: own[axis] * stride, pitch: whole[axis] * stride }))
}
