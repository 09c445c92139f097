//! The cost of choosing so far.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tightfit_units::Nanos;

/// Counts the cost of choosing.
#[derive(Default)]
pub struct Spending {
    nanos: AtomicU64,
    measured: AtomicU64,
    cached: AtomicU64,
    shipped: AtomicU64,
    inaccurate: AtomicU64,
}

/// The cost of choosing.
pub struct Cost {
    /// Time by which the program was held up: wall-clock, waiting included, and between the program's calls the device's.
    pub time: Nanos,
    /// Measurements made.
    pub measured: u64,
    /// Measurements and decisions found in the cache or in the shipped store.
    pub cached: u64,
    /// The shipped decisions among them.
    pub shipped: u64,
    /// Kernels for which a configuration was left out because it was less accurate than the framework's choice.
    pub inaccurate: u64,
}

impl Spending {
    /// Adds time spent.
    pub fn add(&self, time: Duration) {
        self.nanos.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Records that time spent on the host has held up the device for another time.
    pub fn correct(&self, host: Duration, device: Duration) {
        self.add(device);
        self.nanos.fetch_sub(host.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Adds measurements made.
    pub fn add_measured(&self, count: usize) {
        self.measured.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Adds measurements found in the cache.
    pub fn add_cached(&self, count: usize) {
        self.cached.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Adds a shipped decision, which [`Spending::add_cached`] counts too.
    pub fn add_shipped(&self) {
        self.shipped.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds a kernel for which a configuration was left out for its error.
    pub fn add_inaccurate(&self) {
        self.inaccurate.fetch_add(1, Ordering::Relaxed);
    }

    /// The cost so far.
    pub fn so_far(&self) -> Cost {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Cost {
            time: Nanos(of(&self.nanos)),
            measured: of(&self.measured),
            cached: of(&self.cached),
            shipped: of(&self.shipped),
            inaccurate: of(&self.inaccurate),
        }
    }
}
