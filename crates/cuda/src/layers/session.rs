//! Everything a training run has on the device: both arenas, its streams, events, and prepared work. A whole step can be
//! recorded once and then enqueued with few calls: its computations as graphs, and the copies between them.
//!
//! ```text
//! record     upload | a graph: begin, compute forks to the other streams .. work .. join, end | copies, waits | a graph ..
//! later      upload | launch | copies, waits | launch ..                                   nothing else from the host
//! ```
//!
//! The upload of a mini-batch stays outside the recording, so that the host can tell when its memory is free again.

use std::ops::Range;
use std::sync::Arc;

use tightfit_units::{Bytes, Nanos};

use super::recording::{Behind, Recorded, Recording};
use super::{ArenaWatch, Lane, Libraries, Work};
use crate::CudaError;
use crate::safe::{Capture, DeviceBuffer, Event, PinnedArena, Region, Staging, Stream};

/// A further stream for work, with its libraries, and the end of its work in a step.
struct Beside {
    libraries: Arc<Libraries>,
    end: Event,
}

/// Prepared work, and the stream that it was prepared for.
struct Kept {
    lane: Lane,
    work: Vec<Work>,
}

/// Memory, streams and prepared work; nothing is allocated after preparation.
///
/// Prepared work and recorded steps use only memory that they or the session hold, and fields drop in order: the recorded
/// step first.
pub struct Session {
    recorded: Option<Vec<Recorded>>,
    recording: Option<Recording>,
    works: Vec<Kept>,
    events: Vec<Event>,
    /// Begin and end of a step, and the ends of the copy streams.
    marks: [Event; 4],
    copies: [Stream; 2],
    beside: Vec<Beside>,
    arena: Arc<DeviceBuffer>,
    host: PinnedArena,
    staging: Option<Staging>,
    touched: Option<ArenaWatch>,
    timed: Option<WorkTimes>,
    libraries: Arc<Libraries>,
}

/// The times of all work: a pair of events each, created in the first step.
#[derive(Default)]
struct WorkTimes {
    pairs: Vec<[Event; 2]>,
    lanes: Vec<Lane>,
}

impl Session {
    /// Allocates a device arena of `device` bytes and `events` events, and uses the given pinned arena.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Driver`].
    pub fn new(
        libraries: &Arc<Libraries>,
        device: usize,
        host: PinnedArena,
        events: usize,
    ) -> Result<Session, CudaError> {
        let context = libraries.handle().context();
        Ok(Session {
            recorded: None,
            recording: None,
            works: Vec::new(),
            events: (0..events).map(|_| Event::new(context)).collect::<Result<_, _>>()?,
            marks: [Event::new(context)?, Event::new(context)?, Event::new(context)?, Event::new(context)?],
            copies: [Stream::new(context)?, Stream::new(context)?],
            beside: Vec::new(),
            arena: Arc::new(DeviceBuffer::new(context, device)?),
            host,
            staging: None,
            touched: None,
            timed: None,
            libraries: libraries.clone(),
        })
    }

    /// Ends the session and returns its pinned arena, which waits for copies when dropped.
    pub fn into_host(self) -> PinnedArena {
        self.host
    }

    /// Bytes of the device arena.
    pub fn device_bytes(&self) -> usize {
        self.arena.len()
    }

    /// Bytes of the device arena.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`].
    pub fn region(&self, range: Range<usize>) -> Result<Region, CudaError> {
        Region::new(&self.arena, range)
    }

    /// Adds the stream of these libraries, for work at the same time as the compute stream's; returns its number.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn add_lane(&mut self, libraries: &Arc<Libraries>) -> Result<usize, CudaError> {
        let end = Event::new(libraries.handle().context())?;
        self.beside.push(Beside { libraries: libraries.clone(), end });
        Ok(self.beside.len() - 1)
    }

    /// Keeps work prepared for the stream of a lane and returns its number.
    pub fn keep(&mut self, lane: Lane, work: Vec<Work>) -> usize {
        self.works.push(Kept { lane, work });
        self.works.len() - 1
    }

    /// Allocates pinned memory for the upload of each step.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn stage(&mut self, len: usize) -> Result<(), CudaError> {
        self.staging = Some(Staging::new(self.libraries.handle().context(), len)?);
        Ok(())
    }

    /// The pinned memory of [`Session::stage`], after waiting for the last upload; `None` without it.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the stream.
    pub fn staging(&mut self) -> Result<&mut [u8], CudaError> {
        self.staging.as_mut().map_or(Ok(&mut []), Staging::fill)
    }

    /// Enqueues copies of parts of it on the compute stream.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
    pub fn upload(&mut self, parts: &[(Range<usize>, &Region)]) -> Result<(), CudaError> {
        self.start(Lane::Compute)?;
        let stream = self.libraries.handle().stream();
        self.staging.as_mut().map_or(Ok(()), |staging| staging.upload(parts, stream))?;
        self.stop(Lane::Compute)
    }

    fn stream(&self, lane: Lane) -> Result<&Stream, CudaError> {
        let unknown = |number| CudaError::OutOfBounds { start: number, end: number + 1, len: self.beside.len() };
        Ok(match lane {
            Lane::Compute => self.libraries.handle().stream(),
            Lane::Offload => &self.copies[0],
            Lane::Prefetch => &self.copies[1],
            Lane::Beside(number) => self.beside.get(number).ok_or_else(|| unknown(number))?.libraries.handle().stream(),
        })
    }

    /// The other streams, each with its mark at the end of a step.
    fn others(&self) -> impl Iterator<Item = (&Stream, &Event)> {
        let beside = self.beside.iter().map(|lane| (lane.libraries.handle().stream(), &lane.end));
        self.copies.iter().zip(&self.marks[2..]).chain(beside)
    }

    /// Enqueues kept work on the stream that it was prepared for; ignores unknown numbers.
    ///
    /// # Errors
    /// The errors of the work.
    pub fn compute(&mut self, work: usize) -> Result<(), CudaError> {
        let Some(lane) = self.works.get(work).map(|kept| kept.lane) else { return Ok(()) };
        self.begin_graph()?;
        self.start(lane)?;
        self.works[work].work.iter().try_for_each(|work| work())?;
        self.stop(lane)
    }

    /// Enqueues a copy to the host.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
    pub fn offload(&mut self, lane: Lane, device: Range<usize>, host: Range<usize>) -> Result<(), CudaError> {
        let region = self.region(device)?;
        self.enqueue(Recorded::Offload(lane, region, host))
    }

    /// Enqueues a copy from the host.
    ///
    /// # Errors
    /// As [`Session::offload`].
    pub fn prefetch(&mut self, lane: Lane, host: Range<usize>, device: Range<usize>) -> Result<(), CudaError> {
        let region = self.region(device)?;
        self.enqueue(Recorded::Prefetch(lane, host, region))
    }

    /// Enqueues filling bytes of the arena with ones.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
    pub fn poison(&mut self, lane: Lane, device: Range<usize>) -> Result<(), CudaError> {
        let region = self.region(device)?;
        self.enqueue(Recorded::Poison(lane, region))
    }

    /// Marks a point in a stream.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] for an unknown event; [`CudaError::Driver`].
    pub fn record(&mut self, lane: Lane, event: usize) -> Result<(), CudaError> {
        self.enqueue(Recorded::Record(lane, event))?;
        if let Some(recording) = self.recording.as_mut().filter(|_| !lane.is_copying()) {
            recording.mark(event);
        }
        Ok(())
    }

    /// Makes the stream wait until the point is passed.
    ///
    /// # Errors
    /// As [`Session::record`].
    pub fn wait(&mut self, lane: Lane, event: usize) -> Result<(), CudaError> {
        let behind = self.recording.as_ref().filter(|_| !lane.is_copying()).map(|recording| recording.behind(event));
        match behind {
            Some(Behind::Already) => Ok(()),
            Some(Behind::Outside) => {
                // The other streams fork from the compute stream when the next graph begins.
                self.record_between(Recorded::Wait(Lane::Compute, event))
            }
            Some(Behind::Inside) | None => self.enqueue(Recorded::Wait(lane, event)),
        }
    }

    /// Enqueues work. In a recording, computations belong to a graph, and copies come after it.
    fn enqueue(&mut self, what: Recorded) -> Result<(), CudaError> {
        if self.recording.is_some() && what.lane().is_copying() {
            return self.record_between(what);
        }
        self.begin_graph()?;
        self.do_now(&what)
    }

    /// Ends the graph in progress, and records an item after it.
    fn record_between(&mut self, what: Recorded) -> Result<(), CudaError> {
        self.end_graph()?;
        if let Some(recording) = &mut self.recording {
            recording.push(what);
        }
        Ok(())
    }

    /// Enqueues a part of a step.
    fn do_now(&mut self, what: &Recorded) -> Result<(), CudaError> {
        let lane = what.lane();
        match what {
            // SAFETY: the recording has kept work, and copies and fills of the arena: the session holds all of it, in
            // fields that are dropped after the graph and wait for queued work.
            Recorded::Graph(graph) => unsafe { graph.launch(self.stream(lane)?) },
            Recorded::Offload(_, region, host) => {
                self.start(lane)?;
                self.host.offload(region, host.clone(), self.stream(lane)?)?;
                self.stop(lane)
            }
            Recorded::Prefetch(_, host, region) => {
                self.start(lane)?;
                self.host.prefetch(host.clone(), region, self.stream(lane)?)?;
                self.stop(lane)
            }
            Recorded::Poison(_, region) => region.fill(0xFF, self.stream(lane)?),
            Recorded::Record(_, event) => self.event(*event)?.record(self.stream(lane)?),
            Recorded::Wait(_, event) => self.stream(lane)?.wait(self.event(*event)?),
        }
    }

    fn event(&self, event: usize) -> Result<&Event, CudaError> {
        let len = self.events.len();
        self.events.get(event).ok_or(CudaError::OutOfBounds { start: event, end: event + 1, len })
    }

    /// Waits for all streams.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any of their errors.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.stream(Lane::Compute)?.synchronize()?;
        self.others().try_for_each(|(stream, _)| stream.synchronize())
    }

    /// Copies host memory into the arena, after waiting for all earlier work.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<(), CudaError> {
        self.region(at..at.saturating_add(bytes.len()))?.upload(bytes)
    }

    /// Copies bytes of the arena, after waiting for all earlier work.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub fn read(&self, from: Range<usize>) -> Result<Vec<u8>, CudaError> {
        let mut bytes = vec![0; from.len()];
        self.region(from)?.slice()?.download(&mut bytes)?;
        Ok(bytes)
    }

    /// Copies bytes of the pinned arena, after waiting for all earlier work.
    ///
    /// # Errors
    /// As [`Session::write`].
    pub fn read_host(&mut self, from: Range<usize>) -> Result<Vec<u8>, CudaError> {
        self.host.read(from)
    }

    /// Fills the arena with a pattern, so that [`Session::touched`] can tell how much of it was used.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Driver`].
    pub fn watch(&mut self) -> Result<(), CudaError> {
        self.touched = Some(ArenaWatch::watch(&self.libraries, &self.arena)?);
        Ok(())
    }

    /// The end of the last byte written since [`Session::watch`]; waits for all earlier work.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn touched(&self) -> Result<Option<Bytes>, CudaError> {
        self.touched.as_ref().map(ArenaWatch::end).transpose()
    }

    /// Starts recording the step instead of running it.
    pub fn begin_recording(&mut self) {
        self.recording = Some(Recording::default());
    }

    /// Ends the recording and keeps the step.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the step cannot be recorded.
    pub fn end_recording(&mut self) -> Result<(), CudaError> {
        self.end_graph()?;
        self.recorded = self.recording.take().map(Recording::finish);
        Ok(())
    }

    /// Begins a graph of the recording, if there is one and it has none in progress: from now on, work on streams that compute
    /// is recorded in it.
    fn begin_graph(&mut self) -> Result<(), CudaError> {
        let compute = self.libraries.handle().stream();
        match &mut self.recording {
            Some(recording) if !recording.is_capturing() => recording.begin(Capture::begin(compute)?),
            _ => return Ok(()),
        }
        let fork = Event::untimed(compute.context())?;
        fork.record(compute)?;
        self.beside.iter().try_for_each(|lane| lane.libraries.handle().stream().wait(&fork))
    }

    /// Ends the recording's graph, if one is in progress.
    fn end_graph(&mut self) -> Result<(), CudaError> {
        let Some(recording) = &mut self.recording else { return Ok(()) };
        let Some(capture) = recording.take_capture() else { return Ok(()) };
        let compute = self.libraries.handle().stream();
        for Beside { libraries, .. } in &self.beside {
            let join = Event::untimed(compute.context())?;
            join.record(libraries.handle().stream())?;
            compute.wait(&join)?;
        }
        recording.end(capture.end()?);
        Ok(())
    }

    /// Whether a recording is in progress.
    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Whether a step was recorded.
    pub fn has_recorded(&self) -> bool {
        self.recorded.is_some()
    }

    /// Enqueues the recorded step; nothing without one.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn launch(&mut self) -> Result<(), CudaError> {
        let recorded = self.recorded.take();
        let launched = recorded.iter().flatten().try_for_each(|what| self.do_now(what));
        self.recorded = recorded;
        launched
    }

    /// Records times from the next step on.
    pub fn start_timing(&mut self) {
        self.timed = Some(WorkTimes::default());
    }

    /// Records no times from the next step on.
    pub fn stop_timing(&mut self) {
        self.timed = None;
    }

    /// Marks the beginning of a step on the compute stream, and clears the times of the previous step.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn begin_step(&mut self) -> Result<(), CudaError> {
        if let Some(timed) = &mut self.timed {
            timed.lanes.clear();
        }
        self.marks[0].record(self.stream(Lane::Compute)?)
    }

    /// Marks the end of a step: the compute stream waits for the others.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn end_step(&self) -> Result<(), CudaError> {
        let compute = self.stream(Lane::Compute)?;
        for (stream, mark) in self.others() {
            mark.record(stream)?;
            compute.wait(mark)?;
        }
        self.marks[1].record(compute)
    }

    /// Time between the marks of the last step, once it is over.
    ///
    /// # Errors
    /// [`CudaError::Driver`] before the first.
    pub fn step_time(&self) -> Result<Nanos, CudaError> {
        self.marks[1].since(&self.marks[0])
    }

    /// The stream, start and end of each item of work in this step, relative to the first start. Call it after
    /// [`Session::finish`].
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn times(&self) -> Result<Vec<(Lane, [Nanos; 2])>, CudaError> {
        let Some(timed) = &self.timed else { return Ok(Vec::new()) };
        let Some([first, _]) = timed.pairs.first() else { return Ok(Vec::new()) };
        let since = |[start, end]: &[Event; 2]| Ok::<_, CudaError>([start.since(first)?, end.since(first)?]);
        timed.lanes.iter().zip(&timed.pairs).map(|(lane, pair)| Ok((*lane, since(pair)?))).collect()
    }

    fn start(&mut self, lane: Lane) -> Result<(), CudaError> {
        let context = self.libraries.handle().context().clone();
        if let Some(timed) = &mut self.timed {
            if timed.lanes.len() == timed.pairs.len() {
                timed.pairs.push([Event::new(&context)?, Event::new(&context)?]);
            }
            timed.lanes.push(lane);
        }
        self.mark(lane, 0)
    }

    fn stop(&self, lane: Lane) -> Result<(), CudaError> {
        self.mark(lane, 1)
    }

    /// Records the first or second event of the current item of work.
    fn mark(&self, lane: Lane, which: usize) -> Result<(), CudaError> {
        let pair = self.timed.as_ref().and_then(|timed| timed.pairs.get(timed.lanes.len().checked_sub(1)?));
        pair.map_or(Ok(()), |pair| pair[which].record(self.stream(lane)?))
    }
}
