//! Running a network's configurations and comparing their results: the command's `verify`.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use tightfit_conv::Problem;
use tightfit_conv::backend::Scale;
use tightfit_conv::execute::SAMPLED_OUTPUTS;
use tightfit_network::distinct;
use tightfit_profile::answer::{self, Check};
use tightfit_report as report;
use tightfit_units::Error;

use crate::device::{self, Opened};
use crate::interrupt::interruptible;
use crate::solve::{self, picture};

/// Python's words for a comparison.
#[derive(FromPyObject)]
pub struct Words {
    #[pyo3(item)]
    full: bool,
    #[pyo3(item)]
    values: String,
    #[pyo3(item)]
    alpha: f32,
    #[pyo3(item)]
    beta: f32,
    #[pyo3(item)]
    seed: u64,
    #[pyo3(item)]
    on: device::Words,
}

/// The network's kernels, each with its configuration and its result, as the command's JSON; the picture that `optimize`
/// draws; and a sentence about results that differ too much.
#[pyfunction]
pub fn verify(py: Python<'_>, words: solve::Words, how: Words) -> PyResult<(String, String, Option<String>)> {
    interruptible(py, |stop| how.verify(&words, stop))
}

impl Words {
    fn verify(&self, words: &solve::Words, stop: &AtomicBool) -> Result<(String, String, Option<String>), Error> {
        let values = self.values.parse()?;
        let mut opened = self.on.open(None)?;
        // Reading a cache takes long, and only programs that ran are named there.
        let request = words.request(&[]).or_else(|error| match &opened.cache {
            Some(cache) => words.request(&cache.recordings()?),
            None => Err(error),
        })?;
        let kernels = request.selection.kernels()?;
        let problems: Vec<Problem> = distinct(&kernels).into_iter().map(|(problem, _)| problem).collect();
        let beside = problems.iter().map(answer::compared).max().unwrap_or_default();
        opened.check_memory(&problems, &request.scope(), beside, stop)?;
        let Opened { backends, cache, .. } = &mut opened;
        let mut optimized = answer::optimize(&request, backends, &Opened::env(cache, stop))?;
        let check = Check {
            outputs: if self.full { usize::MAX } else { SAMPLED_OUTPUTS },
            values,
            scale: Scale { alpha: self.alpha, beta: self.beta },
            seed: self.seed,
            reference: tightfit_cpu::reference,
        };
        answer::verify(&mut optimized, backends[0].as_mut(), &check, stop, &mut |_, _| ())?;
        let fault = answer::fault(&optimized, values);
        Ok((report::json(&optimized), picture(&optimized), fault))
    }
}
