//! Progress of long work, on standard error: a bar on a terminal, otherwise a line after a few seconds, then one per minute.
//!
//! ```text
//! terminal   12m [=====>      ] measured 12 of 57 problems, conv3_1 forward, about 8 minutes left
//! pipe       measured 12 of 57 problems, conv3_1 forward, about 8 minutes left              (after 5 s, then once a minute)
//! ```

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use tightfit_conv::Problem;
use tightfit_network::Kernel;
use tightfit_profile::survey::{Forecast, Progress};
use tightfit_units::Nanos;

use crate::message;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// Without a terminal: the time until the first line, and between two lines. These times continue when one kind of work follows another, such as
/// planning after measuring, so that a log does not get a line for each part.
const PACE: Pace = Pace { first: Duration::from_secs(5), interval: Duration::from_secs(60) };

/// When any work last printed a line.
static SAID: Mutex<Option<Instant>> = Mutex::new(None);

/// A duration in words, such as "8 minutes".
pub fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let units = [(86_400.0, "day", 2.0), (3_600.0, "hour", 2.0), (60.0, "minute", 1.5), (1.0, "second", 0.0)];
    let (unit, name) =
        units.into_iter().find(|(unit, _, least)| seconds >= unit * least).map_or((1.0, "second"), |u| (u.0, u.1));
    let count = (seconds / unit).round();
    format!("{count} {name}{}", if count == 1.0 { "" } else { "s" })
}

/// The work, and the part of it that is finished.
#[derive(Clone, Debug, Default)]
struct Status {
    what: String,
    /// Fraction of all the work; 0 if unknown.
    share: f64,
    /// When the share was reached.
    at: Duration,
}

impl Status {
    /// One line: what is being done and the time left, or the time spent if the time left is unknown.
    fn line(&self, elapsed: Duration, expected: Option<Duration>) -> String {
        let left = if self.share > 0.0 {
            // A share near zero results in a time beyond the range of a clock, which is not worth showing.
            let left =
                Duration::try_from_secs_f64(self.at.as_secs_f64() * (1.0 - self.share).max(0.0) / self.share).ok();
            left.and_then(|left| left.checked_sub(elapsed.saturating_sub(self.at)))
        } else {
            expected.and_then(|expected| expected.checked_sub(elapsed))
        };
        match left {
            Some(left) => format!("{}, about {} left", self.what, about(left)),
            None => format!("{}, {} so far", self.what, about(elapsed)),
        }
    }
}

/// Shows the progress of long work until it is dropped.
pub struct Bar {
    drawn: ProgressBar,
    now: Arc<Mutex<Status>>,
    started: Instant,
    _lines: Option<Lines>,
}

impl Bar {
    /// Starts with work that begins now; `expected` is its total time, if known.
    pub fn new(what: impl Into<String>, expected: Option<Duration>) -> Bar {
        let now = Arc::new(Mutex::new(Status { what: what.into(), ..Status::default() }));
        let started = Instant::now();
        let line = {
            let now = Arc::clone(&now);
            move || now.lock().unwrap_or_else(PoisonError::into_inner).line(started.elapsed(), expected)
        };
        if !std::io::stderr().is_terminal() {
            let lines = Lines::at(PACE, &SAID, line, |line| message::say(line));
            return Bar { drawn: ProgressBar::hidden(), now, started, _lines: Some(lines) };
        }
        let drawn = ProgressBar::new(STEPS);
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {line}") {
            let line = move |_: &ProgressState, to: &mut dyn std::fmt::Write| {
                let _ = to.write_str(&line());
            };
            drawn.set_style(style.progress_chars("=> ").with_key("line", line));
        }
        drawn.enable_steady_tick(Duration::from_millis(200));
        Bar { drawn, now, started, _lines: None }
    }

    /// Sets what is being done now, and how much of all the work is finished.
    pub fn set(&self, what: String, share: f64) {
        self.drawn.set_position((share * STEPS as f64) as u64);
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let at = if share == now.share { now.at } else { self.started.elapsed() };
        *now = Status { what, share, at };
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.drawn.finish_and_clear();
    }
}

/// A survey's progress, with problems named after their layers.
pub struct Measuring {
    bar: Bar,
    /// If several layers share a problem, the first layer's name.
    names: HashMap<Problem, String>,
    /// The foreseen time of measuring, if it is known.
    expected: Option<Forecast>,
    at: Mutex<At>,
}

/// The problem that a survey is at.
#[derive(Default)]
struct At {
    what: String,
    share: f64,
    /// The problem that is measured, and the time of those before it as foreseen.
    problem: Option<Problem>,
    passed: Nanos,
}

impl Measuring {
    /// A survey of the problems of these kernels that begins now.
    pub fn new(kernels: &[Kernel], expected: Option<Forecast>) -> Measuring {
        let mut names = HashMap::new();
        for Kernel { layer, problem } in kernels {
            names.entry(*problem).or_insert_with(|| format!("{layer} {}", problem.operation()));
        }
        let time = expected.as_ref().map(|expected| Duration::from_nanos(expected.time.0));
        Measuring { bar: Bar::new("measuring", time), names, expected, at: Mutex::default() }
    }

    fn change(&self, change: impl FnOnce(&mut At)) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut at);
        self.bar.set(at.what.clone(), at.share);
    }
}

impl Progress for Measuring {
    fn begin(&self, problem: &Problem, place: usize, of: usize) {
        let mut what = format!("measured {place} of {of} problems, ");
        let _ = match self.names.get(problem) {
            Some(name) => write!(what, "{name}"),
            None => write!(what, "{problem}"),
        };
        self.change(|at| (at.what, at.problem) = (what, Some(*problem)));
    }

    fn done(&self, share: f64) {
        self.change(|at| {
            // The foreseen times separate slow problems, fast ones, and problems in the cache.
            at.share = match (&self.expected, at.problem.take()) {
                (Some(expected), Some(problem)) => {
                    at.passed = at.passed + expected.times.get(&problem).copied().unwrap_or_default();
                    at.passed.ratio(expected.time).min(1.0)
                }
                _ => share,
            };
        });
    }

    fn choosing(&self) {
        self.change(|at| *at = At { what: "choosing configurations".to_owned(), ..At::default() });
    }
}

/// How often lines are printed.
#[derive(Clone, Copy)]
struct Pace {
    /// The time before the first line of a work.
    first: Duration,
    /// The least time between two lines, even of different kinds of work.
    interval: Duration,
}

impl Pace {
    /// The time to wait for the next line, for work that began at `started`.
    fn wait(self, started: Instant, said: Option<Instant>, now: Instant) -> Duration {
        let first = started + self.first;
        said.map_or(first, |said| first.max(said + self.interval)).saturating_duration_since(now)
    }
}

/// A thread that prints a line now and then until it is dropped.
struct Lines {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Lines {
    fn at(
        pace: Pace,
        said: &'static Mutex<Option<Instant>>,
        line: impl Fn() -> String + Send + 'static,
        tell: impl Fn(&str) + Send + 'static,
    ) -> Lines {
        let (end, ended) = channel::<()>();
        let started = Instant::now();
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(move || {
            let said = || said.lock().unwrap_or_else(PoisonError::into_inner);
            let wait = || pace.wait(started, *said(), Instant::now());
            while ended.recv_timeout(wait()) == Err(RecvTimeoutError::Timeout) {
                tell(&line());
                *said() = Some(Instant::now());
            }
        });
        // If no thread can be started, the work continues without lines.
        Lines { end: Some(end), thread: thread.ok() }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn time_left_is_shown_once_known() {
        let begun = Status { what: "measured 0 of 57 problems, conv1_2 forward".to_owned(), ..Status::default() };
        assert_eq!(begun.line(MINUTE * 3, None), "measured 0 of 57 problems, conv1_2 forward, 3 minutes so far");
        assert!(begun.line(MINUTE, Some(MINUTE * 41)).ends_with(", about 40 minutes left"));
        assert!(begun.line(MINUTE * 2, Some(MINUTE)).ends_with(", 2 minutes so far"), "longer than expected");
        let done =
            Status { what: "measured 12 of 57 problems, conv3_1 forward".to_owned(), share: 0.2, at: MINUTE * 2 };
        assert_eq!(
            done.line(MINUTE * 2, Some(MINUTE)),
            "measured 12 of 57 problems, conv3_1 forward, about 8 minutes left"
        );
        assert!(done.line(MINUTE * 5, Some(MINUTE)).ends_with(", about 5 minutes left"), "the next one takes long");
        assert!(done.line(MINUTE * 11, None).ends_with(", 11 minutes so far"), "longer than all before it promised");
        let endless = Status { what: "step 1 of many".to_owned(), share: 5e-20, at: MINUTE };
        assert!(endless.line(MINUTE * 9, None).ends_with(", 9 minutes so far"));
        let whole = Status { what: "step 5 of 5".to_owned(), share: 1.0, at: MINUTE };
        assert_eq!(whole.line(MINUTE, None), "step 5 of 5, about 0 seconds left");
    }

    #[test]
    fn durations_use_a_natural_unit() {
        let about = |seconds| about(Duration::from_secs(seconds));
        let found = [0, 1, 89, 90, 600, 7199, 7200, 172_799, 172_800].map(about);
        let expected = [
            "0 seconds",
            "1 second",
            "89 seconds",
            "2 minutes",
            "10 minutes",
            "120 minutes",
            "2 hours",
            "48 hours",
            "2 days",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn problems_are_named_after_their_layers() {
        let kernel = |layer: &str, text: &str| Kernel { layer: layer.to_owned(), problem: text.parse().unwrap() };
        let kernels = [
            kernel("conv3_1", "forward n2 c4 h8 w8 k4 r3 s3 f32"),
            kernel("conv3_2", "forward n2 c4 h8 w8 k4 r3 s3 f32"),
        ];
        let measuring = Measuring::new(&kernels, None);
        let now = || measuring.bar.now.lock().unwrap().clone();
        measuring.begin(&kernels[1].problem, 12, 57);
        assert_eq!(now().what, "measured 12 of 57 problems, conv3_1 forward");
        measuring.done(0.25);
        assert_eq!((now().what.as_str(), now().share), ("measured 12 of 57 problems, conv3_1 forward", 0.25));
    }

    #[test]
    fn the_share_is_that_of_the_time_foreseen() {
        let kernels = ["forward n2 c4 h8 w8 k4 r3 s3 f32", "forward n2 c4 h9 w9 k4 r3 s3 f32"]
            .map(|text| Kernel { layer: "conv".to_owned(), problem: text.parse().unwrap() });
        let time = Nanos(4_000_000_000);
        let times =
            HashMap::from([(kernels[0].problem, Nanos(3_000_000_000)), (kernels[1].problem, Nanos(1_000_000_000))]);
        let measuring = Measuring::new(&kernels, Some(Forecast { time, times, ..Forecast::default() }));
        let share = || measuring.bar.now.lock().unwrap().share;
        measuring.begin(&kernels[0].problem, 0, 2);
        assert_eq!(share(), 0.0);
        measuring.done(0.5);
        assert_eq!(share(), 0.75);
        measuring.begin(&kernels[1].problem, 1, 2);
        measuring.done(1.0);
        assert_eq!(share(), 1.0);
    }

    #[test]
    fn the_first_line_is_early_and_the_next_are_a_minute_apart() {
        let begin = Instant::now();
        let wait = |started: Instant, said| PACE.wait(started, said, begin + MINUTE);
        assert_eq!(wait(begin + MINUTE, None), Duration::from_secs(5), "nothing was said yet");
        assert_eq!(wait(begin + MINUTE, Some(begin)), Duration::from_secs(5), "the last line is old");
        assert_eq!(wait(begin + MINUTE, Some(begin + MINUTE / 2)), MINUTE / 2, "other work has just said a line");
        assert_eq!(wait(begin, Some(begin + MINUTE)), MINUTE);
        assert_eq!(wait(begin, None), Duration::ZERO, "late");
    }

    #[test]
    fn lines_are_printed_until_dropped() {
        static SAID: Mutex<Option<Instant>> = Mutex::new(None);
        let (told, lines) = channel();
        let telling = Lines::at(
            Pace { first: Duration::ZERO, interval: Duration::from_millis(1) },
            &SAID,
            || "step 3 of 9".to_owned(),
            move |line| {
                let _ = told.send(line.to_owned());
            },
        );
        assert_eq!(lines.recv().unwrap(), "step 3 of 9");
        assert_eq!(lines.recv().unwrap(), "step 3 of 9");
        drop(telling);
        // The thread has ended, so nothing follows the lines already sent.
        while lines.try_recv().is_ok() {}
        assert!(lines.recv().is_err());
    }
}
