//! The solver on the device: stochastic gradient descent with weight decay, with or without momentum, or AdamW (see
//! [`tightfit_network::Rule`]).

use std::sync::Arc;

use tightfit_conv::problem::Storage;

use super::{Libraries, Work};
use crate::CudaError;
use crate::safe::{Argument, Region, blocks};

/// The solver's data, all in f32 except `stored`.
#[derive(Clone)]
pub struct Solver {
    /// The parameters.
    pub weights: Region,
    /// Their gradients, times the loss scale.
    pub gradients: Region,
    /// The last change, or the first moment; `None` counts as 0.
    pub change: Option<Region>,
    /// The second moment of AdamW; `None` for descent.
    pub second: Option<Region>,
    /// The parameters in the layer's 16-bit type, if it has one.
    pub stored: Option<(Region, Storage)>,
}

/// One step of the solver on the first `len` elements.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
pub fn update(libraries: &Arc<Libraries>, solver: &Solver, len: usize) -> Result<Work, CudaError> {
    for region in [&solver.weights, &solver.gradients].into_iter().chain(&solver.change).chain(&solver.second) {
        region.must_hold(len * 4)?;
    }
    let storage = solver.stored.as_ref().map_or(Storage::F32, |(_, storage)| *storage);
    if let Some((stored, storage)) = &solver.stored {
        stored.must_hold(len * storage.size())?;
    }
    let (solver, now) = (solver.clone(), libraries.now.clone());
    if let (Some(first), Some(second)) = (solver.change.clone(), solver.second.clone()) {
        let kernel = libraries.kernel("adamw", storage)?;
        return Ok(Box::new(move || {
            let stored = solver.stored.as_ref().map_or(Argument::from(0_u64), |(stored, _)| stored.into());
            let (w, dw) = ((&solver.weights).into(), (&solver.gradients).into());
            let arguments = [w, dw, (&first).into(), (&second).into(), stored, (len as u64).into(), (&now).into()];
            // SAFETY: the kernel's parameters in its order, of which `stored` may be null; all memory is alive and was
            // checked to be long enough.
            unsafe { kernel.launch(blocks(len), &arguments) }
        }));
    }
    let kernel = libraries.kernel("update", storage)?;
    Ok(Box::new(move || {
        let stored = solver.stored.as_ref().map_or(Argument::from(0_u64), |(stored, _)| stored.into());
        let change = solver.change.as_ref().map_or(Argument::from(0_u64), Argument::from);
        let arguments =
            [(&solver.weights).into(), (&solver.gradients).into(), change, stored, (len as u64).into(), (&now).into()];
        // SAFETY: the kernel's parameters in its order, of which `change` and `stored` may be null; all memory is alive and was checked to
        // be long enough.
        unsafe { kernel.launch(blocks(len), &arguments) }
    }))
}
