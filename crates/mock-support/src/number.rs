//! Storage types and roundings.

use half::{bf16, f16};

use crate::status::Status;

/// A storage or compute type that this library knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// `CUDNN_DATA_FLOAT`
    F32,
    /// `CUDNN_DATA_HALF`
    F16,
    /// `CUDNN_DATA_BFLOAT16`
    Bf16,
}

/// cuDNN's number of a type.
pub fn raw(data_type: DataType) -> i32 {
    match data_type {
        DataType::F32 => 0,
        DataType::F16 => 2,
        DataType::Bf16 => 9,
    }
}

impl DataType {
    /// The type of cuDNN's number.
    ///
    /// # Errors
    /// [`Status::UNSUPPORTED_TYPE`] for the types not known here, [`Status::BAD_PARAM`] for numbers that are no type.
    pub fn from_raw(raw: i32) -> Result<DataType, Status> {
        match raw {
            0 => Ok(DataType::F32),
            2 => Ok(DataType::F16),
            9 => Ok(DataType::Bf16),
            1 | 3..=8 | 10..=21 => Err(Status::UNSUPPORTED_TYPE),
            _ => Err(Status::BAD_PARAM),
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        if self == DataType::F32 { 4 } else { 2 }
    }

    /// The nearest value of the type, ties to even.
    pub fn round(self, value: f32) -> f32 {
        match self {
            DataType::F32 => value,
            DataType::F16 => f16::from_f32(value).to_f32(),
            DataType::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }

    /// Reads element `index`.
    ///
    /// # Safety
    /// `base` points to at least `index + 1` elements of this type.
    pub unsafe fn read(self, base: *const u8, index: usize) -> f32 {
        // SAFETY: by the contract; unaligned reads need no alignment.
        unsafe {
            match self {
                DataType::F32 => base.cast::<f32>().add(index).read_unaligned(),
                DataType::F16 => base.cast::<f16>().add(index).read_unaligned().to_f32(),
                DataType::Bf16 => base.cast::<bf16>().add(index).read_unaligned().to_f32(),
            }
        }
    }

    /// Writes element `index`, rounded.
    ///
    /// # Safety
    /// `base` points to room for at least `index + 1` elements of this type.
    pub unsafe fn write(self, base: *mut u8, index: usize, value: f32) {
        // SAFETY: by the contract; unaligned writes need no alignment.
        unsafe {
            match self {
                DataType::F32 => base.cast::<f32>().add(index).write_unaligned(value),
                DataType::F16 => base.cast::<f16>().add(index).write_unaligned(f16::from_f32(value)),
                DataType::Bf16 => base.cast::<bf16>().add(index).write_unaligned(bf16::from_f32(value)),
            }
        }
    }
}

/// The nearest value with ten bits of mantissa, as tensor cores read f32.
pub fn round_tf32(value: f32) -> f32 {
    if !value.is_finite() {
        return value;
    }
    let bits = value.to_bits();
    let even = (bits >> 13) & 1;
    f32::from_bits((bits + 0xfff + even) & !0x1fff)
}
