//! The program that `tightfit run` became, as opposed to its children. It prints a line if it ends without a convolution.
//!
//! ```text
//! tightfit run -- python train.py      train.py has the process ID in TIGHTFIT_RUN, its workers have not
//! tightfit run -- torchrun train.py    a worker that runs a convolution leaves a mark: torchrun then says nothing
//! tightfit run -- bash all.sh          loads no CUDA, and so says nothing
//! ```
//!
//! None of our functions is called in such a program, so this relies on the C library's table of functions to call at exit.

use std::fs;
use std::path::PathBuf;

use crate::log;
use crate::process::{Process, existing, process};
use crate::progress::prints_progress;
use crate::reason::Reason;

/// The variable with the process ID of the launched program.
const VARIABLE: &str = "TIGHTFIT_RUN";

/// Files that a program has loaded if it may use a GPU.
const CUDA_FILES: [&str; 2] = ["/libcuda.so", "/libcudart.so"];

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_END: extern "C" fn() = at_end;

extern "C" fn at_end() {
    // Nothing may unwind into the C library.
    let _ = std::panic::catch_unwind(|| {
        if launched() != Some(std::process::id()) {
            return;
        }
        let has_mark = fs::remove_file(mark(std::process::id())).is_ok();
        if has_mark || existing().is_some_and(has_convolved) || !uses_cuda(std::process::id()) {
            return;
        }
        if process().settings().is_some_and(prints_progress) {
            log::line(format_args!(
                "no cuDNN convolutions were called, and nothing was changed; if this program has some, `tightfit doctor \
                 --preload` says whether they can be reached"
            ));
        }
    });
}

/// A convolution runs in this process: if it is not the launched one, it notifies that one, unless the line is
/// suppressed anyway (a shell may end without looking for the mark).
pub fn on_first_call() {
    if let Some(number) = launched().filter(|number| *number != std::process::id() && uses_cuda(*number)) {
        // Do not follow a link that another user may have made. Without the mark, the launched program only prints a
        // needless line.
        let _ = fs::File::create_new(mark(number));
    }
}

/// The process ID of the launched program.
fn launched() -> Option<u32> {
    std::env::var(VARIABLE).ok()?.parse().ok()
}

/// The file that marks a convolution of a child of this process. The launched process deletes it.
fn mark(number: u32) -> PathBuf {
    std::env::temp_dir().join(format!("tightfit-run-{number}"))
}

/// Whether a process has loaded a library of CUDA.
fn uses_cuda(process: u32) -> bool {
    let maps = fs::read(format!("/proc/{process}/maps")).unwrap_or_default();
    CUDA_FILES.iter().any(|name| maps.windows(name.len()).any(|part| part == name.as_bytes()))
}

/// Whether a convolution was called, even if it was left unchanged.
fn has_convolved(process: &Process) -> bool {
    let is_convolution = |reason| reason != Reason::NoConvolution;
    !process.kernels.called().0.is_empty() || process.counts.all().iter().any(|(reason, ..)| is_convolution(*reason))
}
