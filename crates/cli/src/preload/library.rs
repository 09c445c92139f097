//! The library that is put under a framework: where it is, and which of its two forms serves.
//!
//! The first form carries cuDNN's own name, so that it stands in for cuDNN with clients that link it and with those that
//! open it by name; for that it must have every function that the real library has. Where that one knows more, only the
//! form without the name is safe: it reaches the clients that link cuDNN, as PyTorch does.

use std::path::{Path, PathBuf};

use tightfit_core::report::count;

use super::Elf;
use crate::failure::Failure;

/// Names our library, as a file or as the folder of both forms.
const VARIABLE: &str = "TIGHTFIT_PRELOAD";
/// The name under which clients ask for cuDNN.
const SONAME: &str = "libcudnn.so.9";

/// Which of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Named as cuDNN is.
    Named,
    /// Without that name, for clients that link cuDNN.
    Plain,
}

impl Form {
    pub const fn file(self) -> &'static str {
        match self {
            Form::Named => "libtightfit_preload.so",
            Form::Plain => "libtightfit_preload_plain.so",
        }
    }
}

/// Our library as it serves one real one.
pub struct Preload {
    pub path: PathBuf,
    pub form: Form,
    /// Functions of the real library that ours does not know.
    pub unknown: Vec<String>,
}

impl Preload {
    /// Finds the form that serves over the real library at `cudnn`.
    ///
    /// # Errors
    /// [`Failure::Wrong`] if there is no such file, or one of the libraries is none.
    pub fn over(cudnn: &Path) -> Result<Preload, Failure> {
        let named = find(Form::Named)?;
        let unknown = compare(&named, cudnn)?;
        if unknown.is_empty() {
            return Ok(Preload { path: named, form: Form::Named, unknown });
        }
        match find(Form::Plain) {
            Ok(path) => Ok(Preload { path, form: Form::Plain, unknown }),
            Err(_) => Err(Failure::Wrong(format!(
                "{} has {} that {} does not know, {} first; its other form, {}, would serve, and is not there",
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
/// [`Failure::Wrong`] naming the file that cannot be read, or that is not what its name says.
fn compare(ours: &Path, real: &Path) -> Result<Vec<String>, Failure> {
    let read = |path: &Path| {
        Elf::read(path)
            .map_err(|error| Failure::Wrong(format!("{}: cannot be read as a library: {error}", path.display())))
    };
    let (ours_read, real_read) = (read(ours)?, read(real)?);
    if real_read.exports.binary_search(&"tightfitSetLayer".to_owned()).is_ok() {
        return Err(Failure::Wrong(format!(
            "{} is tightfit's own library, not cuDNN; name cuDNN's with --cudnn",
            real.display()
        )));
    }
    if ours_read.soname.as_deref() != Some(SONAME) {
        let name = ours_read.soname.as_deref().unwrap_or("nothing");
        return Err(Failure::Wrong(format!("{} calls itself {name}, not {SONAME}; build it again", ours.display())));
    }
    let lacks = |name: &String| name.starts_with("cudnn") && ours_read.exports.binary_search(name).is_err();
    Ok(real_read.exports.into_iter().filter(lacks).collect())
}

/// Finds a form: where the variable says, else beside this program, else in `../lib/tightfit` and `../lib`.
///
/// # Errors
/// [`Failure::Wrong`] with every place looked at and what to do.
fn find(form: Form) -> Result<PathBuf, Failure> {
    let places: Vec<PathBuf> = match std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from) {
        Some(folder) if folder.is_dir() => vec![folder.join(form.file())],
        // A file stands for itself; the other form lies beside it.
        Some(file) => match form {
            Form::Named => vec![file],
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
    let looked: String = places.iter().map(|place| format!("\n  {}", place.display())).collect();
    Err(Failure::Wrong(format!(
        "{} was not found; build it with `cargo build --release -p tightfit-preload`, or name its folder in {VARIABLE}. \
         Looked at:{looked}",
        form.file()
    )))
}
