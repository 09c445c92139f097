//! Checks every answer of this module independently.
//!
//! It shares no code with the solvers and is deliberately simple: it recomputes sums in 128 bits and compares points pair by pair. An empty list of
//! violations means that the answer is valid. Optimality is checked only where that is possible without a search.

use tightfit_units::{Bytes, Nanos};

use super::{Allotment, Split, Stop};
use crate::{Candidate, Configuration, DivisionCost, Problem};

/// A fault in an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// A micro-batch is not among the candidates.
    NotACandidate {
        /// Index of the part.
        part: usize,
    },
    /// The parts do not add up to the mini-batch.
    Samples {
        /// The actual sum.
        found: usize,
        /// The expected sum.
        expected: usize,
    },
    /// The workspace exceeds the limit.
    OverLimit {
        /// The workspace in use.
        used: Bytes,
        /// The limit.
        limit: Bytes,
    },
    /// The cost of dividing is wrong, or counted although nothing is divided.
    Cost {
        /// The counted cost.
        found: DivisionCost,
        /// The expected cost.
        expected: DivisionCost,
    },
    /// The stated time is not the sum of the parts.
    Time {
        /// The stated value.
        stated: Nanos,
        /// The actual sum.
        actual: Nanos,
    },
    /// The stated workspace is not the workspace of the parts.
    Workspace {
        /// The stated value.
        stated: Bytes,
        /// The actual workspace.
        actual: Bytes,
    },
    /// A point of a front is dominated by, or equal to, another one.
    Dominated {
        /// The worse point.
        point: usize,
        /// The point that beats or equals it.
        by: usize,
    },
    /// A point of a front precedes one with less workspace.
    Order {
        /// The first of the two.
        point: usize,
    },
    /// A front lacks a point: equal micro-batches of one candidate beat all its points.
    Missed {
        /// The candidate.
        candidate: usize,
    },
    /// The number of choices differs from the number of kernels, or the number of batches from the number of devices.
    Count {
        /// The actual number.
        found: usize,
        /// The expected number.
        expected: usize,
    },
    /// A kernel's choice is out of range.
    NoSuchPoint {
        /// The kernel.
        kernel: usize,
        /// The invalid index.
        point: usize,
    },
    /// The bound is above the answer, or below an answer that is marked as proven.
    Bound {
        /// The bound.
        bound: Nanos,
        /// The time of the answer.
        time: Nanos,
    },
    /// Changing one kernel within the total makes an answer faster that is marked as proven.
    Improvable {
        /// The kernel.
        kernel: usize,
        /// The point that would be faster.
        point: usize,
    },
    /// A device gets a batch for which it has no measurement.
    NoSuchBatch {
        /// The device.
        device: usize,
        /// The invalid batch.
        batch: usize,
    },
}

/// Checks a configuration: its parts are candidates, add up to the mini-batch, and fit the limit with the cost of
/// dividing.
pub fn check_configuration(
    problem: &Problem,
    candidates: &[Candidate],
    limit: Bytes,
    cost: DivisionCost,
    configuration: &Configuration,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let parts = configuration.parts();
    for (part, used) in parts.iter().enumerate() {
        if !candidates.contains(used) {
            violations.push(Violation::NotACandidate { part });
        }
    }
    let found = parts.iter().map(|part| part.micro_batch).sum();
    if found != problem.batch() {
        violations.push(Violation::Samples { found, expected: problem.batch() });
    }
    let expected =
        if parts.len() > 1 || parts.iter().any(|part| part.calls() > 1) { cost } else { DivisionCost::default() };
    if configuration.cost() != expected {
        violations.push(Violation::Cost { found: configuration.cost(), expected });
    }
    let largest = parts.iter().map(|part| part.workspace.0 as u128).max().unwrap_or(0);
    let used = bytes(largest + expected.workspace.0 as u128);
    if used > limit {
        violations.push(Violation::OverLimit { used, limit });
    }
    if configuration.workspace() != used {
        violations.push(Violation::Workspace { stated: configuration.workspace(), actual: used });
    }
    let actual = nanos(parts.iter().map(|part| part.time.0 as u128).sum::<u128>() + expected.time.0 as u128);
    if configuration.time() != actual {
        violations.push(Violation::Time { stated: configuration.time(), actual });
    }
    violations
}

/// Checks a front: every configuration, their order, that no point beats another, and that no configuration of equal micro-batches beats them all.
///
/// Cost: quadratic in the front, and front × candidates.
pub fn check_front(
    problem: &Problem,
    candidates: &[Candidate],
    limit: Bytes,
    cost: DivisionCost,
    front: &[Configuration],
) -> Vec<Violation> {
    let mut violations: Vec<Violation> = front
        .iter()
        .flat_map(|configuration| check_configuration(problem, candidates, limit, cost, configuration))
        .collect();
    let points: Vec<(Bytes, Nanos)> = front.iter().map(|point| (point.workspace(), point.time())).collect();
    for (point, &(workspace, time)) in points.iter().enumerate() {
        for (by, &(less, faster)) in points.iter().enumerate() {
            let equal = (less, faster) == (workspace, time);
            if less <= workspace && faster <= time && (!equal || by < point) {
                violations.push(Violation::Dominated { point, by });
            }
            if by == point + 1 && less < workspace {
                violations.push(Violation::Order { point });
            }
        }
    }
    for (position, candidate) in candidates.iter().enumerate() {
        if candidate.micro_batch == 0 || !problem.batch().is_multiple_of(candidate.micro_batch) {
            continue;
        }
        let times = problem.batch() / candidate.micro_batch;
        let cost = if times > 1 || candidate.calls() > 1 { cost } else { DivisionCost::default() };
        let workspace = bytes(candidate.workspace.0 as u128 + cost.workspace.0 as u128);
        let time = nanos(candidate.time.0 as u128 * times as u128 + cost.time.0 as u128);
        if workspace <= limit && !points.iter().any(|&(less, faster)| less <= workspace && faster <= time) {
            violations.push(Violation::Missed { candidate: position });
        }
    }
    violations
}

/// Checks an allotment: one existing point for every kernel, within the total, with the time, workspace and bound
/// stated. If it is marked as proven, also checks that changing any single kernel does not make it faster.
pub fn check_allotment(fronts: &[Vec<(Bytes, Nanos)>], total: Bytes, allotment: &Allotment) -> Vec<Violation> {
    if allotment.choice.len() != fronts.len() {
        return vec![Violation::Count { found: allotment.choice.len(), expected: fronts.len() }];
    }
    let mut violations = Vec::new();
    let (mut workspace, mut time) = (0_u128, 0_u128);
    for (kernel, (front, &point)) in fronts.iter().zip(&allotment.choice).enumerate() {
        match front.get(point) {
            Some(&(bytes, nanos)) => {
                workspace += bytes.0 as u128;
                time += nanos.0 as u128;
            }
            None => violations.push(Violation::NoSuchPoint { kernel, point }),
        }
    }
    if !violations.is_empty() {
        return violations;
    }
    if workspace > total.0 as u128 {
        violations.push(Violation::OverLimit { used: bytes(workspace), limit: total });
    }
    if allotment.workspace != bytes(workspace) {
        violations.push(Violation::Workspace { stated: allotment.workspace, actual: bytes(workspace) });
    }
    if allotment.time != nanos(time) {
        violations.push(Violation::Time { stated: allotment.time, actual: nanos(time) });
    }
    let (bound, proven) = (allotment.bound, allotment.stop == Stop::Proven);
    if bound > allotment.time || (proven && bound != allotment.time) {
        violations.push(Violation::Bound { bound, time: allotment.time });
    }
    if !proven {
        return violations;
    }
    for (kernel, (front, &now)) in fronts.iter().zip(&allotment.choice).enumerate() {
        for (point, &(bytes, nanos)) in front.iter().enumerate() {
            let changed = workspace - front[now].0.0 as u128 + bytes.0 as u128;
            if nanos < front[now].1 && changed <= total.0 as u128 {
                violations.push(Violation::Improvable { kernel, point });
            }
        }
    }
    violations
}

/// Checks a split: measured batches that add up to the mini-batch, with the times stated.
pub fn check_split(times: &[Vec<(usize, Nanos)>], mini_batch: usize, split: &Split) -> Vec<Violation> {
    if split.batches.len() != times.len() {
        return vec![Violation::Count { found: split.batches.len(), expected: times.len() }];
    }
    let mut violations = Vec::new();
    let found = split.batches.iter().sum();
    if found != mini_batch {
        violations.push(Violation::Samples { found, expected: mini_batch });
    }
    let (mut slowest, mut sum) = (0_u64, 0_u128);
    for (device, (entries, &batch)) in times.iter().zip(&split.batches).enumerate() {
        if batch == 0 {
            continue;
        }
        match entries.iter().filter(|entry| entry.0 == batch).map(|entry| entry.1.0).min() {
            Some(time) => {
                slowest = slowest.max(time);
                sum += time as u128;
            }
            None => violations.push(Violation::NoSuchBatch { device, batch }),
        }
    }
    for (stated, actual) in [(split.time, Nanos(slowest)), (split.device_time, nanos(sum))] {
        if stated != actual {
            violations.push(Violation::Time { stated, actual });
        }
    }
    violations
}

fn bytes(sum: u128) -> Bytes {
    Bytes(u64::try_from(sum).unwrap_or(u64::MAX))
}

fn nanos(sum: u128) -> Nanos {
    Nanos(u64::try_from(sum).unwrap_or(u64::MAX))
}
