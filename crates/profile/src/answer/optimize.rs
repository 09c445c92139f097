//! `optimize`: from a network to a configuration for each of its convolutions.
//!
//! ```text
//! Request -> kernels -> profile: from the cache, or measured -> choose: WR, WD, one workspace -> Optimized
//! ```

use std::collections::HashMap;
use std::time::Instant;

use tightfit_conv::Backend;
use tightfit_conv::candidate::Limit;
use tightfit_units::{Error, Nanos};

use super::choose::{Choice, choose};
use super::{Optimized, Profiling, profile};
use crate::survey::{Divide, Env, Scope, Sizes};
use crate::{Admission, Selection};

/// The kernels to optimize, and the limit.
///
/// [`Request::new`] fills in the defaults; change the fields to differ from them.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The convolutions.
    pub selection: Selection,
    /// The workspace limit.
    pub limit: Limit,
    /// The allowed micro-batch sizes.
    pub sizes: Sizes,
    /// Along what convolutions are divided.
    pub divide: Divide,
    /// Also measure every algorithm on the whole mini-batch, so that "undivided" is the best possible and dividing
    /// never loses to it. Otherwise, undivided is the best among `sizes`.
    pub baseline: bool,
    /// Use only deterministic algorithms.
    pub deterministic: bool,
    /// Use only algorithms in the numerical class of the best undivided one.
    pub exact_class: bool,
}

impl Request {
    /// The default request: all algorithms, the sizes of [`Sizes::Fit`], divided along batch and
    /// space, and the baseline.
    pub fn new(selection: Selection, limit: Limit) -> Request {
        let (baseline, deterministic, exact_class) = (true, false, false);
        let (sizes, divide) = (Sizes::default(), Divide::default());
        Request { selection, limit, sizes, divide, baseline, deterministic, exact_class }
    }

    /// The scope of the survey.
    pub fn scope(&self) -> Scope {
        Scope {
            sizes: self.sizes,
            divide: self.divide,
            limits: self.limit.ladder(),
            parts: HashMap::new(),
            baseline: self.baseline.then_some(self.limit.bytes()),
            deterministic: self.deterministic,
            exact_class: self.exact_class,
        }
    }
}

/// Measures the selected convolutions and chooses a configuration for each, under one limit.
///
/// The backends share the work, so their devices must be of the same model.
///
/// - Cost: measurements missing from the cache; one front per distinct problem; with a total, also an allotment.
/// - Source: Oyama et al. 2018, III.B (WR) and III.C (WD).
///
/// See the [crate documentation](crate) for an example.
///
/// # Errors
/// [`Error::OverLimit`] or [`Error::OverTotal`] with the least workspace that would fit; the errors of [`profile`].
/// Completed measurements are in the cache.
///
/// # Panics
/// If `backends` is empty.
pub fn optimize(request: &Request, backends: &mut [Box<dyn Backend>], env: &Env<'_>) -> Result<Optimized, Error> {
    let started = Instant::now();
    let Request { selection, limit, sizes, divide, .. } = request;
    let kernels = selection.kernels()?;
    let found = profile(selection, &request.scope(), backends, env)?;
    env.progress.choosing();
    let admission = Admission { deterministic: request.deterministic, ..Admission::default() };
    let Choice { kernels: chosen, gap, stop, least_workspace } =
        choose(&kernels, &found.candidates, *limit, admission, backends[0].as_mut())?;
    let device = backends[0].device().clone();
    let time = if backends[0].is_replay() { found.spent.time } else { Nanos::from(started.elapsed()) };
    Ok(Optimized {
        network: selection.model.name().to_owned(),
        batch: selection.batch,
        device,
        types: selection.types,
        layout: selection.layout,
        sizes: *sizes,
        divide: *divide,
        limit: *limit,
        groups: selection.model.concurrent(&kernels),
        kernels: chosen,
        gap,
        stop,
        profiling: Profiling { time, spent: found.spent },
        least_workspace,
        overlapped: Vec::new(),
    })
}
