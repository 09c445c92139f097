//! The journey from a network to the configuration of each of its convolutions.
//!
//! ```text
//! Request -> kernels -> profile: what the cache knows, or the backends measure -> choose: WR, WD, one workspace -> Optimized
//! ```

use std::time::Instant;

use super::choose::{Chosen, choose};
use super::{Optimized, Profiling, profile};
use crate::candidate::Limit;
use crate::network::Selection;
use crate::survey::{Env, Scope, Sizes};
use crate::{Backend, Error, Nanos};

/// What to optimize, and under which limit.
///
/// [`Request::new`] fills in the defaults; change the fields to differ from them.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Which convolutions.
    pub selection: Selection,
    /// What bounds the workspace.
    pub limit: Limit,
    /// Which micro-batch sizes may be used.
    pub sizes: Sizes,
    /// Also measure every algorithm on the whole mini-batch, so that "undivided" is the best there is, and dividing never
    /// loses to it; otherwise undivided is the best of what `sizes` asks for.
    pub baseline: bool,
    /// Only algorithms that give the same bits every time.
    pub deterministic: bool,
    /// Only algorithms of the numerical class of the best undivided one.
    pub exact_class: bool,
}

impl Request {
    /// All algorithms, the sizes of [`Sizes::Fit`], and the baseline.
    pub fn new(selection: Selection, limit: Limit) -> Request {
        let (baseline, deterministic, exact_class) = (true, false, false);
        Request { selection, limit, sizes: Sizes::default(), baseline, deterministic, exact_class }
    }

    /// What has to be measured.
    pub fn scope(&self) -> Scope {
        Scope {
            sizes: self.sizes,
            limits: self.limit.ladder(),
            baseline: self.baseline.then_some(self.limit.bytes()),
            deterministic: self.deterministic,
            exact_class: self.exact_class,
        }
    }
}

/// Measures the selected convolutions and chooses a configuration for each, under one limit.
///
/// The devices behind `backends` must be of one kind: they share the work.
///
/// - Cost: the measurements that the cache lacks; a front for each distinct problem; with a total an allotment besides.
/// - Source: Oyama et al. 2018, III.B (WR) and III.C (WD).
///
/// The [crate's first page](crate) has an example.
///
/// # Errors
/// [`Error::OverLimit`] or [`Error::OverTotal`] with the least workspace that would do; those of
/// [`profile`]. What was measured is in the cache.
///
/// # Panics
/// If `backends` is empty.
pub fn optimize(request: &Request, backends: &mut [Box<dyn Backend>], env: &Env<'_>) -> Result<Optimized, Error> {
    let started = Instant::now();
    let Request { selection, limit, sizes, .. } = request;
    let kernels = selection.kernels()?;
    let found = profile(selection, &request.scope(), backends, env)?;
    env.progress.choosing();
    let Chosen { kernels: chosen, gap, stop, least_workspace } = choose(&kernels, &found.candidates, *limit)?;
    let device = backends[0].device().clone();
    let time = if backends[0].is_replay() { found.spent.time } else { Nanos::from(started.elapsed()) };
    Ok(Optimized {
        network: selection.network.name().to_owned(),
        batch: selection.batch,
        device,
        types: selection.types,
        layout: selection.layout,
        sizes: *sizes,
        limit: *limit,
        groups: selection.network.concurrent(&kernels),
        kernels: chosen,
        gap,
        stop,
        profiling: Profiling { time, spent: found.spent },
        least_workspace,
        overlapped: Vec::new(),
    })
}
