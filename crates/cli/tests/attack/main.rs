//! The command under attack: damaged files, absurd values, odd environments, kills and signals. No input may make it panic,
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
mod signals;
mod values;
mod writers;

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use bench::Bench;
use case::{Case, KINDS, Tally};

/// Inputs of each kind in the ordinary test.
const FEW: [u64; KINDS.len()] = [12, 12, 30, 8, 8, 60, 40, 20, 6];

/// What the environment asks of the long test.
enum Asked {
    /// This many inputs, of all kinds in turn.
    Inputs(u64),
    /// One input of the kind at this place in [`KINDS`].
    One(usize, u64),
}

fn asked() -> Asked {
    let said = std::env::var("TIGHTFIT_ATTACK").unwrap_or_else(|_| "5000".to_owned());
    let one = |(kind, number): (&str, &str)| {
        let place = KINDS.iter().position(|(name, _)| *name == kind)?;
        Some(Asked::One(place, number.parse().ok()?))
    };
    let inputs = || said.parse().ok().map(Asked::Inputs);
    let kinds = KINDS.map(|(name, _)| name).join(", ");
    let read = said.split_once(':').and_then(one).or_else(inputs);
    read.unwrap_or_else(|| panic!("TIGHTFIT_ATTACK={said}: a number of inputs, or KIND:NUMBER with a kind of {kinds}"))
}

/// Runs the first `counts` inputs of each kind; prints the table and the faults, and fails if there are any.
fn attack(counts: [u64; KINDS.len()]) {
    let bench = Bench::new();
    let most = counts.into_iter().max().unwrap_or(0);
    let inputs: Vec<(usize, u64)> = (0..most)
        .flat_map(|number| (0..KINDS.len()).map(move |kind| (kind, number)))
        .filter(|&(kind, number)| number < counts[kind])
        .collect();
    let tallies: Vec<Mutex<Tally>> = KINDS.iter().map(|_| Mutex::default()).collect();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&(kind, number)) = inputs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let (name, attack) = KINDS[kind];
                    let mut case = Case::new(&bench, name, number);
                    attack(&mut case);
                    // A long test is watched, and may be stopped.
                    eprint!("{}", case.tally.told());
                    tallies[kind].lock().unwrap().add(case.tally);
                }
            });
        }
    });
    let tallies = tallies.into_iter().map(|tally| tally.into_inner().unwrap());
    let mut all = Tally::default();
    println!("{}", Tally::HEAD);
    for ((kind, _), tally) in KINDS.iter().zip(tallies) {
        println!("{}", tally.line(kind));
        all.add(tally);
    }
    println!("{}", all.line("all"));
    assert!(all.faults.is_empty(), "{} faults:\n{}", all.faults.len(), all.told());
}

#[test]
fn damaged_inputs_break_nothing() {
    attack(FEW);
}

#[test]
fn writers_that_are_killed_lose_nothing() {
    let count = writers::write(8);
    assert!(count.imports.into_inner() > 0 && count.kills.into_inner() > 0);
}

#[test]
fn signals_end_commands_soon_and_leave_no_parts() {
    signals::signal(&Bench::new(), 10);
}

#[test]
#[ignore = "takes minutes to hours; TIGHTFIT_ATTACK says how many inputs"]
fn long() {
    match asked() {
        Asked::One(kind, number) => {
            let (name, attack) = KINDS[kind];
            let bench = Bench::new();
            let mut case = Case::new(&bench, name, number);
            attack(&mut case);
            let (tally, folder) = case.keep();
            println!("{}\n{}\nthe files are in {}", Tally::HEAD, tally.line(name), folder.display());
            assert!(tally.faults.is_empty(), "{}", tally.told());
        }
        Asked::Inputs(count) => {
            attack([count.div_ceil(KINDS.len() as u64); KINDS.len()]);
            println!("8 writers: {:?}", writers::write(count / 40));
            signals::signal(&Bench::new(), count / 100);
        }
    }
}
