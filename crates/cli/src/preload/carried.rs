//! The libraries that the command carries. They are written into a folder of the user, since the loader only opens files.
//!
//! A file is named after a hash of its content, so that versions do not get in each other's way, and compared with the
//! content before each use. It is written whole or not at all: processes that start at once all find a complete one.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use tightfit_units::{Error, output};

use super::Form;

/// File name, hash of the content, and the content, compressed.
pub type Carried = (&'static str, &'static str, &'static [u8]);

/// Both forms, in optimized builds.
#[cfg(feature = "embed")]
static CARRIED: &[Carried] = tightfit_embed::libraries!();
#[cfg(not(feature = "embed"))]
static CARRIED: &[Carried] = &[];

/// The library of this form, if the command carries it.
pub fn carried(form: Form) -> Option<Carried> {
    CARRIED.iter().find(|(file, ..)| *file == form.file()).copied()
}

/// The file that a carried library becomes in `folder`.
pub fn place((file, hash, _): Carried, folder: &Path) -> PathBuf {
    folder.join(format!("{}-{hash}.so", file.trim_end_matches(".so")))
}

/// Writes a carried library into `folder`, unless it is there already with exactly this content; returns its path.
///
/// # Errors
/// [`Error::File`] for a folder that cannot be created or a file that cannot be written.
pub fn unpack(library: Carried, folder: &Path) -> Result<PathBuf, Error> {
    let path = place(library, folder);
    let fault = |what: &str, source: std::io::Error| Error::File {
        path: path.clone(),
        what: what.to_owned(),
        source: Some(Box::new(source)),
    };
    let mut content = Vec::new();
    GzDecoder::new(library.2).read_to_end(&mut content).map_err(|error| fault("is damaged in this command", error))?;
    if std::fs::read(&path).is_ok_and(|found| found == content) {
        return Ok(path);
    }
    std::fs::create_dir_all(folder).map_err(|error| fault("cannot be written", error))?;
    output::write(&path, content)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn library(content: &[u8]) -> Carried {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(content).unwrap();
        ("libtightfit_preload.so", "0123456789abcdef", encoder.finish().unwrap().leak())
    }

    #[test]
    fn a_library_is_written_once_and_again_if_it_was_changed() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("no/such/folder yet");
        let library = library(b"\x7fELF, nearly");
        let path = unpack(library, &folder).unwrap();
        assert_eq!(path, folder.join("libtightfit_preload-0123456789abcdef.so"));
        assert_eq!(fs::read(&path).unwrap(), b"\x7fELF, nearly");
        let written = fs::metadata(&path).unwrap().modified().unwrap();
        assert_eq!(unpack(library, &folder).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written, "the same content is left alone");
        for wrong in [&b"\x7fELF, near"[..], b"\x7fELF, neatly", b""] {
            fs::write(&path, wrong).unwrap();
            unpack(library, &folder).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"\x7fELF, nearly");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left there");
    }

    #[test]
    fn threads_that_write_at_once_all_find_a_complete_library() {
        let folder = tempfile::tempdir().unwrap();
        let content = vec![7; 1 << 20];
        let library = library(&content);
        std::thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| assert!(fs::read(unpack(library, folder.path()).unwrap()).unwrap() == content));
            }
        });
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = unpack(library(b"content"), &file).unwrap_err().to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
}
