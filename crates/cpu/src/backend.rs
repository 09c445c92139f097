//! The CPU as a [`Backend`]: looks up the table of algorithms, times them on random data, and runs configurations in
//! one workspace.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use tightfit_conv::backend::{Effort, Run, Scale, Tensors, sample};
use tightfit_conv::{
    Algorithm, Backend, Configuration, Device, Measurement, Offer, Operation, Problem, candidate as planned,
};
use tightfit_units::{Bytes, Error, Nanos};

use crate::call::Call;
use crate::method::{METHODS, Method};
use crate::shape::Shape;
use crate::team::Team;
use crate::{host_memory, machine};

/// Bytes of an element.
const FLOAT: usize = size_of::<f32>();

/// The CPU backend: f32, two and three spatial dimensions, all cores by default.
///
/// ```
/// use tightfit_conv::{Backend, Problem};
/// let problem: Problem = "forward n8 c16 h14 w14 k16 r3 s3 pad1 f32".parse()?;
/// let mut cpu = tightfit_cpu::CpuBackend::new(Some(2));
/// for offer in cpu.offers(&problem)? {
///     println!("{}: {:?}", offer.algorithm, offer.workspace);
/// }
/// # Ok::<(), tightfit_units::Error>(())
/// ```
#[derive(Debug)]
pub struct CpuBackend {
    device: Device,
    team: Team,
    /// Once set, measurements are left.
    stop: Option<Arc<AtomicBool>>,
    buffers: Buffers,
}

/// Random data to measure on, and the workspace: reused across measurements, and as large as the largest needed.
#[derive(Debug, Default)]
struct Buffers {
    data: Vec<f32>,
    other: Vec<f32>,
    output: Vec<f32>,
    workspace: Vec<f32>,
}

impl CpuBackend {
    /// A backend with this many threads; one per core if none is given.
    pub fn new(threads: Option<usize>) -> CpuBackend {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let team = Team::new(threads.unwrap_or_else(cores).max(1));
        CpuBackend { device: machine::device(team.threads()), team, stop: None, buffers: Buffers::default() }
    }

    /// The algorithm, and its workspace in floats.
    fn method(&self, problem: &Problem, algorithm: &Algorithm) -> Result<(&'static Method, usize), Error> {
        let refuse =
            |reason| Error::Refused { algorithm: algorithm.name().to_owned(), problem: problem.to_string(), reason };
        let method = Method::named(algorithm.name()).ok_or_else(|| {
            let names: Vec<_> = METHODS.iter().map(|method| method.name).collect();
            refuse(format!("the CPU has no such algorithm; it has {}", names.join(", ")))
        })?;
        Ok((method, method.workspace(problem, self.team.threads()).map_err(refuse)?))
    }

    /// Its threads, for the layers around the convolutions.
    pub fn team(&self) -> &Team {
        &self.team
    }

    /// Checks that an algorithm supports the problem within this many bytes of workspace.
    ///
    /// # Errors
    /// [`Error::Refused`] if it does not compute it; [`Error::Backend`] if it needs more workspace.
    pub fn check(&self, problem: &Problem, algorithm: &Algorithm, workspace_bytes: u64) -> Result<(), Error> {
        let (_, floats) = self.method(problem, algorithm)?;
        let (needed, given) = (Bytes::of(floats, FLOAT), Bytes(workspace_bytes));
        if needed <= given { Ok(()) } else { Err(self.too_little(problem, algorithm, needed, given)) }
    }

    fn too_little(&self, problem: &Problem, what: &dyn std::fmt::Display, needed: Bytes, given: Bytes) -> Error {
        let threads = self.team.threads();
        failure(format!(
            "{problem}: {what} was planned with {given} of workspace and needs {needed} with {threads} threads; measure it \
             with the same number"
        ))
    }

    /// Runs a configuration in place, in the caller's workspace; output = alpha · result + beta · output.
    ///
    /// `inputs` are data and other, in the order of [`Tensors`]. Micro-batches are neighboring samples, and slices are read and written in place in
    /// the whole tensors; the calls of backward-filter add to one output.
    ///
    /// # Errors
    /// [`Error::Refused`] for an algorithm that does not compute the problem; [`Error::Backend`] if a slice does not
    /// have the problem's size, or the workspace is smaller than an algorithm needs.
    pub fn run_in(
        &self,
        problem: &Problem,
        configuration: &Configuration,
        (data, other): (&[f32], &[f32]),
        output: &mut [f32],
        scale: Scale,
        workspace: &mut [f32],
    ) -> Result<(), Error> {
        let planned = configuration.calls(problem)?;
        check(problem, [data.len(), other.len(), output.len()])?;
        let mut calls = Vec::with_capacity(planned.len());
        for call in planned {
            let (method, floats) = self.method(&call.part.problem, &call.algorithm)?;
            calls.push((call, method, floats));
        }
        let needed = calls.iter().map(|call| call.2).max().unwrap_or(0);
        if needed > workspace.len() {
            let (needed, given) = (Bytes::of(needed, FLOAT), Bytes::of(workspace.len(), FLOAT));
            return Err(self.too_little(problem, configuration, needed, given));
        }
        for (planned::Call { part, adds, .. }, method, floats) in &calls {
            let [data_length, other_length, length] = spans(&part.problem);
            let call = Call {
                problem: &part.problem,
                shape: Shape::new(&part.problem),
                team: &self.team,
                data: &data[part.data..][..data_length],
                other: &other[part.other..][..other_length],
                // The sum is scaled by the caller's beta once.
                scale: if *adds { Scale { beta: 1.0, ..scale } } else { scale },
            };
            (method.run)(&call, &mut output[part.output..][..length], &mut workspace[..*floats]);
        }
        Ok(())
    }
}

impl Backend for CpuBackend {
    fn device(&self) -> &Device {
        &self.device
    }

    fn free_memory(&self) -> Option<Bytes> {
        host_memory::free().map(|free| free.bytes)
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        let offer = |method: &Method| Offer {
            algorithm: Algorithm::new(method.name),
            notes: method.notes,
            workspace: method.workspace(problem, self.team.threads()).map(|floats| Bytes::of(floats, FLOAT)),
        };
        Ok(METHODS.iter().map(offer).collect())
    }

    fn stop_on(&mut self, stop: &Arc<AtomicBool>) {
        self.stop = Some(Arc::clone(stop));
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        self.method(problem, algorithm).map(|(_, floats)| Bytes::of(floats, FLOAT))
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error> {
        let (method, floats) = self.method(problem, algorithm)?;
        let [data, other, output] = spans(problem);
        let team = self.team.until(self.stop.clone());
        let buffers = &mut self.buffers;
        for (buffer, length, what) in [
            (&mut buffers.data, data, "data"),
            (&mut buffers.other, other, "data"),
            (&mut buffers.output, output, "the output"),
            (&mut buffers.workspace, floats, "the workspace"),
        ] {
            // Filling gigabytes takes a second.
            if team.is_left() {
                return Err(Error::Interrupted);
            }
            extend(buffer, length).map_err(|source| no_memory(problem, what, length, source))?;
        }
        let places = places(problem, [buffers.data.len(), buffers.other.len(), buffers.output.len()]);
        let (shape, mut calls) = (Shape::new(problem), 0);
        let mut run = || {
            let [in_data, in_other, in_output] = places[calls % places.len()];
            calls += 1;
            let call = Call {
                problem,
                shape,
                team: &team,
                data: &buffers.data[in_data..in_data + data],
                other: &buffers.other[in_other..in_other + other],
                scale: Scale::OVERWRITE,
            };
            let output = &mut buffers.output[in_output..in_output + output];
            let start = Instant::now();
            (method.run)(&call, output, &mut buffers.workspace[..floats]);
            if team.is_left() { Err(Error::Interrupted) } else { Ok(Nanos::from(start.elapsed())) }
        };
        let mut warm_up = effort.warm_up;
        let times = sample(&Effort { warm_up: 0, ..*effort }, || {
            let mut time = run()?;
            for _ in 0..std::mem::take(&mut warm_up) {
                if time < Effort::LONG_CALL {
                    time = run()?;
                }
            }
            Ok(time)
        })?;
        Ok(Measurement {
            algorithm: algorithm.clone(),
            micro_batch: problem.batch(),
            time: times.median,
            single: None,
            workspace: Bytes::of(floats, FLOAT),
            spread: times.spread,
            repeats: times.repeats,
            notes: method.notes,
        })
    }

    fn run(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        tensors: Tensors<'_>,
        scale: Scale,
    ) -> Result<Run, Error> {
        let length = tensors.output.len();
        let given = usize::try_from(configuration.workspace().0).unwrap_or(usize::MAX) / FLOAT;
        let mut workspace = Vec::new();
        extend(&mut workspace, given).map_err(|source| no_memory(problem, "the workspace", given, source))?;
        let mut output = Vec::new();
        output.try_reserve_exact(length).map_err(|source| no_memory(problem, "the output", length, source))?;
        output.extend_from_slice(tensors.output);
        let start = Instant::now();
        self.run_in(problem, configuration, (tensors.data, tensors.other), &mut output, scale, &mut workspace)?;
        Ok(Run { output, time: start.elapsed().into(), single: None })
    }
}

/// Elements from the first to the last of the two inputs and the output of an operation, in the order of [`Tensors`].
fn spans(problem: &Problem) -> [usize; 3] {
    let (x, w, y) = (problem.input_span(), problem.filter_len(), problem.output_span());
    match problem.operation() {
        Operation::Forward => [x, w, y],
        Operation::BackwardData => [y, w, x],
        Operation::BackwardFilter => [x, y, w],
    }
}

/// Where timed calls begin in buffers of these lengths: data, other and output of one call after another. A slice of a large
/// sample runs on other rows each time, so it is timed so: on the same ones, its data would stay in the caches.
fn places(problem: &Problem, lengths: [usize; 3]) -> Vec<[usize; 3]> {
    let convolution = problem.convolution();
    let step = |own: [usize; 3], whole: [usize; 3], strides: [usize; 5]| {
        let cut = (0..3).find(|&axis| own[axis] < whole[axis]);
        cut.map_or(0, |axis| own[axis] * strides[2 + axis])
    };
    let x = step(convolution.inputs(), problem.input_in(), problem.input_strides());
    let y = step(convolution.outputs(), problem.output_in(), problem.output_strides());
    let steps = match problem.operation() {
        Operation::Forward => [x, 0, y],
        Operation::BackwardData => [y, 0, x],
        Operation::BackwardFilter => [x, y, 0],
    };
    let spans = spans(problem);
    let room =
        (0..3).filter_map(|tensor| lengths[tensor].saturating_sub(spans[tensor]).checked_div(steps[tensor])).min();
    (0..=room.unwrap_or(0)).map(|place| steps.map(|step| place * step)).collect()
}

/// Checks that the tensors have the problem's sizes.
fn check(problem: &Problem, given: [usize; 3]) -> Result<(), Error> {
    let needed = spans(problem);
    if given == needed {
        return Ok(());
    }
    Err(failure(format!("{problem}: data, other and output have {given:?} elements, expected {needed:?}")))
}

/// Makes a buffer at least this long, with random numbers from -1 to 1 that are the same in every run.
fn extend(buffer: &mut Vec<f32>, length: usize) -> Result<(), std::collections::TryReserveError> {
    if buffer.len() >= length {
        return Ok(());
    }
    // Free the old buffer first: its content need not be copied.
    *buffer = Vec::new();
    buffer.try_reserve_exact(length)?;
    let mut state = 0x9e37_79b9u32;
    buffer.extend((0..length).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    }));
    Ok(())
}

fn failure(what: String) -> Error {
    Error::Backend { backend: "cpu".to_owned(), what, source: None }
}

fn no_memory(problem: &Problem, what: &str, length: usize, source: std::collections::TryReserveError) -> Error {
    let bytes = Bytes::of(length, FLOAT);
    let what = format!("{problem}: could not allocate {bytes} of host memory for {what}");
    Error::Backend { backend: "cpu".to_owned(), what, source: Some(Box::new(source)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_timed_on_one_range_after_another() {
        // Rows of 8, four of sixteen; of the output eight of thirty-two, in channels of 256.
        let slice: Problem = "backward-data n1 c2 h8 w8 k3 r2 s2 stride2 f32 xh32 yh16".parse().unwrap();
        let [data, other, output] = spans(&slice);
        let steps = [0, 1, 2].map(|place| [place * 4 * 4, 0, place * 8 * 8]);
        assert_eq!(places(&slice, [data + 47, other, output + 1000]), steps);
        assert_eq!(places(&slice, [data, other, output]), [[0; 3]]);
        let whole: Problem = "forward n2 c2 h8 w8 k3 r3 s3 pad1 f32".parse().unwrap();
        let lengths = spans(&whole).map(|length| 9 * length);
        assert_eq!(places(&whole, lengths), [[0; 3]]);
    }
}
