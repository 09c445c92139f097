//! Numbers of 32 bits to and from the bytes of a storage type.

use half::{bf16, f16};
use tightfit_core::problem::Storage;

/// The bytes of numbers, rounded to nearest.
pub fn encode(storage: Storage, numbers: &[f32]) -> Vec<u8> {
    match storage {
        Storage::F32 => numbers.iter().flat_map(|number| number.to_ne_bytes()).collect(),
        Storage::F16 => numbers.iter().flat_map(|&number| f16::from_f32(number).to_ne_bytes()).collect(),
        Storage::Bf16 => numbers.iter().flat_map(|&number| bf16::from_f32(number).to_ne_bytes()).collect(),
    }
}

/// The numbers of bytes; bytes that are no whole number at the end are left out.
pub fn decode(storage: Storage, bytes: &[u8]) -> Vec<f32> {
    match storage {
        Storage::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes)).collect(),
        Storage::F16 => bytes.as_chunks().0.iter().map(|&bytes| f16::from_ne_bytes(bytes).to_f32()).collect(),
        Storage::Bf16 => bytes.as_chunks().0.iter().map(|&bytes| bf16::from_ne_bytes(bytes).to_f32()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_numbers_go_there_and_back() {
        let numbers = [0.0, -1.5, 0.25, 96.0];
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            let bytes = encode(storage, &numbers);
            assert_eq!((bytes.len(), &decode(storage, &bytes)[..]), (4 * storage.size(), &numbers[..]));
        }
    }
}
