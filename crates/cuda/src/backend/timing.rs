//! Times work on a stream between two events, as a series and as a single call.
//!
//! ```text
//! single    event | call | event                           a call alone, with its launch gaps
//! time      call | event | call call call .. | event       divided by their number: what a series pays for each
//! ```
//!
//! While the call ahead of a series runs, the host enqueues the series, so that it begins without a gap, like one
//! micro-batch after another. Calls that take far longer than a gap are timed alone.
//!
//! A candidate that loses to its bound costs little, because most of them do:
//!
//! ```text
//! untimed call | single call |                     over the bound and so long that gaps hardly count: no more
//!              |             | series |            over the bound: no more
//!              |             |        | .. ..      the same as without a bound
//! ```

use tightfit_conv::backend::{Effort, Sample, sample};
use tightfit_units::{Error, Nanos};

use crate::CudaError;
use crate::safe::{Event, Stream};

/// Least span between two events that can be divided: hundreds of times the resolution of an event.
const MIN_SPAN: Nanos = Nanos(300_000);
/// Calls shorter than this are timed behind another: a launch gap may be tens of microseconds.
const SHORT_CALL: Nanos = Nanos(1_000_000);
/// Maximum number of calls in one span.
const MAX_CALLS_PER_SPAN: u64 = 10;
/// A first call loads its kernels, which takes milliseconds; one that takes longer than this does so by itself.
const MAX_LOADING_TIME: Nanos = Nanos(20_000_000);

/// A single call shorter than this is not judged, because gaps may be much of its time. The series that judges it takes
/// about as long.
const MIN_JUDGED_TIME: Nanos = Nanos(500_000);
/// How far over the bound a candidate is given up. Times of one call repeat within a few percent.
const MAX_SLOWDOWN: f64 = 1.1;

/// Enqueues the work once on its stream.
pub(super) type Enqueue<'a> = &'a dyn Fn() -> Result<(), CudaError>;

/// Times the work that `enqueue` puts on the stream, as a series and alone, and waits for all of it, even on failure.
///
/// # Errors
/// The errors of `enqueue`; [`CudaError::Driver`].
pub(super) fn time(stream: &Stream, effort: &Effort, enqueue: Enqueue<'_>) -> Result<(Sample, Nanos), CudaError> {
    let timed = time_series(stream, effort, enqueue);
    let waited = stream.synchronize();
    timed.and_then(|timed| waited.map(|()| timed))
}

/// Runs the work once and waits for it; returns its time, including anything a first call loads.
///
/// # Errors
/// The errors of `enqueue`; [`CudaError::Driver`].
pub(super) fn time_once(stream: &Stream, enqueue: Enqueue<'_>) -> Result<Nanos, CudaError> {
    let [start, end] = [Event::new(stream.context())?, Event::new(stream.context())?];
    start.record(stream)?;
    let enqueued = enqueue();
    end.record(stream)?;
    let waited = stream.synchronize();
    enqueued?;
    waited?;
    end.since(&start)
}

fn time_series(stream: &Stream, effort: &Effort, enqueue: Enqueue<'_>) -> Result<(Sample, Nanos), CudaError> {
    let events = [Event::new(stream.context())?, Event::new(stream.context())?];
    let span = |ahead: bool, calls: u64| -> Result<Nanos, CudaError> {
        let [start, end] = &events;
        if ahead {
            enqueue()?;
        }
        start.record(stream)?;
        for _ in 0..calls {
            enqueue()?;
        }
        end.record(stream)?;
        end.synchronize()?;
        Ok(Nanos(end.since(start)?.0 / calls))
    };
    let first = span(false, 1)?;
    let hopeless = effort.best.is_some_and(|best| first > MAX_LOADING_TIME && first > best * 3);
    let mut single = if hopeless { first } else { span(false, 1)? };
    // No call takes less time than its kernels, so the faster of the two is more exact. The first may have loaded
    // something.
    let least = single.min(first);
    if least >= MIN_JUDGED_TIME && effort.is_lost(least, MAX_SLOWDOWN) {
        return Ok((Sample { median: least, spread: 0.0, repeats: 1 }, least));
    }
    let calls = if single >= MIN_SPAN { 1 } else { (MIN_SPAN.0 / single.0.max(1) + 1).min(MAX_CALLS_PER_SPAN) };
    let ahead = single < SHORT_CALL;
    // A long call was timed already; the calls so far have warmed up the device.
    let first = if ahead { span(ahead, calls)? } else { single };
    if ahead && effort.bound.is_some_and(|bound| first.0 as f64 > bound.0 as f64 * MAX_SLOWDOWN) {
        return Ok((Sample { median: first, spread: 0.0, repeats: 1 }, single));
    }
    if calls > 1 {
        let mut singles = [single, span(false, 1)?, span(false, 1)?];
        singles.sort_unstable();
        single = singles[1];
    }
    let mut known = Some(first);
    let effort = Effort { warm_up: effort.warm_up.saturating_sub(2), bound: None, ..*effort };
    let mut failure = None;
    let sampled = sample(&effort, || match known.take() {
        Some(time) => Ok(time),
        None => span(ahead, calls).map_err(|error| {
            let stop = Error::Backend { backend: "cuda".to_owned(), what: error.to_string(), source: None };
            failure = Some(error);
            stop
        }),
    });
    match (sampled, failure) {
        (Ok(sample), _) => Ok((sample, single)),
        (Err(_), Some(error)) => Err(error),
        // Sampling fails only if the calls do.
        (Err(_), None) => Err(CudaError::Answer { what: "a timing", count: 0, expected: "one" }),
    }
}
