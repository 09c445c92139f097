//! The softmax of each sample (`CUDNN_SOFTMAX_MODE_INSTANCE`), computed from the differences to its largest element.

use std::ffi::c_int;

use super::{PlacedTensor, enqueue, factor};
use crate::Handle;
use crate::control::call;
use crate::status::Status;

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSoftmaxForward(
    handle: Handle,
    algorithm: c_int,
    mode: c_int,
    alpha: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    beta: Option<&f32>,
    y_descriptor: Handle,
    y: usize,
) -> c_int {
    call("cudnnSoftmaxForward", || {
        let (alpha, beta) = (factor(alpha)?, factor(beta)?);
        let (x, y) = (PlacedTensor::new(x_descriptor, x)?, PlacedTensor::new(y_descriptor, y)?);
        x.same(&y)?;
        if !(0..=1).contains(&algorithm) || mode != 0 {
            return Err(Status::NOT_SUPPORTED);
        }
        enqueue(handle, x.tensor.len(), move || {
            let values = x.load()?;
            let mut result = Vec::with_capacity(values.len());
            for sample in values.chunks(values.len() / x.sizes()[0]) {
                let largest = sample.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
                let powers: Vec<f32> = sample.iter().map(|x| (x - largest).exp()).collect();
                let sum: f32 = powers.iter().sum();
                result.extend(powers.iter().map(|power| alpha * power / sum));
            }
            y.store(&result, beta)
        })
    })
}
