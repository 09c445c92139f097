//! The next candidate to time, and its program.

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tightfit_conv::{Algorithm, DivisionCost, Notes, Problem};
use tightfit_profile::Profiler;
use tightfit_profile::survey::{Screen, Sizes, add_slices, screened};
use tightfit_units::{Error, Nanos};

use super::{Job, Next};
use crate::log::trace;
use crate::session::Session;
use crate::tune::builds::{Built, Target};
use crate::tune::ledger::{Asking, Hopes, Wanted};
use crate::tune::pilot::pilot;
use crate::tune::room::Room;
use crate::tune::task::{Purpose, Task};

impl Job {
    /// The next candidate to time, if the step has room for it, or `None` without one.
    pub(super) fn survey(&mut self, session: &mut Session, room: &Room<'_>) -> Option<Next> {
        loop {
            let Some(wanted) = self.wanted.take().or_else(|| self.wanted(session, room)) else {
                self.is_surveyed = true;
                return None;
            };
            let (built, small) = match &wanted {
                Wanted::Time => return Some(Next::Later),
                Wanted::Proof(slice, algorithm) if room.prover.is_right(slice, algorithm).is_some() => continue,
                Wanted::Proof(..) => (Built::Asked, None),
                Wanted::Part(problem, algorithm) => {
                    let notes = self.ledger.notes(algorithm);
                    if !room.allows(problem, algorithm, notes) {
                        self.wanted = Some(wanted);
                        return Some(Next::Later);
                    }
                    let small = self.pilot(problem, algorithm, room);
                    let target = Target::Part(algorithm.clone());
                    (
                        room.built(small.as_ref().unwrap_or(problem), target, notes),
                        small.map(|it| (it, algorithm.clone())),
                    )
                }
                Wanted::Division(problem) => (room.built(problem, Target::Division, Notes::NONE), None),
            };
            if built == Built::Asked {
                self.wanted = Some(wanted);
                return Some(Next::Wait);
            }
            if let Some((small, algorithm)) = small {
                self.wanted = Some(wanted);
                self.piloted.insert(algorithm.clone());
                if built == Built::Ready
                    && let Ok(program) = session.guest.part(&small, &algorithm)
                {
                    let purpose = Purpose::Pilot(Box::new(small), algorithm);
                    return Some(Next::Run(Box::new(Task::alone(purpose, Arc::new(program)))));
                }
                continue;
            }
            self.is_cut |= built == Built::Late;
            if let Some(why) = built.why_not() {
                self.refuse(wanted, &why);
            } else if let Some(task) = self.task(wanted, session) {
                return Some(Next::Run(Box::new(task)));
            }
        }
    }

    /// Records that the candidate that stopped the survey cannot be timed.
    fn refuse(&mut self, wanted: Wanted, why: &dyn Display) {
        match wanted {
            Wanted::Part(problem, algorithm) => {
                trace!("{algorithm} on {problem}: {why}");
                self.ledger.refuse(problem, algorithm);
            }
            Wanted::Division(problem) => {
                trace!("dividing {problem}: {why}");
                self.ledger.take_down_division(DivisionCost::NEVER);
            }
            Wanted::Proof(..) | Wanted::Time => {}
        }
    }

    /// A small convolution to time first, where nothing is known of the algorithm and it may take long; the candidate is asked for
    /// again afterwards, unless it is hopeless by then.
    fn pilot(&self, problem: &Problem, algorithm: &Algorithm, room: &Room<'_>) -> Option<Problem> {
        if room.is_thorough || !room.similar.is_new(problem, algorithm) || self.piloted.contains(algorithm) {
            return None;
        }
        pilot(problem, room.rates)
    }

    /// Times the candidate that stopped the survey. `None` if that needs no time, or cannot be set up, which is recorded.
    fn task(&mut self, wanted: Wanted, session: &mut Session) -> Option<Task> {
        let set_up = match &wanted {
            Wanted::Part(problem, algorithm) => session.guest.part(problem, algorithm).map(Some),
            Wanted::Division(problem) => session.guest.division(problem),
            Wanted::Proof(..) | Wanted::Time => return None,
        };
        let program = match set_up {
            Ok(Some(program)) => Arc::new(program),
            Ok(None) => {
                self.ledger.take_down_division(DivisionCost::default());
                return None;
            }
            Err(error) => {
                self.refuse(wanted, &error.chain());
                return None;
            }
        };
        let purpose = match wanted {
            Wanted::Part(problem, algorithm) => Purpose::Part(Box::new(problem), algorithm),
            _ => Purpose::Division,
        };
        Some(Task::alone(purpose, program))
    }

    /// The obstacle that stops the survey, or `None` if it is complete.
    fn wanted(&mut self, session: &mut Session, room: &Room<'_>) -> Option<Wanted> {
        let (terms, problem, limit) = (self.kernel.terms, *self.problem(), self.limit());
        let hopes = Hopes { similar: room.similar, now: self.now().filter(|_| !room.is_thorough) };
        let mut asking = Asking {
            ledger: &mut self.ledger,
            guest: &mut session.guest,
            limit,
            is_fit: terms.micro_batches() == Sizes::Fit,
            prover: room.prover,
            hopes,
            until: room.until,
            has_asked: false,
            wanted: None,
        };
        if let Some(guess) = self.kernel.running().configuration().filter(|now| now.time() == Nanos::ZERO)
            && let Err(Error::Interrupted) = asking.time(guess)
        {
            return asking.wanted;
        }
        let admits = |notes| self.admission.admits(notes);
        let (sizes, is_sliced) = match asking.is_worth_dividing(&problem, terms.slices(), admits) {
            Ok(true) => (terms.micro_batches(), terms.slices()),
            Ok(false) => (Sizes::Undivided, false),
            Err(Error::Interrupted) => return asking.wanted,
            Err(error) => {
                trace!("{problem}: {}", error.chain());
                return None;
            }
        };
        let stop = AtomicBool::new(false);
        let mut profiler = Profiler::new(&mut asking, None, &stop);
        profiler.admit(self.admission);
        let screen = if room.is_thorough { Screen::Twice } else { Screen::Once };
        let mut sliced = Vec::new();
        let surveyed = screened(sizes, screen, &problem, &[limit], &mut profiler).and_then(|mut found| {
            let added = if is_sliced {
                add_slices(&problem, &[limit], terms.divide, screen, &mut profiler, &mut found)
            } else {
                Ok(())
            };
            sliced = found.candidates;
            added
        });
        match surveyed {
            Ok(()) | Err(Error::Interrupted) => {}
            Err(error) => trace!("{problem}: {}", error.chain()),
        }
        let wanted = asking.wanted;
        self.ledger.set_sliced(sliced);
        wanted
    }
}
