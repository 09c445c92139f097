//! Number types of a convolution: how data is stored and how it is multiplied and summed.

use serde::{Deserialize, Serialize};

use super::Storage;
use tightfit_units::by_name;

/// The supported combinations of storage and arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Types {
    /// 32-bit data and arithmetic, no tensor cores.
    #[serde(rename = "f32")]
    F32,
    /// 32-bit data, products on tensor cores with 10 bits of mantissa, sums in 32 bits.
    #[serde(rename = "tf32")]
    Tf32,
    /// 16-bit data and arithmetic (cuDNN's `TRUE_HALF`).
    #[serde(rename = "f16")]
    F16,
    /// 16-bit data, arithmetic in 32 bits (cuDNN's `PSEUDO_HALF`).
    #[serde(rename = "f16-f32")]
    F16F32,
    /// bfloat16 data, arithmetic in 32 bits.
    #[serde(rename = "bf16")]
    Bf16,
}

impl Types {
    /// All five, in the order of the documentation.
    pub const ALL: [Types; 5] = [Types::F32, Types::Tf32, Types::F16, Types::F16F32, Types::Bf16];

    /// The name used in text forms, files and options.
    pub fn name(self) -> &'static str {
        match self {
            Types::F32 => "f32",
            Types::Tf32 => "tf32",
            Types::F16 => "f16",
            Types::F16F32 => "f16-f32",
            Types::Bf16 => "bf16",
        }
    }

    /// The storage type of the data.
    pub fn storage(self) -> Storage {
        match self {
            Types::F32 | Types::Tf32 => Storage::F32,
            Types::F16 | Types::F16F32 => Storage::F16,
            Types::Bf16 => Storage::Bf16,
        }
    }
}

by_name!(Types, "types");
