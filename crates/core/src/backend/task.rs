//! What a backend is given to run, and what it gives back.

use crate::{Configuration, Nanos, Problem};

/// The factors of an operation: output = alpha · result + beta · output.
///
/// With beta = 0 the output is not read, so it may hold anything before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Factor of the result.
    pub alpha: f32,
    /// Factor of what the output holds before.
    pub beta: f32,
}

impl Scale {
    /// Overwrite the output with the result.
    pub const OVERWRITE: Scale = Scale { alpha: 1.0, beta: 0.0 };
}

/// The data of one operation in host memory, in f32 whatever the problem's types, packed in the problem's layout.
///
/// Which tensor is which follows from the operation: forward reads x and w; backward-data dy and w; backward-filter
/// x and dy.
#[derive(Clone, Copy, Debug)]
pub struct Tensors<'a> {
    /// x; for backward-data dy.
    pub data: &'a [f32],
    /// w; for backward-filter dy.
    pub other: &'a [f32],
    /// What the output holds before: y, dx or dw.
    pub output: &'a [f32],
}

/// What running a configuration gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// y, dx or dw, in f32.
    pub output: Vec<f32>,
    /// Time of the whole configuration, without moving data to and from the device; several back to back where the backend
    /// measures like that, so that it compares with what was measured.
    pub time: Nanos,
    /// Time of the configuration alone, with its launch gaps, where the backend tells it apart.
    pub single: Option<Nanos>,
}

/// A configuration to run, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The kernel on its whole mini-batch.
    pub problem: &'a Problem,
    /// How it is divided.
    pub configuration: &'a Configuration,
    /// Its tensors.
    pub tensors: Tensors<'a>,
    /// Factors of result and output.
    pub scale: Scale,
}

/// What running configurations together gave.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// The output of each, in f32.
    pub outputs: Vec<Vec<f32>>,
    /// Time until the last was done, without moving data; as [`Run::time`].
    pub time: Nanos,
    /// Streams that they ran on; 1 where they ran one after another.
    pub streams: usize,
}
