//! From a network's name to its optimized kernels: shared by `optimize` and `verify`.

use std::time::Instant;

use tightfit_core::answer::choose;
use tightfit_core::answer::{Optimized, Profiling};
use tightfit_core::candidate::Limit;
use tightfit_core::network::{Kernel, Network, distinct};
use tightfit_core::survey::{Policy, Scope, Survey, survey};
use tightfit_core::{Bytes, Nanos, Operation, Problem};

use crate::estimate::{Work, foresee};
use crate::failure::Failure;
use crate::message;
use crate::options::{Common, Selection, Sizes};
use crate::progress::{Bar, Measuring};
use crate::session::{Session, nothing_selected};

/// The kernels that the options select.
pub struct Selected {
    pub network: String,
    pub batch: Option<usize>,
    pub kernels: Vec<Kernel>,
    /// Which of them may run concurrently.
    pub groups: Vec<Vec<usize>>,
    /// Memory that the command takes in addition to its measuring buffers.
    pub beside: Bytes,
    /// Whether these are all kernels of the network, so that its layers are worth saving.
    whole: bool,
}

impl Selected {
    /// # Errors
    /// Those of finding the network; for an unknown layer, an error that lists the known ones.
    pub fn new(selection: &Selection, common: &Common) -> Result<Selected, Failure> {
        let network = Network::open(&selection.network)?;
        let mut operations = selection.operations.clone();
        operations.sort();
        operations.dedup();
        let mut kernels = network.kernels(selection.batch, &operations, common.types, common.layout)?;
        let whole = selection.layers.is_empty() && operations == Operation::ALL;
        for name in &selection.layers {
            if !kernels.iter().any(|kernel| kernel.layer == *name) {
                let mut known: Vec<String> = kernels.into_iter().map(|kernel| kernel.layer).collect();
                known.dedup();
                return Err(nothing_selected(name, known));
            }
        }
        if !selection.layers.is_empty() {
            kernels.retain(|kernel| selection.layers.contains(&kernel.layer));
        }
        if kernels.is_empty() {
            return Err(Failure::Wrong(format!("{} has no matching convolutions", network.name())));
        }
        let groups = network.concurrent(&kernels);
        Ok(Selected {
            network: network.name().to_owned(),
            batch: selection.batch,
            kernels,
            groups,
            beside: Bytes::ZERO,
            whole,
        })
    }

    /// Measures every distinct kernel, with a progress bar.
    ///
    /// # Errors
    /// As [`foresee`] and [`survey`].
    pub fn survey(
        &self,
        session: &mut Session,
        common: &Common,
        policy: Policy,
        limits: Vec<Bytes>,
        baseline: Option<Bytes>,
    ) -> Result<Survey, Failure> {
        let problems: Vec<Problem> = distinct(&self.kernels).into_iter().map(|(problem, _)| problem).collect();
        if let Some(cache) = session.cache.as_ref().filter(|_| self.whole)
            && let Err(error) = cache.keep_network(&self.network, self.batch, &self.kernels)
        {
            message::warn(format_args!("could not save the network's layers: {error}"));
        }
        let scope = Scope {
            policy,
            limits,
            baseline,
            deterministic: common.deterministic,
            exact_class: common.exact_class,
            cache: session.cache.as_ref(),
            stop: &session.stop,
        };
        let work = Work {
            network: &self.network,
            problems: &problems,
            beside: self.beside,
            choices: "use a smaller --batch or limit to measure less, or --backend replay:FILE to measure nothing",
        };
        let expected = foresee(&work, &scope, session.backends[0].as_mut())?;
        let bar = Measuring::new(&self.kernels, expected);
        Ok(survey(&problems, &scope, &mut session.backends, &bar)?)
    }

    /// Measures and optimizes under `limit`.
    ///
    /// # Errors
    /// Those of measuring; those of [`choose`] if nothing fits.
    pub fn optimize(
        &self,
        session: &mut Session,
        common: &Common,
        sizes: &Sizes,
        limit: Limit,
    ) -> Result<Optimized, Failure> {
        let started = Instant::now();
        let policy = sizes.policy;
        let baseline = Some(limit.bytes()).filter(|_| !sizes.no_baseline);
        let found = self.survey(session, common, policy, limit.ladder(), baseline)?;
        crate::session::tell_of(&found.spent, common);
        let bar = Bar::new(format!("searching the configurations of {}", self.network), None);
        let chosen = choose(&self.kernels, &found.candidates, limit)?;
        drop(bar);
        let replayed = session.backends[0].is_replay();
        Ok(Optimized {
            network: self.network.clone(),
            batch: self.batch,
            device: session.device().clone(),
            types: common.types,
            layout: common.layout,
            policy: policy.name().to_owned(),
            limit,
            kernels: chosen.kernels,
            gap: chosen.gap,
            stop: chosen.stop,
            profiling: Profiling {
                time: if replayed { found.spent.time } else { Nanos::from(started.elapsed()) },
                kernel_time: found.spent.kernel_time,
                measurements: found.spent.measured + found.spent.cached,
            },
            least_workspace: chosen.least_workspace,
            groups: self.groups.clone(),
            overlapped: Vec::new(),
        })
    }
}
