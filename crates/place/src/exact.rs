//! Searches for the lowest placement: many short searches below different heights, each wiser than the last.
//!
//! One search may spend ages below one early mistake. So each is cut short, and the next one first places the blocks
//! that failed to fit. Searches get longer, so small instances are always settled.
//!
//! **Source**: MiniMalloc, Moffitt 2023, for restarts with other orders; weights for failures, Boussemart et al. 2004.

use super::fit::{Fit, Prefer, Preference, Rules, Verdict};
use super::instance::Instance;
use super::skyline::{IsOver, Random};

/// The lowest placement found, and its proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lowest {
    /// Offsets in units, if it is lower than the one known before.
    pub(super) offsets: Option<Vec<i32>>,
    /// Its height, in units.
    pub(super) height: i32,
    /// The proven lower bound on the height, in units.
    pub(super) bound: i32,
}

/// Visits per block of the first searches.
const SHORT: u64 = 2_000;

/// Searches until they get longer by half.
const ALIKE: u64 = 12;

/// One search in this many aims higher than the least height that may be possible.
const AIM: u64 = 3;

/// It aims for the best height, less this part of what lies above the least possible one.
const STEP: i32 = 8;

/// Seed of the random factors.
const SEED: u64 = 0x9e37_79b9_7f4b_16c0;

/// Looks for placements below this `height`. Stops when no lower one exists, when one reaches `enough`, after this number of visits, or when
/// `is_over` returns true.
pub(super) fn lowest(
    instance: &Instance,
    height: i32,
    enough: i32,
    (max_visits, is_over): (u64, IsOver),
    rules: Rules,
) -> Lowest {
    let mut fit = Fit::new(instance, rules, is_over);
    let mut lessons = Lessons::new(instance);
    let mut best = Lowest { offsets: None, height, bound: instance.most_live };
    let mut length = SHORT * instance.blocks.len() as u64;
    let mut descends = false;
    for search in 0.. {
        if best.bound >= best.height || best.height <= enough || fit.visits >= max_visits || is_over() {
            break;
        }
        // Most searches aim for the least height that may be possible. Some aim for a height a little below the best, and continue while they
        // succeed.
        let step = 1 + (best.height - best.bound) / STEP;
        let limit = if descends || search % AIM == AIM - 1 { best.height - step } else { best.bound };
        let limit = limit.max(enough.min(best.height - 1));
        lessons.begin(search);
        match fit.run(limit, length.min(max_visits - fit.visits), &mut lessons) {
            Verdict::Placed => {
                let ends = fit.least.iter().zip(&instance.blocks).map(|(offset, block)| offset + block.size);
                best.height = ends.max().unwrap_or(0);
                best.offsets = Some(fit.least.clone());
                descends = true;
            }
            Verdict::Impossible => best.bound = limit + 1,
            Verdict::Unknown => descends = false,
        }
        if search % ALIKE == ALIKE - 1 {
            length += length / 2;
        }
    }
    best
}

/// Which blocks and sections failed, and the order that follows.
struct Lessons<'a> {
    instance: &'a Instance,
    search: u64,
    blocks: Vec<u64>,
    sections: Vec<u64>,
    /// Random factors, so that no two searches are the same.
    factors: Vec<u64>,
    random: Random,
}

impl Lessons<'_> {
    fn new(instance: &Instance) -> Lessons<'_> {
        let count = instance.blocks.len();
        Lessons {
            instance,
            search: 0,
            blocks: vec![0; count],
            sections: vec![0; instance.sections],
            factors: vec![FACTOR; count],
            random: Random::new(SEED),
        }
    }

    /// Prepares for the next search; forgets a tenth of the learned weights.
    fn begin(&mut self, search: u64) {
        self.search = search;
        if search > 0 {
            self.factors.iter_mut().for_each(|factor| *factor = FACTOR + self.random.below(SPREAD) as u64);
        }
        self.blocks.iter_mut().chain(&mut self.sections).for_each(|weight| *weight -= *weight / 10);
    }
}

/// The number and the spread of the random factors.
const FACTOR: u64 = 64;
const SPREAD: usize = 5;

impl Prefer for Lessons<'_> {
    fn preference(&self, index: usize, _left: &[i32]) -> Preference {
        let block = &self.instance.blocks[index];
        let factor = self.factors[index];
        let length = u64::from(block.to - block.from);
        let area = length * block.size as u64;
        let sections = &self.sections[block.sections()];
        let weight = if self.search.is_multiple_of(2) { self.blocks[index] } else { sections.iter().sum() };
        (weight * factor, area, length)
    }

    fn overflow(&mut self, section: usize, missing: &[u32]) {
        self.sections[section] += 1;
        for &block in missing {
            if self.instance.blocks[block as usize].sections().contains(&section) {
                self.blocks[block as usize] += 1;
            }
        }
    }

    fn stuck(&mut self, block: usize) {
        self.blocks[block] += 1;
    }
}
