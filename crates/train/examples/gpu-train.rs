//! Trains networks on a GPU under every policy and says how long a step takes, how far the arena was used, and what lies
//! beside it; or checks that all policies give the same bits. `scripts/gpu-train.sh` calls it.
//!
//! ```text
//! gpu-train profile CACHE RECORDING NETWORK:BATCH ..          measures the convolutions, for the calls below
//! gpu-train time CACHE RESULTS BUDGET STEPS NETWORK:BATCH ..  a line of JSON for each policy
//! gpu-train equal CACHE                                       losses and gradients of all policies, bit by bit
//! ```

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use tightfit_core::network::{Builder, Filters, Network, Shape, Window};
use tightfit_core::optimize::{Candidates, Policy as Sizes, Scope, Silent, survey};
use tightfit_core::plan::{Algorithms, Costs, Kernels, Options as PlanOptions, Plan, Policy, Tensor, Workload, plan};
use tightfit_core::profile::{Backend, Cache, Recording};
use tightfit_core::{Bytes, Operation, Problem, Types};
use tightfit_cuda::{CudaBackend, Options};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Solver};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["profile", cache, recording, cases @ ..] => profile(Path::new(cache), recording, cases),
        ["time", cache, results, budget, steps, cases @ ..] => {
            time(Path::new(cache), Path::new(results), budget.parse()?, steps.parse()?, cases)
        }
        ["equal", cache] => equal(Path::new(cache)),
        _ => Err("profile CACHE RECORDING CASES, time CACHE RESULTS BUDGET STEPS CASES, or equal CACHE".into()),
    }
}

/// `NETWORK:BATCH`.
fn case(text: &str) -> Result<(Network, usize), Failure> {
    let (name, batch) = text.split_once(':').ok_or("a case is NETWORK:BATCH")?;
    Ok((Network::open(name)?, batch.parse()?))
}

/// The workload's convolution problems, each once.
fn problems(workload: &Workload<'_>) -> Result<Vec<Problem>, Failure> {
    let mut problems = Vec::new();
    for (layer, _) in workload.network.convolutions() {
        for operation in Operation::ALL {
            let problem = Kernels::problem(workload, layer, operation)?;
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
    }
    Ok(problems)
}

/// Deterministic candidates of the workload's convolutions: the whole mini-batch, halves and quarters.
fn kernels(workload: &Workload<'_>, cache: &Cache) -> Result<Kernels, Failure> {
    let stop = AtomicBool::new(false);
    let scope = Scope {
        policy: Sizes::Undivided,
        limits: vec![Bytes(16 << 30)],
        baseline: None,
        deterministic: true,
        exact_class: false,
        cache: Some(cache),
        stop: &stop,
    };
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(CudaBackend::open(&Options::default())?)];
    let problems = problems(workload)?;
    let mut found: HashMap<Problem, Candidates> = HashMap::new();
    for parts in [1, 2, 4] {
        let size = (workload.batch / parts).max(1);
        let smaller = problems.iter().map(|problem| problem.with_batch(size)).collect::<Result<Vec<_>, _>>()?;
        let mut survey = survey(&smaller, &scope, &mut backends, &Silent)?;
        for (problem, smaller) in problems.iter().zip(&smaller) {
            let Some(own) = survey.candidates.remove(smaller) else { continue };
            match found.entry(*problem) {
                Entry::Vacant(entry) => drop(entry.insert(own)),
                Entry::Occupied(mut entry) => entry.get_mut().candidates.extend(own.candidates),
            }
        }
    }
    Ok(Kernels::of(&found)?)
}

fn profile(cache: &Path, recording: &str, cases: &[&str]) -> Result<(), Failure> {
    let cache = Cache::open(cache)?;
    if recording != "-" {
        for recording in Recording::read(Path::new(recording))? {
            cache.import(&recording)?;
        }
    }
    for text in cases {
        let started = std::time::Instant::now();
        let (network, batch) = case(text)?;
        kernels(&Workload::new(&network, batch, Types::F32, false)?, &cache)?;
        println!("{text}: profiled in {:.1} s", started.elapsed().as_secs_f64());
    }
    Ok(())
}

/// What is compared: a name, the policy, its algorithms, and whether convolutions may be divided.
fn variants() -> Vec<(&'static str, Policy, Algorithms, bool)> {
    let (m, p, fit) = (Algorithms::Memory, Algorithms::Performance, Algorithms::Fit);
    vec![
        ("all(m)", Policy::VdnnAll, m, false),
        ("all(p)", Policy::VdnnAll, p, false),
        ("conv(m)", Policy::VdnnConv, m, false),
        ("conv(p)", Policy::VdnnConv, p, false),
        ("dynamic", Policy::VdnnDynamic, p, false),
        ("overlap", Policy::Overlap, fit, false),
        ("baseline divided", Policy::Baseline, fit, true),
        ("all divided", Policy::VdnnAll, fit, true),
        ("conv divided", Policy::VdnnConv, fit, true),
        ("dynamic divided", Policy::VdnnDynamic, fit, true),
        ("overlap divided", Policy::Overlap, fit, true),
    ]
}

fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let key = tightfit_cpu::random::key(&[seed]);
    (0..count as u64).map(|i| tightfit_cpu::random::uniform(key, i)).collect()
}

/// A mini-batch and labels that stay the same: a step takes as long whatever it learns.
fn batch(workload: &Workload<'_>) -> (Vec<f32>, Vec<u32>) {
    let layers = workload.network.layers();
    let classes = layers.last().map_or(1, |layer| layer.shape.len()) as u32;
    let sample = layers[0].shape.len();
    // Repeated from one megabyte on: making more takes longer than it tells.
    let pattern = numbers(1 << 18, 7);
    let samples = pattern.iter().cycle().take(workload.batch * sample).copied().collect();
    (samples, (0..workload.batch as u32).map(|n| n * 7 % classes).collect())
}

fn time(cache: &Path, results: &Path, budget: Bytes, steps: usize, cases: &[&str]) -> Result<(), Failure> {
    let cache = Cache::open(cache)?;
    let mut out = std::fs::OpenOptions::new().create(true).append(true).open(results)?;
    let mut machine = CudaMachine::open(&Options::default(), Modes { watch: true, ..Modes::default() })?;
    for text in cases {
        let (network, size) = case(text)?;
        let workload = Workload::new(&network, size, Types::F32, false)?;
        let (kernels, costs) = (kernels(&workload, &cache)?, Costs::h200());
        let (samples, labels) = batch(&workload);
        let whole = Bytes(130 << 30);
        let oracle = ("oracle", Policy::Baseline, Algorithms::Performance, false, whole);
        let under =
            variants().into_iter().map(|(name, policy, algorithms, divide)| (name, policy, algorithms, divide, budget));
        let mut plans: Vec<(&str, Plan)> = Vec::new();
        for (name, policy, algorithms, divide, budget) in std::iter::once(oracle).chain(under) {
            let options = PlanOptions { policy, algorithms, divide, budget, host_budget: Bytes(100 << 30) };
            match plan(&workload, &kernels, &costs, &options) {
                Ok(plan) => plans.push((name, plan)),
                Err(error) => {
                    let refused = error.to_string();
                    let line = serde_json::json!({"case": text, "variant": name, "budget_bytes": budget.0,
                        "refused": refused});
                    writeln!(out, "{line}")?;
                }
            }
        }
        // The largest pinned arena first: the others use it as well.
        plans.sort_by_key(|(_, plan)| std::cmp::Reverse(plan.host));
        for (name, plan) in &plans {
            let mut line = match measure(&workload, plan, &mut machine, steps, (&samples, &labels)) {
                Ok(line) => line,
                Err(error) => serde_json::json!({ "failed": error.to_string() }),
            };
            line["case"] = (*text).into();
            line["variant"] = (*name).into();
            line["budget_bytes"] = plan.options.budget.0.into();
            writeln!(out, "{line}")?;
        }
    }
    Ok(())
}

fn measure(
    workload: &Workload<'_>,
    plan: &Plan,
    machine: &mut CudaMachine,
    steps: usize,
    (samples, labels): (&[f32], &[u32]),
) -> Result<serde_json::Value, Failure> {
    let started = std::time::Instant::now();
    // Hardly any learning: losses of random data soon overflow.
    let solver = Solver { learning_rate: 1e-6, ..Solver::default() };
    let mut engine = Engine::new(workload, &plan.schedule, machine, solver, false)?;
    let prepared = started.elapsed().as_secs_f64();
    let (mut times, mut loss) = (Vec::new(), 0.0);
    for _ in 0..=steps {
        loss = engine.step(samples, labels)?.loss;
        times.push(engine.machine().step_time()?.as_micros());
    }
    let (touched, (beside, before)) = (engine.machine().touched()?, engine.machine().beside()?);
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(serde_json::json!({
        "step_us": times[times.len() / 2], "least_us": times[0], "most_us": times[times.len() - 1],
        "loss": loss, "prepare_s": prepared,
        "planned_us": plan.step_time.as_micros(), "planned_oracle_us": plan.baseline_time.as_micros(),
        "peak_bytes": plan.peak.0, "average_bytes": plan.average.0, "most_live_bytes": plan.most_live.0,
        "arena_bytes": plan.schedule.device_bytes.0, "touched_bytes": touched.map(|bytes| bytes.0),
        "beside_bytes": beside.0, "before_bytes": before.0,
        "host_bytes": plan.host.0, "offloaded_bytes": plan.offloaded.0, "least_bytes": plan.min_feasible.0,
    }))
}

/// A small network with forks and joins, as in GoogLeNet.
fn fork_and_join() -> Result<Network, Failure> {
    let mut net = Builder::new("fork-and-join");
    net.input(Shape::image(3, 32, 32));
    net.conv("conv1", Filters::new(16, 3).pad(1)).relu().lrn().max_pool("pool1", Window::new(3, 2).ceil());
    for name in ["a", "b"] {
        let from = net.here();
        let one = net.at(from).conv(format!("{name}.1x1"), Filters::new(8, 1)).relu().here();
        net.at(from).conv(format!("{name}.reduce"), Filters::new(8, 1)).relu();
        let three = net.conv(format!("{name}.3x3"), Filters::new(16, 3).pad(1)).relu().here();
        net.at(from).max_pool(format!("{name}.pool"), Window::new(3, 1).pad(1));
        let pooled = net.conv(format!("{name}.project"), Filters::new(8, 1)).relu().here();
        net.concat(format!("{name}.join"), &[one, three, pooled]);
    }
    net.average_pool("pool2", Window::new(2, 2)).dropout(0.3).flatten().fully_connected("fc", 10).softmax_loss();
    Ok(net.finish()?)
}

/// A small residual network.
fn residual() -> Result<Network, Failure> {
    let mut net = Builder::new("residual");
    net.input(Shape::image(3, 32, 32));
    net.conv("conv1", Filters::new(16, 3).pad(1).no_bias()).batch_norm().relu();
    for (name, filters, stride) in [("b1", 16, 1), ("b2", 32, 2), ("b3", 32, 1)] {
        let from = net.here();
        net.conv(format!("{name}.c1"), Filters::new(filters, 3).pad(1).stride(stride).no_bias()).batch_norm().relu();
        let long = net.conv(format!("{name}.c2"), Filters::new(filters, 3).pad(1).no_bias()).batch_norm().here();
        let short = if stride == 1 {
            from
        } else {
            net.at(from).conv(format!("{name}.short"), Filters::new(filters, 1).stride(stride).no_bias()).batch_norm();
            net.here()
        };
        net.add(name, &[long, short]).relu();
    }
    net.global_average_pool("pool").flatten().fully_connected("fc", 10).softmax_loss();
    Ok(net.finish()?)
}

/// Losses of five steps as bits, and all gradients of the last.
type Bits = (Vec<u64>, BTreeMap<Tensor, Vec<u32>>);

fn equal(cache: &Path) -> Result<(), Failure> {
    let cache = Cache::open(cache)?;
    let networks = [Network::open("lenet")?, Network::open("cifar10-quick")?, fork_and_join()?, residual()?];
    let mut machines = Vec::new();
    for graph in [false, true] {
        machines.push((graph, CudaMachine::open(&Options::default(), Modes { graph, ..Modes::default() })?));
    }
    let mut different = 0;
    for network in &networks {
        let workload = Workload::new(network, 16, Types::F32, false)?;
        let (kernels, costs) = (kernels(&workload, &cache)?, Costs::h200());
        let of = |policy, budget| {
            let algorithms = Algorithms::Memory;
            let options = PlanOptions { policy, algorithms, divide: false, budget, host_budget: Bytes(1 << 30) };
            plan(&workload, &kernels, &costs, &options)
        };
        let mut want: Option<Bits> = None;
        for policy in Policy::ALL {
            // Dynamic and overlap choose what moves by the budget: the least makes them move much, by the same algorithms.
            let plan = match of(policy, Bytes::UNLIMITED)? {
                free if matches!(policy, Policy::VdnnDynamic | Policy::Overlap) => of(policy, free.min_feasible)?,
                free => free,
            };
            for (graph, machine) in &mut machines {
                let bits = bits(&workload, &plan, machine, !*graph)?;
                let same = want.get_or_insert_with(|| bits.clone()) == &bits;
                different += usize::from(!same);
                let loss = bits.0.last().map_or(0.0, |bits| f64::from_bits(*bits));
                let (how, verdict) =
                    (if *graph { " as a graph" } else { "" }, if same { "the same bits" } else { "DIFFERENT" });
                let (name, peak, offloaded) = (network.name(), plan.peak, plan.offloaded);
                println!("{name} {policy}{how}: {peak}, {offloaded} offloaded, loss {loss}: {verdict}");
            }
        }
    }
    if different == 0 { Ok(()) } else { Err(format!("{different} runs differ from the baseline").into()) }
}

fn bits(workload: &Workload<'_>, plan: &Plan, machine: &mut CudaMachine, poison: bool) -> Result<Bits, Failure> {
    let mut engine = Engine::new(workload, &plan.schedule, machine, Solver::default(), poison)?;
    let mut losses = Vec::new();
    for step in 0..5 {
        let samples = numbers(workload.batch * workload.network.layers()[0].shape.len(), step);
        let labels: Vec<u32> = (0..workload.batch as u32).map(|n| (n + step as u32) % 10).collect();
        losses.push(engine.step(&samples, &labels)?.loss.to_bits());
    }
    let mut gradients = BTreeMap::new();
    for block in &plan.schedule.blocks {
        if let Tensor::WeightGradient(layer) = block.tensor {
            let all = engine.read(block.tensor)?.unwrap_or_default();
            // Between the parameters there is nothing.
            let parameters = workload.parameters(layer);
            let own = parameters.into_iter().flat_map(|p| all[p.offset..p.offset + p.elements].to_vec());
            gradients.insert(block.tensor, own.map(f32::to_bits).collect());
        }
    }
    Ok((losses, gradients))
}
