//! The lists that Get and Find return: each algorithm with its status, time and workspace, fastest first.

use std::ffi::c_int;

use tightfit_cuda::sys::cudnn::CudnnStatus;
use tightfit_units::Nanos;

use crate::decide::Request;
use crate::process::Process;

/// `cudnnConvolutionFwdAlgoPerf_t`, which the two backward operations have as well under other names.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Performance {
    /// The algorithm.
    pub algorithm: c_int,
    /// Whether it is supported.
    pub status: CudnnStatus,
    /// Its time, or less than 0 if it was not measured.
    pub milliseconds: f32,
    /// Its workspace.
    pub bytes: usize,
    /// Whether it has the same bits every time.
    pub determinism: c_int,
    /// Which instructions it uses.
    pub math: c_int,
    reserved: [c_int; 3],
}

/// Replaces each listed workspace, and each time if the list has measured times, by the choice that will run. Then sorts
/// the list by time again. If the list was made in a lent workspace, algorithms that need more than the program's own
/// become unsupported.
///
/// # Safety
/// As [`Request::kernel`].
pub unsafe fn correct(
    process: &Process,
    results: &mut [Performance],
    request: Request,
    is_measured: bool,
    given: Option<usize>,
) {
    for result in results.iter_mut().filter(|result| result.status == CudnnStatus::SUCCESS) {
        let bytes = result.bytes;
        let request = Request { algorithm: result.algorithm, math: Some(result.math), ..request };
        // SAFETY: forwarded to the caller.
        let Ok(kernel) = (unsafe { request.kernel(process, || Some(bytes)) }) else { continue };
        if let (Some(bytes), Some(ours)) = (kernel.reported().replacement(), kernel.running().configuration()) {
            process.loans.remember(bytes, result.bytes);
            result.bytes = bytes;
            if is_measured && ours.time() > Nanos::ZERO {
                result.milliseconds = ours.time().as_millis() as f32;
            }
        }
    }
    if let Some(given) = given {
        let too_large =
            results.iter_mut().filter(|result| result.status == CudnnStatus::SUCCESS && result.bytes > given);
        too_large.for_each(|result| result.status = CudnnStatus::NOT_SUPPORTED);
    }
    if is_measured {
        let serving = |result: &Performance| result.status != CudnnStatus::SUCCESS;
        results.sort_by(|a, b| serving(a).cmp(&serving(b)).then(a.milliseconds.total_cmp(&b.milliseconds)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_lies_in_memory_as_in_the_header() {
        assert_eq!(size_of::<Performance>(), 48);
        assert_eq!(std::mem::offset_of!(Performance, bytes), 16);
        assert_eq!(std::mem::offset_of!(Performance, math), 28);
    }
}
