//! Algorithms in the order of their times, which `Get..Algorithm_v7` predicts and `Find..Algorithm` measures. Times are the
//! virtual ones, so both lists are the same.

use std::ffi::{c_int, c_void};

use super::algorithm::choose;
use super::convolution::{Descriptors, problem};
use crate::control::{call, reported};
use crate::method::{Method, note};
use crate::problem::Operation;
use crate::status::Status;
use crate::{Handle, Out, handle, room};

/// `cudnnConvolutionFwdAlgoPerf_t` and its two siblings.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Performance {
    algorithm: c_int,
    status: c_int,
    milliseconds: f32,
    bytes: usize,
    is_deterministic: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

/// How many algorithms an operation has.
fn count(operation: Operation) -> c_int {
    match operation {
        Operation::Forward => 8,
        Operation::BackwardData => 6,
        Operation::BackwardFilter => 7,
    }
}

/// Lists the algorithms by rising time, and refusals after them.
fn rank(handle: Handle, operation: Operation, d: Descriptors, most: Option<usize>) -> Result<Vec<Performance>, Status> {
    handle::stream_of(handle)?;
    let problem = problem(operation, d)?;
    let mut listed: Vec<Performance> = (0..count(operation))
        .map(|algorithm| {
            let refused = |status: Status| Performance {
                algorithm,
                status: status.0,
                milliseconds: -1.0,
                bytes: 0,
                is_deterministic: 0,
                math: 0,
                reserved: [0; 3],
            };
            match choose(&problem, algorithm) {
                Ok(choice) if most.is_some_and(|most| reported(choice.workspace(&problem)) > most as u64) => {
                    refused(Status::NOT_SUPPORTED)
                }
                Ok(choice) => Performance {
                    status: 0,
                    milliseconds: choice.nanos(&problem) as f32 / 1e6,
                    bytes: reported(choice.workspace(&problem)) as usize,
                    is_deterministic: c_int::from(!choice.notes(&problem).contains(&note::NONDETERMINISTIC)),
                    math: if choice.method == Method::TensorCore { 1 } else { 3 },
                    ..refused(Status::SUCCESS)
                },
                Err(status) => refused(status),
            }
        })
        .collect();
    listed.sort_by(|a, b| a.status.cmp(&b.status).then(a.milliseconds.total_cmp(&b.milliseconds)));
    Ok(listed)
}

/// Writes at most `requested` results.
///
/// # Safety
/// `results` is null or has room for `requested` of them.
unsafe fn answer(
    listed: &[Performance],
    requested: c_int,
    returned: Out<c_int>,
    results: *mut Performance,
) -> Result<(), Status> {
    let requested = usize::try_from(requested).ok().filter(|&count| count > 0).ok_or(Status::BAD_PARAM)?;
    if results.is_null() {
        return Err(Status::NULL_POINTER);
    }
    let given = requested.min(listed.len());
    for (place, one) in listed[..given].iter().enumerate() {
        // SAFETY: `place` is under `requested`.
        unsafe { results.add(place).write(*one) };
    }
    room(returned)?.write(given as c_int);
    Ok(())
}

/// Declares the functions of one operation; `$list` of the functions that list without running anything of the caller's.
macro_rules! ranking {
    ($operation:ident, $most:ident, [$($list:ident),*], $find_in:ident) => {
        #[unsafe(no_mangle)]
        pub extern "C" fn $most(handle: Handle, most: Out<c_int>) -> c_int {
            call(stringify!($most), || {
                handle::stream_of(handle)?;
                room(most)?.write(count(Operation::$operation));
                Ok(())
            })
        }

        $(#[unsafe(no_mangle)]
        pub extern "C" fn $list(
            handle: Handle,
            first: Handle,
            second: Handle,
            convolution: Handle,
            output: Handle,
            requested: c_int,
            returned: Out<c_int>,
            results: *mut Performance,
        ) -> c_int {
            call(stringify!($list), || {
                let listed = rank(
                    handle,
                    Operation::$operation,
                    Descriptors::in_order(Operation::$operation, [first, second, output], convolution),
                    None,
                )?;
                // SAFETY: the caller gives room for `requested` results.
                unsafe { answer(&listed, requested, returned, results) }
            })
        })*

        #[unsafe(no_mangle)]
        pub extern "C" fn $find_in(
            handle: Handle,
            first: Handle,
            _at_first: *const c_void,
            second: Handle,
            _at_second: *const c_void,
            convolution: Handle,
            output: Handle,
            _at_output: *mut c_void,
            requested: c_int,
            returned: Out<c_int>,
            results: *mut Performance,
            _workspace: *mut c_void,
            bytes: usize,
        ) -> c_int {
            call(stringify!($find_in), || {
                let listed = rank(
                    handle,
                    Operation::$operation,
                    Descriptors::in_order(Operation::$operation, [first, second, output], convolution),
                    Some(bytes),
                )?;
                // SAFETY: the caller gives room for `requested` results.
                unsafe { answer(&listed, requested, returned, results) }
            })
        }
    };
}

ranking! {
    Forward, cudnnGetConvolutionForwardAlgorithmMaxCount,
    [cudnnGetConvolutionForwardAlgorithm_v7, cudnnFindConvolutionForwardAlgorithm],
    cudnnFindConvolutionForwardAlgorithmEx
}
ranking! {
    BackwardData, cudnnGetConvolutionBackwardDataAlgorithmMaxCount,
    [cudnnGetConvolutionBackwardDataAlgorithm_v7, cudnnFindConvolutionBackwardDataAlgorithm],
    cudnnFindConvolutionBackwardDataAlgorithmEx
}
ranking! {
    BackwardFilter, cudnnGetConvolutionBackwardFilterAlgorithmMaxCount,
    [cudnnGetConvolutionBackwardFilterAlgorithm_v7, cudnnFindConvolutionBackwardFilterAlgorithm],
    cudnnFindConvolutionBackwardFilterAlgorithmEx
}
