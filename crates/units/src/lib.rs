//! The base of all crates of tightfit: bytes and times, the error type, and files that are read in bounded memory and written
//! as a whole.
//!
//! ```
//! use tightfit_units::{Bytes, Error, Nanos};
//!
//! let limit: Bytes = "64MiB".parse()?;
//! assert_eq!(limit, Bytes::mib(64));
//! assert_eq!(limit.to_string(), "64 MiB");
//! assert_eq!(Nanos(2_500_000).to_string(), "2.50 ms");
//! assert!(matches!("64 apples".parse::<Bytes>(), Err(Error::BadSize { .. })));
//! # Ok::<(), Error>(())
//! ```
//!
//! - `quantity` has [`Bytes`] and [`Nanos`], and `error` the one [`Error`] of all crates without device code.
//! - [`output`] writes files, and [`bounded`] reads them.
//! - [`by_name`] gives an enumeration its names in options and files.
//! - [`random`] makes reproducible numbers.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod bounded;
mod error;
pub mod output;
mod quantity;
pub mod random;
mod words;

pub use error::Error;
pub use quantity::{Bytes, Nanos};
pub use words::distance;
