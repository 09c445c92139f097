//! Times our programs inside a running program: between its calls, on its stream, in memory that is allocated and freed
//! in stream order. Nothing waits. The times are read at a later call.
//!
//! ```text
//! the program's stream    its call | take memory, fill it | a b a b a b | give it back | its next call
//! host                    enqueues all of this and goes on;          later: times of a and b
//! ```

use std::collections::hash_map::Entry;
use std::sync::{Arc, MutexGuard, PoisonError};

use tightfit_conv::problem::Storage;
use tightfit_units::{Bytes, Nanos};

use super::guest::GuestProgram;
use super::host::Host;
use super::pattern::{Buffers, Pattern};
use crate::CudaError;
use crate::safe::{Event, PinnedBuffer, StreamMemory};
use crate::sys::driver;

/// The alignment of each tensor's memory.
const TENSOR_ALIGNMENT: usize = 256;

/// The work to run.
#[derive(Clone, Copy)]
pub struct Course<'a> {
    /// Programs on tensors of one problem, in the order of a round.
    pub programs: &'a [Arc<GuestProgram>],
    /// How often each runs.
    pub rounds: usize,
    /// Outputs to bring back from each program's run in the first round, by flat index.
    pub outputs: &'a [usize],
    /// Free device memory to leave alone.
    pub reserve: Bytes,
}

/// A running course. If it is dropped before its end, the resources that it uses are kept for the life of the process, and nothing waits.
pub struct Trial {
    /// Alive until all is done.
    programs: Vec<Arc<GuestProgram>>,
    /// Start and end of each run, by round.
    runs: Vec<[Event; 2]>,
    /// Before the tensors are filled, and after all.
    begun: Event,
    done: Event,
    /// The outputs asked for, if any.
    outputs: Option<PinnedBuffer>,
    /// Bytes of them.
    brought: usize,
    buffers: Arc<Buffers>,
    storage: Storage,
}

/// Bytes of each; a course may ask for no more outputs.
const BUFFER_BYTES: usize = 1 << 14;
/// How many are taken at once.
const BUFFERS_AT_ONCE: usize = 32;

/// A point in a program's stream.
pub struct Moment(Event);

impl Moment {
    /// The device's time from an earlier point to this one, including waits for the host. `None` until it has passed this
    /// point.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the work before it.
    pub fn since(&self, earlier: &Moment) -> Result<Option<Nanos>, CudaError> {
        if self.0.is_done()? { self.0.since(&earlier.0).map(Some) } else { Ok(None) }
    }
}

/// The result of a course.
#[derive(Clone, Debug, PartialEq)]
pub struct CourseResult {
    /// Times by program, in the order of the rounds.
    pub times: Vec<Vec<Nanos>>,
    /// The device's time for the course, including the filling of tensors.
    pub took: Nanos,
    /// The outputs that were asked for, by program.
    pub outputs: Vec<Vec<f32>>,
}

impl Host {
    /// The random data of trials on a device.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn pattern(&self, device: usize, storage: Storage) -> Result<Arc<Pattern>, CudaError> {
        let context = self.context(device)?;
        let mut patterns = self.patterns.lock().unwrap_or_else(PoisonError::into_inner);
        match patterns.entry((device, storage)) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(new) => Ok(new.insert(Arc::new(Pattern::new(&context, storage)?)).clone()),
        }
    }

    /// Free bytes of a device.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn free_memory(&self, device: usize) -> Result<Bytes, CudaError> {
        self.context(device)?.memory().map(|(free, _)| free)
    }

    /// Returns the memory of ended trials to a device, for which otherwise only the program waits. Never waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn give_back(&self, device: usize) -> Result<(), CudaError> {
        self.context(device)?.trim()
    }

    /// Marks a point in a stream of the program's.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The stream is alive, on the device, and not capturing.
    pub unsafe fn moment(&self, device: usize, stream: driver::Stream) -> Result<Moment, CudaError> {
        let moment = Moment(Event::new(&self.context(device)?)?);
        // SAFETY: forwarded to the caller.
        unsafe { moment.0.record_on(stream) }?;
        Ok(moment)
    }

    /// Enqueues a course on a stream of the program's.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] if it needs more than is free beyond the reserve; [`CudaError::Driver`] and
    /// [`CudaError::Cudnn`] of the enqueued work. The memory is freed in any case.
    ///
    /// # Safety
    /// The stream is alive until it has done the work, on the device, not capturing, and the programs were made for a
    /// handle that works on it now and that no other thread uses.
    pub unsafe fn trial(&self, device: usize, stream: driver::Stream, course: Course<'_>) -> Result<Trial, CudaError> {
        let Course { programs, rounds, outputs, reserve } = course;
        let context = self.context(device)?;
        let largest = |bytes: &dyn Fn(&GuestProgram) -> usize| programs.iter().map(|one| bytes(one)).max().unwrap_or(0);
        let lengths: [usize; 4] = std::array::from_fn(|place| match place {
            3 => largest(&|program| program.workspace()),
            tensor => largest(&|program| program.tensors()[tensor]),
        });
        let storage = programs.first().map_or(Storage::F32, |program| program.storage());
        let pattern = self.pattern(device, storage)?;
        let total = lengths.iter().fold(0usize, |sum, len| sum.saturating_add(len.next_multiple_of(TENSOR_ALIGNMENT)));
        let free = self.free_memory(device)?;
        let wanted = Bytes(total as u64);
        if wanted.0.saturating_add(reserve.0) > free.0 {
            return Err(CudaError::OutOfMemory { wanted, free });
        }
        let brought = programs.len() * outputs.len() * storage.size();
        if brought > BUFFER_BYTES {
            return Err(CudaError::OutOfBounds { start: 0, end: brought, len: BUFFER_BYTES });
        }
        let mut trial = Trial {
            programs: programs.to_vec(),
            runs: Vec::with_capacity(programs.len() * rounds),
            begun: Event::new(&context)?,
            done: Event::new(&context)?,
            outputs: None,
            brought,
            buffers: self.buffers.clone(),
            storage,
        };
        if brought > 0 {
            let mut buffers = lock(&trial.buffers);
            if buffers.is_empty() {
                // Taking one may also wait for the device, so several are taken at once.
                for _ in 0..BUFFERS_AT_ONCE {
                    buffers.push(PinnedBuffer::new(&context, BUFFER_BYTES)?);
                }
            }
            trial.outputs = buffers.pop();
            drop(buffers);
        }
        for _ in 0..programs.len() * rounds {
            trial.runs.push([Event::new(&context)?, Event::new(&context)?]);
        }
        // SAFETY: forwarded to the caller.
        let memory = unsafe { StreamMemory::take(&context, stream, total) }?;
        let mut begin = 0;
        let places = lengths.map(|len| {
            let place = begin;
            begin += len.next_multiple_of(TENSOR_ALIGNMENT);
            place
        });
        // SAFETY: forwarded to the caller; the places are as long as the programs ask for.
        let enqueued = unsafe { trial.enqueue(&pattern, stream, &memory, (places, lengths), rounds, outputs) };
        // This is right after a failure too: the stream frees the memory after the enqueued work.
        drop(memory);
        // SAFETY: forwarded to the caller.
        let marked = unsafe { trial.done.record_on(stream) };
        match enqueued.and(marked) {
            Ok(()) => Ok(trial),
            Err(error) => {
                // Part of it may still run, and no caller will ask whether it has ended.
                std::mem::forget(trial);
                Err(error)
            }
        }
    }
}

impl Trial {
    /// Enqueues everything.
    ///
    /// # Safety
    /// As [`Host::trial`]; the places are offsets in bytes of the memory.
    unsafe fn enqueue(
        &mut self,
        pattern: &Pattern,
        stream: driver::Stream,
        memory: &StreamMemory,
        (places, lengths): ([usize; 4], [usize; 4]),
        rounds: usize,
        outputs: &[usize],
    ) -> Result<(), CudaError> {
        let fill = |tensor: usize| {
            // SAFETY: the host keeps its patterns, and nobody writes to them.
            unsafe { memory.fill(places[tensor], lengths[tensor], pattern.part(tensor)) }
        };
        // SAFETY: forwarded to the caller.
        unsafe { self.begun.record_on(stream) }?;
        for tensor in 0..3 {
            fill(tensor)?;
        }
        let size = self.storage.size();
        for round in 0..rounds {
            for (index, program) in self.programs.iter().enumerate() {
                let is_sampled = round == 0 && !outputs.is_empty();
                if is_sampled && index > 0 {
                    fill(2)?;
                }
                let starts = program.starts();
                let at = |tensor: usize| memory.address().offset(places[tensor] + starts[tensor]);
                let [start, end] = &self.runs[round * self.programs.len() + index];
                // SAFETY: forwarded to the caller.
                unsafe { start.record_on(stream) }?;
                let workspace = memory.address().offset(places[3]);
                // SAFETY: the places are as long as the program asks for, and the stream's until it has done the work.
                unsafe { program.enqueue([at(0), at(1), at(2)], workspace) }.map_err(|failure| failure.error)?;
                // SAFETY: forwarded to the caller.
                unsafe { end.record_on(stream) }?;
                let Some(brought) = self.outputs.as_mut().filter(|_| is_sampled) else { continue };
                for (nth, output) in outputs.iter().enumerate() {
                    let (from, to) = (places[2] + starts[2] + output * size, (index * outputs.len() + nth) * size);
                    // SAFETY: the trial keeps the buffer until all is done, and reads it only then.
                    unsafe { memory.bring(from, size, brought, to) }?;
                }
            }
        }
        Ok(())
    }

    /// Its result, or `None` until all is done. Never waits.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the work before its end.
    pub fn outcome(&self) -> Result<Option<CourseResult>, CudaError> {
        if !self.done.is_done()? {
            return Ok(None);
        }
        let count = self.programs.len();
        let of_program = |index: usize| {
            let runs = self.runs.iter().skip(index).step_by(count.max(1));
            runs.map(|[start, end]| end.since(start)).collect()
        };
        let times = (0..count).map(of_program).collect::<Result<Vec<Vec<Nanos>>, CudaError>>()?;
        let values = self.outputs.as_deref().map_or(Vec::new(), |bytes| self.storage.decode(&bytes[..self.brought]));
        let each = values.len() / count.max(1);
        let outputs = (0..count).map(|index| values[index * each..(index + 1) * each].to_vec()).collect();
        let took = self.done.since(&self.begun)?;
        Ok(Some(CourseResult { times, took, outputs }))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let outputs = self.outputs.take();
        if self.done.is_done().unwrap_or(false) {
            lock(&self.buffers).extend(outputs);
        } else {
            std::mem::forget(std::mem::take(&mut self.programs));
            std::mem::forget(outputs);
        }
    }
}

fn lock(buffers: &Buffers) -> MutexGuard<'_, Vec<PinnedBuffer>> {
    buffers.lock().unwrap_or_else(PoisonError::into_inner)
}
