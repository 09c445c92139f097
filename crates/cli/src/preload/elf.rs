//! Reads a shared library's file for its name, the libraries it needs, its search paths, and its exports.
//! Loads and runs nothing, so a GPU library can be judged on a machine without a GPU.
//!
//! Supports only x86-64 Linux: ELF, 64 bits, little-endian. Source: the System V ABI, chapters 4 and 5.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

const DYNAMIC_SECTION: u32 = 6;
const SYMBOL_SECTION: u32 = 11;
const NEEDED: u64 = 1;
const SONAME: u64 = 14;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;

/// The declarations of a shared library.
#[derive(Debug, Default)]
pub struct Elf {
    /// The name by which the loader knows it once loaded.
    pub soname: Option<String>,
    /// Libraries that it needs.
    pub needed: Vec<String>,
    /// Folders searched for them before `LD_LIBRARY_PATH` (DT_RPATH).
    pub rpath: Option<String>,
    /// Folders searched for them after it (DT_RUNPATH).
    pub runpath: Option<String>,
    /// Exported functions and data, sorted.
    pub exports: Vec<String>,
}

struct Section {
    kind: u32,
    offset: u64,
    size: u64,
    strings: usize,
}

impl Elf {
    /// # Errors
    /// The errors of reading the file; [`ErrorKind::InvalidData`] if it is not a 64-bit ELF file, or is truncated.
    pub fn read(path: &Path) -> Result<Elf> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let bytes = |offset: u64, size: u64| -> Result<Vec<u8>> {
            if offset.checked_add(size).is_none_or(|end| end > length) {
                return Err(bad("the file is truncated"));
            }
            let mut bytes = vec![0; usize::try_from(size).map_err(|_| bad("the file is too large"))?];
            file.read_exact_at(&mut bytes, offset)?;
            Ok(bytes)
        };
        let header = bytes(0, 64).map_err(|_| bad("not a shared library"))?;
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return Err(bad("not a 64-bit ELF file"));
        }
        let (table, size, count) = (xword(&header, 40), half(&header, 58), half(&header, 60));
        if size < 64 {
            return Err(bad("it has no section table"));
        }
        let table = bytes(table, u64::from(size) * u64::from(count))?;
        let sections: Vec<Section> = table.chunks_exact(usize::from(size)).map(section).collect();
        let contents = |section: &Section| bytes(section.offset, section.size);
        let mut elf = Elf::default();
        for section in &sections {
            let Some(strings) = sections.get(section.strings) else { continue };
            match section.kind {
                SYMBOL_SECTION => elf.take_symbols(&contents(section)?, &contents(strings)?),
                DYNAMIC_SECTION => elf.take_entries(&contents(section)?, &contents(strings)?),
                _ => {}
            }
        }
        elf.exports.sort();
        Ok(elf)
    }

    fn take_symbols(&mut self, symbols: &[u8], strings: &[u8]) {
        for symbol in symbols.chunks_exact(24) {
            let (binding, visibility, section) = (symbol[4] >> 4, symbol[5] & 3, half(symbol, 6));
            // Global or weak, not hidden, and defined here.
            if matches!(binding, 1 | 2) && matches!(visibility, 0 | 3) && section != 0 {
                self.exports.extend(text(strings, u64::from(word(symbol, 0))));
            }
        }
    }

    fn take_entries(&mut self, entries: &[u8], strings: &[u8]) {
        for entry in entries.chunks_exact(16) {
            let value = || text(strings, xword(entry, 8));
            match xword(entry, 0) {
                0 => break,
                NEEDED => self.needed.extend(value()),
                SONAME => self.soname = value(),
                RPATH => self.rpath = value(),
                RUNPATH => self.runpath = value(),
                _ => {}
            }
        }
    }
}

fn section(header: &[u8]) -> Section {
    Section {
        kind: word(header, 4),
        offset: xword(header, 24),
        size: xword(header, 32),
        strings: word(header, 40) as usize,
    }
}

fn bad(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}

fn text(strings: &[u8], offset: u64) -> Option<String> {
    let rest = strings.get(usize::try_from(offset).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}

/// The `N` bytes at `at`, which every caller keeps inside its slice.
fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    std::array::from_fn(|index| bytes[at + index])
}

/// An `Elf64_Half`.
fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(number(bytes, at))
}

/// An `Elf64_Word`.
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(number(bytes, at))
}

/// An `Elf64_Xword`, also the size of addresses and offsets.
fn xword(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_c_library() {
        // Every process of this kind has it mapped; the kernel says where the file is.
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let path =
            maps.split_whitespace().find(|word| word.contains("/libc.so.6") || word.contains("/libc-2.")).unwrap();
        let elf = Elf::read(Path::new(path)).unwrap();
        assert_eq!(elf.soname.as_deref(), Some("libc.so.6"));
        assert!(elf.exports.binary_search(&"malloc".to_owned()).is_ok());
        assert!(elf.exports.binary_search(&"cudnnCreate".to_owned()).is_err());
        assert!(elf.needed.iter().any(|name| name.starts_with("ld-linux")), "{:?}", elf.needed);
        assert_eq!((elf.rpath, elf.runpath), (None, None));
    }

    #[test]
    fn refuses_non_libraries_and_truncated_files() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |bytes: &[u8]| {
            let path = folder.path().join("file");
            std::fs::write(&path, bytes).unwrap();
            Elf::read(&path).unwrap_err().kind()
        };
        assert_eq!(refused(b""), ErrorKind::InvalidData);
        assert_eq!(refused(&[b'x'; 100]), ErrorKind::InvalidData);
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(refused(&own[..own.len() / 2]), ErrorKind::InvalidData);
        assert_eq!(Elf::read(&folder.path().join("missing")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
