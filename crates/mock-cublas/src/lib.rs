//! A cuBLAS for machines without a GPU: matrix products by plain loops on the threads of mock-cuda's streams. Signatures and
//! constants are those of cuBLAS 13; see README.md for what tests can ask of it.
//!
//! `exports` the C functions · `product` the loops · `control` what tests ask for, and the one way into every function · `driver`, `number`, `table`,
//! `status`, `injection` are mock-cudnn's

#![allow(non_snake_case)] // the exported names are cuBLAS's

mod control;
#[path = "../../mock-cudnn/src/driver.rs"]
mod driver;
mod exports;
#[path = "../../mock-support/src/injection.rs"]
mod injection;
#[path = "../../mock-cudnn/src/number.rs"]
#[allow(dead_code)] // what convolutions alone round
mod number;
mod product;
#[path = "../../mock-cudnn/src/status.rs"]
#[allow(dead_code)] // cuDNN's statuses, in which the shared files answer
mod status;
#[path = "../../mock-cudnn/src/table.rs"]
mod table;
