//! The program's handles, each with the programs built on it. Only one thread at a time uses a handle, so no thread ever waits for its lock. The lock
//! only proves this to the compiler.
//!
//! Nothing that was built is ever dropped: a captured graph keeps using the kernels of its plans, and its end is not
//! announced.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tightfit_conv::backend::Scale;
use tightfit_conv::{Configuration, Problem};
use tightfit_cuda::sys::cudnn::Handle;
use tightfit_cuda::{CudaError, Guest, GuestProgram, Host};
use tightfit_units::Error;

use crate::kernel::{Question, bits};
use crate::lock::lock;
use crate::log::trace;

/// A handle of the program.
pub struct Session {
    /// The calls that can be made on it.
    pub guest: Guest,
    /// A list, because a problem has few configurations.
    programs: HashMap<ProgramKey, Vec<(Configuration, Arc<GuestProgram>)>>,
    /// The setups that the library has refused.
    refused: HashMap<ProgramKey, Vec<Configuration>>,
}

#[derive(PartialEq, Eq, Hash)]
struct ProgramKey {
    problem: Problem,
    factors: [u32; 2],
    base: usize,
}

fn key(question: &Question) -> ProgramKey {
    ProgramKey { problem: question.problem, factors: question.factors, base: question.base }
}

/// The sessions of all handles.
#[derive(Default)]
pub struct Sessions(Mutex<HashMap<usize, Arc<Mutex<Session>>>>);

impl Sessions {
    /// Holds the lock, as another thread may when the process forks.
    #[cfg(test)]
    pub fn hold(&self) -> impl Sized {
        lock(&self.0)
    }

    /// The session of a handle on a device, started at the first call.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// `handle` was made by the host's cuDNN on `device`, is alive, and not in use on another thread.
    pub unsafe fn on(&self, host: &Host, handle: Handle, device: usize) -> Result<Arc<Mutex<Session>>, CudaError> {
        let address = handle.0 as usize;
        let known = lock(&self.0).get(&address).cloned();
        if let Some(session) = known {
            return Ok(session);
        }
        // SAFETY: forwarded to the caller; `forget` ends the use of the handle before it is destroyed.
        let guest = unsafe { host.guest(device, handle) }?;
        let session = Arc::new(Mutex::new(Session { guest, programs: HashMap::new(), refused: HashMap::new() }));
        Ok(lock(&self.0).entry(address).or_insert(session).clone())
    }

    /// Forgets a handle that is about to be destroyed: nothing built on it is used again, but its address may be.
    pub fn forget(&self, handle: Handle) {
        let forgotten = lock(&self.0).remove(&(handle.0 as usize));
        std::mem::forget(forgotten);
    }
}

impl Session {
    /// A configuration of a question's convolution set up on this handle, or `None` if it cannot be, for example for its
    /// alignment, which is logged. A refused setup is asked for once.
    pub fn set_up(&mut self, question: &Question, configuration: &Configuration) -> Option<Arc<GuestProgram>> {
        if self.is_refused(question, configuration) {
            return None;
        }
        let program = self.program(&question.problem, configuration, question.scale(), question.base);
        if let Err(Error::Refused { .. }) = &program {
            self.refused.entry(key(question)).or_default().push(configuration.without_times());
        }
        program.map_err(|error| trace!("{}: {}", question.problem, error.chain())).ok()
    }

    /// Whether the library has refused to set up a configuration for a question.
    pub fn is_refused(&self, question: &Question, configuration: &Configuration) -> bool {
        self.refused.get(&key(question)).is_some_and(|refused| refused.contains(&configuration.without_times()))
    }

    /// A configuration set up on this handle; each once.
    ///
    /// # Errors
    /// As [`Guest::program`].
    pub fn program(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        scale: Scale,
        base: usize,
    ) -> Result<Arc<GuestProgram>, Error> {
        let programs = self.programs.entry(ProgramKey { problem: *problem, factors: bits(scale), base }).or_default();
        if let Some((_, program)) = programs.iter().find(|(known, _)| known == configuration) {
            return Ok(program.clone());
        }
        let program = Arc::new(self.guest.program(problem, configuration, scale, base)?);
        // One more reference, never released.
        std::mem::forget(program.clone());
        programs.push((configuration.clone(), program.clone()));
        Ok(program)
    }
}
