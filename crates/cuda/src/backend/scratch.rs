//! Device memory for measuring: random data, an output, a workspace; allocated once and reused as long as it is large enough. Inside a program that
//! may capture graphs, it is allocated, filled and freed in the order of the handle's stream.

use std::sync::Arc;

use tightfit_conv::problem::Storage;

use crate::CudaError;
use crate::safe::{DeviceBuffer, Handle};

/// Bytes of random data generated on the host; the rest repeats them.
const PATTERN_BYTES: usize = 1 << 20;

/// Data, other, output and workspace, in that order.
pub(super) struct Scratch {
    handle: Arc<Handle>,
    is_in_order: bool,
    buffers: [DeviceBuffer; 4],
    /// The type of the random data in the first three.
    filled: Option<Storage>,
}

impl Scratch {
    /// No memory yet.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(handle: &Arc<Handle>) -> Result<Scratch, CudaError> {
        let none = || DeviceBuffer::new(handle.context(), 0);
        let buffers = [none()?, none()?, none()?, none()?];
        Ok(Scratch { handle: handle.clone(), is_in_order: false, buffers, filled: None })
    }

    /// Scratch memory that never waits for streams other than the handle's.
    pub fn in_order(self) -> Scratch {
        Scratch { is_in_order: true, ..self }
    }

    /// The four buffers, each at least as long as requested; the first three hold random data of a type, except where
    /// an earlier measurement wrote its output.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] if there is not enough memory even after freeing all of it.
    pub fn reserve(&mut self, lengths: [usize; 4], storage: Storage) -> Result<&mut [DeviceBuffer; 4], CudaError> {
        self.make_room(lengths)?;
        let stream = self.handle.stream();
        if self.filled != Some(storage) {
            let pattern = random(PATTERN_BYTES / storage.size(), storage);
            for buffer in &mut self.buffers[..3] {
                let len = buffer.len();
                let first = len.min(pattern.len());
                buffer.slice_mut(0..first)?.write(&pattern[..first], stream)?;
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
        *self = Scratch { is_in_order: self.is_in_order, ..Scratch::new(&self.handle)? };
        // Memory that is freed in stream order is available once the stream has reached that point.
        if self.is_in_order { self.handle.stream().synchronize() } else { Ok(()) }
    }

    fn grow(&mut self, lengths: [usize; 4]) -> Result<(), CudaError> {
        for (place, (buffer, len)) in self.buffers.iter_mut().zip(lengths).enumerate() {
            if buffer.len() < len {
                if place < 3 {
                    self.filled = None;
                }
                // Free the old one first, because both at once may not fit.
                *buffer = DeviceBuffer::new(self.handle.context(), 0)?;
                if self.is_in_order {
                    self.handle.stream().synchronize()?;
                }
                *buffer = match self.is_in_order {
                    // SAFETY: measuring works on the handle's stream alone.
                    true => unsafe { DeviceBuffer::in_order(&self.handle, len) }?,
                    false => DeviceBuffer::new(self.handle.context(), len)?,
                };
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
