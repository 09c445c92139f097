//! Finds the library to preload, and chooses between its two forms.
//!
//! The first form carries cuDNN's own name, so it replaces cuDNN for clients that link it and for clients that open it by
//! name; for that, it must have every function of the real library. If the real library has more, only the form without
//! the name is safe: it is found by clients that link cuDNN, such as PyTorch.

use std::path::{Path, PathBuf};

use tightfit_profile::Cache;
use tightfit_report::count;

use super::{Elf, Form, carried};
use crate::failure::Failure;

/// Names our library, as a file or as the folder of both forms; a carried library is written into that folder.
const VARIABLE: &str = "TIGHTFIT_PRELOAD";
/// The name under which clients ask for cuDNN.
const SONAME: &str = "libcudnn.so.9";

/// Whether this processor can run our library, whose trampolines are assembly.
///
/// # Errors
/// [`Failure::Wrong`] naming the processor.
pub fn supported() -> Result<(), Failure> {
    if cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    Err(Failure::Wrong(format!(
        "`tightfit run` supports x86_64 processors only; this one is {}, where the other commands work",
        std::env::consts::ARCH
    )))
}

/// Our library, for a given real one.
pub struct Preload {
    pub path: PathBuf,
    pub form: Form,
    /// Functions of the real library that ours does not know.
    pub unknown: Vec<String>,
}

impl Preload {
    /// Finds the form that works with the real library at `cudnn`.
    ///
    /// # Errors
    /// [`Failure::Wrong`] if there is no such file, if a file is not a library, or on another processor.
    pub fn over(cudnn: &Path) -> Result<Preload, Failure> {
        supported()?;
        let named = find(Form::Named)?;
        let unknown = compare(&named, cudnn)?;
        if unknown.is_empty() {
            return Ok(Preload { path: named, form: Form::Named, unknown });
        }
        match find(Form::Plain) {
            Ok(path) => Ok(Preload { path, form: Form::Plain, unknown }),
            Err(_) => Err(Failure::Wrong(format!(
                "{} has {} that {} does not know, starting with {}; the other form, {}, would work but was not found",
                cudnn.display(),
                count(unknown.len(), "function"),
                named.display(),
                unknown[0],
                Form::Plain.file()
            ))),
        }
    }
}

/// The functions of the real library that ours lacks.
///
/// # Errors
/// [`Failure::Wrong`] naming the file that cannot be read, or that is not the expected library.
fn compare(ours: &Path, real: &Path) -> Result<Vec<String>, Failure> {
    let read = |path: &Path| {
        Elf::read(path)
            .map_err(|error| Failure::Wrong(format!("{}: cannot read this library: {error}", path.display())))
    };
    let (ours_read, real_read) = (read(ours)?, read(real)?);
    if real_read.exports.binary_search(&"tightfitSetLayer".to_owned()).is_ok() {
        return Err(Failure::Wrong(format!(
            "{} is tightfit's own library, not cuDNN; name the real cuDNN with --cudnn",
            real.display()
        )));
    }
    if ours_read.soname.as_deref() != Some(SONAME) {
        let name = ours_read.soname.as_deref().unwrap_or("nothing");
        return Err(Failure::Wrong(format!("{} calls itself {name}, not {SONAME}; rebuild it", ours.display())));
    }
    let lacks = |name: &String| name.starts_with("cudnn") && ours_read.exports.binary_search(name).is_err();
    Ok(real_read.exports.into_iter().filter(lacks).collect())
}

/// Finds a form: in the variable's place if set, otherwise in this program's folder, in `../lib/tightfit` or in `../lib`; or
/// else writes the one that the command carries, into the variable's folder or the folder of the user's cache.
///
/// # Errors
/// [`Failure::Wrong`] with every place searched and what to do; one naming the folder that cannot be written.
fn find(form: Form) -> Result<PathBuf, Failure> {
    let named = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let places: Vec<PathBuf> = match &named {
        Some(folder) if folder.is_dir() => vec![folder.join(form.file())],
        // A file is the named form; the other form is in the same folder.
        Some(file) => match form {
            Form::Named => vec![file.clone()],
            Form::Plain => vec![file.with_file_name(form.file())],
        },
        None => {
            let program = std::env::current_exe().and_then(std::fs::canonicalize).unwrap_or_default();
            let folder = program.parent().unwrap_or(Path::new("/"));
            ["", "../lib/tightfit", "../lib"].map(|place| folder.join(place).join(form.file())).to_vec()
        }
    };
    for place in &places {
        if let Ok(path) = std::fs::canonicalize(place)
            && path.is_file()
        {
            return Ok(path);
        }
    }
    if let Some(library) = carried::carried(form)
        && named.as_ref().is_none_or(|folder| folder.is_dir())
    {
        return unpack(library, named);
    }
    let looked: String = places.iter().map(|place| format!("\n  {}", place.display())).collect();
    let advice = match named {
        Some(path) if carried::carried(form).is_some() => format!(
            "; {VARIABLE} is {}, so create this folder, and the library is written there, or unset the variable",
            path.display()
        ),
        _ => format!(
            ", and this build of tightfit does not carry it; build it with `cargo build --release -p tightfit-preload \
             -p tightfit-preload-plain` and set {VARIABLE} to its folder, or install tightfit with `pip install \
             ./crates/python`"
        ),
    };
    Err(Failure::Wrong(format!("{} was not found{advice}. Looked at:{looked}", form.file())))
}

/// Writes a carried library into `folder`, or else into the folder of the user's cache.
///
/// # Errors
/// [`Failure::Wrong`] naming the folder that cannot be written, and the variable.
fn unpack(library: carried::Carried, folder: Option<PathBuf>) -> Result<PathBuf, Failure> {
    // Measurements may be shared in a cache of others; what is executed comes from a folder of the user's own.
    let of_user = || {
        let cache = Cache::default_path(|name| (name != "TIGHTFIT_CACHE").then(|| std::env::var_os(name)).flatten())?;
        cache.parent().map(Path::to_owned)
    };
    let advice = format!("set {VARIABLE} to a folder that can be written");
    let folder = folder.or_else(of_user).ok_or_else(|| {
        Failure::Wrong(format!("there is no place for {}, because HOME is not set; {advice}", library.0))
    })?;
    carried::unpack(library, &folder).map(|path| std::fs::canonicalize(&path).unwrap_or(path)).map_err(|error| {
        Failure::Wrong(format!(
            "{} cannot be put into {}: {}; {advice}",
            library.0,
            folder.display(),
            Failure::Error(error).text()
        ))
    })
}

/// A form of our library and where it comes from, for `doctor`.
///
/// # Errors
/// As [`Preload::over`], but without looking into the file.
pub fn found(form: Form) -> Result<(PathBuf, &'static str), Failure> {
    supported()?;
    let path = find(form)?;
    let is_carried = carried::carried(form)
        .is_some_and(|library| path.parent().is_some_and(|folder| carried::place(library, folder) == path));
    let origin = match std::env::var_os(VARIABLE) {
        _ if is_carried => "carried by the command",
        Some(value) if !value.is_empty() => "named by TIGHTFIT_PRELOAD",
        _ => "beside the command",
    };
    Ok((path, origin))
}
