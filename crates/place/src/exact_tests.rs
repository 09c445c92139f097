//! The exact search against exhaustive search, with each rule switched off, and on instances known to be hard.

use super::exact::lowest;
use super::fit::Rules;
use super::instance::Instance;
use super::tests::{exhaustive, random};
use super::{Effort, Life, place, place_within, stays};

/// Pairs of blocks that share a byte while both may be in use. Reads the lifetimes itself, and compares every pair.
fn shared(lives: &[Life], offsets: &[u64]) -> Vec<(usize, usize)> {
    let is_over = |one: &Life, other: &Life| {
        one.end <= other.begin && (0..one.last.len()).all(|stream| one.last[stream] <= other.start[stream])
    };
    let mut pairs = Vec::new();
    for a in 0..lives.len() {
        for b in 0..a {
            let apart = offsets[a].max(offsets[b]) >= (offsets[a] + lives[a].bytes).min(offsets[b] + lives[b].bytes);
            if !apart && !is_over(&lives[a], &lives[b]) && !is_over(&lives[b], &lives[a]) {
                pairs.push((b, a));
            }
        }
    }
    pairs
}

/// Up to this number of blocks with random sizes, most of them multiples of a unit, and copies that may last.
fn small(most: u64, next: &mut dyn FnMut(u64) -> u64) -> Vec<Life> {
    let count = 1 + next(most);
    let races = next(2) == 0;
    let mut lives = Vec::new();
    for _ in 0..count {
        let begin = next(9) as usize;
        let life = Life::of(3 * (1 + next(9)), begin, begin + 1 + next(6) as usize);
        lives.push(if races { life.copied(next(4) as u32).knowing(next(7) as u32) } else { life });
    }
    lives
}

/// The exact search's offsets in bytes, height and proven bound, starting from all blocks on top of each other.
fn exact(lives: &[Life], rules: Rules) -> (Vec<u64>, u64, u64) {
    let (order, stays) = stays(lives);
    let sorted: Vec<Life> = order.iter().map(|&block| lives[block]).collect();
    let instance = Instance::new(&sorted, &stays).unwrap();
    let all = instance.blocks.iter().map(|block| block.size).sum::<i32>() + 1;
    let lowest = lowest(&instance, all, 0, (u64::MAX, &|| false), rules);
    let mut offsets = vec![0; lives.len()];
    for (&block, offset) in order.iter().zip(lowest.offsets.unwrap()) {
        offsets[block] = offset as u64 * instance.unit;
    }
    (offsets, lowest.height as u64 * instance.unit, lowest.bound as u64 * instance.unit)
}

fn each_rule_off() -> Vec<(&'static str, Rules)> {
    let all = Rules::ALL;
    let none = Rules {
        order: false,
        gaps: false,
        raises: false,
        sections: false,
        twins: false,
        parts: false,
        failures: false,
    };
    vec![
        ("all rules", all),
        ("no order", Rules { order: false, ..all }),
        ("no gaps", Rules { gaps: false, ..all }),
        ("no raises", Rules { raises: false, ..all }),
        ("no sections", Rules { sections: false, ..all }),
        ("no twins", Rules { twins: false, ..all }),
        ("no parts", Rules { parts: false, ..all }),
        ("no failures", Rules { failures: false, ..all }),
        ("no rules", none),
    ]
}

#[test]
fn the_least_height_is_found_and_proven_with_and_without_each_rule() {
    let mut next = random();
    let (mut wasteful, mut racing) = (0, 0);
    for _ in 0..400 {
        let lives = small(7, &mut next);
        let least = exhaustive(&lives);
        wasteful += usize::from(least > super::most_live(&lives));
        racing += usize::from(
            lives.iter().any(|one| lives.iter().any(|other| one.end <= other.begin && one.conflicts(other))),
        );
        for (name, rules) in each_rule_off() {
            let (offsets, height, bound) = exact(&lives, rules);
            assert_eq!((height, bound), (least, least), "{name}: {lives:?}");
            assert_eq!(shared(&lives, &offsets), [], "{name}: {lives:?}");
            let ends = lives.iter().zip(&offsets).map(|(life, offset)| offset + life.bytes);
            assert_eq!(ends.max(), Some(least), "{name}: {lives:?}");
        }
    }
    assert!(wasteful > 20 && racing > 50, "{wasteful} waste bytes, {racing} race");
}

#[test]
fn rules_agree_on_instances_too_large_for_exhaustive_search() {
    let mut next = random();
    for _ in 0..40 {
        let lives = small(12, &mut next);
        let (_, least, bound) = exact(&lives, Rules::ALL);
        assert_eq!(least, bound, "{lives:?}");
        for (name, rules) in each_rule_off().into_iter().filter(|(name, _)| *name != "no rules") {
            assert_eq!(exact(&lives, rules).1, least, "{name}: {lives:?}");
        }
    }
}

#[test]
fn a_shared_byte_is_found() {
    let lives = [Life::of(10, 0, 4), Life::of(10, 2, 6), Life::of(10, 4, 8).knowing(1), Life::of(5, 0, 3).copied(1)];
    assert_eq!(shared(&lives, &[0, 10, 0, 20]), []);
    assert_eq!(shared(&lives, &[0, 9, 0, 20]), [(0, 1), (1, 2)], "a byte too low");
    assert_eq!(shared(&lives, &[0, 10, 0, 9]), [(0, 3), (1, 3)]);
    let racing = [Life::of(10, 0, 2).copied(1), Life::of(10, 3, 5)];
    assert_eq!(shared(&racing, &[0, 0]), [(0, 1)], "apart in the list alone");
}

/// Blocks of a file of lines `id,lower,upper,size`.
fn read(text: &str) -> Vec<Life> {
    let line = |line: &str| {
        let mut fields = line.split(',').skip(1).map(|field| field.parse::<u64>().unwrap());
        let mut field = || fields.next().unwrap();
        let (begin, end) = (field() as usize, field() as usize);
        Life::of(field(), begin, end)
    };
    text.lines().skip(1).map(line).collect()
}

/// The hard instances of MiniMalloc; with `TIGHTFIT_OFFSETS` set, the instances of that folder, timed.
/// More than plans get: seconds for the hardest.
const EXACT_VISITS: u64 = 600_000_000;

#[test]
#[expect(clippy::print_stdout, reason = "times, on request")]
fn eleven_hard_instances_fit() {
    let folder = std::env::var_os("TIGHTFIT_OFFSETS");
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/instances");
    let timed = folder.is_some();
    let mut files: Vec<_> =
        std::fs::read_dir(folder.unwrap_or(default.into())).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    assert!(files.len() >= 11, "{files:?}");
    for file in files {
        // NAME.CAPACITY.csv
        let name = file.file_stem().unwrap().to_str().unwrap();
        let capacity: u64 = name.split('.').nth(1).unwrap().parse().unwrap();
        let lives = read(&std::fs::read_to_string(&file).unwrap());
        let start = std::time::Instant::now();
        let placement = place_within(&lives, Effort::Draft, EXACT_VISITS, None, &|| false);
        if timed {
            println!(
                "{name}: {} blocks in {} bytes, {:.2} s",
                lives.len(),
                placement.height,
                start.elapsed().as_secs_f64()
            );
        }
        assert_eq!(shared(&lives, &placement.offsets), [], "{name}");
        let ends = lives.iter().zip(&placement.offsets).map(|(life, offset)| offset + life.bytes);
        assert_eq!(ends.max(), Some(placement.height), "{name}");
        assert!(placement.height <= capacity, "{name}: {} of {capacity} bytes", placement.height);
    }
}

#[test]
fn the_same_blocks_get_the_same_offsets() {
    let lives = read(include_str!("../tests/instances/H.1048576.csv"));
    assert_eq!(place(&lives, Effort::Draft, &|| false), place(&lives, Effort::Draft, &|| false));
}
