//! Workspace sizes and the three convolutions.

use std::ffi::c_int;

use super::algorithm::choose;
use super::descriptor::{convolution, filter, tensor};
use crate::compute::Addresses;
use crate::control::{call, reported};
use crate::method::Choice;
use crate::problem::{Operation, Problem};
use crate::status::Status;
use crate::{Handle, Out, handle, launch, room};

/// `CUDNN_FMA_MATH`
const FMA_MATH: c_int = 3;

/// The descriptors of one call: x, w, y (or their gradients) and the convolution.
#[derive(Clone, Copy)]
pub struct Descriptors {
    /// x or dx.
    pub x: Handle,
    /// w or dw.
    pub w: Handle,
    /// y or dy.
    pub y: Handle,
    /// The convolution.
    pub convolution: Handle,
}

impl Descriptors {
    /// The descriptors of an operation in the order of C's parameters: inputs, then the output.
    pub fn in_order(operation: Operation, [first, second, output]: [Handle; 3], convolution: Handle) -> Descriptors {
        let [x, w, y] = match operation {
            Operation::Forward => [first, second, output],
            Operation::BackwardData => [output, first, second],
            Operation::BackwardFilter => [first, output, second],
        };
        Descriptors { x, w, y, convolution }
    }
}

/// The problem of descriptors that belong together.
///
/// # Errors
/// [`Status::BAD_PARAM`] if they don't.
pub fn problem(operation: Operation, d: Descriptors) -> Result<Problem, Status> {
    let described = convolution(d.convolution)?;
    let tensors = [&tensor(d.x)?, &filter(d.w)?, &tensor(d.y)?];
    let mut problem = Problem::new(operation, tensors, &described.geometry).map_err(|_| Status::BAD_PARAM)?;
    if problem.groups != described.groups {
        return Err(Status::BAD_PARAM);
    }
    problem.tensor_cores = described.math != FMA_MATH;
    Ok(problem)
}

fn workspace(handle: Handle, operation: Operation, d: Descriptors, algorithm: c_int) -> Result<u64, Status> {
    handle::stream_of(handle)?;
    let problem = problem(operation, d)?;
    Ok(reported(choose(&problem, algorithm)?.workspace(&problem)))
}

/// A call that computes.
pub struct Run<'a> {
    /// Of x, w and y.
    pub addresses: Addresses,
    /// The algorithm's number.
    pub algorithm: c_int,
    /// Address and bytes.
    pub workspace: (usize, usize),
    /// Factor of the result.
    pub alpha: Option<&'a f32>,
    /// Factor of the output's earlier content.
    pub beta: Option<&'a f32>,
}

fn run(handle: Handle, operation: Operation, d: Descriptors, run: Run<'_>) -> Result<(), Status> {
    let (problem, choice) = accept(operation, d, &run)?;
    launch::convolution(handle::stream_of(handle)?, &problem, choice, run.addresses, run.workspace.0, None)
}

/// The operation of a call, and its algorithm.
///
/// # Errors
/// The status of a call that is refused, such as [`Status::BAD_PARAM`] for too small a workspace.
pub fn accept(operation: Operation, d: Descriptors, run: &Run<'_>) -> Result<(Problem, Choice), Status> {
    // Before the descriptors are looked at: cuDNN's reference lists null pointers as the first error.
    if [run.addresses.x, run.addresses.w, run.addresses.y].contains(&0) {
        return Err(Status::NULL_POINTER);
    }
    let mut problem = problem(operation, d)?;
    problem.alpha = *run.alpha.ok_or(Status::BAD_PARAM)?;
    problem.beta = *run.beta.ok_or(Status::BAD_PARAM)?;
    let choice: Choice = choose(&problem, run.algorithm)?;
    // Compared with the answer: after a lie the caller could not know better, and the access itself fails.
    if (run.workspace.1 as u64) < reported(choice.workspace(&problem)) {
        return Err(Status::BAD_PARAM);
    }
    Ok((problem, choice))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetConvolutionForwardWorkspaceSize(
    handle: Handle,
    x: Handle,
    w: Handle,
    convolution: Handle,
    y: Handle,
    algorithm: c_int,
    bytes: Out<usize>,
) -> c_int {
    call("cudnnGetConvolutionForwardWorkspaceSize", || {
        let d = Descriptors { x, w, y, convolution };
        room(bytes)?.write(workspace(handle, Operation::Forward, d, algorithm)? as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetConvolutionBackwardDataWorkspaceSize(
    handle: Handle,
    w: Handle,
    dy: Handle,
    convolution: Handle,
    dx: Handle,
    algorithm: c_int,
    bytes: Out<usize>,
) -> c_int {
    call("cudnnGetConvolutionBackwardDataWorkspaceSize", || {
        let d = Descriptors { x: dx, w, y: dy, convolution };
        room(bytes)?.write(workspace(handle, Operation::BackwardData, d, algorithm)? as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetConvolutionBackwardFilterWorkspaceSize(
    handle: Handle,
    x: Handle,
    dy: Handle,
    convolution: Handle,
    dw: Handle,
    algorithm: c_int,
    bytes: Out<usize>,
) -> c_int {
    call("cudnnGetConvolutionBackwardFilterWorkspaceSize", || {
        let d = Descriptors { x, w: dw, y: dy, convolution };
        room(bytes)?.write(workspace(handle, Operation::BackwardFilter, d, algorithm)? as usize);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnConvolutionForward(
    handle: Handle,
    alpha: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    w_descriptor: Handle,
    w: usize,
    convolution: Handle,
    algorithm: c_int,
    workspace: usize,
    workspace_bytes: usize,
    beta: Option<&f32>,
    y_descriptor: Handle,
    y: usize,
) -> c_int {
    call("cudnnConvolutionForward", || {
        let d = Descriptors { x: x_descriptor, w: w_descriptor, y: y_descriptor, convolution };
        let workspace = (workspace, workspace_bytes);
        run(handle, Operation::Forward, d, Run { addresses: Addresses { x, w, y }, algorithm, workspace, alpha, beta })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnConvolutionBackwardData(
    handle: Handle,
    alpha: Option<&f32>,
    w_descriptor: Handle,
    w: usize,
    dy_descriptor: Handle,
    dy: usize,
    convolution: Handle,
    algorithm: c_int,
    workspace: usize,
    workspace_bytes: usize,
    beta: Option<&f32>,
    dx_descriptor: Handle,
    dx: usize,
) -> c_int {
    call("cudnnConvolutionBackwardData", || {
        let d = Descriptors { x: dx_descriptor, w: w_descriptor, y: dy_descriptor, convolution };
        let (addresses, workspace) = (Addresses { x: dx, w, y: dy }, (workspace, workspace_bytes));
        run(handle, Operation::BackwardData, d, Run { addresses, algorithm, workspace, alpha, beta })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnConvolutionBackwardFilter(
    handle: Handle,
    alpha: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    dy_descriptor: Handle,
    dy: usize,
    convolution: Handle,
    algorithm: c_int,
    workspace: usize,
    workspace_bytes: usize,
    beta: Option<&f32>,
    dw_descriptor: Handle,
    dw: usize,
) -> c_int {
    call("cudnnConvolutionBackwardFilter", || {
        let d = Descriptors { x: x_descriptor, w: dw_descriptor, y: dy_descriptor, convolution };
        let (addresses, workspace) = (Addresses { x, w: dw, y: dy }, (workspace, workspace_bytes));
        run(handle, Operation::BackwardFilter, d, Run { addresses, algorithm, workspace, alpha, beta })
    })
}
