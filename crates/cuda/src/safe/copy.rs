//! Copies that run asynchronously. Each owns both sides until it is waited for, so that neither side can be read
//! half-written, changed or freed meanwhile.
//!
//! ```text
//! let copy = Download::start(device, pinned, &stream)?;    ...    let (device, pinned) = copy.wait()?;
//! ```

use super::{DeviceBuffer, Event, PinnedBuffer, Stream};
use crate::CudaError;
use crate::call::driver as call;

/// A pending copy from the device to the host.
pub struct Download {
    device: DeviceBuffer,
    host: PinnedBuffer,
    done: Event,
}

/// A pending copy from the host to the device.
pub struct Upload {
    host: PinnedBuffer,
    device: DeviceBuffer,
    done: Event,
}

fn same_length(device: &DeviceBuffer, host: &PinnedBuffer) -> Result<usize, CudaError> {
    let (len, end) = (device.len(), host.len());
    if len == end { Ok(len) } else { Err(CudaError::OutOfBounds { start: 0, end, len }) }
}

impl Download {
    /// Enqueues the copy after the stream's earlier work.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ; [`CudaError::Driver`]. Both buffers are then lost.
    pub fn start(device: DeviceBuffer, host: PinnedBuffer, stream: &Stream) -> Result<Download, CudaError> {
        let bytes = same_length(&device, &host)?;
        let done = Event::new(stream.context())?;
        if bytes > 0 {
            let driver = stream.context().enter()?;
            // SAFETY: both sides have that many bytes, are owned by the result, and wait for queued work when dropped.
            unsafe { call::memcpy_dtoh_async(driver, host.raw(), device.raw(), bytes, stream.raw()) }?;
        }
        done.record(stream)?;
        Ok(Download { device, host, done })
    }

    /// Waits for the copy and returns both sides.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the stream.
    pub fn wait(self) -> Result<(DeviceBuffer, PinnedBuffer), CudaError> {
        self.done.synchronize()?;
        Ok((self.device, self.host))
    }

    /// The event that marks the end of the copy, for other streams to wait for.
    pub fn done(&self) -> &Event {
        &self.done
    }
}

impl Upload {
    /// Enqueues the copy after the stream's earlier work.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ; [`CudaError::Driver`]. Both buffers are then lost.
    pub fn start(host: PinnedBuffer, device: DeviceBuffer, stream: &Stream) -> Result<Upload, CudaError> {
        let bytes = same_length(&device, &host)?;
        let done = Event::new(stream.context())?;
        if bytes > 0 {
            let driver = stream.context().enter()?;
            // SAFETY: both sides have that many bytes, are owned by the result, and wait for queued work when dropped.
            unsafe { call::memcpy_htod_async(driver, device.raw(), host.raw(), bytes, stream.raw()) }?;
        }
        done.record(stream)?;
        Ok(Upload { host, device, done })
    }

    /// Waits for the copy and returns both sides.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the stream.
    pub fn wait(self) -> Result<(PinnedBuffer, DeviceBuffer), CudaError> {
        self.done.synchronize()?;
        Ok((self.host, self.device))
    }

    /// The event that marks the end of the copy, for other streams to wait for.
    pub fn done(&self) -> &Event {
        &self.done
    }
}
