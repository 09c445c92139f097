//! A launch of a kernel, and the memory that it reads and writes.

use std::sync::Arc;

use half::{bf16, f16};

use crate::error::Code;
use crate::memory::Block;
use crate::state::state;

/// A launch: the kernel, its grid, and its parameters as bits.
pub struct Launch {
    /// Name in the module.
    pub name: String,
    /// Blocks in x and y.
    pub grid: [usize; 2],
    /// Parameters, the first bytes of each.
    pub parameters: Vec<u64>,
}

/// How an element lies in memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    F32,
    F16,
    Bf16,
}

impl Storage {
    /// Elements in 16 bytes.
    pub fn pack(self) -> usize {
        if self == Storage::F32 { 4 } else { 8 }
    }
}

/// Elements in memory that is held.
pub struct Array {
    at: usize,
    storage: Storage,
    _held: Arc<Block>,
}

impl Array {
    pub fn hold(address: u64, storage: Storage, len: usize) -> Result<Array, Code> {
        let (at, size) = (address as usize, if storage == Storage::F32 { 4 } else { 2 });
        let bytes = len.checked_mul(size).ok_or(Code::ILLEGAL_ADDRESS)?;
        if !at.is_multiple_of(size) {
            return Err(Code::MISALIGNED_ADDRESS);
        }
        Ok(Array { at, storage, _held: state().memory.hold(at, bytes)? })
    }

    pub fn bytes(address: u64, len: usize) -> Result<Array, Code> {
        let at = address as usize;
        Ok(Array { at, storage: Storage::F32, _held: state().memory.hold(at, len)? })
    }

    pub fn read<T: Copy>(&self, i: usize) -> T {
        // SAFETY: the holder of the array asks for elements within the length that it held, of a type as long as that said.
        unsafe { (self.at as *const T).add(i).read_unaligned() }
    }

    pub fn write<T: Copy>(&self, i: usize, value: T) {
        // SAFETY: as for reading.
        unsafe { (self.at as *mut T).add(i).write_unaligned(value) }
    }

    pub fn get(&self, i: usize) -> f32 {
        match self.storage {
            Storage::F32 => self.read(i),
            Storage::F16 => self.read::<f16>(i).to_f32(),
            Storage::Bf16 => self.read::<bf16>(i).to_f32(),
        }
    }

    pub fn set(&self, i: usize, value: f32) {
        match self.storage {
            Storage::F32 => self.write(i, value),
            Storage::F16 => self.write(i, f16::from_f32(value)),
            Storage::Bf16 => self.write(i, bf16::from_f32(value)),
        }
    }

    pub fn put(&self, i: usize, value: f32, add: bool) {
        self.set(i, if add { self.get(i) + value } else { value });
    }
}
