//! The means of a command: backends, the cache, and the flag that asks it to stop.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tightfit_conv::{Backend, Device, Problem, Types};
use tightfit_cpu::CpuBackend;
use tightfit_cuda::CudaBackend;
use tightfit_profile::survey::{Env, Progress};
use tightfit_profile::{Cache, Model, Recording, Replay, Store};
use tightfit_report::count;

use crate::failure::Failure;
use crate::options::Common;
use crate::{interrupt, message, model};

/// Backends of the same kind, and the cache for their measurements.
pub struct Session {
    pub backends: Vec<Box<dyn Backend>>,
    pub cache: Option<Cache>,
    pub stop: Arc<AtomicBool>,
}

impl Session {
    /// Opens what the options name.
    ///
    /// # Errors
    /// The errors of the backend and of the cache; [`Failure::Usage`] for an unknown backend.
    pub fn open(common: &Common) -> Result<Session, Failure> {
        Session::with(backends(common)?, common)
    }

    /// Continues with backends that are already open.
    ///
    /// # Errors
    /// The errors of the cache.
    pub fn with(mut backends: Vec<Box<dyn Backend>>, common: &Common) -> Result<Session, Failure> {
        // Measurements recorded elsewhere do not belong in this machine's cache.
        let cache = if is_replay(common) { None } else { open_cache(common)? };
        let stop = interrupt::flag();
        backends.iter_mut().for_each(|backend| backend.stop_on(&stop));
        Ok(Session { backends, cache, stop })
    }

    pub fn device(&self) -> &Device {
        self.backends[0].device()
    }
}

/// Refuses convolutions in types that the CPU has none of, before any is measured.
///
/// # Errors
/// [`Failure::Usage`] with the types.
pub fn must_support(device: &Device, problems: &[Problem]) -> Result<(), Failure> {
    match problems.iter().map(Problem::types).find(|types| device.backend == "cpu" && *types != Types::F32) {
        Some(types) => Err(Failure::Usage(format!(
            "--types {types}: the CPU backend supports only f32; leave the option out, or use --backend cuda with a GPU"
        ))),
        None => Ok(()),
    }
}

/// The environment of a survey that reports to `progress`.
pub fn env<'a>(cache: &'a Option<Cache>, stop: &'a AtomicBool, progress: &'a dyn Progress) -> Env<'a> {
    Env { cache: cache.as_ref().map(|cache| cache as &dyn Store), stop, progress }
}

/// The backends that the options name: at least one, all of the same kind.
///
/// # Errors
/// The errors of the backend; [`Failure::Usage`] for an unknown one.
pub fn backends(common: &Common) -> Result<Vec<Box<dyn Backend>>, Failure> {
    let cpu = || -> Vec<Box<dyn Backend>> { vec![Box::new(CpuBackend::new(common.threads))] };
    match common.backend.as_str() {
        "cpu" => {
            must_try_engines(common, "the CPU backend has none")?;
            Ok(cpu())
        }
        "cuda" => cuda(common),
        "auto" => match cuda(common) {
            Ok(backends) => Ok(backends),
            Err(failure) => {
                tracing::info!("no CUDA device: {}", failure.text());
                if common.every_engine {
                    message::note("--every-engine has no effect: no GPU was found, and only cuDNN has engines to try");
                }
                Ok(cpu())
            }
        },
        _ if is_replay(common) => {
            must_try_engines(common, "a recording is already measured")?;
            let recordings = recordings(common)?;
            let chosen = match &common.devices[..] {
                [] => recordings,
                [device] => Recording::named(&recordings, device)?.into_iter().cloned().collect(),
                _ => return Err(Failure::Usage("a replay is of one device; name one with --devices".to_owned())),
            };
            Ok(vec![Box::new(Replay::of(chosen)?)])
        }
        other => {
            Err(Failure::Usage(format!("unknown backend `{other}`; choose auto, cpu, cuda, replay or replay:FILE")))
        }
    }
}

/// Refuses `--every-engine` if no engine of cuDNN can be tried.
///
/// # Errors
/// [`Failure::Usage`] with the reason.
pub fn must_try_engines(common: &Common, why_not: &str) -> Result<(), Failure> {
    if common.every_engine {
        let what = format!(
            "--every-engine tries engines of cuDNN, and {why_not}; leave it out, or measure on a GPU with --backend cuda"
        );
        return Err(Failure::Usage(what));
    }
    Ok(())
}

/// The recorded measurements: in the files of `--backend replay:FILE`, or else in the cache.
///
/// # Errors
/// The errors of reading; [`Failure::Usage`] without a cache.
pub fn recordings(common: &Common) -> Result<Vec<Recording>, Failure> {
    if let Some(files) = common.backend.strip_prefix("replay:") {
        if files.split(',').any(str::is_empty) {
            let backend = &common.backend;
            return Err(Failure::Usage(format!(
                "--backend {backend} has an empty file name; write replay:FILE or replay:FILE,FILE, or replay for the cache"
            )));
        }
        let mut recordings = Vec::new();
        for file in files.split(',') {
            recordings.extend(Recording::read(file.as_ref())?);
        }
        return Ok(recordings);
    }
    let path = cache_path(common).ok_or_else(|| {
        Failure::Usage("no cache is in use; name one with --cache FILE, or use --backend replay:FILE".to_owned())
    })?;
    Ok(Cache::open_read_only(&path)?.recordings()?)
}

/// The network or recorded program of this name. Looks at recordings only for a name that no network has.
///
/// # Errors
/// As [`Model::find`].
pub fn model(name: &str, common: &Common) -> Result<Model, Failure> {
    match model::open(name) {
        Ok(opened) => Ok(Model::Network(opened.network)),
        Err(_) => Ok(Model::find(name, &recordings(common).unwrap_or_default())?),
    }
}

/// The options of the CUDA backend on one device.
pub fn cuda_options(common: &Common, device: usize) -> tightfit_cuda::Options {
    tightfit_cuda::Options {
        device,
        cudnn: common.cudnn.clone(),
        every_engine: common.every_engine,
        ..tightfit_cuda::Options::default()
    }
}

/// The numbers of the GPUs that the options name; the first GPU if they name none.
pub fn device_numbers(common: &Common) -> Result<Vec<usize>, Failure> {
    if common.devices.is_empty() {
        return Ok(vec![0]);
    }
    let number = |word: &String| {
        word.parse().map_err(|_| Failure::Usage(format!("--devices {word}: expected GPU numbers, such as 0,1")))
    };
    common.devices.iter().map(number).collect()
}

/// One backend per device. Devices share measurements, so they must be of the same model.
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
            let devices = format!("devices {} and {device} are different models: {one} and {other}", numbers[0]);
            return Err(Failure::Usage(format!("{devices}; use GPUs of the same model with --devices")));
        }
        backends.push(Box::new(backend));
    }
    Ok(backends)
}

/// Whether the options name recordings instead of a device.
pub fn is_replay(common: &Common) -> bool {
    common.backend == "replay" || common.backend.starts_with("replay:")
}

/// Where measurements are saved; none if nothing is measured.
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

/// Path of the cache; none for `--cache none`, or if the user has no cache folder.
pub fn cache_path(common: &Common) -> Option<PathBuf> {
    Cache::default_path(|name| match name {
        "TIGHTFIT_CACHE" => common.cache.clone().map(PathBuf::into_os_string),
        name => std::env::var_os(name),
    })
}

/// Warns about measurements that could not be saved and, with -v, lists skipped candidates.
pub fn report_spent(spent: &tightfit_profile::Spent, common: &Common) {
    if let Some(failure) = &spent.cache_failure {
        message::warn(format_args!("could not save measurements: {failure}"));
    }
    if common.verbose > 0 {
        for skipped in &spent.skipped {
            message::say(format_args!("skipped: {} on {}: {}", skipped.algorithm, skipped.problem, skipped.reason));
        }
    } else if !spent.skipped.is_empty() {
        let failed = count(spent.skipped.len(), "candidate");
        message::note(format_args!("{failed} failed and will not be used; -v shows why"));
    }
}
