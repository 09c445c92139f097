//! Runs configurations: tensors to the device, micro-batches one after another in one workspace, outputs back.
//! Independent configurations run concurrently, each on its own stream and in its own segment:
//!
//! ```text
//! host      enqueue a, b, c                              |        wait
//! stream 0   fork |--- a ---|--- a ---|            join  |
//! stream 1        |--- b ---|................. b's event |
//! stream 2        |--- c ---|--- c ---|--- c ---|  c's   |
//! ```
//!
//! Times a series of runs, as measuring does; the outputs come from one more run on restored tensors.

use tightfit_conv::backend::{Effort, Run, Task, Together};
use tightfit_units::{Bytes, Error, Nanos};

use super::CudaBackend;
use super::launches::{Program, Resident, Work, check};
use super::segments::Segments;
use super::timing::{Enqueue, time, time_once};
use crate::CudaError;
use crate::safe::{Event, Stream};

/// Maximum number of streams. Each has a cuDNN handle, which takes tens of MiB.
const MAX_STREAMS: usize = 8;

/// The results of a set of programs.
struct Results {
    outputs: Vec<Vec<f32>>,
    time: Nanos,
    single: Nanos,
}

impl CudaBackend {
    pub(super) fn run_configuration(&mut self, task: &Task<'_>) -> Result<Run, Error> {
        let Results { outputs, time, single } = self.run_tasks(std::slice::from_ref(task))?;
        let output = outputs.into_iter().next().unwrap_or_default();
        Ok(Run { output, time, single: Some(single) })
    }

    pub(super) fn run_side_by_side(&mut self, tasks: &[Task<'_>]) -> Result<Together, Error> {
        let Results { outputs, time, .. } = self.run_tasks(tasks)?;
        Ok(Together { outputs, time, streams: tasks.len().min(MAX_STREAMS) })
    }

    /// Runs the first task on this backend's stream and every other on the stream of a sibling.
    fn run_tasks(&mut self, tasks: &[Task<'_>]) -> Result<Results, Error> {
        for Task { problem, configuration, tensors, .. } in tasks {
            check(problem, configuration, tensors)?;
        }
        let siblings = tasks.len().clamp(1, MAX_STREAMS) - 1;
        while self.siblings.len() < siblings {
            let sibling = self.sibling().map_err(|error| error.while_doing("opening another stream"))?;
            self.siblings.push(sibling);
        }
        let mut programs = Vec::with_capacity(tasks.len());
        for (place, Task { problem, configuration, scale, .. }) in tasks.iter().enumerate() {
            let lane = match place % (siblings + 1) {
                0 => &mut *self,
                other => &mut self.siblings[other - 1],
            };
            programs.push(lane.program(problem, configuration, *scale)?);
        }
        // A run that fills the device needs the memory kept for measuring.
        self.scratch.release()?;
        let named = |task: &Task<'_>| format!("{} on {}", task.configuration, task.problem);
        let names = tasks.iter().map(named).collect::<Vec<_>>().join(" and ");
        self.execute(tasks, &programs, &names).map_err(|error| {
            let error = match self.handle.context().synchronize() {
                Err(lost) if lost.is_sticky() => lost,
                _ => error,
            };
            error.while_doing(&names)
        })
    }

    fn execute(&self, tasks: &[Task<'_>], programs: &[Program], names: &str) -> Result<Results, CudaError> {
        let context = self.handle.context();
        let resident = |task: &Task<'_>| Resident::new(context, task.problem, &task.tensors);
        let mut tensors: Vec<Resident> = tasks.iter().map(resident).collect::<Result<_, _>>()?;
        let lengths: Vec<usize> = programs.iter().map(|program| program.workspace).collect();
        let workspace = Segments::new(context, &lengths, self.handle.stream())?;
        let series = if self.untimed {
            None
        } else {
            let series = |stream: &Stream, enqueue: Enqueue<'_>| time(stream, &Effort::default(), enqueue);
            Some(self.with_work(programs, &mut tensors, &workspace, series)?)
        };
        let once = self.with_work(programs, &mut tensors, &workspace, |stream, enqueue| time_once(stream, enqueue))?;
        let (time, single) = series.map_or((once, once), |(sample, single)| (sample.median, single));
        if !workspace.are_intact()? {
            let workspace = Bytes(lengths.iter().sum::<usize>() as u64);
            return Err(CudaError::Overrun { algorithm: names.to_owned(), workspace });
        }
        let outputs = tensors.iter().map(Resident::download).collect::<Result<_, _>>()?;
        Ok(Results { outputs, time, single })
    }

    /// Binds the programs to restored tensors, and hands `body` the stream that waits for all of them and what enqueues
    /// all of them once.
    fn with_work<T>(
        &self,
        programs: &[Program],
        tensors: &mut [Resident],
        workspace: &Segments,
        body: impl FnOnce(&Stream, Enqueue<'_>) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let all = std::iter::once(&self.handle).chain(self.siblings.iter().map(|sibling| &sibling.handle));
        let streams: Vec<&Stream> = all.take(programs.len().max(1)).map(|handle| handle.stream()).collect();
        let mut work = Vec::with_capacity(programs.len());
        for (place, (program, tensors)) in programs.iter().zip(tensors).enumerate() {
            tensors.restore()?;
            let launches = program.bind(tensors, workspace.segment(place)?)?;
            work.push(Work::new(streams[place % streams.len()], launches, self.capture)?);
        }
        let events: Vec<Event> = streams.iter().map(|stream| Event::new(stream.context())).collect::<Result<_, _>>()?;
        body(self.handle.stream(), &|| enqueue(&work, &streams, &events))
    }
}

/// Enqueues all work once: the streams begin together, and the first ends after all others.
fn enqueue(work: &[Work<'_>], streams: &[&Stream], events: &[Event]) -> Result<(), CudaError> {
    let ([first, others @ ..], [fork, ends @ ..]) = (streams, events) else { return Ok(()) };
    if !others.is_empty() {
        fork.record(first)?;
    }
    for stream in others {
        stream.wait(fork)?;
    }
    for work in work {
        work.enqueue()?;
    }
    for (stream, end) in others.iter().zip(ends) {
        end.record(stream)?;
        first.wait(end)?;
    }
    Ok(())
}
