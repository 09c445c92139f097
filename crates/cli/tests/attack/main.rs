//! The command under attack: damaged files, absurd values and odd environments. No input may make it panic,
//! abort, hang, take memory without bound, lose data, or fail without saying why.
//!
//! Input `number` of a kind is the same in every run. The ordinary test has the first few of each kind, the long one as many
//! as `TIGHTFIT_ATTACK` says, or a single one, such as `recordings:17`.
//!
//! ```text
//! bench (good files) -> case (one damaged) -> child (the command, with limits) -> verdict -> a line of the table
//! ```

mod bench;
mod caches;
mod case;
mod child;
mod data;
mod environment;
mod generator;
mod lists;
mod mutate;
mod networks;
mod outputs;
mod plans;
mod recordings;
mod reports;
mod values;

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bench::Bench;
use case::{Case, KINDS, Tally};

/// Inputs of each kind in the ordinary test.
const INPUTS_PER_KIND: [u64; KINDS.len()] = [10, 10, 24, 8, 32, 54, 30, 24, 6, 16];

/// The request of the environment to the long test.
enum Asked {
    /// This many inputs, alternating between all kinds.
    Inputs(u64),
    /// These inputs of the kind at this place in [`KINDS`].
    Of(usize, Range<u64>),
}

/// Reads `20000`, `recordings:17` or `recordings:0-300`.
fn asked(said: &str) -> Option<Asked> {
    let Some((kind, numbers)) = said.split_once(':') else { return said.parse().ok().map(Asked::Inputs) };
    let place = KINDS.iter().position(|(name, _)| *name == kind)?;
    let (first, end) = match numbers.split_once('-') {
        Some((first, end)) => (first.parse().ok()?, end.parse().ok()?),
        None => (numbers.parse().ok()?, numbers.parse::<u64>().ok()? + 1),
    };
    Some(Asked::Of(place, first..end))
}

/// Runs inputs, given as places in [`KINDS`] with numbers; prints each fault when it is met and the table, and fails if
/// there was a fault.
fn attack(inputs: &[(usize, u64)]) {
    let bench = Bench::new();
    let tallies: Vec<Mutex<Tally>> = KINDS.iter().map(|_| Mutex::default()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(&(kind, number)) = inputs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (name, attack) = KINDS[kind];
            let mut case = Case::new(&bench, name, number);
            attack(&mut case);
            // One that is run alone is looked into.
            let tally = if inputs.len() == 1 { case.keep() } else { case.tally };
            eprint!("{}", tally.told());
            tallies[kind].lock().unwrap().add(tally);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let tallies = tallies.into_iter().map(|tally| tally.into_inner().unwrap());
    let mut all = Tally::default();
    println!("{}", Tally::HEAD);
    for ((kind, _), tally) in KINDS.iter().zip(tallies) {
        if tally.inputs > 0 {
            println!("{}", tally.line(kind));
        }
        all.add(tally);
    }
    println!("{}", all.line("all"));
    assert!(all.faults.is_empty(), "{} faults, each printed above", all.faults.len());
}

/// The first inputs of every kind, `counts` of each, alternating between kinds.
fn in_turn(counts: [u64; KINDS.len()]) -> Vec<(usize, u64)> {
    let most = counts.into_iter().max().unwrap_or(0);
    let all = (0..most).flat_map(|number| (0..KINDS.len()).map(move |kind| (kind, number)));
    all.filter(|&(kind, number)| number < counts[kind]).collect()
}

#[test]
fn damaged_inputs_break_nothing() {
    attack(&in_turn(INPUTS_PER_KIND));
}

#[test]
#[ignore = "takes minutes to hours; TIGHTFIT_ATTACK says how many inputs"]
fn long() {
    let said = std::env::var("TIGHTFIT_ATTACK").unwrap_or_else(|_| "5000".to_owned());
    let kinds = KINDS.map(|(name, _)| name).join(", ");
    match asked(&said) {
        Some(Asked::Of(kind, numbers)) => attack(&numbers.map(|number| (kind, number)).collect::<Vec<_>>()),
        Some(Asked::Inputs(count)) => attack(&in_turn([count.div_ceil(KINDS.len() as u64); KINDS.len()])),
        None => panic!("TIGHTFIT_ATTACK={said}: a number of inputs, KIND:NUMBER or KIND:FIRST-END; kinds are {kinds}"),
    }
}
