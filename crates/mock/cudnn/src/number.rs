//! cuDNN's numbers of storage and compute types.

pub use tightfit_mock_support::number::{DataType, round_tf32};

use crate::status::Status;

/// cuDNN's number of a type: `CUDNN_DATA_FLOAT`, `_HALF`, `_BFLOAT16`.
pub fn raw(data_type: DataType) -> i32 {
    match data_type {
        DataType::F32 => 0,
        DataType::F16 => 2,
        DataType::Bf16 => 9,
    }
}

/// The type of cuDNN's number.
///
/// # Errors
/// [`Status::UNSUPPORTED_TYPE`] for the types not known here, [`Status::BAD_PARAM`] for numbers that are no type.
pub fn type_of(raw: i32) -> Result<DataType, Status> {
    match raw {
        0 => Ok(DataType::F32),
        2 => Ok(DataType::F16),
        9 => Ok(DataType::Bf16),
        1 | 3..=8 | 10..=21 => Err(Status::UNSUPPORTED_TYPE),
        _ => Err(Status::BAD_PARAM),
    }
}
