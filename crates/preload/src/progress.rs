//! Messages to the user during tuning, on standard error: a line that changes if that is a terminal, and a line at its end.
//! With several ranks on one machine, only the first prints them.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tightfit_report::count;

use crate::kernel::{ActiveChoice, Kernels};
use crate::log;
use crate::ranks::local_rank;
use crate::settings::Settings;

/// How often the line on a terminal changes.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// The messages so far.
#[derive(Default)]
pub struct Progress {
    /// Whether a line on the terminal is unfinished.
    is_line_open: AtomicBool,
    /// When it last changed, in milliseconds since the process first spoke.
    last: AtomicU64,
    begun: std::sync::OnceLock<Instant>,
    has_reported_end: AtomicBool,
}

impl Progress {
    /// Shows the number of finished kernels, and the rest of the budget.
    pub fn show(&self, settings: &Settings, done: usize, all: usize, left: Option<Duration>) {
        if !prints_progress(settings) || !std::io::stderr().is_terminal() {
            return;
        }
        let begun = *self.begun.get_or_init(Instant::now);
        let now = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if self.is_line_open.load(Ordering::Relaxed)
            && now < self.last.load(Ordering::Relaxed) + MIN_INTERVAL.as_millis() as u64
        {
            return;
        }
        self.last.store(now, Ordering::Relaxed);
        self.is_line_open.store(true, Ordering::Relaxed);
        let left = left.map_or_else(String::new, |left| format!(", {:.0} s of the budget left", left.as_secs_f64()));
        log::part(format_args!("\r\x1b[Ktightfit: tuning: {done} of {all} kernels done{left}"));
    }

    /// Takes back the line on the terminal, if there is one.
    pub fn clear(&self) {
        if self.is_line_open.swap(false, Ordering::Relaxed) {
            log::part(format_args!("\r\x1b[K"));
        }
    }

    /// Whether the user has read that tuning has ended.
    pub fn has_reported_end(&self) -> bool {
        self.has_reported_end.load(Ordering::Relaxed)
    }

    /// Tuning has ended for now.
    pub fn tuned(&self, kernels: &Kernels, settings: &Settings, spent: Duration) {
        self.clear();
        self.has_reported_end.store(true, Ordering::Relaxed);
        if prints_progress(settings) {
            let kernels = Tally::of(kernels);
            log::line(format_args!("tuned for {:.1} s: {}", spent.as_secs_f64(), kernels.words()));
        }
    }
}

/// Whether this process prints progress.
pub fn prints_progress(settings: &Settings) -> bool {
    !settings.is_quiet && local_rank() == 0
}

/// Kernels by their decision.
#[derive(Default)]
pub struct Tally {
    divided: usize,
    replaced: usize,
    kept: usize,
}

impl Tally {
    /// The results of the kernels that were called.
    pub fn of(all: &Kernels) -> Tally {
        let mut kernels = Tally::default();
        for kernel in all.called().0 {
            match kernel.running() {
                ActiveChoice::Ours(ours) | ActiveChoice::Shared(ours) if ours.is_divided() => kernels.divided += 1,
                ActiveChoice::Ours(_) | ActiveChoice::Shared(_) => kernels.replaced += 1,
                ActiveChoice::Kept | ActiveChoice::Left(_) => kernels.kept += 1,
            }
        }
        kernels
    }

    /// In words.
    pub fn words(&self) -> String {
        let Tally { divided, replaced, kept } = self;
        format!("{} divided, {replaced} replaced, {kept} kept", count(*divided, "kernel"))
    }
}
