//! Plans built-in networks or recorded steps at shares of their live bytes: step time, overhead, gap and planning time.
//!
//! ```sh
//! cargo run --release -p tightfit-plan --example plan-optimal -- resnet50:256 googlenet:128 step.json
//! SHARES=80,40 TYPES=tf32 SECONDS=5 cargo run --release -p tightfit-plan --example plan-optimal -- vgg16:256
//! ```

use std::path::Path;
use std::time::Instant;

use tightfit_conv::Types;
use tightfit_network::Network;
use tightfit_plan::step::{Step, StepFile};
use tightfit_plan::{CostModel, Fronts, Mode, Options, Policy, Workload, plan};
use tightfit_units::{Bytes, Nanos};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let types: Types = std::env::var("TYPES").unwrap_or_else(|_| "f32".to_owned()).parse()?;
    let shares = std::env::var("SHARES").unwrap_or_else(|_| "100,80,60,40,25".to_owned());
    let shares: Vec<u64> = shares.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let seconds = std::env::var("SECONDS").ok().map(|seconds| seconds.parse::<f64>()).transpose()?;
    let plan_time = seconds.map(|seconds| Nanos::from_micros(seconds * 1e6));
    println!("step share budget policy: time overhead gap moved recomputed peak planned-in");
    for argument in std::env::args().skip(1) {
        let (step, costs) = opened(&argument, types)?;
        let free = plan(&step, &costs, &Options { policy: Policy::Overlap, ..Options::default() })?;
        let (operations, whole) = (step.operations.len(), free.most_live);
        println!("{argument}: {operations} operations, baseline {}, live {whole}", free.baseline);
        for share in &shares {
            let budget = Bytes(whole.0 / 100 * share);
            for policy in [Policy::Overlap, Policy::Optimal] {
                let start = Instant::now();
                let planned = plan(&step, &costs, &Options { policy, budget, plan_time, ..Options::default() });
                let took = start.elapsed();
                match planned {
                    Ok(plan) => println!(
                        "{argument} {share}% {budget} {policy}: {} {:+.2}% {} {} {} {} {took:.2?}",
                        plan.step_time,
                        plan.overhead() * 100.0,
                        plan.gap.map_or("-".to_owned(), |gap| format!("{:.2}%", gap * 100.0)),
                        plan.offloaded,
                        plan.recomputed,
                        plan.peak,
                    ),
                    Err(error) => println!("{argument} {share}% {budget} {policy}: {error} {took:.2?}"),
                }
            }
        }
    }
    Ok(())
}

/// The step of `NETWORK:BATCH`, or of a step file.
fn opened(argument: &str, types: Types) -> Result<(Step, CostModel), Box<dyn std::error::Error>> {
    match argument.split_once(':') {
        Some((name, batch)) => {
            let (network, costs) = (Network::open(name)?, CostModel::h200());
            let workload = Workload::new(&network, batch.parse()?, types, Mode::Training)?;
            Ok((workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?, costs))
        }
        None => {
            let StepFile { step, machine } = StepFile::read(Path::new(argument))?;
            Ok((step, machine.map_or_else(CostModel::h200, |machine| machine.costs())))
        }
    }
}
