//! Decides about an algorithm number.

use std::ffi::c_int;
use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_conv::{Notes, Problem, Types};
use tightfit_cuda::sys::cudnn::{Handle, MathType};
use tightfit_cuda::{Chosen, GuestProgram, legacy_chosen};
use tightfit_units::Bytes;

use super::answer::{answer, device, set_up};
use super::descriptors::Descriptors;
use super::settle::settle;
use crate::kernel::{ActiveChoice, Kernel, Number, Question, bits};
use crate::lock::lock;
use crate::process::Process;
use crate::reason::{Reason, failed};
use crate::recognize::Computation;

/// The subject of the decision.
#[derive(Clone, Copy)]
pub struct Request {
    /// The handle.
    pub handle: Handle,
    /// Its operands.
    pub descriptors: Descriptors,
    /// The framework's algorithm.
    pub algorithm: c_int,
    /// Which instructions it may use, if different from the convolution's descriptor.
    pub math: Option<c_int>,
}

impl Request {
    fn recognize(&self, scale: Scale) -> Result<(Computation, Problem), Reason> {
        // SAFETY: the caller of the function in `exports` gave live descriptors of these kinds.
        let computation = unsafe { self.descriptors.recognize(scale) }?;
        let math = match self.math {
            Some(math) => math,
            // SAFETY: as above.
            None => unsafe { self.descriptors.math() }?,
        };
        let problem = computation.problem(MathType(math) != MathType::FMA)?;
        Ok((computation, problem))
    }

    /// Bytes that the algorithm itself needs, if the convolution was already decided.
    ///
    /// # Safety
    /// The handle is alive and used on this thread.
    pub unsafe fn known_workspace(&self, process: &Process) -> Option<usize> {
        let (_, problem) = self.recognize(Scale::OVERWRITE).ok()?;
        let device = device(process.host()?, process.settings()?).ok()?;
        let kernel = process.kernels.find_number(&Number { device, problem, algorithm: self.algorithm })?;
        usize::try_from(kernel.question.chosen.workspace.0).ok()
    }

    /// The kernel, decided now if it was not before. `workspace` returns the bytes that the algorithm itself needs.
    ///
    /// # Errors
    /// The reason why it is left as it is.
    ///
    /// # Safety
    /// The handle is alive and used on this thread.
    pub unsafe fn kernel(
        &self,
        process: &Process,
        workspace: impl FnOnce() -> Option<usize>,
    ) -> Result<Arc<Kernel>, Reason> {
        let (_, problem) = self.recognize(Scale::OVERWRITE)?;
        // SAFETY: forwarded to the caller.
        unsafe { self.kernel_of(process, problem, workspace) }
    }

    /// As [`Request::kernel`].
    ///
    /// # Safety
    /// As there.
    unsafe fn kernel_of(
        &self,
        process: &Process,
        problem: Problem,
        workspace: impl FnOnce() -> Option<usize>,
    ) -> Result<Arc<Kernel>, Reason> {
        let settings = process.settings().ok_or(Reason::Device)?;
        let host = process.host().ok_or(Reason::Failed)?;
        let device = device(host, settings)?;
        let number = Number { device, problem, algorithm: self.algorithm };
        if let Some(kernel) = process.kernels.find_number(&number) {
            return Ok(kernel);
        }
        let bytes = workspace().ok_or(Reason::Descriptor)?;
        let (algorithm, notes) = legacy_chosen(problem.operation(), self.algorithm).ok_or(Reason::Attribute)?;
        let chosen = Chosen { algorithm, workspace: Bytes(bytes as u64), notes };
        // If tensor cores are allowed, an algorithm may or may not use them: the interface does not say.
        let single = Notes(notes.0 | Notes::TENSOR_CORE.0);
        let admitted = if problem.types() == Types::F32 { notes } else { single };
        let _beside = host.beside_captures().map_err(failed)?;
        // SAFETY: forwarded to the caller.
        let session = unsafe { process.sessions.on(host, self.handle, device) }.map_err(failed)?;
        let mut session = lock(&session);
        // SAFETY: forwarded to the caller.
        let is_capturing = unsafe { host.is_capturing(self.handle) };
        let question = Question { device, problem, chosen, admitted, factors: bits(Scale::OVERWRITE), base: 16 };
        let kernel = answer(process, question, settings, &mut session, host, is_capturing)?;
        process.kernels.keep_number(number, kernel.clone());
        Ok(kernel)
    }

    /// The kernel, and the action now for these factors on addresses of this alignment.
    ///
    /// # Errors
    /// The reason why it is left as it is.
    ///
    /// # Safety
    /// As [`Request::kernel`].
    pub unsafe fn action(
        &self,
        process: &Process,
        scale: Scale,
        base: usize,
        workspace: impl FnOnce() -> Option<usize>,
    ) -> Result<(Arc<Kernel>, Action), Reason> {
        let (mut computation, problem) = self.recognize(scale)?;
        computation.base = base;
        // SAFETY: forwarded to the caller.
        let kernel = unsafe { self.kernel_of(process, problem, workspace) }?;
        // SAFETY: forwarded to the caller.
        unsafe { settle(process, &kernel, self.handle) };
        // SAFETY: forwarded to the caller.
        unsafe { process.tune(&kernel, self.handle, None) };
        let action = match kernel.running_now() {
            ActiveChoice::Kept => Action::Kept,
            ActiveChoice::Left(reason) => Action::Left(*reason),
            ActiveChoice::Shared(_) => Action::Shared,
            ActiveChoice::Ours(configuration) => {
                let host = process.host().ok_or(Reason::Failed)?;
                let place = (&**host, kernel.question.device);
                // SAFETY: forwarded to the caller.
                Action::Ours(unsafe { set_up(process, place, &kernel, configuration, &computation, self.handle) }?)
            }
        };
        Ok((kernel, action))
    }
}

/// The choice for one call.
pub enum Action {
    /// Our configuration, as it is set up on the handle.
    Ours(Arc<GuestProgram>),
    /// The kernel's part of a total.
    Shared,
    /// The framework's choice.
    Kept,
    /// The framework's choice, for this reason.
    Left(Reason),
}
