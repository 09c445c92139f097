//! Estimates the time and memory that measuring on the CPU will take, before it starts, and refuses what cannot fit.

use std::time::Duration;

use tightfit_conv::{Algorithm, Backend, Problem};
use tightfit_cpu::host_memory;
use tightfit_profile::survey::{Env, Forecast, Scope, forecast};
use tightfit_units::{Bytes, Nanos};

use crate::failure::Failure;
use crate::message;
use crate::progress::{Bar, about};
use crate::rates::{LEAST_RATE, Rates};

/// Anything longer is announced in advance.
const LONG: Duration = Duration::from_secs(10);

/// How long to spend on the estimate.
const PATIENCE: Duration = Duration::from_secs(1);

/// The estimate itself may take at most this share of the time of measuring.
const SHARE: f64 = 0.0075;

/// At this load or more, measuring shares the processor with other programs.
const BUSY: f64 = 1.0;

/// The memory that measuring may take: all but an eighth of the available memory. None if the system does not report what
/// is available.
pub fn usable() -> Option<Bytes> {
    host_memory::free().map(|free| Bytes(free.bytes.0 / 8 * 7))
}

/// The measurements that come next.
pub struct Work<'a> {
    /// Name of the network.
    pub network: &'a str,
    /// Each problem once.
    pub problems: &'a [Problem],
    /// Memory that the command takes in addition to its measuring buffers.
    pub beside: Bytes,
    /// The options that would take less, as the end of a sentence.
    pub choices: &'a str,
}

/// Estimates the time of measuring on the CPU, and announces it if it is long; returns the estimate. None on another backend, or if there is
/// nothing to measure.
///
/// # Errors
/// [`Failure::TooLarge`] if it takes more memory than may be used; otherwise as [`forecast`].
pub fn foresee(
    work: &Work<'_>,
    scope: &Scope,
    backend: &mut dyn Backend,
    env: &Env<'_>,
) -> Result<Option<Forecast>, Failure> {
    if backend.device().backend != "cpu" {
        return Ok(None);
    }
    let bar = Bar::new("finding what to measure", None);
    let least = |problem: &Problem, _: &Algorithm| seconds(problem.flops() / LEAST_RATE);
    // A problem far too large is recognized without searching through its sizes.
    check_memory(work, &forecast(work.problems, scope, env, backend, &least, Duration::ZERO)?)?;
    let mut found = forecast(work.problems, scope, env, backend, &least, PATIENCE)?;
    check_memory(work, &found)?;
    if found.measurements > 0 && (duration(found.time) > LONG || !found.is_complete) {
        let mut rates = Rates::new(backend);
        found = forecast(work.problems, scope, env, backend, &|one, by| rates.time(one, by), PATIENCE)?;
        check_memory(work, &found)?;
        if duration(found.time) > LONG {
            rates.refine(work.problems, backend, duration(found.time).mul_f64(SHARE).min(PATIENCE));
            found = forecast(work.problems, scope, env, backend, &|one, by| rates.time(one, by), PATIENCE)?;
        }
    }
    drop(bar);
    let time = duration(found.time);
    if time > LONG || !found.is_complete {
        message::say(announcement(&found, backend.device().threads, work.choices, load()));
    }
    Ok(Some(found).filter(|found| found.measurements > 0 && found.is_complete))
}

/// The average number of running processes in the last minute; 0 if the system does not report it.
fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// One line about the work ahead on a machine with this `load`. The estimate assumes that nothing else runs.
fn announcement(found: &Forecast, threads: usize, choices: &str, load: f64) -> String {
    let (threads, plural) = (threads.max(1), if threads > 1 { "s" } else { "" });
    let (time, memory) = (about(duration(found.time)), found.memory);
    let at_least = if found.is_complete { "about" } else { "more than" };
    let beside =
        if load < BUSY { String::new() } else { format!(" and longer beside other programs (load {load:.1})") };
    format!(
        "note: measuring {} problems on {threads} thread{plural}: {at_least} {time}{beside}, up to {memory} of memory; Ctrl-C \
         stops and keeps cached measurements; {choices}",
        found.problems
    )
}

fn check_memory(work: &Work<'_>, found: &Forecast) -> Result<(), Failure> {
    let needed = found.memory + work.beside;
    let Some(free) = host_memory::free() else { return Ok(()) };
    let usable = usable().unwrap_or(Bytes::UNLIMITED);
    if needed <= usable {
        return Ok(());
    }
    let bound = if found.is_complete { "up to" } else { "at least" };
    Err(Failure::TooLarge(format!(
        "measuring {} takes {bound} {} of memory, but only {} may be used ({} is {}; an eighth is left for \
         other processes); nothing was measured; {}",
        work.network,
        needed.rounded_up(),
        usable.rounded_down(),
        free.limit,
        free.bytes,
        work.choices
    )))
}

fn seconds(seconds: f64) -> Nanos {
    Nanos::from_micros(seconds * 1e6)
}

fn duration(time: Nanos) -> Duration {
    Duration::from_nanos(time.0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn announcement_has_time_memory_and_alternatives() {
        let found = Forecast {
            problems: 57,
            measurements: 900,
            time: seconds(2400.0),
            memory: Bytes::gib(19),
            times: HashMap::new(),
            is_complete: true,
        };
        let line = announcement(&found, 2, "--assume", 0.3);
        assert!(line.contains("57 problems on 2 threads: about 40 minutes, up to 19 GiB of memory"), "{line}");
        assert!(line.ends_with("--assume"), "{line}");
        let line = announcement(&Forecast { is_complete: false, ..found }, 1, "--assume", 2.64);
        let busy = "on 1 thread: more than 40 minutes and longer beside other programs (load 2.6), up to";
        assert!(line.contains(busy), "{line}");
    }
}
