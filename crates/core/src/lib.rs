//! The ideas of tightfit, in safe Rust without device code: what a convolution is, what was measured of it, and how to
//! divide its mini-batch so that the fastest algorithms fit the memory there is.
//!
//! The data goes one way:
//!
//! ```text
//! network -> problem -> profile (measure, cache) -> optimize (divide, front, allot) -> configuration -> execute
//! ```
//!
//! A [`Backend`] answers which algorithms exist, what workspace each needs, how long it takes, and runs it.
#![forbid(unsafe_code)]

mod error;
pub mod execute;
pub mod network;
pub mod optimize;
pub mod plan;
pub mod problem;
pub mod profile;
mod quantity;
pub mod report;
mod words;

pub use error::Error;
pub use network::Network;
pub use optimize::{Candidate, Configuration, DivisionCost};
pub use problem::{Axis, Convolution, Layout, Operation, Problem, Types};
pub use profile::{Algorithm, Backend, Device, Measurement, Notes, Offer};
pub use quantity::{Bytes, Nanos};
