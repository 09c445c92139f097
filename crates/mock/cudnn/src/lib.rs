//! A cuDNN for machines without a GPU: a `libcudnn.so.9` that computes convolutions with plain loops on the threads of
//! mock-cuda's streams.
//!
//! Two ways in, as in cuDNN: the legacy algorithms, and the backend API with engines, heuristics and plans. Both lead to
//! the same methods, which differ as real ones do: in workspace, in the problems that they refuse, in the order and
//! precision of their sums, in whether two runs agree. Tests steer it by `tightfitMockCudnn...` functions or environment
//! variables (README.md). Signatures and constants were checked against the headers of cuDNN 9.19.
//!
//! `tensor` memory layout · `number` storage and rounding · `problem` one convolution · `method` what each engine needs and
//! refuses · `compute` the loops · `launch` onto a stream · `legacy`, `backend` the two interfaces · `layers` the other
//! layers · `descriptors` of these by handle · `control` requests of tests

#![allow(non_snake_case)] // the exported names are cuDNN's

mod backend;
mod compute;
mod control;
mod descriptors;
mod handle;
mod launch;
mod layers;
mod legacy;
mod method;
mod number;
mod pointwise;
mod problem;
mod status;
mod tensor;

use std::mem::MaybeUninit;

use status::Status;

tightfit_mock_support::levers! {
    control: control::CONTROL,
    modules: [handle, legacy, layers, backend],
    functions: [tightfitMockCudnnReset, tightfitMockCudnnFail, tightfitMockCudnnCalls, tightfitMockCudnnCount],
}

/// Room for one answer, or null: an out-parameter of C, whose caller owes that it is null or points to room for a `T`.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// A handle: never dereferenced, only looked up.
type Handle = usize;

/// Refuses a null out-parameter.
fn room<'a, T>(out: Out<'a, T>) -> Result<&'a mut MaybeUninit<T>, Status> {
    out.ok_or(Status::NULL_POINTER)
}

/// The `len` elements at a C array.
///
/// # Safety
/// `array` is null or points to `len` initialized elements that live for the time of the call.
unsafe fn elements<'a, T>(array: *const T, len: i64) -> Result<&'a [T], Status> {
    match usize::try_from(len) {
        Ok(0) => Ok(&[]),
        // SAFETY: not null here; the rest is the caller's.
        Ok(len) if !array.is_null() => Ok(unsafe { std::slice::from_raw_parts(array, len) }),
        Ok(_) => Err(Status::NULL_POINTER),
        Err(_) => Err(Status::BAD_PARAM),
    }
}
