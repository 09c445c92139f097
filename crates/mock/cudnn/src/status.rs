//! The status codes that this library answers, with their names.

use std::ffi::{CStr, c_int};

use tightfit_mock_support::driver::Unreachable;
use tightfit_mock_support::{self as support, Absent};

/// A `cudnnStatus_t`: any integer, because tests ask for unknown ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub i32);

macro_rules! statuses {
    ($($name:ident = $value:literal, $symbol:literal;)*) => {
        impl Status {
            $(#[doc = stringify!($symbol)] pub const $name: Status = Status($value);)*

            /// The status's symbol, where it is known.
            pub fn name(self) -> Option<&'static CStr> {
                match self { $(Status::$name => Some($symbol),)* _ => None }
            }
        }
    };
}

statuses! {
    SUCCESS = 0, c"CUDNN_STATUS_SUCCESS";
    NOT_INITIALIZED = 1001, c"CUDNN_STATUS_NOT_INITIALIZED";
    BAD_PARAM = 2000, c"CUDNN_STATUS_BAD_PARAM";
    NULL_POINTER = 2002, c"CUDNN_STATUS_BAD_PARAM_NULL_POINTER";
    MISALIGNED_POINTER = 2003, c"CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER";
    NOT_FINALIZED = 2004, c"CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED";
    OUT_OF_BOUND = 2005, c"CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND";
    SIZE_INSUFFICIENT = 2006, c"CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT";
    SHAPE_MISMATCH = 2008, c"CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH";
    ATTRIBUTE_TYPE = 2010, c"CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE";
    DESCRIPTOR_TYPE = 2012, c"CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE";
    NOT_SUPPORTED = 3000, c"CUDNN_STATUS_NOT_SUPPORTED";
    UNSUPPORTED_PATTERN = 3001, c"CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN";
    UNSUPPORTED_SHAPE = 3002, c"CUDNN_STATUS_NOT_SUPPORTED_SHAPE";
    UNSUPPORTED_TYPE = 3003, c"CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE";
    UNSUPPORTED_LAYOUT = 3004, c"CUDNN_STATUS_NOT_SUPPORTED_LAYOUT";
    INTERNAL_ERROR = 4000, c"CUDNN_STATUS_INTERNAL_ERROR";
    EXECUTION_FAILED = 5000, c"CUDNN_STATUS_EXECUTION_FAILED";
    EXECUTION_FAILED_DRIVER = 5001, c"CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER";
}

impl support::Status for Status {
    const SUCCESS: Status = Status::SUCCESS;
    const PANICKED: Status = Status::INTERNAL_ERROR;

    fn of(code: c_int) -> Status {
        Status(code)
    }
}

impl From<Absent> for Status {
    fn from(_: Absent) -> Status {
        Status::BAD_PARAM
    }
}

impl From<Unreachable> for Status {
    fn from(why: Unreachable) -> Status {
        match why {
            Unreachable::NotLoaded => Status::NOT_INITIALIZED,
            Unreachable::Refused(_) => Status::EXECUTION_FAILED_DRIVER,
        }
    }
}
