//! Small made-up results with numbers that are easy to add up.

use tightfit_conv::candidate::Limit;
use tightfit_conv::execute::Verified;
use tightfit_conv::optimize::Stop;
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost, Layout, Operation, Problem, Types};
use tightfit_units::{Bytes, Nanos};

use crate::Spent;
use crate::answer::{NotUndivided, Optimized, OptimizedKernel, Profiling};
use crate::survey::{Divide, Sizes};

/// A configuration of `(micro-batch, algorithm, time in µs, workspace in MiB)`.
pub fn configuration(parts: &[(usize, &str, u64, u64)]) -> Configuration {
    let candidate = |&(micro_batch, algorithm, us, mib): &(usize, &str, u64, u64)| {
        Candidate::new(Algorithm::new(algorithm), micro_batch, Nanos(us * 1000), Bytes::mib(mib))
    };
    Configuration::new(parts.iter().map(candidate).collect(), DivisionCost::default())
}

fn conv2(operation: Operation) -> Problem {
    let line = format!("{operation} n256 c96 h27 w27 k256 r5 s5 pad2 groups2 f32");
    line.parse().unwrap()
}

fn kernel(
    layer: &str,
    operation: Operation,
    undivided: Result<Configuration, NotUndivided>,
    configuration: Configuration,
) -> OptimizedKernel {
    let problem = conv2(operation);
    OptimizedKernel { layer: layer.to_owned(), problem, undivided, configuration, front: None, verification: None }
}

/// Nothing to optimize.
pub fn empty() -> Optimized {
    Optimized {
        network: "alexnet".to_owned(),
        batch: Some(256),
        device: Device {
            backend: "cuda".to_owned(),
            name: "NVIDIA H200".to_owned(),
            library: "cudnn 9.19.0".to_owned(),
            threads: 0,
        },
        types: Types::F32,
        layout: Layout::Nchw,
        sizes: Sizes::Fit,
        divide: Divide::Both,
        limit: Limit::PerKernel(Bytes::mib(64)),
        kernels: Vec::new(),
        gap: 0.0,
        stop: None,
        profiling: Profiling::default(),
        least_workspace: None,
        groups: Vec::new(),
        overlapped: Vec::new(),
    }
}

/// Two kernels, one of them divided: 9 ms become 6 ms.
pub fn alexnet() -> Optimized {
    let left = configuration(&[(256, "implicit-gemm", 2000, 8)]);
    Optimized {
        kernels: vec![
            kernel("conv1", Operation::Forward, Ok(left.clone()), left),
            kernel(
                "conv2",
                Operation::Forward,
                Ok(configuration(&[(256, "implicit-gemm", 7000, 0)])),
                configuration(&[(100, "fft", 1500, 48), (100, "fft", 1500, 48), (56, "winograd-4x4", 1000, 40)]),
            ),
        ],
        profiling: Profiling {
            time: Nanos(12_300_000_000),
            spent: Spent { kernel_time: Nanos(800_000_000), measured: 400, cached: 56, ..Spent::default() },
        },
        ..empty()
    }
}

/// Two kernels that were run, allotted from one total; the second does not fit undivided.
pub fn verified() -> Optimized {
    let mut optimized = alexnet();
    for (kernel, error) in optimized.kernels.iter_mut().zip([0.0, 2.5e-6]) {
        kernel.verification = Some(Verified {
            error_undivided: Some(error),
            error_reference: error * 2.0,
            undivided_error_reference: Some(error),
            class_error_reference: Some(error * 1.5),
            outputs_compared: 4096,
            time: kernel.configuration.time() + Nanos(300_000),
            single: Some(kernel.configuration.time() + Nanos(350_000)),
            undivided_time: kernel.undivided.as_ref().ok().map(|undivided| undivided.time() + Nanos(100_000)),
        });
    }
    optimized.kernels[1].undivided = Err(NotUndivided::OverLimit);
    if let Some(seen) = &mut optimized.kernels[1].verification {
        seen.error_undivided = None;
        seen.undivided_error_reference = None;
        seen.undivided_time = None;
    }
    Optimized {
        limit: Limit::Total(Bytes::mib(120)),
        gap: 0.000125,
        stop: Some(Stop::StateLimit),
        least_workspace: Some(Bytes::mib(1)),
        ..optimized
    }
}

/// A network of `kernels` kernels, three per layer, with long names, many micro-batches and fronts.
pub fn network(kernels: usize) -> Optimized {
    let kernel = |index: usize| {
        let size = 1 + (index as u64 * 7) % 13;
        let front: Vec<_> = (0..=5)
            .map(|step| {
                let parts = 1usize << (5 - step);
                let algorithm = ["implicit-gemm", "winograd-nonfused", "fft-tiling"][step / 2];
                configuration(&vec![
                    (
                        256 / parts,
                        algorithm,
                        size * 40 * (7 - step as u64) / parts as u64,
                        (size << step) >> 1
                    );
                    parts
                ])
            })
            .collect();
        OptimizedKernel {
            front: Some(front.clone()),
            undivided: match index % 11 {
                5 => Err(NotUndivided::OverLimit),
                _ => Ok(configuration(&[(256, "implicit-gemm", size * 400, 0)])),
            },
            ..kernel(
                &format!("inception_{}/3x3_reduce", index / 3),
                Operation::ALL[index % 3],
                Err(NotUndivided::OverLimit),
                front[index % 6].clone(),
            )
        }
    };
    Optimized { kernels: (0..kernels).map(kernel).collect(), limit: Limit::Total(Bytes::gib(8)), ..alexnet() }
}
