//! Carries a configuration out: tensors to the device, its micro-batches one after another in one workspace, the output
//! back. It runs twice, because a first run loads kernels: the second is timed and its output is the result.

use tightfit_core::profile::{Run, Scale, Tensors};
use tightfit_core::{Bytes, Configuration, Error, Nanos, Problem};

use super::CudaBackend;
use super::program::Program;
use super::scratch::Guarded;
use crate::convolution::tensor_bytes;
use crate::safe::{DeviceBuffer, Event, Graph};
use crate::{CudaError, transfer};

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
        let mut workspace = Guarded::new(&context, program.workspace(), stream)?;
        let mut time = Nanos::ZERO;
        for _ in 0..2 {
            output.slice_mut(0..before.len())?.upload(&before)?;
            let enqueued = self.enqueue(program, [&data, &other], &mut output, &mut workspace);
            // Waited for in any case: memory must not be given up or read under work that still uses it.
            let waited = stream.synchronize();
            let [start, end] = enqueued?;
            waited?;
            time = end.since(&start)?;
        }
        if !workspace.is_intact()? {
            let workspace = Bytes(program.workspace() as u64);
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
        program: &Program,
        [data, other]: [&DeviceBuffer; 2],
        output: &mut DeviceBuffer,
        workspace: &mut Guarded,
    ) -> Result<[Event; 2], CudaError> {
        let stream = self.handle.stream();
        let (scratch, inside) = workspace.inside();
        let scratch = scratch.slice(inside)?;
        let length = output.len();
        let output = *output.slice_mut(0..length)?;
        let launches = program.launches([data.slice(0..data.len())?, other.slice(0..other.len())?, output, scratch])?;
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
