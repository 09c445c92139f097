//! Blocks as the exact search sees them: sizes in whole units, crowded sections, and which blocks are in whose way.
//!
//! ```text
//! a  ---------     Sections 0 and 2 are crowded. Every block that is live in section 1 is live in section 0 too, so it adds
//! b  ----          nothing new and is dropped.
//! c         --
//!    0   1  2
//! ```

use super::life::Life;
use super::skyline::Stay;

/// The largest arena in units: sums of two offsets stay within 32 bits.
const MAX_UNITS: u64 = 1 << 29;

/// The most pairs of blocks that may be in each other's way.
const MAX_PAIRS: usize = 8_000_000;

/// One block: its size, and the crowded sections in which it is live.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) size: i32,
    pub(super) from: u32,
    pub(super) to: u32,
    /// The first section from which nothing is in its way; past `to` if copies may still use it.
    pub(super) reach: u32,
    /// The previous block with the same size and the same blocks in its way.
    pub(super) twin: Option<u32>,
}

impl Block {
    pub(super) fn sections(&self) -> std::ops::Range<usize> {
        self.from as usize..self.to as usize
    }
}

/// The blocks of an arena, sorted by their first section.
pub(super) struct Instance {
    pub(super) blocks: Vec<Block>,
    /// For each block: the blocks that must not share a byte with it.
    pub(super) neighbors: Vec<Vec<u32>>,
    /// Number of crowded sections.
    pub(super) sections: usize,
    /// The greatest number of bytes that divides all sizes.
    pub(super) unit: u64,
    /// The most units live at once in the order of the list.
    pub(super) most_live: i32,
}

impl Instance {
    /// The instance of these lifetimes, sorted by begin, with ends adjusted by `stays`; `None` if it is too large for the search.
    pub(super) fn new(lives: &[Life], stays: &[Stay]) -> Option<Instance> {
        let unit = lives.iter().fold(0, |unit, life| divisor(unit, life.bytes)).max(1);
        let total: u64 = lives.iter().map(|life| life.bytes / unit).try_fold(0_u64, u64::checked_add)?;
        if total > MAX_UNITS || u32::try_from(lives.len()).is_err() {
            return None;
        }
        let mut ends: Vec<usize> = lives.iter().map(|life| life.end).collect();
        ends.sort_unstable();
        // A section is crowded if a block ends before the next one begins.
        let begins: Vec<usize> = lives.iter().map(|life| life.begin).collect();
        let mut crowded: Vec<usize> = Vec::new();
        for end in ends {
            let last = begins[begins.partition_point(|begin| *begin < end).checked_sub(1)?];
            if crowded.last().is_none_or(|previous| *previous < last) {
                crowded.push(last);
            }
        }
        let section = |place: usize| crowded.partition_point(|last| *last < place) as u32;
        let neighbors = neighbors(lives, stays)?;
        let mut blocks: Vec<Block> = Vec::with_capacity(lives.len());
        for (index, life) in lives.iter().enumerate() {
            let to = section(life.end);
            let reach = neighbors[index].iter().map(|&other| section(lives[other as usize].begin) + 1).max();
            let block = Block {
                size: (life.bytes / unit) as i32,
                from: section(life.begin),
                to,
                reach: to.max(reach.unwrap_or(0)),
                twin: None,
            };
            let is_twin = |other: &u32| {
                let before = &blocks[*other as usize];
                (before.size, before.from, before.to) == (block.size, block.from, block.to)
                    && same_but(&neighbors[index], &neighbors[*other as usize], index as u32, *other)
            };
            let twin = neighbors[index].iter().copied().filter(|other| (*other as usize) < index).rfind(is_twin);
            blocks.push(Block { twin, ..block });
        }
        let mut live = vec![0; crowded.len()];
        for block in &blocks {
            live[block.sections()].iter_mut().for_each(|live| *live += block.size);
        }
        let most_live = live.into_iter().max().unwrap_or(0);
        Some(Instance { blocks, neighbors, sections: crowded.len(), unit, most_live })
    }
}

/// For each block: the conflicting ones, ascending.
fn neighbors(lives: &[Life], stays: &[Stay]) -> Option<Vec<Vec<u32>>> {
    let mut neighbors = vec![Vec::new(); lives.len()];
    let mut pairs = 0;
    for index in 0..lives.len() {
        // Stays are at least as long as the conflicts.
        for other in index + 1..lives.len() {
            if stays[other].from >= stays[index].to {
                break;
            }
            if lives[index].conflicts(&lives[other]) {
                neighbors[index].push(other as u32);
                neighbors[other].push(index as u32);
                pairs += 1;
            }
        }
        if pairs > MAX_PAIRS {
            return None;
        }
    }
    Some(neighbors)
}

/// Whether two ascending lists are the same apart from `one` in the second and `other` in the first.
fn same_but(first: &[u32], second: &[u32], one: u32, other: u32) -> bool {
    let first = first.iter().filter(|block| **block != other);
    first.eq(second.iter().filter(|block| **block != one))
}

/// The greatest common divisor.
fn divisor(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { divisor(other, one % other) }
}
