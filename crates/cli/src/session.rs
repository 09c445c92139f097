//! What a command works with: backends, the cache, and the wish to stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tightfit_core::profile::{Cache, Recording, Replay};
use tightfit_core::report::count;
use tightfit_core::{Backend, Device, Error};
use tightfit_cpu::CpuBackend;
use tightfit_cuda::CudaBackend;

use crate::failure::Failure;
use crate::options::Common;
use crate::{interrupt, message};

/// Backends of one kind, and where their measurements are kept.
pub struct Session {
    pub backends: Vec<Box<dyn Backend>>,
    pub cache: Option<Cache>,
    pub stop: Arc<AtomicBool>,
}

impl Session {
    /// Opens what the options name.
    ///
    /// # Errors
    /// Those of the backend and of the cache; [`Failure::Usage`] for a backend that there is not.
    pub fn open(common: &Common) -> Result<Session, Failure> {
        Session::with(backends(common)?, common)
    }

    /// Goes on with backends that are open already.
    ///
    /// # Errors
    /// Those of the cache.
    pub fn with(backends: Vec<Box<dyn Backend>>, common: &Common) -> Result<Session, Failure> {
        // What was recorded elsewhere is not this machine's to keep.
        let cache = if is_replay(common) { None } else { open_cache(common)? };
        Ok(Session { backends, cache, stop: interrupt::flag() })
    }

    pub fn device(&self) -> &Device {
        self.backends[0].device()
    }
}

/// The backends that the options name: of one kind, and at least one.
///
/// # Errors
/// Those of the backend; [`Failure::Usage`] for one that there is not.
pub fn backends(common: &Common) -> Result<Vec<Box<dyn Backend>>, Failure> {
    let cpu = || -> Vec<Box<dyn Backend>> { vec![Box::new(CpuBackend::new(common.threads))] };
    match common.backend.as_str() {
        "cpu" => Ok(cpu()),
        "cuda" => cuda(common),
        "auto" => match cuda(common) {
            Ok(backends) => Ok(backends),
            Err(failure) => {
                tracing::info!("no CUDA device: {}", failure.text());
                Ok(cpu())
            }
        },
        replay => match replay.strip_prefix("replay:") {
            Some(files) => {
                let mut recordings = Vec::new();
                for file in files.split(',') {
                    recordings.extend(Recording::read(file.as_ref())?);
                }
                Ok(vec![Box::new(Replay::of(recordings)?)])
            }
            None => {
                Err(Failure::Usage(format!("`{replay}` is not a backend; there are auto, cpu, cuda and replay:FILE")))
            }
        },
    }
}

/// What the options ask of the CUDA backend on one device.
pub fn cuda_options(common: &Common, device: usize) -> tightfit_cuda::Options {
    tightfit_cuda::Options {
        device,
        cudnn: common.cudnn.clone(),
        every_engine: common.every_engine,
        ..tightfit_cuda::Options::default()
    }
}

/// The numbers of the GPUs that the options name; the first one where they name none.
pub fn device_numbers(common: &Common) -> Result<Vec<usize>, Failure> {
    if common.devices.is_empty() {
        return Ok(vec![0]);
    }
    let number = |word: &String| {
        word.parse().map_err(|_| Failure::Usage(format!("--devices {word}: GPUs are named by number here, as in 0,1")))
    };
    common.devices.iter().map(number).collect()
}

/// One backend a device. Measurements of one device serve the others, so they must be of one kind.
fn cuda(common: &Common) -> Result<Vec<Box<dyn Backend>>, Failure> {
    let mut backends: Vec<Box<dyn Backend>> = Vec::new();
    let numbers = device_numbers(common)?;
    for &device in &numbers {
        let opened = CudaBackend::open(&cuda_options(common, device));
        let backend = opened.map_err(|error| Failure::Error(error.while_doing(format!("opening device {device}"))))?;
        if let Some(first) = backends.first()
            && first.device() != backend.device()
        {
            let (one, other) = (first.device(), backend.device());
            let devices = format!("devices {} and {device} are not of one kind: {one} and {other}", numbers[0]);
            return Err(Failure::Usage(format!("{devices}; name devices of one kind with --devices")));
        }
        backends.push(Box::new(backend));
    }
    Ok(backends)
}

/// Whether the options name recordings in place of a device.
fn is_replay(common: &Common) -> bool {
    common.backend.starts_with("replay:")
}

/// Where measurements are kept; none where nothing is measured.
pub fn kept_in(common: &Common) -> Option<PathBuf> {
    if is_replay(common) { None } else { cache_path(common) }
}

/// The cache that the options name; none for `--cache none`.
///
/// # Errors
/// As [`Cache::open`].
pub fn open_cache(common: &Common) -> Result<Option<Cache>, Failure> {
    Ok(cache_path(common).map(|path| Cache::open(&path)).transpose()?)
}

/// Where the cache is; none for `--cache none`, or where there is no folder for a user's caches.
pub fn cache_path(common: &Common) -> Option<PathBuf> {
    Cache::default_path(|name| match name {
        "TIGHTFIT_CACHE" => common.cache.clone().map(PathBuf::into_os_string),
        name => std::env::var_os(name),
    })
}

/// Warns of measurements that could not be kept and lists, with -v, what was left out.
pub fn tell_of(spent: &tightfit_core::profile::Spent, common: &Common) {
    if let Some(failure) = &spent.cache_failure {
        message::warn(format_args!("measurements could not be kept: {failure}"));
    }
    if common.verbose > 0 {
        for skipped in &spent.skipped {
            message::say(format_args!("left out: {} on {}: {}", skipped.algorithm, skipped.problem, skipped.reason));
        }
    } else if !spent.skipped.is_empty() {
        let failed = count(spent.skipped.len(), "candidate");
        message::note(format_args!("{failed} failed, left out of the result; -v lists them"));
    }
}

/// The error for a network without kernels to work on.
pub fn nothing_selected(network: &str, known: Vec<String>) -> Failure {
    Failure::Error(Error::UnknownWord { what: "layers", word: network.to_owned(), known })
}
