//! Looks for offsets below a given height, or proves that no such offsets exist.
//!
//! Blocks are placed by rising offset, each as low as the placed ones allow. Blocks at the same offset go by rank. Every
//! placement in which no block can move down is found this way, and exactly once. Branches that cannot lead to one are
//! cut off:
//!
//! ```text
//! order      offsets never fall: a block below the last one has been skipped, and must come to lie on a later one
//! gaps       no block may begin where another unplaced one could end: the other would fit below it
//! raises     a skipped block lies at least as high as the lowest top that may come below it
//! sections   the blocks still missing in a section, from the lowest possible offset upwards, must fit below the limit
//! twins      of equal blocks the first lies lower
//! parts      blocks that no longer meet are placed apart from each other
//! failures   what has failed fails again, whatever order the blocks below were placed in
//! ```
//!
//! **Source**: MiniMalloc, Moffitt 2023, for the order (canonical solutions), gaps (dominance), sections and parts.

use super::instance::{Block, Instance};
use super::skyline::IsOver;

/// Which rules cut off branches. All of them keep the answer; tests switch each off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    pub(super) order: bool,
    pub(super) gaps: bool,
    pub(super) raises: bool,
    pub(super) sections: bool,
    pub(super) twins: bool,
    pub(super) parts: bool,
    pub(super) failures: bool,
}

impl Rules {
    pub(super) const ALL: Rules =
        Rules { order: true, gaps: true, raises: true, sections: true, twins: true, parts: true, failures: true };
}

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All blocks have offsets.
    Placed,
    /// No placement is that low.
    Impossible,
    /// The work limit came first.
    Unknown,
}

/// The keys by which a block is preferred: the first key that differs counts, the larger first.
pub(super) type Preference = (u64, u64, u64);

/// How to prefer blocks in a search, and what earlier searches learned.
pub(super) trait Prefer {
    /// The preference of a block, if this number of units is still missing in each section.
    fn preference(&self, block: usize, left: &[i32]) -> Preference;
    /// A section in which the blocks of a list no longer fit.
    fn overflow(&mut self, section: usize, missing: &[u32]);
    /// A block that nothing can raise.
    fn stuck(&mut self, block: usize);
}

/// The last placed block's offset and rank; later ones come after it.
type Cursor = (i32, u32);

/// No frame, or no part.
const NONE: usize = usize::MAX;

/// Entries of the table of failures.
const FAILURES: usize = 1 << 16;

/// Blocks to be placed apart from all others: a range of the pool, by falling least offset.
#[derive(Clone, Copy)]
struct Part {
    start: usize,
    len: usize,
    cursor: Cursor,
    /// Which ranks it uses: they change where blocks fall into parts.
    ranks: u32,
    /// The frame to return to if it has no placement.
    owner: usize,
    /// The part to place after it.
    next: usize,
}

/// A decision: which block of a part comes next.
struct Frame {
    part: Part,
    /// The blocks still to try, a range of the pool.
    choices: std::ops::Range<usize>,
    /// The undo log's and the parts' length before the decision.
    changes: usize,
    parts: usize,
    key: u64,
}

/// An undo log entry.
enum Change {
    Placed(u32),
    Least(u32, i32),
    Rank(u32, u32),
}

/// A part that has no placement after this cursor.
#[derive(Clone, Copy, Default)]
struct Failure {
    key: u64,
    cursor: Cursor,
    ranks: u32,
}

/// A depth-first search with its own stack: recursion would be as deep as there are blocks.
pub(super) struct Fit<'a> {
    instance: &'a Instance,
    rules: Rules,
    limit: i32,
    /// For each block: its offset, if placed, or the least that the placed ones allow.
    pub(super) least: Vec<i32>,
    placed: Vec<bool>,
    rank: Vec<u32>,
    /// For each section: units of unplaced blocks.
    left: Vec<i32>,
    changes: Vec<Change>,
    pool: Vec<u32>,
    frames: Vec<Frame>,
    parts: Vec<Part>,
    failures: Vec<Failure>,
    ranks: u32,
    /// Blocks and sections visited so far.
    pub(super) visits: u64,
    is_over: IsOver<'a>,
    // Scratch space.
    /// Skipped blocks, and those at the cursor, with the least offset at which each may end up.
    raised: Vec<(i32, u32)>,
    sums: Vec<i32>,
    lowest: Vec<i32>,
    ranked: Vec<(Preference, u32)>,
}

impl<'a> Fit<'a> {
    pub(super) fn new(instance: &'a Instance, rules: Rules, is_over: IsOver<'a>) -> Fit<'a> {
        let count = instance.blocks.len();
        Fit {
            instance,
            rules,
            limit: 0,
            least: vec![0; count],
            placed: vec![false; count],
            rank: vec![0; count],
            left: vec![0; instance.sections],
            changes: Vec::new(),
            pool: Vec::new(),
            frames: Vec::new(),
            parts: Vec::new(),
            failures: vec![Failure::default(); FAILURES],
            ranks: 0,
            visits: 0,
            is_over,
            raised: Vec::new(),
            sums: vec![0; instance.sections],
            lowest: vec![0; count],
            ranked: Vec::new(),
        }
    }

    /// Looks for offsets with no end above `limit`, for at most this number of visits; [`Fit::least`] has them if it is
    /// [`Verdict::Placed`].
    pub(super) fn run(&mut self, limit: i32, max_visits: u64, prefer: &mut dyn Prefer) -> Verdict {
        let stop = self.visits.saturating_add(max_visits);
        let Some(mut pending) = self.begin(limit, prefer) else { return Verdict::Impossible };
        while pending != NONE {
            let part = self.parts[pending];
            let mut frame = if self.open(part) { self.frames.len() - 1 } else { part.owner };
            pending = loop {
                if frame == NONE {
                    return Verdict::Impossible;
                }
                if self.visits > stop || (self.is_over)() {
                    return Verdict::Unknown;
                }
                self.back_to(frame);
                match self.frames[frame].choices.next() {
                    Some(choice) => {
                        if let Some(next) = self.try_block(frame, self.pool[choice], prefer) {
                            break next;
                        }
                    }
                    None => frame = self.fail(frame),
                }
            };
        }
        Verdict::Placed
    }

    /// Starts with nothing placed; returns the first part, or `None` if a section alone is over the limit.
    fn begin(&mut self, limit: i32, prefer: &mut dyn Prefer) -> Option<usize> {
        let count = self.instance.blocks.len();
        self.limit = limit;
        self.least.fill(0);
        self.placed.fill(false);
        self.left.fill(0);
        for block in &self.instance.blocks {
            self.left[block.sections()].iter_mut().for_each(|left| *left += block.size);
        }
        self.failures.fill(Failure::default());
        (self.ranks, self.frames, self.parts) = (0, Vec::new(), Vec::new());
        self.pool.clear();
        self.pool.extend(0..count as u32);
        self.rerank(0, count, prefer);
        self.changes.clear();
        self.visits += 2 * count as u64;
        if count == 0 {
            return Some(NONE);
        }
        self.bounded(0, count, (0, 0), prefer).then(|| {
            let whole = Part { start: 0, len: count, cursor: (0, 0), ranks: 0, owner: NONE, next: NONE };
            self.divided(whole, prefer)
        })
    }

    /// Places a block as the next one of a frame. Returns the first of the parts to continue with, or `None` if the block cannot lead to a placement.
    fn try_block(&mut self, frame: usize, block: u32, prefer: &mut dyn Prefer) -> Option<usize> {
        let part = self.frames[frame].part;
        let Part { start, len, next, ranks, .. } = part;
        let cursor = (self.least[block as usize], self.rank[block as usize]);
        let top = self.put(block);
        if len == 1 {
            return Some(next);
        }
        // Every raised part now begins at its top, so the list stays sorted without a sort.
        let begin = self.pool.len();
        let above = (start..start + len).take_while(|&at| self.least[self.pool[at] as usize] >= top).count();
        self.pool.extend_from_within(start..start + above);
        for raised in [true, false] {
            for at in start + above..start + len {
                let other = self.pool[at];
                if other != block && (self.least[other as usize] >= top) == raised {
                    self.pool.push(other);
                }
            }
        }
        let cursor = if self.rules.order { cursor } else { (0, 0) };
        if !self.bounded(begin, len - 1, cursor, prefer) {
            return None;
        }
        Some(self.divided(Part { start: begin, len: len - 1, cursor, ranks, owner: frame, next }, prefer))
    }
    /// Places a block at its least offset; returns its end.
    fn put(&mut self, block: u32) -> i32 {
        let index = block as usize;
        let Block { size, .. } = self.instance.blocks[index];
        self.placed[index] = true;
        self.left[self.instance.blocks[index].sections()].iter_mut().for_each(|left| *left -= size);
        self.changes.push(Change::Placed(block));
        let top = self.least[index] + size;
        for &other in &self.instance.neighbors[index] {
            let least = &mut self.least[other as usize];
            if !self.placed[other as usize] && *least < top {
                self.changes.push(Change::Least(other, *least));
                *least = top;
            }
        }
        self.visits += self.instance.neighbors[index].len() as u64;
        top
    }

    /// Undoes everything after a frame's decision.
    fn back_to(&mut self, frame: usize) {
        self.frames.truncate(frame + 1);
        let Frame { ref choices, changes, parts, .. } = self.frames[frame];
        self.pool.truncate(choices.end);
        self.parts.truncate(parts);
        for change in self.changes.drain(changes..).rev() {
            match change {
                Change::Placed(block) => {
                    let block = block as usize;
                    self.placed[block] = false;
                    let Block { size, .. } = self.instance.blocks[block];
                    self.left[self.instance.blocks[block].sections()].iter_mut().for_each(|left| *left += size);
                }
                Change::Least(block, least) => self.least[block as usize] = least,
                Change::Rank(block, rank) => self.rank[block as usize] = rank,
            }
        }
    }

    /// Notes that a frame's part has no placement; returns the frame to go back to.
    fn fail(&mut self, frame: usize) -> usize {
        let Frame { part, key, .. } = self.frames[frame];
        if self.rules.failures {
            self.failures[key as usize % FAILURES] = Failure { key, cursor: part.cursor, ranks: part.ranks };
        }
        part.owner
    }

    /// Whether a part in this state is known to have no placement.
    fn has_failed(&self, part: &Part, key: u64) -> bool {
        let failure = &self.failures[key as usize % FAILURES];
        let (failed, now) = (failure.cursor, part.cursor);
        // Ranks are comparable only if nothing was ranked again in between.
        let covers = failed.0 < now.0
            || failed.0 == now.0 && (failed.1 == 0 || failure.ranks == part.ranks && failed.1 <= now.1);
        self.rules.failures && failure.key == key && covers
    }

    /// Opens a frame with a part's choices; `false` without choices.
    fn open(&mut self, part: Part) -> bool {
        let Part { start, len, cursor, .. } = part;
        self.visits += 2 * len as u64;
        let mut key = 0_u64;
        let mut lowest_end = i32::MAX;
        let mut fullest = 0;
        for &block in &self.pool[start..start + len] {
            let (index, least) = (block as usize, self.least[block as usize]);
            key = key.wrapping_add(mixed(block, least));
            lowest_end = lowest_end.min(least + self.instance.blocks[index].size);
            if self.rules.order && self.rules.sections {
                let left = &self.left[self.instance.blocks[index].sections()];
                fullest = left.iter().copied().fold(fullest, i32::max);
            }
        }
        key = key.max(1);
        if self.has_failed(&part, key) {
            return false;
        }
        let begin = self.pool.len();
        for at in start..start + len {
            let block = self.pool[at];
            let (index, least) = (block as usize, self.least[block as usize]);
            let skipped = (least, self.rank[index]) < cursor;
            let leaves_gap = self.rules.gaps && least >= lowest_end;
            let twin = self.instance.blocks[index].twin.filter(|twin| self.rules.twins && !self.placed[*twin as usize]);
            if !(skipped || leaves_gap || twin.is_some()) && least + fullest <= self.limit {
                self.pool.push(block);
            }
        }
        let (least, rank) = (&self.least, &self.rank);
        self.pool[begin..].sort_unstable_by_key(|&block| (least[block as usize], rank[block as usize]));
        let choices = begin..self.pool.len();
        let (changes, parts) = (self.changes.len(), self.parts.len());
        self.frames.push(Frame { part, choices, changes, parts, key });
        true
    }

    /// Whether unplaced blocks, by falling least offset, may still fit below the limit.
    fn bounded(&mut self, start: usize, len: usize, cursor: Cursor, prefer: &mut dyn Prefer) -> bool {
        self.visits += 2 * len as u64;
        let Fit { instance, pool, least, rank, lowest, raised, sums, .. } = self;
        let list = &pool[start..start + len];
        // All below the cursor, and some at its height, have been skipped.
        let tail = list.partition_point(|&block| least[block as usize] > cursor.0);
        raised.clear();
        for &block in &list[tail..] {
            lowest[block as usize] = cursor.0;
            if (least[block as usize], rank[block as usize]) < cursor {
                raised.push((cursor.0, block));
            }
        }
        list[..tail].iter().for_each(|&block| lowest[block as usize] = least[block as usize]);
        if self.rules.raises {
            for (bound, block) in raised.iter_mut() {
                let index = *block as usize;
                let (mut begin, mut end) = (i32::MAX, i32::MAX);
                for &other in &instance.neighbors[index] {
                    if !self.placed[other as usize] {
                        begin = begin.min(lowest[other as usize]);
                        end = end.min(lowest[other as usize] + instance.blocks[other as usize].size);
                    }
                }
                self.visits += instance.neighbors[index].len() as u64;
                if begin >= least[index] + instance.blocks[index].size {
                    prefer.stuck(index);
                    return false;
                }
                *bound = end.max(*bound);
                lowest[index] = *bound;
            }
        }
        if !self.rules.sections {
            return list
                .iter()
                .all(|&block| lowest[block as usize] + instance.blocks[block as usize].size <= self.limit);
        }
        raised.sort_unstable_by(|one, other| other.cmp(one));
        for &block in &list[tail..] {
            if (least[block as usize], rank[block as usize]) >= cursor {
                raised.push((cursor.0, block));
            }
        }
        sums.fill(0);
        let mut above = list[..tail].iter().map(|&block| (least[block as usize], block)).peekable();
        let mut below = raised.iter().copied().peekable();
        loop {
            let next = match (above.peek(), below.peek()) {
                (Some(one), Some(other)) if one.0 >= other.0 => above.next(),
                (Some(_), None) => above.next(),
                _ => below.next(),
            };
            let Some((bound, block)) = next else { return true };
            let Block { size, .. } = instance.blocks[block as usize];
            let sections = instance.blocks[block as usize].sections();
            let room = self.limit - bound;
            let mut over = false;
            for sum in &mut sums[sections.clone()] {
                *sum += size;
                over |= *sum > room;
            }
            self.visits += sections.len() as u64 / 4;
            if over {
                let section = sections.max_by_key(|&section| sums[section]).unwrap_or(0);
                prefer.overflow(section, list);
                return false;
            }
        }
    }

    /// Divides unplaced blocks into parts that do not meet; returns the first one to place.
    fn divided(&mut self, whole: Part, prefer: &mut dyn Prefer) -> usize {
        let Part { start, len, owner, next, .. } = whole;
        let mut begins: Vec<usize> = Vec::new();
        if self.rules.parts {
            self.sums.fill(0);
            for &block in &self.pool[start..start + len] {
                let Block { from, reach, .. } = self.instance.blocks[block as usize];
                let farthest = &mut self.sums[from as usize];
                *farthest = (*farthest).max(reach as i32);
            }
            let mut reach = 0;
            for (section, &farthest) in self.sums.iter().enumerate().filter(|(_, farthest)| **farthest > 0) {
                if section as i32 >= reach {
                    begins.push(section);
                }
                reach = reach.max(farthest);
            }
            self.visits += self.instance.sections as u64 / 4;
        }
        if begins.len() <= 1 {
            self.parts.push(whole);
            return self.parts.len() - 1;
        }
        self.rerank(start, len, prefer);
        let cursor = (whole.cursor.0, 0);
        let mut first = next;
        for (place, &begin) in begins.iter().enumerate() {
            let end = begins.get(place + 1).copied().unwrap_or(usize::MAX);
            let at = self.pool.len();
            for index in start..start + len {
                let block = self.pool[index];
                if (begin..end).contains(&(self.instance.blocks[block as usize].from as usize)) {
                    self.pool.push(block);
                }
            }
            let len = self.pool.len() - at;
            self.parts.push(Part { start: at, len, cursor, ranks: self.ranks, owner, next: first });
            first = self.parts.len() - 1;
        }
        first
    }

    /// Ranks blocks by preference, given what is still missing.
    fn rerank(&mut self, start: usize, len: usize, prefer: &dyn Prefer) {
        self.ranks += 1;
        self.ranked.clear();
        for &block in &self.pool[start..start + len] {
            self.ranked.push((prefer.preference(block as usize, &self.left), block));
        }
        self.ranked.sort_unstable_by(|one, other| other.0.cmp(&one.0).then(one.1.cmp(&other.1)));
        for (rank, &(_, block)) in self.ranked.iter().enumerate() {
            self.changes.push(Change::Rank(block, self.rank[block as usize]));
            self.rank[block as usize] = rank as u32;
        }
    }
}

/// A number for a block at a least offset; sums of these numbers distinguish the states of a part.
fn mixed(block: u32, least: i32) -> u64 {
    let state = (u64::from(block) << 32 | u64::from(least as u32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let state = (state ^ (state >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state ^ (state >> 32)
}
