//! What is to be timed next, and with what program.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tightfit_core::profile::Profiler;
use tightfit_core::survey::{Screen, Sizes, add_slices, screened};
use tightfit_core::{Algorithm, DivisionCost, Error, Nanos, Notes, Problem};

use super::{Job, Next};
use crate::log::trace;
use crate::session::Session;
use crate::tune::builds::{Built, Target};
use crate::tune::ledger::{Asking, Hopes, Wanted};
use crate::tune::pilot::pilot;
use crate::tune::room::Room;
use crate::tune::task::{Purpose, Task};

impl Job {
    /// The next candidate to time, if the step has room for it; none if there is none.
    pub(super) fn survey(&mut self, session: &mut Session, room: &Room<'_>) -> Option<Next> {
        loop {
            let Some(wanted) = self.wanted.take().or_else(|| self.wanted(session, room)) else {
                self.is_surveyed = true;
                return None;
            };
            if wanted == Wanted::Time {
                return Some(Next::Later);
            }
            if let Wanted::Proof(slice, algorithm) = &wanted {
                if room.prover.is_right(slice, algorithm).is_some() {
                    continue;
                }
                self.wanted = Some(wanted);
                return Some(Next::Wait);
            }
            if let Wanted::Part(problem, algorithm) = &wanted {
                if !room.allows(problem, algorithm, self.ledger.notes(algorithm)) {
                    self.wanted = Some(wanted);
                    return Some(Next::Later);
                }
                let small = self.pilot(problem, algorithm, room);
                let target = Target::Part(algorithm.clone());
                let built = room.built(small.as_ref().unwrap_or(problem), target, self.ledger.notes(algorithm));
                if built == Built::Asked {
                    self.wanted = Some(wanted);
                    return Some(Next::Wait);
                }
                if let Some(small) = small {
                    self.piloted.insert(algorithm.clone());
                    if built == Built::Ready
                        && let Ok(program) = session.guest.part(&small, algorithm)
                    {
                        let purpose = Purpose::Pilot(Box::new(small), algorithm.clone());
                        return Some(Next::Run(Box::new(Task::alone(purpose, Arc::new(program)))));
                    }
                    self.wanted = Some(wanted);
                    continue;
                }
                self.is_cut |= built == Built::Late;
                if let Some(why) = built.why_not() {
                    trace!("{algorithm} on {problem}: {why}");
                    self.ledger.refuse(*problem, algorithm.clone());
                    continue;
                }
            }
            if let Wanted::Division(problem) = &wanted {
                let built = room.built(problem, Target::Division, Notes::NONE);
                if built == Built::Asked {
                    self.wanted = Some(wanted);
                    return Some(Next::Wait);
                }
                self.is_cut |= built == Built::Late;
                if let Some(why) = built.why_not() {
                    trace!("dividing {problem}: {why}");
                    self.ledger.take_down_division(DivisionCost::NEVER);
                    continue;
                }
            }
            if let Some(task) = self.task(wanted, session) {
                return Some(Next::Run(Box::new(task)));
            }
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

    /// Times what stopped the survey; none if that needs no time or cannot be set up, which is taken down.
    fn task(&mut self, wanted: Wanted, session: &mut Session) -> Option<Task> {
        match wanted {
            Wanted::Part(problem, algorithm) => match session.guest.part(&problem, &algorithm) {
                Ok(program) => Some(Task::alone(Purpose::Part(Box::new(problem), algorithm), Arc::new(program))),
                Err(error) => {
                    trace!("{algorithm} on {problem}: {}", error.chain());
                    self.ledger.refuse(problem, algorithm);
                    None
                }
            },
            Wanted::Division(problem) => {
                let cost = match session.guest.division(&problem) {
                    Ok(Some(program)) => return Some(Task::alone(Purpose::Division, Arc::new(program))),
                    Ok(None) => DivisionCost::default(),
                    Err(error) => {
                        trace!("dividing {problem}: {}", error.chain());
                        DivisionCost::NEVER
                    }
                };
                self.ledger.take_down_division(cost);
                None
            }
            Wanted::Proof(..) | Wanted::Time => None,
        }
    }

    /// What stops the survey; none if it is complete.
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
