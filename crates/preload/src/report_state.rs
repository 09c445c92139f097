//! The state of the report: when it began, the process that writes it, and whether it is requested now.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tightfit_conv::Device;

/// Whether a report is to be written. Only atomics and cells, because a signal handler and every call look at it.
#[derive(Default)]
pub struct ReportState {
    begun: OnceLock<()>,
    /// The process that the report belongs to; 0 for none.
    owner: AtomicU32,
    is_requested: AtomicBool,
    device: OnceLock<String>,
}

impl ReportState {
    /// A convolution runs; the first time, `begin` prepares for the end.
    pub fn begin(&self, begin: impl FnOnce()) {
        if self.begun.get().is_none() {
            self.begun.get_or_init(begin);
        }
    }

    /// Whether a convolution has run.
    pub fn is_begun(&self) -> bool {
        self.begun.get().is_some()
    }

    /// Makes the report this process's own.
    pub fn take_over(&self) {
        self.owner.store(std::process::id(), Ordering::Relaxed);
    }

    /// Whether the report is this process's own: a child that was made without the handlers of `fork` shares the state,
    /// but must not write at exit.
    pub fn is_own(&self) -> bool {
        self.owner.load(Ordering::Relaxed) == std::process::id()
    }

    /// Requests the report at the next call; safe in a signal handler.
    pub fn request(&self) {
        self.is_requested.store(true, Ordering::Relaxed);
    }

    /// Whether the report was requested since the last time this was asked.
    pub fn take_request(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed) && self.is_requested.swap(false, Ordering::Relaxed)
    }

    /// The device that decisions are made for; the first one counts.
    pub fn on_device(&self, device: &Device) {
        self.device.get_or_init(|| device.to_string());
    }

    /// The first device that a decision was made for.
    pub fn device(&self) -> Option<&str> {
        self.device.get().map(String::as_str)
    }
}
