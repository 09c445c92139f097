//! Measures how much memory was used: fills it with a pattern, and later scans for the last word that differs.

use std::sync::Arc;

use tightfit_units::Bytes;

use super::Libraries;
use crate::CudaError;
use crate::safe::{DeviceBuffer, Region, blocks};

/// The content of untouched bytes.
const UNTOUCHED_FILL: u8 = 0xA5;

/// Memory filled with the pattern.
pub struct ArenaWatch {
    libraries: Arc<Libraries>,
    memory: Arc<DeviceBuffer>,
    last: Arc<DeviceBuffer>,
}

impl ArenaWatch {
    /// Fills all of `memory`.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Driver`].
    pub fn watch(libraries: &Arc<Libraries>, memory: &Arc<DeviceBuffer>) -> Result<ArenaWatch, CudaError> {
        let stream = libraries.handle.stream();
        memory.fill(UNTOUCHED_FILL, stream)?;
        stream.synchronize()?;
        let last = Arc::new(DeviceBuffer::new(libraries.handle.context(), 8)?);
        Ok(ArenaWatch { libraries: libraries.clone(), memory: memory.clone(), last })
    }

    /// The end of the last word written since, 0 for none; waits for the device. Writes of the pattern itself do not
    /// count.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn end(&self) -> Result<Bytes, CudaError> {
        let stream = self.libraries.handle.stream();
        self.last.fill(0, stream)?;
        let words = self.memory.len() / 4;
        let kernel = self.libraries.kernels.get("last_touched")?;
        let (memory, last) = (Region::new(&self.memory, 0..4 * words)?, Region::new(&self.last, 0..8)?);
        let pattern = u32::from_ne_bytes([UNTOUCHED_FILL; 4]);
        let arguments = [(&memory).into(), (words as u64).into(), pattern.into(), (&last).into()];
        // SAFETY: the kernel's parameters in its order, on memory that is alive and as long as said.
        unsafe { kernel.launch(blocks(words), &arguments) }?;
        let mut bytes = [0; 8];
        last.slice()?.download(&mut bytes)?;
        Ok(Bytes(4 * u64::from_ne_bytes(bytes)))
    }
}
