//! The state of this process: one value, made at the first call, in which each part belongs to the module of its type.
//!
//! Lock order: along an arrow, the lock on the right may be taken while the one on the left is held. Locks that no arrow
//! connects are never held together:
//!
//! ```text
//! the tuner -> a handle's session -> builds | proofs | unsaved | errors      no thread waits for the tuner: one thread at a time tunes
//! builds | proofs -> a worker's thread                      while something is handed over
//! a handle's session -> a device's backend for measuring -> candidates | times | cache file | shipped | unsaved | errors
//! a handle's session -> the map of totals                   allocating a total, or looking one up
//! a handle's session -> a device's total                    while its kernel is enqueued
//! the blocks of loans                                       while a call is enqueued in one, and nothing else is held
//! kernels | map of sessions | map of backends | substitutes of loans | one shard of the shadows | a kernel's others
//!                                                           for a few statements, and nothing is taken meanwhile
//! ```
//!
//! The map of totals is released before a device's total is locked. Waiting for a backend has a time limit, because the
//! thread that measures may need work that the waiting one has yet to enqueue. Nobody waits for a session, since only one
//! thread at a time uses a handle. The choice of a kernel and the settings of calls (`SwapCell`) are read without a lock.
//! They are replaced under a lock under which no other is taken. Counts and the state of the report take no lock.
//! Cells that are filled once (settings, libraries, cache file, conclusions about a descriptor) may be filled while any of
//! these locks is held. Filling one takes no lock of this list; a decision about a configuration is made before its cell is
//! filled. Locks inside other crates (the host's contexts, SQLite's) are taken last and released first.

use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock};

use tightfit_cuda::Host;
use tightfit_cuda::sys::cudnn::{BackendDescriptor, Handle};

use crate::choose::Chooser;
use crate::decision::Shadows;
use crate::kernel::{Kernel, Kernels};
use crate::limits::{Change, Limits};
use crate::memory::{Loans, Totals};
use crate::original::Original;
use crate::progress::Progress;
use crate::reason::Counts;
use crate::report_state::ReportState;
use crate::session::Sessions;
use crate::settings::{self, Settings};
use crate::swap_cell::SwapCell;
use crate::tune::{Around, Tuner};

/// The state of a process: parts that guard themselves. A part's own documentation says how.
#[derive(Default)]
pub struct Process {
    settings: OnceLock<Option<Settings>>,
    /// The settings of the program's calls.
    pub limits: SwapCell<Limits>,
    /// Whether a call ever set a limit. From then on, less may have been reported for plans than cuDNN asks for.
    is_limited: AtomicBool,
    original: OnceLock<Option<Arc<Original>>>,
    host: OnceLock<Option<Arc<Host>>>,
    /// Whether a parent process ran convolutions before it forked this one.
    is_severed: bool,
    /// The program's descriptors.
    pub shadows: Shadows,
    /// The convolutions.
    pub kernels: Kernels,
    /// The program's handles.
    pub sessions: Sessions,
    /// Memory that kernels share for good.
    pub totals: Totals,
    /// Memory that calls borrow.
    pub loans: Loans,
    /// Chooses configurations.
    pub chooser: Chooser,
    /// Measures between the program's calls.
    pub tuner: Tuner,
    /// The calls that were passed through.
    pub counts: Counts,
    /// The messages to the user about tuning.
    pub progress: Progress,
    /// The report.
    pub report_state: ReportState,
}

/// The state. It needs no lock because it is only replaced as a whole: null until the first call, and a new one in a forked
/// child. States are never freed.
static PROCESS: AtomicPtr<Process> = AtomicPtr::new(null_mut());

/// The state of this process, made now if this is the first call.
pub fn process() -> &'static Process {
    existing().unwrap_or_else(create)
}

/// The state of this process if there is one. Safe in a signal handler.
pub fn existing() -> Option<&'static Process> {
    // SAFETY: null, or a state that was published complete and is never freed.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }
}

#[cold]
fn create() -> &'static Process {
    let new = Box::into_raw(Box::<Process>::default());
    match PROCESS.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            // SAFETY: the handler is a function of this library, which is never unloaded. Children inherit it. Without room for it, a child goes on
            // with its parent's state.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // SAFETY: just made, published, and never freed.
            unsafe { &*new }
        }
        Err(first) => {
            // SAFETY: just made, and not published, because another thread was first.
            drop(unsafe { Box::from_raw(new) });
            // SAFETY: published, and never freed.
            unsafe { &*first }
        }
    }
}

/// In a forked child, before `fork` returns there and before the child has a second thread: replaces the parent's state.
/// It allocates, which a handler of `fork` may: the allocator's own handlers have run by then.
extern "C" fn in_child() {
    if let Some(parent) = existing() {
        PROCESS.store(Box::into_raw(Box::new(Process::of_child(parent))), Ordering::Release);
    }
}

impl Process {
    /// The state of a forked child: the one place that decides what becomes of its parent's. Nothing of the parent's is dropped,
    /// because threads that are gone may have held its locks, and its objects belong to a driver that does not survive
    /// a fork.
    ///
    /// ```text
    /// real library        the same
    /// settings, limits    the same; but none, so that all is passed through, if the parent used CUDA through us or ran
    ///                     convolutions: no work can follow in the child, and the report is the parent's
    /// shadows             taken over, except those whose locks another thread held
    /// host, sessions, backends, totals, loans, cache file, shipped, kernels, tuner, counts, report        new
    /// ```
    fn of_child(parent: &Process) -> Process {
        let child = Process {
            settings: parent.settings.clone(),
            limits: SwapCell::new(parent.limits.get().clone()),
            is_limited: AtomicBool::new(parent.is_limited.load(Ordering::Relaxed)),
            original: parent.original.clone(),
            is_severed: parent.is_severed
                || parent.report_state.is_begun()
                || matches!(parent.host.get(), Some(Some(_))),
            ..Process::default()
        };
        if !child.is_severed {
            child.shadows.adopt(&parent.shadows);
        }
        child
    }

    /// The environment's settings, or `None` if every convolution is to be left unchanged.
    pub fn settings(&self) -> Option<&Settings> {
        self.settings.get_or_init(settings::of_environment).as_ref().filter(|_| !self.is_severed)
    }

    /// Why no call can set limits here, or `None` if calls can.
    pub fn why_off(&self) -> Option<&'static str> {
        if self.is_severed {
            return Some("this process was forked from one that had used the GPU; its convolutions are left unchanged");
        }
        let why = "TIGHTFIT_OFF is set, or a TIGHTFIT_ variable is invalid, as standard error says; nothing is changed";
        self.settings().is_none().then_some(why)
    }

    /// Sets limits for all convolutions, or for some layers.
    pub fn set_limits(&self, change: &Change, layers: Option<&[String]>) {
        self.limits.update(|limits| limits.after(change, layers));
        if self.limits.get().is_any() {
            self.is_limited.store(true, Ordering::Release);
        }
    }

    /// Whether the settings, or a call once, ask for any of our work.
    fn is_active(&self) -> bool {
        let is_limited = |settings: &Settings| settings.limit.is_some() || self.is_limited.load(Ordering::Acquire);
        self.settings().is_some_and(is_limited)
    }

    /// The real library, or `None` without one, which is reported once.
    pub fn original(&self) -> Option<&Original> {
        self.original.get_or_init(|| Original::find().map(Arc::new)).as_deref()
    }

    /// The real library's file.
    pub fn original_path(&self) -> Option<&Path> {
        self.original().map(Original::path)
    }

    /// Tunes before a kernel is executed, as [`Tuner::between_calls`]; requests the report when that has something new.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn tune(&self, kernel: &Arc<Kernel>, handle: Handle, plan: Option<(BackendDescriptor, [i64; 3])>) {
        if !self.tuner.concerns(kernel) {
            return;
        }
        let (Some(settings), Some(host)) = (self.settings(), self.host()) else { return };
        let Process { chooser, sessions, kernels, progress, .. } = self;
        let around = Around { settings, host, chooser, sessions, kernels, progress };
        // SAFETY: forwarded to the caller.
        if unsafe { self.tuner.between_calls(&around, kernel, handle, plan) } {
            // A program that is killed leaves one.
            self.report_state.request();
        }
    }

    /// Driver and cuDNN for our own work, or `None` if they cannot be opened, which is reported once.
    pub fn host(&self) -> Option<&Arc<Host>> {
        self.host.get_or_init(|| self.original()?.host().map(Arc::new)).as_ref()
    }
}

/// The state, if the settings or a call ask for any of our work.
pub fn active() -> Option<&'static Process> {
    Some(process()).filter(|process| process.is_active())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `child` in a forked process, and returns whether it returned true.
    fn is_right_in_child(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child only calls what is tested, and leaves without the exit handlers of the test program.
        unsafe {
            match libc::fork() {
                0 => libc::_exit(i32::from(
                    !std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false),
                )),
                pid => {
                    let mut status = -1;
                    libc::waitpid(pid, &mut status, 0) == pid && status == 0
                }
            }
        }
    }

    #[test]
    fn a_forked_child_has_a_state_of_its_own_with_free_locks() {
        use tightfit_cuda::sys::cudnn::Kind;

        let parent = process();
        parent.shadows.create(64, Kind::TENSOR);
        parent.shadows.finalize(64);
        let taken = || process().sessions.forget(Handle(std::ptr::null_mut()));
        let held = parent.sessions.hold();
        parent.set_limits(&Change::read("workspace=1MiB").unwrap(), None);
        assert!(is_right_in_child(|| {
            taken();
            let child = process();
            child.limits.get() == parent.limits.get()
                && child.is_active()
                && !std::ptr::eq(child, parent)
                && child.shadows.object(64).is_some()
                && !child.is_severed
        }));
        // Once the parent has run a convolution, its child leaves all alone, and so do that child's own children.
        parent.report_state.begin(|| parent.report_state.take_over());
        let is_idle = || process().is_severed && process().why_off().is_some() && !process().report_state.is_own();
        assert!(is_right_in_child(|| {
            taken();
            is_idle() && process().shadows.object(64).is_none() && is_right_in_child(is_idle)
        }));
        drop(held);
        assert!(std::ptr::eq(process(), parent) && parent.report_state.is_own());
        parent.shadows.destroy(64);
        // A report under a limit holds after the limit was taken back.
        parent.set_limits(&Change::read("workspace=default").unwrap(), None);
        assert!(!parent.limits.get().is_any() && parent.is_active());
    }
}
