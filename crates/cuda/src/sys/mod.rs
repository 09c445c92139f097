//! The C side, and nothing more: types, constants and function tables of the CUDA driver, of cuDNN and of cuBLAS.
//!
//! Only what this crate uses is declared. Checked against `cuda.h` of CUDA 13 and `cudnn_graph.h`, `cudnn_ops.h` and
//! `cudnn_cnn.h` of cuDNN 9.19. Status codes and enums are transparent integers, not Rust enums: a newer library may
//! return a number that no header here knows, and that must stay a number.
//!
//! ```text
//! sys    what C declares                        this module
//! load   where the libraries are                finds, opens, checks versions
//! call   status -> Result, out-parameter -> value
//! safe   owners: alive as long as needed, destroyed once, errors in drop surface at the next call
//! ```

pub mod cublas;
pub mod cudnn;
pub mod driver;
pub mod layers;

use std::ffi::c_void;
use std::fmt;

/// Declares status codes: a transparent integer that prints by name where the name is known, else by number.
macro_rules! status {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $($code:ident = $value:literal;)*) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub ::std::ffi::c_int);

        #[allow(missing_docs)]
        impl $name {
            $(pub const $code: $name = $name($value);)*

            /// The header's name of this code, if it is one of those known here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(concat!($prefix, stringify!($code))),)*
                    _ => None,
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => write!(f, "unknown code {}", self.0),
                }
            }
        }

        impl ::std::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    };
}

/// Declares enums of C: a transparent integer with the constants in use.
macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident: $($constant:ident = $value:literal),* ;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub ::std::ffi::c_int);

        #[allow(missing_docs)]
        impl $name {
            $(pub const $constant: $name = $name($value);)*
        }
    )*};
}

/// Declares opaque objects of C.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name(pub *mut ::std::ffi::c_void);

        impl $name {
            /// No object: what an out-parameter holds before the call.
            pub const NULL: $name = $name(::std::ptr::null_mut());
        }
    )*};
}

/// Declares a library's functions as a table whose every entry is resolved before the table exists.
macro_rules! functions {
    ($(#[$doc:meta])* $name:ident, $library:literal, $($field:ident = $symbol:literal: fn($($argument:ty),*) -> $result:ty;)*) => {
        $(#[$doc])*
        #[allow(missing_docs)]
        pub struct $name {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            /// Resolves every function of the table in an open library, which stays open until the process ends: both
            /// libraries start threads and register exit handlers, so that unloading either is not safe.
            ///
            /// # Errors
            /// [`Unresolved`](crate::sys::Unresolved) naming the first function that is not there.
            ///
            /// # Safety
            /// `library` is the library that the declarations describe.
            pub unsafe fn resolve(library: ::libloading::os::unix::Library) -> Result<$name, $crate::sys::Unresolved> {
                let library = ::std::mem::ManuallyDrop::new(library);
                Ok($name {$(
                    // SAFETY: the caller vouches for the library, and the signature is the one in its header; the
                    // library is never closed, so the address stays good.
                    $field: *unsafe { library.get($symbol.as_bytes()) }.map_err(|source| $crate::sys::Unresolved {
                        library: $library,
                        symbol: $symbol,
                        source,
                    })?,
                )*})
            }
        }
    };
}

pub(crate) use {functions, integers, objects, status};

/// A library lacks a function.
#[derive(Debug, thiserror::Error)]
#[error("{library} has no {symbol}: it is too old, or not {library} at all")]
pub struct Unresolved {
    /// The library.
    pub library: &'static str,
    /// The function.
    pub symbol: &'static str,
    /// The loader's message.
    pub source: libloading::Error,
}

/// An address in device memory, as the driver counts it: never dereferenced here.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// The address as cuDNN's functions take it.
    pub fn as_void(self) -> *mut c_void {
        self.0 as *mut c_void
    }

    /// The address `bytes` further.
    pub fn offset(self, bytes: usize) -> DevicePtr {
        DevicePtr(self.0 + bytes as u64)
    }
}

impl fmt::LowerHex for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
