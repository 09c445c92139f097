//! Plans that are built beside the program. An engine that compiles does so for up to seconds, which nobody has to wait for.
//!
//! ```text
//! the program's threads    call | engine5 on conv3? | call | not built yet | call | built: timed
//! thread of builds                 compiles engine5 for conv3 ............
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tightfit_core::{Algorithm, Problem};
use tightfit_cuda::{Builder, CudaError, Host};

use crate::judge::RESERVE;
use crate::lock::lock;
use crate::log::trace;
use crate::worker::{Work, Worker};

/// What takes longer than this is not waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A device's ordinal, a problem and an algorithm on it.
type Key = (usize, Problem, Algorithm);

/// What is known of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Built {
    /// Nothing yet.
    Asked,
    /// It is built, or nobody can build it beside the program.
    Ready,
    /// It cannot be, for this reason.
    Refused(String),
}

/// What is known by both threads.
#[derive(Default)]
struct Known {
    built: HashMap<Key, Built>,
    /// How long building took, of those that were built since this was last asked.
    new: Vec<(Problem, Algorithm, Duration)>,
    /// Since when something is being built.
    begun: Option<Instant>,
    spent: Duration,
    /// Whether plans are built in place from now on.
    is_off: bool,
}

/// The plans of a process.
pub(super) struct Builds {
    known: Arc<Mutex<Known>>,
    worker: Worker<Key>,
}

impl Default for Builds {
    fn default() -> Builds {
        Builds { known: Arc::default(), worker: Worker::new("tightfit-build") }
    }
}

impl Builds {
    /// What is known of the plan of an algorithm on a device, which is built from now on if nobody has asked before.
    pub fn ask(&self, host: &Arc<Host>, device: usize, problem: &Problem, algorithm: &Algorithm) -> Built {
        let mut known = lock(&self.known);
        let is_stuck = known.begun.is_some_and(|begun| begun.elapsed() > PATIENCE);
        let key = (device, *problem, algorithm.clone());
        let known = &mut *known;
        match known.built.entry(key.clone()) {
            Entry::Occupied(entry) if is_stuck && *entry.get() == Built::Asked => {
                Built::Refused(format!("plans take over {} s to build", PATIENCE.as_secs()))
            }
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                let building = || Building { host: host.clone(), known: self.known.clone(), builders: HashMap::new() };
                let is_on = !known.is_off && is_roomy(host, device);
                let is_asked = is_on && self.worker.hand_over(key, building);
                entry.insert(if is_asked { Built::Asked } else { Built::Ready }).clone()
            }
        }
    }

    /// How long building took, of those that were built since this was last asked.
    pub fn take_new(&self) -> Vec<(Problem, Algorithm, Duration)> {
        std::mem::take(&mut lock(&self.known).new)
    }

    /// How long building took in all.
    pub fn spent(&self) -> Duration {
        lock(&self.known).spent
    }

    /// Builds no more beside the program: a plan that was did not run.
    pub fn turn_off(&self) {
        lock(&self.known).is_off = true;
    }

    /// The program ends.
    pub fn finish(&self) {
        self.worker.finish();
    }
}

/// Whether a device has room for a handle of ours and code beside what is left to the program.
fn is_roomy(host: &Host, device: usize) -> bool {
    host.free_memory(device).is_ok_and(|free| free > RESERVE)
}

/// What the thread works with.
struct Building {
    host: Arc<Host>,
    known: Arc<Mutex<Known>>,
    /// By device; none where there can be none.
    builders: HashMap<usize, Option<Builder>>,
}

impl Building {
    fn build(&mut self, (device, problem, algorithm): &Key) -> Built {
        let started = |error: CudaError| trace!("plans are not built beside the program: {error}");
        let Ok(_beside) = self.host.beside_captures() else { return Built::Ready };
        let builder = self.builders.entry(*device);
        match builder.or_insert_with(|| self.host.builder(*device).map_err(started).ok()) {
            Some(builder) => match builder.build(problem, algorithm) {
                Ok(()) => Built::Ready,
                Err(error) => Built::Refused(error.chain().to_string()),
            },
            None => Built::Ready,
        }
    }
}

impl Work<Key> for Building {
    fn work(&mut self, key: Key) {
        let begun = Instant::now();
        lock(&self.known).begun = Some(begun);
        let built = self.build(&key);
        let mut known = lock(&self.known);
        known.begun = None;
        known.spent += begun.elapsed();
        if built == Built::Ready {
            known.new.push((key.1, key.2.clone(), begun.elapsed()));
        }
        known.built.insert(key, built);
    }

    fn end(mut self) {
        // Plans are used as long as the process lives.
        std::mem::forget(std::mem::take(&mut self.builders));
    }
}
