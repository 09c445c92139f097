//! One operation, as every algorithm gets it.

use tightfit_conv::Problem;
use tightfit_conv::backend::Scale;

use crate::shape::Shape;
use crate::team::Team;

/// One operation to run.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operation to compute.
    pub problem: &'a Problem,
    /// Its sizes and strides.
    pub shape: Shape,
    /// The threads that compute it.
    pub team: &'a Team,
    /// x; for backward-data dy.
    pub data: &'a [f32],
    /// w; for backward-filter dy.
    pub other: &'a [f32],
    /// Factors of result and previous output.
    pub scale: Scale,
}
