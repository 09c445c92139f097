//! The real cuDNN: where it is, and its functions by name.
//!
//! ```text
//! TIGHTFIT_CUDNN                                  what a launcher sets
//! a libcudnn.so.9 that the process has open       a linked program, where this library goes by another name
//! nvidia/cudnn/lib beside an open package         python: site-packages/torch/.. leads to site-packages/nvidia/cudnn/lib
//! the interpreter's own site-packages             before the first package is open
//! LD_LIBRARY_PATH, /usr/local/cuda, the system
//! ```
//!
//! Always opened by its absolute path: by its name the loader would give us ourselves.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use tightfit_cuda::Host;
use tightfit_cuda::load;

use crate::log::say;

const NAME: &str = "libcudnn.so.9";

struct Original {
    path: PathBuf,
    library: Library,
}

/// The address of a real function; none if the library lacks it.
///
/// # Errors
/// If there is no real library.
pub fn symbol(name: &CStr) -> Result<Option<usize>, ()> {
    let original = original().ok_or(())?;
    // SAFETY: only the address is taken; who calls it knows the signature.
    let found = unsafe { original.library.get::<*const ()>(name.to_bytes_with_nul()) };
    Ok(found.ok().map(|symbol| symbol.as_raw_ptr() as usize).filter(|address| *address != 0))
}

/// The real library's file.
pub fn path() -> Option<&'static Path> {
    original().map(|original| original.path.as_path())
}

/// Driver and cuDNN for our own work; none where that cannot be, which is said once.
pub fn host() -> Option<&'static Host> {
    static HOST: OnceLock<Option<Host>> = OnceLock::new();
    HOST.get_or_init(|| {
        let opened = load::cudnn_of_program(path()?).map(Arc::new).and_then(Host::open);
        opened.map_err(|error| say!("every convolution is left as it is: {error}")).ok()
    })
    .as_ref()
}

fn original() -> Option<&'static Original> {
    static ORIGINAL: OnceLock<Option<Original>> = OnceLock::new();
    ORIGINAL
        .get_or_init(|| {
            let mut tried = Vec::new();
            for path in places() {
                match open(&path) {
                    Ok(library) => return Some(Original { path, library }),
                    Err(problem) => tried.push(format!("{} ({problem})", path.display())),
                }
            }
            let looked = if tried.is_empty() { "nowhere to look".to_owned() } else { tried.join(", ") };
            say!("the real {NAME} was not found: set TIGHTFIT_CUDNN to its file; tried {looked}");
            None
        })
        .as_ref()
}

fn open(path: &Path) -> Result<Library, String> {
    // SAFETY: opening runs the library's own initialization, as it would have without us.
    let library = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }.map_err(|error| error.to_string())?;
    // SAFETY: only the address is taken.
    let version = unsafe { library.get::<*const ()>(b"cudnnGetVersion\0") }.map_err(|error| error.to_string())?;
    if std::ptr::eq(version.as_raw_ptr(), crate::trampolines::cudnnGetVersion as *const std::ffi::c_void) {
        return Err("is this library itself".to_owned());
    }
    Ok(library)
}

/// Files to try, existing ones only.
fn places() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("TIGHTFIT_CUDNN").filter(|value| !value.is_empty()) {
        let path = PathBuf::from(named);
        return vec![if path.is_dir() { path.join(NAME) } else { path }];
    }
    let open: Vec<PathBuf> = open_files();
    let own = |path: &&PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(NAME));
    let mut places: Vec<PathBuf> = open.iter().filter(own).cloned().collect();
    let in_site = |site: &Path| site.join("nvidia/cudnn/lib").join(NAME);
    places.extend(open.iter().filter_map(|path| site_of(path)).map(|site| in_site(&site)));
    let roots = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let interpreter = std::env::current_exe().ok().and_then(|exe| Some(exe.ancestors().nth(2)?.to_owned()));
    for root in roots.chain(interpreter) {
        places.extend(sites(&root).iter().map(|site| in_site(site)));
        places.push(root.join("lib").join(NAME));
    }
    let searched = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    places.extend(std::env::split_paths(&searched).map(|folder| folder.join(NAME)));
    let system = ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    places.extend(system.iter().map(|folder| Path::new(folder).join(NAME)));
    let mut seen = Vec::new();
    places.retain(|path| {
        let is_new = path.is_absolute() && path.exists() && !seen.contains(path);
        seen.push(path.clone());
        is_new
    });
    places
}

/// Files that the process has mapped.
fn open_files() -> Vec<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut files: Vec<PathBuf> =
        maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..]))).collect();
    files.dedup();
    files
}

/// The folder of packages that a file lies in.
fn site_of(path: &Path) -> Option<PathBuf> {
    let is_site = |folder: &&Path| folder.ends_with("site-packages") || folder.ends_with("dist-packages");
    path.ancestors().find(is_site).map(Path::to_owned)
}

/// The folders of packages of an environment.
fn sites(root: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten().map(|entry| entry.path());
    let of_python = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"));
    entries.filter(of_python).flat_map(|folder| [folder.join("site-packages"), folder.join("dist-packages")]).collect()
}
