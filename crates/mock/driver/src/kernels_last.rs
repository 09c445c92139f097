//! The kernels for maps whose channels come last: rows of channels, one for each place of each sample. The caller's
//! choices for speed alone (lanes, parts, packs of 16 bytes) is checked and otherwise ignored.

use crate::error::Code;
use crate::launch::{Array, Launch, Storage};
use crate::windows::{places, windows_of_a_tile};

/// Bytes of each parameter of a kernel, if it is one of these.
pub fn sizes(name: &str) -> Option<&'static [usize]> {
    Some(match name {
        "bias_sums_last" => &[8, 8, 8, 4, 4, 4],
        "bias_gradient_last" => &[8, 8, 4, 4, 4],
        "add_bias_last" => &[8, 8, 8, 4, 4, 4],
        "copy_channels_last" => &[8, 8, 8, 4, 8, 8, 4, 4, 4],
        "pooling_last" | "average_pooling_gradient_last" => {
            &[8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]
        }
        "max_pooling_gradient_last" => &[8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
        _ => return None,
    })
}

/// The rows that a launch goes over.
struct Rows {
    storage: Storage,
    rows: usize,
    channels: usize,
}

impl Rows {
    /// From the arguments rows, channels and lanes, and the one for packs of 16 bytes, with which the addresses must agree.
    fn new(
        launch: &Launch,
        storage: Storage,
        [rows, channels, lanes, wide]: [u64; 4],
        addresses: &[u64],
    ) -> Result<Rows, Code> {
        let (channels, lanes) = (channels as u32 as usize, lanes as u32 as usize);
        let pack = if wide as u32 == 0 { 1 } else { storage.pack() };
        // Every channel has a thread.
        if lanes == 0 || lanes > 256 || !channels.is_multiple_of(pack) || launch.grid[0] * lanes * pack < channels {
            return Err(Code::INVALID_VALUE);
        }
        if pack > 1 && addresses.iter().any(|address| !address.is_multiple_of(16)) {
            return Err(Code::MISALIGNED_ADDRESS);
        }
        Ok(Rows { storage, rows: rows as usize, channels })
    }

    fn map(&self, address: u64) -> Result<Array, Code> {
        Array::hold(address, self.storage, self.rows * self.channels)
    }

    /// Sums of each channel by the rows of each part: partial (parts, channels).
    fn sum(&self, partial: u64, parts: usize, value: impl Fn(usize) -> f32) -> Result<(), Code> {
        let partial = Array::hold(partial, Storage::F32, parts * self.channels)?;
        for (part, channel) in (0..parts).flat_map(|part| (0..self.channels).map(move |channel| (part, channel))) {
            let own = (part..self.rows).step_by(parts).map(|row| value(row * self.channels + channel));
            partial.set(part * self.channels + channel, own.sum());
        }
        Ok(())
    }
}

/// The windows of a launch of a pooling.
struct Windows {
    axes: Vec<[usize; 6]>,
    inputs: usize,
    outputs: usize,
    samples: usize,
    channels: usize,
}

impl Windows {
    fn new(p: &[u64], first: usize) -> Windows {
        let number = |bits: u64| bits as u32 as usize;
        let axes: Vec<[usize; 6]> = p[first..first + 18].as_chunks().0.iter().map(|axis| axis.map(number)).collect();
        let extent = |i: usize| axes.iter().map(|axis| axis[i]).product();
        let (inputs, outputs) = (extent(0), extent(1));
        Windows { axes, inputs, outputs, samples: p[first - 2] as usize, channels: number(p[first - 1]) }
    }

    fn map(&self, address: u64, storage: Storage, area: usize) -> Result<Array, Code> {
        Array::hold(address, storage, self.samples * area * self.channels)
    }

    /// Calls with the places of every window: where they begin in x, its place in y, and their own in x.
    fn each(&self, mut call: impl FnMut(usize, &[usize])) {
        for window in 0..self.outputs {
            let places = places(&self.axes, window);
            for sample in 0..self.samples {
                for channel in 0..self.channels {
                    let at = |area: usize, place: usize| (sample * area + place) * self.channels + channel;
                    let own: Vec<usize> = places.iter().map(|place| at(self.inputs, *place)).collect();
                    call(at(self.outputs, window), &own);
                }
            }
        }
    }
}

/// Runs one of these kernels.
///
/// # Errors
/// As [`Launch::run`].
pub fn run(launch: &Launch, name: &str, storage: Storage) -> Result<(), Code> {
    let p = &launch.parameters;
    let flag = |bits: u64| bits as u32 != 0;
    let number = |bits: u64| bits as u32 as usize;
    let parts = launch.grid[1];
    match name {
        "bias_sums_last" => {
            let rows = Rows::new(launch, storage, [p[2], p[3], p[4], p[5]], &p[..1])?;
            let dy = rows.map(p[0])?;
            rows.sum(p[1], parts, |i| dy.get(i))
        }
        "bias_gradient_last" => {
            let (channels, parts) = (number(p[2]), number(p[3]));
            let partial = Array::hold(p[0], Storage::F32, parts * channels)?;
            let db = Array::hold(p[1], Storage::F32, channels)?;
            (0..channels).for_each(|channel| {
                let sum: f64 = (0..parts).map(|part| f64::from(partial.get(part * channels + channel))).sum();
                db.put(channel, sum as f32, flag(p[4]));
            });
            Ok(())
        }
        "add_bias_last" => {
            let rows = Rows::new(launch, storage, [p[2], p[3], p[4], p[5]], &p[1..2])?;
            let (bias, y) = (Array::hold(p[0], storage, rows.channels)?, rows.map(p[1])?);
            (0..rows.rows * rows.channels).for_each(|i| y.put(i, bias.get(i % rows.channels), true));
            Ok(())
        }
        "copy_channels_last" => {
            let Rows { rows, channels, .. } = Rows::new(launch, storage, [p[2], p[3], p[6], p[8]], &p[..2])?;
            let (x_row, y_row) = (p[4] as usize, p[5] as usize);
            if flag(p[8]) && !(x_row | y_row).is_multiple_of(storage.pack()) {
                return Err(Code::MISALIGNED_ADDRESS);
            }
            let array = |address, row| Array::hold(address, storage, rows.saturating_sub(1) * row + channels);
            let (x, y) = (array(p[0], x_row)?, array(p[1], y_row)?);
            for row in 0..rows {
                (0..channels).for_each(|i| y.put(row * y_row + i, x.get(row * x_row + i), flag(p[7])));
            }
            Ok(())
        }
        "pooling_last" => {
            let windows = Windows::new(p, 4);
            aligned(&windows, storage, p[23], &p[..2])?;
            let (x, y) = (windows.map(p[0], storage, windows.inputs)?, windows.map(p[1], storage, windows.outputs)?);
            windows.each(|to, places| {
                let values = places.iter().map(|place| x.get(*place));
                let larger = |a: f32, b: f32| if b > a || b.is_nan() { b } else { a };
                y.set(
                    to,
                    if flag(p[22]) {
                        values.sum::<f32>() / places.len() as f32
                    } else {
                        values.fold(f32::NEG_INFINITY, larger)
                    },
                );
            });
            Ok(())
        }
        "average_pooling_gradient_last" => {
            let windows = Windows::new(p, 4);
            aligned(&windows, storage, p[23], &p[..2])?;
            let (dy, dx) = (windows.map(p[0], storage, windows.outputs)?, windows.map(p[1], storage, windows.inputs)?);
            let mut sums = vec![0.0; windows.samples * windows.inputs * windows.channels];
            windows.each(|from, places| {
                places.iter().for_each(|place| sums[*place] += dy.get(from) / places.len() as f32);
            });
            sums.iter().enumerate().for_each(|(i, sum)| dx.put(i, *sum, flag(p[22])));
            Ok(())
        }
        "max_pooling_gradient_last" => {
            let windows = Windows::new(p, 5);
            aligned(&windows, storage, p[25], &p[..3])?;
            let pack = if flag(p[25]) { storage.pack() } else { 1 };
            let per = number(p[23]);
            let tiles: usize = windows.axes.iter().map(|axis| axis[0].div_ceil(axis[5])).product();
            // The number of places in the kernel.
            if launch.grid[0] != tiles * (windows.channels / pack).div_ceil(per)
                || windows_of_a_tile(&windows.axes) * per * pack > 8192
            {
                return Err(Code::INVALID_VALUE);
            }
            let x = windows.map(p[0], storage, windows.inputs)?;
            let dy = windows.map(p[1], storage, windows.outputs)?;
            let dx = windows.map(p[2], storage, windows.inputs)?;
            let mut sums: Vec<f32> = (0..windows.samples * windows.inputs * windows.channels)
                .map(|i| if flag(p[24]) { dx.get(i) } else { 0.0 })
                .collect();
            windows.each(|from, places| {
                let first = |best: usize, place: &usize| if x.get(*place) > x.get(best) { *place } else { best };
                if let Some(begin) = places.first() {
                    sums[places.iter().fold(*begin, first)] += dy.get(from);
                }
            });
            sums.iter().enumerate().for_each(|(i, sum)| dx.set(i, *sum));
            Ok(())
        }
        _ => Err(Code::INVALID_HANDLE),
    }
}

/// Refuses packs of 16 bytes where addresses or channels do not allow them.
fn aligned(windows: &Windows, storage: Storage, wide: u64, addresses: &[u64]) -> Result<(), Code> {
    let is_wide = wide as u32 != 0;
    let fits = windows.channels.is_multiple_of(storage.pack()) && addresses.iter().all(|at| at.is_multiple_of(16));
    if is_wide && !fits { Err(Code::MISALIGNED_ADDRESS) } else { Ok(()) }
}
