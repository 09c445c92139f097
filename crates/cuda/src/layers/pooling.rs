//! Max and average pooling. The gradient of max pooling is a kernel of this crate: on an H200, cuDNN's deterministic
//! one takes twice as long.
//!
//! cuDNN derives the number of windows from the output's extents, so partial windows at the edge and asymmetric padding
//! need no special handling.

use std::ffi::c_int;
use std::sync::Arc;

use tightfit_conv::Axis;
use tightfit_network::{Pooling, PoolingMethod};

use super::{Libraries, Map, Work, Write, beta, tables};
use crate::CudaError;
use crate::call::layers as call;
use crate::error::narrow;
use crate::safe::{Argument, row_blocks};
use crate::sys::layers::{PoolingDescriptor, PoolingMode};

/// The windows of a pooling layer. If several elements of a window are the largest, the first one gets the gradient, as
/// on the CPU.
pub struct Pool {
    pub(super) libraries: Arc<Libraries>,
    pub(super) pooling: Pooling,
    raw: PoolingDescriptor,
}

// SAFETY: every call that takes the descriptor holds the handle's lock.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// The windows of a layer; `dimensions` of its axes, the last ones, are in use.
    ///
    /// # Errors
    /// [`CudaError::TooLarge`]; [`CudaError::Unfit`] for dilated windows; [`CudaError::Cudnn`].
    pub fn new(libraries: &Arc<Libraries>, pooling: &Pooling, dimensions: usize) -> Result<Arc<Pool>, CudaError> {
        let axes = &pooling.axes[3 - dimensions.clamp(2, 3)..];
        if let Some(axis) = axes.iter().find(|axis| axis.dilation != 1) {
            let what = format!("windows of dilation {}; cuDNN has none, use windows without", axis.dilation);
            return Err(CudaError::Unfit { layer: "pooling", what });
        }
        let each = |what: &'static str, field: fn(&Axis) -> usize| -> Result<Vec<c_int>, CudaError> {
            axes.iter().map(|axis| narrow(what, field(axis))).collect()
        };
        let windows = each("window", |axis| axis.filter)?;
        let (padding, strides) = (each("padding", |axis| axis.pad_before)?, each("stride", |axis| axis.stride)?);
        let mode = match pooling.method {
            PoolingMethod::Maximum => PoolingMode::MAX,
            PoolingMethod::Average => PoolingMode::AVERAGE_COUNT_EXCLUDE_PADDING,
        };
        let (calling, layers) = libraries.enter()?;
        let tables = tables(&calling, layers);
        // SAFETY: the context is current; destroyed in `drop`.
        let raw = unsafe { call::create_pooling(tables) }?;
        let pool = Pool { libraries: libraries.clone(), pooling: *pooling, raw };
        // SAFETY: the descriptor is alive.
        let set = unsafe { call::set_pooling(tables, raw, mode, [&windows, &padding, &strides]) };
        drop(calling);
        set.map(|()| Arc::new(pool))
    }

    /// y = the windows of x.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
    pub fn forward(self: &Arc<Pool>, x: &Map, y: &Map) -> Result<Work, CudaError> {
        if x.is_channels_last() {
            return self.forward_last(x, y);
        }
        let (pool, x, y) = (self.clone(), x.placed(&self.libraries)?, y.placed(&self.libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = pool.libraries.enter()?;
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe {
                call::pooling_forward(tables(&calling, layers), calling.handle, pool.raw, x.part(), 0.0, y.part())
            }
        }))
    }

    /// dx = the windows' shares of dy. Average pooling reads neither x nor y, so any memory of their size will do.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::TooLarge`]; [`CudaError::Unfit`] for a map of another shape than the
    /// windows', and for a maximum with more than 4096 windows that hold the same element (8192 with the channels last, of
    /// at most 65534 elements each); [`CudaError::Cudnn`] and [`CudaError::Driver`].
    pub fn backward(self: &Arc<Pool>, maps: [&Map; 3], dx: &Map, write: Write) -> Result<Work, CudaError> {
        let [_, dy, x] = maps;
        match self.pooling.method {
            PoolingMethod::Maximum if dx.is_channels_last() => self.maximum_backward_last([dy, x], dx, write),
            PoolingMethod::Average if dx.is_channels_last() => self.average_backward_last(dy, dx, write),
            PoolingMethod::Maximum => self.maximum_backward(maps, dx, write),
            PoolingMethod::Average => self.average_backward(maps, dx, write),
        }
    }

    fn maximum_backward(&self, [y, dy, x]: [&Map; 3], dx: &Map, write: Write) -> Result<Work, CudaError> {
        let axes = self.pooling.axes;
        let (inputs, outputs) = (axes.map(|axis| axis.input), self.pooling.outputs());
        for (map, extents) in [(x, inputs), (dx, inputs), (y, outputs), (dy, outputs)] {
            if map.shape.extents3() != extents || map.planes() != x.planes() || map.storage != x.storage {
                let what =
                    format!("{} samples of {} by windows from {inputs:?} to {outputs:?}", map.samples, map.shape);
                return Err(CudaError::Unfit { layer: "pooling", what });
            }
            map.check()?;
        }
        // The kernel uses 32-bit indices, and 31-bit dividends.
        let narrow = |what, value| narrow(what, value).map(c_int::unsigned_abs);
        narrow("plane", inputs.iter().product::<usize>().max(outputs.iter().product()))?;
        let Tiles { extents, count, planes } = Tiles::new(&self.pooling)?;
        let mut arguments: Vec<Argument> = [x, y, dy, dx].iter().map(|map| (&map.region).into()).collect();
        arguments.push((x.planes() as u64).into());
        for ((axis, output), tile) in axes.iter().zip(outputs).zip(extents) {
            // The kernel adds the two.
            narrow("padded extent", axis.input + axis.pad_before)?;
            for (what, value) in [
                ("extent", axis.input),
                ("extent", output),
                ("window", axis.filter),
                ("stride", axis.stride),
                ("padding", axis.pad_before),
                ("tile", tile),
            ] {
                arguments.push(narrow(what, value)?.into());
            }
        }
        arguments.push(narrow("plane count", planes)?.into());
        arguments.push(u32::from(write == Write::Add).into());
        let blocks = row_blocks(count, x.planes().div_ceil(planes));
        let kernel = self.libraries.kernel("max_pooling_gradient", x.storage)?;
        let held = [x, y, dy, dx].map(|map| map.region.clone());
        Ok(Box::new(move || {
            let _held = &held;
            // SAFETY: the kernel's parameters in its order; all memory is held here, and was checked to be long enough.
            unsafe { kernel.launch(blocks, &arguments) }
        }))
    }

    fn average_backward(self: &Arc<Pool>, [y, dy, x]: [&Map; 3], dx: &Map, write: Write) -> Result<Work, CudaError> {
        let libraries = &self.libraries;
        let (pool, dx) = (self.clone(), dx.placed(libraries)?);
        let (y, dy, x) = (y.placed(libraries)?, dy.placed(libraries)?, x.placed(libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = pool.libraries.enter()?;
            let read = [y.part(), dy.part(), x.part()];
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe {
                call::pooling_backward(tables(&calling, layers), calling.handle, pool.raw, read, beta(write), dx.part())
            }
        }))
    }
}

/// How the max-pooling gradient kernel covers a plane: in tiles; one block scans all windows that contain an element of
/// its tile.
struct Tiles {
    /// Extents of a tile.
    extents: [usize; 3],
    /// Tiles per plane.
    count: usize,
    /// Planes per block.
    planes: usize,
}

impl Tiles {
    /// Maximum number of windows per block.
    const MAX_WINDOWS_PER_BLOCK: usize = 4096;
    /// Elements that keep a block busy.
    const ELEMENTS_PER_BLOCK: usize = 1024;

    fn new(pooling: &Pooling) -> Result<Tiles, CudaError> {
        let (axes, outputs) = (&pooling.axes, pooling.outputs());
        let mut extents = axes.map(|axis| axis.input);
        loop {
            let along = |i: usize| ((extents[i] + axes[i].filter - 2) / axes[i].stride + 1).min(outputs[i]);
            let windows: usize = (0..3).map(along).product();
            if windows <= Tiles::MAX_WINDOWS_PER_BLOCK {
                let count = (0..3).map(|i| axes[i].input.div_ceil(extents[i])).product();
                let most = if count == 1 { Tiles::ELEMENTS_PER_BLOCK.div_ceil(extents.iter().product()) } else { 1 };
                return Ok(Tiles { extents, count, planes: most.min(Tiles::MAX_WINDOWS_PER_BLOCK / windows) });
            }
            let Some(long) = extents.iter_mut().find(|extent| **extent > 1) else {
                let most = Tiles::MAX_WINDOWS_PER_BLOCK;
                let what = format!("{windows} windows that hold the same element; at most {most} may");
                return Err(CudaError::Unfit { layer: "pooling", what });
            };
            *long = long.div_ceil(2);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let layers = &self.libraries.layers;
        // SAFETY: made in `new` and destroyed only here.
        self.libraries.handle.destroy(|calling| unsafe { call::destroy_pooling(tables(calling, layers), self.raw) });
    }
}
