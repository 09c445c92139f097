//! How kernels go over maps whose channels come first: as planes, one for each channel of each sample.

use super::Map;
use super::rows::packs;
use crate::CudaError;
use crate::error::narrow;
use crate::safe::{Argument, Region, THREADS};

/// Blocks whose threads keep separate sums: the number that a large device runs at once.
const SUMMING_BLOCKS: usize = 512;
/// Blocks that compute one map from another.
const COPYING_BLOCKS: usize = 2048;
/// Packs that keep a thread busy.
const PACKS_PER_THREAD: usize = 8;

/// The form of a launch over planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planes {
    samples: u32,
    channels: u32,
    area: u32,
    /// Threads of a channel in a block, which takes as many channels as it has threads for.
    lanes: u32,
    /// Whether a pack has 16 bytes; else it is one element.
    wide: bool,
    /// Blocks that share each channel.
    pub parts: u32,
    columns: u32,
}

impl Planes {
    /// The form for kernels that sum; `regions` are read and written.
    pub fn summing(map: &Map, regions: &[&Region]) -> Result<Planes, CudaError> {
        Planes::new(map, regions, SUMMING_BLOCKS)
    }

    /// The form for kernels that compute one map from another.
    pub fn copying(map: &Map, regions: &[&Region]) -> Result<Planes, CudaError> {
        Planes::new(map, regions, COPYING_BLOCKS)
    }

    fn new(map: &Map, regions: &[&Region], blocks: usize) -> Result<Planes, CudaError> {
        let (channels, area) = (map.shape.channels(), map.area());
        let (wide, pack) = packs(map, area, regions, &[]);
        let own = area / pack;
        // The kernels count the packs of a channel in 31 bits.
        if map.samples * own >= 1 << 31 {
            return Err(CudaError::TooLarge { what: "a channel", value: map.samples * area });
        }
        let together = (THREADS / own.clamp(1, THREADS)).min(channels.max(1));
        let (lanes, columns) = (THREADS / together, channels.div_ceil(together).max(1));
        let parts = (blocks / columns).clamp(1, (map.samples * own).div_ceil(lanes * PACKS_PER_THREAD).max(1));
        Ok(Planes {
            samples: narrow("sample count", map.samples)?,
            channels: narrow("channel count", channels)?,
            area: narrow("area", area)?,
            lanes: narrow("lane count", lanes)?,
            wide,
            parts: narrow("part count", parts)?,
            columns: narrow("column count", columns)?,
        })
    }

    /// The blocks to launch.
    pub fn grid(&self) -> [u32; 2] {
        [self.columns, self.parts]
    }

    /// The arguments that all these kernels take in this order: samples, channels, area, lanes.
    pub fn arguments(&self) -> [Argument; 4] {
        [self.samples, self.channels, self.area, self.lanes].map(Argument::from)
    }

    /// The last argument.
    pub fn width(&self) -> Argument {
        u32::from(self.wide).into()
    }
}
