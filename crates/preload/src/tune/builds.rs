//! Plans that are built beside the program. An engine that compiles does so for up to seconds, which nobody has to wait for.
//!
//! ```text
//! the program's threads    call | engine5 on conv3? | call | not built yet | call | built: timed
//! thread of builds                 compiles engine5 for conv3 ............ | waits | engine8 ..
//! ```
//!
//! The first launch of a plan loads its kernels, which takes as long as whatever is being compiled. So the thread begins nothing
//! while there is a plan to run for the first time, and that waits for what is begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tightfit_core::backend::Scale;
use tightfit_core::{Algorithm, Configuration, Error, Problem};
use tightfit_cuda::{Builder, CudaError, Host};

use crate::judge::RESERVE;
use crate::lock::lock;
use crate::log::trace;
use crate::worker::{Work, Worker};

/// What takes longer than this is not waited for, also when the program ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// What takes longer than this never ends: where there is no limit of time, nothing else waits behind it.
const STUCK: Duration = Duration::from_secs(60);

/// The longest that the thread waits for a plan to be run.
const TURN: Duration = Duration::from_millis(500);

/// What plans are for.
#[derive(Clone)]
pub(super) enum Target {
    /// A candidate, to be timed.
    Part(Algorithm),
    /// What a division runs beside its parts.
    Division,
    /// A configuration as it runs, with these factors and this alignment.
    Configuration(Configuration, Scale, usize),
}

/// A device's ordinal, a problem, and what is wanted for it, by name.
type Key = (usize, Problem, String);

/// What is known of plans.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Built {
    /// Nothing yet.
    Asked,
    /// They are built, or are to be built in place.
    Ready,
    /// They cannot be, for this reason.
    Refused(String),
    /// There is no time for them.
    Late,
}

impl Built {
    /// Why there are none and will be none, if that is so.
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Built::Asked | Built::Ready => None,
            Built::Refused(why) => Some(why),
            Built::Late => Some("no time to build it"),
        }
    }
}

/// What is known by both threads.
#[derive(Default)]
struct Known {
    built: HashMap<Key, Built>,
    /// How long building candidates took, of those that were built since this was last asked.
    new: Vec<(Problem, Algorithm, Duration)>,
    /// What is being built, and since when.
    begun: Option<(Key, Instant)>,
    spent: Duration,
    /// How long building may take in all.
    limit: Option<Duration>,
    /// Since when there is a plan to run for the first time.
    turn: Option<Instant>,
    /// Whether plans are built in place from now on.
    is_off: bool,
}

impl Known {
    /// For how long the thread has been at it.
    fn so_far(&self) -> Duration {
        self.begun.as_ref().map_or(Duration::ZERO, |(_, begun)| begun.elapsed())
    }

    /// Whether there is no time to build this. What has won gets twice as much: it is little, and what all else was for.
    fn is_late(&self, target: &Target) -> bool {
        let so_far = self.so_far();
        let times = if matches!(target, Target::Configuration(..)) { 2 } else { 1 };
        self.limit.map_or(so_far > STUCK, |limit| self.spent + so_far > times * limit)
    }
}

/// The plans of a process.
pub(super) struct Builds {
    known: Arc<Mutex<Known>>,
    worker: Worker<(Key, Target)>,
}

impl Default for Builds {
    fn default() -> Builds {
        Builds { known: Arc::default(), worker: Worker::new("tightfit-build") }
    }
}

impl Builds {
    /// What is known of plans on a device, which are built from now on if nobody has asked before, as long as building has taken less
    /// than `limit`. Later, what is quick to build is built in place, and the rest is too late.
    pub fn ask(
        &self,
        (host, device): (&Arc<Host>, usize),
        problem: &Problem,
        target: Target,
        is_quick: bool,
        limit: Option<Duration>,
    ) -> Built {
        let name = match &target {
            Target::Part(algorithm) => algorithm.to_string(),
            Target::Division => String::new(),
            Target::Configuration(ours, Scale { alpha, beta }, base) => {
                format!("{} {alpha} {beta} {base}", ours.without_times())
            }
        };
        let key = (device, *problem, name);
        let known = &mut *lock(&self.known);
        known.limit = limit;
        let (so_far, is_late) = (known.so_far(), known.is_late(&target));
        let is_begun = known.begun.as_ref().is_some_and(|(building, _)| *building == key);
        match known.built.get(&key) {
            // What takes so long is not begun again in place.
            Some(Built::Asked) if is_begun && (is_late || so_far > PATIENCE) => Built::Late,
            None | Some(Built::Asked) if is_late && is_quick => Built::Ready,
            None | Some(Built::Asked) if is_late => Built::Late,
            // What is begun may be stuck.
            Some(Built::Ready) if !known.is_off && so_far <= PATIENCE => {
                known.turn = Some(Instant::now());
                if known.begun.is_some() { Built::Asked } else { Built::Ready }
            }
            Some(found) => found.clone(),
            None if known.is_off || !is_roomy(host, device) => Built::Ready,
            None => {
                let building = || Building { host: host.clone(), known: self.known.clone(), builders: HashMap::new() };
                let is_asked = self.worker.hand_over((key.clone(), target), building);
                let found = if is_asked { Built::Asked } else { Built::Ready };
                known.built.insert(key, found.clone());
                found
            }
        }
    }

    /// What was to run for the first time has run, or waits for something else.
    pub fn go_on(&self) {
        let mut known = lock(&self.known);
        if known.begun.is_none() {
            known.turn = None;
        }
    }

    /// How long building candidates took, of those that were built since this was last asked.
    pub fn take_new(&self) -> Vec<(Problem, Algorithm, Duration)> {
        std::mem::take(&mut lock(&self.known).new)
    }

    /// Builds no more beside the program on this device: a plan that was did not run.
    pub fn turn_off(&self, host: &Host, device: usize) {
        lock(&self.known).is_off = true;
        host.forget_plans(device);
    }

    /// Whether something is being built.
    pub fn is_building(&self) -> bool {
        self.worker.is_at_work()
    }

    /// Nobody waits any more for what is not begun.
    pub fn end(&self) {
        lock(&self.known).built.retain(|_, built| *built != Built::Asked);
    }

    /// The program ends: waits for what is being built, for libraries that it uses are about to go.
    pub fn finish(&self) {
        self.end();
        self.worker.finish(PATIENCE);
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
    /// Builds plans; gives how long that took.
    fn build(&mut self, device: usize, problem: &Problem, target: &Target) -> (Built, Duration) {
        let started = |error: CudaError| trace!("plans are not built beside the program: {error}");
        let Ok(_beside) = self.host.beside_captures() else { return (Built::Ready, Duration::ZERO) };
        let builder = self.builders.entry(device);
        let Some(builder) = builder.or_insert_with(|| self.host.builder(device).map_err(started).ok()) else {
            return (Built::Ready, Duration::ZERO);
        };
        let begun = Instant::now();
        let built: Result<(), Error> = match target {
            Target::Part(algorithm) => builder.build(problem, algorithm),
            Target::Division => builder.build_division(problem),
            Target::Configuration(ours, scale, base) => builder.build_configuration(problem, ours, *scale, *base),
        };
        (built.map_or_else(|error| Built::Refused(error.chain().to_string()), |()| Built::Ready), begun.elapsed())
    }
}

impl Work<(Key, Target)> for Building {
    fn work(&mut self, (key, target): (Key, Target)) {
        loop {
            let mut known = lock(&self.known);
            if known.built.get(&key) != Some(&Built::Asked) || known.is_late(&target) {
                return;
            }
            if known.turn.is_none_or(|since| since.elapsed() > TURN) {
                known.begun = Some((key.clone(), Instant::now()));
                break;
            }
            drop(known);
            std::thread::sleep(Duration::from_millis(1));
        }
        let (device, problem, _) = &key;
        let (built, took) = self.build(*device, problem, &target);
        let mut known = lock(&self.known);
        let so_far = known.so_far();
        known.spent += so_far;
        known.begun = None;
        if let (Target::Part(algorithm), Built::Ready) = (target, &built) {
            known.new.push((*problem, algorithm, took));
        }
        known.built.insert(key, built);
    }

    fn end(mut self) {
        // Plans are used as long as the process lives.
        std::mem::forget(std::mem::take(&mut self.builders));
    }
}
