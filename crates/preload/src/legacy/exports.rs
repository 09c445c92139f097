//! The functions of the legacy interface that do more than forward. The three operations differ in names, and in the
//! order of x, w and y.

use std::ffi::{c_int, c_void};

use tightfit_core::Operation;
use tightfit_core::backend::Scale;
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::{CudnnStatus, Handle};

use super::decide::Asked;
use super::descriptors::{Descriptor, Descriptors};
use super::loan;
use super::results::{Performance, correct};
use crate::plan::Decision;
use crate::reason::{Function, Reason, count};
use crate::report;
use crate::run::{catch_panics, in_total, status_of};
use crate::settings::settings;
use crate::trampolines::forward;

/// A list as cuDNN wrote it.
struct List {
    status: CudnnStatus,
    returned: *mut c_int,
    results: *mut Performance,
}

/// Corrects a list; `given` is the size of the program's own workspace, if the list was made in a loan.
///
/// # Safety
/// The call that gave `list` has just returned; the handle is used on this thread.
unsafe fn corrected(list: List, asked: Asked, is_measured: bool, given: Option<usize>) -> CudnnStatus {
    let List { status, returned, results } = list;
    if status == CudnnStatus::SUCCESS && !returned.is_null() && !results.is_null() && settings().is_some() {
        catch_panics(|| {
            // SAFETY: cuDNN wrote the count.
            let len = usize::try_from(unsafe { *returned }).unwrap_or(0);
            // SAFETY: and that many results.
            let results = unsafe { std::slice::from_raw_parts_mut(results, len) };
            // SAFETY: forwarded to the caller.
            unsafe { correct(results, asked, is_measured, given) };
        });
    }
    status
}

/// What a call computes with.
struct Call {
    function: Function,
    alpha: *const c_void,
    beta: *const c_void,
    /// Data, other and output, as in [`tightfit_core::backend::Tensors`].
    tensors: [*const c_void; 3],
    workspace: *mut c_void,
    bytes: usize,
}

/// How our part of a call ended.
enum Outcome {
    /// It ran, or failed with nothing left to try.
    Done(CudnnStatus),
    /// The algorithm itself should run; with the bytes that it needs, if known.
    HandOn(Option<usize>),
}

/// Runs our configuration of a call.
///
/// # Safety
/// As the C function's; `own_workspace` asks for what the algorithm itself needs.
unsafe fn run(asked: Asked, call: Call, own_workspace: impl Fn() -> Option<usize>) -> Outcome {
    report::on_call();
    let left = |reason, own| {
        count(reason, call.function);
        Outcome::HandOn(own)
    };
    if call.alpha.is_null() || call.beta.is_null() {
        return left(Reason::Attribute, None);
    }
    // SAFETY: factors of the types that are recognized are floats; others are not looked at.
    let scale = unsafe { Scale { alpha: *call.alpha.cast::<f32>(), beta: *call.beta.cast::<f32>() } };
    let addresses = call.tensors.map(|tensor| tensor as u64);
    let base = 1 << addresses.iter().fold(16, |all, address| all | address).trailing_zeros();
    // SAFETY: forwarded to the caller.
    let decision = match unsafe { asked.decision(scale, base, &own_workspace) } {
        Ok(decision) => decision,
        Err(reason) => return left(reason, None),
    };
    let own = decision.kernel().and_then(|kernel| usize::try_from(kernel.question.chosen.workspace.0).ok());
    if let Some(kernel) = decision.kernel() {
        kernel.count();
    }
    let program = match decision {
        Decision::Kept(_) => return Outcome::HandOn(own),
        Decision::Left(reason, _) => return left(reason, own),
        Decision::Shared(kernel) => {
            // SAFETY: the caller owes tensors of the descriptors' sizes.
            let done = unsafe { in_total(asked.handle, &kernel, (scale, base), addresses.map(DevicePtr)) };
            return Outcome::Done(done.unwrap_or_else(|reason| {
                count(reason, call.function);
                CudnnStatus::EXECUTION_FAILED
            }));
        }
        Decision::Ours(ours) => ours.program,
    };
    let enqueue = |workspace: *mut c_void| {
        // SAFETY: the caller owes tensors of the descriptors' sizes and a workspace of the bytes it gives.
        unsafe { program.enqueue(addresses.map(DevicePtr), DevicePtr(workspace as u64)) }
    };
    if program.workspace() > call.bytes {
        // Undivided it would need still more, and the program may have sized this call by our answer.
        let is_sized_by_us = loan::at_most(call.bytes) >= own && own > Some(call.bytes);
        // SAFETY: forwarded to the caller.
        let lent = is_sized_by_us.then(|| unsafe { loan::lend(asked.handle, program.workspace(), enqueue) });
        return match lent {
            Some(Ok(result)) => {
                count(Reason::Lent, call.function);
                Outcome::Done(status_of(result))
            }
            _ => left(Reason::Workspace, own),
        };
    }
    match enqueue(call.workspace) {
        // Nothing was enqueued, and the workspace is large enough for the algorithm itself.
        Err(failure) if !failure.is_begun && own_workspace().is_some_and(|bytes| bytes <= call.bytes) => {
            left(Reason::Failed, own)
        }
        result => Outcome::Done(status_of(result)),
    }
}

/// Runs the algorithm itself in a lent workspace, if our answer made the program's own too small; none if it should run
/// unchanged.
///
/// # Safety
/// As the C function's; `enqueue` is the call in another workspace.
unsafe fn in_loan(
    handle: Handle,
    function: Function,
    given: usize,
    own: impl FnOnce() -> Option<usize>,
    enqueue: impl FnOnce(*mut c_void, usize) -> CudnnStatus,
) -> Option<CudnnStatus> {
    let most = loan::at_most(given)?;
    let needed = own().filter(|needed| (given + 1..=most).contains(needed))?;
    // SAFETY: forwarded to the caller.
    match unsafe { loan::lend(handle, needed, |workspace| enqueue(workspace, needed)) } {
        Ok(status) => {
            count(Reason::Lent, function);
            Some(status)
        }
        Err(reason) => {
            count(reason, function);
            None
        }
    }
}

/// Declares the functions of one operation. `$order` brings the first and second tensor of C's parameters into the
/// order of [`tightfit_core::backend::Tensors`]; each `$list` says whether its times were measured.
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
            if settings().is_some() {
                let descriptors = Descriptors { operation: Operation::$operation, first, second, convolution, output };
                let order: fn([*const c_void; 2]) -> [*const c_void; 2] = $order;
                let [data, other] = order([at_first, at_second]);
                let tensors = [data, other, at_output.cast_const()];
                let call = Call { function: Function::$run, alpha, beta, tensors, workspace, bytes };
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
                let asked = Asked { handle, descriptors, algorithm, math: None };
                // SAFETY: forwarded to the caller.
                let known = match catch_panics(|| unsafe { run(asked, call, own) }) {
                    Some(Outcome::Done(status)) => return status,
                    Some(Outcome::HandOn(known)) => known,
                    None => {
                        count(Reason::Panicked, Function::$run);
                        None
                    }
                };
                // Set even if our part panics afterwards.
                let mut answered = None;
                catch_panics(|| {
                    let enqueue = |workspace, bytes| *answered.insert(enqueue(workspace, bytes));
                    // SAFETY: forwarded to the caller.
                    unsafe { in_loan(handle, Function::$run, bytes, || known.or_else(own), enqueue) }
                });
                if let Some(status) = answered {
                    return status;
                }
            }
            enqueue(workspace, bytes)
        }

        /// cuDNN's function of this name: the workspace of what will run.
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
            if status == CudnnStatus::SUCCESS && !bytes.is_null() && settings().is_some() {
                let descriptors = Descriptors { operation: Operation::$operation, first, second, convolution, output };
                let asked = Asked { handle, descriptors, algorithm, math: None };
                // SAFETY: cuDNN wrote the size.
                let own = unsafe { *bytes };
                // SAFETY: forwarded to the caller.
                let kernel = catch_panics(|| unsafe { asked.kernel(|| Some(own)) });
                if let Some(Ok(kernel)) = kernel
                    && let Some(told) = kernel.reported_workspace()
                {
                    loan::remember(told, own);
                    // SAFETY: cuDNN wrote the size there.
                    unsafe { *bytes = told };
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
            let asked = Asked { handle, descriptors, algorithm: 0, math: None };
            // SAFETY: forwarded to the caller.
            unsafe { corrected(List { status, returned, results }, asked, $is_measured, None) }
        })*

        /// cuDNN's function of this name: its list with times and workspaces of what will run.
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
            let most = settings().and_then(|_| catch_panics(|| loan::at_most(bytes)).flatten());
            let mut lent = None;
            if let Some(most) = most {
                catch_panics(|| loan::lend_once(most, |workspace| *lent.insert(find(workspace, most))));
            }
            let lent = lent.filter(|status| *status == CudnnStatus::SUCCESS);
            let given = lent.map(|_| bytes);
            let status = lent.unwrap_or_else(|| find(workspace, bytes));
            let descriptors = Descriptors { operation: Operation::$operation, first, second, convolution, output };
            let asked = Asked { handle, descriptors, algorithm: 0, math: None };
            // SAFETY: forwarded to the caller.
            unsafe { corrected(List { status, returned, results }, asked, true, given) }
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
