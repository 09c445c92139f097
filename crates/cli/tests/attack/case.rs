//! One input of one kind: its source, the commands that run with it, and their results.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Instant;

use tempfile::TempDir;

use super::bench::Bench;
use super::child::{self, Ending, Setup, Trouble};
use super::generator::Generator;
use super::{caches, data, environment, lists, networks, outputs, plans, recordings, reports, values};

/// Makes an input of a kind and runs commands with it.
type Attack = fn(&mut Case);

/// Every kind of input by its name, with its attack.
pub const KINDS: [(&str, Attack); 10] = [
    ("networks", networks::attack),
    ("lists", lists::attack),
    ("plans", plans::attack),
    ("recordings", recordings::attack),
    ("caches", caches::attack),
    ("values", values::attack),
    ("environment", environment::attack),
    ("outputs", outputs::attack),
    ("data", data::attack),
    ("reports", reports::attack),
];

/// One input.
pub struct Case<'a> {
    pub bench: &'a Bench,
    pub number: u64,
    pub random: Generator,
    folder: TempDir,
    name: String,
    pub tally: Tally,
}

/// The results of all inputs of a kind.
#[derive(Default)]
pub struct Tally {
    pub inputs: u64,
    pub runs: u64,
    /// Runs that an input did not make fail.
    pub accepted: u64,
    pub peak_kib: u64,
    pub faults: Vec<Fault>,
}

/// Something that must not be.
pub struct Fault {
    pub trouble: Trouble,
    pub case: String,
    pub what: String,
}

impl<'a> Case<'a> {
    /// Input `number` of a kind, in an empty folder.
    pub fn new(bench: &'a Bench, kind: &str, number: u64) -> Case<'a> {
        let tally = Tally { inputs: 1, ..Tally::default() };
        let random = Generator::of(kind, number);
        Case { bench, number, random, folder: tempfile::tempdir().unwrap(), name: format!("{kind}:{number}"), tally }
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Keeps the folder for whoever looks into it, and prints where it is.
    pub fn keep(self) -> Tally {
        println!("the files of {} are in {}", self.name, self.folder.keep().display());
        self.tally
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.folder.path().join(name), content).unwrap();
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.folder.path().join(name)).unwrap_or_default()
    }

    /// Runs the command with the words of `arguments`.
    pub fn run(&mut self, arguments: &str) -> Ending {
        self.run_with(arguments, &Setup::default())
    }

    pub fn run_with(&mut self, arguments: &str, setup: &Setup) -> Ending {
        let arguments: Vec<OsString> = arguments.split_whitespace().map(OsString::from).collect();
        self.run_words(&arguments, setup)
    }

    pub fn run_words(&mut self, arguments: &[OsString], setup: &Setup) -> Ending {
        let started = Instant::now();
        let ending = child::start(self.folder.path(), arguments, setup).finish();
        self.tally.runs += 1;
        self.tally.accepted += u64::from(ending.succeeded());
        self.tally.peak_kib = self.tally.peak_kib.max(ending.peak_kib);
        let written = !setup.redirect.contains("2>");
        if let Some(trouble) = ending.trouble(written) {
            let told: String = ending.stderr.chars().take(600).collect();
            let (time, memory) = (started.elapsed().as_secs_f64(), ending.peak_kib >> 10);
            let how = format!("{} after {time:.1} s with {memory} MiB", ending.status);
            self.fault(trouble, format!("{}: {how}: {told}", shown(arguments, setup)));
        }
        ending
    }

    /// Notes something that must not be.
    pub fn fault(&mut self, trouble: Trouble, what: impl Into<String>) {
        self.tally.faults.push(Fault { trouble, case: self.name.clone(), what: what.into() });
    }

    /// Notes harm where `good` does not hold.
    pub fn expect(&mut self, good: bool, what: impl FnOnce() -> String) {
        if !good {
            self.fault(Trouble::Harm, what());
        }
    }
}

/// The command line with its environment, long words cut.
fn shown(arguments: &[OsString], setup: &Setup) -> String {
    let word = |word: &OsString| -> String {
        let word = format!("{:?}", word.to_string_lossy());
        if word.len() < 200 {
            word
        } else {
            format!("{} .. ({} bytes)", word.chars().take(40).collect::<String>(), word.len())
        }
    };
    let variables = setup.variables.iter().map(|(name, value)| format!("{}={} ", name.to_string_lossy(), word(value)));
    let arguments: Vec<String> = arguments.iter().map(word).collect();
    let (variables, before) = (variables.collect::<String>(), &setup.before);
    format!("{before} {variables}tightfit {} {}", arguments.join(" "), setup.redirect).trim().to_owned()
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.inputs += other.inputs;
        self.runs += other.runs;
        self.accepted += other.accepted;
        self.peak_kib = self.peak_kib.max(other.peak_kib);
        self.faults.extend(other.faults);
    }

    fn count(&self, troubles: &[Trouble]) -> usize {
        self.faults.iter().filter(|fault| troubles.contains(&fault.trouble)).count()
    }

    /// A line of the table that [`Tally::HEAD`] begins.
    pub fn line(&self, kind: &str) -> String {
        let counts = [
            self.count(&[Trouble::Panic, Trouble::Abort]),
            self.count(&[Trouble::Hang]),
            self.count(&[Trouble::TimeOut]),
            self.count(&[Trouble::Memory, Trouble::Code, Trouble::Harm]),
        ];
        let [panics, hangs, times, others] = counts;
        let (inputs, runs, accepted, peak) = (self.inputs, self.runs, self.accepted, self.peak_kib >> 10);
        format!("| {kind} | {inputs} | {runs} | {accepted} | {panics} | {hangs} | {times} | {others} | {peak} |")
    }

    pub const HEAD: &str = "| kind | inputs | runs | accepted | panics, aborts | hangs | time-outs | other faults | peak MiB |\n\
                            |---|---|---|---|---|---|---|---|---|";

    /// Each fault with the command that shows it again.
    pub fn told(&self) -> String {
        let again = |case: &str| {
            format!("TIGHTFIT_ATTACK={case} cargo test -p tightfit --test attack -- --ignored --nocapture")
        };
        let line = |fault: &Fault| {
            format!("{:?} by {}: {}\n    again: {}\n", fault.trouble, fault.case, fault.what, again(&fault.case))
        };
        self.faults.iter().map(line).collect()
    }
}
