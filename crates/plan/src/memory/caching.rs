//! PyTorch's caching allocator of a GPU with growing segments:
//!
//! ```text
//! block     a multiple of 512 bytes; blocks of up to 1 MiB have a separate segment, whose fragmentation is ignored
//! request   takes the shortest sufficient free block, preferably not the last; otherwise the segment grows by pages
//! release   joins free neighbors; no page is returned
//! ```
//!
//! Source: `c10/cuda/CUDACachingAllocator.cpp` of PyTorch, with `expandable_segments`. docs/results.md lists the errors of predictions.

const BLOCK_MULTIPLE: i64 = 512;
/// The largest small block, and the growth of the segment for large blocks.
const MAX_SMALL_BLOCK: i64 = 1 << 20;
const PAGE_BYTES: i64 = 20 << 20;

/// The allocator's sizes. Tests of small steps use other sizes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// The largest small block.
    pub small: i64,
    /// The growth of the segment for large blocks.
    pub page: i64,
}

impl Default for Sizes {
    fn default() -> Sizes {
        Sizes { small: MAX_SMALL_BLOCK, page: PAGE_BYTES }
    }
}

/// Memory that the allocator has reserved before a step, in segments for large blocks that do not grow. As far as it goes, tensors that stay from
/// step to step are in these segments.
#[derive(Clone, Debug, Default)]
pub struct InitialReservation {
    /// Bytes of these segments.
    pub bytes: i64,
    /// Bytes of each of their free blocks.
    pub free: Vec<i64>,
    /// Sizes of the allocator.
    pub sizes: Sizes,
}

/// The length of a block of `bytes` bytes.
pub(crate) fn length(bytes: i64) -> i64 {
    (bytes + BLOCK_MULTIPLE - 1) / BLOCK_MULTIPLE * BLOCK_MULTIPLE
}

/// A growing segment, and the free blocks of other segments.
pub(crate) struct Segment {
    page: i64,
    /// The bytes that it has grown to.
    pub(crate) end: i64,
    /// The beginnings and lengths of free blocks. The list is short, so searches scan it.
    free: Vec<(i64, i64)>,
}

impl Segment {
    pub(crate) fn new(page: i64, others: &[i64]) -> Segment {
        let mut segment = Segment { page, end: 0, free: Vec::with_capacity(64) };
        // Blocks of other segments get negative addresses and touch no other block.
        let mut place = 0;
        for &length in others {
            place -= length + BLOCK_MULTIPLE;
            segment.free.push((place, length));
        }
        segment.free.reverse();
        segment
    }

    /// The place of a block of this length.
    pub(crate) fn take(&mut self, length: i64) -> i64 {
        // The block at the end can grow, so it counts as the longest.
        let last = self.free.last().filter(|(begin, there)| begin + there == self.end).map(|_| self.free.len() - 1);
        let mut found = None;
        let mut shortest = i64::MAX;
        for (place, &(_, there)) in self.free[..last.unwrap_or(self.free.len())].iter().enumerate() {
            if there >= length && there < shortest {
                (found, shortest) = (Some(place), there);
            }
        }
        let Some(place) = found.or(last) else {
            let begin = self.grow(length, 0);
            if self.end > begin + length {
                self.free.push((begin + length, self.end - begin - length));
            }
            return begin;
        };
        let (begin, mut there) = self.free[place];
        if there < length {
            self.grow(length, there);
            there = self.end - begin;
        }
        if there > length {
            self.free[place] = (begin + length, there - length);
        } else {
            self.free.remove(place);
        }
        begin
    }

    /// Grows for a block of `length` bytes, of which `there` are free; returns the previous end.
    fn grow(&mut self, length: i64, there: i64) -> i64 {
        let begin = self.end;
        self.end += (length - there + self.page - 1) / self.page * self.page;
        begin
    }

    /// Releases a block.
    pub(crate) fn give(&mut self, begin: i64, length: i64) {
        let place = self.free.partition_point(|&(one, _)| one < begin);
        let joins_before = place > 0 && self.free[place - 1].0 + self.free[place - 1].1 == begin;
        let after = self.free.get(place).filter(|(one, _)| *one == begin + length).map(|(_, there)| *there);
        match (joins_before, after) {
            (true, Some(there)) => {
                self.free[place - 1].1 += length + there;
                self.free.remove(place);
            }
            (true, None) => self.free[place - 1].1 += length,
            (false, Some(there)) => self.free[place] = (begin, length + there),
            (false, None) => self.free.insert(place, (begin, length)),
        }
    }
}
