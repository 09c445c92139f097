//! The result as JSON. Programs rely on the keys: add new ones, but never rename any.
//!
//! The structs below mirror the document key for key, so the internal types stay free to change.

use serde::Serialize;
use tightfit_conv::candidate::Limit;
use tightfit_conv::execute::{Overlapped, Verified};
use tightfit_conv::optimize::Needs;
use tightfit_conv::{Candidate, Configuration, Operation, Types};
use tightfit_profile::answer::{Optimized, OptimizedKernel};
use tightfit_units::Bytes;

/// Writes the result as one indented JSON object that ends in a line feed.
///
/// Exactly one of `workspace_limit_bytes`, `total_workspace_bytes` and `one_workspace_bytes` is present; it is null if unlimited. Times are in µs
/// with up to three decimals. Null marks missing values: `undivided` if nothing fits or nothing was measured undivided (`undivided_missing` says
/// which: `over-limit` or `not-measured`), `undivided_time_us` and `speedup` if that applies to any kernel, and errors that are not finite. Under a
/// total, `needs` has the workspace in use. It also has the workspace with which a limit per kernel (`workspace_limit_bytes`) reaches the same speed
/// or more: with one workspace per kernel, and with one workspace that only non-overlapping kernels share. `side_by_side` lists the groups that ran
/// concurrently, as indices into `kernels`. A divided kernel's `time_us` and `workspace_bytes` include the cost of dividing, which is not part of any
/// micro-batch.
pub fn json(optimized: &Optimized) -> String {
    // Plain structs with string keys, written to memory: this cannot fail.
    serde_json::to_string_pretty(&Document::of(optimized)).unwrap_or_default() + "\n"
}

#[derive(Serialize)]
struct Document<'a> {
    network: &'a str,
    batch: Option<usize>,
    backend: &'a str,
    device: &'a str,
    library: &'a str,
    threads: usize,
    types: Types,
    layout: &'static str,
    policy: &'a str,
    divide: &'a str,
    #[serde(flatten)]
    limit: LimitKey,
    least_workspace_bytes: Option<Bytes>,
    workspace_bytes: Bytes,
    undivided_time_us: Option<f64>,
    time_us: f64,
    speedup: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured_time_us: Option<f64>,
    gap: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<String>,
    profiling: ProfilingObject,
    #[serde(skip_serializing_if = "Option::is_none")]
    needs: Option<NeedsObject>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    side_by_side: Vec<OverlappedObject>,
    kernels: Vec<KernelObject<'a>>,
}

#[derive(Serialize)]
enum LimitKey {
    #[serde(rename = "workspace_limit_bytes")]
    PerKernel(Option<Bytes>),
    #[serde(rename = "total_workspace_bytes")]
    Total(Option<Bytes>),
    #[serde(rename = "one_workspace_bytes")]
    One(Option<Bytes>),
}

#[derive(Serialize)]
struct ProfilingObject {
    time_us: f64,
    kernel_time_us: f64,
    measurements: usize,
}

#[derive(Serialize)]
struct NeedsObject {
    total_workspace_bytes: Bytes,
    per_kernel_bytes: Bytes,
    one_workspace_bytes: Bytes,
    workspace_limit_bytes: Bytes,
}

#[derive(Serialize)]
struct OverlappedObject {
    kernels: Vec<usize>,
    streams: usize,
    measured_time_us: f64,
    alone_measured_time_us: f64,
    workspace_bytes: Bytes,
    max_relative_error_alone: f64,
}

#[derive(Serialize)]
struct KernelObject<'a> {
    layer: &'a str,
    operation: Operation,
    problem: String,
    undivided: Option<UndividedObject<'a>>,
    undivided_missing: Option<&'static str>,
    configuration: Vec<CandidateObject<'a>>,
    time_us: f64,
    workspace_bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    verification: Option<VerificationObject>,
}

#[derive(Serialize)]
struct UndividedObject<'a> {
    algorithm: &'a str,
    time_us: f64,
    workspace_bytes: Bytes,
}

#[derive(Serialize)]
struct CandidateObject<'a> {
    micro_batch: usize,
    algorithm: &'a str,
    time_us: f64,
    workspace_bytes: Bytes,
}

#[derive(Serialize)]
struct VerificationObject {
    max_relative_error_undivided: Option<f64>,
    max_relative_error_reference: f64,
    undivided_max_relative_error_reference: Option<f64>,
    class_max_relative_error_reference: Option<f64>,
    outputs_compared: usize,
    measured_time_us: f64,
    measured_single_time_us: Option<f64>,
    undivided_measured_time_us: Option<f64>,
}

impl<'a> Document<'a> {
    fn of(optimized: &'a Optimized) -> Document<'a> {
        Document {
            network: &optimized.network,
            batch: optimized.batch,
            backend: &optimized.device.backend,
            device: &optimized.device.name,
            library: &optimized.device.library,
            threads: optimized.device.threads,
            types: optimized.types,
            layout: optimized.layout.name(),
            policy: optimized.sizes.name(),
            divide: optimized.divide.name(),
            limit: LimitKey::of(optimized.limit),
            least_workspace_bytes: optimized.least_workspace,
            workspace_bytes: optimized.workspace(),
            undivided_time_us: optimized.undivided_time().map(|time| time.as_micros()),
            time_us: optimized.time().as_micros(),
            speedup: optimized.speedup(),
            measured_time_us: optimized.measured_time().map(|time| time.as_micros()),
            gap: optimized.gap,
            stop: optimized.stop.map(|stop| stop.to_string()),
            profiling: ProfilingObject {
                time_us: optimized.profiling.time.as_micros(),
                kernel_time_us: optimized.profiling.spent.kernel_time.as_micros(),
                measurements: optimized.profiling.measurements(),
            },
            needs: optimized.needs().as_ref().map(NeedsObject::of),
            side_by_side: optimized.overlapped.iter().map(OverlappedObject::of).collect(),
            kernels: optimized.kernels.iter().map(KernelObject::of).collect(),
        }
    }
}

impl LimitKey {
    fn of(limit: Limit) -> LimitKey {
        match limit {
            Limit::PerKernel(_) => LimitKey::PerKernel(limit.finite()),
            Limit::Total(_) => LimitKey::Total(limit.finite()),
            Limit::One(_) => LimitKey::One(limit.finite()),
        }
    }
}

impl NeedsObject {
    fn of(needs: &Needs) -> NeedsObject {
        NeedsObject {
            total_workspace_bytes: needs.allotted,
            per_kernel_bytes: needs.per_kernel,
            one_workspace_bytes: needs.one,
            workspace_limit_bytes: needs.limit,
        }
    }
}

impl OverlappedObject {
    fn of(seen: &Overlapped) -> OverlappedObject {
        OverlappedObject {
            kernels: seen.kernels.clone(),
            streams: seen.streams,
            measured_time_us: seen.time.as_micros(),
            alone_measured_time_us: seen.alone.as_micros(),
            workspace_bytes: seen.workspace,
            max_relative_error_alone: seen.error,
        }
    }
}

impl<'a> KernelObject<'a> {
    fn of(kernel: &'a OptimizedKernel) -> KernelObject<'a> {
        KernelObject {
            layer: &kernel.layer,
            operation: kernel.problem.operation(),
            problem: kernel.problem.to_string(),
            undivided: kernel.undivided.as_ref().ok().and_then(UndividedObject::of),
            undivided_missing: kernel.undivided.as_ref().err().map(|why| why.name()),
            configuration: kernel.configuration.parts().iter().map(CandidateObject::of).collect(),
            time_us: kernel.configuration.time().as_micros(),
            workspace_bytes: kernel.configuration.workspace(),
            verification: kernel.verification.as_ref().map(VerificationObject::of),
        }
    }
}

impl<'a> UndividedObject<'a> {
    fn of(configuration: &'a Configuration) -> Option<UndividedObject<'a>> {
        Some(UndividedObject {
            algorithm: configuration.parts().first()?.algorithm.name(),
            time_us: configuration.time().as_micros(),
            workspace_bytes: configuration.workspace(),
        })
    }
}

impl<'a> CandidateObject<'a> {
    fn of(candidate: &'a Candidate) -> CandidateObject<'a> {
        CandidateObject {
            micro_batch: candidate.micro_batch,
            algorithm: candidate.algorithm.name(),
            time_us: candidate.time.as_micros(),
            workspace_bytes: candidate.workspace,
        }
    }
}

impl VerificationObject {
    fn of(seen: &Verified) -> VerificationObject {
        VerificationObject {
            max_relative_error_undivided: seen.error_undivided,
            max_relative_error_reference: seen.error_reference,
            undivided_max_relative_error_reference: seen.undivided_error_reference,
            class_max_relative_error_reference: seen.class_error_reference,
            outputs_compared: seen.outputs_compared,
            measured_time_us: seen.time.as_micros(),
            measured_single_time_us: seen.single.map(|time| time.as_micros()),
            undivided_measured_time_us: seen.undivided_time.map(|time| time.as_micros()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tightfit_profile::answer::samples;

    use super::*;

    #[test]
    fn the_whole_document() {
        let mut optimized = samples::verified();
        optimized.kernels.drain(..1);
        insta::assert_snapshot!(json(&optimized), @r#"
        {
          "network": "alexnet",
          "batch": 256,
          "backend": "cuda",
          "device": "NVIDIA H200",
          "library": "cudnn 9.19.0",
          "threads": 0,
          "types": "f32",
          "layout": "nchw",
          "policy": "fit",
          "divide": "both",
          "total_workspace_bytes": 125829120,
          "least_workspace_bytes": 1048576,
          "workspace_bytes": 50331648,
          "undivided_time_us": null,
          "time_us": 4000.0,
          "speedup": null,
          "measured_time_us": 4300.0,
          "gap": 0.000125,
          "stop": "ended at its limit of states",
          "profiling": {
            "time_us": 12300000.0,
            "kernel_time_us": 800000.0,
            "measurements": 456
          },
          "kernels": [
            {
              "layer": "conv2",
              "operation": "forward",
              "problem": "forward n256 c96 h27 w27 k256 r5 s5 pad2 groups2 f32",
              "undivided": null,
              "undivided_missing": "over-limit",
              "configuration": [
                {
                  "micro_batch": 100,
                  "algorithm": "fft",
                  "time_us": 1500.0,
                  "workspace_bytes": 50331648
                },
                {
                  "micro_batch": 100,
                  "algorithm": "fft",
                  "time_us": 1500.0,
                  "workspace_bytes": 50331648
                },
                {
                  "micro_batch": 56,
                  "algorithm": "winograd-4x4",
                  "time_us": 1000.0,
                  "workspace_bytes": 41943040
                }
              ],
              "time_us": 4000.0,
              "workspace_bytes": 50331648,
              "verification": {
                "max_relative_error_undivided": null,
                "max_relative_error_reference": 5e-6,
                "undivided_max_relative_error_reference": null,
                "class_max_relative_error_reference": 3.7500000000000005e-6,
                "outputs_compared": 4096,
                "measured_time_us": 4300.0,
                "measured_single_time_us": 4350.0,
                "undivided_measured_time_us": null
              }
            }
          ]
        }
        "#);
    }

    #[test]
    fn nothing_at_all() {
        insta::assert_snapshot!(json(&samples::empty()), @r#"
        {
          "network": "alexnet",
          "batch": 256,
          "backend": "cuda",
          "device": "NVIDIA H200",
          "library": "cudnn 9.19.0",
          "threads": 0,
          "types": "f32",
          "layout": "nchw",
          "policy": "fit",
          "divide": "both",
          "workspace_limit_bytes": 67108864,
          "least_workspace_bytes": null,
          "workspace_bytes": 0,
          "undivided_time_us": 0.0,
          "time_us": 0.0,
          "speedup": null,
          "gap": 0.0,
          "profiling": {
            "time_us": 0.0,
            "kernel_time_us": 0.0,
            "measurements": 0
          },
          "kernels": []
        }
        "#);
    }

    #[test]
    fn exactly_one_limit_is_named() {
        let keys = ["workspace_limit_bytes", "total_workspace_bytes", "one_workspace_bytes"];
        let limits = [Limit::PerKernel, Limit::Total, Limit::One];
        for (index, limit) in limits.into_iter().enumerate() {
            for bytes in [Bytes::mib(64), Bytes::UNLIMITED] {
                let text = json(&Optimized { limit: limit(bytes), ..samples::alexnet() });
                let value: serde_json::Value = serde_json::from_str(&text).unwrap();
                for (other, key) in keys.iter().enumerate() {
                    assert_eq!(value.get(key).is_some(), other == index, "{key}");
                }
                assert_eq!(value[keys[index]].as_u64(), (bytes != Bytes::UNLIMITED).then_some(bytes.0));
            }
        }
    }
}
