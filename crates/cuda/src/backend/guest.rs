//! Works inside a program that already uses CUDA, with the program's driver, cuDNN, handles, streams and memory.
//!
//! ```text
//! Host       the program's two libraries; one context for each of its devices
//!  |- Guest      a handle of the program's: workspaces asked and programs built on it
//!  |   '- GuestProgram    a configuration, enqueued on whatever stream the handle has, in memory of the program's
//!  |- Builder    builds plans on a separate handle, for guests
//!  '- CudaBackend    measures on a separate handle and stream
//! ```

use std::sync::Arc;

use tightfit_conv::backend::{Backend, Offer, Scale};
use tightfit_conv::problem::Storage;
use tightfit_conv::{Algorithm, Configuration, Device, Notes, Operation, Problem};
use tightfit_units::{Bytes, Error};

use super::CudaBackend;
use super::launches::Program;
use super::measure::starts;
use crate::convolution::{Family, Name, Proposal, legacy_names, legacy_notes, proposal, tensor_bytes};
use crate::safe::{Context, Descriptor, Plan, Slice, TensorSpec};
use crate::sys::cudnn as sys;
use crate::sys::{DevicePtr, driver};
use crate::{CudaError, call};

/// The program's choice for a convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chosen {
    /// Its algorithm, by the name under which a backend offers it.
    pub algorithm: Algorithm,
    /// Exact workspace.
    pub workspace: Bytes,
    /// cuDNN's notes on its arithmetic.
    pub notes: Notes,
}

/// One of the program's handles.
pub struct Guest {
    backend: CudaBackend,
}

impl Guest {
    /// Works with a backend on the handle.
    pub(super) fn new(backend: CudaBackend) -> Guest {
        Guest { backend }
    }

    /// The device whose measurements are valid for it.
    pub fn device(&self) -> &Device {
        self.backend.device()
    }

    /// The stream that the handle's work goes to now.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn stream(&self) -> Result<driver::Stream, CudaError> {
        self.backend.handle.current_stream()
    }

    /// Waits for the stream that the handle's work goes to now.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of its work, or if it is capturing; [`CudaError::Cudnn`].
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let stream = self.stream()?;
        let driver = self.backend.handle.context().enter()?;
        // SAFETY: the program keeps a handle's stream alive while it calls with the handle.
        unsafe { call::driver::stream_synchronize(driver, stream) }
    }

    /// Identifies the choice behind an engine configuration.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`] or [`CudaError::Answer`] if cuDNN does not report it.
    ///
    /// # Safety
    /// `configuration` is a finalized configuration of the program's, alive during the call.
    pub unsafe fn chosen(&self, configuration: sys::BackendDescriptor) -> Result<Chosen, CudaError> {
        // SAFETY: forwarded to the caller.
        chosen(&*unsafe { Descriptor::of_program(&self.backend.handle, configuration) })
    }

    /// Identifies the choice behind a plan.
    ///
    /// # Errors
    /// As [`Guest::chosen`].
    ///
    /// # Safety
    /// `plan` is a finalized plan of the program's, alive during the call.
    pub unsafe fn chosen_by_plan(&self, plan: sys::BackendDescriptor) -> Result<Chosen, CudaError> {
        // SAFETY: forwarded to the caller.
        let plan = unsafe { Descriptor::of_program(&self.backend.handle, plan) };
        let configurations = plan.get_objects(sys::Attribute::EXECUTION_PLAN_ENGINE_CONFIG, sys::Kind::ENGINECFG, 1)?;
        let what = "a plan's configuration";
        chosen(configurations.first().ok_or(CudaError::Answer { what, count: 0, expected: "one" })?)
    }

    /// Exact workspace of an algorithm for a problem, over every form in which a configuration may run it; `None` if it
    /// is not supported.
    ///
    /// # Errors
    /// [`Error::Backend`] if the library cannot be queried.
    pub fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Option<Bytes>, Error> {
        match self.backend.workspace(problem, algorithm) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::Refused { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every algorithm for a problem; see [`Backend::offers`].
    ///
    /// # Errors
    /// The errors of [`Backend::offers`].
    pub fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        self.backend.offers(problem)
    }

    /// Bytes of scratch memory held throughout a divided configuration, in which half-precision filter gradients add
    /// up.
    pub fn division_workspace(problem: &Problem) -> Bytes {
        Bytes(super::steps::sum_bytes(problem) as u64)
    }

    /// Prepares a configuration for buffers whose addresses are multiples of `base` (a power of two, 16 at most).
    ///
    /// # Errors
    /// [`Error::Refused`] if an algorithm is not supported, also for its alignment; [`Error::Backend`].
    pub fn program(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        scale: Scale,
        base: usize,
    ) -> Result<GuestProgram, Error> {
        let program = self.backend.program_at(problem, configuration, scale, base)?;
        Ok(self.guest_program(problem, program, [0; 3]))
    }

    /// Prepares one micro-batch of a division, to be timed: its tensors begin at the lowest alignment that it can have.
    ///
    /// # Errors
    /// As [`Guest::program`].
    pub fn part(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<GuestProgram, Error> {
        let program = self.backend.part_program(problem, algorithm)?;
        Ok(self.guest_program(problem, program, starts(problem, problem.types().storage())))
    }

    /// The program's own plan for a problem, to be timed; `ids` name data, other and output in its graph.
    ///
    /// # Safety
    /// `plan` is a finalized plan of the program's for this problem with these ids and this workspace, and alive at least
    /// until the enqueued work of the result has run.
    pub unsafe fn own(
        &self,
        problem: &Problem,
        plan: sys::BackendDescriptor,
        ids: [i64; 3],
        workspace: Bytes,
    ) -> GuestProgram {
        let bytes = tensor_bytes(problem, problem.types().storage());
        let tensors =
            std::array::from_fn::<_, 3, _>(|place| TensorSpec { id: ids[place], bytes: bytes[place], alignment: 1 });
        let workspace = usize::try_from(workspace.0).unwrap_or(usize::MAX);
        // SAFETY: forwarded to the caller.
        let plan = unsafe { Plan::of_program(&self.backend.handle, plan, tensors.to_vec(), workspace) };
        self.guest_program(problem, self.backend.program_of_plan(problem, plan), [0; 3])
    }

    /// Prepares the extra work of dividing a problem, on top of its micro-batches. `None` if there is no such work.
    ///
    /// # Errors
    /// As [`Guest::program`].
    pub fn division(&mut self, problem: &Problem) -> Result<Option<GuestProgram>, Error> {
        let program = self.backend.division_program(problem)?;
        Ok(program.map(|program| self.guest_program(problem, program, [0; 3])))
    }

    fn guest_program(&self, problem: &Problem, program: Program, starts: [usize; 3]) -> GuestProgram {
        let storage = problem.types().storage();
        let bytes = tensor_bytes(problem, storage);
        GuestProgram { program, context: self.backend.handle.context().clone(), bytes, starts, storage }
    }
}

/// An algorithm on gapless copies of views of larger tensors. Returns `None` for a name that is not a backend algorithm's,
/// and for an algorithm that works on copies already.
pub fn on_copies(algorithm: &Algorithm) -> Option<Algorithm> {
    let Name { family, wide } = algorithm.name().parse().ok()?;
    let family = match family {
        Family::Packed(_) => return None,
        plain => Family::Packed(Box::new(plain)),
    };
    Some(Algorithm::new(&Name { family, wide }.to_string()))
}

/// The name of a legacy algorithm as offered by the backend, and the notes on its arithmetic; `None` if the operation
/// has no algorithm with this number.
pub fn legacy_chosen(operation: Operation, number: i32) -> Option<(Algorithm, Notes)> {
    let name = legacy_names(operation).nth(usize::try_from(number).ok()?)?;
    let family = Family::Legacy(name.to_owned());
    Some((Algorithm::new(&Name { family, wide: false }.to_string()), legacy_notes(operation, name)))
}

fn chosen(configuration: &Descriptor) -> Result<Chosen, CudaError> {
    let Proposal { engine, notes } = proposal(configuration)?;
    let what = "a configuration's workspace";
    let bytes: i64 = configuration.get_one(sys::Attribute::ENGINECFG_WORKSPACE_SIZE, what)?;
    let workspace =
        u64::try_from(bytes).map_err(|_| CudaError::Answer { what, count: bytes, expected: "0 or more" })?;
    let algorithm = Algorithm::new(&Name { family: Family::Engine(engine), wide: false }.to_string());
    Ok(Chosen { algorithm, workspace: Bytes(workspace), notes })
}

/// A configuration on a handle of the program's, ready to run any number of times.
pub struct GuestProgram {
    program: Program,
    context: Arc<Context>,
    bytes: [usize; 3],
    /// Where its tensors begin in our memory.
    starts: [usize; 3],
    storage: Storage,
}

/// Why a program was not enqueued.
#[derive(Debug)]
pub struct NotEnqueued {
    /// Whether part of it was enqueued, which leaves the output undefined.
    pub is_begun: bool,
    /// The failure.
    pub error: CudaError,
}

impl GuestProgram {
    /// Bytes of memory for data, other and output, each with its offset.
    pub(super) fn tensors(&self) -> [usize; 3] {
        std::array::from_fn(|place| self.starts[place] + self.bytes[place])
    }

    /// The offsets of data, other and output.
    pub(super) fn starts(&self) -> [usize; 3] {
        self.starts
    }

    /// The type of its tensors.
    pub(super) fn storage(&self) -> Storage {
        self.storage
    }

    /// Bytes of workspace it needs.
    pub fn workspace(&self) -> usize {
        self.program.workspace
    }

    /// Enqueues all micro-batches on the handle's stream without waiting. Data, other and output are as in
    /// [`tightfit_conv::backend::Tensors`].
    ///
    /// # Errors
    /// [`NotEnqueued`], with [`CudaError::Misaligned`] for an address without the alignment the program was made for.
    ///
    /// # Safety
    /// The addresses begin tensors of the problem's sizes on the handle's device, and [`GuestProgram::workspace`] bytes
    /// at the last; all stay alive, and the written ones untouched by others, until the handle's stream has done the
    /// work.
    pub unsafe fn enqueue(&self, tensors: [DevicePtr; 3], workspace: DevicePtr) -> Result<(), NotEnqueued> {
        let [data, other, output] = tensors;
        let lengths = [self.bytes[0], self.bytes[1], self.bytes[2], self.workspace()];
        let places = [data, other, output, workspace];
        let part = |place: usize| {
            // SAFETY: forwarded to the caller.
            unsafe { Slice::of_program(&self.context, places[place], lengths[place]) }
        };
        let launches = self
            .program
            .launches([part(0), part(1), part(2), part(3)])
            .map_err(|error| NotEnqueued { is_begun: false, error })?;
        for (place, launch) in launches.iter().enumerate() {
            launch.enqueue().map_err(|error| NotEnqueued { is_begun: place > 0, error })?;
        }
        Ok(())
    }
}
