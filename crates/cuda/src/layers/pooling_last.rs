//! Pooling with the channels last, by kernels of this crate: cuDNN's take two to sixteen times their memory traffic.

use tightfit_network::PoolingMethod;

use super::rows::packs;
use super::{Map, Pool, Work, Write};
use crate::CudaError;
use crate::error::narrow;
use crate::safe::{Argument, THREADS};

/// Places of largest elements that a block keeps.
const MAX_PLACES_PER_BLOCK: usize = 8192;
/// Channels that a block takes at once.
const CHANNELS_PER_BLOCK: usize = 64;

impl Pool {
    /// The extents of x and y, whose maps are checked to have them.
    fn extents_of(&self, from: &[&Map], to: &[&Map]) -> Result<(), CudaError> {
        let (inputs, outputs) = (self.pooling.axes.map(|axis| axis.input), self.pooling.outputs());
        let one = from[0];
        for (map, extents) in from.iter().map(|map| (map, inputs)).chain(to.iter().map(|map| (map, outputs))) {
            if map.shape.extents3() != extents || map.planes() != one.planes() || map.storage != one.storage {
                let what =
                    format!("{} samples of {} by windows from {inputs:?} to {outputs:?}", map.samples, map.shape);
                return Err(CudaError::Unfit { layer: "pooling", what });
            }
            map.check()?;
        }
        Ok(())
    }

    /// The kernels' parameters of each axis, with the extents of a tile.
    fn axes(&self, tile: [usize; 3]) -> Result<Vec<Argument>, CudaError> {
        let mut arguments = Vec::new();
        for ((axis, output), tile) in self.pooling.axes.iter().zip(self.pooling.outputs()).zip(tile) {
            narrow::<i32>("padded extent", axis.input + axis.pad_before)?;
            for (what, value) in [
                ("extent", axis.input),
                ("extent", output),
                ("window", axis.filter),
                ("stride", axis.stride),
                ("padding", axis.pad_before),
                ("tile", tile),
            ] {
                arguments.push(narrow::<u32>(what, value)?.into());
            }
        }
        Ok(arguments)
    }

    /// As [`Pool::forward`].
    pub(super) fn forward_last(&self, x: &Map, y: &Map) -> Result<Work, CudaError> {
        self.extents_of(&[x], &[y])?;
        let mean = self.pooling.method == PoolingMethod::Average;
        self.each("pooling_last", [x, y], u32::from(mean))
    }

    /// As [`Pool::backward`] for means.
    pub(super) fn average_backward_last(&self, dy: &Map, dx: &Map, write: Write) -> Result<Work, CudaError> {
        self.extents_of(&[dx], &[dy])?;
        self.each("average_pooling_gradient_last", [dy, dx], u32::from(write == Write::Add))
    }

    /// A kernel whose threads write a pack each; `last` is its last argument but one.
    fn each(&self, name: &str, [from, to]: [&Map; 2], last: u32) -> Result<Work, CudaError> {
        let channels = to.shape.channels();
        let (wide, pack) = packs(to, channels, &[&from.region, &to.region], &[]);
        // The kernel divides numbers of 31 bits.
        let items: i32 = narrow("pack count", to.shape.len() / pack)?;
        narrow::<i32>("pack count", from.shape.len() / pack)?;
        let mut arguments: Vec<Argument> = vec![(&from.region).into(), (&to.region).into()];
        arguments.push((to.samples as u64).into());
        arguments.push(narrow::<u32>("channel count", channels)?.into());
        arguments.extend(self.axes(self.pooling.axes.map(|axis| axis.input))?);
        arguments.extend([last, u32::from(wide)].map(Argument::from));
        let kernel = self.libraries.kernel_last(name, to.storage)?;
        let blocks = [items.unsigned_abs().div_ceil(THREADS as u32).max(1), samples_at_once(to.samples)];
        let held = [from.region.clone(), to.region.clone()];
        Ok(Box::new(move || {
            let _held = &held;
            // SAFETY: the kernel's parameters in its order; all memory is held here, and was checked to be long enough.
            unsafe { kernel.launch(blocks, &arguments) }
        }))
    }

    /// As [`Pool::backward`] for maxima; y is not read.
    pub(super) fn maximum_backward_last(&self, [dy, x]: [&Map; 2], dx: &Map, write: Write) -> Result<Work, CudaError> {
        self.extents_of(&[x, dx], &[dy])?;
        let channels = x.shape.channels();
        let (mut wide, mut pack) = packs(x, channels, &[&x.region, &dy.region, &dx.region], &[]);
        let tiles = self.tiles(channels, pack).or_else(|_| {
            // More windows may hold an element where a block keeps places of one channel alone.
            (wide, pack) = (false, 1);
            self.tiles(channels, pack)
        });
        let Tiles { extents, count, packs } = tiles?;
        let mut arguments: Vec<Argument> = [x, dy, dx].iter().map(|map| (&map.region).into()).collect();
        arguments.push((x.samples as u64).into());
        arguments.push(narrow::<u32>("channel count", channels)?.into());
        arguments.extend(self.axes(extents)?);
        let last = [narrow("pack count", packs)?, u32::from(write == Write::Add), u32::from(wide)];
        arguments.extend(last.map(Argument::from));
        let shares = (channels / pack).div_ceil(packs);
        let columns: i32 = narrow("tile count", count * shares)?;
        let kernel = self.libraries.kernel_last("max_pooling_gradient_last", x.storage)?;
        let blocks = [columns.unsigned_abs(), samples_at_once(x.samples)];
        let held = [x, dy, dx].map(|map| map.region.clone());
        Ok(Box::new(move || {
            let _held = &held;
            // SAFETY: as above.
            unsafe { kernel.launch(blocks, &arguments) }
        }))
    }

    /// How the kernel of the gradient of maxima covers a sample, in packs of this number of channels.
    fn tiles(&self, channels: usize, pack: usize) -> Result<Tiles, CudaError> {
        let (axes, outputs) = (&self.pooling.axes, self.pooling.outputs());
        let unfit = |what: String| Err(CudaError::Unfit { layer: "pooling", what });
        let window: usize = axes.iter().map(|axis| axis.filter).product();
        if window >= usize::from(u16::MAX) {
            return unfit(format!("a window of {window} elements; at most {} may be", u16::MAX - 1));
        }
        let all = channels / pack;
        let shares = all.div_ceil(CHANNELS_PER_BLOCK / pack).max(1);
        let mut packs = all.div_ceil(shares).max(1);
        let mut extents = axes.map(|axis| axis.input);
        loop {
            let along = |i: usize| ((extents[i] + axes[i].filter - 2) / axes[i].stride + 1).min(outputs[i]);
            let windows: usize = (0..3).map(along).product();
            if windows * packs * pack <= MAX_PLACES_PER_BLOCK {
                let count = (0..3).map(|i| axes[i].input.div_ceil(extents[i])).product();
                return Ok(Tiles { extents, count, packs });
            }
            match extents.iter_mut().max() {
                Some(long) if *long > 1 => *long = long.div_ceil(2),
                _ if packs > 1 => packs = packs.div_ceil(2),
                _ => {
                    let most = MAX_PLACES_PER_BLOCK / pack;
                    return unfit(format!("{windows} windows that hold the same element; at most {most} may"));
                }
            }
        }
    }
}

/// The tiles of a sample.
struct Tiles {
    /// Extents of a tile.
    extents: [usize; 3],
    /// Tiles per sample.
    count: usize,
    /// Packs of channels that a block takes.
    packs: usize,
}

/// Blocks that share the samples.
fn samples_at_once(samples: usize) -> u32 {
    // The most that a launch takes along y.
    samples.clamp(1, 65535) as u32
}
