//! Numbers of a safetensors file to and from 32-bit floats.

use std::borrow::Cow;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, View};
use tightfit_conv::problem::Storage;

/// Numbers to write, converted to bytes only when they are written.
pub struct Words<'a> {
    shape: Vec<usize>,
    numbers: &'a [f32],
}

impl<'a> Words<'a> {
    /// Numbers in this shape.
    pub fn new(shape: Vec<usize>, numbers: &'a [f32]) -> Words<'a> {
        Words { shape, numbers }
    }
}

impl View for Words<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Owned(self.numbers.iter().flat_map(|number| number.to_le_bytes()).collect())
    }

    fn data_len(&self) -> usize {
        4 * self.numbers.len()
    }
}

/// The numbers of a tensor; `None` if they are not floats.
pub fn numbers(tensor: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = tensor.data();
    match tensor.dtype() {
        Dtype::F32 => Some(Storage::F32.decode(bytes)),
        Dtype::F16 => Some(Storage::F16.decode(bytes)),
        Dtype::BF16 => Some(Storage::Bf16.decode(bytes)),
        Dtype::F64 => Some(bytes.as_chunks().0.iter().map(|eight| f64::from_le_bytes(*eight) as f32).collect()),
        _ => None,
    }
}
