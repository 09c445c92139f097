//! Plans a training step in a budget of device memory: which feature maps wait on the host, and where everything lies.

use tightfit_conv::Types;
use tightfit_network::built_in;
use tightfit_plan::{CostModel, Fronts, MapTreatment, Mode, Options, Policy, Workload, plan};
use tightfit_units::{Bytes, Error};

fn main() -> Result<(), Error> {
    let network = built_in("vgg16")?;
    let workload = Workload::new(&network, 64, Types::F32, Mode::Training)?;

    // Nothing was measured: convolutions without workspace, at the rates of an H200.
    let costs = CostModel::h200();
    let step = workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?;

    let options = Options { policy: Policy::VdnnDynamic, budget: Bytes::gib(4), ..Options::default() };
    let plan = plan(&step, &costs, &options)?;

    println!("{} of {}: everything resident would take {}", plan.peak, options.budget, plan.baseline);
    println!("{} a step, {} of it moved to the host and back", plan.step_time, plan.offloaded);
    for map in plan.maps.iter().filter(|map| map.fate == MapTreatment::Offloaded) {
        println!("offloaded: {} ({})", map.layers.join(", "), map.bytes);
    }
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
