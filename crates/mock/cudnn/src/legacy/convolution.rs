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
    pub fn in_order(operation: Operation, tensors: [Handle; 3], convolution: Handle) -> Descriptors {
        let [x, w, y] = in_order(operation, tensors);
        Descriptors { x, w, y, convolution }
    }
}

/// x, w and y (or their gradients), from the inputs and the output of an operation in the order of C's parameters.
fn in_order(operation: Operation, [first, second, output]: [usize; 3]) -> [usize; 3] {
    match operation {
        Operation::Forward => [first, second, output],
        Operation::BackwardData => [output, first, second],
        Operation::BackwardFilter => [first, output, second],
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

/// Declares the two functions of an operation. C has the inputs first, then the output.
macro_rules! operation {
    ($operation:ident, $size:ident, $run:ident) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $size(
            handle: Handle,
            first: Handle,
            second: Handle,
            convolution: Handle,
            output: Handle,
            algorithm: c_int,
            bytes: Out<usize>,
        ) -> c_int {
            call(stringify!($size), || {
                let d = Descriptors::in_order(Operation::$operation, [first, second, output], convolution);
                room(bytes)?.write(workspace(handle, Operation::$operation, d, algorithm)? as usize);
                Ok(())
            })
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $run(
            handle: Handle,
            alpha: Option<&f32>,
            first: Handle,
            at_first: usize,
            second: Handle,
            at_second: usize,
            convolution: Handle,
            algorithm: c_int,
            workspace: usize,
            bytes: usize,
            beta: Option<&f32>,
            output: Handle,
            at_output: usize,
        ) -> c_int {
            call(stringify!($run), || {
                let d = Descriptors::in_order(Operation::$operation, [first, second, output], convolution);
                let [x, w, y] = in_order(Operation::$operation, [at_first, at_second, at_output]);
                let (addresses, workspace) = (Addresses { x, w, y }, (workspace, bytes));
                run(handle, Operation::$operation, d, Run { addresses, algorithm, workspace, alpha, beta })
            })
        }
    };
}

operation!(Forward, cudnnGetConvolutionForwardWorkspaceSize, cudnnConvolutionForward);
operation!(BackwardData, cudnnGetConvolutionBackwardDataWorkspaceSize, cudnnConvolutionBackwardData);
operation!(BackwardFilter, cudnnGetConvolutionBackwardFilterWorkspaceSize, cudnnConvolutionBackwardFilter);
