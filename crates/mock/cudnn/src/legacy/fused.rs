//! A convolution with a bias and an activation in one call: y = activation(alpha1 * conv(x, w) + alpha2 * z + bias).
//!
//! Levers for by the same algorithms and workspace queries as the convolution alone. z may be y.

use std::ffi::c_int;

use super::convolution::{Descriptors, Run, accept};
use crate::compute::Addresses;
use crate::control::call;
use crate::layers::{ActivationFunction, PlacedTensor, activation, enqueue, factor};
use crate::problem::Operation;
use crate::status::Status;
use crate::{Handle, handle, launch};

/// `CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM`
const PRECOMPUTED: c_int = 1;

/// The activation, if a fused call takes it with this algorithm.
fn function(descriptor: Handle, algorithm: c_int) -> Result<ActivationFunction, Status> {
    let described = activation(descriptor)?;
    // The only algorithm that cuDNN allows without an activation.
    let is_fit = described.function == ActivationFunction::Relu || algorithm == PRECOMPUTED;
    if is_fit && !described.propagates_nan { Ok(described.function) } else { Err(Status::NOT_SUPPORTED) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnConvolutionBiasActivationForward(
    handle: Handle,
    alpha1: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    w_descriptor: Handle,
    w: usize,
    convolution: Handle,
    algorithm: c_int,
    workspace: usize,
    workspace_bytes: usize,
    alpha2: Option<&f32>,
    z_descriptor: Handle,
    z: usize,
    bias_descriptor: Handle,
    bias: usize,
    activation: Handle,
    y_descriptor: Handle,
    y: usize,
) -> c_int {
    call("cudnnConvolutionBiasActivationForward", || {
        let (z, bias) = (PlacedTensor::new(z_descriptor, z)?, PlacedTensor::new(bias_descriptor, bias)?);
        let output = PlacedTensor::new(y_descriptor, y)?;
        let function = function(activation, algorithm)?;
        let d = Descriptors { x: x_descriptor, w: w_descriptor, y: y_descriptor, convolution };
        let workspace = (workspace, workspace_bytes);
        let run = Run { addresses: Addresses { x, w, y }, algorithm, workspace, alpha: alpha1, beta: alpha2 };
        let (problem, choice) = accept(Operation::Forward, d, &run)?;
        z.same(&output).map_err(|_| Status::NOT_SUPPORTED)?;
        let is_for_channels =
            |(place, &size): (usize, &i64)| size == if place == 1 { output.tensor.dims[1] } else { 1 };
        if !bias.tensor.dims.iter().enumerate().all(is_for_channels)
            || bias.tensor.dims.len() != output.tensor.dims.len()
        {
            return Err(Status::BAD_PARAM);
        }
        let elements = output.tensor.len();
        if factor(alpha2)? != 0.0 && !z.is_at(&output) {
            let output = output.clone();
            enqueue(handle, elements, move || output.store(&z.load()?, 0.0))?;
        }
        launch::convolution(handle::stream_of(handle)?, &problem, choice, run.addresses, workspace.0, None)?;
        enqueue(handle, elements, move || {
            let ([_, channels, inner], bias) = (output.sizes(), bias.load()?);
            let finish = |(place, value): (usize, &f32)| {
                let sum = value + bias[place / inner % channels];
                if function == ActivationFunction::Relu { sum.max(0.0) } else { sum }
            };
            let values: Vec<f32> = output.load()?.iter().enumerate().map(finish).collect();
            output.store(&values, 0.0)
        })
    })
}
