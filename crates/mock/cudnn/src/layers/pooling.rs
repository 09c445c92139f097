//! Windows: their largest element, the first of several, or their mean without the padding.

use std::ffi::c_int;

use super::descriptor::{Pooling, pooling};
use super::{PlacedTensor, enqueue, factor};
use crate::Handle;
use crate::control::call;
use crate::status::Status;

/// Positions of a plane in a window, by rising index; extents are of x, `at` is of the window.
fn window(pooling: &Pooling, extents: &[i64], at: &[i64]) -> Vec<usize> {
    let mut positions = vec![0usize];
    for ((&extent, &at), &[size, padding, stride]) in extents.iter().zip(at).zip(&pooling.axes) {
        let first = at * stride - padding;
        let inside = first.max(0)..(first + size).min(extent);
        positions = positions
            .iter()
            .flat_map(|&position| inside.clone().map(move |i| position * extent as usize + i as usize))
            .collect();
    }
    positions
}

/// The windows of all outputs of a plane.
fn windows(pooling: &Pooling, x: &PlacedTensor, y: &PlacedTensor) -> Vec<Vec<usize>> {
    let (inputs, outputs) = (&x.tensor.dims[2..], &y.tensor.dims[2..]);
    let count = outputs.iter().product::<i64>();
    let index = |mut flat: i64| {
        let mut at = vec![0; outputs.len()];
        for (place, &extent) in at.iter_mut().zip(outputs).rev() {
            *place = flat % extent;
            flat /= extent;
        }
        at
    };
    (0..count).map(|flat| window(pooling, inputs, &index(flat))).collect()
}

fn check(pooling: &Pooling, x: &PlacedTensor, y: &PlacedTensor) -> Result<(), Status> {
    let dimensions = pooling.axes.len() + 2;
    let fits = x.tensor.dims.len() == dimensions && y.tensor.dims.len() == dimensions;
    if !fits || x.tensor.dims[..2] != y.tensor.dims[..2] || windows(pooling, x, y).iter().any(Vec::is_empty) {
        return Err(Status::BAD_PARAM);
    }
    Ok(())
}

/// The place of the first of the largest elements; a NaN is larger than all.
fn largest(plane: &[f32], window: &[usize]) -> usize {
    let mut best = window[0];
    for &at in window {
        if plane[at] > plane[best] || (plane[at].is_nan() && !plane[best].is_nan()) {
            best = at;
        }
    }
    best
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnPoolingForward(
    handle: Handle,
    descriptor: Handle,
    alpha: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    beta: Option<&f32>,
    y_descriptor: Handle,
    y: usize,
) -> c_int {
    call("cudnnPoolingForward", || {
        let (pooling, alpha, beta) = (pooling(descriptor)?, factor(alpha)?, factor(beta)?);
        let (x, y) = (PlacedTensor::new(x_descriptor, x)?, PlacedTensor::new(y_descriptor, y)?);
        check(&pooling, &x, &y)?;
        enqueue(handle, x.tensor.len(), move || {
            let (windows, values) = (windows(&pooling, &x, &y), x.load()?);
            let mut pooled = Vec::with_capacity(y.tensor.len());
            for plane in values.chunks(x.sizes()[2]) {
                pooled.extend(windows.iter().map(|window| {
                    alpha
                        * if pooling.maximum {
                            plane[largest(plane, window)]
                        } else {
                            window.iter().map(|&at| plane[at]).sum::<f32>() / window.len() as f32
                        }
                }));
            }
            y.store(&pooled, beta)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnPoolingBackward(
    handle: Handle,
    descriptor: Handle,
    alpha: Option<&f32>,
    y_descriptor: Handle,
    y: usize,
    dy_descriptor: Handle,
    dy: usize,
    x_descriptor: Handle,
    x: usize,
    beta: Option<&f32>,
    dx_descriptor: Handle,
    dx: usize,
) -> c_int {
    call("cudnnPoolingBackward", || {
        let (pooling, alpha, beta) = (pooling(descriptor)?, factor(alpha)?, factor(beta)?);
        let (y, dy) = (PlacedTensor::new(y_descriptor, y)?, PlacedTensor::new(dy_descriptor, dy)?);
        let (x, dx) = (PlacedTensor::new(x_descriptor, x)?, PlacedTensor::new(dx_descriptor, dx)?);
        check(&pooling, &x, &y)?;
        if pooling.maximum {
            return Err(Status::NOT_SUPPORTED);
        }
        x.same(&dx)?;
        y.same(&dy)?;
        enqueue(handle, x.tensor.len(), move || {
            let (windows, gradients, area) = (windows(&pooling, &x, &y), dy.load()?, x.sizes()[2]);
            let mut shares = vec![0.0; x.tensor.len()];
            for (shares, gradients) in shares.chunks_mut(area).zip(gradients.chunks(windows.len())) {
                for (window, gradient) in windows.iter().zip(gradients) {
                    window.iter().for_each(|&at| shares[at] += alpha * gradient / window.len() as f32);
                }
            }
            dx.store(&shares, beta)
        })
    })
}
