//! A CUDA driver for machines without a GPU: a `libcuda.so.1` whose devices are host memory and whose streams are threads.
//!
//! It answers the driver functions that this project calls, with the driver's own rules: work runs late and in stream
//! order, memory is bounded and every access checked, an error in a kernel lasts until the context ends, and a stream
//! under capture refuses what the real one refuses. Tests steer it through the `tightfitMockCuda...` functions or
//! environment variables (README.md). Signatures were checked against cuda.h of CUDA 13.
//!
//! `memory` blocks and their ranges · `stream` queues on threads · `clock` virtual time · `capture` what a
//! graph records · `kernels` of a program · `state` all live objects · `control` what tests ask for · `call` the way
//! into every function · `exports` the C functions, by subject

#![allow(non_snake_case)] // the exported names are the driver's

mod call;
mod capture;
mod clock;
mod control;
mod error;
mod exports;
mod kernels;
mod kernels_last;
mod kernels_norm;
mod launch;
mod memory;
mod state;
mod stream;
mod windows;

tightfit_mock_support::levers! {
    control: control::CONTROL,
    modules: [state],
    functions: [tightfitMockCudaReset, tightfitMockCudaFail, tightfitMockCudaCalls, tightfitMockCudaCount],
}
