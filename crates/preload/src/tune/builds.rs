//! Builds plans on a separate thread while the program runs. An engine that compiles takes up to seconds, and the program does not wait for it.
//!
//! ```text
//! the program's threads    call | engine5 on conv3? | call | not built yet | call | built: timed
//! thread of builds                 compiles engine5 for conv3 ............ | waits | engine8 ..
//! ```
//!
//! The first launch of a plan loads its kernels, and must wait for a running compilation. So the thread starts no build while a plan waits for its
//! first launch, and that launch waits for the current build.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tightfit_conv::backend::Scale;
use tightfit_conv::{Algorithm, Configuration, Problem};
use tightfit_cuda::{Builder, CudaError, Host};
use tightfit_units::Error;

use crate::judge::RESERVE;
use crate::lock::lock;
use crate::log::trace;
use crate::worker::{Work, Worker};

/// The longest wait for a build, also when the program ends.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// A build that takes longer than this is taken to never end. Without a time limit, no other build then waits for it.
const STUCK_AFTER: Duration = Duration::from_secs(60);

/// The longest wait of the thread for the first run of a plan.
const MAX_WAIT_FOR_RUN: Duration = Duration::from_millis(500);

/// The purpose of plans.
#[derive(Clone)]
pub(super) enum Target {
    /// A candidate, to be timed.
    Part(Algorithm),
    /// The work of a division in addition to its parts.
    Division,
    /// A configuration as it runs, with these factors and this alignment.
    Configuration(Configuration, Scale, usize),
}

/// A device's ordinal, a problem, and the wanted plan, by name.
type Key = (usize, Problem, String);

/// The state of plans.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Built {
    /// Nothing yet.
    Asked,
    /// They are built, or are to be built in place.
    Ready,
    /// They cannot be, for this reason.
    Refused(String),
    /// The time for them is over.
    Late,
}

impl Built {
    /// Why they do not exist and never will, if that is so.
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Built::Asked | Built::Ready => None,
            Built::Refused(why) => Some(why),
            Built::Late => Some("no time to build it"),
        }
    }
}

/// Facts that both threads know.
#[derive(Default)]
struct Known {
    built: HashMap<Key, Built>,
    /// How long building candidates took since the last call.
    new: Vec<(Problem, Algorithm, Duration)>,
    /// The current build, and when it began.
    begun: Option<(Key, Instant)>,
    spent: Duration,
    /// The total time that building may take.
    limit: Option<Duration>,
    /// The time since which a plan has been waiting for its first run.
    turn: Option<Instant>,
    /// Whether plans are built in place from now on.
    is_off: bool,
}

impl Known {
    /// The time that the current build has taken so far.
    fn so_far(&self) -> Duration {
        self.begun.as_ref().map_or(Duration::ZERO, |(_, begun)| begun.elapsed())
    }

    /// Whether no time is left for this build. A winner gets twice the time: its build is short, and all other work was
    /// done to find it.
    fn is_late(&self, target: &Target) -> bool {
        let so_far = self.so_far();
        let times = if matches!(target, Target::Configuration(..)) { 2 } else { 1 };
        self.limit.map_or(so_far > STUCK_AFTER, |limit| self.spent + so_far > times * limit)
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
    /// The state of plans on a device. The first request starts building them, as long as building has taken less than
    /// `limit`. After that, quick builds are made in place, and slow plans are not built any more.
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
            // A build of this length is not begun again in place.
            Some(Built::Asked) if is_begun && (is_late || so_far > MAX_WAIT) => Built::Late,
            None | Some(Built::Asked) if is_late && is_quick => Built::Ready,
            None | Some(Built::Asked) if is_late => Built::Late,
            // The current build may be stuck.
            Some(Built::Ready) if !known.is_off && so_far <= MAX_WAIT => {
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

    /// The plan has run for the first time, or waits for something else.
    pub fn go_on(&self) {
        let mut known = lock(&self.known);
        if known.begun.is_none() {
            known.turn = None;
        }
    }

    /// How long building candidates took since the last call.
    pub fn take_new(&self) -> Vec<(Problem, Algorithm, Duration)> {
        std::mem::take(&mut lock(&self.known).new)
    }

    /// Builds no more plans on this thread for this device: one of them did not run.
    pub fn turn_off(&self, host: &Host, device: usize) {
        lock(&self.known).is_off = true;
        host.forget_plans(device);
    }

    /// Whether something is being built.
    pub fn is_building(&self) -> bool {
        self.worker.is_at_work()
    }

    /// Drops builds that have not begun.
    pub fn end(&self) {
        lock(&self.known).built.retain(|_, built| *built != Built::Asked);
    }

    /// Waits for the current build when the program ends, because the libraries that the build uses are about to be
    /// unloaded.
    pub fn finish(&self) {
        self.end();
        self.worker.finish(MAX_WAIT);
    }
}

/// Whether a device has room for our handle and code in addition to the program's reserve.
fn is_roomy(host: &Host, device: usize) -> bool {
    host.free_memory(device).is_ok_and(|free| free > RESERVE)
}

/// The tools of the thread.
struct Building {
    host: Arc<Host>,
    known: Arc<Mutex<Known>>,
    /// By device; `None` if it could not be created.
    builders: HashMap<usize, Option<Builder>>,
}

impl Building {
    /// Builds plans. Returns how long that took.
    fn build(&mut self, device: usize, problem: &Problem, target: &Target) -> (Built, Duration) {
        let started = |error: CudaError| trace!("plans cannot be built while the program runs: {error}");
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
            if known.turn.is_none_or(|since| since.elapsed() > MAX_WAIT_FOR_RUN) {
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
