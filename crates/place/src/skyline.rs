//! Places blocks from the bottom up: the lowest part of the skyline takes the next block.
//!
//! ```text
//! offset |          ......          of the blocks that live only inside the lowest stretch of the skyline, it takes the
//!        |          .    cccccc     first in a given order; without one, it rises to its lower neighbor and the
//!        |  aaaaaaaa.    cccccc     bytes between (here, under the dots) are wasted
//!        |  aaaaaaaabbbbbbbb
//!        +---------------------- sections
//! ```
//!
//! A section is the time from the beginning of one lifetime to the next. The height of the skyline plus the blocks
//! still to be placed gives a lower bound for each section; an attempt ends when a section's bound reaches the best
//! height so far. One of that section's unplaced blocks then moves ahead of a placed one, and the next attempt begins.
//!
//! **Source**: best fit for strips, Burke et al. 2004, 3; for memory, Sekiyama et al. 2018; section bounds, MiniMalloc
//! (Moffitt 2023); moving failed blocks ahead, "squeaky wheel" optimization, Joslin and Clements 1999.

use std::cmp::Reverse;

/// A block's bytes, and the sections during which it is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stay {
    pub(super) bytes: u64,
    pub(super) from: usize,
    /// The first section in which it is no longer live.
    pub(super) to: usize,
}

impl Stay {
    fn meets(&self, other: &Stay) -> bool {
        self.from < other.to && other.from < self.to
    }
}

/// Whether a search is to end regardless of the remaining work. Each of its loops asks.
pub type IsOver<'a> = &'a dyn Fn() -> bool;

/// How much work a search may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Enough for one of many drafts.
    Draft,
    /// Enough for a bound that is shown during a long search.
    Bound,
    /// Enough for the final plan.
    Plan,
}

impl Effort {
    /// Limit on visits of blocks and sections while the waste is more than small.
    fn max_visits(self) -> usize {
        match self {
            Effort::Draft => 5_000_000,
            Effort::Bound => 20_000_000,
            Effort::Plan => 200_000_000,
        }
    }

    /// Limit on visits of the exact search.
    pub(super) fn exact_visits(self) -> u64 {
        match self {
            Effort::Draft => 300_000,
            Effort::Bound | Effort::Plan => 30_000_000,
        }
    }
}

/// Limit on visits of blocks and sections once the waste is small.
const MAX_TIGHT_VISITS: usize = 2_000_000;

/// Waste is small if it is at most the total divided by this.
const TIGHT: u64 = 100;

/// Whether this height wastes little compared with the least possible height.
pub fn is_tight(height: u64, least: u64) -> bool {
    height <= least + least / TIGHT
}

/// Attempts without improvement before the search restarts from the best.
const PATIENCE: usize = 10;

/// Seed of the pseudo-random choices.
const SEED: u64 = 0x9e37_79b9_7f4a_7c15;

/// The offset of an unplaced block.
const UNPLACED: u64 = u64::MAX;

/// Adjacent sections with the same skyline height.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    from: usize,
    to: usize,
    floor: u64,
}

/// A search for offsets that can be continued later.
pub(super) struct Packing<'a> {
    search: Search<'a>,
    orders: Vec<Vec<usize>>,
    // The next attempt.
    order: Vec<usize>,
    critical: bool,
    random: Random,
    /// Attempts since the last restart, and the section that proved the last one a failure.
    failures: usize,
    failed: Option<usize>,
}

impl<'a> Packing<'a> {
    /// Makes the first attempts; `effort` is the most that the search will be allowed.
    pub(super) fn new(stays: &'a [Stay], effort: Effort, is_over: IsOver<'a>) -> Packing<'a> {
        let mut search = Search::new(stays, effort, is_over);
        let orders = orders(stays, &search.live);
        for order in &orders {
            for critical in [true, false] {
                search.attempt(order, critical);
            }
        }
        let Best { order, critical, .. } = search.best.clone();
        Packing { search, orders, order, critical, random: Random::new(SEED), failures: 0, failed: None }
    }

    /// Goes on for as long as `effort` allows, counted from the beginning.
    pub(super) fn improve(&mut self, effort: Effort) {
        self.search.effort = effort;
        while !self.search.is_over() {
            self.next_attempt();
        }
    }

    /// The offsets and height of the best attempt.
    pub(super) fn best(&self) -> (&[u64], u64) {
        (&self.search.best.offsets, self.search.best.height)
    }

    /// Moves a failed block ahead of one in its way, chosen pseudo-randomly with a fixed seed.
    fn next_attempt(&mut self) {
        let Packing { search, orders, order, critical, random, failures, failed } = self;
        match failed {
            Some(section) if *failures < PATIENCE => search.move_ahead(order, *section, random),
            _ => {
                // Restart from the best, or from one of the initial orders, which may lead elsewhere.
                let first = orders.get(random.below(2 * orders.len()));
                order.clone_from(first.unwrap_or(&search.best.order));
                *critical = if first.is_some() { random.below(2) == 0 } else { search.best.critical };
                let (one, other) = (random.below(order.len()), random.below(order.len()));
                order[one.min(other)..=one.max(other)].rotate_right(1);
                *failures = 0;
            }
        }
        *failed = search.attempt(order, *critical);
        *failures += 1;
    }
}

/// The best attempt so far.
#[derive(Clone, Debug)]
struct Best {
    offsets: Vec<u64>,
    order: Vec<usize>,
    critical: bool,
    height: u64,
}

struct Search<'a> {
    stays: &'a [Stay],
    /// The blocks sorted by first section, and the index at which each section's blocks begin.
    by_from: Vec<usize>,
    starts: Vec<usize>,
    /// For each section: live bytes.
    live: Vec<u64>,
    /// Lower bound on the height of any placement.
    goal: u64,
    best: Best,
    effort: Effort,
    is_over: IsOver<'a>,
    visits: usize,
    // State of the current or last attempt.
    offsets: Vec<u64>,
    /// For each section: bytes of unplaced blocks.
    left: Vec<u64>,
    skyline: Vec<Stretch>,
}

impl<'a> Search<'a> {
    fn new(stays: &'a [Stay], effort: Effort, is_over: IsOver<'a>) -> Search<'a> {
        let sections = stays.iter().map(|stay| stay.to).max().unwrap_or(0);
        let mut by_from: Vec<usize> = (0..stays.len()).collect();
        by_from.sort_by_key(|&block| stays[block].from);
        let starts = (0..=sections).map(|section| by_from.partition_point(|&block| stays[block].from < section));
        let starts = starts.collect();
        let mut live = vec![0; sections];
        for stay in stays {
            live[stay.from..stay.to].iter_mut().for_each(|live| *live += stay.bytes);
        }
        let goal = live.iter().copied().max().unwrap_or(0);
        let best = Best { offsets: vec![0; stays.len()], order: Vec::new(), critical: false, height: u64::MAX };
        let (offsets, left, skyline) = (Vec::new(), Vec::new(), Vec::new());
        Search { stays, by_from, starts, live, goal, best, effort, is_over, visits: 0, offsets, left, skyline }
    }

    fn is_over(&self) -> bool {
        let limit = if is_tight(self.best.height, self.goal) { MAX_TIGHT_VISITS } else { self.effort.max_visits() };
        self.best.height <= self.goal || self.visits > limit || (self.is_over)()
    }

    /// Places the blocks in this order of preference. With `critical`, blocks that live in the fullest section of the
    /// stretch come first. If the result cannot beat the best, returns the section that proves it.
    fn attempt(&mut self, order: &[usize], critical: bool) -> Option<usize> {
        if self.best.height != u64::MAX && self.is_over() {
            return None;
        }
        let mut rank = vec![0; order.len()];
        order.iter().enumerate().for_each(|(place, &block)| rank[block] = place);
        self.offsets.clear();
        self.offsets.resize(order.len(), UNPLACED);
        self.left.clone_from(&self.live);
        self.skyline.clear();
        self.skyline.push(Stretch { from: 0, to: self.live.len(), floor: 0 });
        self.visits += 2 * order.len();
        let mut height = 0;
        for _ in order {
            let block = loop {
                self.visits += self.skyline.len();
                let lowest = (0..self.skyline.len()).min_by_key(|&stretch| self.skyline[stretch].floor)?;
                match self.choose(self.skyline[lowest], &rank, critical) {
                    Some(block) => break self.put(block, lowest),
                    None => {
                        if let Some(section) = self.raise(lowest) {
                            return Some(section);
                        }
                    }
                }
            };
            height = height.max(self.offsets[block] + self.stays[block].bytes);
        }
        if height < self.best.height {
            self.best = Best { offsets: self.offsets.clone(), order: order.to_vec(), critical, height };
        }
        None
    }

    /// Chooses the block to place on a stretch.
    fn choose(&mut self, Stretch { from, to, .. }: Stretch, rank: &[usize], critical: bool) -> Option<usize> {
        let candidates = &self.by_from[self.starts[from]..self.starts[to]];
        self.visits += candidates.len() + if critical { to - from } else { 0 };
        let fullest = if critical { self.fullest(from, to) } else { to };
        let mut best = None;
        for &block in candidates {
            let stay = &self.stays[block];
            if stay.to <= to && self.offsets[block] == UNPLACED {
                let key = (critical && !(stay.from <= fullest && fullest < stay.to), rank[block]);
                if best.is_none_or(|(least, _)| key < least) {
                    best = Some((key, block));
                }
            }
        }
        best.map(|(_, block)| block)
    }

    /// The section with the most bytes still to be placed.
    fn fullest(&self, from: usize, to: usize) -> usize {
        (from..to).max_by_key(|&section| (self.left[section], Reverse(section))).unwrap_or(from)
    }

    /// Puts a block on a stretch and splits the stretch.
    fn put(&mut self, block: usize, on: usize) -> usize {
        let stay = self.stays[block];
        let Stretch { from, to, floor } = self.skyline[on];
        self.offsets[block] = floor;
        self.left[stay.from..stay.to].iter_mut().for_each(|left| *left -= stay.bytes);
        self.visits += stay.to - stay.from;
        let top = floor + stay.bytes;
        let mut above = Stretch { from: stay.from, to: stay.to, floor: top };
        let mut replaced = on..on + 1;
        let (before, after) = (Stretch { from, to: stay.from, floor }, Stretch { from: stay.to, to, floor });
        if before.from == before.to && on > 0 && self.skyline[on - 1].floor == top {
            above.from = self.skyline[on - 1].from;
            replaced.start = on - 1;
        }
        if after.from == after.to && self.skyline.get(on + 1).is_some_and(|next| next.floor == top) {
            above.to = self.skyline[on + 1].to;
            replaced.end = on + 2;
        }
        let pieces = [before, above, after].into_iter().filter(|stretch| stretch.from < stretch.to);
        self.skyline.splice(replaced, pieces);
        block
    }

    /// Raises a stretch to its lower neighbor; returns a section that can no longer beat the best, if any.
    fn raise(&mut self, stretch: usize) -> Option<usize> {
        let Stretch { from, to, .. } = self.skyline[stretch];
        let before = stretch.checked_sub(1).map(|before| self.skyline[before].floor);
        let after = self.skyline.get(stretch + 1).map(|after| after.floor);
        let floor = before.into_iter().chain(after).min()?;
        self.visits += to - from;
        let fullest = self.fullest(from, to);
        if floor + self.left[fullest] >= self.best.height {
            return Some(fullest);
        }
        let first = if before == Some(floor) { stretch - 1 } else { stretch };
        let last = if after == Some(floor) { stretch + 1 } else { stretch };
        let whole = Stretch { from: self.skyline[first].from, to: self.skyline[last].to, floor };
        self.skyline.splice(first..=last, [whole]);
        None
    }

    /// Moves an unplaced block of a section to just before a placed block that it overlaps in time.
    fn move_ahead(&mut self, order: &mut [usize], section: usize, random: &mut Random) {
        self.visits += 2 * order.len();
        let is_late = |block: &usize| {
            let stay = &self.stays[*block];
            self.offsets[*block] == UNPLACED && stay.from <= section && section < stay.to
        };
        let late: Vec<usize> = (0..order.len()).filter(|&place| is_late(&order[place])).collect();
        let Some(&place) = late.get(random.below(late.len())) else { return };
        let stay = self.stays[order[place]];
        let in_the_way = |block: usize| self.offsets[block] != UNPLACED && self.stays[block].meets(&stay);
        let before: Vec<usize> = (0..place).filter(|&before| in_the_way(order[before])).collect();
        let to = before.get(random.below(before.len())).copied().unwrap_or(random.below(place + 1));
        order[to..=place].rotate_right(1);
    }
}

/// A xorshift generator, Marsaglia 2003.
pub(super) struct Random(u64);

impl Random {
    /// A generator; equal seeds give equal numbers.
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.max(1))
    }

    /// A number below `count`, or 0 if `count` is 0.
    pub(super) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % count.max(1) as u64) as usize
    }
}

/// Orders of preference, the most promising first.
fn orders(stays: &[Stay], live: &[u64]) -> Vec<Vec<usize>> {
    let span = |stay: &Stay| (stay.to - stay.from) as u128;
    let most = |stay: &Stay| u128::from(live[stay.from..stay.to].iter().copied().max().unwrap_or(0));
    let most: Vec<u128> = stays.iter().map(most).collect();
    let sorted = |key: &dyn Fn(usize) -> (u128, u128)| {
        let mut order: Vec<usize> = (0..stays.len()).collect();
        order.sort_by_cached_key(|&block| Reverse(key(block)));
        order
    };
    let bytes = |block: usize| u128::from(stays[block].bytes);
    vec![
        sorted(&|block| (span(&stays[block]) * bytes(block), 0)),
        sorted(&|block| (most[block], span(&stays[block]))),
        sorted(&|block| (span(&stays[block]), bytes(block))),
        sorted(&|block| (most[block], bytes(block))),
        sorted(&|block| (bytes(block), span(&stays[block]))),
        sorted(&|block| (stays[block].to as u128, 0)),
        sorted(&|block| (u128::MAX - stays[block].from as u128, 0)),
    ]
}
