//! Storage types of elements, and conversion of 32-bit numbers to and from their bytes.

use half::{bf16, f16};

/// The storage type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Storage {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16: the upper half of a binary32.
    Bf16,
}

impl Storage {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::F16 | Storage::Bf16 => 2,
        }
    }

    /// The bytes of `values`, in the machine's order; each is rounded to the nearest, ties to even.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        let mut bytes = vec![0; values.len() * self.size()];
        self.encode_to(values, &mut bytes);
        bytes
    }

    /// Like [`Storage::encode`], into `bytes`; if one is longer, its rest is left unchanged.
    pub fn encode_to(self, values: &[f32], bytes: &mut [u8]) {
        match self {
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

    /// The exact values of `bytes`; an incomplete value at the end is ignored.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Storage::F32 => bytes.as_chunks().0.iter().map(|value| f32::from_ne_bytes(*value)).collect(),
            Storage::F16 => bytes.as_chunks().0.iter().map(|value| f16::from_ne_bytes(*value).to_f32()).collect(),
            Storage::Bf16 => bytes.as_chunks().0.iter().map(|value| bf16::from_ne_bytes(*value).to_f32()).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_values_round_trip_and_others_round_to_even() {
        let exact = [0.0, 1.0, -2.5, 1024.0, -0.375];
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            assert_eq!(storage.decode(&storage.encode(&exact)), exact);
        }
        assert_eq!(Storage::F16.decode(&Storage::F16.encode(&[2049.0, 2051.0])), [2048.0, 2052.0]);
        assert_eq!(Storage::Bf16.decode(&Storage::Bf16.encode(&[257.0, 259.0])), [256.0, 260.0]);
    }

    #[test]
    fn exact_numbers_go_there_and_back() {
        let numbers = [0.0, -1.5, 0.25, 96.0];
        for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
            let bytes = storage.encode(&numbers);
            assert_eq!((bytes.len(), &storage.decode(&bytes)[..]), (4 * storage.size(), &numbers[..]));
        }
    }
}
