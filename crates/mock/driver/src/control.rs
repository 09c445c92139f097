//! Settings of the driver for tests, apart from failures: its size, delays.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use tightfit_mock_support::control::variable;
use tightfit_mock_support::{Control, Settings};

/// The driver's description of itself.
#[derive(Clone)]
pub struct Description {
    /// Number of devices.
    pub devices: usize,
    /// Name of every device.
    pub name: String,
    /// Bytes on each device.
    pub memory: u64,
    /// Driver version: 13000 is CUDA 13.0.
    pub version: i32,
}

/// The settings of this library for tests.
pub struct Levers {
    description: Description,
    delays: BTreeMap<u64, Duration>,
    synchronizations: u64,
    /// Whether cuInit was called.
    pub initialized: bool,
}

/// Failures, counts and settings of this library.
pub static CONTROL: Control<Levers> = Control::new("TIGHTFIT_MOCK_CUDA_FAIL");

thread_local! {
    /// How often this thread waited for the device, since it began.
    static OWN_SYNCHRONIZATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Every stream, where a delay names an ordinal.
pub const ALL_STREAMS: u64 = u64::MAX;
/// The ordinal of default streams.
pub const DEFAULT_STREAM: u64 = u64::MAX - 1;

impl Settings for Levers {
    fn from_environment() -> Levers {
        let description = Description {
            devices: variable("TIGHTFIT_MOCK_CUDA_DEVICES").unwrap_or(1),
            name: variable("TIGHTFIT_MOCK_CUDA_NAME").unwrap_or_else(|| "Tightfit Mock GPU".into()),
            memory: variable("TIGHTFIT_MOCK_CUDA_MEMORY").unwrap_or(4 << 30),
            version: variable("TIGHTFIT_MOCK_CUDA_VERSION").unwrap_or(13000),
        };
        let mut delays = BTreeMap::new();
        for part in variable::<String>("TIGHTFIT_MOCK_CUDA_DELAY").unwrap_or_default().split(',') {
            if let Some((stream, micros)) = part.split_once(':')
                && let Ok(micros) = micros.parse()
            {
                delays.insert(stream.parse().unwrap_or(ALL_STREAMS), Duration::from_micros(micros));
            }
        }
        Levers { description, delays, synchronizations: 0, initialized: false }
    }

    fn count(&self, kind: &str) -> Option<u64> {
        match kind {
            "synchronizations" => Some(self.synchronizations),
            "own-synchronizations" => Some(OWN_SYNCHRONIZATIONS.get()),
            _ => None,
        }
    }
}

/// The driver's current description of itself.
pub fn description() -> Description {
    CONTROL.settings(|asked| asked.description.clone())
}

/// Changes the driver's description of itself.
pub fn describe(change: impl FnOnce(&mut Description)) {
    CONTROL.settings(|asked| change(&mut asked.description));
}

/// How late each piece of work of a stream begins.
pub fn delay(ordinal: u64) -> Duration {
    CONTROL.settings(|Levers { delays, .. }| {
        delays.get(&ordinal).or_else(|| delays.get(&ALL_STREAMS)).copied().unwrap_or_default()
    })
}

/// Makes each piece of work of a stream begin that late.
pub fn set_delay(ordinal: u64, delay: Duration) {
    CONTROL.settings(|asked| asked.delays.insert(ordinal, delay));
}

/// The host waited for the device.
pub fn count_synchronization() {
    OWN_SYNCHRONIZATIONS.set(OWN_SYNCHRONIZATIONS.get() + 1);
    CONTROL.settings(|asked| asked.synchronizations += 1);
}
