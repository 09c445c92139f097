//! Finds and opens the libraries at run time, so that a program built without CUDA uses it where it is.
//!
//! ```text
//! libcuda.so.1     option, TIGHTFIT_CUDA,  the loader's path, where containers mount the driver
//! libcudnn.so.9    option, TIGHTFIT_CUDNN, the active environment's and python3's site-packages/nvidia/cudnn/lib,
//!                  /usr/local/cuda, the loader's path
//! libcublas.so.13  option, TIGHTFIT_CUBLAS, beside cuDNN (.13 or .12), /usr/local/cuda, the loader's path; only to train
//! ```
//!
//! What an option or a variable names is taken or refused; only without either are the other places tried in turn. cuDNN
//! opens its parts and its neighbors (cuBLAS, NVRTC) by bare name when it first needs them; pip's wheels put each in a
//! folder of its own, so they are opened by path beforehand and the later request finds them in the process.

mod places;

use std::fmt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};

use crate::sys::cublas::Cublas;
use crate::sys::cudnn::Cudnn;
use crate::sys::driver::Driver;
use crate::sys::layers::CudnnLayers;
use crate::{CudaError, Tried, call};
use places::Place;

/// A library that was opened.
pub struct Found<T> {
    /// Its functions.
    pub table: T,
    /// The file, or the bare name where the loader's path led to it.
    pub path: PathBuf,
}

/// cuDNN's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudnnVersion(pub usize);

impl CudnnVersion {
    /// The oldest with the interface used here.
    pub const LEAST: CudnnVersion = CudnnVersion(90_000);
}

impl fmt::Display for CudnnVersion {
    /// Major, minor and patch; before 9.0 the number had a thousand for the major version.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let major = if self.0 < 10_000 { 1_000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / major, self.0 % major / 100, self.0 % 100)
    }
}

/// A library to look for.
struct Wanted {
    name: &'static str,
    variable: &'static str,
}

impl Wanted {
    /// Opens the library where `option` says, else where its variable says, else at the first of `places` that has it.
    fn open(
        &self,
        option: Option<&Path>,
        places: impl Iterator<Item = Place>,
    ) -> Result<(Library, PathBuf), CudaError> {
        let named = option.map(|path| ("the option".to_owned(), path.to_owned())).or_else(|| {
            std::env::var_os(self.variable)
                .filter(|value| !value.is_empty())
                .map(|value| (self.variable.to_owned(), PathBuf::from(value)))
        });
        match named {
            Some((because, path)) => {
                let path = if path.is_dir() { path.join(self.name) } else { path };
                self.first(std::iter::once(Place { because, path }))
            }
            None => self.first(places),
        }
    }

    fn first(&self, places: impl Iterator<Item = Place>) -> Result<(Library, PathBuf), CudaError> {
        let mut tried = Vec::new();
        for Place { because, path } in places {
            let bare = path.parent().is_none_or(|folder| folder.as_os_str().is_empty());
            if !bare && !path.exists() {
                tried.push(Tried { because, path, problem: "no such file".to_owned() });
                continue;
            }
            open_neighbors(&path);
            // SAFETY: opening runs the library's own initialization, which for NVIDIA's libraries (and stand-ins for
            // them) has no requirement on the process.
            match unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_GLOBAL) } {
                Ok(library) => return Ok((library, path)),
                Err(error) => tried.push(Tried { because, path, problem: error.to_string() }),
            }
        }
        Err(CudaError::Missing { library: self.name, variable: self.variable, tried })
    }
}

/// Opens the libraries beside `cudnn` that it will ask for by bare name. One that does not open is left to cuDNN, which
/// reports it when it is needed.
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
pub fn driver(option: Option<&Path>) -> Result<Found<Driver>, CudaError> {
    let wanted = Wanted { name: "libcuda.so.1", variable: "TIGHTFIT_CUDA" };
    let (library, path) = wanted.open(option, places::driver(wanted.name))?;
    // SAFETY: the library was opened under the driver's name or under a name given for it.
    Ok(Found { table: unsafe { Driver::resolve(library) }?, path })
}

/// Opens cuDNN with its neighbors, checks its version and resolves its functions. Needs no driver.
///
/// # Errors
/// [`CudaError::Missing`] with every place tried; [`CudaError::TooOld`]; [`CudaError::Symbol`] if it is not cuDNN.
pub fn cudnn(option: Option<&Path>) -> Result<(Found<Cudnn>, CudnnVersion), CudaError> {
    let wanted = Wanted { name: "libcudnn.so.9", variable: "TIGHTFIT_CUDNN" };
    let (library, path) = wanted.open(option, places::cudnn(wanted.name))?;
    // SAFETY: the library was opened under cuDNN's name or under a name given for it.
    let table = unsafe { Cudnn::resolve(library) }?;
    // SAFETY: needs nothing but the table.
    let version = CudnnVersion(unsafe { call::cudnn::get_version(&table) });
    if version < CudnnVersion::LEAST {
        return Err(CudaError::TooOld { path, version });
    }
    Ok((Found { table, path }, version))
}

/// The functions for layers of a cuDNN that [`cudnn`] has found at `path`.
///
/// # Errors
/// [`CudaError::Symbol`] if it has convolutions alone.
pub fn cudnn_layers(path: &Path) -> Result<CudnnLayers, CudaError> {
    let wanted = Wanted { name: "libcudnn.so.9", variable: "TIGHTFIT_CUDNN" };
    let (library, _) = wanted.open(Some(path), std::iter::empty())?;
    // SAFETY: the library was opened as cuDNN before.
    unsafe { CudnnLayers::resolve(library) }
}

/// Opens the cuBLAS that goes with the cuDNN at `cudnn` and resolves its functions.
///
/// # Errors
/// [`CudaError::Missing`] with every place tried; [`CudaError::Symbol`] if it is not cuBLAS.
pub fn cublas(option: Option<&Path>, cudnn: &Path) -> Result<Found<Cublas>, CudaError> {
    let wanted = Wanted { name: "libcublas.so.13", variable: "TIGHTFIT_CUBLAS" };
    let (library, path) = wanted.open(option, places::cublas(cudnn))?;
    // SAFETY: the library was opened under cuBLAS's name or under a name given for it.
    Ok(Found { table: unsafe { Cublas::resolve(library) }?, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_numberings_print() {
        assert_eq!(CudnnVersion(91_900).to_string(), "9.19.0");
        assert_eq!(CudnnVersion(90_001).to_string(), "9.0.1");
        assert_eq!(CudnnVersion(8_907).to_string(), "8.9.7");
        assert!(CudnnVersion(8_907) < CudnnVersion::LEAST);
    }

    #[test]
    fn a_named_file_is_taken_or_refused_and_nothing_else_is_tried() {
        let Err(CudaError::Missing { tried, .. }) = cudnn(Some(Path::new("/nowhere/libcudnn.so.9"))) else {
            panic!("found what is not there");
        };
        assert_eq!(tried.len(), 1);
        assert_eq!(tried[0].because, "the option");
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
