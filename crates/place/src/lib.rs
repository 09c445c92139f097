//! Assigns every block a fixed offset so that conflicting blocks do not overlap and the arena is small.
//!
//! ```text
//! offset |      cccc         a long-lived map lies below the blocks that come and go during its life, as on a stack;
//!        |   bbbbbbbbbbb     permanent blocks lie at the bottom
//!        | aaaaaaaaaaaaaaaaa
//!        +------------------ list
//! ```
//!
//! No placement can be smaller than the peak of live bytes, so the search stops when it reaches that. A fast search
//! comes first (`skyline`). If it wastes more than a little, an exact one follows (`exact`), which either finds a
//! lower placement, proves that no lower one exists, or gives up after a fixed number of steps.
//!
//! `instance` has the blocks in whole units, `life` the time in which each is in use, and `fit` one search below a given
//! height, which `exact` repeats.
//!
//! It is a separate crate because its tests search much longer than plans do. So they run optimized, while the unit tests of
//! the much larger `tightfit-plan` can do without, which saves minutes of compiling.

mod exact;
#[cfg(test)]
mod exact_tests;
mod fit;
mod instance;
mod life;
mod skyline;

use exact::lowest;
use fit::Rules;
use instance::Instance;
use life::least;
pub use life::{Clock, Life, STREAMS, is_known};
pub use skyline::{Effort, IsOver, is_tight};
use skyline::{Packing, Stay};

/// Visits per block below which an exact search is not begun.
const LEAST_VISITS: u64 = 300;

/// Offsets and the resulting height.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The offset of each block, in bytes.
    pub offsets: Vec<u64>,
    /// The highest end of a block.
    pub height: u64,
    /// The most bytes live at once in the order of the list.
    pub most_live: u64,
}

/// Places blocks with these lifetimes; any of them, in any order. The same arguments give the same offsets, unless `is_over`
/// ends the search.
///
/// - Cost: at most O(blocks²) per order tried, for as many orders as `effort` allows; the search stops when nothing is
///   wasted. If more than 1% is, the exact search follows.
pub fn place(lives: &[Life], effort: Effort, is_over: IsOver) -> Placement {
    place_within(lives, effort, effort.exact_visits(), None, is_over)
}

/// Like [`place`], but accepts any placement of at most height `most`, and searches until it finds one or gives up.
pub fn place_below(lives: &[Life], most: u64, effort: Effort, is_over: IsOver) -> Placement {
    place_within(lives, effort, effort.exact_visits() / 3, Some(most), is_over)
}

/// The same with a given limit on visits of the exact search.
fn place_within(lives: &[Life], effort: Effort, exact_visits: u64, most: Option<u64>, is_over: IsOver) -> Placement {
    let most_live = most_live(lives);
    let mut offsets = vec![0; lives.len()];
    let mut base = 0;
    for (offset, life) in offsets.iter_mut().zip(lives).filter(|(_, life)| life.end == usize::MAX) {
        *offset = base;
        base += life.bytes;
    }
    let (movable, stays) = stays(lives);
    if movable.is_empty() {
        return Placement { offsets, height: base, most_live };
    }
    let movable_lives: Vec<Life> = movable.iter().map(|&block| lives[block]).collect();
    let (found, height) = place_movable(
        &movable_lives,
        &stays,
        effort,
        exact_visits,
        most.map(|most| most.saturating_sub(base)),
        is_over,
    );
    for (&block, offset) in movable.iter().zip(found) {
        offsets[block] = base + offset;
    }
    Placement { offsets, height: base + height, most_live }
}

/// Places blocks that come and go, sorted by begin; returns their offsets and the height.
fn place_movable(
    lives: &[Life],
    stays: &[Stay],
    effort: Effort,
    exact_visits: u64,
    most: Option<u64>,
    is_over: IsOver,
) -> (Vec<u64>, u64) {
    let mut packing = Packing::new(stays, effort, is_over);
    packing.improve(Effort::Draft);
    let (offsets, height) = packing.best();
    let mut best = (offsets.to_vec(), height);
    let least = most_live(lives);
    let will_do = |height: u64| most.map_or_else(|| is_tight(height, least), |most| height <= most);
    if will_do(best.1) {
        if most.is_some() {
            return best;
        }
        packing.improve(effort);
    } else if let Some(instance) = worth_it(lives, exact_visits, is_over).then(|| Instance::new(lives, stays)).flatten()
    {
        let known = (height / instance.unit) as i32;
        let lowest = lowest(&instance, known, units(most, instance.unit), (exact_visits, is_over), Rules::ALL);
        if let Some(offsets) = lowest.offsets {
            let bytes = |units: i32| units as u64 * instance.unit;
            best = (offsets.into_iter().map(bytes).collect(), bytes(lowest.height));
        }
        if lowest.height > lowest.bound && !(most.is_some() && will_do(best.1)) {
            packing.improve(effort);
        }
    } else {
        packing.improve(effort);
    }
    let (offsets, height) = packing.best();
    if height < best.1 { (offsets.to_vec(), height) } else { best }
}

/// Whether an exact search of this number of visits places each block more than a few times.
fn worth_it(lives: &[Life], visits: u64, is_over: IsOver) -> bool {
    visits >= LEAST_VISITS * lives.len() as u64 && !is_over()
}

/// A height in whole units; 0 to accept any lower height.
fn units(most: Option<u64>, unit: u64) -> i32 {
    most.map_or(0, |most| i32::try_from(most / unit).unwrap_or(i32::MAX))
}

/// The non-resident blocks, and the sections of the list during which each is live.
fn stays(lives: &[Life]) -> (Vec<usize>, Vec<Stay>) {
    let mut movable: Vec<usize> = (0..lives.len())
        .filter(|&block| lives[block].begin < lives[block].end && lives[block].end != usize::MAX)
        .collect();
    movable.sort_by_key(|&block| lives[block].begin);
    // The least that any later block knows when it begins.
    let mut known = vec![[u32::MAX; STREAMS]; movable.len() + 1];
    for (place, &block) in movable.iter().enumerate().rev() {
        known[place] = least(known[place + 1], lives[block].start);
    }
    let mut begins: Vec<usize> = movable.iter().map(|&block| lives[block].begin).collect();
    let after = |end: usize| begins.partition_point(|begin| *begin < end);
    let end = |&block: &usize| {
        let life = &lives[block];
        let next = after(life.end);
        if is_known(&life.last, &known[next]) {
            return life.end;
        }
        // It has ended only in list order: keep it until every block that does not know of its end has begun.
        let racing = movable[next..].iter().rev().find(|&&other| life.conflicts(&lives[other]));
        racing.map_or(life.end, |&other| lives[other].begin + 1)
    };
    let ends: Vec<usize> = movable.iter().map(end).collect();
    begins.dedup();
    let section = |place: usize| begins.partition_point(|begin| *begin < place);
    let stay = |(&block, end): (&usize, usize)| {
        let Life { bytes, begin, .. } = lives[block];
        Stay { bytes, from: section(begin), to: section(end) }
    };
    let stays = movable.iter().zip(ends).map(stay).collect();
    (movable, stays)
}

/// The most bytes live at once in the order of the list.
pub fn most_live(lives: &[Life]) -> u64 {
    let mut changes: Vec<(usize, bool, u64)> = Vec::with_capacity(2 * lives.len());
    for life in lives.iter().filter(|life| life.begin < life.end) {
        changes.extend([(life.begin, true, life.bytes), (life.end, false, life.bytes)]);
    }
    // At the same position, ends come before beginnings.
    changes.sort_unstable();
    let mut live = 0;
    changes.into_iter().fold(0, |most, (_, begins, bytes)| {
        live = if begins { live + bytes } else { live - bytes };
        most.max(live)
    })
}

/// The largest free gap below `limit` among the blocks placed at a moment: its offset and length. Block `except` counts
/// as free.
pub fn largest_gap(lives: &[Life], offsets: &[u64], moment: &Life, except: Option<usize>, limit: u64) -> (u64, u64) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn disjoint(lives: &[Life], placement: &Placement) {
        for (a, one) in lives.iter().enumerate() {
            for (b, other) in lives.iter().enumerate().filter(|(b, other)| *b != a && one.conflicts(other)) {
                let (first, second) = (placement.offsets[a], placement.offsets[b]);
                assert!(first + one.bytes <= second || second + other.bytes <= first, "{a} and {b}: {placement:?}");
            }
        }
    }

    #[test]
    fn nested_lifetimes_stack_up() {
        let lives = [Life::of(100, 0, 10), Life::of(50, 1, 9), Life::of(70, 2, 8), Life::of(30, 12, 13)];
        let placement = place(&lives, Effort::Draft, &|| false);
        assert_eq!((placement.height, placement.most_live), (220, 220));
        disjoint(&lives, &placement);
    }

    #[test]
    fn permanent_blocks_lie_at_the_bottom() {
        let lives = [Life::of(10, 0, 1), Life::of(40, 0, usize::MAX), Life::of(20, 1, 2)];
        assert_eq!(place(&lives, Effort::Draft, &|| false).offsets, [40, 0, 40]);
    }

    #[test]
    fn bytes_in_use_by_a_copy_are_not_shared() {
        let (first, second) = (Life::of(10, 0, 2).copied(1), Life::of(10, 3, 5));
        assert_eq!(place(&[first, second], Effort::Draft, &|| false).height, 20, "ended only in list order");
        assert_eq!(place(&[first, second.knowing(1)], Effort::Draft, &|| false).height, 10);
    }

    /// Pseudo-random numbers below a bound, with a fixed seed.
    pub(super) fn random() -> impl FnMut(u64) -> u64 {
        let mut state = 1_u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        }
    }

    /// The lowest free offset among occupied ranges, sorted by offset.
    fn lowest(taken: &[(u64, u64)], bytes: u64) -> u64 {
        let mut free = 0;
        for &(offset, end) in taken {
            if free + bytes <= offset {
                break;
            }
            free = free.max(end);
        }
        free
    }

    /// The least height over all orders: some order yields an optimal packing if each block is placed as low as
    /// possible.
    pub(super) fn exhaustive(lives: &[Life]) -> u64 {
        fn extend(lives: &[Life], placed: &mut Vec<(u64, u64, usize)>, least: &mut u64) {
            let height = placed.iter().map(|placed| placed.1).max().unwrap_or(0);
            if height >= *least {
                return;
            }
            if placed.len() == lives.len() {
                *least = height;
                return;
            }
            for index in 0..lives.len() {
                if placed.iter().all(|placed| placed.2 != index) {
                    let in_the_way = placed.iter().filter(|placed| lives[placed.2].conflicts(&lives[index]));
                    let mut taken: Vec<(u64, u64)> = in_the_way.map(|placed| (placed.0, placed.1)).collect();
                    taken.sort_unstable();
                    let offset = lowest(&taken, lives[index].bytes);
                    placed.push((offset, offset + lives[index].bytes, index));
                    extend(lives, placed, least);
                    placed.pop();
                }
            }
        }
        let mut least = u64::MAX;
        extend(lives, &mut Vec::new(), &mut least);
        least
    }

    /// Six blocks, few enough to try every order.
    fn six(next: &mut dyn FnMut(u64) -> u64) -> Vec<Life> {
        let mut life = |_| {
            let begin = next(8) as usize;
            Life::of(1 + next(9), begin, begin + 1 + next(6) as usize)
        };
        (0..6).map(&mut life).collect()
    }

    #[test]
    fn small_instances_are_placed_optimally() {
        let mut next = random();
        for _ in 0..200 {
            let lives = six(&mut next);
            let placement = place(&lives, Effort::Draft, &|| false);
            disjoint(&lives, &placement);
            assert_eq!(placement.height, exhaustive(&lives), "{lives:?}");
            assert!(placement.most_live <= placement.height);
        }
    }

    #[test]
    fn a_placement_below_a_height_is_found_where_there_is_one() {
        let mut next = random();
        for _ in 0..200 {
            let lives = six(&mut next);
            let least = exhaustive(&lives);
            for most in [least, least + 1, least - 1] {
                let placement = place_below(&lives, most, Effort::Plan, &|| false);
                disjoint(&lives, &placement);
                assert!(placement.height <= most.max(least), "{lives:?} below {most}");
            }
        }
    }

    #[test]
    fn conflicting_blocks_never_overlap() {
        let mut next = random();
        let mut races = 0;
        for _ in 0..200 {
            let mut life = || {
                let begin = next(30) as usize;
                let life = Life::of(1 + next(9), begin, begin + 1 + next(9) as usize);
                life.copied(next(6) as u32).knowing(next(9) as u32)
            };
            let lives: Vec<Life> = (0..20).map(|_| life()).collect();
            disjoint(&lives, &place(&lives, Effort::Draft, &|| false));
            let is_race = |one: &Life, other: &Life| one.end <= other.begin && one.conflicts(other);
            races += lives.iter().flat_map(|one| lives.iter().filter(move |other| is_race(one, other))).count();
        }
        assert!(races > 1000, "{races} pairs are apart only in list order");
    }

    #[test]
    fn the_largest_gap_is_between_blocks_or_above_them() {
        let lives = [Life::of(10, 0, 9), Life::of(10, 0, 9), Life::of(5, 0, 2)];
        let offsets = [0, 40, 10];
        let moment = Life::of(0, 5, 6);
        assert_eq!(largest_gap(&lives, &offsets, &moment, None, 60), (10, 30));
        assert_eq!(largest_gap(&lives, &offsets, &moment, None, 90), (50, 40));
        assert_eq!(largest_gap(&lives, &offsets, &moment, Some(1), 60), (10, 50), "one block counts as free");
        assert_eq!(largest_gap(&lives, &offsets, &Life::of(0, 1, 2), None, 60), (15, 25), "all three are there");
    }
}
