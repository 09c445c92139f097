//! Progress on a terminal: a bar by share of the work, with the time left. Silent in a pipe.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tightfit_core::Problem;
use tightfit_core::survey::Progress;

/// Steps of the bar.
const STEPS: u64 = 1000;

/// A progress bar on standard error.
pub struct Bar(ProgressBar);

impl Bar {
    /// A bar that begins now. Where standard error is no terminal, nothing is drawn.
    pub fn new() -> Bar {
        let bar = ProgressBar::new(STEPS);
        if let Ok(style) =
            ProgressStyle::with_template("{elapsed:>4} [{bar:30}] {percent:>3} %, {eta} left  {wide_msg}")
        {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Bar(bar)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

impl Progress for Bar {
    fn begin(&self, problem: &Problem, place: usize, of: usize) {
        self.0.set_message(format!("{}/{of} {problem}", place + 1));
    }

    fn done(&self, share: f64) {
        self.0.set_position((share * STEPS as f64) as u64);
    }
}

/// A progress bar that counts training steps.
pub struct Steps(ProgressBar);

impl Steps {
    /// A bar of so many steps. Where standard error is no terminal, nothing is drawn.
    pub fn new(steps: u64) -> Steps {
        let bar = ProgressBar::new(steps);
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} [{bar:30}] step {pos}/{len}, {eta} left  {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Steps(bar)
    }

    /// One more step is done.
    pub fn done(&self, loss: f64) {
        self.0.set_message(format!("loss {loss:.4}"));
        self.0.inc(1);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
