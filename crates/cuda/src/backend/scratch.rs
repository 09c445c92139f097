//! Device memory for measuring: random data, an output, a workspace; allocated once and reused as long as it is large
//! enough.

use std::sync::Arc;

use tightfit_core::problem::Storage;

use crate::CudaError;
use crate::safe::{Context, DeviceBuffer, Stream};

/// Bytes of random data generated on the host; the rest repeats them.
const PATTERN: usize = 1 << 20;

/// Data, other, output and workspace, in that order.
pub(super) struct Scratch {
    context: Arc<Context>,
    buffers: [DeviceBuffer; 4],
    /// The type of the random data in the first three.
    filled: Option<Storage>,
}

impl Scratch {
    /// No memory yet.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Scratch, CudaError> {
        let none = || DeviceBuffer::new(context, 0);
        Ok(Scratch { context: context.clone(), buffers: [none()?, none()?, none()?, none()?], filled: None })
    }

    /// The four buffers, each at least as long as requested; the first three hold random data of a type, except where
    /// an earlier measurement wrote its output.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] if there is not enough memory even after freeing all of it.
    pub fn reserve(
        &mut self,
        lengths: [usize; 4],
        storage: Storage,
        stream: &Stream,
    ) -> Result<&mut [DeviceBuffer; 4], CudaError> {
        self.make_room(lengths)?;
        if self.filled != Some(storage) {
            let pattern = random(PATTERN / storage.size(), storage);
            for buffer in &mut self.buffers[..3] {
                let len = buffer.len();
                let first = len.min(pattern.len());
                buffer.slice_mut(0..first)?.upload(&pattern[..first])?;
                buffer.slice_mut(0..len)?.repeat(first, stream)?;
            }
            self.filled = Some(storage);
        }
        Ok(&mut self.buffers)
    }

    /// The four buffers, each at least as long as requested, for the caller to fill.
    ///
    /// # Errors
    /// As [`Scratch::reserve`].
    pub fn borrow(&mut self, lengths: [usize; 4]) -> Result<&mut [DeviceBuffer; 4], CudaError> {
        self.make_room(lengths)?;
        self.filled = None;
        Ok(&mut self.buffers)
    }

    fn make_room(&mut self, lengths: [usize; 4]) -> Result<(), CudaError> {
        match self.grow(lengths) {
            Err(error) if error.is_out_of_memory() => {
                self.release()?;
                self.grow(lengths)
            }
            grown => grown,
        }
    }

    /// Frees all of it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn release(&mut self) -> Result<(), CudaError> {
        *self = Scratch::new(&self.context)?;
        Ok(())
    }

    fn grow(&mut self, lengths: [usize; 4]) -> Result<(), CudaError> {
        for (place, (buffer, len)) in self.buffers.iter_mut().zip(lengths).enumerate() {
            if buffer.len() < len {
                if place < 3 {
                    self.filled = None;
                }
                // Free the old one first, because both at once may not fit.
                *buffer = DeviceBuffer::new(&self.context, 0)?;
                *buffer = DeviceBuffer::new(&self.context, len)?;
            }
        }
        Ok(())
    }
}

/// `len` values between -1 and 1 in a type, the same at every call: times depend on the data only in that it must be
/// neither zeros nor infinities.
pub(super) fn random(len: usize, storage: Storage) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        // Xorshift (Marsaglia 2003), the triple 13, 7, 17.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..len).map(|_| next()).collect();
    storage.encode(&values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_data_lies_between_the_bounds_and_is_not_constant() {
        let values = Storage::F16.decode(&random(4096, Storage::F16));
        assert!(values.iter().all(|value| (-1.0..=1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / 4096.0;
        assert!(
            mean.abs() < 0.1 && values.iter().any(|value| *value > 0.9) && values.iter().any(|value| *value < -0.9)
        );
    }
}
