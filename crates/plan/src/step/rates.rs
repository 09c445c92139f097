//! The rates of a device and of its link to the host: of named machines with the source of each figure, and as a plan uses them.

use tightfit_conv::problem::Storage;
use tightfit_conv::{Problem, Types};
use tightfit_units::{Bytes, Nanos};

use super::Pass;

/// The most streams that may compute at once.
pub const MAX_LANES: usize = 4;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host: an offload.
    ToHost,
    /// From the host to the device: a prefetch.
    FromHost,
}

/// Rates of a device and of its link to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct CostModel {
    /// Name of the device.
    pub name: String,
    /// Copy rate to the host, bytes per second.
    pub offload_rate: f64,
    /// Copy rate from the host, bytes per second.
    pub prefetch_rate: f64,
    /// Copy rate of each direction while both run, bytes per second.
    pub both_rate: f64,
    /// Slowdown of a computation while a copy runs, as a fraction of its time.
    pub beside_copies: f64,
    /// Throughput on several lanes, as a multiple of one lane's; 1 if lanes never pay off.
    pub side_by_side: f64,
    /// Device memory rate as layers achieve it, bytes per second.
    pub memory_rate: f64,
    /// 32-bit arithmetic, operations per second; a multiply-add counts as two.
    pub f32_rate: f64,
    /// The same on tensor cores from 32-bit data.
    pub tf32_rate: f64,
    /// The same from 16-bit data.
    pub half_rate: f64,
    /// Fixed overhead of each call.
    pub launch: Nanos,
    /// Kinds of work and passes that are slower than these rates, each with its factor; see [`NamedMachine::slower`].
    pub slower: &'static [(&'static str, Pass, f64)],
    /// The factors for channels-last layout, which take precedence over `slower`.
    pub slower_last: &'static [(&'static str, Pass, f64)],
}

impl CostModel {
    /// Estimated time of an unmeasured convolution: its arithmetic or its memory traffic, whichever takes longer.
    pub fn convolution(&self, problem: &Problem) -> Nanos {
        self.product(problem.flops(), problem.tensor_bytes(), problem.types())
    }

    /// Time of a product of `flops` operations, or of its memory traffic, whichever takes longer.
    pub(crate) fn product(&self, flops: f64, bytes: Bytes, types: Types) -> Nanos {
        let rate = match (types, types.storage()) {
            (Types::Tf32, _) => self.tf32_rate,
            (_, Storage::F32) => self.f32_rate,
            _ => self.half_rate,
        };
        self.launch + seconds((flops / rate).max(bytes.0 as f64 / self.memory_rate))
    }

    /// Time to copy this many bytes with no copy in the opposite direction.
    pub fn copy(&self, direction: Direction, bytes: Bytes) -> Nanos {
        self.launch + seconds(bytes.0 as f64 / self.copy_rate(direction))
    }

    /// Bytes per second of a copy with no copy in the opposite direction.
    pub fn copy_rate(&self, direction: Direction) -> f64 {
        match direction {
            Direction::ToHost => self.offload_rate,
            Direction::FromHost => self.prefetch_rate,
        }
    }
}

/// A figure and its source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// In the unit of its place.
    pub value: f64,
    /// A measurement, a publication, or an estimate.
    pub source: &'static str,
}

/// Kinds of work and passes that are slower than the rates say, each with its factor: [`tightfit_network::LayerKind::name`],
/// [`APART`], [`DENSE`], [`AVERAGE_APART`], [`BIAS`] or [`SUM`].
pub(super) type Slower = &'static [(&'static str, Pass, f64)];

/// The rates of a device and of its link to the host; bytes, operations or seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedMachine {
    /// Its name in options and step files.
    pub name: &'static str,
    /// The part of a device's name that identifies this machine; empty if none does.
    pub device: &'static str,
    /// Bytes of its memory; `None` if a plan for it may use any number.
    pub holds: Option<Figure>,
    /// Copies to the host.
    pub to_host: Figure,
    /// Copies from the host.
    pub to_device: Figure,
    /// Copies in each direction while both run.
    pub both: Figure,
    /// Slowdown of a computation while a copy runs, as a fraction of its time.
    pub beside_copies: Figure,
    /// Throughput on several lanes, as a multiple of one lane's; 1 if lanes never pay off.
    pub side_by_side: Figure,
    /// Device memory as layers achieve it.
    pub memory: Figure,
    /// Arithmetic in 32 bits; a multiply-add counts as two.
    pub f32: Figure,
    /// On tensor cores from 32-bit data.
    pub tf32: Figure,
    /// On tensor cores from 16-bit data.
    pub half: Figure,
    /// Fixed time of each call.
    pub launch: Figure,
    /// Kinds of work and passes that are slower than these rates, each with its factor.
    pub slower: Slower,
    /// The factors for channels-last layout, which take precedence over `slower`.
    pub slower_last: Slower,
    /// The source of the factors.
    pub slower_source: &'static str,
}

/// Max pooling with windows that do not overlap.
pub(crate) const APART: &str = "max-pooling-apart";
/// Max pooling with windows that overlap and begin at every element.
pub(crate) const DENSE: &str = "max-pooling-dense";
/// Average pooling with several windows that do not overlap.
pub(crate) const AVERAGE_APART: &str = "average-pooling-apart";
pub(crate) const BIAS: &str = "bias";
/// A convolution that adds its gradient to another: the extra time for the bytes that it reads.
pub(crate) const SUM: &str = "sum";

pub(super) const fn figure(value: f64, source: &'static str) -> Figure {
    Figure { value, source }
}

/// Batch normalization reads its input twice: for the statistics and for the values. A rerun already has the statistics.
pub(super) const SLOWER: Slower = &[("batch-norm", Pass::Forward, 1.5), ("batch-norm", Pass::BackwardData, 1.5)];

pub(super) const COUNTED: &str = "counted: batch normalization reads its input twice";

impl NamedMachine {
    /// The costs of its copies and layers.
    pub fn costs(&self) -> CostModel {
        CostModel {
            name: self.name.to_owned(),
            offload_rate: self.to_host.value,
            prefetch_rate: self.to_device.value,
            both_rate: self.both.value,
            beside_copies: self.beside_copies.value,
            side_by_side: self.side_by_side.value,
            memory_rate: self.memory.value,
            f32_rate: self.f32.value,
            tf32_rate: self.tf32.value,
            half_rate: self.half.value,
            launch: Nanos::from_micros(self.launch.value * 1e6),
            slower: self.slower,
            slower_last: self.slower_last,
        }
    }
}

/// A time in seconds, rounded.
pub(crate) fn seconds(seconds: f64) -> Nanos {
    Nanos::from_micros(seconds * 1e6)
}
