//! Finds and opens the libraries at run time, so that a program built without CUDA uses it if present.
//!
//! ```text
//! libcuda.so.1     option, TIGHTFIT_CUDA,  the loader's path, where containers mount the driver
//! libcudnn.so.9    option, TIGHTFIT_CUDNN, the list of `cudnn_places`, the loader's path
//! libcublas.so.13  option, TIGHTFIT_CUBLAS, next to cuDNN (.13 or .12), /usr/local/cuda, the loader's path; only to train
//! ```
//!
//! A file named by an option or a variable is used or refused; the other places are tried one after the other only
//! without either. cuDNN opens its parts and its neighbors (cuBLAS, NVRTC) by bare name when it first needs them; pip's
//! wheels put each in a separate folder, so we open them by path beforehand, and the later request finds them in the
//! process.

mod cudnn_places;
mod places;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL};

use crate::sys::cublas::Cublas;
use crate::sys::cudnn::Cudnn;
use crate::sys::driver::Driver;
use crate::sys::layers::CudnnLayers;
use crate::{Attempt, CudaError, CudnnVersion, call};
pub use cudnn_places::{Asking, cudnn_places, in_packages, is_python, on_path};
pub use places::LibraryFile;

/// An opened library.
pub struct OpenLibrary<T> {
    /// Its functions.
    pub table: T,
    /// The file, or the bare name if the loader's path led to it.
    pub path: PathBuf,
}

/// An opened cuDNN.
pub struct CudnnLibrary {
    /// Its functions.
    pub table: Cudnn,
    /// The file, or the bare name if the loader's path led to it.
    pub path: PathBuf,
    /// Its version.
    pub version: CudnnVersion,
}

/// A library to look for.
struct LibraryQuery {
    name: &'static str,
    variable: &'static str,
}

const CUDNN: LibraryQuery = LibraryQuery { name: "libcudnn.so.9", variable: "TIGHTFIT_CUDNN" };

impl LibraryQuery {
    /// Opens the library named by `option`, otherwise by its variable, otherwise at the first of `places` that has it.
    fn open(
        &self,
        option: Option<&Path>,
        places: impl Iterator<Item = LibraryFile>,
    ) -> Result<(Library, PathBuf), CudaError> {
        match self.named(option) {
            Some(place) => self.first(std::iter::once(place)),
            None => self.first(places),
        }
    }

    /// The file named by the option, otherwise by the variable; a folder stands for the file in it.
    fn named(&self, option: Option<&Path>) -> Option<LibraryFile> {
        let named = option.map(|path| ("the option".to_owned(), path.to_owned())).or_else(|| {
            std::env::var_os(self.variable)
                .filter(|value| !value.is_empty())
                .map(|value| (self.variable.to_owned(), PathBuf::from(value)))
        });
        let (because, path) = named?;
        let path = if path.is_dir() { path.join(self.name) } else { path };
        Some(LibraryFile { because, path })
    }

    fn first(&self, places: impl Iterator<Item = LibraryFile>) -> Result<(Library, PathBuf), CudaError> {
        let mut tried = Vec::new();
        for LibraryFile { because, path } in places {
            let bare = path.parent().is_none_or(|folder| folder.as_os_str().is_empty());
            if !bare && !path.exists() {
                tried.push(Attempt { because, path, problem: "no such file".to_owned() });
                continue;
            }
            open_neighbors(&path);
            // SAFETY: opening runs the library's own initialization, which for NVIDIA's libraries (and stand-ins for
            // them) has no requirement on the process.
            match unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_GLOBAL) } {
                Ok(library) => return Ok((library, path)),
                Err(error) => tried.push(Attempt { because, path, problem: error.to_string() }),
            }
        }
        Err(CudaError::Missing { library: self.name, variable: self.variable, tried })
    }
}

/// Opens the libraries in the folder of `cudnn` that it will request by bare name. Ignores one that does not open,
/// because cuDNN reports it when needed.
fn open_neighbors(cudnn: &Path) {
    for path in places::neighbors(cudnn) {
        // SAFETY: as for the library itself.
        if let Ok(library) = unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_GLOBAL) } {
            // Closing it would undo the opening.
            std::mem::forget(library);
        }
    }
}

/// Opens the CUDA driver and resolves its functions.
///
/// # Errors
/// [`CudaError::Missing`] with every place tried; [`CudaError::Symbol`] if it is not a driver.
pub fn driver(option: Option<&Path>) -> Result<OpenLibrary<Driver>, CudaError> {
    let wanted = LibraryQuery { name: "libcuda.so.1", variable: "TIGHTFIT_CUDA" };
    let (library, path) = wanted.open(option, places::driver(wanted.name))?;
    // SAFETY: the library was opened under the driver's name or under a name given for it.
    Ok(OpenLibrary { table: unsafe { Driver::resolve(library) }?, path })
}

/// Locates cuDNN without opening it: the file named by `option`, otherwise by its variable, otherwise in the packages
/// of `python` (a name on the path or a file), otherwise at the places where [`cudnn()`] looks. Returns an absolute
/// path.
///
/// # Errors
/// [`CudaError::Missing`] with every place tried.
pub fn find_cudnn(option: Option<&Path>, python: Option<&OsStr>) -> Result<PathBuf, CudaError> {
    let wanted = CUDNN;
    let pythons = python.into_iter().map(OsStr::to_owned).collect();
    let places: Box<dyn Iterator<Item = LibraryFile>> = match wanted.named(option) {
        Some(place) => Box::new(std::iter::once(place)),
        None => Box::new(cudnn_places(wanted.name, pythons, Asking::Allowed)),
    };
    let mut tried = Vec::new();
    for LibraryFile { because, path } in places {
        match std::path::absolute(&path) {
            Ok(found) if found.is_file() => return Ok(found),
            _ => tried.push(Attempt { because, path, problem: "no such file".to_owned() }),
        }
    }
    Err(CudaError::Missing { library: wanted.name, variable: wanted.variable, tried })
}

/// Opens cuDNN with its neighbors, checks its version and resolves its functions. Needs no driver.
///
/// # Errors
/// [`CudaError::Missing`] with every place tried; [`CudaError::TooOld`]; [`CudaError::Symbol`] if it is not cuDNN.
pub fn cudnn(option: Option<&Path>) -> Result<CudnnLibrary, CudaError> {
    let by_name = LibraryFile { because: "the loader's path".to_owned(), path: CUDNN.name.into() };
    let places = cudnn_places(CUDNN.name, Vec::new(), Asking::Allowed).chain(std::iter::once(by_name));
    let (library, path) = CUDNN.open(option, places)?;
    accept(library, path)
}

/// Opens the cuDNN of a running program, without its neighbors: they are already open, or cuDNN finds them by itself.
///
/// # Errors
/// As [`cudnn`].
pub fn cudnn_of_program(path: &Path) -> Result<CudnnLibrary, CudaError> {
    // SAFETY: opening runs the library's own initialization, which has no requirement on the process.
    match unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) } {
        Ok(library) => accept(library, path.to_owned()),
        Err(error) => {
            let because = "the running program".to_owned();
            let tried = vec![Attempt { because, path: path.to_owned(), problem: error.to_string() }];
            Err(CudaError::Missing { library: "libcudnn.so.9", variable: "TIGHTFIT_CUDNN", tried })
        }
    }
}

fn accept(library: Library, path: PathBuf) -> Result<CudnnLibrary, CudaError> {
    // SAFETY: the library was opened under cuDNN's name or under a name given for it.
    let table = unsafe { Cudnn::resolve(library) }?;
    // SAFETY: needs nothing but the table.
    let version = CudnnVersion(unsafe { call::cudnn::get_version(&table) });
    if version < CudnnVersion::LEAST {
        return Err(CudaError::TooOld { path, version });
    }
    Ok(CudnnLibrary { table, path, version })
}

/// The functions for layers of a cuDNN that [`cudnn`] has found at `path`.
///
/// # Errors
/// [`CudaError::Symbol`] if it supports only convolutions.
pub fn cudnn_layers(path: &Path) -> Result<CudnnLayers, CudaError> {
    let wanted = LibraryQuery { name: "libcudnn.so.9", variable: "TIGHTFIT_CUDNN" };
    let (library, _) = wanted.open(Some(path), std::iter::empty())?;
    // SAFETY: the library was opened as cuDNN before.
    Ok(unsafe { CudnnLayers::resolve(library) }?)
}

/// Opens the cuBLAS that goes with the cuDNN at `cudnn` and resolves its functions.
///
/// # Errors
/// [`CudaError::Missing`] with every place tried; [`CudaError::Symbol`] if it is not cuBLAS.
pub fn cublas(option: Option<&Path>, cudnn: &Path) -> Result<OpenLibrary<Cublas>, CudaError> {
    let wanted = LibraryQuery { name: "libcublas.so.13", variable: "TIGHTFIT_CUBLAS" };
    let (library, path) = wanted.open(option, places::cublas(cudnn))?;
    // SAFETY: the library was opened under cuBLAS's name or under a name given for it.
    Ok(OpenLibrary { table: unsafe { Cublas::resolve(library) }?, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_is_taken_or_refused_and_nothing_else_is_tried() {
        let Err(CudaError::Missing { tried, .. }) = cudnn(Some(Path::new("/nowhere/libcudnn.so.9"))) else {
            panic!("found what is not there");
        };
        assert_eq!(tried.len(), 1);
        assert_eq!(tried[0].because, "the option");
    }

    #[test]
    fn a_python_is_looked_at_before_the_usual_places_and_nothing_is_opened() {
        let root = std::env::temp_dir().join(format!("tightfit-find-{}", std::process::id()));
        let [bin, site] = ["bin", "lib/python3.12/site-packages/nvidia/cudnn/lib"].map(|folder| root.join(folder));
        for folder in [&bin, &site] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let python = bin.join("python3");
        let cudnn = site.join("libcudnn.so.9");
        std::fs::write(&cudnn, "no library").unwrap();
        assert_eq!(find_cudnn(None, Some(python.as_os_str())).unwrap(), cudnn);
        assert_eq!(find_cudnn(Some(&site), None).unwrap(), cudnn, "a folder stands for the file in it");
        std::fs::remove_file(&cudnn).unwrap();
        if let Err(CudaError::Missing { tried, .. }) = find_cudnn(None, Some(python.as_os_str())) {
            assert!(tried.iter().any(|place| place.path == cudnn), "{tried:?}");
            assert!(tried.iter().all(|place| place.path.parent().is_some_and(|folder| folder != "")), "{tried:?}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_folder_stands_for_the_file_in_it() {
        let Err(error) = driver(Some(Path::new("/"))) else { panic!("found what is not there") };
        assert!(error.to_string().contains("/libcuda.so.1 (the option): no such file"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_library_is_refused_with_the_loaders_words() {
        let Err(CudaError::Missing { tried, .. }) = driver(Some(Path::new("/etc/hostname"))) else {
            panic!("opened what is no library");
        };
        assert!(!tried[0].problem.is_empty() && tried[0].problem != "no such file");
    }
}
