//! The functions of the legacy interface that do more than forward. The three operations differ in names, and in the
//! order of x, w and y.

use std::ffi::{c_int, c_void};

use tightfit_conv::Operation;
use tightfit_cuda::sys::cudnn::{CudnnStatus, Handle};

use super::lists::{Performance, correct};
use crate::decide::{Descriptor, Descriptors, Request};
use crate::forward::forward;
use crate::memory::Loans;
use crate::panics::catch_panics;
use crate::process::{active, process};
use crate::reason::{Function, Reason};
use crate::run::{CallResult, NumberedCall, place, run_in_loan, run_number};

/// A list as cuDNN wrote it.
struct ResultList {
    status: CudnnStatus,
    returned: *mut c_int,
    results: *mut Performance,
}

/// Corrects a list; `given` is the size of the program's own workspace, if the list was made in a loan.
///
/// # Safety
/// The call that gave `list` has just returned; the handle is used on this thread.
unsafe fn correct_list(list: ResultList, request: Request, is_measured: bool, given: Option<usize>) -> CudnnStatus {
    let ResultList { status, returned, results } = list;
    if status == CudnnStatus::SUCCESS
        && !returned.is_null()
        && !results.is_null()
        && let Some(process) = active()
    {
        catch_panics(|| {
            // SAFETY: cuDNN wrote the count.
            let len = usize::try_from(unsafe { *returned }).unwrap_or(0);
            // SAFETY: and that many results.
            let results = unsafe { std::slice::from_raw_parts_mut(results, len) };
            // SAFETY: forwarded to the caller.
            unsafe { correct(process, results, request, is_measured, given) };
        });
    }
    status
}

/// Declares the functions of one operation. `$order` brings the first and second tensor of C's parameters into the
/// order of [`tightfit_conv::backend::Tensors`]; each `$list` says whether its times were measured.
macro_rules! operation {
    (
        $operation:ident, $run:ident, $size:ident, [$($list:ident: $is_measured:literal),*], $find_in:ident, $order:expr
    ) => {
        /// cuDNN's function of this name; runs our configuration where one was chosen.
        ///
        /// # Safety
        /// As cuDNN's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $run(
            handle: Handle,
            alpha: *const c_void,
            first: Descriptor,
            at_first: *const c_void,
            second: Descriptor,
            at_second: *const c_void,
            convolution: Descriptor,
            algorithm: c_int,
            workspace: *mut c_void,
            bytes: usize,
            beta: *const c_void,
            output: Descriptor,
            at_output: *mut c_void,
        ) -> CudnnStatus {
            let enqueue = |workspace: *mut c_void, bytes: usize| {
                forward!(
                    $run(
                        handle: Handle, alpha: *const c_void, first: Descriptor, at_first: *const c_void,
                        second: Descriptor, at_second: *const c_void, convolution: Descriptor, algorithm: c_int,
                        workspace: *mut c_void, bytes: usize, beta: *const c_void, output: Descriptor,
                        at_output: *mut c_void,
                    ) -> CudnnStatus
                )
            };
            if let Some(process) = active() {
                let descriptors = Descriptors { operation: Operation::$operation, first, second, convolution, output };
                let order: fn([*const c_void; 2]) -> [*const c_void; 2] = $order;
                let [data, other] = order([at_first, at_second]);
                let tensors = [data, other, at_output.cast_const()];
                let call = NumberedCall { function: Function::$run, alpha, beta, tensors, workspace, bytes };
                let own = || {
                    let mut own = 0;
                    let place = &raw mut own;
                    let status = forward!(
                        $size(
                            handle: Handle, first: Descriptor, second: Descriptor, convolution: Descriptor,
                            output: Descriptor, algorithm: c_int, place: *mut usize,
                        ) -> CudnnStatus
                    );
                    (status == CudnnStatus::SUCCESS).then_some(own)
                };
                let request = Request { handle, descriptors, algorithm, math: None };
                // SAFETY: forwarded to the caller.
                let known = match catch_panics(|| unsafe { run_number(process, request, call, own) }) {
                    Some(CallResult::Done(status)) => return status,
                    Some(CallResult::Forward(known)) => known,
                    None => {
                        process.counts.count(Reason::Panicked, Function::$run);
                        None
                    }
                };
                // Set even if our part panics afterwards.
                let mut answered = None;
                catch_panics(|| {
                    let enqueue = |workspace, bytes| *answered.insert(enqueue(workspace, bytes));
                    // SAFETY: forwarded to the caller.
                    unsafe { run_in_loan(process, handle, Function::$run, bytes, || known.or_else(own), enqueue) }
                });
                if let Some(status) = answered {
                    return status;
                }
            }
            enqueue(workspace, bytes)
        }

        /// cuDNN's function of this name: the workspace of the choice that will run.
        ///
        /// # Safety
        /// As cuDNN's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $size(
            handle: Handle,
            first: Descriptor,
            second: Descriptor,
            convolution: Descriptor,
            output: Descriptor,
            algorithm: c_int,
            bytes: *mut usize,
        ) -> CudnnStatus {
            let status = forward!(
                $size(
                    handle: Handle, first: Descriptor, second: Descriptor, convolution: Descriptor,
                    output: Descriptor, algorithm: c_int, bytes: *mut usize,
                ) -> CudnnStatus
            );
            if status == CudnnStatus::SUCCESS && !bytes.is_null() && let Some(process) = active() {
                let descriptors = Descriptors { operation: Operation::$operation, first, second, convolution, output };
                let request = Request { handle, descriptors, algorithm, math: None };
                // SAFETY: cuDNN wrote the size.
                let own = unsafe { *bytes };
                // SAFETY: forwarded to the caller.
                let kernel = catch_panics(|| unsafe { request.kernel(process, || Some(own)) });
                if let Some(Ok(kernel)) = kernel
                    && let Some(reported) = kernel.reported().replacement()
                {
                    process.loans.remember(reported, own);
                    // SAFETY: cuDNN wrote the size there.
                    unsafe { *bytes = reported };
                }
            }
            status
        }

        $(/// cuDNN's function of this name: its list with the workspaces, and times if measured, of what will run.
        ///
        /// # Safety
        /// As cuDNN's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $list(
            handle: Handle,
            first: Descriptor,
            second: Descriptor,
            convolution: Descriptor,
            output: Descriptor,
            requested: c_int,
            returned: *mut c_int,
            results: *mut Performance,
        ) -> CudnnStatus {
            let status = forward!(
                $list(
                    handle: Handle, first: Descriptor, second: Descriptor, convolution: Descriptor,
                    output: Descriptor, requested: c_int, returned: *mut c_int, results: *mut Performance,
                ) -> CudnnStatus
            );
            let descriptors = Descriptors { operation: Operation::$operation, first, second, convolution, output };
            let request = Request { handle, descriptors, algorithm: 0, math: None };
            // SAFETY: forwarded to the caller.
            unsafe { correct_list(ResultList { status, returned, results }, request, $is_measured, None) }
        })*

        /// cuDNN's function of this name: its list with times and workspaces of the choices that will run.
        ///
        /// # Safety
        /// As cuDNN's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $find_in(
            handle: Handle,
            first: Descriptor,
            at_first: *const c_void,
            second: Descriptor,
            at_second: *const c_void,
            convolution: Descriptor,
            output: Descriptor,
            at_output: *mut c_void,
            requested: c_int,
            returned: *mut c_int,
            results: *mut Performance,
            workspace: *mut c_void,
            bytes: usize,
        ) -> CudnnStatus {
            let find = |workspace: *mut c_void, bytes: usize| {
                forward!(
                    $find_in(
                        handle: Handle, first: Descriptor, at_first: *const c_void, second: Descriptor,
                        at_second: *const c_void, convolution: Descriptor, output: Descriptor, at_output: *mut c_void,
                        requested: c_int, returned: *mut c_int, results: *mut Performance, workspace: *mut c_void,
                        bytes: usize,
                    ) -> CudnnStatus
                )
            };
            // A workspace sized by our answers is too small for the algorithms that cuDNN itself would try.
            let most = active().and_then(|process| catch_panics(|| process.loans.at_most(bytes)).flatten());
            let mut lent = None;
            if let Some(most) = most {
                catch_panics(|| {
                    let (host, device) = place(process())?;
                    Loans::lend_once(host, device, most, |workspace| *lent.insert(find(workspace, most)))
                });
            }
            let lent = lent.filter(|status| *status == CudnnStatus::SUCCESS);
            let given = lent.map(|_| bytes);
            let status = lent.unwrap_or_else(|| find(workspace, bytes));
            let descriptors = Descriptors { operation: Operation::$operation, first, second, convolution, output };
            let request = Request { handle, descriptors, algorithm: 0, math: None };
            // SAFETY: forwarded to the caller.
            unsafe { correct_list(ResultList { status, returned, results }, request, true, given) }
        }
    };
}

operation! {
    Forward, cudnnConvolutionForward, cudnnGetConvolutionForwardWorkspaceSize,
    [cudnnGetConvolutionForwardAlgorithm_v7: false, cudnnFindConvolutionForwardAlgorithm: true],
    cudnnFindConvolutionForwardAlgorithmEx, |[x, w]| [x, w]
}
operation! {
    BackwardData, cudnnConvolutionBackwardData, cudnnGetConvolutionBackwardDataWorkspaceSize,
    [cudnnGetConvolutionBackwardDataAlgorithm_v7: false, cudnnFindConvolutionBackwardDataAlgorithm: true],
    cudnnFindConvolutionBackwardDataAlgorithmEx, |[w, dy]| [dy, w]
}
operation! {
    BackwardFilter, cudnnConvolutionBackwardFilter, cudnnGetConvolutionBackwardFilterWorkspaceSize,
    [cudnnGetConvolutionBackwardFilterAlgorithm_v7: false, cudnnFindConvolutionBackwardFilterAlgorithm: true],
    cudnnFindConvolutionBackwardFilterAlgorithmEx, |[x, dy]| [x, dy]
}
