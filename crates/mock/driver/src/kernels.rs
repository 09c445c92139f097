//! The kernels that a program brings, on the CPU: a module's text is only looked through for names, and each name stands
//! for a function here. They compute the same as tightfit-cuda's `kernels.cu`, in its order.

use crate::error::Code;
use crate::launch::{Array, Launch, Storage};
use crate::windows::{places, windows_of_a_tile};
use crate::{kernels_last, kernels_norm};

/// Threads of a block.
const THREADS: usize = 256;

/// A kernel's name without its type, the type, and the bytes of each parameter.
fn signature(name: &str) -> Option<(&str, Storage, &'static [usize])> {
    let types = [("_f32", Storage::F32), ("_f16", Storage::F16), ("_bf16", Storage::Bf16)];
    let typed = types.iter().find_map(|(end, storage)| name.strip_suffix(end).map(|name| (name, *storage)));
    let (name, storage) = typed.unwrap_or((name, Storage::F32));
    let sizes: &[usize] = match name {
        "loss_gradient" => &[8, 8, 8, 8, 4, 4, 4, 8],
        "dropout" => &[8, 8, 8, 8, 4, 4, 8, 8, 8, 4, 8],
        "masked" => &[8, 8, 8, 8, 4, 4],
        "channel_sums" => &[8, 8, 4, 4, 4],
        "sum_parts" => &[8, 8, 4, 4],
        "update" => &[8, 8, 8, 8, 8, 8],
        "adamw" => &[8, 8, 8, 8, 8, 8, 8],
        "widen" => &[8, 8, 8, 4],
        "relu" => &[8, 8, 8],
        "relu_gradient" => &[8, 8, 8, 8, 4],
        "copy_rows" => &[8, 8, 8, 8, 8, 8, 4, 4],
        "max_pooling_gradient" => &[8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4],
        "last_touched" => &[8, 8, 4, 8],
        _ => kernels_norm::sizes(name).or_else(|| kernels_last::sizes(name))?,
    };
    Some((name, storage, sizes))
}

/// Bytes of each parameter of a kernel, if it is known here.
pub fn parameters(name: &str) -> Option<&'static [usize]> {
    signature(name).map(|(.., sizes)| sizes)
}

/// Values that change from step to step, as the kernels read them.
struct Now {
    step: u64,
    seed: u64,
    learning_rate: f32,
    momentum: f32,
    weight_decay: f32,
    loss_scale: f32,
    /// Of AdamW, whose first beta is the momentum: the second beta, epsilon, and the corrections of both moments.
    adamw: [f32; 4],
}

impl Now {
    fn read(address: u64) -> Result<Now, Code> {
        let all = Array::bytes(address, 48)?;
        let [learning_rate, momentum, weight_decay, loss_scale] = [4, 5, 6, 7].map(|i| all.read::<f32>(i));
        let adamw = [8, 9, 10, 11].map(|i| all.read::<f32>(i));
        Ok(Now { step: all.read(0), seed: all.read(1), learning_rate, momentum, weight_decay, loss_scale, adamw })
    }
}

/// SplitMix64's finalizer (Steele, Lea, Flood 2014).
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

impl Launch {
    /// Virtual time in nanoseconds.
    pub fn nanos(&self) -> u64 {
        2_000 + (self.grid[0] * self.grid[1] * THREADS) as u64 / 100
    }

    /// Runs the kernel.
    ///
    /// # Errors
    /// [`Code::ILLEGAL_ADDRESS`] for memory that is not there.
    pub fn run(&self) -> Result<(), Code> {
        let (name, storage, _) = signature(&self.name).ok_or(Code::INVALID_HANDLE)?;
        let p = &self.parameters;
        let float = |bits: u64| f32::from_bits(bits as u32);
        let flag = |bits: u64| bits as u32 != 0;
        let number = |bits: u64| bits as u32 as usize;
        match name {
            "loss_gradient" => {
                let (len, classes) = (p[3] as usize, number(p[4]));
                let (y, labels) = (Array::hold(p[0], storage, len)?, Array::bytes(p[1], len / classes * 4)?);
                let (dx, scale) = (Array::hold(p[2], storage, len)?, Now::read(p[7])?.loss_scale / float(p[5]));
                for i in 0..len {
                    let hit = labels.read::<u32>(i / classes) as usize == i % classes;
                    dx.put(i, (y.get(i) - if hit { 1.0 } else { 0.0 }) * scale, flag(p[6]));
                }
            }
            "dropout" => {
                let len = p[3] as usize;
                let (x, y) = (Array::hold(p[0], storage, len)?, Array::hold(p[1], storage, len)?);
                let (mask, now) = (Array::bytes(p[2], len)?, Now::read(p[10])?);
                let (channels, area) = (number(p[4]), number(p[5]));
                let key = mix(now.seed.wrapping_add(GOLDEN));
                let key = mix((key ^ p[7]).wrapping_add(GOLDEN));
                let key = mix((key ^ now.step).wrapping_add(GOLDEN));
                for i in 0..len {
                    let (sample, at, channel) = (i / channels / area, i / channels % area, i % channels);
                    let place = (sample * channels + channel) * area + at;
                    let place = p[6].wrapping_add(place as u64 + 1);
                    let kept = mix(key.wrapping_add(GOLDEN.wrapping_mul(place))) >> 32 >= p[8];
                    mask.write(i, u8::from(kept));
                    y.set(i, if kept { x.get(i) * float(p[9]) } else { 0.0 });
                }
            }
            "masked" => {
                let len = p[3] as usize;
                let (x, y) = (Array::hold(p[0], storage, len)?, Array::hold(p[1], storage, len)?);
                let mask = Array::bytes(p[2], len)?;
                for i in 0..len {
                    let value = if mask.read::<u8>(i) != 0 { x.get(i) * float(p[4]) } else { 0.0 };
                    y.put(i, value, flag(p[5]));
                }
            }
            "channel_sums" => {
                let (samples, channels, area) = (number(p[2]), number(p[3]), number(p[4]));
                let parts = self.grid[1];
                let dy = Array::hold(p[0], storage, samples * channels * area)?;
                let partial = Array::hold(p[1], Storage::F32, channels * parts)?;
                for channel in 0..channels {
                    for part in 0..parts {
                        let own = (samples + parts - 1).saturating_sub(part) / parts;
                        let mut sums = [0.0_f32; THREADS];
                        for j in 0..own * area {
                            let sample = part + parts * (j / area);
                            sums[j % THREADS] += dy.get((sample * channels + channel) * area + j % area);
                        }
                        let mut half = THREADS / 2;
                        while half > 0 {
                            (0..half).for_each(|i| sums[i] += sums[i + half]);
                            half /= 2;
                        }
                        partial.set(channel * parts + part, sums[0]);
                    }
                }
            }
            "sum_parts" => {
                let (channels, parts) = (number(p[2]), number(p[3]));
                let partial = Array::hold(p[0], Storage::F32, channels * parts)?;
                let db = Array::hold(p[1], Storage::F32, channels)?;
                for channel in 0..channels {
                    let parts = channel * parts..(channel + 1) * parts;
                    db.set(channel, parts.fold(0.0, |sum, part| sum + partial.get(part)));
                }
            }
            "update" => {
                let len = p[4] as usize;
                let array = |address| Array::hold(address, Storage::F32, len);
                let (w, dw) = (array(p[0])?, array(p[1])?);
                let change = if p[2] == 0 { None } else { Some(array(p[2])?) };
                let stored = if p[3] == 0 { None } else { Some(Array::hold(p[3], storage, len)?) };
                let now = Now::read(p[5])?;
                for i in 0..len {
                    let gradient = dw.get(i) / now.loss_scale + now.weight_decay * w.get(i);
                    let last = change.as_ref().map_or(0.0, |change| change.get(i));
                    let moved = now.momentum * last + now.learning_rate * gradient;
                    change.iter().for_each(|change| change.set(i, moved));
                    let weight = w.get(i) - moved;
                    w.set(i, weight);
                    stored.iter().for_each(|stored| stored.set(i, weight));
                }
            }
            "adamw" => {
                let len = p[5] as usize;
                let array = |address| Array::hold(address, Storage::F32, len);
                let (w, dw, first, second) = (array(p[0])?, array(p[1])?, array(p[2])?, array(p[3])?);
                let stored = if p[4] == 0 { None } else { Some(Array::hold(p[4], storage, len)?) };
                let now = Now::read(p[6])?;
                let [beta2, epsilon, first_correction, second_correction] = now.adamw;
                let (kept, rate) = (1.0 - now.learning_rate * now.weight_decay, now.learning_rate / first_correction);
                for i in 0..len {
                    let gradient = dw.get(i) / now.loss_scale;
                    let m = now.momentum * first.get(i) + (1.0 - now.momentum) * gradient;
                    let v = beta2 * second.get(i) + (1.0 - beta2) * (gradient * gradient);
                    let weight = kept * w.get(i) - rate * m / (v.sqrt() / second_correction + epsilon);
                    first.set(i, m);
                    second.set(i, v);
                    w.set(i, weight);
                    stored.iter().for_each(|stored| stored.set(i, weight));
                }
            }
            "widen" => {
                let len = p[2] as usize;
                let (x, sum) = (Array::hold(p[0], storage, len)?, Array::hold(p[1], Storage::F32, len)?);
                (0..len).for_each(|i| sum.put(i, x.get(i), flag(p[3])));
            }
            "relu" => {
                let len = p[2] as usize;
                let (x, y) = (Array::hold(p[0], storage, len)?, Array::hold(p[1], storage, len)?);
                // NaN stays NaN.
                (0..len).for_each(|i| y.set(i, if x.get(i) < 0.0 { 0.0 } else { x.get(i) }));
            }
            "relu_gradient" => {
                let len = p[3] as usize;
                let (y, dy) = (Array::hold(p[0], storage, len)?, Array::hold(p[1], storage, len)?);
                let dx = Array::hold(p[2], storage, len)?;
                (0..len).for_each(|i| dx.put(i, if y.get(i) > 0.0 { dy.get(i) } else { 0.0 }, flag(p[4])));
            }
            "copy_rows" => {
                let [rows, width, x_row, y_row] = [2, 3, 4, 5].map(|i| p[i] as usize);
                let array = |address, row| Array::hold(address, storage, rows.saturating_sub(1) * row + width);
                let (x, y) = (array(p[0], x_row)?, array(p[1], y_row)?);
                let [add, relu] = [flag(p[6]), flag(p[7])];
                for (row, i) in (0..rows).flat_map(|row| (0..width).map(move |i| (row, i))) {
                    let to = row * y_row + i;
                    y.put(to, x.get(row * x_row + i), add);
                    if relu && y.get(to) < 0.0 {
                        y.set(to, 0.0);
                    }
                }
            }
            "max_pooling_gradient" => {
                let planes = p[4] as usize;
                let axes: Vec<[usize; 6]> = p[5..23].as_chunks().0.iter().map(|axis| axis.map(number)).collect();
                let tiles: usize = axes.iter().map(|axis| axis[0].div_ceil(axis[5])).product();
                // The number of places in the kernel.
                if self.grid[0] != tiles || windows_of_a_tile(&axes) * number(p[23]) > 4096 {
                    return Err(Code::INVALID_VALUE);
                }
                let inputs: usize = axes.iter().map(|axis| axis[0]).product();
                let outputs: usize = axes.iter().map(|axis| axis[1]).product();
                let hold = |address, plane| Array::hold(address, storage, planes * plane);
                let (x, y, dy, dx) =
                    (hold(p[0], inputs)?, hold(p[1], outputs)?, hold(p[2], outputs)?, hold(p[3], inputs)?);
                for plane in 0..planes {
                    let mut sums: Vec<f32> =
                        (0..inputs).map(|i| if flag(p[24]) { dx.get(plane * inputs + i) } else { 0.0 }).collect();
                    for window in 0..outputs {
                        let output = plane * outputs + window;
                        let places = places(&axes, window);
                        let largest = places.into_iter().find(|place| x.get(plane * inputs + place) == y.get(output));
                        largest.into_iter().for_each(|place| sums[place] += dy.get(output));
                    }
                    sums.iter().enumerate().for_each(|(i, sum)| dx.set(plane * inputs + i, *sum));
                }
            }
            "last_touched" => {
                let len = p[1] as usize;
                let (words, last) = (Array::hold(p[0], Storage::F32, len)?, Array::bytes(p[3], 8)?);
                let found = (0..len).rev().find(|&i| words.read::<u32>(i) != p[2] as u32).map_or(0, |i| i as u64 + 1);
                last.write(0, last.read::<u64>(0).max(found));
            }
            _ if kernels_norm::sizes(name).is_some() => return kernels_norm::run(self, name, storage),
            _ => return kernels_last::run(self, name, storage),
        }
        Ok(())
    }
}
