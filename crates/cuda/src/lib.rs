//! Convolutions and the other layers on NVIDIA GPUs through cuDNN 9 and cuBLAS: every legacy
//! algorithm and every engine that cuDNN proposes, as one set of candidates.
//!
//! Builds without CUDA: opening a [`CudaBackend`] finds the driver and cuDNN, and if they are missing, the error lists
//! the places searched ([`doctor`] reports everything, with advice). All raw calls of the project are here, in four
//! levels:
//!
//! | module | what it adds |
//! |---|---|
//! | [`sys`] | types, constants and function tables as the C headers have them |
//! | [`load`] | where the libraries are; versions |
//! | [`call`] | status to `Result`, out-parameter to value |
//! | [`safe`] | owners: streams, events, memory, graphs, descriptors |
//!
//! Above them, only launches are unsafe: each states which checks cover its memory. `convolution` turns a problem into
//! calls, `backend` measures and runs them alone or inside other programs, [`layers`] has the layers of training, and
//! `kernels` the CUDA source of the kernels of this project.
//!
//! ```no_run
//! use tightfit_conv::Backend;
//! use tightfit_cuda::{CudaBackend, Options};
//!
//! let mut backend = CudaBackend::open(&Options::default())?;
//! for offer in backend.offers(&"forward n64 c64 h56 w56 k64 r3 s3 pad1 f32".parse()?)? {
//!     println!("{} {:?}", offer.algorithm, offer.workspace);
//! }
//! # Ok::<(), tightfit_units::Error>(())
//! ```
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod backend;
pub mod call;
mod convolution;
pub mod doctor;
mod error;
pub mod layers;
pub mod load;
pub mod safe;
pub mod sys;
mod version;

pub use backend::{
    BesideCaptures, Builder, Chosen, Course, CourseResult, CudaBackend, Guest, GuestProgram, Host, Lane, Moment,
    NotEnqueued, Options, Pattern, Trial, legacy_chosen, must_be_proven, on_copies,
};
pub use error::{Attempt, CudaError};
pub use version::CudnnVersion;
