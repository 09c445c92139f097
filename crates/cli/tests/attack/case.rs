//! One input of one kind: the commands that run with it, and their faults.

use std::fs;

use tempfile::TempDir;

use super::bench::Bench;
use super::child::{self, Ending};
use super::generator::Generator;

/// One input.
pub struct Case<'a> {
    pub bench: &'a Bench,
    pub random: Generator,
    folder: TempDir,
    name: String,
    faults: usize,
}

impl<'a> Case<'a> {
    /// Input `number` of a kind, in an empty folder.
    pub fn new(bench: &'a Bench, kind: &str, number: u64) -> Case<'a> {
        let random = Generator::of(kind, number);
        Case { bench, random, folder: tempfile::tempdir().unwrap(), name: format!("{kind}:{number}"), faults: 0 }
    }

    /// Returns how many faults there were. `keep`: prints where the files are, and leaves them there.
    pub fn end(self, keep: bool) -> usize {
        if keep {
            println!("the files of {} are in {}", self.name, self.folder.keep().display());
        }
        self.faults
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.folder.path().join(name), content).unwrap();
    }

    /// Runs the command with the words of `arguments`.
    pub fn run(&mut self, arguments: &str) -> Ending {
        let ending = child::run(self.folder.path(), arguments);
        if let Some(trouble) = ending.trouble() {
            let (told, memory) = (ending.stderr.chars().take(600).collect::<String>(), ending.peak_kib >> 10);
            self.fault(&format!("{trouble} by `tightfit {arguments}`: {} with {memory} MiB: {told}", ending.status));
        }
        ending
    }

    /// Counts something that must not be, and prints it with the command that shows it again.
    pub fn fault(&mut self, what: &str) {
        self.faults += 1;
        let again = "cargo test -p tightfit --test attack -- --ignored --nocapture";
        eprintln!("{}: {what}\n    again: TIGHTFIT_ATTACK={} {again}", self.name, self.name);
    }
}
