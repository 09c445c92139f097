//! Turns a script into a schedule with offsets: picks the convolutions' configurations and finds room for their
//! workspaces.
//!
//! ```text
//! memory       least workspace for each convolution; all blocks placed together
//! performance  fastest configuration for each convolution; all blocks placed together
//! fit          as performance, if that fits; otherwise as memory, then each convolution gets the fastest configuration
//!              whose workspace fits the largest free range at its step
//! ```

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tightfit_conv::Configuration;
use tightfit_place::{Effort, is_tight, largest_gap, most_live, place, place_below};
use tightfit_units::{Bytes, Error, Nanos};

use crate::schedule::lives::Lives;
use crate::schedule::parts::{Stretch, stretches};
use crate::schedule::script::Script;
use crate::schedule::write::write;
use crate::step::{Cost, Lifetimes, Residence, Step};
use crate::stop::{End, Stop};
use crate::{ALIGNMENT, Action, Algorithms, Attempt, CostModel, Holding, Options, Policy, Schedule, footprint};

/// The last eighth of the planning time is left for the final placement, the checks and the simulation.
const AFTER_SEARCH_DIVISOR: u64 = 8;

/// A schedule with offsets, and its sizes.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) schedule: Schedule,
    /// Size of the device arena.
    pub(crate) peak: Bytes,
    pub(crate) most_live: Bytes,
    /// Size of the host arena.
    pub(crate) host: Bytes,
    /// The effort of its offset search.
    effort: Effort,
}

impl Draft {
    pub(crate) fn fits(&self, options: &Options) -> bool {
        self.peak <= options.budget && self.host <= options.host_budget
    }

    /// Whether its arena is hardly larger than its peak of live bytes.
    pub(crate) fn is_tight(&self) -> bool {
        is_tight(self.peak.0, self.most_live.0)
    }

    /// The log entry for this attempt.
    pub(crate) fn attempt(&self, name: &str, options: &Options) -> Attempt {
        Attempt {
            attempt: name.to_owned(),
            needed: self.peak,
            host: self.host,
            fits: self.fits(options),
            time: None,
            taken: false,
        }
    }
}

/// Context shared by all drafts of one plan.
pub(crate) struct Drafter<'a> {
    pub(crate) step: &'a Step,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) costs: &'a CostModel,
    pub(crate) options: Options,
    /// When planning is to end.
    pub(crate) end: End<'a>,
    /// For each operation: the configurations to choose from, if it is a convolution.
    fronts: Vec<Option<&'a [Configuration]>>,
    stretches: OnceLock<Vec<Stretch>>,
}

impl<'a> Drafter<'a> {
    /// # Errors
    /// [`Error::NotProfiled`] for an operation without a configuration; the errors of [`Step::check`].
    pub(crate) fn new(
        step: &'a Step,
        costs: &'a CostModel,
        options: Options,
        stop: Stop<'a>,
    ) -> Result<Drafter<'a>, Error> {
        let time = options.plan_time.filter(|_| options.policy == Policy::Optimal);
        let searching = time.map(|time| Duration::from_nanos(time.0 - time.0 / AFTER_SEARCH_DIVISOR));
        let end = End::new(stop, searching.and_then(|time| Instant::now().checked_add(time)));
        Drafter::until(step, costs, options, end)
    }

    /// Like [`Drafter::new`], with the deadline of another step's planning.
    pub(crate) fn until(
        step: &'a Step,
        costs: &'a CostModel,
        options: Options,
        end: End<'a>,
    ) -> Result<Drafter<'a>, Error> {
        step.check()?;
        let fronts = step.operations.iter().map(|operation| match &operation.cost {
            Cost::Choice(front) => front.choices(options.division()).map(Some),
            Cost::Listed(choices) if choices.is_empty() => Err(Error::BadStep {
                step: step.name.clone(),
                operation: operation.name.clone(),
                what: "has no choices".to_owned(),
            }),
            Cost::Listed(choices) => Ok(Some(&**choices)),
            Cost::Fixed(_) => Ok(None),
        });
        let fronts = fronts.collect::<Result<_, Error>>()?;
        Ok(Drafter { step, lifetimes: Lifetimes::of(step), costs, options, end, fronts, stretches: OnceLock::new() })
    }

    /// The schedule of a script with these algorithms; [`Algorithms::Fit`] uses the memory that the budget leaves free.
    pub(crate) fn draft(&self, script: &Script, algorithms: Algorithms, effort: Effort) -> Draft {
        match algorithms {
            Algorithms::Memory => self.placed(script, &self.chosen(|front| front.first()), effort),
            Algorithms::Performance => self.placed(script, &self.chosen(|front| front.last()), effort),
            Algorithms::Fit => self.fitted(script, effort),
        }
    }

    fn chosen(
        &self,
        choice: impl Fn(&'a [Configuration]) -> Option<&'a Configuration>,
    ) -> Vec<Option<&'a Configuration>> {
        self.fronts.iter().map(|front| front.and_then(&choice)).collect()
    }

    /// The stretches of the step that may run in parts.
    pub(crate) fn stretches(&self) -> &[Stretch] {
        self.stretches.get_or_init(|| stretches(self.step))
    }

    /// The configurations of an operation, by rising workspace; `None` without a choice.
    pub(crate) fn all_choices(&self, at: usize) -> Option<&'a [Configuration]> {
        self.fronts[at]
    }

    /// The configurations that an operation may use under the options, by rising workspace; `None` without a choice.
    pub(crate) fn choices(&self, at: usize) -> Option<&'a [Configuration]> {
        let front = self.fronts[at]?;
        Some(match self.options.algorithms {
            Algorithms::Memory => &front[..1],
            Algorithms::Performance => &front[front.len() - 1..],
            Algorithms::Fit => front,
        })
    }

    /// The schedule of a script with the given one of each operation's [`Drafter::choices`].
    pub(crate) fn draft_with(&self, script: &Script, chosen: &[usize], effort: Effort, end: End<'_>) -> Draft {
        let configuration = |(at, place): (usize, &usize)| self.choices(at).and_then(|choices| choices.get(*place));
        let configurations: Vec<_> = chosen.iter().enumerate().map(configuration).collect();
        self.place(write(self.step, &self.lifetimes, script, &configurations), effort, end)
    }

    /// Every operation's time with the fastest algorithms.
    pub(crate) fn fastest_times(&self) -> Vec<Nanos> {
        let time = |(operation, front): (&crate::step::Operation, &Option<&'a [Configuration]>)| {
            operation.cost.time(front.and_then(|front| front.last()))
        };
        self.step.operations.iter().zip(&self.fronts).map(time).collect()
    }

    /// The time of all operations with the fastest algorithms.
    pub(crate) fn fastest(&self) -> Nanos {
        self.fastest_times().into_iter().sum()
    }

    /// For each operation: live bytes if nothing moves, with the least workspace.
    pub(crate) fn live(&self) -> Vec<u64> {
        let least = |front: &Option<&'a [Configuration]>| {
            front.and_then(|front| front.first()).map_or(0, |least| footprint(least.workspace().0))
        };
        let mut live: Vec<u64> = self.fronts.iter().map(least).collect();
        for (id, tensor) in self.step.tensors.iter().enumerate() {
            let Some(lifetime) = self.lifetimes.get(crate::step::TensorId(id)) else { continue };
            let there = match tensor.residence {
                Residence::Resident => 0..live.len(),
                Residence::Movable | Residence::Temporary => lifetime.first..lifetime.last + 1,
            };
            live[there].iter_mut().for_each(|live| *live += footprint(tensor.bytes.0));
        }
        live
    }

    /// The schedule with these configurations, with all blocks placed together.
    fn placed(&self, script: &Script, configurations: &[Option<&Configuration>], effort: Effort) -> Draft {
        self.place(write(self.step, &self.lifetimes, script, configurations), effort, self.end)
    }

    /// A schedule with all blocks placed together. [`Effort::Plan`] searches harder if only a tighter placement can make it fit.
    pub(crate) fn place(&self, schedule: Schedule, effort: Effort, end: End<'_>) -> Draft {
        let lives = Lives::of(&schedule);
        let found = place(&lives.blocks, Effort::Draft, &|| end.is_over());
        let draft = self.finished(schedule, &found.offsets, &lives, Effort::Draft);
        let may_fit = (draft.most_live..draft.peak).contains(&self.options.budget);
        if !may_fit || effort == Effort::Draft {
            return draft;
        }
        // The searching policy has other plans.
        let effort = if self.options.policy == Policy::Optimal { Effort::Bound } else { Effort::Plan };
        let found = place_below(&lives.blocks, self.options.budget.0, effort, &|| end.is_over());
        if found.height >= draft.peak.0 {
            return Draft { effort: Effort::Plan, ..draft };
        }
        self.finished(draft.schedule, &found.offsets, &lives, Effort::Plan)
    }

    /// A schedule that already has its offsets, as a draft.
    pub(crate) fn drafted(&self, schedule: Schedule) -> Draft {
        let most_live = Bytes(most_live(&Lives::of(&schedule).blocks));
        let (peak, host) = (schedule.device_bytes, schedule.host_bytes);
        Draft { schedule, peak, most_live, host, effort: Effort::Plan }
    }

    /// Sets the block offsets of a schedule and places its host arena.
    fn finished(&self, mut schedule: Schedule, offsets: &[u64], lives: &Lives, effort: Effort) -> Draft {
        let host = place(&lives.host_blocks, Effort::Draft, &|| self.end.is_over());
        let ends = lives.blocks.iter().zip(offsets).map(|(life, offset)| offset + life.bytes);
        let peak = Bytes(ends.max().unwrap_or(0));
        schedule.blocks.iter_mut().zip(offsets).for_each(|(block, offset)| block.offset = *offset);
        schedule.host_blocks.iter_mut().zip(&host.offsets).for_each(|(block, offset)| block.offset = *offset);
        (schedule.device_bytes, schedule.host_bytes) = (peak, Bytes(host.height));
        let most_live = Bytes(most_live(&lives.blocks));
        Draft { schedule, peak, most_live, host: Bytes(host.height), effort }
    }

    /// The same schedule with a tighter placement, if its current offsets waste much.
    pub(crate) fn tightened(&self, draft: Draft, effort: Effort, end: End<'_>) -> Draft {
        if draft.is_tight() || draft.effort == Effort::Plan {
            return draft;
        }
        let lives = Lives::of(&draft.schedule);
        let found = place(&lives.blocks, effort, &|| end.is_over());
        // A placement around workspaces in the free ranges of another can be tighter than any search finds.
        if found.height >= draft.peak.0 {
            return Draft { effort: Effort::Plan, ..draft };
        }
        self.finished(draft.schedule, &found.offsets, &lives, Effort::Plan)
    }

    /// Picks for each convolution the fastest configuration whose workspace fits the largest free range at its step, unless the fastest
    /// configurations all fit.
    ///
    /// Workspaces are never live together, so each choice is independent.
    fn fitted(&self, script: &Script, effort: Effort) -> Draft {
        let budget = self.options.budget;
        let fastest = self.placed(script, &self.chosen(|front| front.last()), effort);
        if fastest.peak <= budget {
            return fastest;
        }
        let least = self.placed(script, &self.chosen(|front| front.first()), effort);
        if least.peak > budget {
            return least;
        }
        let lives = Lives::of(&least.schedule);
        let offsets: Vec<u64> = least.schedule.blocks.iter().map(|block| block.offset).collect();
        let mut configurations = self.chosen(|front| front.first());
        // For each run of an operation with a choice: the operation, and the largest free range at that time.
        let mut rooms: Vec<(usize, u64)> = Vec::new();
        let mut least_room: Vec<u64> = vec![u64::MAX; configurations.len()];
        for (place, moment) in &lives.computes {
            let Action::Compute(compute) = &least.schedule.instructions[*place].action else { continue };
            let at = compute.operation.0;
            if self.fronts[at].is_none() {
                continue;
            }
            let own = compute.workspace.map(|block| block.0);
            let (offset, room) = largest_gap(&lives.blocks, &offsets, moment, own, budget.0 / ALIGNMENT * ALIGNMENT);
            rooms.push((at, offset));
            // A rerun needs the same configuration for equal bits.
            least_room[at] = least_room[at].min(room);
        }
        for (at, room) in least_room.into_iter().enumerate() {
            let Some(front) = self.fronts[at] else { continue };
            let fastest = front.iter().rfind(|configuration| configuration.workspace().0 <= room);
            configurations[at] = fastest.or(configurations[at]);
        }
        let has_scratch = |at: usize| configurations[at].is_some_and(|chosen| chosen.workspace() > Bytes::ZERO);
        let gaps: Vec<u64> = rooms.into_iter().filter(|(at, _)| has_scratch(*at)).map(|(_, offset)| offset).collect();
        // Try placing everything together: the first placement did not know the workspaces.
        let together = self.placed(script, &configurations, effort);
        if together.peak <= budget && together.is_tight() {
            return together;
        }
        let schedule = write(self.step, &self.lifetimes, script, &configurations);
        let lives = Lives::of(&schedule);
        let is_scratch = |holds| matches!(holds, Holding::Workspace(_));
        let mut kept = least.schedule.blocks.iter().filter(|block| !is_scratch(block.holds)).map(|block| block.offset);
        let mut gaps = gaps.into_iter();
        let offset = |holds| if is_scratch(holds) { gaps.next() } else { kept.next() };
        let offsets: Option<Vec<u64>> = schedule.blocks.iter().map(|block| block.holds).map(offset).collect();
        let apart = offsets.map(|offsets| self.finished(schedule, &offsets, &lives, Effort::Draft));
        [Some(together), apart, Some(least.clone())]
            .into_iter()
            .flatten()
            .filter(|draft| draft.peak <= budget)
            .min_by_key(|draft| (self.compute_time(draft), draft.peak))
            .unwrap_or(least)
    }

    /// Total computation time of a draft.
    fn compute_time(&self, draft: &Draft) -> Nanos {
        let time = |action: &Action| match action {
            Action::Compute(compute) => self.step.time(compute, self.costs.launch),
            _ => Nanos::ZERO,
        };
        draft.schedule.instructions.iter().map(|instruction| time(&instruction.action)).sum()
    }

    /// The layer at which the most bytes of a draft are live.
    pub(crate) fn binding_layer(&self, draft: &Draft) -> String {
        let mut live = 0;
        let mut most = (0, None);
        let blocks = &draft.schedule.blocks;
        for instruction in &draft.schedule.instructions {
            match &instruction.action {
                Action::Allocate(block) => live += blocks[block.0].bytes,
                Action::Release(block) => live -= blocks[block.0].bytes,
                Action::Compute(compute) if live > most.0 || most.1.is_none() => {
                    most = (live, Some(compute.operation));
                }
                _ => {}
            }
        }
        most.1.map_or_else(String::new, |operation| self.step.group_name(operation).to_owned())
    }
}
