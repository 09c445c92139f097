//! Carries a configuration out: tensors to the device, its micro-batches one after another in one workspace, the output
//! back. It runs twice, because a first run loads kernels: the second is timed and its output is the result.

use tightfit_core::profile::{Run, Scale, Tensors};
use tightfit_core::{Bytes, Candidate, Configuration, Error, Nanos, Operation, Problem};

use super::CudaBackend;
use super::scratch::Guarded;
use super::steps::{Places, Step, sum_bytes, sums_in_scratch};
use crate::convolution::{Elementwise, tensor_bytes};
use crate::safe::{DeviceBuffer, Event, Graph};
use crate::{CudaError, transfer};

/// The steps of a configuration in the order in which they run.
struct Program {
    steps: Vec<(Step, usize)>,
    elementwise: Option<std::sync::Arc<Elementwise>>,
    workspace: usize,
}

impl CudaBackend {
    pub(super) fn run_configuration(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        tensors: Tensors<'_>,
        scale: Scale,
    ) -> Result<Run, Error> {
        check(problem, configuration, &tensors)?;
        let program = self.program(problem, configuration, scale)?;
        // The memory that measuring keeps is in the way of a run that fills the device.
        self.scratch.release()?;
        let names = format!("{configuration} on {problem}");
        self.execute(problem, &program, &names, tensors).map_err(|error| {
            let error = match self.handle.context().synchronize() {
                Err(lost) if lost.is_sticky() => lost,
                _ => error,
            };
            error.while_doing(&names)
        })
    }

    /// Sets every micro-batch up, so that nothing is left to build once they run.
    fn program(&mut self, problem: &Problem, configuration: &Configuration, scale: Scale) -> Result<Program, Error> {
        let failed = |error: CudaError| error.while_doing(format_args!("{configuration} on {problem}"));
        let summing = sums_in_scratch(problem) && configuration.is_divided();
        let elementwise = if summing { Some(self.elementwise(problem).map_err(failed)?) } else { None };
        // By falling alignment, so that each micro-batch starts at a multiple of its own.
        let mut parts: Vec<&Candidate> = configuration.parts().iter().collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.micro_batch.trailing_zeros()));
        let mut steps = Vec::with_capacity(parts.len());
        for (place, part) in parts.into_iter().enumerate() {
            let (typed, family) = self.resolve(&problem.with_batch(part.micro_batch)?, &part.algorithm)?;
            let adds_up = problem.operation() == Operation::BackwardFilter;
            let step = if summing {
                self.summing_step(&typed, &family, scale, place == 0)
            } else {
                let beta = if adds_up && place > 0 { 1.0 } else { scale.beta };
                self.plain_step(&typed, &family, Scale { beta, ..scale })
            };
            let step = step.map_err(|error| self.failed(&typed, &part.algorithm, error))?;
            steps.push((step, part.micro_batch));
        }
        let workspace = usize::try_from(configuration.workspace().0).unwrap_or(usize::MAX);
        let needed = steps.iter().map(|(step, _)| step.workspace()).max().unwrap_or(0)
            + if summing { sum_bytes(problem) } else { 0 };
        if needed > workspace {
            let (needed, workspace) = (Bytes(needed as u64), Bytes(workspace as u64));
            let reason = format!("needs {needed} with alpha {} and beta {}, over {workspace}", scale.alpha, scale.beta);
            return Err(Error::Refused { algorithm: configuration.to_string(), problem: Box::new(*problem), reason });
        }
        Ok(Program { steps, elementwise, workspace })
    }

    fn execute(
        &mut self,
        problem: &Problem,
        program: &Program,
        names: &str,
        tensors: Tensors<'_>,
    ) -> Result<Run, CudaError> {
        let (context, stream) = (self.handle.context().clone(), self.handle.stream());
        let storage = problem.types().storage();
        let upload = |values: &[f32]| -> Result<DeviceBuffer, CudaError> {
            let bytes = transfer::encode(values, storage);
            let mut buffer = DeviceBuffer::new(&context, bytes.len())?;
            buffer.slice_mut(0..bytes.len())?.upload(&bytes)?;
            Ok(buffer)
        };
        let (data, other) = (upload(tensors.data)?, upload(tensors.other)?);
        let before = transfer::encode(tensors.output, storage);
        let mut output = DeviceBuffer::new(&context, before.len())?;
        let mut workspace = Guarded::new(&context, program.workspace, stream)?;
        let mut time = Nanos::ZERO;
        for _ in 0..2 {
            output.slice_mut(0..before.len())?.upload(&before)?;
            let enqueued = self.enqueue(problem, program, [&data, &other], &mut output, &mut workspace);
            // Waited for in any case: memory must not be given up or read under work that still uses it.
            let waited = stream.synchronize();
            let [start, end] = enqueued?;
            waited?;
            time = end.since(&start)?;
        }
        if !workspace.is_intact()? {
            let workspace = Bytes(program.workspace as u64);
            return Err(CudaError::Overrun { algorithm: names.to_owned(), workspace });
        }
        let mut bytes = before;
        output.slice(0..bytes.len())?.download(&mut bytes)?;
        Ok(Run { output: transfer::decode(&bytes, storage), time })
    }

    /// Enqueues all steps between two events, which it gives back; waits for the device only where a graph is captured,
    /// so that the graph outlives its launch.
    fn enqueue(
        &self,
        problem: &Problem,
        program: &Program,
        [data, other]: [&DeviceBuffer; 2],
        output: &mut DeviceBuffer,
        workspace: &mut Guarded,
    ) -> Result<[Event; 2], CudaError> {
        let stream = self.handle.stream();
        let (all, inside) = workspace.inside();
        let split = inside.start + if program.elementwise.is_some() { sum_bytes(problem) } else { 0 };
        let (sum, rest) = (all.slice(inside.start..split)?, all.slice(split..inside.end)?);
        let length = output.len();
        let output = *output.slice_mut(0..length)?;
        let mut launches = Vec::new();
        let mut done = 0;
        for (step, samples) in &program.steps {
            let per_sample = Samples::of(problem, done, *samples);
            let places = Places {
                data: data.slice(per_sample.data)?,
                other: other.slice(per_sample.other)?,
                output: output.part(per_sample.output)?,
                sum: program.elementwise.is_some().then_some(sum),
                workspace: rest,
            };
            step.bind(places, program.elementwise.as_deref(), &mut launches)?;
            done += samples;
        }
        if let Some(steps) = &program.elementwise {
            launches.push(crate::convolution::Launch::Plan(steps.narrow.bind(&[sum], output, rest)?));
        }
        let events = [Event::new(stream.context())?, Event::new(stream.context())?];
        let all = || launches.iter().try_for_each(|launch| launch.enqueue());
        if self.capture {
            let graph = Graph::capture(stream, all)?;
            events[0].record(stream)?;
            // SAFETY: the memory is borrowed and the plans are the program's until this function returns, and it returns
            // after the stream has done the work.
            unsafe { graph.launch(stream) }?;
            events[1].record(stream)?;
            stream.synchronize()?;
        } else {
            events[0].record(stream)?;
            all()?;
            events[1].record(stream)?;
        }
        Ok(events)
    }
}

/// Bytes that a micro-batch reads and writes.
pub(super) struct Samples {
    /// x; for backward-data dy.
    pub data: std::ops::Range<usize>,
    /// w; for backward-filter dy.
    pub other: std::ops::Range<usize>,
    /// y, dx or dw.
    pub output: std::ops::Range<usize>,
}

impl Samples {
    /// Those of `samples` samples after the first `done`. Filters are whole in every micro-batch.
    pub fn of(problem: &Problem, done: usize, samples: usize) -> Samples {
        let convolution = problem.convolution();
        let size = problem.types().storage().size();
        let batch = |sample: usize| done * sample * size..(done + samples) * sample * size;
        let (x, y) = (batch(convolution.input_len()), batch(convolution.output_len()));
        let w = 0..problem.filter_len() * size;
        let (data, other, output) = match problem.operation() {
            Operation::Forward => (x, w, y),
            Operation::BackwardData => (y, w, x),
            Operation::BackwardFilter => (x, y, w),
        };
        Samples { data, other, output }
    }
}

/// Whether configuration and tensors are the problem's.
fn check(problem: &Problem, configuration: &Configuration, tensors: &Tensors<'_>) -> Result<(), Error> {
    let bad = |what: String| Err(Error::Backend { backend: "cuda".to_owned(), what, source: None });
    if configuration.batch() != problem.batch() {
        return bad(format!(
            "{configuration} has {} samples, {problem} has {}",
            configuration.batch(),
            problem.batch()
        ));
    }
    let wanted = tensor_bytes(problem, problem.types().storage()).map(|bytes| bytes / problem.types().storage().size());
    let given = [tensors.data.len(), tensors.other.len(), tensors.output.len()];
    for (name, (given, wanted)) in ["data", "other", "output"].into_iter().zip(given.into_iter().zip(wanted)) {
        if given != wanted {
            return bad(format!("{name} of {problem} has {wanted} elements, {given} were given"));
        }
    }
    Ok(())
}
