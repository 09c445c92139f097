//! Reads a shared library's file for its name, the libraries it needs, its search paths, and its exports.
//! Loads and runs nothing, so a GPU library can be judged on a machine without a GPU.
//!
//! Supports only ELF of 64 bits, little-endian.

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use object::LittleEndian;
use object::elf::{
    DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, DT_SONAME, FileHeader64, SHN_UNDEF, SHT_DYNSYM, STB_GLOBAL, STB_WEAK,
    STV_DEFAULT, STV_PROTECTED,
};
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader, Sym};

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

impl Elf {
    /// # Errors
    /// The errors of opening the file; [`ErrorKind::InvalidData`] if it is not a 64-bit ELF file, or is truncated.
    pub fn read(path: &Path) -> Result<Elf> {
        let file = ReadCache::new(File::open(path)?);
        let bad = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
        let header = FileHeader64::<LittleEndian>::parse(&file).map_err(|_| bad("not a shared library"))?;
        Elf::of(header, &file).map_err(|error| bad(&error.to_string()))
    }

    fn of(header: &FileHeader64<LittleEndian>, file: &ReadCache<File>) -> object::Result<Elf> {
        let endian = header.endian()?;
        let sections = header.sections(endian, file)?;
        let mut elf = Elf::default();
        if let Some((entries, strings)) = sections.dynamic(endian, file)? {
            let strings = sections.strings(endian, file, strings)?;
            for entry in entries.iter().take_while(|entry| entry.tag(endian) != DT_NULL) {
                let text = || entry.string(endian, strings).ok().map(text);
                match entry.tag(endian) {
                    DT_NEEDED => elf.needed.extend(text()),
                    DT_SONAME => elf.soname = text(),
                    DT_RPATH => elf.rpath = text(),
                    DT_RUNPATH => elf.runpath = text(),
                    _ => {}
                }
            }
        }
        let symbols = sections.symbols(endian, file, SHT_DYNSYM)?;
        let exported = symbols.iter().filter(|symbol| {
            matches!(symbol.st_bind(), STB_GLOBAL | STB_WEAK)
                && matches!(symbol.st_visibility(), STV_DEFAULT | STV_PROTECTED)
                && symbol.st_shndx(endian) != SHN_UNDEF
        });
        elf.exports = exported.filter_map(|symbol| symbol.name(endian, symbols.strings()).ok().map(text)).collect();
        elf.exports.sort();
        Ok(elf)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
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
