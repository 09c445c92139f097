//! What copies and layers cost on a device: a few rates, and measured times where there are some.
//!
//! Convolutions bring their own times with their configurations. All other layers but the fully connected ones are bound
//! by memory: their time is the bytes that they touch over the memory's rate. A copy is slower while another goes the
//! other way.

use std::collections::HashMap;

use super::{Compute, Pass, Schedule, Workload};
use crate::network::{LayerId, LayerKind};
use crate::problem::Storage;
use crate::{Bytes, Error, Nanos, Problem, Types};

/// Rates of a device and of its link to the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Costs {
    /// Name of the device that the rates are of.
    pub name: String,
    /// Copies to the host, bytes a second.
    pub offload_rate: f64,
    /// Copies from the host, bytes a second.
    pub prefetch_rate: f64,
    /// Copies each way while both directions run, bytes a second.
    pub both_rate: f64,
    /// Device memory as a layer uses it, bytes a second.
    pub memory_rate: f64,
    /// Products and sums in 32 bits, operations a second, a multiplication and an addition counted as two.
    pub f32_rate: f64,
    /// The same on tensor cores from 32-bit data.
    pub tf32_rate: f64,
    /// The same from 16-bit data.
    pub half_rate: f64,
    /// What each call costs beside its work.
    pub launch: Nanos,
    /// Measured times, which replace the rates.
    pub measured: HashMap<(LayerId, Pass), Nanos>,
}

impl Costs {
    /// An NVIDIA H200 on PCIe generation 5: 55.3 GB/s to the host, 54.9 from it, 49.4 each way at once, and 51 Tflop/s in
    /// 32 bits were measured (driver 580.159, 2026-11-20). Memory is taken at 80 % of its 4.8 TB/s; tensor cores at half
    /// of 400 and 800 Tflop/s.
    pub fn h200() -> Costs {
        Costs {
            name: "h200".to_owned(),
            offload_rate: 55.3e9,
            prefetch_rate: 54.9e9,
            both_rate: 49.4e9,
            memory_rate: 0.8 * 4.8e12,
            f32_rate: 51e12,
            tf32_rate: 200e12,
            half_rate: 400e12,
            launch: Nanos(5_000),
            measured: HashMap::new(),
        }
    }

    /// The NVIDIA K40 of the vDNN paper (Rhu et al. 2016, 4.2): 288 GB/s of memory, 5 Tflop/s and 16 GB/s of PCIe 3 at
    /// most, taken at 80, 60 and 75 % of those.
    pub fn k40() -> Costs {
        Costs {
            name: "k40".to_owned(),
            offload_rate: 12e9,
            prefetch_rate: 12e9,
            both_rate: 12e9,
            memory_rate: 0.8 * 288e9,
            f32_rate: 3e12,
            tf32_rate: 3e12,
            half_rate: 3e12,
            launch: Nanos(10_000),
            measured: HashMap::new(),
        }
    }

    /// A processor whose arenas both lie in its own memory, with a few cores: expected, not measured.
    pub fn cpu() -> Costs {
        Costs {
            name: "cpu".to_owned(),
            offload_rate: 8e9,
            prefetch_rate: 8e9,
            both_rate: 4e9,
            memory_rate: 8e9,
            f32_rate: 1e11,
            tf32_rate: 1e11,
            half_rate: 1e10,
            launch: Nanos(2_000),
            measured: HashMap::new(),
        }
    }

    /// The costs of this name: `h200`, `k40` or `cpu`.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] for any other.
    pub fn named(name: &str) -> Result<Costs, Error> {
        match name {
            "h200" => Ok(Costs::h200()),
            "k40" => Ok(Costs::k40()),
            "cpu" => Ok(Costs::cpu()),
            _ => Err(Error::unknown_word("costs", name, ["h200", "k40", "cpu"])),
        }
    }

    /// With a measured time of one pass of a layer.
    pub fn with_measured(mut self, layer: LayerId, pass: Pass, time: Nanos) -> Costs {
        self.measured.insert((layer, pass), time);
        self
    }

    /// Time of a convolution that was not measured: its arithmetic or its memory traffic, whichever takes longer.
    pub fn convolution(&self, problem: &Problem) -> Nanos {
        self.product(problem.flops(), problem.tensor_bytes(), problem.types())
    }

    /// Time of copying this many bytes with nothing going the other way.
    pub fn copy(&self, bytes: Bytes, to_host: bool) -> Nanos {
        let rate = if to_host { self.offload_rate } else { self.prefetch_rate };
        self.launch + seconds(bytes.0 as f64 / rate)
    }

    /// Time of a compute step of `schedule`.
    pub fn compute(&self, workload: &Workload<'_>, schedule: &Schedule, step: &Compute) -> Nanos {
        let bytes = step.operands.iter().map(|operand| Bytes(schedule.blocks[operand.block.0].bytes)).sum();
        self.pass(workload, step.layer, step.pass, bytes, step.configuration.as_ref().map(|found| found.time()))
    }

    /// Time of a pass of a layer over operands of `bytes` in all; of a convolution, that of its configuration.
    pub fn pass(
        &self,
        workload: &Workload<'_>,
        layer: LayerId,
        pass: Pass,
        bytes: Bytes,
        configuration: Option<Nanos>,
    ) -> Nanos {
        if let Some(time) = self.measured.get(&(layer, pass)) {
            return *time;
        }
        let of = workload.network.layer(layer);
        match (&of.kind, pass) {
            (LayerKind::Convolution { .. }, Pass::Forward | Pass::BackwardData | Pass::BackwardFilter) => {
                configuration.unwrap_or_default()
            }
            (LayerKind::FullyConnected { .. }, Pass::Forward | Pass::BackwardData | Pass::BackwardFilter) => {
                let flops = 2.0 * of.parameters as f64 * workload.batch as f64;
                self.product(flops, bytes, workload.types)
            }
            // Statistics first, then the values: the input is read twice.
            (LayerKind::BatchNorm { .. }, Pass::Forward | Pass::BackwardData) => self.traffic(bytes.0 as f64 * 1.5),
            (LayerKind::Input { .. }, _) => self.launch,
            _ => self.traffic(bytes.0 as f64),
        }
    }

    fn traffic(&self, bytes: f64) -> Nanos {
        self.launch + seconds(bytes / self.memory_rate)
    }

    fn product(&self, flops: f64, bytes: Bytes, types: Types) -> Nanos {
        let rate = match (types, types.storage()) {
            (Types::Tf32, _) => self.tf32_rate,
            (_, Storage::F32) => self.f32_rate,
            _ => self.half_rate,
        };
        self.launch + seconds((flops / rate).max(bytes.0 as f64 / self.memory_rate))
    }
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_micros(seconds * 1e6)
}
