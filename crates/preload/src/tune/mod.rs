//! Measures between the program's calls, and changes the choice that runs.
//!
//! ```text
//! first step     nothing: the program's own choices run, or what earlier processes decided
//! then           a call comes | read what has ended, enqueue what comes next | the call itself
//! in the end     all is measured, what could still be gained is less than a hundredth of a step, or the budget is spent
//! ```
//!
//! Nothing waits for the device: its times are read when they are there. Nothing waits for another process, or for another thread: if that thread is
//! tuning, this one does not. Nothing waits for engines that compile, whose plans our thread builds (`builds`). The choice changes between two
//! executions, never within one, and only to one that needs no more than the reported workspace. Memory is allocated in stream order, from free
//! memory beyond a reserve, and freed after each measurement. Nothing is measured on a stream that captures.

mod builds;
mod call;
mod job;
mod ledger;
mod outcome;
mod pace;
mod pilot;
mod rates;
mod room;
mod similar;
mod state;
mod steps;
mod task;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Instant;

use tightfit_cuda::sys::cudnn::{BackendDescriptor, Handle};

use crate::choose::Chooser;
use crate::kernel::Kernel;
use crate::lock::lock;
use crate::settings::Settings;
use builds::Builds;
pub use call::Around;
use call::TunedCall;
use state::State;
use task::Own;

/// The state of tuning.
#[derive(Default)]
pub struct Tuner {
    /// Whether a call has nothing to do.
    is_idle: AtomicBool,
    state: Mutex<State>,
    builds: Builds,
}

impl Tuner {
    /// A new kernel may be worth tuning.
    pub fn wake(&self) {
        self.is_idle.store(false, Ordering::Relaxed);
    }

    /// Whether nothing is left to do for the executed kernels.
    pub fn is_over(&self) -> bool {
        self.is_idle.load(Ordering::Relaxed)
    }

    /// Returns whether an execution of this kernel may need work. A kernel that is still open was tried among others, or
    /// hardly executed, when all other work was done.
    pub fn concerns(&self, kernel: &Kernel) -> bool {
        !self.is_over() || kernel.is_open()
    }

    /// Called before a kernel is executed: measures if it is time, and changes the choice. Returns whether there is news to
    /// report: the first step is over, or tuning has ended with results.
    ///
    /// # Safety
    /// `handle` is alive, on the kernel's device, and used on this thread; `plan`, if the program has one, is the kernel's,
    /// with the ids of data, other and output, and is executed next on the handle.
    pub unsafe fn between_calls(
        &self,
        around: &Around<'_>,
        kernel: &Arc<Kernel>,
        handle: Handle,
        plan: Option<(BackendDescriptor, [i64; 3])>,
    ) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is at it.
            Err(TryLockError::WouldBlock) => return false,
        };
        state.meet(kernel);
        // Pending results are read at calls of any kernel, even if all kernels are closed by then.
        self.is_idle.store(state.is_over(), Ordering::Relaxed);
        if state.is_over() {
            return false;
        }
        if !state.has_work() {
            return false;
        }
        let is_first = state.begins();
        let Around { settings, host, sessions, .. } = *around;
        // SAFETY: forwarded to the caller.
        if unsafe { host.is_capturing(handle) } {
            return is_first;
        }
        let Ok(_beside) = host.beside_captures() else { return is_first };
        let device = kernel.question.device;
        // SAFETY: forwarded to the caller.
        let Ok(session) = (unsafe { sessions.on(host, handle, device) }) else { return is_first };
        let started = Instant::now();
        let mut session = lock(&session);
        let call = TunedCall { around, handle, device, own: Own { kernel, plan }, builds: &self.builds };
        // SAFETY: forwarded to the caller.
        unsafe { state.go_on(&call, &mut session) };
        state.spend(&call, started.elapsed());
        if !state.is_over() {
            state.show(&call);
            return is_first;
        }
        let is_news = state.end(&call, &mut session);
        self.is_idle.store(true, Ordering::Relaxed);
        around.progress.clear();
        if is_news {
            around.progress.tuned(around.kernels, settings, state.spent());
        }
        is_news || is_first
    }

    /// Whether plans are being built.
    pub fn is_building(&self) -> bool {
        self.builds.is_building()
    }

    /// Waits for the current build; called when the process ends.
    pub fn finish_builds(&self) {
        self.builds.finish();
    }

    /// Saves what was measured so far; called when the process ends.
    pub fn save(&self, chooser: &Chooser, settings: &Settings) {
        self.finish_builds();
        if let Ok(mut state) = self.state.try_lock() {
            chooser.proofs().finish();
            state.save(chooser, settings);
        }
        chooser.end(settings);
    }
}
