//! How kernels go over maps whose channels come last: as rows of channels, one for each place of each sample.

use super::Map;
use crate::CudaError;
use crate::error::narrow;
use crate::safe::{Argument, Region, THREADS};

/// Bytes that a thread reads or writes at once.
pub(super) const PACK: usize = 16;
/// Most packs of a row that one block takes.
const MAX_PACKS_PER_BLOCK: usize = 32;
/// Blocks whose threads keep separate sums: the number that a large device runs at once.
const SUMMING_BLOCKS: usize = 512;
/// Blocks that copy.
const COPYING_BLOCKS: usize = 2048;
/// Rows that keep a thread busy.
const ROWS_PER_THREAD: usize = 8;

/// The form of a launch over rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rows {
    /// Number of rows.
    pub rows: u64,
    /// Channels of each that are worked on.
    pub channels: u32,
    /// Packs of a row that a block takes.
    pub lanes: u32,
    /// Whether a pack has 16 bytes; else it is one element.
    pub wide: bool,
    /// Blocks that share each channel.
    pub parts: u32,
    columns: u32,
}

impl Rows {
    /// The form for kernels that sum; `regions` are read and written.
    pub fn summing(map: &Map, regions: &[&Region]) -> Result<Rows, CudaError> {
        Rows::new(map, map.shape.channels(), regions, &[], SUMMING_BLOCKS)
    }

    /// The form for kernels that compute one row from another; `strides` are the lengths of rows next to the channels.
    pub fn copying(map: &Map, channels: usize, regions: &[&Region], strides: &[usize]) -> Result<Rows, CudaError> {
        Rows::new(map, channels, regions, strides, COPYING_BLOCKS)
    }

    fn new(
        map: &Map,
        channels: usize,
        regions: &[&Region],
        strides: &[usize],
        blocks: usize,
    ) -> Result<Rows, CudaError> {
        let rows = map.samples * map.area();
        let (wide, pack) = packs(map, channels, regions, strides);
        let packs = channels / pack;
        let columns = packs.div_ceil(MAX_PACKS_PER_BLOCK).max(1);
        let lanes = packs.div_ceil(columns).max(1);
        let together = THREADS / lanes;
        let parts = (blocks / columns).clamp(1, rows.div_ceil(together * ROWS_PER_THREAD).max(1));
        Ok(Rows {
            rows: rows as u64,
            channels: narrow("channel count", channels)?,
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

    /// Blocks of a kernel that adds the parts of eight channels up.
    pub fn totals(&self) -> [u32; 2] {
        [self.channels.div_ceil(8), 1]
    }

    /// The arguments that all these kernels take in this order: rows, channels, lanes.
    pub fn arguments(&self) -> [Argument; 3] {
        [self.rows.into(), self.channels.into(), self.lanes.into()]
    }

    /// The last argument.
    pub fn width(&self) -> Argument {
        u32::from(self.wide).into()
    }
}

/// Whether 16 bytes can be taken at once of rows whose lengths are `strides` next to the channels, and the number of
/// elements in an access: 16 bytes of elements, else one.
pub(super) fn packs(map: &Map, channels: usize, regions: &[&Region], strides: &[usize]) -> (bool, usize) {
    let pack = PACK / map.storage.size();
    let aligned = regions.iter().all(|region| region.raw().0.is_multiple_of(PACK as u64));
    let wide = aligned && channels.is_multiple_of(pack) && strides.iter().all(|stride| stride.is_multiple_of(pack));
    (wide, if wide { pack } else { 1 })
}
