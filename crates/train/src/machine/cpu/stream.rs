//! A stream: a thread that processes a queue of work in order.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tightfit_cpu::arena::Arena;
use tightfit_cpu::{CpuBackend, random};
use tightfit_plan::Stream;
use tightfit_units::Nanos;

use super::faults::{failed, refused};
use super::layers::{self, MiniBatch};
use crate::Error;
use crate::machine::{Iteration, Span, Task};

/// Additional behavior for tests and checks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Threads of a stream that computes; `None` for one per core.
    pub threads: Option<usize>,
    /// The maximum pause before each task or copy of a stream, in the order of [`Stream::ALL`]; actual pauses are
    /// random.
    pub delays: [Duration; Stream::ALL.len()],
    /// Whether to compare every copy with its source, and data that comes back from the host with the data sent there.
    pub checksums: bool,
    /// Whether to record the spans of tasks and copies.
    pub spans: bool,
}

/// The capacity of a queue, beyond which the engine waits.
const QUEUED: usize = 256;

/// One item of work.
#[derive(Debug)]
pub enum Work {
    Compute(Arc<Task>, Iteration),
    Offload {
        device: Range<u64>,
        host: Range<u64>,
    },
    Prefetch {
        host: Range<u64>,
        device: Range<u64>,
    },
    Poison(Range<u64>),
    Record(usize),
    Wait(usize),
    /// Report that everything before is done.
    Drain(SyncSender<()>),
}

/// The state shared by all streams.
#[derive(Debug)]
pub struct Shared {
    pub device: Arena,
    pub host: Arena,
    options: Options,
    /// The mini-batch of this step, and the one that was fed for the next.
    batch: Mutex<MiniBatch>,
    next: Mutex<MiniBatch>,
    /// The marks passed in this step.
    marks: Mutex<Vec<bool>>,
    passed: Condvar,
    failure: Mutex<Option<Error>>,
    /// Checksums of the data copied to each place in the host arena.
    sums: Mutex<HashMap<(u64, u64), u64>>,
    /// The beginning of the step, and the spans since.
    spans: Mutex<(Option<Instant>, Vec<Span>)>,
}

/// Locks a mutex. Poisoning is harmless, because no call that could panic is made under a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn new(device: Arena, host: Arena, events: usize, options: Options) -> Shared {
        Shared {
            device,
            host,
            options,
            batch: Mutex::default(),
            next: Mutex::default(),
            marks: Mutex::new(vec![false; events]),
            passed: Condvar::new(),
            failure: Mutex::default(),
            sums: Mutex::default(),
            spans: Mutex::default(),
        }
    }

    /// Stores a mini-batch for the next step.
    pub fn feed(&self, samples: &[f32], labels: &[u32]) {
        let mut next = lock(&self.next);
        next.0.clear();
        next.0.extend_from_slice(samples);
        next.1.clear();
        next.1.extend_from_slice(labels);
    }

    /// Begins a step with the mini-batch that was fed.
    pub fn begin(&self) {
        std::mem::swap(&mut *lock(&self.batch), &mut *lock(&self.next));
        let mut spans = lock(&self.spans);
        spans.0 = None;
        spans.1.clear();
    }

    /// The mini-batch of this step.
    fn batch(&self) -> MutexGuard<'_, MiniBatch> {
        lock(&self.batch)
    }

    /// Clears the marks and returns the first failure.
    pub fn end_step(&self) -> Result<(), Error> {
        lock(&self.marks).fill(false);
        lock(&self.failure).take().map_or(Ok(()), Err)
    }

    pub fn spans(&self) -> Vec<Span> {
        lock(&self.spans).1.clone()
    }

    /// Does an item of work unless something has failed, and records its span or failure.
    fn carry_out(&self, backend: &CpuBackend, stream: Stream, place: &mut usize, work: &Work) {
        if lock(&self.failure).is_some() {
            return;
        }
        let counts = !matches!(work, Work::Poison(_));
        let begin = Instant::now();
        let origin = *lock(&self.spans).0.get_or_insert(begin);
        let result = catch_unwind(AssertUnwindSafe(|| match work {
            Work::Compute(task, iteration) => layers::run(&self.device, || self.batch(), backend, task, iteration),
            Work::Offload { device, host } => self.copy(true, device, host),
            Work::Prefetch { host, device } => self.copy(false, device, host),
            Work::Poison(range) => self.device.overwrite(range.clone(), 0xff).map_err(|e| refused("poison", e)),
            Work::Record(_) | Work::Wait(_) | Work::Drain(_) => Ok(()),
        }));
        let error = match result {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
                let step = if let Work::Compute(task, _) = work { &task.name } else { "copy" };
                Some(failed(step, format!("panicked: {}", text.unwrap_or("without a message"))))
            }
        };
        if let Some(error) = error {
            lock(&self.failure).get_or_insert(error);
        }
        if counts {
            if self.options.spans {
                let since = |at: Instant| Nanos::from(at.saturating_duration_since(origin));
                let span = Span { stream, place: *place, start: since(begin), end: since(Instant::now()) };
                lock(&self.spans).1.push(span);
            }
            *place += 1;
        }
    }

    /// Copies bytes between the arenas, and compares them on request.
    fn copy(&self, out: bool, device: &Range<u64>, host: &Range<u64>) -> Result<(), Error> {
        let name = if out { "offload" } else { "prefetch" };
        let lend = |error| refused(name, error);
        let (from, to, at) =
            if out { (&self.device, &self.host, (device, host)) } else { (&self.host, &self.device, (host, device)) };
        let (source, mut target) = (from.read(at.0.clone()).map_err(lend)?, to.write(at.1.clone()).map_err(lend)?);
        if source.len() != target.len() {
            return Err(failed(name, format!("{} bytes to {}", source.len(), target.len())));
        }
        target.copy_from_slice(&source);
        if self.options.checksums {
            let sum = checksum(&target);
            let place = (host.start, host.end);
            let sent = if out { None } else { lock(&self.sums).get(&place).copied() };
            if out {
                lock(&self.sums).insert(place, sum);
            } else if sent != Some(sum) {
                return Err(failed(name, format!("host bytes {host:?} are not what was offloaded there")));
            }
            if checksum(&source) != sum {
                return Err(failed(name, format!("device bytes {device:?} changed while they were copied")));
            }
        }
        Ok(())
    }

    /// Marks a point.
    fn record(&self, event: usize) {
        if let Some(mark) = lock(&self.marks).get_mut(event) {
            *mark = true;
        }
        self.passed.notify_all();
    }

    /// Waits for a marked point; ignores points that were not reserved.
    fn wait(&self, event: usize) {
        let mut marks = lock(&self.marks);
        while !*marks.get(event).unwrap_or(&true) {
            marks = self.passed.wait(marks).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// FNV-1a over words of eight bytes: any single changed word changes it.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, word: u64| (sum ^ word).wrapping_mul(0x0100_0000_01b3);
    let (words, rest) = bytes.as_chunks();
    let sum = words.iter().fold(0xcbf2_9ce4_8422_2325, |sum, word| step(sum, u64::from_ne_bytes(*word)));
    rest.iter().fold(sum, |sum, byte| step(sum, u64::from(*byte)))
}

/// A stream's queue and its thread.
#[derive(Debug)]
pub struct Queue {
    // Dropped before joining the thread, which ends when its queue does.
    work: Option<SyncSender<Work>>,
    thread: Option<JoinHandle<()>>,
}

impl Queue {
    /// Starts a stream.
    pub fn start(stream: Stream, shared: Arc<Shared>, backend: Arc<CpuBackend>) -> Result<Queue, Error> {
        let (work, queue) = sync_channel(QUEUED);
        let name = stream.name().to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || serve(stream, &shared, &backend, &queue));
        let thread = thread.map_err(|source| Error::Step {
            machine: "cpu",
            step: "reserve".to_owned(),
            what: "could not start a stream's thread".to_owned(),
            source: Some(Box::new(source)),
        })?;
        Ok(Queue { work: Some(work), thread: Some(thread) })
    }

    /// Appends work.
    pub fn push(&self, work: Work) -> Result<(), Error> {
        let sent = self.work.as_ref().map(|queue| queue.send(work));
        if let Some(Ok(())) = sent { Ok(()) } else { Err(failed("enqueue", "the stream's thread has ended")) }
    }

    /// Waits until all work is done.
    pub fn drain(&self) -> Result<(), Error> {
        let (done, wait) = sync_channel(1);
        self.push(Work::Drain(done))?;
        wait.recv().map_err(|_| failed("finish", "the stream's thread has ended"))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // Panics inside work are reported as errors; there is no way to report others.
            let _ = thread.join();
        }
    }
}

/// Processes work until the queue closes.
fn serve(stream: Stream, shared: &Shared, backend: &CpuBackend, queue: &Receiver<Work>) {
    let longest = shared.options.delays[stream.index()];
    let key = random::key(&[stream.index() as u64]);
    let (mut place, mut drawn) = (0, 0);
    for work in queue {
        match work {
            Work::Record(event) => shared.record(event),
            Work::Wait(event) => shared.wait(event),
            Work::Drain(done) => {
                place = 0;
                // The receiver may be gone.
                let _ = done.send(());
            }
            work => {
                if !longest.is_zero() {
                    drawn += 1;
                    std::thread::sleep(longest.mul_f32(random::uniform(key, drawn).abs()));
                }
                shared.carry_out(backend, stream, &mut place, &work);
            }
        }
    }
}
