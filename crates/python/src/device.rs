//! The device that a call measures on, by the command's words.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use pyo3::FromPyObject;
use tightfit_conv::{Algorithm, Backend, Device, Problem};
use tightfit_cpu::{CpuBackend, host_memory};
use tightfit_cuda::CudaBackend;
use tightfit_profile::survey::{Env, Forecast, Scope, Silent, forecast};
use tightfit_profile::{Cache, Recording, Replay, Store};
use tightfit_train::machine::cuda::RESERVED;
use tightfit_units::{Bytes, Error, Nanos};

/// How long to look for the most memory that measuring takes.
const PATIENCE: Duration = Duration::from_secs(1);

/// Python's words for a device.
#[derive(FromPyObject)]
pub struct Words {
    #[pyo3(item)]
    backend: String,
    /// A part of the name of a recorded device.
    #[pyo3(item)]
    device: Option<String>,
    /// The number of a GPU.
    #[pyo3(item)]
    gpu: usize,
    #[pyo3(item)]
    threads: Option<usize>,
    #[pyo3(item)]
    cudnn: Option<PathBuf>,
    #[pyo3(item)]
    cache: Option<OsString>,
}

/// A device with the measurements kept for it.
pub struct Opened {
    pub backends: Vec<Box<dyn Backend>>,
    pub cache: Option<Cache>,
    /// Whether it is the CPU only because no GPU was found.
    pub is_fallback: bool,
}

impl Words {
    /// Opens the device: the recordings' device, if there are any.
    ///
    /// # Errors
    /// Errors of the backend and of the cache; [`Error::UnknownWord`] for another backend.
    pub fn open(&self, recordings: Option<&[Recording]>) -> Result<Opened, Error> {
        if let Some(recordings) = recordings {
            let chosen = match &self.device {
                Some(name) => Recording::named(recordings, name)?,
                None => recordings.iter().collect(),
            };
            let replay = Replay::of(chosen.into_iter().cloned())?;
            return Ok(Opened { backends: vec![Box::new(replay)], cache: None, is_fallback: false });
        }
        let options = tightfit_cuda::Options { device: self.gpu, cudnn: self.cudnn.clone(), ..Default::default() };
        let cuda = || CudaBackend::open(&options).map(|backend| Box::new(backend) as Box<dyn Backend>);
        let cpu = || Box::new(CpuBackend::new(self.threads)) as Box<dyn Backend>;
        let (backend, is_fallback) = match self.backend.as_str() {
            "cpu" => (cpu(), false),
            "cuda" => (cuda()?, false),
            "auto" => cuda().map_or_else(|_| (cpu(), true), |backend| (backend, false)),
            other => return Err(Error::unknown_word("backends", other, ["auto", "cpu", "cuda", "replay"])),
        };
        Ok(Opened { backends: vec![backend], cache: self.open_cache()?, is_fallback })
    }

    /// The named cache, else the command's, or `None` for `none`.
    fn open_cache(&self) -> Result<Option<Cache>, Error> {
        let path = Cache::default_path(|name| match (name, &self.cache) {
            ("TIGHTFIT_CACHE", Some(named)) => Some(named.clone()),
            _ => std::env::var_os(name),
        });
        path.map(|path| Cache::open(&path)).transpose()
    }
}

impl Opened {
    pub fn device(&self) -> &Device {
        self.backends[0].device()
    }

    /// Free device memory for an arena; on a GPU, less the memory of the libraries.
    pub fn free(&self) -> Option<Bytes> {
        let free = self.backends[0].free_memory()?;
        Some(if self.device().backend == "cuda" { free.saturating_sub(RESERVED) } else { free })
    }

    /// The environment of a survey without progress.
    pub fn env<'a>(cache: &'a Option<Cache>, stop: &'a AtomicBool) -> Env<'a> {
        Env { cache: cache.as_ref().map(|cache| cache as &dyn Store), stop, progress: &Silent }
    }

    /// The memory that measuring on the CPU may take: all that is free but an eighth. None on other devices.
    pub fn usable(&self) -> Option<Bytes> {
        let free = Some(host_memory::free()?).filter(|_| self.device().backend == "cpu")?;
        Some(Bytes(free.bytes.0 / 8 * 7))
    }

    /// Rejects measuring on the CPU that takes more memory than may be used. `beside` is taken in addition to its buffers.
    ///
    /// # Errors
    /// [`Error::Backend`] with both sizes; errors of [`forecast`].
    pub fn check_memory(
        &mut self,
        problems: &[Problem],
        scope: &Scope,
        beside: Bytes,
        stop: &AtomicBool,
    ) -> Result<(), Error> {
        let Some(usable) = self.usable() else { return Ok(()) };
        let no_time = |_: &Problem, _: &Algorithm| Nanos::ZERO;
        // A problem far too large is recognized without searching through its sizes.
        for patience in [Duration::ZERO, PATIENCE] {
            let env = Opened::env(&self.cache, stop);
            let Forecast { memory, .. } =
                forecast(problems, scope, &env, self.backends[0].as_mut(), &no_time, patience)?;
            let memory = memory + beside;
            if memory > usable {
                let what = format!(
                    "measuring takes {memory} of memory, but only {usable} may be used (an eighth of what is free is left \
                     for other processes); nothing was measured; use a smaller batch, or recorded measurements"
                );
                return Err(Error::Backend { backend: "cpu".to_owned(), what, source: None });
            }
        }
        Ok(())
    }
}
