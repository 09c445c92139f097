//! The time of a step under every policy, the used part of the arena, and the memory outside it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tightfit_conv::Types;
use tightfit_cuda::Options;
use tightfit_network::{LayerKind, Rule, Sgd};
use tightfit_plan::step::{GroupId, Resource};
use tightfit_plan::{
    ALIGNMENT, Action, Algorithms, Budgets, Checked, CostModel, Fronts, Mode, Options as PlanOptions, Plan, Policy,
    Schedule, Workload, plan,
};
use tightfit_profile::Cache;
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Machine, Poison, Solver};
use tightfit_units::{Bytes, Error, Nanos};

use crate::Failure;
use crate::cases::{batch, case, kernels};

/// Bytes of the whole card that are left for libraries, scratch memory and the buffers of a mini-batch.
const SPARE_BYTES: Bytes = Bytes(1 << 30);
/// Pinned bytes at most.
const HOST: Bytes = Bytes(100 << 30);
/// Steps longer than this are timed once, after one that warms up.
const SLOW_STEP: Nanos = Nanos(1_000_000_000);

/// One of the compared variants.
struct Variant {
    name: &'static str,
    policy: Policy,
    algorithms: Algorithms,
    divide: bool,
    budget: Bytes,
    /// Whether that is all the card has.
    whole: bool,
}

/// Under a budget and under the whole card, the most important ones first.
fn variants(budget: Bytes, card: Bytes) -> Vec<Variant> {
    let (m, p, fit) = (Algorithms::Memory, Algorithms::Performance, Algorithms::Fit);
    let variant = |whole| {
        let budget = if whole { card } else { budget };
        move |(name, policy, algorithms, divide)| Variant { name, policy, algorithms, divide, budget, whole }
    };
    let least = [("oracle", Policy::Baseline, p, false)].map(variant(true));
    let undivided = [("dynamic", Policy::VdnnDynamic, p, false), ("overlap", Policy::Overlap, fit, false)];
    let fastest = [("all(p)", Policy::VdnnAll, p, false), ("conv(p)", Policy::VdnnConv, p, false)];
    let divided =
        [("dynamic divided", Policy::VdnnDynamic, fit, true), ("overlap divided", Policy::Overlap, fit, true)];
    let under = [undivided, fastest, divided].map(|some| some.map(variant(false)));
    let whole = [undivided, divided].map(|some| some.map(variant(true)));
    let slow = [
        ("all(m)", Policy::VdnnAll, m, false),
        ("conv(m)", Policy::VdnnConv, m, false),
        ("baseline divided", Policy::Baseline, fit, true),
        ("all divided", Policy::VdnnAll, fit, true),
        ("conv divided", Policy::VdnnConv, fit, true),
    ]
    .map(variant(false));
    least.into_iter().chain(under.into_iter().chain(whole).flatten()).chain(slow).collect()
}

/// Appends a line of JSON for each variant of each case, as soon as it is known; begins none once they have taken `limit`.
pub fn time(
    cache: &Path,
    results: &Path,
    budget: Bytes,
    steps: usize,
    limit: Duration,
    cases: &[&str],
) -> Result<(), Failure> {
    let cache = Cache::open(cache)?;
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(results)?;
    let mut machine = CudaMachine::open(&Options::default(), Modes { watch: true, ..Modes::default() })?;
    for text in cases {
        let started = Instant::now();
        // The arena of the case before would be in the way of measuring.
        machine.reserve(Bytes::ZERO, Bytes::ZERO, 0)?;
        let (network, size) = case(text)?;
        let workload = Workload::new(&network, size, Types::F32, Mode::Training)?;
        let kernels = kernels(&workload, &cache)?;
        let variants = variants(budget, machine.free()?.saturating_sub(SPARE_BYTES));
        let plans = plans(&workload, &kernels, &variants);
        // All use the largest pinned arena: it takes long to get.
        let host = plans.iter().flatten().map(|(plan, _)| plan.host).max().unwrap_or_default();
        machine.reserve(Bytes::ZERO, host, 0)?;
        let (samples, labels) = batch(&workload);
        println!("{text}: {:.1} s of preparation", started.elapsed().as_secs_f64());
        let started = Instant::now();
        let mut write = |name: &str, budget: Bytes, mut line: Value| {
            line["case"] = (*text).into();
            line["variant"] = name.into();
            line["budget_bytes"] = budget.0.into();
            writeln!(out, "{line}")
        };
        for (variant, plan) in variants.iter().zip(&plans) {
            let mut line = match plan {
                Err(error) => json!({ "refused": error.to_string() }),
                Ok(_) if started.elapsed() > limit => json!({ "skipped": format!("after {limit:?}") }),
                Ok((plan, planning)) => {
                    let line = measure(&workload, plan, &mut machine, steps, (&samples, &labels));
                    let mut line = line.unwrap_or_else(|error| json!({ "failed": error.to_string() }));
                    line["plan_s"] = planning.as_secs_f64().into();
                    line
                }
            };
            line["whole"] = variant.whole.into();
            write(variant.name, variant.budget, line)?;
        }
        for policy in Policy::ALL {
            if started.elapsed() > limit {
                break;
            }
            let line = refusal(&workload, &kernels, policy, &mut machine)
                .unwrap_or_else(|error| json!({ "failed": error.to_string() }));
            write(&format!("least {policy}"), line["least_bytes"].as_u64().map(Bytes).unwrap_or_default(), line)?;
        }
    }
    Ok(())
}

/// The plan of each variant and the time that planning took, all at once.
fn plans(workload: &Workload<'_>, kernels: &Fronts, variants: &[Variant]) -> Vec<Result<(Plan, Duration), Error>> {
    let costs = CostModel::h200();
    let planned = |variant: &Variant| {
        let &Variant { policy, algorithms, divide, budget, .. } = variant;
        let started = Instant::now();
        let options = PlanOptions { policy, algorithms, divide, budget, host_budget: HOST, ..PlanOptions::default() };
        Ok((plan(&workload.step(kernels, &costs)?, &costs, &options)?, started.elapsed()))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = variants.iter().map(|variant| scope.spawn(|| planned(variant))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|plan| plan.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    })
}

fn measure(
    workload: &Workload<'_>,
    plan: &Plan,
    machine: &mut CudaMachine,
    steps: usize,
    (samples, labels): (&[f32], &[u32]),
) -> Result<Value, Failure> {
    let started = Instant::now();
    // Hardly any learning: losses of random data soon overflow.
    let solver = Solver { rule: Rule::Sgd(Sgd { learning_rate: 1e-6, ..Sgd::default() }), ..Solver::default() };
    machine.stop_trace();
    let mut engine = Engine::new(workload, &plan.schedule, machine, solver, Poison::Nothing)?;
    let prepared = started.elapsed().as_secs_f64();
    let step = |engine: &mut Engine<&mut CudaMachine>| -> Result<(f64, Nanos), Failure> {
        Ok((engine.step(samples, labels)?.loss, engine.machine().step_time()?))
    };
    // The first step includes late loading.
    step(&mut engine)?;
    let (mut loss, second) = step(&mut engine)?;
    let mut times = vec![second];
    for _ in 1..if second > SLOW_STEP { 1 } else { steps } {
        let (next, time) = step(&mut engine)?;
        loss = next;
        times.push(time);
    }
    // Traced in a separate step, since events between all tasks cost a little.
    engine.machine().start_trace();
    let (_, traced) = step(&mut engine)?;
    let spans = engine.spans().into_iter();
    let spans: Vec<Span> =
        spans.filter_map(|(at, span)| of_layer(&plan.schedule, at, [span.start, span.end])).collect();
    let planned: Vec<Span> = (0..plan.schedule.instructions.len())
        .zip(&plan.simulation.spans)
        .filter_map(|(at, span)| of_layer(&plan.schedule, at, [span.start, span.end]))
        .collect();
    let (touched, (beside, before)) = (engine.machine().touched()?, engine.machine().outside_arena()?);
    times.sort();
    Ok(json!({
        "step_us": times[times.len() / 2].as_micros(), "least_us": times[0].as_micros(),
        "most_us": times[times.len() - 1].as_micros(), "steps": times.len(), "traced_us": traced.as_micros(),
        "features_us": features(workload, &spans).as_micros(), "kernels_us": busy(&spans).as_micros(),
        "loss": loss, "prepare_s": prepared,
        "planned_us": plan.step_time.as_micros(), "planned_oracle_us": plan.baseline_time.as_micros(),
        "planned_features_us": features(workload, &planned).as_micros(),
        "passes_us": by_pass(workload, &spans), "planned_passes_us": by_pass(workload, &planned),
        "peak_bytes": plan.peak.0, "average_bytes": plan.average.0, "most_live_bytes": plan.most_live.0,
        "arena_bytes": plan.schedule.device_bytes.0, "touched_bytes": touched.map(|bytes| bytes.0),
        "beside_bytes": beside.0, "before_bytes": before.0,
        "host_bytes": plan.host.0, "offloaded_bytes": plan.offloaded.0, "least_bytes": plan.min_feasible.0,
    }))
}

/// When an operation was computed.
pub struct Span {
    group: GroupId,
    pass: String,
    start: Nanos,
    end: Nanos,
}

/// A computation with its time, or `None` for a copy, nor for the upload of the mini-batch.
pub fn of_layer(schedule: &Checked, place: usize, [start, end]: [Nanos; 2]) -> Option<Span> {
    match &schedule.instructions.get(place)?.action {
        Action::Compute(compute) => {
            let operation = schedule.step().operation(compute.operation);
            let span = Span { group: operation.group, pass: operation.name.clone(), start, end };
            (operation.resource == Resource::Device).then_some(span)
        }
        _ => None,
    }
}

/// Time in which the compute stream computes.
pub fn busy(spans: &[Span]) -> Nanos {
    spans.iter().map(|span| span.end - span.start).sum()
}

/// Microseconds of each pass of each kind of layer.
fn by_pass(workload: &Workload<'_>, spans: &[Span]) -> BTreeMap<String, f64> {
    let mut passes = BTreeMap::new();
    for span in spans {
        let name = format!("{} {}", workload.network.layers()[span.group.0].kind.name(), span.pass);
        *passes.entry(name).or_default() += (span.end - span.start).as_micros();
    }
    passes
}

/// Time of the feature extraction layers, waits included: from the first computation to the last, without the stretch in
/// the middle in which the classifier (from the first fully connected layer on) goes forward and backward.
///
/// Source: Rhu et al. 2016, 4.3: performance is of the feature extraction layers.
fn features(workload: &Workload<'_>, spans: &[Span]) -> Nanos {
    let is_full = |kind: &LayerKind| matches!(kind, LayerKind::FullyConnected { .. });
    let first = workload.network.iter().find(|(_, layer)| is_full(&layer.kind)).map(|(id, _)| id);
    let classifies = |group: GroupId| first.is_some_and(|first| group.0 >= first.index());
    let reach = |counts: &dyn Fn(GroupId) -> bool| {
        let those = spans.iter().filter(|span| counts(span.group));
        let start = those.clone().map(|span| span.start).min().unwrap_or_default();
        those.map(|span| span.end).max().unwrap_or_default() - start
    };
    reach(&|_| true) - reach(&classifies)
}

/// An undivided plan with the algorithms of the least workspace.
fn memory_optimal(workload: &Workload<'_>, kernels: &Fronts, policy: Policy, budget: Bytes) -> Result<Plan, Error> {
    let algorithms = Algorithms::Memory;
    let options = PlanOptions { policy, algorithms, divide: false, budget, ..PlanOptions::default() };
    plan(&workload.step(kernels, &CostModel::h200())?, &CostModel::h200(), &options)
}

/// Whether a policy's least budget is enough, and one unit less is refused by planner, checker and engine.
fn refusal(
    workload: &Workload<'_>,
    kernels: &Fronts,
    policy: Policy,
    machine: &mut CudaMachine,
) -> Result<Value, Failure> {
    let least = memory_optimal(workload, kernels, policy, Bytes::UNLIMITED)?.min_feasible;
    let plan = memory_optimal(workload, kernels, policy, least)?;
    let less = Bytes(least.0 - ALIGNMENT);
    let refused = memory_optimal(workload, kernels, policy, less).is_err_and(|error| error.is_over_limit());
    let small = Schedule { device_bytes: less, ..plan.schedule.into_schedule() };
    let checker = Checked::new(&workload.lower()?.step, small.clone(), Budgets::default()).is_err();
    let engine = Engine::new(
        workload,
        &Checked::assume(&workload.lower()?.step, small),
        machine,
        Solver::default(),
        Poison::Nothing,
    )
    .is_err();
    Ok(json!({ "least_bytes": least.0, "planner_refuses_less": refused, "engine_refuses_less": checker && engine }))
}
