//! Storage types and roundings.

use half::{bf16, f16};

/// A storage or compute type that the libraries know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataType {
    /// 32 bits.
    F32,
    /// IEEE's 16 bits.
    F16,
    /// The upper 16 bits of an f32.
    Bf16,
}

impl DataType {
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
