//! `tightfit verify NETWORK`

use std::sync::atomic::Ordering;

use tightfit_core::answer::{Optimized, OptimizedKernel};
use tightfit_core::backend::Scale;
use tightfit_core::candidate::Limit;
use tightfit_core::execute::{Data, SAMPLED_OUTPUTS, Trial, Values, verify, verify_together};
use tightfit_core::{Bytes, Device, Error, Problem, Types};

use super::print_optimized;
use crate::failure::Failure;
use crate::options::{Common, VerifyOptions};
use crate::progress::Bar;
use crate::session::Session;
use crate::solve::{optimize, request};

pub fn run(options: &VerifyOptions, common: &Common) -> Result<(), Failure> {
    let mut request = request(&options.request, common)?;
    let beside = request.selection.kernels()?.iter().map(|kernel| compared(&kernel.problem)).max();
    let mut session = Session::open(common)?;
    request.divide = options.request.divide.get();
    let mut optimized = optimize(&request, beside.unwrap_or_default(), &mut session, common)?;
    let outputs = if options.full { usize::MAX } else { SAMPLED_OUTPUTS };
    let scale = Scale { alpha: options.alpha, beta: options.beta };
    let backend = session.backends[0].as_mut();
    let (bar, of) = (Bar::new("verifying", None), optimized.kernels.len());
    for (place, kernel) in optimized.kernels.iter_mut().enumerate() {
        if session.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted.into());
        }
        let what = format!("verified {place} of {of} kernels, {} {}", kernel.layer, kernel.problem.operation());
        bar.set(what, place as f64 / of as f64);
        let data = Data::random(&kernel.problem, options.values, common.seed.wrapping_add(place as u64));
        let trial = Trial {
            problem: &kernel.problem,
            configuration: &kernel.configuration,
            undivided: kernel.undivided.as_ref().ok(),
            data: &data,
            scale,
        };
        kernel.verification = Some(verify(backend, &trial, tightfit_cpu::reference, outputs)?);
    }
    drop(bar);
    if let Limit::Total(_) = optimized.limit {
        run_groups(&mut optimized, options, common, &mut session)?;
    }
    print_optimized(&optimized, common.format)?;
    let apart: Vec<String> = optimized
        .overlapped
        .iter()
        .filter_map(|seen| {
            let kernels: Vec<_> = seen.kernels.iter().filter_map(|&place| optimized.kernels.get(place)).collect();
            let allowed =
                kernels.iter().map(|kernel| tolerance(&kernel.problem, &optimized.device)).fold(0.0, f64::max);
            let names = kernels.iter().map(|kernel| kernel.layer.as_str()).collect::<Vec<_>>().join(" beside ");
            (seen.error > allowed).then(|| format!("{names} by {:.1e} (allowed: {allowed:.0e})", seen.error))
        })
        .collect();
    if !apart.is_empty() {
        return Err(Failure::Wrong(format!(
            "results differ too much from those of each kernel alone: {}",
            apart.join(", ")
        )));
    }
    let wrong: Vec<String> = optimized
        .kernels
        .iter()
        .filter_map(|kernel| {
            let seen = kernel.verification.as_ref()?;
            // Two results that are each within the tolerance may differ by twice that.
            let error = seen.error_reference.max(seen.error_undivided.unwrap_or(0.0) / 2.0);
            let allowed =
                if exact(kernel, options.values) { 0.0 } else { tolerance(&kernel.problem, &optimized.device) };
            let (layer, operation) = (&kernel.layer, kernel.problem.operation());
            (error > allowed).then(|| format!("{layer} {operation} by {error:.1e} (allowed: {allowed:.0e})"))
        })
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Failure::Wrong(format!("results differ too much from 64-bit arithmetic: {}", wrong.join(", "))))
    }
}

/// Memory for comparing a kernel: its tensors, the divided and undivided outputs of two runs each, and both again in 64
/// bits.
fn compared(problem: &Problem) -> Bytes {
    problem.tensor_bytes() + Bytes::of(problem.output_len(), 4 * 4 + 2 * 8)
}

/// Runs the groups of kernels that may run concurrently, each kernel in its allotted segment.
fn run_groups(
    optimized: &mut Optimized,
    options: &VerifyOptions,
    common: &Common,
    session: &mut Session,
) -> Result<(), Failure> {
    let scale = Scale { alpha: options.alpha, beta: options.beta };
    for group in optimized.groups.iter().filter(|group| group.len() > 1) {
        if session.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted.into());
        }
        let kernels: Vec<_> = group.iter().map(|&place| (place, &optimized.kernels[place])).collect();
        let data: Vec<Data> = kernels
            .iter()
            .map(|(place, kernel)| {
                Data::random(&kernel.problem, options.values, common.seed.wrapping_add(*place as u64))
            })
            .collect();
        let trials: Vec<Trial<'_>> = kernels
            .iter()
            .zip(&data)
            .map(|((_, kernel), data)| Trial {
                problem: &kernel.problem,
                configuration: &kernel.configuration,
                undivided: None,
                data,
                scale,
            })
            .collect();
        optimized.overlapped.push(verify_together(session.backends[0].as_mut(), group.clone(), &trials)?);
    }
    Ok(())
}

/// Whether a kernel must be exact to the bit: whole numbers under algorithms that only multiply and add.
fn exact(kernel: &OptimizedKernel, values: Values) -> bool {
    let sums = ["direct", "implicit-gemm", "explicit-gemm"];
    let all = kernel.configuration.parts().iter().chain(kernel.undivided.iter().flat_map(|whole| whole.parts()));
    let mut plain = all.flat_map(|part| part.algorithm.plain());
    values == Values::Whole && plain.all(|algorithm| sums.contains(&algorithm.name()))
}

/// How far an output may be from 64-bit arithmetic, relative to the largest output.
///
/// About a thousand rounding errors of the arithmetic: transforms lose more than sums do. For filters of 5x5 and up,
/// cuDNN's Winograd algorithm transforms tiles of 13x13 and loses three more digits (cuDNN 9.19: 6e-3 of the largest
/// output); `--exact-class` excludes it if the undivided choice is more exact.
fn tolerance(problem: &Problem, device: &Device) -> f64 {
    let large = problem.convolution().filter().iter().all(|&extent| extent == 1 || extent >= 5);
    let pointwise = problem.convolution().filter() == [1, 1, 1];
    match problem.types() {
        Types::F32 if device.backend == "cuda" && large && !pointwise => 2e-2,
        Types::F32 => 1e-4,
        Types::Tf32 | Types::F16F32 if large && !pointwise => 2e-2,
        Types::Tf32 | Types::F16F32 => 5e-3,
        Types::Bf16 => 3e-2,
        Types::F16 => 5e-2,
    }
}
