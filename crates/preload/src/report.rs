//! The report of the library's work, as JSON, written at exit and at the first call after SIGUSR1.
//!
//! ```text
//! kernels         for each that ran: the framework's choice and ours, workspace and time of both, calls
//! passed_through  why others were left unchanged
//! totals          largest workspace avoided at once, time gained, what choosing cost
//! ```

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tightfit_conv::Candidate;
use tightfit_units::{Nanos, output};

use crate::kernel::{ActiveChoice, Kernel};
use crate::launched_program;
use crate::log::warn;
use crate::process::{Process, existing};
use crate::process_libraries;
use crate::program;
use crate::settings::{Limit, Settings};
use crate::sigpipe::without_sigpipe;
use crate::summary;

/// How long the program waits at exit for the reader of a report that goes to a pipe.
const MAX_WAIT: Duration = Duration::from_secs(1);

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn sigaction(number: c_int, new: *const SignalAction, old: *mut SignalAction) -> c_int;
}

/// `struct sigaction`, of which only the handler is read: it comes first, and the rest is smaller than this.
#[repr(C)]
struct SignalAction {
    handler: usize,
    rest: [u64; 31],
}

const SIGUSR1: c_int = 10;
/// `SIG_DFL`
const DEFAULT: usize = 0;

/// Called when a convolution runs: a report is due from now on, and a report requested by a signal is written.
pub fn on_call(process: &Process) {
    process.report_state.begin(|| begin(process));
    if process.report_state.take_request() {
        write(process);
    }
    if process.tuner.is_building() && process_libraries::have_grown() {
        // SAFETY: the handler only waits, and lives as long as the process, because cuDNN is never unloaded.
        unsafe { atexit(end_builds) };
    }
}

/// Waits for plans that are being built: called before the libraries are torn down that building them has loaded.
extern "C" fn end_builds() {
    // Nothing may unwind into the C library.
    let _ = std::panic::catch_unwind(|| {
        if let Some(process) = existing().filter(|process| process.report_state.is_own()) {
            process.tuner.finish_builds();
        }
    });
}

fn begin(process: &Process) {
    let Some(settings) = process.settings() else { return };
    process.report_state.take_over();
    launched_program::on_first_call();
    // SAFETY: both handlers only touch atomics or write files, and live as long as the process, because cuDNN is never
    // unloaded.
    unsafe {
        atexit(at_exit);
        if settings.report.is_none() {
            return;
        }
        // Keep the program's own handler, without losing a signal to it in between.
        let mut before = SignalAction { handler: 0, rest: [0; 31] };
        if sigaction(SIGUSR1, std::ptr::null(), &mut before) == 0 && before.handler == DEFAULT {
            signal(SIGUSR1, on_signal as *const () as usize);
        }
    }
}

extern "C" fn on_signal(_: c_int) {
    if let Some(process) = existing() {
        process.report_state.request();
    }
}

extern "C" fn at_exit() {
    // Nothing may unwind into the C library.
    let _ = std::panic::catch_unwind(|| {
        if let Some(process) = existing().filter(|process| process.report_state.is_own()) {
            if let Some(settings) = process.settings() {
                process.tuner.save(&process.chooser, settings);
            }
            write(process);
            program::keep(process);
            summary::at_exit(process);
        }
    });
}

fn write(process: &Process) {
    let Some(path) = process.settings().and_then(Settings::report_path) else { return };
    let written = serde_json::to_vec_pretty(&json(process)).map_err(|error| error.to_string()).and_then(|text| {
        without_sigpipe(|| output::write_within(&path, &text, MAX_WAIT)).map_err(|error| error.chain())
    });
    if let Err(error) = written {
        warn!("could not write the report: {error}");
    }
}

fn json(process: &Process) -> Value {
    let limit = of_all(process);
    let (kernels, planned_only) = process.kernels.called();
    let passed: Vec<Value> = process
        .counts
        .all()
        .into_iter()
        .map(|(reason, function, calls)| json!({"reason": reason.words(), "function": function.name(), "calls": calls}))
        .collect();
    let mut report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "cudnn": process.original_path().map(|path| path.to_string_lossy()),
        "device": process.report_state.device(),
        "kernels": kernels.iter().map(|kernel| kernel_json(process, kernel, limit)).collect::<Vec<_>>(),
        "passed_through": passed,
        "totals": totals(process, &kernels, planned_only),
    });
    if let Some(limit) = limit {
        let (name, bytes) = named(limit);
        report[name] = bytes;
    }
    report
}

/// A time, or null if it was not measured.
fn micros(time: Option<Nanos>) -> Value {
    time.filter(|time| *time > Nanos::ZERO).map_or(Value::Null, |time| json!(time.as_micros()))
}

/// The limit of unnamed convolutions.
fn of_all(process: &Process) -> Option<Limit> {
    process.limits.get().terms(process.settings()?, None).map(|terms| terms.limit)
}

/// The limit that the layers of a kernel share now.
fn of_kernel(process: &Process, kernel: &Kernel) -> Option<Limit> {
    let (layers, own) = (kernel.layers(), kernel.question.chosen.workspace);
    process.limits.get().shared_terms(process.settings()?, layers, own).map(|terms| terms.limit)
}

/// A limit with its name in the report.
fn named(limit: Limit) -> (&'static str, Value) {
    match limit {
        Limit::Auto => ("workspace_limit", json!("auto")),
        Limit::PerKernel(bytes) => ("workspace_limit_bytes", json!(bytes.0)),
        Limit::Total(bytes) => ("total_workspace_bytes", json!(bytes.0)),
    }
}

/// A kernel; with its limit and the reported workspace, if the limit that holds for it or that it was planned under
/// differs from the limit of all.
fn kernel_json(process: &Process, kernel: &Kernel, of_all: Option<Limit>) -> Value {
    let question = &kernel.question;
    let chosen = &question.chosen;
    let theirs = json!({
        "algorithm": chosen.algorithm.name(),
        "time_us": micros(kernel.framework_time()),
        "workspace_bytes": chosen.workspace.0,
    });
    let part = |part: &Candidate| {
        json!({
            "micro_batch": part.micro_batch,
            "algorithm": part.algorithm.name(),
            "time_us": micros(Some(part.time)),
            "workspace_bytes": part.workspace.0,
        })
    };
    let (ours, decision) = match kernel.running() {
        ActiveChoice::Ours(configuration) | ActiveChoice::Shared(configuration) => (
            json!({
                "configuration": configuration.parts().iter().map(part).collect::<Vec<_>>(),
                "time_us": micros(Some(configuration.time())),
                "workspace_bytes": configuration.workspace().0,
            }),
            if configuration.is_divided() { "divided" } else { "replaced" },
        ),
        ActiveChoice::Left(reason) => (own_choice(kernel), reason.words()),
        ActiveChoice::Kept => (own_choice(kernel), "kept"),
    };
    let mut value = json!({
        "name": kernel.name(),
        "problem": question.problem.to_string(),
        "operation": question.problem.operation().name(),
        "device": question.device,
        "calls": kernel.calls(),
        "micro_batches": kernel.running().configuration().map_or(1, |ours| ours.parts().len()),
        "framework": theirs,
        "ours": ours,
        "decision": decision,
    });
    let limit = of_kernel(process, kernel);
    let own = kernel.question.chosen.workspace;
    let of_all = of_all.map(|all| if all == Limit::Auto { Limit::PerKernel(own) } else { all });
    if limit != of_all || Some(kernel.terms.limit) != of_all {
        if let Some(limit) = limit {
            let (name, bytes) = named(limit);
            value[name] = bytes;
        }
        value["told_workspace_bytes"] = json!(kernel.reported().workspace().0);
    }
    value
}

/// The framework's choice in the form of a configuration.
fn own_choice(kernel: &Kernel) -> Value {
    let (chosen, time) = (&kernel.question.chosen, micros(kernel.framework_time()));
    let part = json!({
        "micro_batch": kernel.question.problem.batch(),
        "algorithm": chosen.algorithm.name(),
        "time_us": time,
        "workspace_bytes": chosen.workspace.0,
    });
    json!({"configuration": [part], "time_us": time, "workspace_bytes": chosen.workspace.0})
}

fn totals(process: &Process, kernels: &[Arc<Kernel>], planned_only: usize) -> Value {
    let largest = |bytes: &dyn Fn(&Kernel) -> u64| kernels.iter().map(|kernel| bytes(kernel)).max().unwrap_or(0);
    let theirs = largest(&|kernel| kernel.question.chosen.workspace.0);
    let ours = largest(&|kernel| match kernel.running().configuration() {
        Some(configuration) => configuration.workspace().0,
        None => kernel.question.chosen.workspace.0,
    });
    // A total is allocated as a whole, however little of it is used.
    let total = |kernel: &&Arc<Kernel>| kernel.share().is_some();
    let totals = kernels.iter().filter(total).map(|kernel| kernel.terms.limit.bytes().0).max();
    let ours = ours.max(totals.unwrap_or(0));
    // Only if both times are known.
    let gained = |kernel: &Kernel| match (kernel.running().configuration(), kernel.framework_time()) {
        (Some(ours), Some(theirs)) if ours.time() > Nanos::ZERO => {
            (theirs.as_micros() - ours.time().as_micros()) * kernel.replaced_calls() as f64
        }
        _ => 0.0,
    };
    let spent = process.chooser.spending().so_far();
    // A kernel that was only tried, or is not executed any more, stays as it is.
    let undecided =
        if process.tuner.is_over() { 0 } else { kernels.iter().filter(|kernel| kernel.is_undecided()).count() };
    json!({
        "workspace_peak_avoided_bytes": theirs.saturating_sub(ours),
        "time_gained_us": kernels.iter().map(|kernel| gained(kernel)).sum::<f64>(),
        "tuning_us": spent.time.as_micros(),
        "tuning_measurements": spent.measured,
        "cache_hits": spent.cached,
        "shipped_hits": spent.shipped,
        "less_accurate": spent.inaccurate,
        "planned_only": planned_only,
        "undecided": undecided,
    })
}
