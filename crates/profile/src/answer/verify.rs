//! `verify`: runs the chosen configurations, and reports the results that differ too much.
//!
//! ```text
//! Optimized -> verify: each kernel, divided and undivided, against 64-bit arithmetic -> faults that no rounding explains
//!                      and under one total, kernels of a group at the same time
//! ```

use std::sync::atomic::{AtomicBool, Ordering};

use tightfit_conv::backend::{Backend, Scale};
use tightfit_conv::candidate::Limit;
use tightfit_conv::execute::{self, Data, Reference, Trial, Values, verify_together};
use tightfit_conv::{Device, Problem, Types};
use tightfit_units::{Bytes, Error};

use super::{Optimized, OptimizedKernel};

/// How to run and compare.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Outputs per kernel to compare with 64-bit arithmetic.
    pub outputs: usize,
    /// The distribution of the inputs.
    pub values: Values,
    /// How results are scaled.
    pub scale: Scale,
    /// The seed of the inputs' random numbers.
    pub seed: u64,
    /// 64-bit arithmetic.
    pub reference: Reference,
}

impl Check {
    fn data(&self, optimized: &Optimized, place: usize) -> Data {
        Data::random(&optimized.kernels[place].problem, self.values, self.seed.wrapping_add(place as u64))
    }

    fn trial<'a>(&self, kernel: &'a OptimizedKernel, data: &'a Data) -> Trial<'a> {
        Trial {
            problem: &kernel.problem,
            configuration: &kernel.configuration,
            undivided: kernel.undivided.as_ref().ok(),
            data,
            scale: self.scale,
        }
    }
}

/// Memory for comparing a kernel: its tensors, the outputs of two divided and two undivided runs, and both outputs in 64 bits.
pub fn compared(problem: &Problem) -> Bytes {
    problem.tensor_bytes() + Bytes::of(problem.output_len(), 4 * 4 + 2 * 8)
}

/// Runs each kernel's configuration and its undivided one, and compares both with 64-bit arithmetic. Under one total, also
/// runs the kernels that may run at the same time together, each in its allotted segment. The results are in `optimized`.
///
/// Calls `progress` with the index of each kernel before it runs.
///
/// # Errors
/// [`Error::Interrupted`] once `stop` is set; the errors of the backend.
pub fn verify(
    optimized: &mut Optimized,
    backend: &mut dyn Backend,
    check: &Check,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(usize, &OptimizedKernel),
) -> Result<(), Error> {
    let go_on = || if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
    for place in 0..optimized.kernels.len() {
        go_on()?;
        let data = check.data(optimized, place);
        let kernel = &mut optimized.kernels[place];
        progress(place, kernel);
        let seen = execute::verify(backend, &check.trial(kernel, &data), check.reference, check.outputs)?;
        kernel.verification = Some(seen);
    }
    if !matches!(optimized.limit, Limit::Total(_)) {
        return Ok(());
    }
    for group in optimized.groups.iter().filter(|group| group.len() > 1) {
        go_on()?;
        let data: Vec<Data> = group.iter().map(|&place| check.data(optimized, place)).collect();
        let kernels = group.iter().map(|&place| &optimized.kernels[place]);
        let trials: Vec<_> = kernels.zip(&data).map(|(kernel, data)| check.trial(kernel, data)).collect();
        let seen = verify_together(backend, group.clone(), &trials)?;
        optimized.overlapped.push(seen);
    }
    Ok(())
}

/// A sentence that names the results with larger differences than rounding explains; `None` without such results.
pub fn fault(optimized: &Optimized, values: Values) -> Option<String> {
    let named = |what: &str, faults: Vec<String>| {
        (!faults.is_empty()).then(|| format!("results differ too much from {what}: {}", faults.join(", ")))
    };
    named("the results of each kernel alone", apart(optimized))
        .or_else(|| named("64-bit arithmetic", wrong(optimized, values)))
}

/// Groups whose kernels have different results together than alone.
fn apart(optimized: &Optimized) -> Vec<String> {
    let groups = optimized.overlapped.iter().filter_map(|seen| {
        let kernels: Vec<_> = seen.kernels.iter().filter_map(|&place| optimized.kernels.get(place)).collect();
        let allowed = kernels.iter().map(|kernel| tolerance(&kernel.problem, &optimized.device)).fold(0.0, f64::max);
        let names = kernels.iter().map(|kernel| kernel.layer.as_str()).collect::<Vec<_>>().join(" with ");
        (seen.error > allowed).then(|| by(&names, seen.error, allowed))
    });
    groups.collect()
}

/// Kernels that are too far from 64-bit arithmetic, or from their undivided configuration.
fn wrong(optimized: &Optimized, values: Values) -> Vec<String> {
    let kernels = optimized.kernels.iter().filter_map(|kernel| {
        let seen = kernel.verification.as_ref()?;
        // Two results that are each within the tolerance may differ by twice that.
        let error = seen.error_reference.max(seen.error_undivided.unwrap_or(0.0) / 2.0);
        let allowed = if exact(kernel, values) { 0.0 } else { tolerance(&kernel.problem, &optimized.device) };
        (error > allowed).then(|| by(&format!("{} {}", kernel.layer, kernel.problem.operation()), error, allowed))
    });
    kernels.collect()
}

fn by(what: &str, error: f64, allowed: f64) -> String {
    format!("{what} by {error:.1e} (allowed: {allowed:.0e})")
}

/// Whether a kernel must be exact to the bit: whole numbers under algorithms that only multiply and add.
fn exact(kernel: &OptimizedKernel, values: Values) -> bool {
    let sums = ["direct", "implicit-gemm", "explicit-gemm"];
    let all = kernel.configuration.parts().iter().chain(kernel.undivided.iter().flat_map(|whole| whole.parts()));
    let mut plain = all.flat_map(|part| part.algorithm.plain());
    values == Values::Whole && plain.all(|algorithm| sums.contains(&algorithm.name()))
}

/// The tolerance of an output against 64-bit arithmetic, relative to the largest output.
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

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    /// The sample whose first kernel is this far from 64-bit arithmetic.
    fn off_by(error: f64) -> Optimized {
        let mut optimized = samples::verified();
        if let Some(seen) = &mut optimized.kernels[0].verification {
            (seen.error_reference, seen.error_undivided) = (error, None);
        }
        optimized
    }

    #[test]
    fn rounding_errors_are_no_fault() {
        assert_eq!(fault(&samples::verified(), Values::Real), None);
        assert_eq!(fault(&samples::alexnet(), Values::Real), None, "nothing was run");
    }

    #[test]
    fn a_result_that_is_too_far_off_is_named() {
        let optimized = off_by(0.5);
        let kernel = &optimized.kernels[0];
        let said = fault(&optimized, Values::Real).unwrap();
        let name = format!("{} {} by 5.0e-1", kernel.layer, kernel.problem.operation());
        assert!(said.starts_with(&format!("results differ too much from 64-bit arithmetic: {name}")), "{said}");
        // An infinite difference is named too.
        assert!(fault(&off_by(f64::INFINITY), Values::Real).unwrap().contains("by inf"));
    }

    #[test]
    fn results_that_differ_beside_others_are_named_first() {
        let mut optimized = off_by(0.5);
        let overlapped = execute::Overlapped {
            kernels: vec![0, 1],
            streams: 2,
            time: tightfit_units::Nanos(1),
            alone: tightfit_units::Nanos(1),
            workspace: Bytes(1),
            error: 0.25,
        };
        optimized.overlapped = vec![overlapped];
        let said = fault(&optimized, Values::Real).unwrap();
        assert!(said.starts_with("results differ too much from the results of each kernel alone: "), "{said}");
        assert!(said.contains(" with ") && said.contains("by 2.5e-1"), "{said}");
    }
}
