//! Sections of a schedule: consecutive computations of the branches of one fork, each with its lane.

use tightfit_units::Nanos;

use crate::memory::arena::Drafter;
use crate::search::lanes::branches::Branches;
use crate::{Action, Schedule, Stream};

/// Consecutive computations of the branches of one fork.
#[derive(Debug)]
pub(crate) struct Section {
    /// The position of each computation in the list, and its stream.
    pub(crate) computes: Vec<(usize, Stream)>,
    /// About the time that it saves.
    pub(crate) saves: Nanos,
}

impl Section {
    /// The position of its last computation.
    pub(crate) fn last(&self) -> usize {
        self.computes.last().map_or(0, |(place, _)| *place)
    }

    /// The lanes that it uses in addition to the compute stream.
    pub(crate) fn beside(&self) -> impl Iterator<Item = Stream> + '_ {
        let uses = |stream: &Stream| self.computes.iter().any(|(_, own)| own == stream);
        Stream::LANES.into_iter().filter(|stream| *stream != Stream::Compute).filter(uses)
    }
}

/// A computation of a branch.
struct Member {
    place: usize,
    branch: usize,
    time: Nanos,
}

/// The sections of a schedule that save more than their waits take.
pub(crate) fn sections(drafter: &Drafter<'_>, schedule: &Schedule, branches: &Branches) -> Vec<Section> {
    let mut found = Vec::new();
    let mut members: Vec<Member> = Vec::new();
    let mut fork = None;
    for (place, instruction) in schedule.instructions.iter().enumerate() {
        let Action::Compute(compute) = &instruction.action else { continue };
        let branch = branches.get(drafter.step.operation(compute.operation).group);
        if branch.map(|branch| branch.fork) != fork {
            found.extend(section(drafter, std::mem::take(&mut members)));
            fork = branch.map(|branch| branch.fork);
        }
        if let Some(branch) = branch {
            let time = drafter.step.time(compute, drafter.costs.launch);
            members.push(Member { place, branch: branch.number, time });
        }
    }
    found.extend(section(drafter, members));
    found
}

/// The fewest branches of a section. With two branches, the longer one runs alone most of the time. The projections of ResNet-50 gained 0.9% on an
/// H200, and plans with lanes have no known distance from the bound.
const FEWEST_BRANCHES: usize = 3;

/// A section of these computations; `None` if it has too few branches or saves too little.
fn section(drafter: &Drafter<'_>, members: Vec<Member>) -> Option<Section> {
    let mut branches: Vec<(usize, Nanos)> = Vec::new();
    for member in &members {
        match branches.iter_mut().find(|(branch, _)| *branch == member.branch) {
            Some((_, time)) => *time = *time + member.time,
            None => branches.push((member.branch, member.time)),
        }
    }
    if branches.len() < FEWEST_BRANCHES {
        return None;
    }
    // The longest branch comes first, and each goes to the lane with the least work.
    branches.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
    let mut loads = Stream::LANES.map(|stream| (stream, Nanos::ZERO));
    let mut lanes: Vec<(usize, Stream)> = Vec::new();
    for (branch, time) in branches {
        let (stream, load) = loads.iter_mut().min_by_key(|(_, load)| *load)?;
        *load = *load + time;
        lanes.push((branch, *stream));
    }
    loads.sort_by_key(|(_, load)| std::cmp::Reverse(*load));
    let all: Nanos = loads.iter().map(|(_, load)| *load).sum();
    // The longest lane runs its excess over the second longest alone.
    let together = all - (loads[0].1 - loads[1].1);
    let saves = Nanos((together.0 as f64 * (1.0 - 1.0 / drafter.costs.side_by_side)) as u64);
    // A wait at the fork and one at the join for each lane.
    let waits = 2 * loads.iter().skip(1).filter(|(_, load)| *load > Nanos::ZERO).count();
    let stream = |branch: usize| lanes.iter().find(|(own, _)| *own == branch).map(|(_, stream)| *stream);
    let computes = members.iter().filter_map(|member| Some((member.place, stream(member.branch)?))).collect();
    (saves > drafter.costs.launch * waits as u64).then_some(Section { computes, saves })
}
