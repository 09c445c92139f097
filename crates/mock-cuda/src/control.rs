//! What tests ask of the driver: its size, failures, delays, the clock; and the one way into every exported function.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use crate::error::Code;
use crate::injection::{Injection, lock};
use crate::state;

/// What the driver says of itself.
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

struct Control {
    description: Description,
    injection: Injection,
    delays: BTreeMap<u64, Duration>,
    initialized: bool,
}

static CONTROL: LazyLock<Mutex<Control>> = LazyLock::new(|| Mutex::new(Control::from_environment()));
static VIRTUAL: LazyLock<AtomicBool> = LazyLock::new(|| AtomicBool::new(virtual_by_environment()));
static SYNCHRONIZATIONS: AtomicU64 = AtomicU64::new(0);

/// Every stream, where a delay names an ordinal.
pub const ALL_STREAMS: u64 = u64::MAX;
/// The ordinal of default streams.
pub const DEFAULT_STREAM: u64 = u64::MAX - 1;

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn virtual_by_environment() -> bool {
    variable::<String>("TIGHTFIT_MOCK_CUDA_CLOCK").is_none_or(|clock| clock != "real")
}

impl Control {
    fn from_environment() -> Control {
        let description = Description {
            devices: variable("TIGHTFIT_MOCK_CUDA_DEVICES").unwrap_or(1),
            name: variable("TIGHTFIT_MOCK_CUDA_NAME").unwrap_or_else(|| "Tightfit Mock GPU".into()),
            memory: variable("TIGHTFIT_MOCK_CUDA_MEMORY").unwrap_or(4 << 30),
            version: variable("TIGHTFIT_MOCK_CUDA_VERSION").unwrap_or(13000),
        };
        let injection = variable::<String>("TIGHTFIT_MOCK_CUDA_FAIL").map(|f| Injection::parse(&f)).unwrap_or_default();
        let mut delays = BTreeMap::new();
        for part in variable::<String>("TIGHTFIT_MOCK_CUDA_DELAY").unwrap_or_default().split(',') {
            if let Some((stream, micros)) = part.split_once(':')
                && let Ok(micros) = micros.parse()
            {
                delays.insert(stream.parse().unwrap_or(ALL_STREAMS), Duration::from_micros(micros));
            }
        }
        Control { description, injection, delays, initialized: false }
    }
}

/// What the driver says of itself now.
pub fn description() -> Description {
    lock(&CONTROL).description.clone()
}

/// Changes what the driver says of itself.
pub fn describe(change: impl FnOnce(&mut Description)) {
    change(&mut lock(&CONTROL).description);
}

/// How late each piece of work of a stream begins.
pub fn delay(ordinal: u64) -> Duration {
    let control = lock(&CONTROL);
    control.delays.get(&ordinal).or_else(|| control.delays.get(&ALL_STREAMS)).copied().unwrap_or_default()
}

/// Makes each piece of work of a stream begin that late.
pub fn set_delay(ordinal: u64, delay: Duration) {
    lock(&CONTROL).delays.insert(ordinal, delay);
}

/// Whether events carry virtual times.
pub fn clock_is_virtual() -> bool {
    VIRTUAL.load(Ordering::SeqCst)
}

/// Chooses the clock of events.
pub fn set_clock(is_virtual: bool) {
    VIRTUAL.store(is_virtual, Ordering::SeqCst);
}

/// The host waited for the device.
pub fn count_synchronization() {
    SYNCHRONIZATIONS.fetch_add(1, Ordering::SeqCst);
}

/// How often the host waited for the device since the last reset.
pub fn synchronizations() -> u64 {
    SYNCHRONIZATIONS.load(Ordering::SeqCst)
}

/// Plans a failure.
pub fn fail(name: &str, nth: u64, status: i32) {
    lock(&CONTROL).injection.fail(name, nth, status);
}

/// Calls of a function so far.
pub fn calls(name: &str) -> u64 {
    lock(&CONTROL).injection.calls(name)
}

/// Back to what the environment says, with no object alive.
pub fn reset() {
    state::reset();
    *lock(&CONTROL) = Control::from_environment();
    set_clock(virtual_by_environment());
    SYNCHRONIZATIONS.store(0, Ordering::SeqCst);
}

fn on_call(name: &'static str) -> (Option<Code>, bool) {
    let mut control = lock(&CONTROL);
    let injected = control.injection.on_call(name).map(Code);
    control.initialized |= name == "cuInit" && injected.is_none();
    (injected, control.initialized)
}

fn guarded(body: impl FnOnce() -> Result<(), Code>) -> Code {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => Code::UNKNOWN,
    }
}

/// Answers one call: counted, failed if a test asked for it, and never a panic across the C boundary.
pub fn call(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> i32 {
    let answer = match on_call(name) {
        (Some(injected), _) => {
            state::lose_context(injected);
            injected
        }
        (None, false) => Code::NOT_INITIALIZED,
        (None, true) => guarded(body),
    };
    answer.0
}

/// Answers a call that gives something back. It does its work even when it answers an error, as the driver does where it
/// passes on an earlier failure: so an object that is still alive at the end was forgotten by the program.
pub fn release(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> i32 {
    let (injected, initialized) = on_call(name);
    if !initialized {
        return injected.unwrap_or(Code::NOT_INITIALIZED).0;
    }
    let answer = guarded(body);
    injected.inspect(|&code| state::lose_context(code)).unwrap_or(answer).0
}
