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
//! A few orders are tried; in the best, blocks that end too high move forward, again and again. No placement is smaller
//! than the most bytes that are live at once, so reaching that ends the search.
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

/// Looks at a block in the way of another that a search may take.
const LOOKS: usize = 3_000_000;

/// Most orders that are tried.
const ATTEMPTS: usize = 30_000;

/// Orders in a row that may be no better before the search goes back to the best.
const PATIENCE: usize = 40;

/// The offset of a block that has none yet.
const UNPLACED: u64 = u64::MAX;

/// Places blocks of these lives.
///
/// - Cost: O(blocks²) to find which conflict, then the conflicts of the blocks for each order; the search ends when
///   nothing is wasted.
pub(super) fn place(lives: &[Life]) -> Placement {
    let most_live = most_live(lives);
    let mut offsets = vec![UNPLACED; lives.len()];
    // What meets everything lies at the bottom, where it is in nobody's way.
    let mut base = 0;
    let mut movable: Vec<usize> = Vec::new();
    for (index, life) in lives.iter().enumerate() {
        let resident = life.end == usize::MAX;
        if resident || lives.iter().all(|other| std::ptr::eq(life, other) || life.conflicts(other)) {
            offsets[index] = base;
            base += life.bytes;
        } else {
            movable.push(index);
        }
    }
    let mut search = Search::new(lives, &movable, base, most_live, offsets);
    for order in orders(lives, &movable) {
        search.attempt(&order, 0, false);
        search.attempt(&order, 0, true);
    }
    search.mend();
    Placement { offsets: search.best, height: search.height, most_live }
}

/// Orders tried so far, and the best placement of them.
struct Search<'a> {
    lives: &'a [Life],
    /// By block: the movable blocks that it conflicts with.
    rivals: Vec<Vec<usize>>,
    /// Where the blocks that never go end.
    base: u64,
    /// No placement is lower.
    goal: u64,
    offsets: Vec<u64>,
    best: Vec<u64>,
    best_order: Vec<usize>,
    height: u64,
    looks: usize,
}

impl<'a> Search<'a> {
    fn new(lives: &'a [Life], movable: &[usize], base: u64, goal: u64, offsets: Vec<u64>) -> Search<'a> {
        let mut rivals: Vec<Vec<usize>> = vec![Vec::new(); lives.len()];
        for (place, &one) in movable.iter().enumerate() {
            for &other in movable[..place].iter().filter(|&&other| lives[one].conflicts(&lives[other])) {
                rivals[one].push(other);
                rivals[other].push(one);
            }
        }
        let best = offsets.clone();
        Search { lives, rivals, base, goal, offsets, best, best_order: Vec::new(), height: u64::MAX, looks: 0 }
    }

    fn is_over(&self) -> bool {
        self.height <= self.goal || self.looks > LOOKS
    }

    /// Places blocks in this order, of which those before `from` are in place; if that is no lower than the best, the
    /// place in the order of the block that showed it.
    fn attempt(&mut self, order: &[usize], from: usize, tightest: bool) -> Option<usize> {
        if !self.best_order.is_empty() && self.is_over() {
            return None;
        }
        let mut height = self.base;
        for &index in &order[..from] {
            height = height.max(self.offsets[index] + self.lives[index].bytes);
        }
        for &index in &order[from..] {
            self.offsets[index] = UNPLACED;
        }
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for (place, &index) in order.iter().enumerate().skip(from) {
            self.looks += 1 + self.rivals[index].len();
            taken.clear();
            let placed = self.rivals[index].iter().filter(|&&rival| self.offsets[rival] != UNPLACED);
            taken.extend(placed.map(|&rival| (self.offsets[rival], self.offsets[rival] + self.lives[rival].bytes)));
            taken.sort_unstable();
            let offset = lowest(&taken, self.lives[index].bytes, self.base, tightest);
            let end = offset + self.lives[index].bytes;
            if end >= self.height {
                return Some(place);
            }
            height = height.max(end);
            self.offsets[index] = offset;
        }
        self.height = height;
        self.best.clone_from(&self.offsets);
        self.best_order = order.to_vec();
        None
    }

    /// Moves the block that ends too high forward in the order, to where a fixed sequence of random numbers says, until
    /// nothing is wasted or the search has taken its share of work.
    ///
    /// Source: after "squeaky wheel" optimization, Joslin and Clements 1999.
    fn mend(&mut self) {
        let mut order = self.best_order.clone();
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut failures = 0;
        let mut from = 0;
        for _ in 0..ATTEMPTS {
            if self.is_over() || order.is_empty() {
                return;
            }
            match self.attempt(&order, from, false) {
                Some(place) if place > 0 && failures < PATIENCE => {
                    // A xorshift generator, Marsaglia 2003.
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    // Only going ahead of a block that it conflicts with makes a difference.
                    let rivals = &self.rivals[order[place]];
                    let ahead = |rival: &&usize| self.offsets[**rival] != UNPLACED;
                    let chosen = (random % rivals.iter().filter(ahead).count().max(1) as u64) as usize;
                    let rival = rivals.iter().filter(ahead).nth(chosen);
                    let to = order.iter().position(|index| Some(index) == rival).unwrap_or(0);
                    order[to..=place].rotate_right(1);
                    from = to;
                    failures += 1;
                }
                _ => {
                    order.clone_from(&self.best_order);
                    // The best order itself is no lower than the best: begin by moving its highest block.
                    let ends = |index: usize| self.best[index] + self.lives[index].bytes;
                    let highest = order.iter().position(|&index| ends(index) == self.height).unwrap_or(0);
                    random = random.rotate_left(5) ^ 0x2545_f491_4f6c_dd1d;
                    let to = (random % (highest as u64 + 1)) as usize;
                    order[to..=highest].rotate_right(1);
                    from = 0;
                    failures = 0;
                }
            }
        }
    }
}

/// Orders in which to place blocks, the most promising first.
fn orders(lives: &[Life], movable: &[usize]) -> Vec<Vec<usize>> {
    let span = |index: usize| lives[index].end - lives[index].begin;
    let contention = contention(lives);
    let sorted = |key: &dyn Fn(usize) -> (u128, u64)| {
        let mut order = movable.to_vec();
        order.sort_by_key(|&index| std::cmp::Reverse(key(index)));
        order
    };
    vec![
        sorted(&|index| (span(index) as u128, lives[index].bytes)),
        sorted(&|index| (u128::from(contention[index]), span(index) as u64)),
        sorted(&|index| (u128::from(contention[index]), lives[index].bytes)),
        sorted(&|index| (u128::from(lives[index].bytes), span(index) as u64)),
        sorted(&|index| (span(index) as u128 * u128::from(lives[index].bytes), 0)),
        sorted(&|index| (usize::MAX as u128 - lives[index].begin as u128, 0)),
        sorted(&|index| (lives[index].end as u128, 0)),
    ]
}

/// By block: the most bytes live at any moment of its life.
fn contention(lives: &[Life]) -> Vec<u64> {
    let mut places: Vec<usize> =
        lives.iter().filter(|life| life.end != usize::MAX).flat_map(|life| [life.begin, life.end]).collect();
    places.sort_unstable();
    places.dedup();
    let at = |place: usize| places.partition_point(|known| *known < place);
    let mut live = vec![0_u64; places.len()];
    for life in lives.iter().filter(|life| life.end != usize::MAX) {
        live[at(life.begin)..at(life.end)].iter_mut().for_each(|live| *live += life.bytes);
    }
    let most = |life: &Life| match life.end {
        usize::MAX => u64::MAX,
        end => live[at(life.begin)..at(end)].iter().copied().max().unwrap_or(0),
    };
    lives.iter().map(most).collect()
}

/// The lowest offset of free bytes among what is taken, by rising offset, or that of the tightest gap.
fn lowest(taken: &[(u64, u64)], bytes: u64, base: u64, tightest: bool) -> u64 {
    let mut free = base;
    let mut gap: Option<(u64, u64)> = None;
    for &(offset, end) in taken {
        let room = offset.saturating_sub(free);
        if room >= bytes && gap.is_none_or(|(least, _)| room < least) {
            gap = Some((room, free));
            if !tightest {
                break;
            }
        }
        free = free.max(end);
    }
    gap.map_or(free, |(_, offset)| offset)
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
    fn lives_one_in_the_other_stack_up() {
        let lives = [Life::of(100, 0, 10), Life::of(50, 1, 9), Life::of(70, 2, 8), Life::of(30, 12, 13)];
        let placement = place(&lives);
        assert_eq!((placement.height, placement.most_live), (220, 220));
        disjoint(&lives, &placement);
    }

    #[test]
    fn what_never_goes_lies_at_the_bottom() {
        let lives = [Life::of(10, 0, 1), Life::of(40, 0, usize::MAX), Life::of(20, 1, 2)];
        assert_eq!(place(&lives).offsets, [40, 0, 40]);
    }

    #[test]
    fn bytes_that_a_copy_may_still_be_at_are_not_shared() {
        let (first, second) = (Life::of(10, 0, 2).copied(1), Life::of(10, 3, 5));
        assert_eq!(place(&[first, second]).height, 20, "over in the list alone");
        assert_eq!(place(&[first, second.knowing(1)]).height, 10);
    }

    /// The least height over all orders: every tightest packing comes from placing blocks lowest first in some order.
    fn exhaustive(lives: &[Life]) -> u64 {
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
                    let offset = lowest(&taken, lives[index].bytes, 0, false);
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

    #[test]
    fn small_instances_are_placed_as_tightly_as_can_be() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % below
        };
        for _ in 0..200 {
            let life = |next: &mut dyn FnMut(u64) -> u64| {
                let begin = next(8) as usize;
                Life::of(1 + next(9), begin, begin + 1 + next(6) as usize)
            };
            let lives: Vec<Life> = (0..6).map(|_| life(&mut next)).collect();
            let placement = place(&lives);
            disjoint(&lives, &placement);
            assert_eq!(placement.height, exhaustive(&lives), "{lives:?}");
            assert!(placement.most_live <= placement.height);
        }
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
