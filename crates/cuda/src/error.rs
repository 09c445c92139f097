//! Errors of the CUDA driver, cuDNN and cuBLAS, and how they become errors of the project.

use std::fmt;
use std::path::PathBuf;

use tightfit_conv::Operation;
use tightfit_units::{Bytes, Error};

use crate::CudnnVersion;
use crate::sys::Unresolved;
use crate::sys::cublas::CublasStatus;
use crate::sys::cudnn::CudnnStatus;
use crate::sys::driver::DriverStatus;

/// A place searched for a library, and why the library was not loaded from there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Why it was searched: an option, an environment variable, Python, the loader.
    pub because: String,
    /// The file.
    pub path: PathBuf,
    /// Why the library was not loaded.
    pub problem: String,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.path.display(), self.because, self.problem)
    }
}

fn list(tried: &[Attempt]) -> String {
    tried.iter().map(|place| format!("\n  {place}")).collect()
}

/// A failure in the CUDA driver or its libraries, or while loading them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// A library was not found.
    #[error("{library} was not found; set {variable} to its file or folder. Looked at:{}", list(tried))]
    Missing {
        /// Its file name.
        library: &'static str,
        /// The environment variable that names it.
        variable: &'static str,
        /// Every place, in search order.
        tried: Vec<Attempt>,
    },

    /// A library lacks a function.
    #[error(transparent)]
    Symbol(#[from] Unresolved),

    /// cuDNN is older than the interface used here.
    #[error("{} is cuDNN {version}; the oldest supported version is 9.0.0", path.display())]
    TooOld {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: CudnnVersion,
    },

    /// The device does not exist.
    #[error("there is no CUDA device {ordinal}; the driver reports {count}, counted from 0")]
    NoDevice {
        /// The requested device.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },

    /// A driver call failed.
    #[error("{call}: {status}")]
    Driver {
        /// The C function.
        call: &'static str,
        /// The returned status.
        status: DriverStatus,
    },

    /// A cuDNN call failed.
    #[error("{call}: {status}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Cudnn {
        /// The C function.
        call: &'static str,
        /// The returned status.
        status: CudnnStatus,
        /// The library's own message; may be empty.
        detail: String,
    },

    /// A cuBLAS call failed.
    #[error("{call}: {status}")]
    Cublas {
        /// The C function.
        call: &'static str,
        /// The returned status.
        status: CublasStatus,
    },

    /// A layer that CUDA does not support, or operands that do not match the layer.
    #[error("{layer}: {what}")]
    Unfit {
        /// The layer.
        layer: &'static str,
        /// The fault, with the values.
        what: String,
    },

    /// The device is out of memory.
    #[error("out of device memory: {wanted} requested, {free} free; use a smaller mini-batch or micro-batch")]
    OutOfMemory {
        /// The requested size.
        wanted: Bytes,
        /// The free memory at that time.
        free: Bytes,
    },

    /// An extent or stride does not fit the 32 bits of the legacy interface.
    #[error("{what} {value} does not fit in 32 bits")]
    TooLarge {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: usize,
    },

    /// Padding that the legacy interface cannot express.
    #[error("the legacy interface does not support different padding before and after")]
    Uneven,

    /// A legacy call on half-precision data with an f32 output.
    #[error("the legacy interface cannot read half-precision data and write f32")]
    MixedOutput,

    /// An engine with a known defect.
    #[error("not run because it {what} (a known defect of this cuDNN version)")]
    Harmful {
        /// The defect.
        what: &'static str,
    },

    /// An engine that failed when it was tried, or was not tried.
    #[error("not used for this problem because it {what} (tried on this device)")]
    Unproven {
        /// How it failed.
        what: &'static str,
    },

    /// A name that the legacy interface does not have.
    #[error("{operation} has no algorithm {name}")]
    NoSuchAlgorithm {
        /// The name.
        name: String,
        /// The requested operation.
        operation: Operation,
    },

    /// A range of device or host memory that lies outside its buffer.
    #[error("bytes {start} to {end} are outside a buffer of {len} bytes")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// Byte after the last.
        end: usize,
        /// Bytes of the buffer.
        len: usize,
    },

    /// An address that is less aligned than its plan requires.
    #[error("address {address:#x} is not a multiple of {alignment}, as its plan requires")]
    Misaligned {
        /// The address.
        address: u64,
        /// The alignment that the plan requires.
        alignment: usize,
    },

    /// cuDNN's answer contradicts its documentation.
    #[error("cuDNN returned {count} elements for {what}, expected {expected}")]
    Answer {
        /// The requested attribute.
        what: &'static str,
        /// The number it returned.
        count: i64,
        /// The expected number.
        expected: &'static str,
    },

    /// An algorithm wrote outside its workspace.
    #[error("{algorithm} wrote outside its workspace of {workspace}: its results cannot be trusted")]
    Overrun {
        /// The algorithms that ran in it.
        algorithm: String,
        /// The size that the library requested.
        workspace: Bytes,
    },
}

impl CudaError {
    /// Whether the device's context is lost: every later call fails, and only a new process helps.
    pub fn is_sticky(&self) -> bool {
        matches!(self, CudaError::Driver { status, .. } if status.is_sticky())
    }

    /// Whether the call was refused because a stream is capturing a graph.
    pub fn is_of_capture(&self) -> bool {
        matches!(self, CudaError::Driver { status, .. } if status.is_of_capture())
    }

    /// Whether the library does not support the request, as opposed to something going wrong.
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

    /// Converts this error to the project's, adding what the backend was doing; a lost context stays distinguishable.
    pub fn while_doing(self, what: impl fmt::Display) -> Error {
        let (backend, lost, what) = ("cuda".to_owned(), self.is_sticky(), format!("{what}: {self}"));
        let source: Option<Box<dyn std::error::Error + Send + Sync>> = Some(Box::new(self));
        if lost { Error::DeviceLost { backend, what, source } } else { Error::Backend { backend, what, source } }
    }
}

/// Converts a count to the type that a library takes.
pub(crate) fn narrow<T: TryFrom<usize>>(what: &'static str, value: usize) -> Result<T, CudaError> {
    T::try_from(value).map_err(|_| CudaError::TooLarge { what, value })
}

impl From<CudaError> for Error {
    fn from(error: CudaError) -> Error {
        error.while_doing("the CUDA backend")
    }
}
