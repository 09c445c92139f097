//! Measures between the program's calls, and changes what runs.
//!
//! ```text
//! first step     nothing: the program's own choices run, or what earlier processes decided
//! then           a call comes | read what has ended, enqueue what comes next | the call itself
//! in the end     all is measured, what could still be gained is less than a hundredth of a step, or the budget is spent
//! ```
//!
//! Nothing waits: not for the device, whose times are read when they are there; not for another thread, which tunes instead;
//! not for another process. What runs changes between two executions, never within one, and only to what needs no more than
//! the program was told. Memory is taken in the order of the stream, from what is free beyond a reserve, and given back behind
//! each measurement. Nothing is measured on a stream that captures.

mod accuracy;
mod duel;
mod job;
mod ledger;
mod outcome;
mod pace;
mod rates;
mod state;
mod task;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

use tightfit_cuda::Host;
use tightfit_cuda::sys::cudnn::{BackendDescriptor, Handle};

use crate::kernel::Kernel;
use crate::lock::lock;
use crate::process::Process;
use crate::report;
use crate::settings::Settings;
use state::State;
use task::Own;

/// What tuning has come to.
#[derive(Default)]
pub struct Tuner {
    /// Whether there is nothing to do at a call.
    is_idle: AtomicBool,
    /// Configurations left out for their error.
    inaccurate: AtomicU64,
    state: Mutex<State>,
}

impl Tuner {
    /// Configurations left out because they were less accurate than the framework's choice.
    pub fn inaccurate(&self) -> u64 {
        self.inaccurate.load(Ordering::Relaxed)
    }

    /// A new kernel may be worth tuning.
    pub fn wake(&self) {
        self.is_idle.store(false, Ordering::Relaxed);
    }

    /// Called before a kernel is executed: goes on measuring if it is time, and changes what runs.
    ///
    /// # Safety
    /// `handle` is alive, on the kernel's device, and used on this thread; `plan`, if the program has one, is the kernel's,
    /// with the ids of data, other and output, and is executed next on the handle.
    pub unsafe fn between_calls(
        &self,
        process: &Process,
        kernel: &Arc<Kernel>,
        handle: Handle,
        plan: Option<(BackendDescriptor, [i64; 3])>,
    ) {
        // A kernel that is still open was tried among others, or hardly executed, when nothing else was left to do.
        if self.is_idle.load(Ordering::Relaxed) && !kernel.is_open() {
            return;
        }
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is at it.
            Err(TryLockError::WouldBlock) => return,
        };
        let (Some(settings), Some(host)) = (process.settings(), process.host()) else { return };
        state.meet(kernel);
        if state.is_over() {
            self.is_idle.store(true, Ordering::Relaxed);
            return;
        }
        if !state.has_work() {
            return;
        }
        // SAFETY: forwarded to the caller.
        if unsafe { host.is_capturing(handle) } {
            return;
        }
        let Ok(_beside) = host.beside_captures() else { return };
        let device = kernel.question.device;
        // SAFETY: forwarded to the caller.
        let Ok(session) = (unsafe { process.sessions.on(host, handle, device) }) else { return };
        let started = Instant::now();
        let mut session = lock(&session);
        let own = Own { kernel, plan };
        let call = Call { process, settings, host, handle, device, tuner: self, own };
        // SAFETY: forwarded to the caller.
        unsafe { state.go_on(&call, &mut session) };
        process.chooser.spending().add_time(started);
        state.spend(started.elapsed());
        if state.is_over() {
            let is_news = state.end(&call, session.guest.device());
            self.is_idle.store(true, Ordering::Relaxed);
            drop(session);
            let spent = state.spent();
            drop(state);
            if is_news {
                process.voice.tuned(process, settings, spent);
                // A program that is killed leaves this one.
                report::write(process);
            }
        } else {
            state.show(&call);
        }
    }

    /// Saves what was measured so far; called when the process ends.
    pub fn save(&self, process: &Process) {
        let Some(settings) = process.settings() else { return };
        if let Ok(mut state) = self.state.try_lock() {
            state.save(process, settings);
        }
    }
}

/// The call that is about to be executed.
struct Call<'a> {
    process: &'a Process,
    settings: &'a Settings,
    host: &'a Host,
    handle: Handle,
    device: usize,
    tuner: &'a Tuner,
    own: Own<'a>,
}
