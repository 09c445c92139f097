//! Machines run schedules: each has an arena, a pinned host arena, streams, and the layers.

pub mod cpu;
pub mod cuda;

use std::ops::Range;

use tightfit_conv::{Configuration, Layout, Types};
use tightfit_network::{LayerKind, Rule, Shape};
use tightfit_plan::step::Phase;
use tightfit_plan::{Access, Mode, Order, Parameter, Pass, Role, Stream};
use tightfit_units::{Bytes, Nanos};

use crate::Error;

/// A computation with everything a machine needs, made from the schedule once before the first step.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// Name of the layer, for messages and traces.
    pub name: String,
    /// The stream that it runs on, one that computes.
    pub stream: Stream,
    /// The kind of layer.
    pub kind: LayerKind,
    /// The pass.
    pub pass: Pass,
    /// Whether a ReLU over its output is computed with it.
    pub relu: bool,
    /// The share of its work.
    pub phase: Phase,
    /// Shape of one sample of each input.
    pub inputs: Vec<Shape>,
    /// Shape of one sample of the output.
    pub output: Shape,
    /// The first sample to compute: 0, unless the schedule works in parts of the mini-batch.
    pub first: usize,
    /// Number of samples to compute: the mini-batch, or a part of it.
    pub samples: usize,
    /// Samples of the whole mini-batch; the loss is their mean.
    pub batch: usize,
    /// Samples of the same pass and phase that earlier tasks of the step compute.
    pub before: usize,
    /// Number types of maps and arithmetic.
    pub types: Types,
    /// Order of the dimensions of maps and filters.
    pub layout: Layout,
    /// Order of the elements of one sample of the output.
    pub order: Order,
    /// Parts of the blocks of W, dW and momentum.
    pub parameters: Vec<Parameter>,
    /// The place of each operand.
    pub operands: Vec<Operand>,
    /// The configuration of a convolution.
    pub configuration: Option<Configuration>,
    /// Whether this is a rerun; see [`tightfit_plan::Compute::again`].
    pub again: bool,
    /// Whether the layer behaves as in inference: no dropout, running statistics.
    pub mode: Mode,
    /// The layer's index, which gives each dropout its own random numbers.
    pub index: usize,
}

/// An operand in the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Its role in the layer.
    pub role: Role,
    /// How it is accessed.
    pub access: Access,
    /// Bytes in the device arena.
    pub bytes: Range<u64>,
}

impl Operand {
    /// Whether the operand is written.
    pub fn is_changed(&self) -> bool {
        self.access != Access::Read
    }
}

impl Task {
    /// The place of the operand with this role.
    pub fn place(&self, role: Role) -> Option<&Operand> {
        self.operands.iter().find(|place| place.role == role)
    }
}

/// A task that a machine has prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaskId(pub usize);

/// The values that change with each training step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// Counted from 0.
    pub step: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// The solver's update rule.
    pub rule: Rule,
    /// Factor of the loss before the backward passes, which the solver divides out; keeps small gradients from
    /// vanishing in 16 bits.
    pub loss_scale: f32,
}

/// The time span of one task or copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The stream it ran on.
    pub stream: Stream,
    /// Its index among the tasks and copies enqueued there in the same step.
    pub place: usize,
    /// Its start, since the step's first enqueued work.
    pub start: Nanos,
    /// Its end.
    pub end: Nanos,
}

/// Runs the commands of a schedule.
///
/// Call `reserve`, `prepare` and `write` before the first step. From then on, `compute`, `offload`, `prefetch`,
/// `record` and `wait` only enqueue, in schedule order, and nothing allocates; `finish` waits for all streams.
pub trait Machine {
    /// Its name in messages: `cpu` or `cuda`.
    fn name(&self) -> &'static str;

    /// Allocates both arenas, once; their content is undefined.
    ///
    /// # Errors
    /// [`Error::DeviceMemory`] or [`Error::HostMemory`] before anything is allocated.
    fn reserve(&mut self, device: Bytes, host: Bytes, events: usize) -> Result<(), Error>;

    /// Prepares everything the task needs, such as descriptors and plans. All allocation happens here.
    ///
    /// # Errors
    /// [`Error::Core`] or [`Error::Step`] if the machine cannot compute it; [`Error::LibraryMemory`] if the device has
    /// too little memory for that.
    fn prepare(&mut self, task: Task) -> Result<TaskId, Error>;

    /// Enqueues a task on its stream.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn compute(&mut self, task: TaskId, iteration: &Iteration) -> Result<(), Error>;

    /// Feeds the mini-batch of the next step to begin, which the input layer's forward pass uploads to the device: samples
    /// one after another (c, h, w each), and a class for each. May be called while a step runs, all of whose commands were
    /// sent; waits until that step has uploaded its own.
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

    /// Enqueues filling bytes of the device arena with ones, which are NaN in every number type. This exposes reads
    /// before the first write or after the release.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn poison(&mut self, stream: Stream, device: Range<u64>) -> Result<(), Error>;

    /// Marks a point in a stream; each reserved number is used once per step.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn record(&mut self, stream: Stream, event: usize) -> Result<(), Error>;

    /// Makes the stream wait until the point marked in this step has been passed.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn wait(&mut self, stream: Stream, event: usize) -> Result<(), Error>;

    /// Waits for all streams on the host.
    ///
    /// # Errors
    /// The first [`Error::Step`] of any enqueued work.
    fn finish(&mut self) -> Result<(), Error>;

    /// Writes bytes into the device arena, after waiting for all earlier work.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Reads bytes of the device arena, after waiting for all earlier work.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn read(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error>;

    /// Reads bytes of the host arena, after waiting for all earlier work.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn read_host(&mut self, from: Range<u64>) -> Result<Vec<u8>, Error>;

    /// Begins a step. Returns false if the machine has recorded the step and has already enqueued all of it, so that no
    /// commands are needed.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn begin(&mut self, _iteration: &Iteration) -> Result<bool, Error> {
        Ok(true)
    }

    /// Ends a step: all of its commands were sent, or none were needed.
    ///
    /// # Errors
    /// [`Error::Step`].
    fn end(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// The spans of all tasks and copies of the last step; empty if the machine does not record them. Call it after
    /// `finish`.
    fn spans(&mut self) -> Vec<Span> {
        Vec::new()
    }

    /// The end of the highest byte of the device arena used so far; `None` if the machine does not track it.
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
