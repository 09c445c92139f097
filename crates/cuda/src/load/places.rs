//! The usual places of the libraries other than cuDNN. This opens nothing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Folders of CUDA toolkits.
pub(super) const TOOLKITS: [&str; 2] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"];

/// A file to try, and why.
#[derive(Debug)]
pub struct LibraryFile {
    /// The reason to look there.
    pub because: String,
    /// The file, or a bare name for the loader's own path.
    pub path: PathBuf,
}

pub(super) fn place(because: &str, path: impl Into<PathBuf>) -> LibraryFile {
    LibraryFile { because: because.to_owned(), path: path.into() }
}

/// Places of the driver. The loader finds it, except in some containers.
pub fn driver(name: &'static str) -> impl Iterator<Item = LibraryFile> {
    let mounted = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"];
    std::iter::once(place("the loader's path", name))
        .chain(mounted.into_iter().map(move |folder| place("a mounted driver", Path::new(folder).join(name))))
}

/// The libraries that cuDNN will request by bare name, at the paths of pip's wheels, dependencies first.
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
pub fn cublas(cudnn: &Path) -> impl Iterator<Item = LibraryFile> {
    const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];
    let is_cublas = |path: &PathBuf| path.file_name().and_then(OsStr::to_str).is_some_and(|name| NAMES.contains(&name));
    let wheels = neighbors(cudnn).into_iter().filter(is_cublas);
    let folder = cudnn.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned);
    let beside = folder.into_iter().flat_map(|folder| NAMES.map(|name| place("next to cuDNN", folder.join(name))));
    let toolkit =
        TOOLKITS.into_iter().flat_map(|folder| NAMES.map(|name| place("a CUDA toolkit", Path::new(folder).join(name))));
    let loader = NAMES.into_iter().map(|name| place("the loader's path", name));
    wheels.map(|path| place("cuDNN's wheel", path)).chain(beside).chain(toolkit).chain(loader)
}

/// The content of a folder; empty if it cannot be read.
pub(super) fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_loaded_first() {
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
