//! A GPU as a machine: one allocation on the device, one pinned on the host, streams, and every task prepared as calls to
//! cuDNN, cuBLAS and a few kernels on fixed memory.
//!
//! Each stream that computes has a separate cuDNN handle and scratch memory; the streams other than the compute stream
//! open when a task first needs them.
//!
//! Outside the arena are cuBLAS's workspace, the libraries' code, and scratch memory for sums. [`RESERVED`] leaves room
//! for them, and [`CudaMachine::outside_arena`] measures them. After the first step, a step may be CUDA graphs with
//! copies between them; `begin` then reports that it needs no commands.

mod faults;
mod feed;
mod layers;

use std::ops::Range;
use std::sync::Arc;

use tightfit_conv::problem::Storage;
use tightfit_cuda::layers::{Lane, Libraries, Now, Session};
use tightfit_cuda::safe::{PinnedArena, Region};
use tightfit_cuda::{CudaBackend, CudaError, Options};
use tightfit_plan::{Order, Stream};
use tightfit_units::{Bytes, Nanos};

use self::faults::{failed, range, wrong};
use super::{Iteration, Machine, Span, Task, TaskId};
use crate::{Error, host_memory};

/// Modes of a machine, independent of schedules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// Record the second step as CUDA graphs, one if it has no copies, and launch these in every later step.
    pub graph: bool,
    /// Record the spans of tasks and copies for [`Machine::spans`]; incompatible with `graph`.
    pub trace: bool,
    /// Fill the arena with a pattern, so that [`CudaMachine::touched`] can tell how much of it was used.
    pub watch: bool,
}

/// Device memory that a plan reserves outside its arena: cuBLAS's workspace (32 MiB), the libraries' code, loaded on
/// demand (about 100 MiB), and scratch.
pub const RESERVED: Bytes = Bytes::mib(256);

/// Bytes of a step's parameters in the pinned memory, after which the labels begin.
const NUMBERS: usize = 256;

/// One GPU.
pub struct CudaMachine {
    session: Option<Session>,
    tasks: Vec<(String, Option<usize>)>,
    input: Option<Input>,
    iteration: Option<Iteration>,
    /// The state of the other computing streams, in the order of opening, with the session's number.
    beside: Vec<Beside>,
    backend: CudaBackend,
    libraries: Arc<Libraries>,
    modes: Modes,
    free_at_start: Bytes,
}

/// The state of another computing stream.
struct Beside {
    stream: Stream,
    backend: CudaBackend,
    libraries: Arc<Libraries>,
}

/// The destination of mini-batches.
struct Input {
    /// Samples and labels of each part of the mini-batch, with the first sample.
    parts: Vec<(usize, Region, Option<Region>)>,
    storage: Storage,
    /// Elements per sample.
    sample: usize,
    /// Their order.
    order: Order,
    /// Bytes of the pinned memory before the samples.
    head: usize,
    batch: usize,
}

impl CudaMachine {
    /// Opens the driver, the device, cuDNN and cuBLAS.
    ///
    /// # Errors
    /// [`Error::Step`] with the missing library and the places searched.
    pub fn open(options: &Options, modes: Modes) -> Result<CudaMachine, Error> {
        let opening = |error: CudaError| failed("opening the device", error);
        let backend = CudaBackend::open(options).map_err(opening)?;
        let (free_at_start, _) = backend.memory().map_err(opening)?;
        let libraries = Libraries::open(backend.handle(), options.cublas.as_deref()).map_err(opening)?;
        Ok(CudaMachine {
            session: None,
            tasks: Vec::new(),
            input: None,
            iteration: None,
            beside: Vec::new(),
            backend,
            libraries,
            modes,
            free_at_start,
        })
    }

    /// Device memory in use outside the arena: by this machine's libraries and scratch; and by the context and anything
    /// else on the device when the machine was opened.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn outside_arena(&self) -> Result<(Bytes, Bytes), Error> {
        let (free, total) = self.backend.memory().map_err(|error| failed("querying free memory", error))?;
        let arena = self.session.as_ref().map_or(0, Session::device_bytes) as u64;
        let taken = self.free_at_start.0.saturating_sub(free.0).saturating_sub(arena);
        Ok((Bytes(taken), Bytes(total.0.saturating_sub(self.free_at_start.0))))
    }

    /// Free device memory.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn free(&self) -> Result<Bytes, Error> {
        let memory = self.backend.memory().map_err(|error| failed("querying free memory", error))?;
        Ok(memory.0)
    }

    /// The end of the highest byte of the arena written so far; `None` without [`Modes::watch`].
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn touched(&self) -> Result<Option<Bytes>, Error> {
        let touched = self.session.as_ref().map_or(Ok(None), Session::touched);
        touched.map_err(|error| failed("scanning the arena", error))
    }

    /// Time of the last step on the device, from before the upload of its mini-batch to the end of all streams.
    ///
    /// # Errors
    /// [`Error::Step`] before the first step has ended.
    pub fn step_time(&mut self) -> Result<Nanos, Error> {
        self.session()?.step_time().map_err(|error| failed("querying a step's time", error))
    }

    /// Records spans from the next step on, as [`Modes::trace`] does from the first.
    pub fn start_trace(&mut self) {
        self.modes.trace = true;
        self.session.iter_mut().for_each(Session::start_timing);
    }

    /// Records no spans from the next step on.
    pub fn stop_trace(&mut self) {
        self.modes.trace = false;
        self.session.iter_mut().for_each(Session::stop_timing);
    }

    fn session(&mut self) -> Result<&mut Session, Error> {
        self.session.as_mut().ok_or_else(|| wrong("a step", "before the arenas were allocated".to_owned()))
    }

    /// Explains an out-of-memory error: how much is free, and which budget would leave enough.
    fn explained(&self, error: Error) -> Error {
        let is_out_of_memory =
            |source: &(dyn std::error::Error + 'static)| source.downcast_ref().is_some_and(CudaError::is_out_of_memory);
        let mut cause = std::error::Error::source(&error);
        while cause.is_some_and(|source| !is_out_of_memory(source)) {
            cause = cause.and_then(std::error::Error::source);
        }
        match (cause, self.backend.memory()) {
            (Some(_), Ok((free, _))) => {
                let arena = Bytes(self.session.as_ref().map_or(0, Session::device_bytes) as u64);
                let budget = (arena + free).saturating_sub(RESERVED);
                Error::LibraryMemory { arena, free, budget, source: Box::new(error) }
            }
            _ => error,
        }
    }

    /// Prepares the work of a task; `None` for the input, which is uploaded instead.
    fn work(&mut self, task: &Task) -> Result<Option<usize>, Error> {
        if layers::is_input(task) {
            return self.prepare_input(task).map(|()| None);
        }
        self.open_lane(task.stream).map_err(|error| failed(&task.name, error))?;
        let lane = self.lane(task.stream)?;
        let missing = || wrong(&task.name, "before the arenas were allocated".to_owned());
        let session = self.session.as_mut().ok_or_else(missing)?;
        let (libraries, backend) = match lane {
            Lane::Beside(number) => {
                let Beside { libraries, backend, .. } = &mut self.beside[number];
                (&*libraries, backend)
            }
            _ => (&self.libraries, &mut self.backend),
        };
        let work = layers::prepare(session, libraries, backend, task)?;
        Ok(Some(session.keep(lane, work)))
    }

    /// Opens another computing stream, if that was not done before.
    fn open_lane(&mut self, stream: Stream) -> Result<(), CudaError> {
        let is_open = self.beside.iter().any(|beside| beside.stream == stream);
        if is_open || stream == Stream::Compute || !stream.is_lane() {
            return Ok(());
        }
        let backend = self.backend.sibling()?;
        let libraries = self.libraries.beside(backend.handle())?;
        if let Some(session) = &mut self.session {
            session.add_lane(&libraries)?;
        }
        self.beside.push(Beside { stream, backend, libraries });
        Ok(())
    }

    /// The lane of a schedule's stream.
    fn lane(&self, stream: Stream) -> Result<Lane, Error> {
        let unopened = || wrong("a step", format!("no task was prepared on the stream {}", stream.name()));
        match stream {
            Stream::Compute => Ok(Lane::Compute),
            Stream::Offload => Ok(Lane::Offload),
            Stream::Prefetch => Ok(Lane::Prefetch),
            Stream::Lane2 | Stream::Lane3 | Stream::Lane4 => {
                let number = self.beside.iter().position(|beside| beside.stream == stream);
                number.map(Lane::Beside).ok_or_else(unopened)
            }
        }
    }

    /// Enqueues the mini-batch and the step's parameters.
    fn bring(&mut self) -> Result<(), CudaError> {
        let (Some(session), Some(iteration)) = (&mut self.session, self.iteration) else { return Ok(()) };
        let now =
            Now { step: iteration.step, seed: iteration.seed, rule: iteration.rule, loss_scale: iteration.loss_scale };
        let bytes = now.bytes();
        let Some(input) = &self.input else { return Ok(()) };
        session.staging()?[..bytes.len()].copy_from_slice(&bytes);
        let mut uploads = vec![(0..bytes.len(), self.libraries.now())];
        let sample = input.sample * input.storage.size();
        for (first, samples, labels) in &input.parts {
            let start = input.head + first * sample;
            uploads.push((start..start + samples.len(), samples));
            if let Some(labels) = labels {
                let start = NUMBERS + first * 4;
                uploads.push((start..start + labels.len(), labels));
            }
        }
        session.upload(&uploads)
    }

    /// Allocates the pinned memory of an input layer, or adds a part of the mini-batch.
    fn prepare_input(&mut self, task: &Task) -> Result<(), Error> {
        let named = |error| failed(&task.name, error);
        let session = self.session()?;
        let (y, labels) = layers::input(session, task)?;
        let storage = task.types.storage();
        let head = (NUMBERS + task.batch * 4).next_multiple_of(NUMBERS);
        let sample = task.output.len();
        if self.input.is_none() {
            let bytes = head + task.batch * sample * storage.size();
            host_memory::check(Bytes(bytes as u64))?;
            self.session()?.stage(bytes).map_err(named)?;
            self.input = Some(Input { parts: Vec::new(), storage, sample, order: task.order, head, batch: task.batch });
        }
        if let Some(input) = &mut self.input
            && input.parts.iter().all(|(first, ..)| *first != task.first)
        {
            input.parts.push((task.first, y, labels));
        }
        Ok(())
    }
}

impl Machine for CudaMachine {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn reserve(&mut self, device: Bytes, host: Bytes, events: usize) -> Result<(), Error> {
        let taking = |error| failed("allocating the arenas", error);
        // Free the memory of an earlier schedule first, but reuse pinned memory, which takes long to allocate.
        let pinned = self.session.take().map(Session::into_host).filter(|pinned| pinned.len() as u64 >= host.0);
        (self.tasks, self.input, self.iteration) = (Vec::new(), None, None);
        let (free, _) = self.backend.memory().map_err(taking)?;
        let too_large = Error::DeviceMemory { needed: device, free, budget: free.saturating_sub(RESERVED) };
        if device > free {
            return Err(too_large);
        }
        let (device, host_len) = (range(&(0..device.0)).end, range(&(0..host.0)).end);
        let pinned = match pinned {
            Some(pinned) => pinned,
            None => {
                host_memory::check(host)?;
                PinnedArena::new(self.libraries.handle().context(), host_len).map_err(taking)?
            }
        };
        // Free memory may be fragmented.
        let refused = |error: CudaError| if error.is_out_of_memory() { too_large } else { taking(error) };
        let mut session = Session::new(&self.libraries, device, pinned, events).map_err(refused)?;
        for beside in &self.beside {
            session.add_lane(&beside.libraries).map_err(taking)?;
        }
        if self.modes.watch {
            session.watch().map_err(taking)?;
        }
        if self.modes.trace {
            session.start_timing();
        }
        self.session = Some(session);
        Ok(())
    }

    fn prepare(&mut self, task: Task) -> Result<TaskId, Error> {
        let work = self.work(&task).map_err(|error| self.explained(error))?;
        self.tasks.push((task.name, work));
        Ok(TaskId(self.tasks.len() - 1))
    }

    fn compute(&mut self, task: TaskId, iteration: &Iteration) -> Result<(), Error> {
        self.iteration = Some(*iteration);
        let Some((name, work)) = self.tasks.get(task.0) else {
            return Err(wrong("a step", format!("task {} was never prepared", task.0)));
        };
        let (name, work) = (name.clone(), *work);
        let recording = self.session()?.is_recording();
        let enqueued = match work {
            Some(work) => self.session()?.compute(work),
            // A recorded step's mini-batch was uploaded before it.
            None if recording => Ok(()),
            None => self.bring(),
        };
        // The libraries load their remaining code in the first step.
        enqueued.map_err(|error| self.explained(failed(&name, error)))
    }

    fn feed(&mut self, samples: &[f32], labels: &[u32]) -> Result<(), Error> {
        let feeding = |error| failed("feeding a mini-batch", error);
        let Some(input) = &self.input else {
            return Err(wrong("feeding a mini-batch", "no input layer was prepared".to_owned()));
        };
        if samples.len() != input.batch * input.sample || labels.len() != input.batch {
            let (given, wanted) = (samples.len(), input.batch * input.sample);
            let what = format!("{given} numbers and {} labels, not {wanted} and {}", labels.len(), input.batch);
            return Err(wrong("feeding a mini-batch", what));
        }
        let (head, storage, order) = (input.head, input.storage, input.order);
        let staging = self.session()?.staging().map_err(feeding)?;
        let (front, back) = staging.split_at_mut(head);
        for (place, label) in front[NUMBERS..].chunks_exact_mut(4).zip(labels) {
            place.copy_from_slice(&label.to_ne_bytes());
        }
        feed::encode(samples, order, storage, back);
        Ok(())
    }

    fn offload(&mut self, stream: Stream, device: Range<u64>, host: Range<u64>) -> Result<(), Error> {
        let lane = self.lane(stream)?;
        let copy = self.session()?.offload(lane, range(&device), range(&host));
        copy.map_err(|error| failed(&format!("offloading {} bytes", device.end - device.start), error))
    }

    fn prefetch(&mut self, stream: Stream, host: Range<u64>, device: Range<u64>) -> Result<(), Error> {
        let lane = self.lane(stream)?;
        let copy = self.session()?.prefetch(lane, range(&host), range(&device));
        copy.map_err(|error| failed(&format!("prefetching {} bytes", host.end - host.start), error))
    }

    fn poison(&mut self, stream: Stream, device: Range<u64>) -> Result<(), Error> {
        let lane = self.lane(stream)?;
        self.session()?.poison(lane, range(&device)).map_err(|error| failed("poisoning", error))
    }

    fn record(&mut self, stream: Stream, event: usize) -> Result<(), Error> {
        let lane = self.lane(stream)?;
        self.session()?.record(lane, event).map_err(|error| failed("recording an event", error))
    }

    fn wait(&mut self, stream: Stream, event: usize) -> Result<(), Error> {
        let lane = self.lane(stream)?;
        self.session()?.wait(lane, event).map_err(|error| failed("waiting for an event", error))
    }

    fn begin(&mut self, iteration: &Iteration) -> Result<bool, Error> {
        let beginning = |error| failed("beginning a step", error);
        let first = self.iteration.is_none();
        self.iteration = Some(*iteration);
        self.session()?.begin_step().map_err(beginning)?;
        // The first step lets the libraries load their remaining code, which is impossible during recording.
        if !self.modes.graph || self.modes.trace || first {
            return Ok(true);
        }
        self.bring().map_err(beginning)?;
        let session = self.session()?;
        if session.has_recorded() {
            session.launch().map_err(beginning)?;
            return Ok(false);
        }
        session.begin_recording();
        Ok(true)
    }

    fn end(&mut self) -> Result<(), Error> {
        let session = self.session()?;
        if session.is_recording() {
            session
                .end_recording()
                .and_then(|()| session.launch())
                .map_err(|error| failed("recording a step", error))?;
        }
        session.end_step().map_err(|error| failed("ending a step", error))
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.session()?.finish().map_err(|error| failed("finishing a step", error))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = range(&(0..at)).end;
        self.session()?.write(at, bytes).map_err(|error| failed("writing to the arena", error))
    }

    fn read(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error> {
        self.session()?.read(range(&from)).map_err(|error| failed("reading the arena", error))
    }

    fn read_host(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error> {
        self.session()?.read_host(range(&from)).map_err(|error| failed("reading the host arena", error))
    }

    fn high_water(&mut self) -> Result<Option<Bytes>, Error> {
        self.touched()
    }

    fn spans(&mut self) -> Vec<Span> {
        // A device that fails here has failed before, and that was reported.
        let times = self.session.as_ref().map(Session::times).and_then(Result::ok).unwrap_or_default();
        let mut places = [0; Stream::ALL.len()];
        let span = |(lane, [start, end]): (Lane, [Nanos; 2])| {
            let stream = match lane {
                Lane::Compute => Stream::Compute,
                Lane::Offload => Stream::Offload,
                Lane::Prefetch => Stream::Prefetch,
                Lane::Beside(number) => self.beside.get(number)?.stream,
            };
            let place = &mut places[stream.index()];
            *place += 1;
            Some(Span { stream, place: *place - 1, start, end })
        };
        times.into_iter().filter_map(span).collect()
    }
}
