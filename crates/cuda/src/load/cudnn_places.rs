//! The search path of cuDNN: one list for every part of the project, so that measuring and running use the same
//! library. This opens nothing, and queries no device.
//!
//! ```text
//! the Pythons that are named     of a command, or of the process: its packages, its lib, its reported folders
//! VIRTUAL_ENV, CONDA_PREFIX      packages, lib
//! python3                        the first on PATH, as above
//! LD_LIBRARY_PATH
//! CUDA toolkits                  /usr/local/cuda, /opt/cuda
//! the loader's cache             /etc/ld.so.cache
//! system folders
//! ```
//!
//! A file named by `TIGHTFIT_CUDNN` or an option is used or refused, without consulting this list.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::places::{LibraryFile, TOOLKITS, entries, place};

const SYSTEM: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];

/// Whether to start a Python to query its folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asking {
    /// Start it if its own folders do not lead to the library.
    Allowed,
    /// Do not start it, for example inside the process of another program.
    Forbidden,
}

/// The environment that the list depends on.
struct Surroundings<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
    loader_cache: &'a Path,
    asking: Asking,
}

/// The places of a cuDNN called `name`, in search order; `pythons` are the ones known to use it, by file or by a name
/// on PATH. Files need not exist; each is named once.
///
/// Cost: reads a few folders, and starts Pythons if [`Asking::Allowed`], each only after the places before it were
/// tried.
pub fn cudnn_places<'a>(
    name: &'a str,
    pythons: Vec<OsString>,
    asking: Asking,
) -> impl Iterator<Item = LibraryFile> + 'a {
    let variable = &|name: &str| std::env::var_os(name);
    list(name, pythons, Surroundings { variable, loader_cache: Path::new("/etc/ld.so.cache"), asking })
}

fn list<'a>(
    name: &'a str,
    pythons: Vec<OsString>,
    surroundings: Surroundings<'a>,
) -> impl Iterator<Item = LibraryFile> + 'a {
    let Surroundings { variable, loader_cache, asking } = surroundings;
    let set = move |name: &str| variable(name).filter(|value| !value.is_empty());
    let path = set("PATH").unwrap_or_default();
    let of_pythons = {
        let path = path.clone();
        pythons.into_iter().flat_map(move |python| of_python(&python, name, &path, asking))
    };
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().flat_map(move |variable| {
        let files = set(variable).map(|root| of_root(Path::new(&root), name)).unwrap_or_default();
        files.into_iter().map(move |file| place(variable, file))
    });
    let python3 = std::iter::once_with(move || of_python("python3".as_ref(), name, &path, asking)).flatten();
    let searched = std::iter::once_with(move || {
        let folders = set("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = std::env::split_paths(&folders).filter(|folder| !folder.as_os_str().is_empty());
        folders.map(|folder| place("LD_LIBRARY_PATH", folder.join(name))).collect::<Vec<_>>()
    });
    let toolkits = TOOLKITS.iter().map(move |folder| place("a CUDA toolkit", Path::new(folder).join(name)));
    let cached = std::iter::once_with(move || in_loader_cache(loader_cache, name)).flatten();
    let cached = cached.map(|file| place("the loader's cache", file));
    let system = SYSTEM.iter().map(move |folder| place("a system folder", Path::new(folder).join(name)));
    let places = of_pythons.chain(environments).chain(python3).chain(searched.flatten());
    let mut seen = HashSet::new();
    places.chain(toolkits).chain(cached).chain(system).filter(move |place| seen.insert(place.path.clone()))
}

/// Whether a word of a command looks like a Python: `python`, `/opt/venv/bin/python3.12`.
pub fn is_python(word: &OsStr) -> bool {
    Path::new(word).file_name().and_then(OsStr::to_str).is_some_and(|name| {
        let version = name.strip_prefix("python").or_else(|| name.strip_prefix("pypy"));
        version.is_some_and(|rest| rest.chars().all(|letter| letter.is_ascii_digit() || letter == '.'))
    })
}

/// The file that a shell would start for a word with the search path `path`; links are not followed, because the link's
/// location identifies a virtual environment.
pub fn on_path(word: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let candidates = match Path::new(word).components().count() {
        0 => return None,
        1 => std::env::split_paths(path).map(|folder| folder.join(word)).collect(),
        _ => vec![PathBuf::from(word)],
    };
    candidates.into_iter().find(|file| file.is_file())
}

/// Where pip's wheel puts the library in a folder of packages.
pub fn in_packages(packages: &Path, name: &str) -> PathBuf {
    packages.join("nvidia/cudnn/lib").join(name)
}

/// Places of one Python: its own folders, then the folders that it reports.
fn of_python(python: &OsStr, name: &str, path: &OsStr, asking: Asking) -> Vec<LibraryFile> {
    // A named file identifies its environment even if the file itself is missing.
    let is_named_by_path = Path::new(python).components().count() > 1;
    let file = if is_named_by_path { Some(PathBuf::from(python)) } else { on_path(python, path) };
    let root = file.and_then(|file| Some(file.parent()?.parent()?.to_owned()));
    let because = format!("{}'s packages", python.to_string_lossy());
    let own = root.iter().flat_map(|root| of_root(root, name));
    let asked: Vec<PathBuf> = match asking {
        // Not started if its own folders suffice.
        Asking::Allowed if !root.iter().flat_map(|root| of_root(root, name)).any(|file| file.is_file()) => {
            import_path(python)
        }
        _ => Vec::new(),
    };
    let asked = asked.iter().map(|packages| in_packages(packages, name));
    own.chain(asked).map(|file| place(&because, file)).collect()
}

/// Places in an environment: `lib/python*/{site,dist}-packages`, Debian's in `local` too, then `lib` itself.
fn of_root(root: &Path, name: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (lib, packages) in [("lib", "site-packages"), ("local/lib", "dist-packages"), ("lib", "dist-packages")] {
        let is_of_python =
            |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python"));
        let mut folders: Vec<PathBuf> = entries(&root.join(lib)).into_iter().filter(is_of_python).collect();
        folders.sort();
        files.extend(folders.iter().map(|folder| in_packages(&folder.join(packages), name)));
    }
    files.push(root.join("lib").join(name));
    files
}

/// The folders that a Python imports from. Empty if it does not run.
fn import_path(python: &OsStr) -> Vec<PathBuf> {
    let output = Command::new(python)
        .args(["-c", "import sys; print('\\n'.join(p for p in sys.path if p))"])
        // This child must not load a preloaded cuDNN.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            let lines = output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            lines.map(|line| PathBuf::from(OsStr::from_bytes(line))).filter(|path| path.is_dir()).collect()
        }
        _ => Vec::new(),
    }
}

/// The files with this name in the loader's cache, which ends with a string table of all paths.
fn in_loader_cache(cache: &Path, name: &str) -> Vec<PathBuf> {
    let bytes = std::fs::read(cache).unwrap_or_default();
    let end = format!("/{name}");
    let is_it = |text: &&[u8]| text.starts_with(b"/") && text.ends_with(end.as_bytes());
    bytes.split(|byte| *byte == 0).filter(is_it).map(|text| PathBuf::from(OsStr::from_bytes(text))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "libcudnn.so.9";

    /// Creates a file and its folders.
    fn touch(file: &Path) {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, "").unwrap();
    }

    #[test]
    fn the_order_is_the_same_for_all() {
        let root = std::env::temp_dir().join(format!("tightfit-order-{}", std::process::id()));
        let file = |name: &str| root.join(name);
        for python in ["named/bin/python3", "first/bin/python3", "second/bin/python3"] {
            touch(&file(python));
        }
        for folder in
            ["named/lib/python3.12", "venv/lib/python3.9", "first/lib/python3.11", "first/local/lib/python3.11"]
        {
            std::fs::create_dir_all(file(folder)).unwrap();
        }
        let cache = file("ld.so.cache");
        std::fs::write(&cache, format!("glibc\0libcudnn.so.9\0/a/{NAME}\0/a/{NAME}.1\0x/{NAME}\0/b/{NAME}\0")).unwrap();
        let join = |names: [&str; 2]| std::env::join_paths(names.map(file)).unwrap();
        let (path, searched, venv) = (join(["first/bin", "second/bin"]), join(["one", "two"]), file("venv"));
        let variable = |name: &str| match name {
            "PATH" => Some(path.clone()),
            "LD_LIBRARY_PATH" => Some(searched.clone()),
            "VIRTUAL_ENV" => Some(venv.clone().into_os_string()),
            _ => None,
        };
        let surroundings = |asking| Surroundings { variable: &variable, loader_cache: &cache, asking };
        let named = vec![file("named/bin/python3").into_os_string()];
        let found: Vec<PathBuf> = list(NAME, named, surroundings(Asking::Forbidden)).map(|place| place.path).collect();
        // A Python that is named is also the first on PATH here.
        let twice = list(NAME, vec!["python3".into()], surroundings(Asking::Forbidden)).map(|place| place.path);
        let mut once: Vec<PathBuf> = twice.collect();
        let count = once.len();
        once.sort();
        once.dedup();
        assert_eq!(once.len(), count);
        let wheel = "nvidia/cudnn/lib";
        let mut expected = vec![
            file(&format!("named/lib/python3.12/site-packages/{wheel}")),
            file(&format!("named/lib/python3.12/dist-packages/{wheel}")),
            file("named/lib"),
            file(&format!("venv/lib/python3.9/site-packages/{wheel}")),
            file(&format!("venv/lib/python3.9/dist-packages/{wheel}")),
            file("venv/lib"),
            file(&format!("first/lib/python3.11/site-packages/{wheel}")),
            file(&format!("first/local/lib/python3.11/dist-packages/{wheel}")),
            file(&format!("first/lib/python3.11/dist-packages/{wheel}")),
            file("first/lib"),
            file("one"),
            file("two"),
        ];
        expected.extend(["/usr/local/cuda/lib64", "/opt/cuda/lib64", "/a", "/b"].map(PathBuf::from));
        expected.extend(SYSTEM.map(PathBuf::from));
        assert_eq!(found, expected.iter().map(|folder| folder.join(NAME)).collect::<Vec<_>>());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn python_is_started_only_if_allowed_and_needed() {
        use std::os::unix::fs::PermissionsExt;
        let root = std::env::temp_dir().join(format!("tightfit-asked-{}", std::process::id()));
        let (python, packages, marker) = (root.join("bin/python3"), root.join("elsewhere"), root.join("started"));
        touch(&python);
        std::fs::create_dir_all(&packages).unwrap();
        let script = format!("#!/bin/sh\ntouch '{}'\necho '{}'\n", marker.display(), packages.display());
        std::fs::write(&python, script).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let found = |asking| -> Vec<PathBuf> {
            let places = of_python(python.as_os_str(), NAME, OsStr::new(""), asking);
            places.into_iter().map(|place| place.path).collect()
        };
        let own = root.join("lib").join(NAME);
        assert_eq!(found(Asking::Forbidden), std::slice::from_ref(&own));
        assert!(!marker.exists(), "it was started");
        assert_eq!(found(Asking::Allowed), [own.clone(), in_packages(&packages, NAME)]);
        std::fs::remove_file(&marker).unwrap();
        touch(&own);
        assert_eq!(found(Asking::Allowed), [own]);
        assert!(!marker.exists(), "it was started without need");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
