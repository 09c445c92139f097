//! Layers that look at one element: sums, copies.

use std::ffi::c_int;

use super::{PlacedTensor, enqueue, factor};
use crate::Handle;
use crate::control::call;
use crate::status::Status;

#[unsafe(no_mangle)]
pub extern "C" fn cudnnAddTensor(
    handle: Handle,
    alpha: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    beta: Option<&f32>,
    y_descriptor: Handle,
    y: usize,
) -> c_int {
    call("cudnnAddTensor", || {
        let (alpha, beta) = (factor(alpha)?, factor(beta)?);
        let (x, y) = (PlacedTensor::new(x_descriptor, x)?, PlacedTensor::new(y_descriptor, y)?);
        // Dimensions of x of size 1 are repeated.
        let fits = |(&own, &wanted): (&i64, &i64)| own == wanted || own == 1;
        if x.tensor.dims.len() != y.tensor.dims.len() || !x.tensor.dims.iter().zip(&y.tensor.dims).all(fits) {
            return Err(Status::BAD_PARAM);
        }
        enqueue(handle, y.tensor.len(), move || {
            let own = x.load()?;
            // Where each element of y finds its element of x: x as if it were packed, repeated.
            let strides: Vec<i64> = (0..x.tensor.dims.len()).map(|i| x.tensor.dims[i + 1..].iter().product()).collect();
            let mut packed = x.tensor.clone();
            packed.strides = strides;
            let values: Vec<f32> = packed.offsets(&y.tensor.dims).into_iter().map(|at| alpha * own[at]).collect();
            y.store(&values, beta)
        })
    })
}
