//! The summary of a program on standard error, when it exits.

use tightfit_report::{Slower, slower};
use tightfit_units::{Bytes, Nanos};

use crate::kernel::Kernel;
use crate::log;
use crate::process::Process;
use crate::progress::{Tally, prints_progress};

/// Prints the summary when the program exits, if any convolution is known.
pub fn at_exit(process: &Process) {
    if !process.settings().is_some_and(prints_progress) {
        return;
    }
    process.progress.clear();
    let (called, _) = process.kernels.called();
    let mut times = Times::default();
    called.iter().for_each(|kernel| times.add(kernel));
    if times.known == 0 {
        return;
    }
    let kernels = Tally::of(&process.kernels);
    let cost = process.chooser.spending().so_far();
    let spent = cost.time.0 as f64 * 1e-9;
    let goes_on = !process.tuner.is_over() && called.iter().any(|kernel| kernel.is_open());
    let so_far = if goes_on { " so far" } else { "" };
    let tuned =
        if process.progress.has_reported_end() { String::new() } else { format!("; tuned for {spent:.1} s{so_far}") };
    let shipped = match cost.shipped {
        0 => String::new(),
        shipped => format!(", {} with a shipped decision", shipped),
    };
    log::line(format_args!("{}; {}{shipped}{tuned}", times.words(), kernels.words()));
    for line in slower(called.iter().filter_map(|kernel| slowed_down(kernel)).collect()) {
        log::line(format_args!("{line}"));
    }
}

/// By how much a limit makes a kernel slower than the program's own choice, or `None` if that fits, or nothing is known.
fn slowed_down(kernel: &Kernel) -> Option<Slower> {
    let (ours, theirs) = (kernel.running().configuration()?.time(), kernel.framework_time()?);
    let is_known = ours > Nanos::ZERO && theirs > Nanos::ZERO && !kernel.can_run_own();
    is_known.then(|| Slower {
        kernel: format!("{} {}", kernel.name().unwrap_or_default(), kernel.question.problem.operation()),
        factor: ours.ratio(theirs),
        now: format!("within {}", kernel.terms.limit.bytes()),
        instead: format!("with {}", kernel.question.chosen.workspace.rounded_up()),
    })
}

/// Times and workspaces of the convolutions whose times are known.
#[derive(Default)]
struct Times {
    known: usize,
    /// Of all calls: by the program's own choices, and as it is now.
    own: f64,
    now: f64,
    /// The largest workspaces.
    own_workspace: Bytes,
    now_workspace: Bytes,
}

impl Times {
    fn add(&mut self, kernel: &Kernel) {
        let Some(own) = kernel.framework_time() else { return };
        let configuration = kernel.running().configuration();
        let now = configuration.map_or(own, |ours| ours.time());
        if now == Nanos::ZERO {
            return;
        }
        self.known += 1;
        let (calls, replaced) = (kernel.calls() as f64, kernel.replaced_calls() as f64);
        self.own += own.as_micros() * calls;
        self.now += own.as_micros() * (calls - replaced) + now.as_micros() * replaced;
        let workspace = kernel.question.chosen.workspace;
        self.own_workspace = self.own_workspace.max(workspace);
        self.now_workspace = self.now_workspace.max(configuration.map_or(workspace, |ours| ours.workspace()));
    }

    fn words(&self) -> String {
        let share = 100.0 * (self.now / self.own - 1.0);
        let [now, own] = [self.now, self.own].map(Nanos::from_micros);
        let algorithms = "with the program's own algorithms";
        let times = match share {
            share if share.abs() < 0.05 => format!("as long as {algorithms} ({own})"),
            share if share < 0.0 => format!("{:.1}% less time than {algorithms} ({now}, not {own})", -share),
            share => format!("{share:.1}% more time than {algorithms} ({now}, not {own})"),
        };
        let workspace = if self.now_workspace == self.own_workspace {
            format!("in the same workspace ({})", self.own_workspace)
        } else {
            format!("in {} of workspace, not {}", self.now_workspace, self.own_workspace)
        };
        format!("convolutions take {times}, {workspace}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_says_how_much_less_time_in_how_much_workspace() {
        let words = |own, now, own_workspace, now_workspace| {
            let times = Times {
                known: 1,
                own,
                now,
                own_workspace: Bytes::mib(own_workspace),
                now_workspace: Bytes::mib(now_workspace),
            };
            times.words()
        };
        assert_eq!(
            words(100.0, 87.5, 64, 64),
            "convolutions take 12.5% less time than with the program's own algorithms (87.5 µs, not 100.0 µs), in the same \
             workspace (64 MiB)"
        );
        assert_eq!(
            words(100.0, 300.0, 128, 32),
            "convolutions take 200.0% more time than with the program's own algorithms (300.0 µs, not 100.0 µs), in 32 MiB of \
             workspace, not 128 MiB"
        );
        assert!(words(100.0, 100.0, 1, 1).contains("take as long as with"));
    }
}
