//! Where the libraries usually lie. Nothing is opened here.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file to try, and what led to it.
pub struct Place {
    /// What led there.
    pub because: String,
    /// The file, or a bare name for the loader's own path.
    pub path: PathBuf,
}

fn place(because: &str, path: impl Into<PathBuf>) -> Place {
    Place { because: because.to_owned(), path: path.into() }
}

/// Places of the driver: the loader knows it, except in some containers.
pub fn driver(name: &'static str) -> impl Iterator<Item = Place> {
    let mounted = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"];
    std::iter::once(place("the loader's path", name))
        .chain(mounted.into_iter().map(move |folder| place("a mounted driver", Path::new(folder).join(name))))
}

/// Places of cuDNN. Python is asked only if nothing before it served.
pub fn cudnn(name: &'static str) -> impl Iterator<Item = Place> {
    let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().flat_map(move |variable| {
        let root = std::env::var_os(variable).map(PathBuf::from);
        let own = root.iter().map(|root| root.join("lib").join(name)).collect::<Vec<_>>();
        let packages = root.iter().flat_map(|root| site_packages(root)).map(|site| in_site(&site, name));
        own.into_iter().chain(packages).map(|path| place(variable, path)).collect::<Vec<_>>()
    });
    let python = std::iter::once_with(|| python_path("python3".as_ref()))
        .flatten()
        .map(move |site| place("python3's sys.path", in_site(&site, name)));
    let toolkit = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"]
        .into_iter()
        .map(move |folder| place("a CUDA toolkit", Path::new(folder).join(name)));
    environments.chain(python).chain(toolkit).chain(std::iter::once(place("the loader's path", name)))
}

/// Places of cuDNN that belong to one Python, given by file or by a name on the path: its own folders, then what it says
/// of itself, asked only if they did not serve.
pub fn of_python<'a>(python: &'a OsStr, name: &'a str) -> impl Iterator<Item = Place> + 'a {
    let root = on_path(python).and_then(|file| Some(file.parent()?.parent()?.to_owned()));
    let packages = root.iter().flat_map(|root| site_packages(root)).map(|site| in_site(&site, name));
    let own = packages.chain(root.iter().map(|root| root.join("lib").join(name))).collect::<Vec<_>>();
    let asked = std::iter::once_with(|| python_path(python)).flatten().map(move |site| in_site(&site, name));
    let because = format!("{}'s packages", python.to_string_lossy());
    own.into_iter().chain(asked).map(move |path| place(&because, path))
}

/// The file that a shell would start for a word; links are not followed, since a virtual environment is where its link is.
fn on_path(word: &OsStr) -> Option<PathBuf> {
    if Path::new(word).components().count() > 1 {
        return Some(PathBuf::from(word));
    }
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(word)).find(|file| file.is_file())
}

/// The files that a place may mean: a bare name is looked for where the loader would.
pub fn files(place: Place) -> Vec<Place> {
    if place.path.parent().is_some_and(|folder| !folder.as_os_str().is_empty()) {
        return vec![place];
    }
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let named: Vec<PathBuf> =
        std::env::split_paths(&variable).filter(|folder| !folder.as_os_str().is_empty()).collect();
    let usual = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from);
    let file = |folder: PathBuf| Place { because: place.because.clone(), path: folder.join(&place.path) };
    named.into_iter().chain(usual).map(file).collect()
}

/// Where pip's wheel puts the library.
fn in_site(site: &Path, name: &str) -> PathBuf {
    site.join("nvidia/cudnn/lib").join(name)
}

/// The `lib/python*/site-packages` folders of an environment.
fn site_packages(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = entries(&root.join("lib"))
        .into_iter()
        .filter(|path| path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python")))
        .map(|path| path.join("site-packages"))
        .collect();
    folders.sort();
    folders
}

/// The folders on a Python's own path; none if it does not run.
fn python_path(python: &OsStr) -> Vec<PathBuf> {
    let output = Command::new(python)
        .args(["-c", "import sys; print('\\n'.join(p for p in sys.path if p))"])
        // A preloaded cuDNN has no business in this child.
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {
            String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).filter(|path| path.is_dir()).collect()
        }
        _ => Vec::new(),
    }
}

/// What cuDNN will ask for by bare name, where pip's wheels put it, in an order in which each finds what it needs.
///
/// ```text
/// site-packages/nvidia/cudnn/lib/libcudnn.so.9, libcudnn_ops.so.9, ..
///                      cu13/lib/libcublasLt.so.13, libnvrtc.so.13, ..           wheels for CUDA 13
///                      cublas/lib/libcublasLt.so.12, cuda_nvrtc/lib/ ..         wheels for CUDA 12
/// ```
pub fn neighbors(cudnn: &Path) -> Vec<PathBuf> {
    const OUTSIDE: [&str; 5] =
        ["libcudart.so.", "libnvrtc-builtins.so.", "libnvrtc.so.", "libcublasLt.so.", "libcublas.so."];
    const PARTS: [&str; 7] = [
        "libcudnn_graph.so.",
        "libcudnn_ops.so.",
        "libcudnn_cnn.so.",
        "libcudnn_heuristic.so.",
        "libcudnn_engines_precompiled.so.",
        "libcudnn_engines_runtime_compiled.so.",
        "libcudnn_engines_tensor_ir.so.",
    ];
    let Some(own) = cudnn.parent().filter(|folder| folder.ends_with("nvidia/cudnn/lib")) else { return Vec::new() };
    let wheels = own.ancestors().nth(2).map(entries).unwrap_or_default();
    let outside: Vec<PathBuf> = wheels.iter().flat_map(|wheel| entries(&wheel.join("lib"))).collect();
    let named = |files: &[PathBuf], starts: &[&str]| -> Vec<PathBuf> {
        let starting = |start: &&str| {
            let start = start.to_owned().to_owned();
            files.iter().filter(move |file| {
                file.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(&start))
            })
        };
        starts.iter().flat_map(|start| starting(start).cloned().collect::<Vec<_>>()).collect()
    };
    [named(&outside, &OUTSIDE), named(&entries(own), &PARTS)].concat()
}

/// Places of cuBLAS: the one that cuDNN itself uses comes first.
pub fn cublas(cudnn: &Path) -> impl Iterator<Item = Place> {
    const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
    let is_cublas = |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|name| NAMES.contains(&name));
    let wheels = neighbors(cudnn).into_iter().filter(is_cublas);
    let folder = cudnn.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned);
    let beside = folder.into_iter().flat_map(|folder| NAMES.map(|name| place("beside cuDNN", folder.join(name))));
    let toolkit = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"]
        .into_iter()
        .flat_map(|folder| NAMES.map(|name| place("a CUDA toolkit", Path::new(folder).join(name))));
    let loader = NAMES.into_iter().map(|name| place("the loader's path", name));
    wheels.map(|path| place("cuDNN's wheel", path)).chain(beside).chain(toolkit).chain(loader)
}

/// What a folder holds; nothing if it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_come_before_what_needs_them() {
        let root = std::env::temp_dir().join(format!("tightfit-places-{}", std::process::id()));
        for file in ["cudnn/lib/libcudnn.so.9", "cudnn/lib/libcudnn_ops.so.9", "cudnn/lib/libcudnn_graph.so.9"]
            .into_iter()
            .chain(["cu13/lib/libcublas.so.13", "cu13/lib/libcublasLt.so.13", "cu13/lib/libother.so.1"])
        {
            let path = root.join("nvidia").join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let found = neighbors(&root.join("nvidia/cudnn/lib/libcudnn.so.9"));
        let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["libcublasLt.so.13", "libcublas.so.13", "libcudnn_graph.so.9", "libcudnn_ops.so.9"]);
        assert!(neighbors(&root.join("elsewhere/libcudnn.so.9")).is_empty());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
