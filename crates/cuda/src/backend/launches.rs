//! A prepared configuration: its steps, its tensors on the device, and the calls on both.

use std::ops::Range;
use std::sync::Arc;

use tightfit_conv::backend::{Scale, Tensors};
use tightfit_conv::candidate::Call;
use tightfit_conv::problem::{Part, Storage};
use tightfit_conv::{Algorithm, Configuration, Problem};
use tightfit_units::{Bytes, Error};

use super::CudaBackend;
use super::measure::TimedStep;
use super::steps::{Places, Step, sum_bytes, sums_in_scratch};
use crate::CudaError;
use crate::convolution::{Elementwise, Launch, MOST_ALIGNMENT, PreparedAlgorithm, tensor_bytes};
use crate::safe::{Context, DeviceBuffer, Graph, Plan, Slice, Stream};

/// The steps of a configuration in the order in which they run.
pub(super) struct Program {
    problem: Problem,
    steps: Vec<(Step, Part)>,
    elementwise: Option<Arc<Elementwise>>,
    /// Whether the f32 sum is converted at the end.
    narrows: bool,
    /// Bytes of workspace, the f32 sum included.
    pub workspace: usize,
}

impl CudaBackend {
    /// Prepares every micro-batch, so that running builds nothing.
    ///
    /// # Errors
    /// [`Error::Refused`] if an algorithm is not supported, or needs more workspace than the configuration states.
    pub(super) fn program(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        scale: Scale,
    ) -> Result<Program, Error> {
        let failed = |error: CudaError| error.while_doing(format_args!("{configuration} on {problem}"));
        let summing = sums_in_scratch(problem) && configuration.is_divided();
        let elementwise = if summing { Some(self.elementwise(problem).map_err(failed)?) } else { None };
        let calls = configuration.calls(problem)?;
        let mut steps = Vec::with_capacity(calls.len());
        for (place, Call { part, algorithm, adds }) in calls.into_iter().enumerate() {
            let (typed, family) = self.resolve(&part.problem, &algorithm)?;
            let step = if summing {
                self.summing_step(&typed, &family, scale, place == 0)
            } else {
                let beta = if adds { 1.0 } else { scale.beta };
                self.plain_step(&typed, &family, Scale { beta, ..scale })
            };
            steps.push((step.map_err(|error| self.failed(&typed, &algorithm, error))?, part));
        }
        let workspace = usize::try_from(configuration.workspace().0).unwrap_or(usize::MAX);
        let needed = steps.iter().map(|(step, _)| step.workspace()).max().unwrap_or(0)
            + if summing { sum_bytes(problem) } else { 0 };
        if needed > workspace {
            let (needed, workspace) = (Bytes(needed as u64), Bytes(workspace as u64));
            let reason = format!("needs {needed} with alpha {} and beta {}, over {workspace}", scale.alpha, scale.beta);
            return Err(Error::Refused { algorithm: configuration.to_string(), problem: problem.to_string(), reason });
        }
        Ok(Program { problem: *problem, steps, elementwise, narrows: true, workspace })
    }

    /// The same for buffers whose addresses are multiples of `base`.
    pub(super) fn program_at(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        scale: Scale,
        base: usize,
    ) -> Result<Program, Error> {
        self.base = base.clamp(1, MOST_ALIGNMENT);
        let program = self.program(problem, configuration, scale);
        self.base = MOST_ALIGNMENT;
        program
    }

    /// Prepares one micro-batch of a division alone, as measuring times it.
    ///
    /// # Errors
    /// [`Error::Refused`] if the algorithm is not supported.
    pub(super) fn part_program(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Program, Error> {
        let (typed, family) = self.resolve(problem, algorithm)?;
        let timed = self.timed_step(&typed, &family).map_err(|error| self.failed(problem, algorithm, error))?;
        let TimedStep { step, elementwise } = timed;
        let workspace = step.workspace() + if elementwise.is_some() { sum_bytes(problem) } else { 0 };
        Ok(Program { problem: *problem, steps: vec![(step, whole(problem))], elementwise, narrows: false, workspace })
    }

    /// A plan of the host program's as the only step.
    pub(super) fn program_of_plan(&self, problem: &Problem, plan: Plan) -> Program {
        let call = PreparedAlgorithm::theirs(plan);
        let workspace = call.workspace();
        let steps = vec![(Step::of_plan(call), whole(problem))];
        Program { problem: *problem, steps, elementwise: None, narrows: false, workspace }
    }

    /// Prepares the extra work of a division, on top of its micro-batches. `None` if there is no such work.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Backend`] if cuDNN has no engine for it.
    pub(super) fn division_program(&mut self, problem: &Problem) -> Result<Option<Program>, Error> {
        if !sums_in_scratch(problem) {
            return Ok(None);
        }
        let elementwise = self.elementwise(problem);
        let elementwise = elementwise.map_err(|error| error.while_doing(format_args!("the sum of {problem}")))?;
        let workspace = sum_bytes(problem);
        Ok(Some(Program {
            problem: *problem,
            steps: Vec::new(),
            elementwise: Some(elementwise),
            narrows: true,
            workspace,
        }))
    }
}

impl Program {
    /// The calls of all steps on these tensors and this workspace.
    ///
    /// # Errors
    /// The errors of [`Step::bind`].
    pub fn bind<'a>(&'a self, tensors: &'a mut Resident, workspace: Slice<'a>) -> Result<Vec<Launch<'a>>, CudaError> {
        let Resident { data, other, output, .. } = tensors;
        let length = output.len();
        let output = *output.slice_mut(0..length)?;
        self.launches([data.slice(0..data.len())?, other.slice(0..other.len())?, output, workspace])
    }

    /// The calls of all steps on this memory: data, other and output as in [`Tensors`], then the workspace.
    ///
    /// # Errors
    /// The errors of [`Step::bind`].
    pub fn launches<'a>(
        &'a self,
        [data, other, output, workspace]: [Slice<'a>; 4],
    ) -> Result<Vec<Launch<'a>>, CudaError> {
        let split = if self.elementwise.is_some() { sum_bytes(&self.problem) } else { 0 };
        let (sum, rest) = (workspace.part(0..split)?, workspace.part(split..workspace.len())?);
        let mut launches = Vec::with_capacity(self.steps.len() + 2);
        for (step, part) in &self.steps {
            let bytes = place(part);
            let places = Places {
                data: data.part(bytes.data)?,
                other: other.part(bytes.other)?,
                output: output.part(bytes.output)?,
                sum: self.elementwise.is_some().then_some(sum),
                workspace: rest,
            };
            step.bind(places, self.elementwise.as_deref(), &mut launches)?;
        }
        if let Some(steps) = self.elementwise.as_ref().filter(|_| self.narrows) {
            launches.push(Launch::Plan(steps.narrow.bind(&[sum], output, rest)?));
        }
        Ok(launches)
    }
}

/// A problem's tensors on the device.
pub(super) struct Resident {
    data: DeviceBuffer,
    other: DeviceBuffer,
    output: DeviceBuffer,
    before: Vec<u8>,
    storage: Storage,
}

impl Resident {
    /// Uploads data and other; the output is undefined until [`Resident::restore`].
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, problem: &Problem, tensors: &Tensors<'_>) -> Result<Resident, CudaError> {
        let storage = problem.types().storage();
        let upload = |values: &[f32]| -> Result<DeviceBuffer, CudaError> {
            let bytes = storage.encode(values);
            let mut buffer = DeviceBuffer::new(context, bytes.len())?;
            buffer.slice_mut(0..bytes.len())?.upload(&bytes)?;
            Ok(buffer)
        };
        let before = storage.encode(tensors.output);
        let (data, other) = (upload(tensors.data)?, upload(tensors.other)?);
        Ok(Resident { data, other, output: DeviceBuffer::new(context, before.len())?, before, storage })
    }

    /// Restores the output's content from before the first run.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn restore(&mut self) -> Result<(), CudaError> {
        self.output.slice_mut(0..self.before.len())?.upload(&self.before)
    }

    /// The output, once all work is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn download(&self) -> Result<Vec<f32>, CudaError> {
        let mut bytes = vec![0; self.before.len()];
        self.output.slice(0..bytes.len())?.download(&mut bytes)?;
        Ok(self.storage.decode(&bytes))
    }
}

/// Calls to be enqueued on a stream any number of times, one by one or as a captured graph. Dropping it waits for the
/// stream, so that plans and memory outlive their use.
pub(super) struct Work<'a> {
    stream: &'a Stream,
    launches: Vec<Launch<'a>>,
    captured: Option<Graph>,
}

impl<'a> Work<'a> {
    /// The work of these launches, whose handle works on `stream`.
    ///
    /// # Errors
    /// The errors of capturing, if requested.
    pub fn new(stream: &'a Stream, launches: Vec<Launch<'a>>, capture: bool) -> Result<Work<'a>, CudaError> {
        let mut work = Work { stream, launches, captured: None };
        if capture {
            work.captured = Some(Graph::capture(stream, || work.enqueue())?);
        }
        Ok(work)
    }

    /// Enqueues all of it once.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`]; [`CudaError::Driver`].
    pub fn enqueue(&self) -> Result<(), CudaError> {
        match &self.captured {
            None => self.launches.iter().try_for_each(Launch::enqueue),
            // SAFETY: the launches hold the captured work, and `drop` waits for the stream before they go.
            Some(graph) => unsafe { graph.launch(self.stream) },
        }
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        let waited = self.stream.synchronize();
        self.stream.context().record(waited);
    }
}

/// Bytes that a part reads and writes.
pub(super) struct Bounds {
    /// x; for backward-data dy.
    pub data: Range<usize>,
    /// w; for backward-filter dy.
    pub other: Range<usize>,
    /// y, dx or dw.
    pub output: Range<usize>,
}

/// Where a part lies in the tensors of the whole.
pub(super) fn place(part: &Part) -> Bounds {
    let storage = part.problem.types().storage();
    let [data, other, output] = tensor_bytes(&part.problem, storage);
    let at = |first: usize, bytes: usize| first * storage.size()..first * storage.size() + bytes;
    Bounds { data: at(part.data, data), other: at(part.other, other), output: at(part.output, output) }
}

/// A problem as the only part of itself.
fn whole(problem: &Problem) -> Part {
    Part { problem: *problem, data: 0, other: 0, output: 0 }
}

/// Checks that configuration and tensors match the problem.
///
/// # Errors
/// [`Error::Backend`] naming the mismatch.
pub(super) fn check(problem: &Problem, configuration: &Configuration, tensors: &Tensors<'_>) -> Result<(), Error> {
    let bad = |what: String| Err(Error::Backend { backend: "cuda".to_owned(), what, source: None });
    if configuration.batch() != problem.batch() {
        return bad(format!(
            "{configuration} has {} samples, but {problem} has {}",
            configuration.batch(),
            problem.batch()
        ));
    }
    let wanted = tensor_bytes(problem, problem.types().storage()).map(|bytes| bytes / problem.types().storage().size());
    let given = [tensors.data.len(), tensors.other.len(), tensors.output.len()];
    for (name, (given, wanted)) in ["data", "other", "output"].into_iter().zip(given.into_iter().zip(wanted)) {
        if given != wanted {
            return bad(format!("{name} of {problem}: expected {wanted} elements, got {given}"));
        }
    }
    Ok(())
}
