//! Works inside a program that already uses CUDA, with the program's driver, cuDNN, handles, streams and memory.
//!
//! ```text
//! Host       the program's two libraries; one context for each of its devices
//!  |- Guest      a handle of the program's: workspaces asked and programs built on it
//!  |   '- GuestProgram    a configuration, enqueued on whatever stream the handle has, in memory of the program's
//!  |- Builder    builds plans on a separate handle, for guests
//!  '- CudaBackend    measures on a separate handle and stream
//! ```

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tightfit_conv::backend::{Backend, Offer, Scale};
use tightfit_conv::problem::Storage;
use tightfit_conv::{Algorithm, Configuration, Device, Notes, Operation, Problem};
use tightfit_units::{Bytes, Error};

use super::launches::Program;
use super::measure::starts;
use super::plans::{Plans, Sharing};
use super::trial::{Buffers, Pattern};
use super::{CudaBackend, Options};
use crate::convolution::{Family, Name, Proposal, legacy_names, legacy_notes, proposal, tensor_bytes};
use crate::load::{self, CudnnLibrary, OpenLibrary};
use crate::safe::{Context, Descriptor, DeviceBuffer, Event, Handle, Plan, Slice, TensorSpec};
use crate::sys::cudnn::{self as sys, Cudnn};
use crate::sys::driver::{CaptureMode, CaptureStatus, Driver};
use crate::sys::{DevicePtr, driver};
use crate::{CudaError, call};

/// The driver and the cuDNN of a running program.
pub struct Host {
    driver: Arc<Driver>,
    path: PathBuf,
    cudnn: Arc<CudnnLibrary>,
    contexts: Mutex<HashMap<usize, Arc<Context>>>,
    /// Random data for trials, by device and type.
    pub(super) patterns: Mutex<HashMap<(usize, Storage), Arc<Pattern>>>,
    pub(super) buffers: Arc<Buffers>,
    /// By device.
    plans: Mutex<HashMap<usize, Arc<Plans>>>,
}

impl Host {
    /// Uses the driver that the loader finds (or `TIGHTFIT_CUDA` names) and a cuDNN opened earlier.
    ///
    /// # Errors
    /// As [`load::driver`].
    pub fn open(cudnn: Arc<CudnnLibrary>) -> Result<Host, CudaError> {
        let OpenLibrary { table, path } = load::driver(None)?;
        Ok(Host {
            driver: Arc::new(table),
            path,
            cudnn,
            contexts: Mutex::default(),
            patterns: Mutex::default(),
            buffers: Arc::default(),
            plans: Mutex::default(),
        })
    }

    /// cuDNN's functions.
    pub fn cudnn(&self) -> &Cudnn {
        &self.cudnn.table
    }

    /// The ordinal of the calling thread's current device; `None` unless it uses the device's primary context, as all
    /// users of the CUDA runtime do.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn device(&self) -> Result<Option<usize>, CudaError> {
        // SAFETY: a program that has a cuDNN handle has started the driver.
        if unsafe { call::driver::ctx_get_current(&self.driver) }? == driver::Context::NULL {
            return Ok(None);
        }
        // SAFETY: there is a current context.
        let device = unsafe { call::driver::ctx_get_device(&self.driver) }?;
        let Ok(ordinal) = usize::try_from(device.0) else { return Ok(None) };
        Ok(self.context(ordinal)?.is_current()?.then_some(ordinal))
    }

    /// Whether the stream of a handle is capturing a graph, or cannot be queried because another is.
    ///
    /// # Safety
    /// `handle` is alive, and not in use on another thread.
    pub unsafe fn is_capturing(&self, handle: sys::Handle) -> bool {
        // SAFETY: forwarded to the caller.
        let stream = unsafe { call::cudnn::get_stream(&self.cudnn.table, handle) };
        // SAFETY: the program keeps a handle's stream alive while it calls with the handle.
        let status = stream.and_then(|stream| unsafe { call::driver::stream_is_capturing(&self.driver, stream) });
        status.map_or(true, |status| status != CaptureStatus::NONE)
    }

    /// Until the result is dropped, this thread's allocations and waits do not break graph captures on other threads.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn beside_captures(&self) -> Result<BesideCaptures<'_>, CudaError> {
        // SAFETY: a program that has a cuDNN handle has started the driver.
        let before = unsafe { call::driver::thread_exchange_capture_mode(&self.driver, CaptureMode::RELAXED) }?;
        Ok(BesideCaptures { driver: &self.driver, before })
    }

    /// A stream's unique ID, and the ID of its current capture. The address does not identify a stream:
    /// it may be reused, and is the same for the default streams of all threads.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// `stream` is alive.
    pub unsafe fn lane(&self, stream: driver::Stream) -> Result<Lane, CudaError> {
        // SAFETY: forwarded to the caller.
        let (stream, capture) = unsafe {
            (call::driver::stream_get_id(&self.driver, stream)?, call::driver::stream_capture_id(&self.driver, stream)?)
        };
        Ok(Lane { stream, capture })
    }

    /// The stream that a handle's work goes to.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    ///
    /// # Safety
    /// `handle` is alive, and not in use on another thread.
    pub unsafe fn stream(&self, handle: sys::Handle) -> Result<driver::Stream, CudaError> {
        // SAFETY: forwarded to the caller.
        unsafe { call::cudnn::get_stream(&self.cudnn.table, handle) }
    }

    /// An event on a device, for ordering streams.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn event(&self, device: usize) -> Result<Event, CudaError> {
        Event::untimed(&self.context(device)?)
    }

    /// Device memory that is never freed.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn arena(&self, device: usize, bytes: Bytes) -> Result<DevicePtr, CudaError> {
        let (buffer, address) = self.memory(device, usize::try_from(bytes.0).unwrap_or(usize::MAX))?;
        // Captured graphs may use it until the process ends.
        std::mem::forget(buffer);
        Ok(address)
    }

    /// Device memory with its address. Dropping the buffer waits for the device and frees it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn memory(&self, device: usize, bytes: usize) -> Result<(DeviceBuffer, DevicePtr), CudaError> {
        let buffer = DeviceBuffer::new(&self.context(device)?, bytes)?;
        let address = buffer.slice(0..bytes)?.raw();
        Ok((buffer, address))
    }

    /// A separate backend on a device, for measuring: it waits for its own stream alone, so that captures elsewhere go on.
    /// Dropping it waits for the device, since cuDNN does so when it destroys a handle.
    ///
    /// # Errors
    /// [`CudaError::Driver`] and [`CudaError::Cudnn`] if it does not start.
    pub fn backend(&self, device: usize) -> Result<CudaBackend, CudaError> {
        let context = self.context(device)?;
        let backend = CudaBackend::on(Arc::new(Handle::start(&self.cudnn, &context)?), &Options::default())?;
        Ok(CudaBackend { scratch: backend.scratch.in_order(), ..backend })
    }

    /// Wraps a handle of the program.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// `handle` was made by this cuDNN on the device and outlives every call on the result and what it makes; meanwhile
    /// the program does not use it on another thread.
    pub unsafe fn guest(&self, device: usize, handle: sys::Handle) -> Result<Guest, CudaError> {
        let context = self.context(device)?;
        // SAFETY: forwarded to the caller.
        let handle = unsafe { Handle::borrow(&self.cudnn, &context, handle) };
        let backend = CudaBackend::on(Arc::new(handle), &Options::default())?;
        Ok(Guest { backend: CudaBackend { sharing: Sharing::Takes(self.plans(device)), ..backend } })
    }

    /// The plans of a device that handles take.
    pub(super) fn plans(&self, device: usize) -> Arc<Plans> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.entry(device).or_default().clone()
    }

    pub(super) fn context(&self, device: usize) -> Result<Arc<Context>, CudaError> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&device) {
            return Ok(context.clone());
        }
        let context = Arc::new(Context::retain(&self.driver, &self.path, device)?);
        contexts.insert(device, context.clone());
        Ok(context)
    }
}

/// The current identity of a stream: work on one lane runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The stream's number.
    pub stream: u64,
    /// The capture's, if its work is recorded; a graph may be launched on any other stream.
    pub capture: Option<u64>,
}

/// See [`Host::beside_captures`].
pub struct BesideCaptures<'a> {
    driver: &'a Driver,
    before: CaptureMode,
}

impl Drop for BesideCaptures<'_> {
    fn drop(&mut self) {
        // A failure here appears at the program's next call, like other failures of the driver. SAFETY: as in
        // `beside_captures`.
        let _ = unsafe { call::driver::thread_exchange_capture_mode(self.driver, self.before) };
    }
}

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
