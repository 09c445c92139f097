//! Every stretch of small networks in parts, with everything kept: the checker accepts each as a schedule of the original step, and its time is the
//! time of its parts.

use tightfit_conv::Types;
use tightfit_network::{Builder, Filters, Network, Shape, Window};
use tightfit_place::Effort;
use tightfit_units::Error;

use super::*;
use crate::memory::arena::Drafter;
use crate::schedule::script::Script;
use crate::step::Mode;
use crate::{Algorithms, Budgets, Checked, CostModel, Fronts, Options, Stop, Workload, simulate};

/// A chain, with a normalization or with two of them.
fn chain(norms: usize) -> Result<Network, Error> {
    let mut net = Builder::new("chain");
    net.input(Shape::image(3, 8, 8)).conv("a", Filters::new(4, 3).pad(1));
    for norm in 0..norms {
        net.batch_norm().relu().conv(format!("b{norm}"), Filters::new(4, 3).pad(1));
    }
    net.relu().dropout(0.3).max_pool("pool", Window::new(2, 2)).flatten().fully_connected("fc", 3).softmax_loss();
    net.finish()
}

/// Normalizations whose inputs are also used elsewhere: by a sum in place, and by a join.
fn beside() -> Result<Network, Error> {
    let mut net = Builder::new("beside");
    let from = net.input(Shape::image(3, 8, 8)).conv("a", Filters::new(4, 3).pad(1)).relu().here();
    let long = net.conv("b", Filters::new(4, 3).pad(1).no_bias()).batch_norm().here();
    let sum = net.add("sum", &[long, from]).relu().here();
    let normal = net.conv("c", Filters::new(4, 1)).batch_norm().relu().here();
    net.concat("join", &[sum, normal]).max_pool("pool", Window::new(2, 2));
    net.flatten().fully_connected("fc", 3).softmax_loss();
    net.finish()
}

#[test]
fn every_stretch_in_parts_passes_the_checker() {
    let costs = CostModel::k40();
    let networks = [chain(0), chain(1), chain(2), beside()].map(Result::unwrap);
    let (mut with_sums, mut both_ways) = (0, 0);
    for (network, batch) in networks.iter().flat_map(|network| [(network, 8), (network, 5)]) {
        for mode in [Mode::Training, Mode::Inference] {
            let workload = Workload::new(network, batch, Types::F32, mode).unwrap();
            let step = workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap();
            for stretch in stretches(&step) {
                let what = format!("{} of {batch}, {stretch:?}", network.name());
                let in_parts = StepInParts::of(&step, &stretch, costs.launch).unwrap();
                assert_eq!(in_parts.step.operations.len(), in_parts.runs.len());
                assert!(in_parts.step.operations.len() <= stretch.operations(&step), "{what}");
                let drafter = Drafter::new(&in_parts.step, &costs, Options::default(), Stop::Never).unwrap();
                let script = Script::new(in_parts.step.operations.len());
                let draft = drafter.draft(&script, Algorithms::Performance, Effort::Draft);
                assert!(stretch.needs <= draft.peak.0, "{what}");
                let time = simulate(&in_parts.step, &draft.schedule, &costs).time;
                let schedule = in_parts.schedule(&step, draft.schedule);
                assert_eq!(simulate(&step, &schedule, &costs).time, time, "{what}");
                let checked = Checked::new(&step, schedule, Budgets::default());
                assert!(checked.is_ok(), "{what}: {}", checked.unwrap_err());
                let sums = stretch.sums.iter().flatten().count();
                assert!(sums == 0 || mode == Mode::Training && sums == 2, "{what}");
                with_sums += usize::from(sums > 0);
                both_ways += usize::from(sums > 0 && stretch.goes_both_ways);
            }
        }
    }
    assert!(with_sums > both_ways && both_ways > 0, "{with_sums} and {both_ways}");
}
