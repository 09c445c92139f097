//! The layers of training, each prepared once on fixed device memory and then enqueued any number of times on the stream of
//! the cuDNN handle of its libraries.
//!
//! ```text
//! prepare   descriptors, plans, kernels; memory checked against them        may allocate
//! enqueue   one call of cuDNN or cuBLAS, or one kernel of this crate        does not
//! ```
//!
//! Tensors are in the order n, c, then spatial, or with the channels last, as each [`Map`] says. Values that change between
//! steps (learning rate, seed) are in device memory, so that a step can be captured once and launched repeatedly. Every
//! layer sums in a fixed order: the same data always give the same bits. A call with a [`Write`] parameter can add its
//! gradient to the existing content.

mod activation;
mod batch_norm;
mod bias;
mod convolution;
mod dropout;
mod fully_connected;
mod lane;
mod lrn;
mod map;
mod planes;
mod pooling;
mod pooling_last;
mod recording;
mod rows;
mod session;
mod softmax_loss;
mod strided;
mod update;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tightfit_conv::problem::Storage;
use tightfit_network::{AdamW, Rule, Sgd};

use crate::call::layers::Tables;
use crate::safe::{Blas, Calling, DeviceBuffer, Handle, Kernel, Kernels, Region};
use crate::sys::layers::CudnnLayers;
use crate::{CudaError, load};

pub use activation::{relu, relu_gradient};
pub use batch_norm::{BatchNorm, Statistics};
pub use bias::{add_bias, bias_gradient};
pub use convolution::Convolution;
pub(crate) use convolution::{Piece, Widen, half_scratch};
pub use dropout::{dropout, masked};
pub use fully_connected::FullyConnected;
pub use lane::Lane;
pub use lrn::Lrn;
pub use map::Map;
pub use pooling::Pool;
pub use session::Session;
pub use softmax_loss::{loss_gradient, softmax};
pub use strided::{add, copy, copy_channels};
pub use update::{Solver, update};
pub use watch::ArenaWatch;

/// Prepared work that can be enqueued any number of times. It keeps everything it uses alive.
pub type Work = Box<dyn Fn() -> Result<(), CudaError> + Send + Sync>;

/// Bytes of [`Now`] on the device.
const NOW: usize = 48;
/// Least size of a scratch buffer.
const SCRATCH: usize = 1 << 20;

/// The values that change with each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Counted from 0.
    pub step: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// The solver's update rule.
    pub rule: Rule,
    /// Factor of the loss, undone by the solver.
    pub loss_scale: f32,
}

impl Now {
    /// The bytes in the form the kernels read.
    pub fn bytes(&self) -> [u8; NOW] {
        let mut bytes = [0; NOW];
        let floats = match self.rule {
            Rule::Sgd(Sgd { learning_rate, momentum, weight_decay }) => {
                [learning_rate, momentum, weight_decay, self.loss_scale, 0.0, 0.0, 0.0, 0.0]
            }
            Rule::AdamW(rule) => {
                let AdamW { learning_rate, beta1, beta2, epsilon, weight_decay } = rule;
                let [first, second] = rule.corrections(self.step);
                [learning_rate, beta1, weight_decay, self.loss_scale, beta2, epsilon, first, second]
            }
        };
        bytes[..8].copy_from_slice(&self.step.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.seed.to_ne_bytes());
        for (place, float) in bytes[16..].as_chunks_mut().0.iter_mut().zip(floats) {
            *place = float.to_ne_bytes();
        }
        bytes
    }
}

/// cuDNN's layers, cuBLAS and the kernels of this crate, all on one stream.
pub struct Libraries {
    handle: Arc<Handle>,
    layers: CudnnLayers,
    blas: OnceLock<Blas>,
    /// cuBLAS's file or folder, instead of searching for it.
    cublas: Option<PathBuf>,
    kernels: Arc<Kernels>,
    kernels_norm: Mutex<Option<Arc<Kernels>>>,
    kernels_last: Mutex<Option<Arc<Kernels>>>,
    now: Region,
    scratch: Mutex<Vec<Arc<DeviceBuffer>>>,
}

impl Libraries {
    /// Opens the libraries of layers on the stream of `handle`; `cublas` names cuBLAS's file or folder, instead of
    /// searching for it.
    ///
    /// # Errors
    /// The errors of [`load::cublas`] and [`load::cudnn_layers`]; [`CudaError::OutOfMemory`] for cuBLAS's workspace of
    /// 32 MiB.
    pub fn open(handle: &Arc<Handle>, cublas: Option<&Path>) -> Result<Arc<Libraries>, CudaError> {
        let now = Arc::new(DeviceBuffer::new(handle.context(), NOW)?);
        let libraries = Libraries::on(handle, cublas, Region::new(&now, 0..NOW)?)?;
        libraries.blas()?;
        Ok(libraries)
    }

    /// The same libraries on the stream of another handle of the same context, for work at the same time. cuBLAS opens
    /// when first needed.
    ///
    /// # Errors
    /// The errors of [`load::cudnn_layers`]; [`CudaError::Driver`].
    pub fn beside(&self, handle: &Arc<Handle>) -> Result<Arc<Libraries>, CudaError> {
        Libraries::on(handle, self.cublas.as_deref(), self.now.clone())
    }

    fn on(handle: &Arc<Handle>, cublas: Option<&Path>, now: Region) -> Result<Arc<Libraries>, CudaError> {
        Ok(Arc::new(Libraries {
            handle: handle.clone(),
            layers: load::cudnn_layers(handle.library())?,
            blas: OnceLock::new(),
            cublas: cublas.map(Path::to_owned),
            kernels: Arc::new(Kernels::load(handle)?),
            kernels_norm: Mutex::default(),
            kernels_last: Mutex::default(),
            now,
            scratch: Mutex::default(),
        }))
    }

    /// The cuDNN handle, whose stream all work runs on.
    pub fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// cuBLAS, opened if it was not before.
    ///
    /// # Errors
    /// The errors of [`load::cublas`]; [`CudaError::OutOfMemory`] for its workspace of 32 MiB.
    pub fn blas(&self) -> Result<&Blas, CudaError> {
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        let blas = Blas::open(self.cublas.as_deref(), &self.handle)?;
        Ok(self.blas.get_or_init(|| blas))
    }

    /// The region in which the kernels read [`Now`]; the caller uploads it before each step.
    pub fn now(&self) -> &Region {
        &self.now
    }

    /// Scratch memory shared by calls on one stream, outside the caller's memory. Allocated while preparing; two calls
    /// may get the same bytes.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Driver`].
    pub fn scratch(&self, bytes: usize) -> Result<Region, CudaError> {
        let mut buffers = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match buffers.last() {
            Some(buffer) if buffer.len() >= bytes => buffer.clone(),
            // Doubling bounds the abandoned buffers, which earlier work still uses, by the size of the current one.
            last => {
                let twice = last.map_or(SCRATCH, |buffer| 2 * buffer.len());
                let buffer = Arc::new(DeviceBuffer::new(self.handle.context(), twice.max(bytes))?);
                buffers.push(buffer.clone());
                buffer
            }
        };
        Region::new(&buffer, 0..bytes)
    }

    /// A kernel of this crate in one of its three types.
    fn kernel(&self, name: &str, storage: Storage) -> Result<Kernel, CudaError> {
        self.kernels.get(&format!("{name}_{}", suffix(storage)))
    }

    /// A kernel of this crate for maps whose channels come last, in a 16-bit type. The first one takes the driver's time to
    /// compile them all.
    fn kernel_last(&self, name: &str, storage: Storage) -> Result<Kernel, CudaError> {
        if storage == Storage::F32 {
            let what = format!("{name}: maps with the channels last are f16 or bf16, not f32; use nchw");
            return Err(CudaError::Unfit { layer: "channels-last", what });
        }
        self.kernels_last()?.get(&format!("{name}_{}", suffix(storage)))
    }

    fn kernels_last(&self) -> Result<Arc<Kernels>, CudaError> {
        loaded(&self.kernels_last, || Kernels::load_last(&self.handle))
    }

    /// A kernel of batch normalization for maps whose channels come first, or for the numbers of channels.
    fn kernel_norm(&self, name: &str, storage: Storage) -> Result<Kernel, CudaError> {
        self.kernels_norm()?.get(&format!("{name}_{}", suffix(storage)))
    }

    /// The kernels of batch normalization, compiled with the first one.
    fn kernels_norm(&self) -> Result<Arc<Kernels>, CudaError> {
        loaded(&self.kernels_norm, || Kernels::load_norm(&self.handle))
    }

    /// Permission to call cuDNN, including its layers.
    fn enter(&self) -> Result<(Calling<'_>, &CudnnLayers), CudaError> {
        Ok((self.handle.enter()?, &self.layers))
    }
}

/// Kernels that are loaded when first needed.
fn loaded(
    place: &Mutex<Option<Arc<Kernels>>>,
    load: impl FnOnce() -> Result<Kernels, CudaError>,
) -> Result<Arc<Kernels>, CudaError> {
    let mut place = place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kernels) = &*place {
        return Ok(kernels.clone());
    }
    let kernels = Arc::new(load()?);
    *place = Some(kernels.clone());
    Ok(kernels)
}

/// Both of cuDNN's tables.
fn tables<'a>(calling: &Calling<'a>, layers: &'a CudnnLayers) -> Tables<'a> {
    Tables { cudnn: calling.cudnn, layers }
}

/// The suffix of kernel names for a type.
fn suffix(storage: Storage) -> &'static str {
    match storage {
        Storage::F32 => "f32",
        Storage::F16 => "f16",
        Storage::Bf16 => "bf16",
    }
}

/// How to write an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Overwrite it with the result.
    Overwrite,
    /// Add the result to it.
    Add,
}

/// The factor `beta` of the old content.
fn beta(write: Write) -> f32 {
    match write {
        Write::Overwrite => 0.0,
        Write::Add => 1.0,
    }
}
