//! Memory of a fixed size from which several threads borrow pieces at once: the second checked wrapper of unsafe code.
//!
//! A schedule determines which bytes a layer reads and writes while copies run, so a wrong schedule would be a data
//! race. Here it is an error instead: every borrow is entered in a table under a lock before a slice is made, and a
//! borrow that overlaps a live one fails unless both only read.
//!
//! ```text
//! arena    |-------- x (read, read) --------|-- y (write) --|-------- free --------|
//! requests      [ read: granted ]      [ read: refused ]        [ write: granted ]
//! ```
//!
//! So at any time a byte is reachable through one mutable slice or through shared ones, never both, which is all that
//! Rust asks of memory that threads share. The content starts as zeros.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The alignment of every arena.
pub const ALIGNMENT: usize = 256;

/// Why bytes cannot be allocated or borrowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The system has too little memory.
    #[error("could not allocate an arena of {bytes} bytes; plan with a smaller budget")]
    NoMemory {
        /// The requested bytes.
        bytes: u64,
    },
    /// The range is not inside the arena.
    #[error("bytes {}..{} are outside an arena of {size} bytes", asked.start, asked.end)]
    Outside {
        /// The requested bytes.
        asked: Range<u64>,
        /// Bytes of the arena.
        size: u64,
    },
    /// The range does not begin and end at a float.
    #[error("bytes {}..{} do not hold a whole number of {unit}-byte elements", asked.start, asked.end)]
    Unaligned {
        /// The requested bytes.
        asked: Range<u64>,
        /// Bytes of an element.
        unit: usize,
    },
    /// Some of the bytes are in use.
    #[error(
        "bytes {}..{} are in use ({}..{} is {}): the schedule runs two steps at once that must not overlap",
        asked.start, asked.end, held.start, held.end, if *written { "being written" } else { "being read" }
    )]
    InUse {
        /// The requested bytes.
        asked: Range<u64>,
        /// The lent bytes.
        held: Range<u64>,
        /// Whether the borrower may write it.
        written: bool,
    },
}

/// A live borrow.
#[derive(Debug)]
struct Loan {
    bytes: Range<usize>,
    written: bool,
}

/// One allocation, lent out in pieces.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    table: Mutex<Table>,
}

/// The live borrows, and the highest end of any borrow so far.
#[derive(Debug)]
struct Table {
    lent: Vec<Loan>,
    high_water: usize,
}

// SAFETY: the allocation is owned and moves with its owner; nothing about it belongs to a thread.
unsafe impl Send for Arena {}
// SAFETY: through a shared reference the bytes are reached only by borrows, and `lend`, under a lock, never lets a
// borrow that writes overlap another.
unsafe impl Sync for Arena {}

impl Arena {
    /// An arena of this many bytes.
    ///
    /// # Errors
    /// [`ArenaError::NoMemory`].
    pub fn new(bytes: u64) -> Result<Arena, ArenaError> {
        let layout = usize::try_from(bytes).ok().and_then(|size| Layout::from_size_align(size.max(1), ALIGNMENT).ok());
        let layout = layout.ok_or(ArenaError::NoMemory { bytes })?;
        // SAFETY: the size is at least one byte.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(ArenaError::NoMemory { bytes })?;
        Ok(Arena { base, layout, table: Mutex::new(Table { lent: Vec::with_capacity(64), high_water: 0 }) })
    }

    /// Total bytes; an empty arena has one.
    pub fn size(&self) -> u64 {
        self.layout.size() as u64
    }

    /// The end of the last byte that was ever lent; what [`Arena::overwrite`] reached does not count.
    pub fn high_water(&self) -> u64 {
        self.table().high_water as u64
    }

    /// Borrows bytes to read.
    ///
    /// # Errors
    /// [`ArenaError::Outside`], or [`ArenaError::InUse`] while another borrower writes any of them.
    pub fn read(&self, bytes: Range<u64>) -> Result<Read<'_>, ArenaError> {
        Ok(Read { arena: self, bytes: self.lend(bytes, false, true)? })
    }

    /// Borrows bytes to write.
    ///
    /// # Errors
    /// [`ArenaError::Outside`], or [`ArenaError::InUse`] while another borrower reads or writes any of them.
    pub fn write(&self, bytes: Range<u64>) -> Result<Write<'_>, ArenaError> {
        Ok(Write { arena: self, bytes: self.lend(bytes, true, true)? })
    }

    /// Fills unused bytes without counting as a use, to expose reads of bytes that were never written.
    ///
    /// # Errors
    /// As [`Arena::write`].
    pub fn overwrite(&self, bytes: Range<u64>, with: u8) -> Result<(), ArenaError> {
        let mut all = Write { arena: self, bytes: self.lend(bytes, true, false)? };
        all.fill(with);
        Ok(())
    }

    /// Enters a borrow in the table if it does not conflict with the live ones. Empty borrows conflict with nothing and
    /// are not entered.
    fn lend(&self, asked: Range<u64>, written: bool, counted: bool) -> Result<Range<usize>, ArenaError> {
        if asked.start > asked.end || asked.end > self.size() {
            return Err(ArenaError::Outside { asked, size: self.size() });
        }
        // Both ends are at most the size, which is a usize.
        let bytes = asked.start as usize..asked.end as usize;
        if bytes.is_empty() {
            return Ok(bytes);
        }
        let mut table = self.table();
        let meets = |other: &&Loan| bytes.start < other.bytes.end && other.bytes.start < bytes.end;
        if let Some(other) = table.lent.iter().filter(|other| written || other.written).find(meets) {
            let held = other.bytes.start as u64..other.bytes.end as u64;
            return Err(ArenaError::InUse { asked, held, written: other.written });
        }
        table.lent.push(Loan { bytes: bytes.clone(), written });
        if counted {
            table.high_water = table.high_water.max(bytes.end);
        }
        Ok(bytes)
    }

    /// Removes a borrow whose slices are gone.
    fn take_back(&self, bytes: &Range<usize>, written: bool) {
        let lent = &mut self.table().lent;
        // Of equal borrows, which are then shared ones, any will do.
        if let Some(at) = lent.iter().position(|other| other.bytes == *bytes && other.written == written) {
            lent.swap_remove(at);
        }
    }

    /// The table. A panic of another thread leaves it consistent, because each change is a single call.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `base` came from `alloc_zeroed` with this layout; borrows hold a reference, so none is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Bytes borrowed to read, until dropped.
#[derive(Debug)]
pub struct Read<'a> {
    arena: &'a Arena,
    bytes: Range<usize>,
}

/// Bytes borrowed to write, until dropped.
#[derive(Debug)]
pub struct Write<'a> {
    arena: &'a Arena,
    bytes: Range<usize>,
}

impl Deref for Read<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `lend` found the range inside the allocation, which is initialized and outlives `self.arena`; while
        // this borrow is in the table nobody is lent any of it to write.
        unsafe { std::slice::from_raw_parts(self.arena.base.as_ptr().add(self.bytes.start), self.bytes.len()) }
    }
}

impl Deref for Write<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: as for `Read`; this borrow is the only one of any of these bytes, and the slice borrows it.
        unsafe { std::slice::from_raw_parts(self.arena.base.as_ptr().add(self.bytes.start), self.bytes.len()) }
    }
}

impl DerefMut for Write<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `Read`; this borrow is the only one of any of these bytes, and the slice borrows it mutably.
        unsafe { std::slice::from_raw_parts_mut(self.arena.base.as_ptr().add(self.bytes.start), self.bytes.len()) }
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        self.arena.take_back(&self.bytes, false);
    }
}

impl Drop for Write<'_> {
    fn drop(&mut self) {
        self.arena.take_back(&self.bytes, true);
    }
}

/// The error of bytes that do not form a slice of elements.
fn unaligned(bytes: &Range<usize>, unit: usize) -> ArenaError {
    ArenaError::Unaligned { asked: bytes.start as u64..bytes.end as u64, unit }
}

impl Read<'_> {
    /// The bytes as numbers.
    ///
    /// # Errors
    /// [`ArenaError::Unaligned`].
    pub fn elements<T: bytemuck::AnyBitPattern>(&self) -> Result<&[T], ArenaError> {
        bytemuck::try_cast_slice(self).map_err(|_| unaligned(&self.bytes, size_of::<T>()))
    }
}

impl Write<'_> {
    /// The bytes as numbers.
    ///
    /// # Errors
    /// [`ArenaError::Unaligned`].
    pub fn elements<T: bytemuck::Pod>(&mut self) -> Result<&mut [T], ArenaError> {
        let unaligned = unaligned(&self.bytes, size_of::<T>());
        bytemuck::try_cast_slice_mut(self).map_err(|_| unaligned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_and_writers_do_not() {
        let arena = Arena::new(2048).unwrap();
        let first = arena.read(0..512).unwrap();
        let second = arena.read(256..512).unwrap();
        let refused = arena.write(508..516).unwrap_err();
        assert_eq!(refused, ArenaError::InUse { asked: 508..516, held: 0..512, written: false });
        let mut beside = arena.write(512..1024).unwrap();
        assert!(matches!(arena.read(1020..1024), Err(ArenaError::InUse { written: true, .. })));
        beside[0] = 7;
        drop(first);
        assert!(arena.write(0..512).is_err(), "the second reader is still there");
        drop(second);
        arena.write(0..512).unwrap();
        drop(beside);
        arena.overwrite(1020..1028, 1).unwrap();
        assert_eq!(arena.read(1024..1025).unwrap()[0], 1);
        assert_eq!(Arena::new(2048).map(|fresh| fresh.overwrite(0..8, 1).map(|()| fresh.high_water())), Ok(Ok(0)));
        assert_eq!(arena.read(512..513).unwrap()[0], 7);
    }

    #[test]
    fn empty_ranges_conflict_with_nothing() {
        let arena = Arena::new(1024).unwrap();
        let held = arena.write(0..512).unwrap();
        let (read, written) = (arena.read(256..256).unwrap(), arena.write(256..256).unwrap());
        assert!(read.is_empty() && written.is_empty());
        drop((read, written));
        assert!(arena.write(0..512).is_err(), "what was lent is still lent");
        drop(held);
        let _empty = arena.write(256..256).unwrap();
        arena.write(0..512).unwrap();
        arena.read(1000..1000).unwrap();
        assert_eq!(arena.high_water(), 512);
    }

    #[test]
    fn ranges_outside_and_between_elements_are_refused() {
        let arena = Arena::new(16).unwrap();
        assert_eq!(arena.read(8..17).unwrap_err(), ArenaError::Outside { asked: 8..17, size: 16 });
        #[allow(clippy::reversed_empty_ranges)]
        let backward = arena.read(8..4);
        assert!(matches!(backward, Err(ArenaError::Outside { .. })));
        assert_eq!(arena.read(2..6).unwrap().elements::<f32>(), Err(ArenaError::Unaligned { asked: 2..6, unit: 4 }));
        assert_eq!(arena.write(4..8).unwrap().elements::<f32>().unwrap(), &mut [0.0]);
        assert!(matches!(Arena::new(u64::MAX), Err(ArenaError::NoMemory { .. })));
    }

    #[test]
    fn conflicting_threads_get_an_error_and_never_a_torn_value() {
        let arena = Arena::new(4096).unwrap();
        let granted: usize = std::thread::scope(|scope| {
            let writers: Vec<_> = (1..=4u8)
                .map(|mark| {
                    let arena = &arena;
                    scope.spawn(move || {
                        let mut granted = 0;
                        for _ in 0..2000 {
                            if let Ok(mut all) = arena.write(0..4096) {
                                all.fill(mark);
                                assert!(all.iter().all(|&byte| byte == mark));
                                granted += 1;
                            }
                        }
                        granted
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().unwrap()).sum()
        });
        assert!(granted > 0);
        let all = arena.read(0..4096).unwrap();
        assert!(all.iter().all(|byte| *byte == all[0]));
    }
}
