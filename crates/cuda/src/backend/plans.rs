//! Builds plans while a program runs, on our handle, for one of its handles. Engines that compile take up to seconds.
//!
//! ```text
//! our thread               Builder: build conv3 by engine5 ........ kept
//! the program's thread     call | not built yet | call | built: runs on the program's handle
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tightfit_conv::backend::Scale;
use tightfit_conv::problem::Storage;
use tightfit_conv::{Algorithm, Configuration, Problem};
use tightfit_units::Error;

use super::{CallKey, CudaBackend, is_refusal};
use crate::CudaError;
use crate::convolution::{Elementwise, Family, Output, PreparedAlgorithm};
use crate::safe::{Handle, Plan};
use crate::sys::cudnn::CudnnStatus;

/// The plans of a device that no handle has taken yet. A plan goes to the first handle that asks: cuDNN does not promise that all engines run on two
/// threads at once.
#[derive(Default)]
pub(super) struct Plans(Mutex<Built>);

#[derive(Default)]
struct Built {
    calls: HashMap<CallKey, Arc<Plan>>,
    /// Calls for which cuDNN turned out to have no plan, perhaps only after compiling.
    refused: HashMap<CallKey, Refusal>,
    elementwise: HashMap<(Storage, usize, usize), Arc<Elementwise>>,
}

/// cuDNN's answer in place of a plan.
#[derive(Clone)]
struct Refusal {
    call: &'static str,
    status: CudnnStatus,
    detail: String,
}

/// The part of a backend in the plans of its device.
#[derive(Clone, Default)]
pub(super) enum Sharing {
    /// Nothing.
    #[default]
    None,
    /// It builds them.
    Builds(Arc<Plans>),
    /// It takes the built plan.
    Takes(Arc<Plans>),
}

impl Plans {
    fn lock(&self) -> MutexGuard<'_, Built> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all plans.
    pub fn take(&self) -> impl Sized {
        std::mem::take(&mut *self.lock())
    }
}

impl Sharing {
    fn plans(&self) -> Option<MutexGuard<'_, Built>> {
        match self {
            Sharing::None => None,
            Sharing::Builds(plans) | Sharing::Takes(plans) => Some(plans.lock()),
        }
    }

    /// The plan that was built for a call, if any.
    ///
    /// # Errors
    /// cuDNN's answer, if it is known to have no plan.
    pub fn give(&self, key: &CallKey, call: &PreparedAlgorithm) -> Result<(), CudaError> {
        let Some(mut plans) = self.plans() else { return Ok(()) };
        if let Sharing::Takes(_) = self
            && let Some(plan) = plans.calls.remove(key)
        {
            call.adopt(&plan);
            // Dropping it would wait for the current build.
            std::mem::forget(plan);
            return Ok(());
        }
        match plans.refused.get(key).cloned() {
            Some(Refusal { call, status, detail }) => Err(CudaError::Cudnn { call, status, detail }),
            None => Ok(()),
        }
    }

    /// Keeps the plan of a call, which was just built, for others.
    pub fn keep(&self, key: CallKey, call: &PreparedAlgorithm) {
        if let (Sharing::Builds(plans), Some(plan)) = (self, call.plan()) {
            plans.lock().calls.entry(key).or_insert_with(|| plan.clone());
        }
    }

    /// Remembers that a call has no plan, if this is why.
    pub fn refuse(&self, key: &CallKey, why: &CudaError) {
        if let CudaError::Cudnn { call, status, detail } = why
            && is_refusal(why)
            && let Some(mut plans) = self.plans()
        {
            plans.refused.insert(key.clone(), Refusal { call, status: *status, detail: detail.clone() });
        }
    }

    /// Elementwise steps for a handle, if they were built.
    pub fn elementwise(&self, key: (Storage, usize, usize), handle: &Arc<Handle>) -> Option<Elementwise> {
        let Sharing::Takes(plans) = self else { return None };
        let built = plans.lock().elementwise.remove(&key)?;
        let taken = built.on(handle);
        std::mem::forget(built);
        taken
    }

    /// Keeps elementwise steps, which were just built, for others.
    pub fn keep_elementwise(&self, key: (Storage, usize, usize), steps: &Arc<Elementwise>) {
        if let Sharing::Builds(plans) = self {
            plans.lock().elementwise.entry(key).or_insert_with(|| steps.clone());
        }
    }
}

impl CudaBackend {
    /// The call of an algorithm, with its plan built, taken from others or kept for them.
    pub(super) fn built(
        &mut self,
        problem: &Problem,
        family: &Family,
        output: Output,
        scale: Scale,
    ) -> Result<Arc<PreparedAlgorithm>, CudaError> {
        if let Family::Packed(inner) = family {
            self.built(&problem.packed(), inner, output, scale)?;
        }
        let call = self.prepare(problem, family, output, scale)?;
        if call.plan().is_none() {
            let key = CallKey { graph: self.graph_key(problem, output, scale), family: family.clone() };
            self.sharing.give(&key, &call)?;
            call.build().inspect_err(|why| self.sharing.refuse(&key, why))?;
            self.sharing.keep(key, &call);
        }
        Ok(call)
    }
}

/// Builds plans for the program's handles, on a thread for which nothing waits.
pub struct Builder {
    backend: CudaBackend,
}

impl Builder {
    /// Builds with a backend that shares its plans.
    pub(super) fn new(backend: CudaBackend) -> Builder {
        Builder { backend }
    }

    /// Builds the plans that the next handle on the device will need in [`Guest::part`](super::Guest::part).
    ///
    /// # Errors
    /// As [`Guest::program`](super::Guest::program).
    pub fn build(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<(), Error> {
        self.backend.part_program(problem, algorithm).map(|_| ())
    }

    /// Builds the plans that the next handle on the device will need in [`Guest::division`](super::Guest::division).
    ///
    /// # Errors
    /// As there.
    pub fn build_division(&mut self, problem: &Problem) -> Result<(), Error> {
        self.backend.division_program(problem).map(|_| ())
    }

    /// Builds the plans that the next handle on the device will need in [`Guest::program`](super::Guest::program).
    ///
    /// # Errors
    /// As [`Guest::program`](super::Guest::program).
    pub fn build_configuration(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        scale: Scale,
        base: usize,
    ) -> Result<(), Error> {
        self.backend.program_at(problem, configuration, scale, base).map(|_| ())
    }
}
