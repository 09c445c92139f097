//! A convolution run by a configuration: its micro-batches one after another, in one workspace.

use std::sync::Arc;

use tightfit_conv::problem::Storage;
use tightfit_conv::{Configuration, Problem};
use tightfit_units::Error;

use super::{Libraries, Work, Write, beta};
use crate::convolution::Fixed;
use crate::safe::{Kernel, Region, blocks};
use crate::{CudaBackend, CudaError};

/// The memory of a convolution.
#[derive(Clone)]
pub struct Convolution {
    /// x; for backward-data dy.
    pub data: Region,
    /// w; for backward-filter dy.
    pub other: Region,
    /// y or dx; or dw, dw is always in f32.
    pub output: Region,
    /// At least the configuration's workspace.
    pub workspace: Region,
    /// Whether to add the result to the output or overwrite it.
    pub write: Write,
}

/// One call and, if it writes half precision, the step that adds its result to the f32 sum.
pub(crate) struct Piece {
    /// The call.
    pub call: Fixed,
    /// Converts half precision to the sum, overwriting it or adding to it.
    pub widened: Option<Widen>,
}

/// sum = x, or sum + x.
pub(crate) struct Widen {
    kernel: Kernel,
    from: Region,
    to: Region,
    len: usize,
    write: Write,
}

impl Widen {
    /// `len` elements, over the sum or added to it.
    pub fn new(
        libraries: &Libraries,
        storage: Storage,
        (from, to): (&Region, &Region),
        len: usize,
        write: Write,
    ) -> Result<Widen, CudaError> {
        from.must_hold(len * storage.size())?;
        to.must_hold(len * 4)?;
        Ok(Widen { kernel: libraries.kernel("widen", storage)?, from: from.clone(), to: to.clone(), len, write })
    }

    pub fn enqueue(&self) -> Result<(), CudaError> {
        let add = u32::from(self.write == Write::Add);
        let arguments = [(&self.from).into(), (&self.to).into(), (self.len as u64).into(), add.into()];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
        unsafe { self.kernel.launch(blocks(self.len), &arguments) }
    }
}

impl Convolution {
    /// Prepares the convolution, so that enqueuing builds nothing.
    ///
    /// An algorithm that cannot add to its output, or only with more workspace, is replaced by the first of cuDNN's
    /// proposals that can, is deterministic, and fits the workspace.
    ///
    /// # Errors
    /// [`Error::Refused`] if an algorithm is not supported; [`Error::Backend`].
    pub fn prepare(
        &self,
        libraries: &Arc<Libraries>,
        backend: &mut CudaBackend,
        problem: &Problem,
        configuration: &Configuration,
    ) -> Result<Work, Error> {
        let pieces = backend.fix(libraries, problem, configuration, self)?;
        Ok(Box::new(move || {
            for Piece { call, widened } in &pieces {
                call.enqueue()?;
                widened.as_ref().map_or(Ok(()), Widen::enqueue)?;
            }
            Ok(())
        }))
    }

    /// How the first micro-batch writes the output.
    pub(crate) fn beta(&self) -> f32 {
        beta(self.write)
    }
}

/// Half-precision scratch memory for a result of `len` elements.
pub(crate) fn half_scratch(libraries: &Libraries, storage: Storage, len: usize) -> Result<Region, CudaError> {
    libraries.scratch(len * storage.size())
}
