//! The command under attack by damaged networks and plans. No file may make it panic, abort, hang, take memory without bound,
//! train to wrong losses, or fail without saying why.
//!
//! Input `number` of a kind is the same in every run. The ordinary test has the first few of each kind, the long one as many
//! as `TIGHTFIT_ATTACK` says, or a single one, such as `plans:17`.
//!
//! ```text
//! bench (good files) -> case (one damaged) -> child (the command, with limits) -> faults
//! ```

mod bench;
mod case;
mod child;
mod generator;
mod mutate;
mod networks;
mod plans;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bench::Bench;
use case::Case;

/// Makes an input and runs commands with it.
type Attack = fn(&mut Case);

/// Every kind of input by its name, with its attack.
const KINDS: [(&str, Attack); 2] = [("networks", networks::attack), ("plans", plans::attack)];

/// Runs inputs, given as places in [`KINDS`] with numbers, and fails if there was a fault. Each is printed when it is met.
fn attack(inputs: &[(usize, u64)]) {
    let bench = Bench::new();
    let (next, faults) = (AtomicUsize::new(0), Mutex::new(0));
    let work = || {
        while let Some(&(kind, number)) = inputs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (name, attack) = KINDS[kind];
            let mut case = Case::new(&bench, name, number);
            attack(&mut case);
            // One that is run alone is looked into.
            *faults.lock().unwrap() += case.end(inputs.len() == 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    assert_eq!(faults.into_inner().unwrap(), 0, "faults, each printed above");
}

/// The first inputs of every kind, alternating between kinds.
fn first(count: u64) -> Vec<(usize, u64)> {
    (0..count).flat_map(|number| (0..KINDS.len()).map(move |kind| (kind, number))).collect()
}

/// Reads `20000` or `plans:17`.
fn asked(said: &str) -> Option<Vec<(usize, u64)>> {
    let Some((kind, number)) = said.split_once(':') else { return said.parse().ok().map(first) };
    let place = KINDS.iter().position(|(name, _)| *name == kind)?;
    Some(vec![(place, number.parse().ok()?)])
}

#[test]
fn damaged_inputs_break_nothing() {
    attack(&first(16));
}

#[test]
#[ignore = "takes minutes to hours; TIGHTFIT_ATTACK says how many inputs"]
fn long() {
    let said = std::env::var("TIGHTFIT_ATTACK").unwrap_or_else(|_| "2500".to_owned());
    attack(
        &asked(&said).expect("TIGHTFIT_ATTACK is a number of inputs of each kind, or networks:NUMBER or plans:NUMBER"),
    );
}
