//! The memory of the vDNN paper's networks by plan: what its figures 9, 10 and 13 show, in the paper's way of counting
//! and in ours.
//!
//! `plan-memory [--costs k40|h200] [PROFILE ..]`: convolutions found in the profiles take the algorithms recorded there,
//! undivided; all others one without workspace, as fast as the costs expect.

use std::collections::HashMap;
use std::time::Instant;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{Candidate, DivisionCost, Operation, Problem, Types};
use tightfit_network::Network;
use tightfit_plan::{Accounting, Algorithms, CostModel, Fronts, Mode, Options, Plan, Policy, Workload, plan};
use tightfit_profile::Recording;
use tightfit_units::{Bytes, Error};

/// The paper's networks with their mini-batches, and the baseline that it states, in gigabytes.
const NETWORKS: [(&str, usize, Option<f64>); 12] = [
    ("alexnet-1col", 128, Some(1.1)),
    ("overfeat", 128, None),
    ("googlenet", 128, None),
    ("vgg19", 32, Some(4.9)),
    ("vgg19", 64, None),
    ("vgg19", 128, Some(15.0)),
    ("vgg19", 256, Some(28.0)),
    ("vgg116", 32, None),
    ("vgg216", 32, None),
    ("vgg316", 32, None),
    ("vgg416", 32, None),
    ("vgg516", 32, Some(80.6)),
];

/// The paper's policies, and the reductions of maximum and average in percent that it states for the mean over AlexNet,
/// OverFeat and VGG-16.
const POLICIES: [(&str, Policy, Algorithms, [u32; 2]); 4] = [
    ("all(m)", Policy::VdnnAll, Algorithms::Memory, [69, 92]),
    ("all(p)", Policy::VdnnAll, Algorithms::Performance, [50, 85]),
    ("conv(p)", Policy::VdnnConv, Algorithms::Performance, [39, 72]),
    ("dyn", Policy::VdnnDynamic, Algorithms::Fit, [37, 64]),
];

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).peekable();
    let mut costs = CostModel::k40();
    if arguments.next_if(|argument| argument == "--costs").is_some() {
        costs = CostModel::named(&arguments.next().unwrap_or_default())?;
    }
    let mut recordings: Vec<Recording> = Vec::new();
    for path in arguments {
        recordings.extend(Recording::read(path.as_ref())?);
    }
    println!("max and average in GB; (-%) of the baseline's; paper's way of counting | ours; dyn under 12 GiB");
    let mut sums = [[0.0; 4]; 4];
    let mut summed = 0.0;
    for (name, batch, stated) in NETWORKS {
        let network = Network::open(name)?;
        let workload = Workload::new(&network, batch, Types::F32, Mode::Training)?;
        let (fronts, known) = fronts(&workload, &costs, &recordings)?;
        let step = workload.step(&fronts, &costs)?;
        let in_papers_mean = !name.starts_with("googlenet") && (!name.starts_with("vgg") || name == "vgg19");
        summed += f64::from(u8::from(in_papers_mean));
        for (row, (label, policy, algorithms, _)) in POLICIES.into_iter().enumerate() {
            let dynamic = policy == Policy::VdnnDynamic;
            let budget = if dynamic { Bytes(12_884_901_888) } else { Bytes::UNLIMITED };
            let options = Options { policy, algorithms, divide: false, budget, ..Options::default() };
            let start = Instant::now();
            let plan = match plan(&step, &costs, &options) {
                Ok(plan) => plan,
                Err(error) => {
                    println!("{name:<13} {batch:>3}  {label:<8} {error}");
                    continue;
                }
            };
            let took = start.elapsed().as_millis();
            if row == 0 {
                let stated = stated.map_or_else(|| "-".to_owned(), |gb| format!("{gb}"));
                let (paper, ours) = (gb(plan.paper.baseline), gb(plan.ours.baseline));
                println!("{name:<13} {batch:>3}  base     {paper:>6.2} (paper {stated}) | {ours:.2}   {known}");
            }
            line(&plan, label, took);
            if in_papers_mean {
                let saved = |way: Accounting| [way.maximum_saved(), way.average_saved()];
                let all = [saved(plan.paper), saved(plan.ours)].concat();
                sums[row].iter_mut().zip(all).for_each(|(sum, saved)| *sum += 100.0 * saved);
            }
        }
    }
    println!("mean reduction of maximum / average, AlexNet, OverFeat and VGG-16 (the paper's figure 9)");
    for ((label, _, _, [maximum, average]), sum) in POLICIES.into_iter().zip(sums) {
        let [a, b, c, d] = sum.map(|sum| sum / summed);
        println!(
            "  {label:<8} paper {maximum:>2} / {average:>2} %   its counting {a:>4.1} / {b:>4.1} %   ours {c:>4.1} / {d:>4.1} %"
        );
    }
    Ok(())
}

fn gb(bytes: Bytes) -> f64 {
    bytes.0 as f64 / 1e9
}

fn line(plan: &Plan, label: &str, took_ms: u128) {
    let way = |way: Accounting| {
        let (maximum, average) = (gb(way.maximum), gb(way.average));
        let (less, lesser) = (100.0 * way.maximum_saved(), 100.0 * way.average_saved());
        format!("{maximum:>6.2} (-{less:>2.0}) {average:>6.2} (-{lesser:>2.0})")
    };
    let taken = plan.decisions.iter().find(|decision| decision.taken).map_or("", |decision| &decision.attempt);
    println!(
        "                   {label:<8} {} | {}   arena {:.2}, offloads {:.2}, waste {:.1} %, step x{:.2}, {taken}, planned in {took_ms} ms",
        way(plan.paper),
        way(plan.ours),
        gb(plan.peak),
        gb(plan.offloaded),
        100.0 * plan.fragmentation(),
        1.0 + plan.overhead(),
    );
}

/// The measurements in the profiles for the workload's convolutions at its mini-batch, and their number.
fn fronts(workload: &Workload<'_>, costs: &CostModel, recordings: &[Recording]) -> Result<(Fronts, String), Error> {
    let mut candidates: HashMap<Problem, Candidates> = HashMap::new();
    let mut problems: Vec<Problem> = Vec::new();
    for (layer, _) in workload.network.convolutions() {
        for operation in Operation::ALL {
            problems.push(workload.problem(layer, operation)?);
        }
    }
    for problem in &problems {
        let measured = recordings.iter().flat_map(|recording| recording.of(&problem.shape()));
        let whole: Vec<Candidate> =
            measured.map(|measured| measured.candidate()).filter(|c| c.micro_batch == problem.batch()).collect();
        if !whole.is_empty() {
            candidates.insert(*problem, Candidates { candidates: whole, cost: DivisionCost::default() });
        }
    }
    let known = problems.iter().filter(|problem| candidates.contains_key(problem)).count();
    let mut fronts = Fronts::of(&candidates)?;
    fronts.assume(workload, costs)?;
    Ok((fronts, format!("{known} of {} convolutions recorded", problems.len())))
}
