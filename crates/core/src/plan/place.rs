//! A fixed offset for every block, so that no two that conflict have a byte in common and the arena is small.
//!
//! Blocks are placed one by one at the lowest offset, or in the tightest gap, that those placed before leave:
//!
//! ```text
//! offset |      cccc         longest lives first: a map that stays from early to late lies below all that come and go
//!        |   bbbbbbbbbbb     between, as on a stack
//!        | aaaaaaaaaaaaaaaaa
//!        +------------------ list
//! ```
//!
//! A few orders are tried; then the block that ends highest moves to the front of the best, as long as that helps. No
//! placement is smaller than the most bytes that are live at once, so reaching that ends the search.
//!
//! **Source**: offline dynamic storage allocation; the orders are among those of TelaMalloc (Maas et al. 2023, 5).

use super::lives::Life;

/// Offsets, and how high they reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    pub(super) offsets: Vec<u64>,
    /// The highest end of a block.
    pub(super) height: u64,
    /// The most bytes live at once in the order of the list.
    pub(super) most_live: u64,
}

/// Pairs of blocks that one placement may compare, over all attempts.
const COMPARISONS: usize = 40_000_000;

/// Most times that the highest block moves to the front.
const PROMOTIONS: usize = 200;

/// Places blocks of these lives.
///
/// - Cost: O(blocks²) for each attempt; attempts end when nothing is wasted.
pub(super) fn place(lives: &[Life]) -> Placement {
    let most_live = most_live(lives);
    let mut offsets = vec![0; lives.len()];
    // What never goes lies at the bottom.
    let mut base = 0;
    let mut movable: Vec<usize> = Vec::new();
    for (index, life) in lives.iter().enumerate() {
        if life.end == usize::MAX {
            offsets[index] = base;
            base += life.bytes;
        } else {
            movable.push(index);
        }
    }
    let mut best: Option<(u64, Vec<usize>, Vec<u64>)> = None;
    let mut attempt = |order: &[usize], tightest: bool| {
        let mut offsets = offsets.clone();
        let height = fill(lives, order, base, tightest, &mut offsets);
        if best.as_ref().is_none_or(|(least, _, _)| height < *least) {
            best = Some((height, order.to_vec(), offsets));
        }
        best.as_ref().map_or((height, Vec::new(), Vec::new()), |best| best.clone())
    };
    let mut left = (COMPARISONS / (movable.len() * movable.len()).max(1)).max(1);
    let mut found = attempt(&movable, false);
    for order in orders(lives, &movable) {
        for tightest in [false, true] {
            if found.0 > most_live && left > 0 {
                found = attempt(&order, tightest);
                left -= 1;
            }
        }
    }
    let mut order = found.1.clone();
    for _ in 0..left.min(PROMOTIONS) {
        if found.0 <= most_live {
            break;
        }
        // The block that ends highest goes before all others, and the rest arranges itself around it.
        let highest = order.iter().position(|&index| found.2[index] + lives[index].bytes == found.0);
        let Some(highest) = highest.filter(|place| *place > 0) else { break };
        order[..=highest].rotate_right(1);
        let before = found.0;
        found = attempt(&order, false);
        if found.0 < before {
            order.clone_from(&found.1);
        }
    }
    Placement { offsets: found.2, height: found.0, most_live }
}

/// Orders in which to place blocks, the most promising first.
fn orders(lives: &[Life], movable: &[usize]) -> [Vec<usize>; 3] {
    let span = |index: usize| lives[index].end - lives[index].begin;
    let sorted = |key: &dyn Fn(usize) -> (u128, u64)| {
        let mut order = movable.to_vec();
        order.sort_by_key(|&index| std::cmp::Reverse(key(index)));
        order
    };
    [
        sorted(&|index| (span(index) as u128, lives[index].bytes)),
        sorted(&|index| (u128::from(lives[index].bytes), span(index) as u64)),
        sorted(&|index| (span(index) as u128 * u128::from(lives[index].bytes), 0)),
    ]
}

/// Places blocks in this order above `base`, each where those before it leave room; gives the highest end.
fn fill(lives: &[Life], order: &[usize], base: u64, tightest: bool, offsets: &mut [u64]) -> u64 {
    let mut placed: Vec<(u64, u64, usize)> = Vec::with_capacity(order.len());
    let mut height = base;
    for &index in order {
        let life = &lives[index];
        let mut free = base;
        let mut gap: Option<(u64, u64)> = None;
        for &(offset, end, other) in &placed {
            if end <= free || !life.conflicts(&lives[other]) {
                continue;
            }
            let room = offset.saturating_sub(free);
            if room >= life.bytes && gap.is_none_or(|(least, _)| room < least) {
                gap = Some((room, free));
                if !tightest {
                    break;
                }
            }
            free = free.max(end);
        }
        let offset = gap.map_or(free, |(_, offset)| offset);
        offsets[index] = offset;
        height = height.max(offset + life.bytes);
        let at = placed.partition_point(|&(other, _, _)| other < offset);
        placed.insert(at, (offset, offset + life.bytes, index));
    }
    height
}

/// The most bytes live at once in the order of the list.
pub(super) fn most_live(lives: &[Life]) -> u64 {
    let mut changes: Vec<(usize, bool, u64)> = Vec::with_capacity(2 * lives.len());
    for life in lives.iter().filter(|life| life.begin < life.end) {
        changes.extend([(life.begin, true, life.bytes), (life.end, false, life.bytes)]);
    }
    // Ends come before beginnings at the same place.
    changes.sort_unstable();
    let mut live = 0;
    changes.into_iter().fold(0, |most, (_, begins, bytes)| {
        live = if begins { live + bytes } else { live - bytes };
        most.max(live)
    })
}

/// The largest free stretch at a moment among placed blocks, below `limit`: its offset and length. The block of place
/// `except` counts as free.
pub(super) fn largest_gap(
    lives: &[Life],
    offsets: &[u64],
    moment: &Life,
    except: Option<usize>,
    limit: u64,
) -> (u64, u64) {
    let mut taken: Vec<(u64, u64)> = lives
        .iter()
        .zip(offsets)
        .enumerate()
        .filter(|(index, (life, _))| Some(*index) != except && life.bytes > 0 && life.conflicts(moment))
        .map(|(_, (life, offset))| (*offset, offset + life.bytes))
        .collect();
    taken.sort_unstable();
    let mut free = 0;
    let mut largest = (0, 0);
    for (offset, end) in taken.into_iter().chain([(limit, limit)]) {
        let room = offset.saturating_sub(free);
        if room > largest.1 {
            largest = (free, room);
        }
        free = free.max(end);
    }
    largest
}
