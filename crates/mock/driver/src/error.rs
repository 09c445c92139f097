//! The driver's result codes that this library answers.

use std::ffi::c_int;

use tightfit_mock_support::Status;

/// A `CUresult`: any integer, because tests ask for unknown ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

macro_rules! codes {
    ($($name:ident = $value:literal;)*) => {
        impl Code {
            $(#[doc = concat!("`CUDA_ERROR_", stringify!($name), "`")] pub const $name: Code = Code($value);)*
        }
    };
}

codes! {
    SUCCESS = 0;
    INVALID_VALUE = 1;
    OUT_OF_MEMORY = 2;
    NOT_INITIALIZED = 3;
    NO_DEVICE = 100;
    INVALID_DEVICE = 101;
    INVALID_CONTEXT = 201;
    ECC_UNCORRECTABLE = 214;
    INVALID_HANDLE = 400;
    ILLEGAL_STATE = 401;
    NOT_FOUND = 500;
    NOT_READY = 600;
    ILLEGAL_ADDRESS = 700;
    MISALIGNED_ADDRESS = 716;
    LAUNCH_FAILED = 719;
    CAPTURE_UNSUPPORTED = 900;
    CAPTURE_INVALIDATED = 901;
    CAPTURE_MERGE = 902;
    CAPTURE_UNMATCHED = 903;
    CAPTURE_UNJOINED = 904;
    CAPTURE_ISOLATION = 905;
    CAPTURED_EVENT = 907;
    UNKNOWN = 999;
}

impl Code {
    /// Whether the context is lost with it: every later call in it answers the same.
    pub fn is_sticky(self) -> bool {
        self == Code::ECC_UNCORRECTABLE || (700..=719).contains(&self.0)
    }
}

impl Status for Code {
    const SUCCESS: Code = Code::SUCCESS;
    const PANICKED: Code = Code::UNKNOWN;

    fn of(code: c_int) -> Code {
        Code(code)
    }
}
