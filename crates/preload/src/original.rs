//! Finds the real cuDNN and looks up its functions by name.
//!
//! ```text
//! TIGHTFIT_CUDNN                                  what a launcher sets
//! a libcudnn.so.9 that the process has open       a linked program, where this library goes by another name
//! nvidia/cudnn/lib next to an open package         python: site-packages/torch/.. leads to site-packages/nvidia/cudnn/lib
//! the list that every part of the project uses    `tightfit_cuda::load::cudnn_places`, this process's interpreter first
//! ```
//!
//! Always opened by its absolute path, because by name the loader would return this library.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use tightfit_cuda::Host;
use tightfit_cuda::load::{self, Asking, cudnn_places, in_packages, is_python};

use crate::log::warn;

const NAME: &str = "libcudnn.so.9";

/// The real cuDNN.
pub struct Original {
    path: PathBuf,
    library: Library,
}

impl Original {
    /// Finds and opens it, or `None` without one, which is reported.
    pub fn find() -> Option<Original> {
        let mut tried = Vec::new();
        for path in places() {
            match open(&path) {
                Ok(library) => return Some(Original { path, library }),
                Err(problem) => tried.push(format!("{} ({problem})", path.display())),
            }
        }
        let looked = if tried.is_empty() { "no places".to_owned() } else { tried.join(", ") };
        warn!("could not find the real {NAME}; set TIGHTFIT_CUDNN to its file; tried {looked}");
        None
    }

    /// The address of a function, or `None` if the library lacks it.
    pub fn symbol(&self, name: &CStr) -> Option<usize> {
        // SAFETY: only the address is taken; who calls it knows the signature.
        let found = unsafe { self.library.get::<*const ()>(name.to_bytes_with_nul()) };
        found.ok().map(|symbol| symbol.as_raw_ptr() as usize).filter(|address| *address != 0)
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Driver and cuDNN for our own work, or `None` if they cannot be opened, which is reported.
    pub fn host(&self) -> Option<Host> {
        let opened = load::cudnn_of_program(&self.path).map(Arc::new).and_then(Host::open);
        opened.map_err(|error| warn!("leaving every convolution unchanged: {error}")).ok()
    }
}

fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: opening runs the library's own initialization, as it would have without us.
    let library = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
    // SAFETY: only the address is taken.
    let version = unsafe { library.get::<*const ()>(b"cudnnGetVersion\0") }.map_err(|error| error.to_string())?;
    match (file_base(version.as_raw_ptr()), file_base(open as *const c_void)) {
        (Some(theirs), Some(ours)) if theirs == ours => Err("this is the tightfit library itself".to_owned()),
        _ => Ok(library),
    }
}

/// Where the file that contains an address is mapped, or `None` if no file does.
fn file_base(address: *const c_void) -> Option<usize> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about, and the place for the answer is valid.
    (unsafe { libc::dladdr(address, &mut info) } != 0).then_some(info.dli_fbase as usize)
}

/// The files to try, limited to existing ones.
fn places() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("TIGHTFIT_CUDNN").filter(|value| !value.is_empty()) {
        let path = PathBuf::from(named);
        return vec![if path.is_dir() { path.join(NAME) } else { path }];
    }
    let open = open_files(&std::fs::read("/proc/self/maps").unwrap_or_default());
    let own = |path: &&PathBuf| path.file_name().is_some_and(|name| name.as_bytes().starts_with(NAME.as_bytes()));
    let mut places: Vec<PathBuf> = open.iter().filter(own).cloned().collect();
    places.extend(open.iter().filter_map(|path| packages_of(path)).map(|folder| in_packages(folder, NAME)));
    // Both the path it was called by, which leads to its virtual environment, and the file itself.
    let called = std::env::args_os().next();
    let interpreters = called.into_iter().chain(std::env::current_exe().ok().map(PathBuf::into_os_string));
    let pythons = interpreters.filter(|word| is_python(word)).collect();
    places.extend(cudnn_places(NAME, pythons, Asking::Forbidden).map(|place| place.path));
    let mut seen = Vec::new();
    places.retain(|path| {
        let is_new = path.is_absolute() && path.exists() && !seen.contains(path);
        seen.push(path.clone());
        is_new
    });
    places
}

/// The files in a process's list of mappings.
fn open_files(maps: &[u8]) -> Vec<PathBuf> {
    let file = |line: &[u8]| {
        let at = line.iter().position(|byte| *byte == b'/')?;
        Some(PathBuf::from(OsStr::from_bytes(&line[at..])))
    };
    let mut files: Vec<PathBuf> = maps.split(|byte| *byte == b'\n').filter_map(file).collect();
    files.dedup();
    files
}

/// The package folder that contains a file.
fn packages_of(path: &Path) -> Option<&Path> {
    path.ancestors().find(|folder| folder.ends_with("site-packages") || folder.ends_with("dist-packages"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_whose_names_are_not_utf_8_hide_no_others() {
        let maps =
            b"7f-80 r-xp 0 0 1 /x/\xff/site-packages/torch/_C.so\n80-81 rw-p 0 0 0 [heap]\n81-82 r-xp 0 0 2 /b.so\n";
        let files = open_files(maps);
        assert_eq!(files.len(), 2, "{files:?}");
        assert_eq!(packages_of(&files[0]), Some(Path::new(OsStr::from_bytes(b"/x/\xff/site-packages"))));
        assert_eq!((packages_of(&files[1]), &files[1]), (None, &PathBuf::from("/b.so")));
    }
}
