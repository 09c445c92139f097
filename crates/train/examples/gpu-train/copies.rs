//! How much kernels slow down during copies: steps of one network with everything resident, alone and while copies keep the
//! link to the host busy.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tightfit_conv::Types;
use tightfit_cuda::safe::{Context, DeviceBuffer, Event, PinnedArena, Region, Stream};
use tightfit_cuda::{CudaBackend, CudaError, Options};
use tightfit_network::{Rule, Sgd};
use tightfit_plan::{Algorithms, Checked, CostModel, Mode, Options as PlanOptions, Policy, Workload, plan};
use tightfit_profile::Cache;
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Poison, Solver};
use tightfit_units::Nanos;

use crate::Failure;
use crate::cases::{batch, case, kernels};
use crate::time::{Span, busy, of_layer};

/// Bytes of one copy, as of a large map.
const PIECE_BYTES: usize = 64 << 20;
/// Copies that tell how fast they are alone.
const PIECES_ALONE: usize = 32;

/// Copies in one direction, on a separate stream.
struct Copies {
    to_host: bool,
    stream: Stream,
    host: PinnedArena,
    device: Region,
    marks: [Event; 2],
}

impl Copies {
    fn new(context: &Arc<Context>, to_host: bool) -> Result<Copies, Failure> {
        let device = Region::new(&Arc::new(DeviceBuffer::new(context, PIECE_BYTES)?), 0..PIECE_BYTES)?;
        let marks = [Event::untimed(context)?, Event::untimed(context)?];
        let host = PinnedArena::new(context, PIECE_BYTES)?;
        Ok(Copies { to_host, stream: Stream::new(context)?, host, device, marks })
    }

    /// Copies `pieces` pieces, with two underway at any time: more would delay the step's own transfers. Returns gigabytes
    /// per second.
    fn run(&self, pieces: usize) -> Result<f64, CudaError> {
        let begun = Instant::now();
        for piece in 0..pieces {
            if self.to_host {
                self.host.offload(&self.device, 0..PIECE_BYTES, &self.stream)?;
            } else {
                self.host.prefetch(0..PIECE_BYTES, &self.device, &self.stream)?;
            }
            self.marks[piece % 2].record(&self.stream)?;
            if piece > 0 {
                self.marks[(piece + 1) % 2].synchronize()?;
            }
        }
        self.stream.synchronize()?;
        Ok((pieces * PIECE_BYTES) as f64 / 1e9 / begun.elapsed().as_secs_f64())
    }
}

/// Runs `work` while `pieces` pieces are copied each way. Returns its result and the rate of each direction.
fn while_copying<T>(
    copies: &[&Copies],
    pieces: usize,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, Vec<f64>), Failure> {
    std::thread::scope(|scope| {
        let running: Vec<_> = copies.iter().map(|copies| scope.spawn(|| copies.run(pieces))).collect();
        let done = work();
        let mut rates = Vec::new();
        for thread in running {
            rates.push(thread.join().map_err(|_| "the copies panicked")??);
        }
        Ok((done?, rates))
    })
}

/// Times of one step.
struct Times {
    /// On the device, the mini-batch's upload included.
    step: Nanos,
    /// The sum over all computations, without the gaps between them.
    kernels: Nanos,
}

fn step(
    engine: &mut Engine<&mut CudaMachine>,
    schedule: &Checked,
    (samples, labels): (&[f32], &[u32]),
) -> Result<Times, Failure> {
    engine.step(samples, labels)?;
    let step = engine.machine().step_time()?;
    let spans = engine.spans().into_iter();
    let spans: Vec<Span> = spans.filter_map(|(at, span)| of_layer(schedule, at, [span.start, span.end])).collect();
    Ok(Times { step, kernels: busy(&spans) })
}

/// Appends a line of JSON for each case.
pub fn copies(cache: &Path, results: &Path, steps: usize, cases: &[&str]) -> Result<(), Failure> {
    let cache = Cache::open(cache)?;
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(results)?;
    for text in cases {
        let mut line = slowed(&cache, steps, text).unwrap_or_else(|error| json!({ "failed": error.to_string() }));
        line["case"] = (*text).into();
        line["variant"] = "copies".into();
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn slowed(cache: &Cache, steps: usize, text: &str) -> Result<Value, Failure> {
    let (network, size) = case(text)?;
    let workload = Workload::new(&network, size, Types::F32, Mode::Training)?;
    let kernels = kernels(&workload, cache)?;
    let (policy, algorithms) = (Policy::Baseline, Algorithms::Performance);
    let options = PlanOptions { policy, algorithms, divide: false, ..PlanOptions::default() };
    let schedule = plan(&workload.step(&kernels, &CostModel::h200())?, &CostModel::h200(), &options)?.schedule;
    let mut machine = CudaMachine::open(&Options::default(), Modes { trace: true, ..Modes::default() })?;
    let solver = Solver { rule: Rule::Sgd(Sgd { learning_rate: 1e-6, ..Sgd::default() }), ..Solver::default() };
    let mut engine = Engine::new(&workload, &schedule, &mut machine, solver, Poison::Nothing)?;
    let (samples, labels) = batch(&workload);
    let mut step = || step(&mut engine, &schedule, (&samples, &labels));
    step()?;
    let alone = median((0..steps).map(|_| step()).collect::<Result<_, _>>()?)?;

    let backend = CudaBackend::open(&Options::default())?;
    let context = backend.handle().context();
    let (to_host, from_host) = (Copies::new(context, true)?, Copies::new(context, false)?);
    let mut line = json!({"step_us": alone.step.as_micros(), "kernels_us": alone.kernels.as_micros(), "steps": steps});
    for (name, copies) in
        [("to_host", &[&to_host][..]), ("from_host", &[&from_host]), ("both", &[&to_host, &from_host])]
    {
        line[name] = beside(&alone, copies, steps, &mut step)?;
    }
    Ok(line)
}

/// Times copies alone, then steps during copies. The copies begin before a step and end after its computations.
fn beside(
    alone: &Times,
    copies: &[&Copies],
    steps: usize,
    step: &mut impl FnMut() -> Result<Times, Failure>,
) -> Result<Value, Failure> {
    let ((), free) = while_copying(copies, PIECES_ALONE, || Ok(()))?;
    let fastest = free.iter().copied().fold(0.0, f64::max);
    // A step waits in the end for everything on the device, so copies without end would never let it go.
    let pieces = (1.5 * alone.step.as_micros() * 1e3 * fastest / PIECE_BYTES as f64).ceil() as usize + 2;
    let (mut found, mut moved) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let (times, rates) = while_copying(copies, pieces, &mut *step)?;
        found.push(times);
        moved.push(rates);
    }
    let with = median(found)?;
    Ok(json!({
        "step_us": with.step.as_micros(), "kernels_us": with.kernels.as_micros(),
        "step_slowdown": with.step.ratio(alone.step), "kernels_slowdown": with.kernels.ratio(alone.kernels),
        "alone_gb_per_s": free, "beside_gb_per_s": moved,
    }))
}

/// The step in the middle by the time of its computations.
fn median(mut times: Vec<Times>) -> Result<Times, Failure> {
    times.sort_by_key(|times| times.kernels);
    let middle = times.len() / 2;
    times.into_iter().nth(middle).ok_or_else(|| "no steps to take".into())
}
