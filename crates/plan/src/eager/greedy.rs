//! A greedy search for decisions. At the operation with the most bytes, it evicts the tensors that free the most bytes per added time, until the
//! budget holds. Then it restores tensors, the most expensive first, as far as the budget allows.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use crate::eager::simulate::Prediction;
use crate::eager::step::{EagerStep, Impossible, NONE};
use crate::{Rebuilding, TensorDecision, Treatment};

/// The longest time of the restoring phase.
const MAX_RESTORE_TIME: Duration = Duration::from_secs(1);
/// Tensors evicted before the step is predicted again, because each changes the costs of the others.
const MAX_EVICTIONS_AT_ONCE: usize = 8;
/// The share of a copy's time that it costs: while copies of the forward pass are hidden, and beyond.
const HIDDEN_COPY_COST: f64 = 0.15;
const VISIBLE_COPY_COST: f64 = 2.0;
/// The part of the forward pass in which copies hide.
const HIDING_SHARE: f64 = 0.8;

/// Searches for decisions under which a step needs at most `budget` bytes on the device, and fits on the host; returns them with their prediction. If
/// it finds none, returns the tried decisions with the lowest peak.
///
/// # Errors
/// If the step cannot be predicted.
pub fn greedy(step: &EagerStep, budget: i64) -> Result<(Vec<TensorDecision>, Prediction), Impossible> {
    let mut choices = Choices::new(step);
    let mut prediction = step.simulate(&[])?;
    let (mut best, mut best_fates) = (prediction.clone(), choices.fates.clone());
    while prediction.peak > budget {
        let picked = choices.pick(prediction.at, prediction.live[prediction.at] - budget);
        if picked.is_empty() {
            break;
        }
        choices.give_up(&picked);
        let tried = step.simulate(&choices.decisions())?;
        if tried.live[prediction.at] >= prediction.live[prediction.at] {
            // These evictions free nothing at the operation that needs memory.
            choices.refuse(&picked);
            continue;
        }
        prediction = tried;
        if prediction.peak < best.peak {
            (best, best_fates) = (prediction.clone(), choices.fates.clone());
        }
    }
    choices.fates = best_fates;
    if best.peak <= budget {
        let end = Instant::now() + MAX_RESTORE_TIME;
        best = choices.restore(best, |tried| tried.peak <= budget && tried.moved <= step.host, || Instant::now() > end);
    }
    Ok((choices.decisions(), best))
}

/// A tensor that may be evicted.
struct Candidate {
    tensor: usize,
    /// The operations that recompute it, and their time.
    closure: Option<(Vec<usize>, f64)>,
    /// Candidates that its rerun reads.
    reads: Vec<usize>,
    /// Its first pack.
    packed: usize,
}

/// The treatment of each tensor that may be evicted.
pub(super) struct Choices<'a> {
    step: &'a EagerStep,
    candidates: Vec<Candidate>,
    /// Candidates by the time at which they are first computed, the last first.
    from_last: Vec<usize>,
    pub(super) fates: Vec<Treatment>,
    /// Fates that free nothing.
    refused: Vec<[bool; 2]>,
}

impl<'a> Choices<'a> {
    pub(super) fn new(step: &'a EagerStep) -> Choices<'a> {
        let mut packed = vec![NONE; step.tensors.len()];
        for &pack in step.packs.iter().rev() {
            if let Some(&tensor) = step.operations[pack].reads.first() {
                packed[tensor] = pack;
            }
        }
        let may_go = |number: &usize| {
            let tensor = &step.tensors[*number];
            // A tensor that is first saved in the backward pass is noticed too late.
            let is_seen = packed[*number] != NONE && tensor.last_forward != NONE && tensor.first_backward != NONE;
            tensor.movable && is_seen && tensor.first_backward > tensor.last_forward
        };
        let tensors: Vec<usize> = (0..step.tensors.len()).filter(may_go).collect();
        let candidate = |&tensor: &usize| {
            let closure = step.closure(tensor).ok().map(<[usize]>::to_vec);
            let time = |indices: &Vec<usize>| indices.iter().map(|&index| step.operations[index].rerun_us).sum();
            let read = closure.iter().flatten().flat_map(|&index| &step.operations[index].reads);
            let read = read.filter_map(|one| tensors.binary_search(one).ok().filter(|_| *one != tensor));
            Candidate {
                tensor,
                reads: read.collect(),
                closure: closure.map(|indices| {
                    let time = time(&indices);
                    (indices, time)
                }),
                packed: packed[tensor],
            }
        };
        let candidates: Vec<Candidate> = tensors.iter().map(candidate).collect();
        let mut from_last: Vec<usize> = (0..candidates.len()).collect();
        from_last.sort_by_key(|&one| Reverse(step.tensors[candidates[one].tensor].first));
        Choices {
            step,
            fates: vec![Treatment::Keep; candidates.len()],
            refused: vec![[false; 2]; candidates.len()],
            candidates,
            from_last,
        }
    }

    /// Sets the fates from these decisions.
    pub(super) fn set(&mut self, decisions: &[TensorDecision]) {
        self.fates.fill(Treatment::Keep);
        for decision in decisions {
            if let Ok(place) = self.candidates.binary_search_by_key(&decision.tensor, |one| one.tensor) {
                self.fates[place] = decision.decision;
            }
        }
    }

    /// Candidates of at least `least` bytes.
    pub(super) fn large(&self, least: i64) -> Vec<usize> {
        (0..self.candidates.len()).filter(|&one| self.bytes(one) >= least).collect()
    }

    /// Whether a candidate can be recomputed.
    pub(super) fn is_rebuildable(&self, one: usize) -> bool {
        self.candidates[one].closure.is_some()
    }

    fn bytes(&self, one: usize) -> i64 {
        self.step.tensors[self.candidates[one].tensor].bytes
    }

    pub(super) fn give_up(&mut self, picked: &[(usize, Treatment)]) {
        for &(one, fate) in picked {
            self.fates[one] = fate;
        }
    }

    /// Keeps these tensors from now on.
    pub(super) fn refuse(&mut self, picked: &[(usize, Treatment)]) {
        for &(one, fate) in picked {
            self.fates[one] = Treatment::Keep;
            self.refused[one][usize::from(fate == Treatment::Offload)] = true;
        }
    }

    /// Lets every fate be tried again.
    pub(super) fn forget_refused(&mut self) {
        self.refused.fill([false; 2]);
    }

    /// The next evictions for an operation that exceeds the budget by `excess` bytes.
    pub(super) fn pick(&self, at: usize, mut excess: i64) -> Vec<(usize, Treatment)> {
        let step = self.step;
        let link = step.out_rate.min(step.in_rate);
        let offloaded = (0..self.fates.len()).filter(|&one| self.fates[one] == Treatment::Offload);
        let mut moved: i64 = offloaded.map(|one| self.bytes(one)).sum();
        let hidden = HIDING_SHARE * step.begins[step.backward_start] * link;
        let mut found: Vec<(f64, usize, Treatment)> = Vec::new();
        for (one, candidate) in self.candidates.iter().enumerate() {
            let tensor = &step.tensors[candidate.tensor];
            if self.fates[one] != Treatment::Keep || tensor.last_forward >= at || at >= tensor.first_backward {
                continue;
            }
            let [no_rerun, no_copy] = self.refused[one];
            let rerun = candidate.closure.as_ref().filter(|_| !no_rerun).map(|(_, time)| (*time, Treatment::Recompute));
            let is_hidden = ((moved + tensor.bytes) as f64) < hidden;
            let copy = tensor.bytes as f64 / link * if is_hidden { HIDDEN_COPY_COST } else { VISIBLE_COPY_COST };
            let copy = copy + 2.0 * step.copy_us;
            let copy = (!no_copy && moved + tensor.bytes <= step.host).then_some((copy, Treatment::Offload));
            let cheaper = rerun.into_iter().chain(copy).min_by(|one, other| one.0.total_cmp(&other.0));
            if let Some((cost, fate)) = cheaper {
                found.push((cost / tensor.bytes.max(1) as f64, one, fate));
            }
        }
        found.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
        let mut picked = Vec::new();
        for (_, one, fate) in found {
            if fate == Treatment::Offload {
                if moved + self.bytes(one) > step.host {
                    continue;
                }
                moved += self.bytes(one);
            }
            picked.push((one, fate));
            excess -= self.bytes(one);
            if excess <= 0 || picked.len() >= MAX_EVICTIONS_AT_ONCE {
                break;
            }
        }
        picked
    }

    /// Restores tensors, the most expensive first, while the step stays allowed and no slower, until time is over.
    pub(super) fn restore(
        &mut self,
        mut best: Prediction,
        allows: impl Fn(&Prediction) -> bool,
        is_over: impl Fn() -> bool,
    ) -> Prediction {
        let cost = |one: &usize| self.candidates[*one].closure.as_ref().map_or(0.0, |(_, time)| *time);
        let mut given: Vec<usize> = (0..self.fates.len()).filter(|&one| self.fates[one] != Treatment::Keep).collect();
        given.sort_by(|one, other| cost(other).total_cmp(&cost(one)).then(self.bytes(*one).cmp(&self.bytes(*other))));
        for one in given {
            if is_over() {
                break;
            }
            let fate = std::mem::replace(&mut self.fates[one], Treatment::Keep);
            match self.step.simulate(&self.decisions()) {
                Ok(tried) if tried.time_us <= best.time_us && allows(&tried) => best = tried,
                _ => self.fates[one] = fate,
            }
        }
        best
    }

    /// The choices in the form of a plan file.
    pub(super) fn decisions(&self) -> Vec<TensorDecision> {
        let needs = self.needs();
        let mut found = Vec::new();
        for (one, candidate) in self.candidates.iter().enumerate() {
            let (Treatment::Recompute, Some((operations, _))) = (self.fates[one], &candidate.closure) else { continue };
            found.push(TensorDecision {
                tensor: candidate.tensor,
                decision: Treatment::Recompute,
                offload_after: None,
                release_after: Some(self.step.tensors[candidate.tensor].last_forward),
                prefetch_before: None,
                rebuilt: vec![Rebuilding { before: needs[one], operations: operations.clone() }],
            });
        }
        self.transfers(&needs, &mut found);
        found
    }

    /// The operation that first needs each candidate in the backward pass, counting reruns of others.
    fn needs(&self) -> Vec<usize> {
        let first_backward = |one: &Candidate| self.step.tensors[one.tensor].first_backward;
        let mut needs: Vec<usize> = self.candidates.iter().map(first_backward).collect();
        // Later tensors are rebuilt earlier. The reads of their reruns are needed then.
        for &one in &self.from_last {
            if self.fates[one] == Treatment::Recompute {
                for &read in &self.candidates[one].reads {
                    needs[read] = needs[read].min(needs[one]);
                }
            }
        }
        needs
    }

    /// Schedules the copies: to the host one after another as early as possible; back as late as possible, one after another. The program's hooks
    /// release a copied tensor at the next pack, and fetch at an unpack.
    fn transfers(&self, needs: &[usize], found: &mut Vec<TensorDecision>) {
        let step = self.step;
        let begins = &step.begins;
        let link = step.out_rate.min(step.in_rate);
        let mut moved: Vec<usize> =
            (0..self.fates.len()).filter(|&one| self.fates[one] == Treatment::Offload).collect();
        moved.sort_by_key(|&one| self.candidates[one].packed);
        let begin = found.len();
        let mut free = 0.0_f64;
        for &one in &moved {
            let after = self.candidates[one].packed;
            free = free.max(begins[after]) + self.bytes(one) as f64 / link;
            let mut release = after;
            while release + 1 < step.backward_start && begins[release] < free {
                release += 1;
            }
            let later = step.packs.partition_point(|&pack| pack < release);
            let release = step.packs.get(later).copied().unwrap_or(step.backward_start.saturating_sub(1));
            found.push(TensorDecision {
                tensor: self.candidates[one].tensor,
                decision: Treatment::Offload,
                offload_after: Some(after),
                release_after: Some(release),
                prefetch_before: Some(needs[one]),
                rebuilt: Vec::new(),
            });
        }
        let mut order: Vec<usize> = (0..moved.len()).collect();
        order.sort_by_key(|&place| Reverse(needs[moved[place]]));
        let mut free = *begins.last().unwrap_or(&0.0);
        for place in order {
            let need = needs[moved[place]];
            free = free.min(begins[need]) - self.bytes(moved[place]) as f64 / link;
            let mut before = need;
            while before > step.backward_start && begins[before] > free {
                before -= 1;
            }
            let seen = step.unpacks.partition_point(|&unpack| unpack <= before);
            if let Some(&unpack) = step.unpacks.get(seen.saturating_sub(1)) {
                before = need.min(unpack);
            }
            found[begin + place].prefetch_before = Some(before);
        }
    }
}
