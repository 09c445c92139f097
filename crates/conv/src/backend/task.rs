//! The inputs and results of running a configuration.

use tightfit_units::Nanos;

use crate::{Configuration, Problem};

/// The factors of an operation: output = alpha · result + beta · output.
///
/// With beta = 0 the output is not read, so its old content does not matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Factor of the result.
    pub alpha: f32,
    /// Factor of the old output.
    pub beta: f32,
}

impl Scale {
    /// Overwrite the output with the result.
    pub const OVERWRITE: Scale = Scale { alpha: 1.0, beta: 0.0 };
}

/// The data of one operation in host memory, in f32 for all types, packed in the problem's layout.
///
/// The operation determines the tensors: forward reads x and w; backward-data dy and w; backward-filter x and dy.
#[derive(Clone, Copy, Debug)]
pub struct Tensors<'a> {
    /// x; for backward-data dy.
    pub data: &'a [f32],
    /// w; for backward-filter dy.
    pub other: &'a [f32],
    /// The old output: y, dx or dw.
    pub output: &'a [f32],
}

/// The result of running a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// y, dx or dw, in f32.
    pub output: Vec<f32>,
    /// Time of the whole configuration, without moving data to and from the device. Measured the same way as the
    /// backend's measurements (several runs back to back, if it does that), so that the times are comparable.
    pub time: Nanos,
    /// Time of a single run with its launch gaps, if the backend measures it separately.
    pub single: Option<Nanos>,
}

/// A configuration to run, with its data.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// The kernel at its whole mini-batch.
    pub problem: &'a Problem,
    /// Its configuration.
    pub configuration: &'a Configuration,
    /// Its tensors.
    pub tensors: Tensors<'a>,
    /// Factors of result and output.
    pub scale: Scale,
}

/// The result of running configurations together.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// The output of each, in f32.
    pub outputs: Vec<Vec<f32>>,
    /// Time until the last one finished, without moving data; see [`Run::time`].
    pub time: Nanos,
    /// Number of streams used; 1 if they ran one after another.
    pub streams: usize,
}
