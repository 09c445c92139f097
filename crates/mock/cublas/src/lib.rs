//! A cuBLAS for machines without a GPU: matrix products by plain loops on the threads of mock-cuda's streams. Signatures and
//! constants are from cuBLAS 13. README.md lists the requests of tests.
//!
//! `exports` the C functions · `product` the loops · `control` what tests ask for, and the way into every function

#![allow(non_snake_case)] // the exported names are cuBLAS's

mod control;
mod exports;
mod product;

tightfit_mock_support::levers! {
    control: control::CONTROL,
    modules: [exports],
    functions: [tightfitMockCublasReset, tightfitMockCublasFail, tightfitMockCublasCalls, tightfitMockCublasCount],
}
