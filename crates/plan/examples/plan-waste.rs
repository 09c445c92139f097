//! The share of the arena that each plan wastes over the most bytes live at once, and the planning time.
//!
//! `plan-waste [NETWORK ..]`: all built-in networks, or these, at mini-batch 32 under vDNN-all, vDNN-dynamic and overlap, at the least budget and 2,
//! 10, 25, 50 and 75% of the way to a budget that holds everything.

use std::time::Instant;

use tightfit_conv::Types;
use tightfit_network::{Network, names};
use tightfit_plan::{CostModel, Fronts, Mode, Options, Policy, Workload, plan};
use tightfit_units::{Bytes, Error};

const POLICIES: [Policy; 3] = [Policy::VdnnAll, Policy::VdnnDynamic, Policy::Overlap];

/// Parts of the way from the least budget to the unlimited one, in percent.
const BUDGETS: [u64; 6] = [0, 2, 10, 25, 50, 75];

fn main() -> Result<(), Error> {
    let named: Vec<String> = std::env::args().skip(1).collect();
    let all: Vec<&str> = names().map(|(name, _)| name).filter(|name| !name.starts_with("deepbench")).collect();
    let networks = if named.is_empty() { all } else { named.iter().map(String::as_str).collect() };
    println!(
        "network,policy,percent,budget_bytes,peak_bytes,most_live_bytes,waste_percent,host_bytes,step_us,planned_ms"
    );
    for name in networks {
        let network = Network::open(name)?;
        let workload = Workload::new(&network, 32, Types::F32, Mode::Training)?;
        let costs = CostModel::h200();
        let step = workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?;
        for policy in POLICIES {
            let loose = plan(&step, &costs, &Options { policy, ..Options::default() })?;
            let (least, most) = (loose.min_feasible.0, loose.baseline.0.max(loose.min_feasible.0));
            for percent in BUDGETS {
                let budget = Bytes(least + (most - least) / 100 * percent);
                let start = Instant::now();
                let plan = plan(&step, &costs, &Options { policy, budget, ..Options::default() })?;
                println!(
                    "{name},{policy},{percent},{},{},{},{:.2},{},{},{}",
                    budget.0,
                    plan.peak.0,
                    plan.most_live.0,
                    100.0 * plan.fragmentation(),
                    plan.host.0,
                    plan.step_time.0 / 1000,
                    start.elapsed().as_millis(),
                );
            }
        }
    }
    Ok(())
}
