//! Tensors between the host's f32 and the bytes of the device's types.

use half::{bf16, f16};
use tightfit_core::problem::Storage;

/// The bytes of `values` in a type; each is rounded to the nearest, ties to even.
pub(crate) fn encode(values: &[f32], storage: Storage) -> Vec<u8> {
    let mut bytes = vec![0; values.len() * storage.size()];
    encode_to(values, storage, &mut bytes);
    bytes
}

/// As [`encode`], into `bytes`, which are as many.
pub(crate) fn encode_to(values: &[f32], storage: Storage, bytes: &mut [u8]) {
    match storage {
        Storage::F32 => {
            for (place, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *place = value.to_ne_bytes();
            }
        }
        Storage::F16 => {
            for (place, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *place = f16::from_f32(*value).to_ne_bytes();
            }
        }
        Storage::Bf16 => {
            for (place, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *place = bf16::from_f32(*value).to_ne_bytes();
            }
        }
    }
}

/// The values that bytes of a type stand for, exactly.
pub(crate) fn decode(bytes: &[u8], storage: Storage) -> Vec<f32> {
    match storage {
        Storage::F32 => bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value)).collect(),
        Storage::F16 => bytes.as_chunks().0.iter().map(|value| f16::from_ne_bytes(*value).to_f32()).collect(),
        Storage::Bf16 => bytes.as_chunks().0.iter().map(|value| bf16::from_ne_bytes(*value).to_f32()).collect(),
    }
}

/// `len` values between -1 and 1 in a type, the same at every call: times depend on the data only in that it must be
/// neither zeros nor infinities.
pub(crate) fn random(len: usize, storage: Storage) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        // Xorshift (Marsaglia 2003), the triple 13, 7, 17.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..len).map(|_| next()).collect();
    encode(&values, storage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_type_has_come_back_and_others_go_to_the_nearest_even() {
        let exact = [0.0, 1.0, -2.5, 1024.0, -0.375];
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            assert_eq!(decode(&encode(&exact, storage), storage), exact);
        }
        assert_eq!(decode(&encode(&[2049.0, 2051.0], Storage::F16), Storage::F16), [2048.0, 2052.0]);
        assert_eq!(decode(&encode(&[257.0, 259.0], Storage::Bf16), Storage::Bf16), [256.0, 260.0]);
    }

    #[test]
    fn random_data_lies_between_the_bounds_and_is_not_constant() {
        let values = decode(&random(4096, Storage::F16), Storage::F16);
        assert!(values.iter().all(|value| (-1.0..=1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / 4096.0;
        assert!(
            mean.abs() < 0.1 && values.iter().any(|value| *value > 0.9) && values.iter().any(|value| *value < -0.9)
        );
    }
}
