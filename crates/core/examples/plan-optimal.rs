//! Plans built-in networks at shares of the network-wide baseline: step time, overhead, gap and planning time.
//!
//! ```sh
//! cargo run --release -p tightfit-core --example plan-optimal -- vgg16:256 resnet50:256 googlenet:128
//! ```

use std::time::Instant;

use tightfit_core::plan::{CostModel, Fronts, Mode, Options, Policy, Workload, plan};
use tightfit_core::{Bytes, Network, Types};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let types: Types = std::env::var("TYPES").unwrap_or_else(|_| "f32".to_owned()).parse()?;
    println!("network batch share budget policy: step overhead gap moved recomputed peak planned-in");
    for argument in &arguments {
        let (name, batch) = argument.split_once(':').ok_or("write NETWORK:BATCH")?;
        let (network, costs) = (Network::open(name)?, CostModel::h200());
        let workload = Workload::new(&network, batch.parse()?, types, Mode::Training)?;
        let step = workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?;
        let free = plan(&step, &costs, &Options { policy: Policy::Overlap, ..Options::default() })?;
        println!(
            "{name} {batch}: {} operations, baseline {}, live {}",
            step.operations.len(),
            free.baseline,
            free.most_live
        );
        for share in std::env::var("SHARES")
            .unwrap_or_else(|_| "100,80,60,40,25".to_owned())
            .split(",")
            .map(|share| share.parse::<u64>().unwrap())
        {
            let budget = Bytes(free.most_live.0 / 100 * share);
            for policy in [Policy::Overlap, Policy::Optimal] {
                let start = Instant::now();
                let planned = plan(&step, &costs, &Options { policy, budget, ..Options::default() });
                let took = start.elapsed();
                match planned {
                    Ok(plan) => println!(
                        "{name} {batch} {share}% {budget} {policy}: {} {:+.2}% {} {} {} {} {took:.2?}",
                        plan.step_time,
                        plan.overhead() * 100.0,
                        plan.gap.map_or("-".to_owned(), |gap| format!("{:.2}%", gap * 100.0)),
                        plan.offloaded,
                        plan.recomputed,
                        plan.peak,
                    ),
                    Err(error) => println!("{name} {batch} {share}% {budget} {policy}: {error} {took:.2?}"),
                }
            }
        }
    }
    Ok(())
}
