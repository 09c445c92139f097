//! What a schedule is carried out on: an arena, a pinned host arena, three streams, and the layers.

pub mod cpu;
pub mod cuda;

use std::ops::Range;

use tightfit_core::network::{LayerKind, Sgd, Shape};
use tightfit_core::plan::{Access, Mode, Parameter, Pass, Role, Stream};
use tightfit_core::{Bytes, Configuration, Nanos, Types};

use crate::Error;

/// A compute step with everything that a machine has to know of it: made from the schedule once, before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Name of the layer, for messages and traces.
    pub name: String,
    /// What it computes.
    pub kind: LayerKind,
    /// Which of its computations.
    pub pass: Pass,
    /// One sample of each input.
    pub inputs: Vec<Shape>,
    /// One sample of the output.
    pub output: Shape,
    /// The first sample computed: 0, unless the schedule works in slices.
    pub first: usize,
    /// Samples computed: those of the mini-batch, or of one slice.
    pub samples: usize,
    /// Samples of the whole mini-batch, over which the loss is a mean.
    pub batch: usize,
    /// Number types of maps and arithmetic.
    pub types: Types,
    /// Parts of the blocks of W, dW and momentum.
    pub parameters: Vec<Parameter>,
    /// Where each operand lies.
    pub operands: Vec<Place>,
    /// How a convolution is carried out.
    pub configuration: Option<Configuration>,
    /// A forward pass that is run again: see [`tightfit_core::plan::Compute::again`].
    pub again: bool,
    /// Whether the layer behaves as in inference: no dropout, running statistics.
    pub mode: Mode,
    /// Tells dropouts apart: the layer's place in its network.
    pub index: usize,
}

/// An operand in the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// What it is to the layer.
    pub role: Role,
    /// What is done with it.
    pub access: Access,
    /// Bytes in the device arena.
    pub bytes: Range<u64>,
}

impl Task {
    /// Where the operand of this role lies.
    pub fn place(&self, role: Role) -> Option<&Place> {
        self.operands.iter().find(|place| place.role == role)
    }
}

/// A task that a machine has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub usize);

/// What changes from training step to training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// Counted from 0.
    pub step: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// How weights follow their gradients.
    pub sgd: Sgd,
    /// Factor of the loss before going backward, undone by the solver: keeps small gradients from vanishing in 16 bits.
    pub loss_scale: f32,
}

/// When a piece of work ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where.
    pub stream: Stream,
    /// Its place among the tasks and copies that were enqueued there in the same step, counted from 0.
    pub place: usize,
    /// When it began, since the step's first enqueued work.
    pub start: Nanos,
    /// When it ended.
    pub end: Nanos,
}

/// What carries a schedule out.
///
/// `reserve`, `prepare` and `write` come before the first step. From then on `compute`, `copy`, `record` and `wait` only
/// enqueue, in the order of the schedule, and nothing allocates; `finish` waits for all three streams.
pub trait Machine {
    /// Its name in messages: `cpu` or `cuda`.
    fn name(&self) -> &'static str;

    /// Takes both arenas, once; their content is undefined.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] or [`Error::HostMemory`] before anything is taken.
    fn reserve(&mut self, device: Bytes, host: Bytes, events: usize) -> Result<(), Error>;

    /// Makes everything that the task will need: descriptors, plans. Allocates here or never.
    ///
    /// # Errors
    /// [`Error::Core`] or [`Error::Step`] if the machine cannot compute it; [`Error::BesideArena`] if the device has too
    /// little memory for that.
    fn prepare(&mut self, task: Task) -> Result<TaskId, Error>;

    /// Enqueues a task on the compute stream.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn compute(&mut self, task: TaskId, iteration: &Iteration) -> Result<(), Error>;

    /// Hands over the next mini-batch, which the input layer's forward pass then brings to the device: samples one after
    /// another (c, h, w each), and a class for each. Waits until the one before has been taken.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn feed(&mut self, samples: &[f32], labels: &[u32]) -> Result<(), Error>;

    /// Enqueues a copy of bytes of the device arena to the host arena.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn offload(&mut self, stream: Stream, device: Range<u64>, host: Range<u64>) -> Result<(), Error>;

    /// Enqueues a copy of bytes of the host arena to the device arena.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn prefetch(&mut self, stream: Stream, host: Range<u64>, device: Range<u64>) -> Result<(), Error>;

    /// Enqueues overwriting bytes of the device arena with ones, which read as NaN in every number type: what is read
    /// before it is written, or after it was given back, then shows.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn poison(&mut self, stream: Stream, device: Range<u64>) -> Result<(), Error>;

    /// Marks a point in a stream; the number is one of those reserved, used once a step.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn record(&mut self, stream: Stream, event: usize) -> Result<(), Error>;

    /// The stream does not go on before the point marked in this step has been passed.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn wait(&mut self, stream: Stream, event: usize) -> Result<(), Error>;

    /// Waits for all three streams on the host.
    ///
    /// # Errors
    /// The first [`Error::Step`] of anything that was enqueued.
    fn finish(&mut self) -> Result<(), Error>;

    /// Writes bytes into the device arena; waits for everything before.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Reads bytes of the device arena; waits for everything before.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn read(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error>;

    /// Reads bytes of the host arena; waits for everything before.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn read_host(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error>;

    /// A step begins. False: the machine has the whole step recorded and has enqueued it; nothing of it need be handed over.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn begin(&mut self, _iteration: &Iteration) -> Result<bool, Error> {
        Ok(true)
    }

    /// All of a step was handed over, or none of it had to be.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn end(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// When each task and copy of the last step ran; empty if the machine was not made to keep that. Asked after
    /// `finish`.
    fn spans(&mut self) -> Vec<Span> {
        Vec::new()
    }

    /// Where the last byte of the device arena ends that was used so far, as the machine has seen it; none where it did not
    /// look.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn high_water(&mut self) -> Result<Option<Bytes>, Error> {
        Ok(None)
    }
}

impl<M: Machine + ?Sized> Machine for &mut M {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn reserve(&mut self, device: Bytes, host: Bytes, events: usize) -> Result<(), Error> {
        (**self).reserve(device, host, events)
    }

    fn prepare(&mut self, task: Task) -> Result<TaskId, Error> {
        (**self).prepare(task)
    }

    fn compute(&mut self, task: TaskId, iteration: &Iteration) -> Result<(), Error> {
        (**self).compute(task, iteration)
    }

    fn feed(&mut self, samples: &[f32], labels: &[u32]) -> Result<(), Error> {
        (**self).feed(samples, labels)
    }

    fn offload(&mut self, stream: Stream, device: Range<u64>, host: Range<u64>) -> Result<(), Error> {
        (**self).offload(stream, device, host)
    }

    fn prefetch(&mut self, stream: Stream, host: Range<u64>, device: Range<u64>) -> Result<(), Error> {
        (**self).prefetch(stream, host, device)
    }

    fn poison(&mut self, stream: Stream, device: Range<u64>) -> Result<(), Error> {
        (**self).poison(stream, device)
    }

    fn record(&mut self, stream: Stream, event: usize) -> Result<(), Error> {
        (**self).record(stream, event)
    }

    fn wait(&mut self, stream: Stream, event: usize) -> Result<(), Error> {
        (**self).wait(stream, event)
    }

    fn begin(&mut self, iteration: &Iteration) -> Result<bool, Error> {
        (**self).begin(iteration)
    }

    fn end(&mut self) -> Result<(), Error> {
        (**self).end()
    }

    fn finish(&mut self) -> Result<(), Error> {
        (**self).finish()
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        (**self).write(at, bytes)
    }

    fn read(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error> {
        (**self).read(from)
    }

    fn read_host(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error> {
        (**self).read_host(from)
    }

    fn spans(&mut self) -> Vec<Span> {
        (**self).spans()
    }

    fn high_water(&mut self) -> Result<Option<Bytes>, Error> {
        (**self).high_water()
    }
}
