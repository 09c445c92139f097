//! One convolution: its problem, its algorithms and their costs, and how to divide its mini-batch so
//! that the fastest of them fit in memory. Also several convolutions under one total.
//!
//! A mini-batch of 256 within 64 MiB, from three measurements:
//!
//! ```
//! use tightfit_conv::optimize::{divide, undivided};
//! use tightfit_conv::{Algorithm, Candidate, DivisionCost, Problem};
//! use tightfit_units::{Bytes, Nanos};
//!
//! let problem: Problem = "forward n256 c96 h27 w27 k256 r5 s5 pad2 f32".parse()?;
//! let measured = |name: &str, micro_batch, ms: u64, mib| Candidate {
//!     algorithm: Algorithm::new(name),
//!     micro_batch,
//!     time: Nanos(ms * 1_000_000),
//!     workspace: Bytes::mib(mib),
//! };
//! let candidates = [measured("gemm", 256, 90, 0), measured("fft", 256, 40, 512), measured("fft", 32, 6, 60)];
//! let limit = Bytes::mib(64);
//! let whole = undivided(&problem, &candidates, limit).unwrap();
//! let divided = divide(&problem, &candidates, limit, DivisionCost::default())?;
//! assert_eq!((whole.time(), divided.time()), (Nanos(90_000_000), Nanos(48_000_000)));
//! assert_eq!(divided.to_string(), "8 x 32 fft");
//! # Ok::<(), tightfit_units::Error>(())
//! ```
//!
//! To add a backend, implement [`Backend`]. The folders form layers, and each imports only from those above it:
//!
//! ```text
//! problem      one convolution, its text form, and the parts that it is divided into
//! candidate    the choices for a kernel and their costs
//! backend      the interface of all devices
//! optimize     algorithms over candidates: divide, front, allot, check
//! execute      run configurations and verify their results
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod backend;
pub mod candidate;
pub mod execute;
pub mod optimize;
pub mod problem;

pub use backend::{Backend, Device, Offer};
pub use candidate::{Algorithm, Candidate, Configuration, DivisionCost, Measurement, Notes};
pub use problem::{Axis, Convolution, Layout, Operation, Problem, Types};
