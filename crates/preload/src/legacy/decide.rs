//! Decides what runs for an algorithm number.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use tightfit_core::backend::Scale;
use tightfit_core::{Bytes, Notes, Problem};
use tightfit_cuda::sys::cudnn::{Handle, MathType};
use tightfit_cuda::{Chosen, legacy_chosen};

use super::descriptors::Descriptors;
use crate::kernel::{Kernel, Question, bits};
use crate::original;
use crate::plan::{Decision, answer, device, failed, ready};
use crate::reason::Reason;
use crate::recognize::Recognized;
use crate::session::session;
use crate::settings::settings;

/// A convolution under an algorithm's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    device: usize,
    problem: Problem,
    algorithm: c_int,
}

/// Kernels by algorithm number, so that a call need not query the workspace of an algorithm that it does not run. A
/// decision made under capture is final too: the program knows its workspace, and without a plan, calls before and
/// after a new decision look alike.
static KERNELS: Mutex<Option<HashMap<Key, Arc<Kernel>>>> = Mutex::new(None);

fn known(key: &Key) -> Option<Arc<Kernel>> {
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(key).cloned()
}

/// What to decide about.
#[derive(Clone, Copy)]
pub struct Asked {
    /// The handle.
    pub handle: Handle,
    /// What it works on.
    pub descriptors: Descriptors,
    /// The framework's algorithm.
    pub algorithm: c_int,
    /// Which instructions it may use, if different from the convolution's descriptor.
    pub math: Option<c_int>,
}

impl Asked {
    fn recognize(&self, scale: Scale) -> Result<(Recognized, Problem), Reason> {
        // SAFETY: the caller of the function in `exports` gave live descriptors of these kinds.
        let recognized = unsafe { self.descriptors.recognize(scale) }?;
        let math = match self.math {
            Some(math) => math,
            // SAFETY: as above.
            None => unsafe { self.descriptors.math() }?,
        };
        let problem = recognized.problem(MathType(math) != MathType::FMA)?;
        Ok((recognized, problem))
    }

    /// Bytes that the algorithm itself needs, if the convolution was already decided.
    ///
    /// # Safety
    /// The handle is alive and used on this thread.
    pub unsafe fn known_workspace(&self) -> Option<usize> {
        let (_, problem) = self.recognize(Scale::OVERWRITE).ok()?;
        let device = device(original::host()?, settings()?).ok()?;
        let kernel = known(&Key { device, problem, algorithm: self.algorithm })?;
        usize::try_from(kernel.question.chosen.workspace.0).ok()
    }

    /// The kernel, decided now if it was not before; `workspace` gives the bytes that the algorithm itself needs.
    ///
    /// # Errors
    /// The reason why it is left as it is.
    ///
    /// # Safety
    /// The handle is alive and used on this thread.
    pub unsafe fn kernel(&self, workspace: impl FnOnce() -> Option<usize>) -> Result<Arc<Kernel>, Reason> {
        let (_, problem) = self.recognize(Scale::OVERWRITE)?;
        // SAFETY: forwarded to the caller.
        unsafe { self.kernel_of(problem, workspace) }
    }

    /// As [`Asked::kernel`].
    ///
    /// # Safety
    /// As there.
    unsafe fn kernel_of(
        &self,
        problem: Problem,
        workspace: impl FnOnce() -> Option<usize>,
    ) -> Result<Arc<Kernel>, Reason> {
        let (settings, host) = (settings().ok_or(Reason::Device)?, original::host().ok_or(Reason::Failed)?);
        let device = device(host, settings)?;
        let key = Key { device, problem, algorithm: self.algorithm };
        if let Some(kernel) = known(&key) {
            return Ok(kernel);
        }
        let bytes = workspace().ok_or(Reason::Descriptor)?;
        let (algorithm, notes) = legacy_chosen(problem.operation(), self.algorithm).ok_or(Reason::Attribute)?;
        let chosen = Chosen { algorithm, workspace: Bytes(bytes as u64), notes };
        // If tensor cores are allowed, an algorithm may or may not use them: the interface does not say.
        let single = Notes(notes.0 | Notes::TENSOR_CORE.0);
        let admitted = if problem.types() == tightfit_core::Types::F32 { notes } else { single };
        let _beside = host.beside_captures().map_err(failed)?;
        // SAFETY: forwarded to the caller.
        let session = unsafe { session(host, self.handle, device) }.map_err(failed)?;
        let mut session = session.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: forwarded to the caller.
        let is_capturing = unsafe { host.is_capturing(self.handle) };
        let question = Question { device, problem, chosen, admitted, factors: bits(Scale::OVERWRITE), base: 16 };
        let kernel = answer(question, settings, &mut session, host, is_capturing)?;
        KERNELS.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(key, kernel.clone());
        Ok(kernel)
    }

    /// What to run, with these factors on addresses of this alignment.
    ///
    /// # Errors
    /// The reason why it is left as it is.
    ///
    /// # Safety
    /// As [`Asked::kernel`].
    pub unsafe fn decision(
        &self,
        scale: Scale,
        base: usize,
        workspace: impl FnOnce() -> Option<usize>,
    ) -> Result<Decision, Reason> {
        let (mut recognized, problem) = self.recognize(scale)?;
        recognized.base = base;
        // SAFETY: forwarded to the caller.
        let kernel = unsafe { self.kernel_of(problem, workspace) }?;
        let host = original::host().ok_or(Reason::Failed)?;
        let device = kernel.question.device;
        // SAFETY: forwarded to the caller.
        unsafe { ready(host, device, kernel, &recognized, self.handle) }
    }
}
