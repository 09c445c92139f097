//! `tightfit verify NETWORK`

use std::sync::atomic::Ordering;

use tightfit_core::Error;
use tightfit_core::execute::{Data, SAMPLED_OUTPUTS, Trial, verify};
use tightfit_core::profile::Scale;

use super::print_optimized;
use crate::failure::Failure;
use crate::options::{Common, VerifyOptions};
use crate::session::Session;
use crate::solve::Selected;

pub fn run(options: &VerifyOptions, common: &Common) -> Result<(), Failure> {
    let selected = Selected::new(&options.selection, common)?;
    let mut session = Session::open(common)?;
    let mut optimized = selected.optimize(&mut session, common, &options.sizes, options.bound.limit())?;
    let outputs = if options.full { usize::MAX } else { SAMPLED_OUTPUTS };
    let scale = Scale { alpha: options.alpha, beta: options.beta };
    let backend = session.backends[0].as_mut();
    for (place, kernel) in optimized.kernels.iter_mut().enumerate() {
        if session.stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted.into());
        }
        let data = Data::random(&kernel.problem, options.values, common.seed.wrapping_add(place as u64));
        let trial = Trial {
            problem: &kernel.problem,
            configuration: &kernel.configuration,
            undivided: kernel.undivided.as_ref(),
            data: &data,
            scale,
        };
        kernel.verification = Some(verify(backend, &trial, tightfit_cpu::reference, outputs)?);
    }
    print_optimized(&optimized, common.format)?;
    let tolerance = tolerance(common);
    let wrong: Vec<String> = optimized
        .kernels
        .iter()
        .filter(|kernel| kernel.verification.as_ref().is_some_and(|seen| seen.error_reference > tolerance))
        .map(|kernel| format!("{} {}", kernel.layer, kernel.problem.operation()))
        .collect();
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(Failure::Wrong(format!("off by more than {tolerance:e} from 64-bit arithmetic: {}", wrong.join(", "))))
    }
}

/// How far an output may be from 64-bit arithmetic, relative to the largest output.
///
/// About a hundred roundings of the arithmetic's unit: transforms (Winograd, FFT) lose more than sums do.
fn tolerance(common: &Common) -> f64 {
    use tightfit_core::Types;
    match common.types {
        Types::F32 => 1e-4,
        Types::Tf32 | Types::F16F32 => 5e-3,
        Types::Bf16 => 3e-2,
        Types::F16 => 5e-2,
    }
}
