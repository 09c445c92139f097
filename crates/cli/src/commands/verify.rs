//! `tightfit verify NETWORK`

use tightfit_conv::backend::Scale;
use tightfit_conv::execute::SAMPLED_OUTPUTS;
use tightfit_profile::answer::{self, Check};

use super::print_optimized;
use crate::failure::Failure;
use crate::options::{Common, VerifyOptions};
use crate::progress::Bar;
use crate::session::Session;
use crate::solve::{optimize, request};

pub fn run(options: &VerifyOptions, common: &Common) -> Result<(), Failure> {
    let mut request = request(&options.request, common)?;
    let beside = request.selection.kernels()?.iter().map(|kernel| answer::compared(&kernel.problem)).max();
    let mut session = Session::open(common)?;
    request.divide = options.request.divide.get();
    let mut optimized = optimize(&request, beside.unwrap_or_default(), &mut session, common)?;
    let check = Check {
        outputs: if options.full { usize::MAX } else { SAMPLED_OUTPUTS },
        values: options.values,
        scale: Scale { alpha: options.alpha, beta: options.beta },
        seed: common.seed,
        reference: tightfit_cpu::reference,
    };
    let (bar, of) = (Bar::new("verifying", None), optimized.kernels.len());
    answer::verify(&mut optimized, session.backends[0].as_mut(), &check, &session.stop, &mut |place, kernel| {
        let what = format!("verified {place} of {of} kernels, {} {}", kernel.layer, kernel.problem.operation());
        bar.set(what, place as f64 / of as f64);
    })?;
    drop(bar);
    print_optimized(&optimized, common.format)?;
    answer::fault(&optimized, options.values).map_or(Ok(()), |fault| Err(Failure::Wrong(fault)))
}
