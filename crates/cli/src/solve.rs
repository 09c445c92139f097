//! From a network's name to its optimized kernels: what `optimize` and `verify` share.

use std::collections::HashMap;
use std::time::Instant;

use tightfit_core::network::{Kernel, Network, distinct};
use tightfit_core::optimize::{self, Candidates, Limit, Policy, Scope, SearchOptions, Survey, points, survey};
use tightfit_core::report::{Optimized, OptimizedKernel, Profiling};
use tightfit_core::{Bytes, Configuration, Error, Nanos, Problem};

use crate::failure::Failure;
use crate::options::{Common, Selection, Sizes};
use crate::progress::Bar;
use crate::session::{Session, nothing_selected};

/// The kernels that the options select.
pub struct Selected {
    pub network: String,
    pub batch: Option<usize>,
    pub kernels: Vec<Kernel>,
}

impl Selected {
    /// # Errors
    /// Those of finding the network; unknown layer names are refused with the names there are.
    pub fn new(selection: &Selection, common: &Common) -> Result<Selected, Failure> {
        let network = Network::open(&selection.network)?;
        let mut kernels = network.kernels(selection.batch, &selection.operations, common.types, common.layout)?;
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
            return Err(Failure::Wrong(format!("{} has no convolutions to work on", network.name())));
        }
        Ok(Selected { network: network.name().to_owned(), batch: selection.batch, kernels })
    }

    /// Measures every distinct kernel, with a progress bar.
    ///
    /// # Errors
    /// As [`survey`].
    pub fn survey(
        &self,
        session: &mut Session,
        common: &Common,
        policy: Policy,
        limits: Vec<Bytes>,
        baseline: Option<Bytes>,
    ) -> Result<Survey, Failure> {
        let problems: Vec<Problem> = distinct(&self.kernels).into_iter().map(|(problem, _)| problem).collect();
        if let Some(cache) = &session.cache
            && let Err(error) = cache.keep_network(&self.network, self.batch.unwrap_or_default(), &self.kernels)
        {
            eprintln!("warning: the network's layers could not be kept: {error}");
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
        let bar = Bar::new();
        Ok(survey(&problems, &scope, &mut session.backends, &bar)?)
    }

    /// Measures and optimizes under `limit`.
    ///
    /// # Errors
    /// Those of measuring; [`Error::OverLimit`] and [`Error::OverTotal`] where it does not fit.
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
        let chosen = choose(&self.kernels, &found.candidates, limit)?;
        let replayed = session.device().backend == "replay";
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
            least_workspace: chosen.least,
        })
    }
}

struct Chosen {
    kernels: Vec<OptimizedKernel>,
    gap: f64,
    stop: Option<String>,
    least: Option<Bytes>,
}

fn choose(kernels: &[Kernel], candidates: &HashMap<Problem, Candidates>, limit: Limit) -> Result<Chosen, Error> {
    let none = Candidates { candidates: Vec::new(), cost: Default::default() };
    let of = |problem: &Problem| candidates.get(problem).unwrap_or(&none);
    // Under a total, "undivided" means that each kernel gets an equal share of it, as a framework without WD would give.
    let share = match limit {
        Limit::Total(total) => Bytes(total.0 / kernels.len().max(1) as u64),
        Limit::PerKernel(bytes) | Limit::One(bytes) => bytes,
    };
    let undivided = |problem: &Problem| optimize::undivided(problem, &of(problem).candidates, share);
    let optimized = |kernel: &Kernel, configuration: Configuration, front| OptimizedKernel {
        layer: kernel.layer.clone(),
        problem: kernel.problem,
        undivided: undivided(&kernel.problem),
        configuration,
        front,
        verification: None,
    };
    let mut fronts: HashMap<Problem, Vec<Configuration>> = HashMap::new();
    for (problem, _) in distinct(kernels) {
        let Candidates { candidates, cost } = of(&problem);
        fronts.insert(problem, optimize::front(&problem, candidates, limit.bytes(), *cost)?);
    }
    let Limit::Total(total) = limit else {
        let fastest = |kernel: &Kernel| {
            let front = &fronts[&kernel.problem];
            let last = front.last().cloned();
            let configuration = last.ok_or_else(|| Error::NotProfiled { problem: Box::new(kernel.problem) })?;
            Ok(optimized(kernel, configuration, Some(front.clone())))
        };
        let kernels = kernels.iter().map(fastest).collect::<Result<_, Error>>()?;
        return Ok(Chosen { kernels, gap: 0.0, stop: None, least: None });
    };
    let of_kernels: Vec<Vec<Configuration>> = kernels.iter().map(|kernel| fronts[&kernel.problem].clone()).collect();
    let least = of_kernels.iter().filter_map(|front| front.first()).map(Configuration::workspace).sum();
    let fronts: Vec<_> = of_kernels.iter().map(|front| points(front)).collect();
    let allotment = optimize::allot(&fronts, total, &SearchOptions::default())?;
    let chosen = kernels.iter().zip(of_kernels).zip(&allotment.choice);
    let kernels =
        chosen.map(|((kernel, front), &choice)| optimized(kernel, front[choice].clone(), Some(front))).collect();
    Ok(Chosen { kernels, gap: allotment.gap(), stop: Some(allotment.stop.to_string()), least: Some(least) })
}
