//! Reports which parts of CUDA this machine has, and how to get the rest. Never fails or panics; faults are part of the
//! report.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::safe::{Context, Handle};
use crate::version::driver_version;
use crate::{CudaError, Options, load};

/// One check.
#[derive(Debug)]
pub struct Finding {
    /// The subject of the check.
    pub what: &'static str,
    /// The finding, or the obstacle.
    pub state: State,
}

/// Whether it is usable.
#[derive(Debug)]
pub enum State {
    /// It is present.
    Found {
        /// Its version, name or size.
        detail: String,
        /// The file, for a library.
        path: Option<PathBuf>,
    },
    /// It is missing or unusable.
    Missing {
        /// Why, with every place searched.
        error: CudaError,
        /// Advice.
        advice: &'static str,
    },
    /// It was not checked, because a prerequisite is missing.
    NotReached,
}

impl Finding {
    /// Whether it is usable.
    pub fn is_found(&self) -> bool {
        matches!(self.state, State::Found { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.what)?;
        match &self.state {
            State::Found { detail, path: Some(path) } => write!(f, "{detail} ({})", path.display()),
            State::Found { detail, path: None } => f.write_str(detail),
            State::Missing { error, advice } => write!(f, "{error}\n  -> {advice}"),
            State::NotReached => f.write_str("not reached"),
        }
    }
}

/// Checks the driver, the device, cuDNN, cuBLAS, and whether they work together, in that order.
pub fn doctor(options: &Options) -> Vec<Finding> {
    let driver = "install the NVIDIA driver; start a container with access to the GPU (docker run --gpus all)";
    let cudnn = "pip install nvidia-cudnn-cu13 (PyTorch's CUDA wheels include it), or set TIGHTFIT_CUDNN to its folder";
    let cublas = "only training needs it: pip install nvidia-cublas, or set TIGHTFIT_CUBLAS to its folder";
    let context = Context::open(options.cuda.as_deref(), options.device).map(Arc::new);
    let library = load::cudnn(options.cudnn.as_deref());
    let together = match (&context, &library) {
        (Ok(context), Ok(_)) => Some(Handle::open(options.cudnn.as_deref(), context).map(|handle| {
            let (free, total) = handle.context().memory().unwrap_or_default();
            format!("cuDNN runs on it; {free} of {total} free")
        })),
        _ => None,
    };
    let found = |detail: String, path: Option<&Path>| State::Found { detail, path: path.map(Path::to_owned) };
    let device = match &context {
        Ok(context) => match context.name() {
            Ok(name) => found(name, None),
            Err(error) => State::Missing { error, advice: driver },
        },
        Err(_) => State::NotReached,
    };
    let context = match context {
        Ok(context) => {
            let version = driver_version().map_or_else(String::new, |version| format!("{version}, "));
            let cuda = context.cuda_version().unwrap_or_else(|error| error.to_string());
            found(format!("{version}CUDA up to {cuda}"), Some(context.library()))
        }
        Err(error) => State::Missing { error, advice: driver },
    };
    let products = match &library {
        Ok(library) => match load::cublas(options.cublas.as_deref(), &library.path) {
            Ok(products) => found("for training".to_owned(), Some(&products.path)),
            Err(error) => State::Missing { error, advice: cublas },
        },
        Err(_) => State::NotReached,
    };
    let library = match library {
        Ok(library) => found(library.version.to_string(), Some(&library.path)),
        Err(error) => State::Missing { error, advice: cudnn },
    };
    let together = match together {
        Some(Ok(detail)) => found(detail, None),
        Some(Err(error)) => {
            let advice =
                "cuDNN and the driver do not match: install a newer driver, or a cuDNN built for its CUDA version";
            State::Missing { error, advice }
        }
        None => State::NotReached,
    };
    let finding = |what, state| Finding { what, state };
    vec![
        finding("driver", context),
        finding("device", device),
        finding("cuDNN", library),
        finding("cuBLAS", products),
        finding("together", together),
    ]
}
