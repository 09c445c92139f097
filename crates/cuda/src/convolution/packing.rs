//! A slice whose engine refuses strides: its tensors are copied to the workspace without gaps, and the result back.
//!
//! ```text
//! workspace   | x without gaps | y without gaps | the engine's own |
//! calls       copy x  ->  engine  ->  copy y
//! ```

use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_conv::problem::Storage;
use tightfit_conv::{Layout, Operation, Problem};

use super::prepared::{Launch, Memory, PreparedAlgorithm};
use crate::CudaError;
use crate::safe::{Handle, RowCopy, Rows, Slice};

/// The copies begin at multiples of this.
const ALIGNMENT: usize = 256;

/// A call on copies.
pub(crate) struct Packing {
    inner: Arc<PreparedAlgorithm>,
    handle: Arc<Handle>,
    /// Of data, other and output, or `None` for a tensor that has no gaps.
    rows: [Option<Rows>; 3],
    /// Whether the call reads the output.
    adds: bool,
}

impl Packing {
    /// `inner` computes the problem on separate tensors.
    ///
    /// # Errors
    /// [`CudaError::Unfit`] for a view along several axes.
    pub fn new(
        handle: &Arc<Handle>,
        inner: Arc<PreparedAlgorithm>,
        problem: &Problem,
        output: Storage,
        scale: Scale,
    ) -> Result<Packing, CudaError> {
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
        Ok(Packing { inner, handle: handle.clone(), rows, adds: scale.beta != 0.0 })
    }

    /// Bytes of the copies and the engine's workspace.
    pub fn workspace(&self) -> usize {
        self.copies() + self.inner.workspace()
    }

    fn copies(&self) -> usize {
        self.rows.iter().flatten().map(|rows| rows.len().next_multiple_of(ALIGNMENT)).sum()
    }

    /// The call below the copies.
    pub fn inner(&self) -> &Arc<PreparedAlgorithm> {
        &self.inner
    }

    /// Binds the copies and the call.
    ///
    /// # Errors
    /// The errors of [`PreparedAlgorithm::bind`].
    pub fn bind<'a>(&'a self, memory: &Memory<'a>, scale: Scale) -> Result<Launch<'a>, CudaError> {
        let Memory { data, other, output, workspace } = *memory;
        let mut tensors = [data, other, output];
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
        let [data, other, output] = tensors;
        let workspace = workspace.part(begin..workspace.len())?;
        let inner = Box::new(self.inner.bind(&Memory { data, other, output, workspace }, scale)?);
        Ok(Launch::Packed { before, inner, after, handle: &self.handle })
    }
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
