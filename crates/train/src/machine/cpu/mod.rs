//! The CPU as a machine: arenas in host memory, and streams as threads with queues.
//!
//! ```text
//! engine     compute, offload, record, wait ..          each call only appends to the queue of its stream
//! compute    | conv1 | relu | wait 0 . . . . | conv2 |
//! offload            | x -> host | record 0 |
//! ```
//!
//! Streams access the arenas through borrows that fail if they conflict ([`tightfit_cpu::arena`]), so a schedule that
//! lacks a wait ends in an error instead of wrong numbers. After the first failure, streams only record their marks, so
//! that none waits forever.

mod faults;
mod functions;
mod layers;
mod stream;

use std::ops::Range;
use std::sync::Arc;

use tightfit_conv::{Layout, Types};
use tightfit_cpu::CpuBackend;
use tightfit_cpu::arena::Arena;
use tightfit_plan::Stream;
use tightfit_units::Bytes;

use self::faults::{failed, refused};
pub use self::stream::Options;
use self::stream::{Queue, Shared, Work};
use super::{Iteration, Machine, Span, Task, TaskId};
use crate::{Error, host_memory};

/// The CPU: f32 only, with the algorithms of [`CpuBackend`].
#[derive(Debug)]
pub struct CpuMachine {
    backend: Arc<CpuBackend>,
    options: Options,
    tasks: Vec<Arc<Task>>,
    running: Option<Reservation>,
}

/// The state after memory was reserved. The queues come first, so that they are dropped before the data they work on.
#[derive(Debug)]
struct Reservation {
    /// In the order of [`Stream::ALL`].
    queues: Vec<Queue>,
    shared: Arc<Shared>,
}

impl CpuMachine {
    /// A machine without memory.
    pub fn new(options: Options) -> CpuMachine {
        let backend = Arc::new(CpuBackend::new(options.threads));
        CpuMachine { backend, options, tasks: Vec::new(), running: None }
    }

    fn running(&self) -> Result<&Reservation, Error> {
        self.running.as_ref().ok_or_else(|| failed("reserve", "no memory was reserved before the first step"))
    }

    fn enqueue(&self, stream: Stream, work: Work) -> Result<(), Error> {
        self.running()?.queues[stream.index()].push(work)
    }
}

impl Machine for CpuMachine {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn reserve(&mut self, device: Bytes, host: Bytes, events: usize) -> Result<(), Error> {
        if self.running.is_some() {
            return Err(failed("reserve", "memory was already reserved"));
        }
        // The device's memory is host memory too.
        host_memory::check(device).map_err(|error| match error {
            Error::HostMemory { needed, free, .. } => Error::DeviceMemory { needed, free, budget: free },
            other => other,
        })?;
        host_memory::check(device + host)?;
        let arena = |bytes: Bytes| Arena::new(bytes.0).map_err(|error| refused("reserve", error));
        let shared = Arc::new(Shared::new(arena(device)?, arena(host)?, events, self.options.clone()));
        let queue = |stream| Queue::start(stream, Arc::clone(&shared), Arc::clone(&self.backend));
        let queues = Stream::ALL.into_iter().map(queue).collect::<Result<_, _>>()?;
        self.running = Some(Reservation { queues, shared });
        Ok(())
    }

    fn prepare(&mut self, task: Task) -> Result<TaskId, Error> {
        if task.types != Types::F32 {
            return Err(Error::Types { machine: "cpu", types: task.types, instead: "f32, or the cuda backend" });
        }
        if task.layout != Layout::Nchw {
            let what = "the CPU computes layers in nchw only; use --layout nchw, or the cuda backend".to_owned();
            return Err(failed(&task.name, what));
        }
        layers::check(&self.backend, &task)?;
        self.tasks.push(Arc::new(task));
        Ok(TaskId(self.tasks.len() - 1))
    }

    fn compute(&mut self, task: TaskId, iteration: &Iteration) -> Result<(), Error> {
        let task = self.tasks.get(task.0).ok_or_else(|| failed("compute", format!("there is no task {}", task.0)))?;
        self.enqueue(task.stream, Work::Compute(Arc::clone(task), *iteration))
    }

    fn feed(&mut self, samples: &[f32], labels: &[u32]) -> Result<(), Error> {
        self.running()?.shared.feed(samples, labels);
        Ok(())
    }

    fn begin(&mut self, _: &Iteration) -> Result<bool, Error> {
        self.running()?.shared.begin();
        Ok(true)
    }

    fn offload(&mut self, stream: Stream, device: Range<u64>, host: Range<u64>) -> Result<(), Error> {
        self.enqueue(stream, Work::Offload { device, host })
    }

    fn prefetch(&mut self, stream: Stream, host: Range<u64>, device: Range<u64>) -> Result<(), Error> {
        self.enqueue(stream, Work::Prefetch { host, device })
    }

    fn poison(&mut self, stream: Stream, device: Range<u64>) -> Result<(), Error> {
        self.enqueue(stream, Work::Poison(device))
    }

    fn record(&mut self, stream: Stream, event: usize) -> Result<(), Error> {
        self.enqueue(stream, Work::Record(event))
    }

    fn wait(&mut self, stream: Stream, event: usize) -> Result<(), Error> {
        self.enqueue(stream, Work::Wait(event))
    }

    fn finish(&mut self) -> Result<(), Error> {
        let running = self.running()?;
        for queue in &running.queues {
            queue.drain()?;
        }
        running.shared.end_step()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.finish()?;
        let lent = self.running()?.shared.device.write(at..at + bytes.len() as u64);
        lent.map_err(|error| refused("write", error))?.copy_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error> {
        self.finish()?;
        let lent = self.running()?.shared.device.read(from).map_err(|error| refused("read", error))?;
        Ok(lent.to_vec())
    }

    fn read_host(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error> {
        self.finish()?;
        let lent = self.running()?.shared.host.read(from).map_err(|error| refused("read", error))?;
        Ok(lent.to_vec())
    }

    fn spans(&mut self) -> Vec<Span> {
        self.running.as_ref().map(|running| running.shared.spans()).unwrap_or_default()
    }

    fn high_water(&mut self) -> Result<Option<Bytes>, Error> {
        Ok(Some(Bytes(self.running()?.shared.device.high_water())))
    }
}
