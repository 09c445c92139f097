//! Device and pinned host memory: blocks of the host's own, each known by its exact range.
//!
//! A device pointer is the host address itself. Every access names its range and is looked up among the live blocks:
//! ```text
//!   |<-- block, filled with 0xFF -->|<- 256 bytes of nothing ->|<-- block -->|
//!        [ fits ]        [ does not fit ........ ]                              -> illegal address
//! ```
//! A block that returns to a pool is free only after a wait for the device, or after the pool is trimmed:
//! ```text
//! taken 6, given back; taken 4      of the pool's 6, in use: 6
//! given back; a wait                in use: 0, or the bytes that the pool keeps
//! ```
//! Work on a block holds it. So the next access to a block that was freed too early fails, and never the process.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Code;

/// Alignment of every block, and the gap after it.
const ALIGNMENT: usize = 256;

/// The reported location of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// On the device of this ordinal.
    Device(usize),
    /// Pinned on the host.
    Host,
}

/// One allocation; its memory returns to the system when the last holder drops it.
pub struct Block {
    base: *mut u8,
    len: usize,
    layout: Layout,
    place: MemoryKind,
    /// The pool that it belongs to.
    pool: Option<usize>,
}

// SAFETY: a block only owns memory; its readers and writers order their accesses, as with any device memory.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives out nothing but the range.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize, place: MemoryKind, pool: Option<usize>) -> Option<Block> {
        let layout = Layout::from_size_align(len.checked_add(ALIGNMENT)?, ALIGNMENT).ok()?;
        // SAFETY: the size is at least ALIGNMENT, so not zero.
        let base = unsafe { alloc(layout) };
        if base.is_null() {
            return None;
        }
        // SAFETY: `len` bytes are within the new allocation. 0xFF in every byte is a NaN in every float type.
        unsafe { base.write_bytes(0xFF, len) };
        Some(Block { base, len, layout, place, pool })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and dropped once.
        unsafe { dealloc(self.base, self.layout) };
    }
}

/// Memory of a device that is taken and given back in the order of streams.
struct Pool {
    device: usize,
    /// Bytes that went back, and are still in use for all but the pool.
    idle: u64,
    /// The bytes that a wait leaves of it.
    kept: u64,
}

/// All live blocks and pools, and the bytes each device has in use.
#[derive(Default)]
pub struct Memory {
    blocks: BTreeMap<usize, Arc<Block>>,
    pools: BTreeMap<usize, Pool>,
    peak: u64,
}

impl Memory {
    /// Allocates a block full of 0xFF; on a device no more than `limit` bytes live at once.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] for no bytes, [`Code::OUT_OF_MEMORY`] over the limit.
    pub fn allocate(&mut self, len: usize, place: MemoryKind, limit: u64) -> Result<usize, Code> {
        if len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        self.take(len, place, limit, None)
    }

    /// The same from a pool, which first reuses returned blocks.
    ///
    /// # Errors
    /// As [`Memory::allocate`]; [`Code::INVALID_HANDLE`] for no pool.
    pub fn allocate_from(&mut self, pool: usize, len: usize, limit: u64) -> Result<usize, Code> {
        if len == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let found = self.pools.get_mut(&pool).ok_or(Code::INVALID_HANDLE)?;
        found.idle = found.idle.saturating_sub(len as u64);
        let place = MemoryKind::Device(found.device);
        self.take(len, place, limit, Some(pool))
    }

    fn take(&mut self, len: usize, place: MemoryKind, limit: u64, pool: Option<usize>) -> Result<usize, Code> {
        let fits = |memory: &Memory| memory.bytes(place).checked_add(len as u64).is_some_and(|sum| sum <= limit);
        if !fits(self) {
            self.pools.values_mut().for_each(|pool| pool.idle = 0);
        }
        if !fits(self) {
            return Err(Code::OUT_OF_MEMORY);
        }
        let block = Block::new(len, place, pool).ok_or(Code::OUT_OF_MEMORY)?;
        let address = block.base as usize;
        self.blocks.insert(address, Arc::new(block));
        if let MemoryKind::Device(_) = place {
            self.peak = self.peak.max(self.bytes(place));
        }
        Ok(address)
    }

    /// Forgets the block that begins at `address`.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] if no live block of that kind begins there: never allocated, freed before, or the other kind.
    pub fn free(&mut self, address: usize, on_host: bool) -> Result<(), Code> {
        match self.blocks.get(&address) {
            Some(block) if (block.place == MemoryKind::Host) == on_host => {
                if let Some(pool) = block.pool.and_then(|pool| self.pools.get_mut(&pool)) {
                    pool.idle += block.len as u64;
                }
                self.blocks.remove(&address);
                Ok(())
            }
            _ => Err(Code::INVALID_VALUE),
        }
    }

    /// The live block that holds the whole range.
    ///
    /// # Errors
    /// [`Code::ILLEGAL_ADDRESS`] without one.
    pub fn hold(&self, address: usize, len: usize) -> Result<Arc<Block>, Code> {
        let (base, block) = self.blocks.range(..=address).next_back().ok_or(Code::ILLEGAL_ADDRESS)?;
        match (address - base).checked_add(len) {
            Some(end) if end <= block.len => Ok(block.clone()),
            _ => Err(Code::ILLEGAL_ADDRESS),
        }
    }

    /// Whether the address lies in a live pinned block.
    pub fn is_pinned(&self, address: usize) -> bool {
        self.hold(address, 0).is_ok_and(|block| block.place == MemoryKind::Host)
    }

    /// Bytes in use in a place: of live blocks, and kept by pools.
    pub fn bytes(&self, place: MemoryKind) -> u64 {
        let live: u64 = self.blocks.values().filter(|b| b.place == place).map(|b| b.len as u64).sum();
        let is_there = |pool: &&Pool| place == MemoryKind::Device(pool.device);
        live + self.pools.values().filter(is_there).map(|pool| pool.idle).sum::<u64>()
    }

    /// Makes a pool of a device, which keeps nothing, unless there is one of that handle.
    pub fn add_pool(&mut self, handle: usize, device: usize) {
        self.pools.entry(handle).or_insert(Pool { device, idle: 0, kept: 0 });
    }

    /// Forgets a pool, with all that was given back to it.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] without one.
    pub fn remove_pool(&mut self, handle: usize) -> Result<(), Code> {
        self.pools.remove(&handle).map(|_| ()).ok_or(Code::INVALID_VALUE)
    }

    /// From now on a wait leaves a pool this number of bytes.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] without one.
    pub fn keep(&mut self, handle: usize, bytes: u64) -> Result<(), Code> {
        self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?.kept = bytes;
        Ok(())
    }

    /// Leaves a pool this number of the bytes that went back to it.
    ///
    /// # Errors
    /// [`Code::INVALID_VALUE`] without one.
    pub fn trim(&mut self, handle: usize, bytes: u64) -> Result<(), Code> {
        let pool = self.pools.get_mut(&handle).ok_or(Code::INVALID_VALUE)?;
        pool.idle = pool.idle.min(bytes);
        Ok(())
    }

    /// Somebody has waited for a device.
    pub fn on_wait(&mut self, device: usize) {
        for pool in self.pools.values_mut().filter(|pool| pool.device == device) {
            pool.idle = pool.idle.min(pool.kept);
        }
    }

    /// How many pools there are.
    pub fn pools(&self) -> u64 {
        self.pools.len() as u64
    }

    /// Live blocks, on the host or on any device.
    pub fn count(&self, on_host: bool) -> u64 {
        self.blocks.values().filter(|b| (b.place == MemoryKind::Host) == on_host).count() as u64
    }

    /// Most bytes that any one device had in use.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Forgets every block of a device. Returns their number.
    pub fn forget(&mut self, device: usize) -> u64 {
        let before = self.blocks.len();
        self.blocks.retain(|_, b| b.place != MemoryKind::Device(device));
        self.pools.retain(|_, pool| pool.device != device);
        (before - self.blocks.len()) as u64
    }
}
