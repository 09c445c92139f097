//! What can go wrong between this crate and the two libraries, and how it reads as an error of the project.

use std::fmt;
use std::path::PathBuf;

use tightfit_core::{Bytes, Error, Operation};

use crate::sys::cublas::CublasStatus;
use crate::sys::cudnn::CudnnStatus;
use crate::sys::driver::DriverStatus;

/// One place where a library was looked for, and why it was not taken from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// What led there: an option, an environment variable, Python, the loader.
    pub because: String,
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub problem: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.path.display(), self.because, self.problem)
    }
}

fn list(tried: &[Tried]) -> String {
    tried.iter().map(|place| format!("\n  {place}")).collect()
}

/// What failed in the CUDA driver, in cuDNN, or on the way to them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library is nowhere to be found.
    #[error("{library} was not found; set {variable} to its file or folder. Looked at:{}", list(tried))]
    Missing {
        /// The file name by which it is known.
        library: &'static str,
        /// The environment variable that names it.
        variable: &'static str,
        /// Every place, in the order of looking.
        tried: Vec<Tried>,
    },

    /// A library lacks a function.
    #[error("{library} has no {symbol}: it is too old, or not that library at all")]
    Symbol {
        /// The library.
        library: &'static str,
        /// The function.
        symbol: &'static str,
        /// What the loader says.
        #[source]
        source: libloading::Error,
    },

    /// cuDNN is older than the interface used here.
    #[error("{} is cuDNN {version}, and 9.0.0 is the oldest that serves", path.display())]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: crate::CudnnVersion,
    },

    /// There is no such device.
    #[error("there is no CUDA device {ordinal}; the driver has {count}, counted from 0")]
    NoDevice {
        /// The device asked for.
        ordinal: usize,
        /// How many there are.
        count: usize,
    },

    /// A driver call failed.
    #[error("{call}: {status}")]
    Driver {
        /// The C function.
        call: &'static str,
        /// What it returned.
        status: DriverStatus,
    },

    /// A cuDNN call failed.
    #[error("{call}: {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Cudnn {
        /// The C function.
        call: &'static str,
        /// What it returned.
        status: CudnnStatus,
        /// What the library adds in words; may be empty.
        detail: String,
    },

    /// A cuBLAS call failed.
    #[error("{call}: {status}")]
    Cublas {
        /// The C function.
        call: &'static str,
        /// What it returned.
        status: CublasStatus,
    },

    /// A layer that CUDA does not compute, or operands that are not the layer's.
    #[error("{layer}: {what}")]
    Unfit {
        /// The layer.
        layer: &'static str,
        /// What is wrong, with the values.
        what: String,
    },

    /// The device has no room.
    #[error("out of device memory: {wanted} wanted, {free} free; take a smaller mini-batch or micro-batch")]
    OutOfMemory {
        /// The size asked for.
        wanted: Bytes,
        /// What was free when it failed.
        free: Bytes,
    },

    /// An extent or stride does not fit the 32 bits of the legacy interface.
    #[error("{what} {value} does not fit in 32 bits")]
    TooLarge {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: usize,
    },

    /// Padding that the legacy interface has no words for.
    #[error("the padding before and after differs, which the legacy interface cannot say")]
    Uneven,

    /// A legacy call on half-precision data that should write f32.
    #[error("the legacy interface has no call on half-precision data that writes f32")]
    MixedOutput,

    /// An engine that is known to do harm.
    #[error("{what} (known of this version of cuDNN), so it is not run")]
    Harmful {
        /// What it does.
        what: &'static str,
    },

    /// A name that the legacy interface does not have.
    #[error("{operation} has no algorithm {name}")]
    NoSuchAlgorithm {
        /// The name.
        name: String,
        /// The operation it was asked for.
        operation: Operation,
    },

    /// A part of device or host memory that is not in its buffer.
    #[error("bytes {start} to {end} of a buffer of {len}")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
        /// Bytes of the buffer.
        len: usize,
    },

    /// An address that is not a multiple of what its plan was made for.
    #[error("address {address:#x} is not a multiple of {alignment}, which its plan was made for")]
    Misaligned {
        /// The address.
        address: u64,
        /// What it should be a multiple of.
        alignment: usize,
    },

    /// cuDNN does not answer as its documentation says.
    #[error("cuDNN answered {count} elements for {what}, where {expected} belong")]
    Answer {
        /// The attribute asked for.
        what: &'static str,
        /// How many came.
        count: i64,
        /// How many belong there.
        expected: &'static str,
    },

    /// An algorithm wrote outside its workspace.
    #[error("{algorithm} wrote outside its workspace of {workspace}: its results cannot be trusted")]
    Overrun {
        /// Which algorithms ran in it.
        algorithm: String,
        /// The size that the library had asked for.
        workspace: Bytes,
    },
}

impl CudaError {
    /// Whether the device's context is lost: every later call fails, and only a new process helps.
    pub fn is_sticky(&self) -> bool {
        matches!(self, CudaError::Driver { status, .. } if status.is_sticky())
    }

    /// Whether it was refused because a stream records a graph.
    pub fn is_of_capture(&self) -> bool {
        matches!(self, CudaError::Driver { status, .. } if status.is_of_capture())
    }

    /// Whether the library has nothing for what was asked, rather than that something went wrong.
    pub fn is_not_supported(&self) -> bool {
        matches!(self, CudaError::TooLarge { .. } | CudaError::Uneven)
            || matches!(self, CudaError::Cudnn { status, .. } if status.is_not_supported())
    }

    /// Whether less memory would have helped.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, CudaError::OutOfMemory { .. })
            || matches!(self, CudaError::Driver { status: DriverStatus::OUT_OF_MEMORY, .. })
            || matches!(self, CudaError::Cudnn { status: CudnnStatus::INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, .. })
    }

    /// This error as one of the project's, with what the backend was doing; a lost context stays distinguishable.
    pub fn while_doing(self, what: impl fmt::Display) -> Error {
        let (backend, lost, what) = ("cuda".to_owned(), self.is_sticky(), format!("{what}: {self}"));
        let source: Option<Box<dyn std::error::Error + Send + Sync>> = Some(Box::new(self));
        if lost { Error::DeviceLost { backend, what, source } } else { Error::Backend { backend, what, source } }
    }
}

/// A count in the type in which a library takes it.
///
/// # Errors
/// [`CudaError::TooLarge`].
pub(crate) fn narrow<T: TryFrom<usize>>(what: &'static str, value: usize) -> Result<T, CudaError> {
    T::try_from(value).map_err(|_| CudaError::TooLarge { what, value })
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        error.while_doing("the CUDA backend")
    }
}
