//! Random graphs under random policies and budgets: every plan is accepted by the checker, and every refusal has its reason.

use std::collections::HashMap;

use proptest::prelude::*;
use tightfit_conv::candidate::Candidates;
use tightfit_conv::{Algorithm, Candidate, DivisionCost, Operation, Types};
use tightfit_network::{Builder, Filters, Network, Shape, Window};
use tightfit_plan::{Action, Algorithms, Budgets, CostModel, Fronts, Options, Policy, Stream, Workload, check, plan};
use tightfit_units::{Bytes, Error, Nanos};

/// A layer to add, at one of the layers so far, together with another.
#[derive(Clone, Copy, Debug)]
struct Grow {
    kind: usize,
    at: usize,
    with: usize,
}

fn grows() -> impl Strategy<Value = Vec<Grow>> {
    let grow = (0..9_usize, 0..100_usize, 0..100_usize).prop_map(|(kind, at, with)| Grow { kind, at, with });
    proptest::collection::vec(grow, 1..14)
}

/// A network of 8x8 maps of 4 channels that forks and joins anywhere.
fn network(grows: &[Grow]) -> Network {
    let mut net = Builder::new("random");
    let mut layers = vec![net.input(Shape::image(4, 8, 8)).here()];
    for (place, grow) in grows.iter().enumerate() {
        // Mostly on from the last layer, so that the graph grows deep.
        let at = if grow.at < 60 { layers.len() - 1 } else { grow.at % layers.len() };
        let other = layers[grow.with % layers.len()];
        net.at(layers[at]);
        let name = |what: &str| format!("{what}{place}");
        match grow.kind {
            0 | 1 => net.conv(name("conv"), Filters::new(4, 3).pad(1)),
            2 => net.max_pool(name("max"), Window::new(3, 1).pad(1)),
            3 => net.average_pool(name("mean"), Window::new(3, 1).pad(1)),
            4 if grow.at % 2 == 0 => net.conv(name("narrow"), Filters::new(4, 1).no_bias()).batch_norm(),
            4 => net.conv(name("narrow"), Filters::new(4, 1).no_bias()).batch_norm().relu(),
            5 => net.conv(name("then"), Filters::new(4, 1)).relu(),
            6 => net.conv(name("and"), Filters::new(4, 1)).relu().dropout(0.5),
            7 if grow.at % 2 == 0 => net.add(name("sum"), &[layers[at], other]),
            7 => net.add(name("sum"), &[layers[at], other]).relu(),
            _ => {
                net.concat(name("cat"), &[layers[at], other]);
                let channels = net.shape().map_or(0, |shape| shape.channels());
                assert!(channels >= 8);
                net.conv(name("back"), Filters::new(4, 1))
            }
        };
        layers.push(net.here());
    }
    net.flatten().fully_connected("fc", 3).softmax_loss();
    net.finish().unwrap()
}

/// Algorithms with workspaces that `seed` makes up.
fn kernels(workload: &Workload<'_>, seed: u64) -> Fronts {
    let mut candidates = HashMap::new();
    for (layer, _) in workload.network.convolutions() {
        for operation in Operation::ALL {
            let problem = workload.problem(layer, operation).unwrap();
            let mut all = Vec::new();
            for (name, share) in [("a", 0), ("b", 1), ("c", 3)] {
                for micro_batch in [8, 4] {
                    let bytes = share * (seed % 5000) * micro_batch as u64;
                    all.push(Candidate {
                        algorithm: Algorithm::new(name),
                        micro_batch,
                        time: Nanos(1000 * micro_batch as u64 / (share + 1) + 100),
                        workspace: Bytes(bytes),
                    });
                }
            }
            candidates.insert(problem, Candidates { candidates: all, cost: DivisionCost::default() });
        }
    }
    Fronts::of(&candidates).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plans_of_random_graphs_are_accepted(
        grows in grows(),
        policy in proptest::sample::select(Policy::ALL.to_vec()),
        algorithms in proptest::sample::select(Algorithms::ALL.to_vec()),
        (divide, inference) in (any::<bool>(), proptest::bool::weighted(0.2)),
        (share, seed) in (0..=100_u64, any::<u64>()),
    ) {
        let network = network(&grows);
        let workload = Workload::new(&network, 8, Types::F32, inference.into()).unwrap();
        let kernels = kernels(&workload, seed);
        // Copies and layers of about the same length, so that both wait for the other now and then.
        let costs = CostModel { launch: Nanos(seed % 3000), ..CostModel::cpu() };
        let step = workload.step(&kernels, &costs).unwrap();
        let options = Options { policy, algorithms, divide, ..Options::default() };
        let loose = plan(&step, &costs, &options).unwrap();
        prop_assert!(loose.least <= loose.min_feasible && loose.min_feasible <= loose.peak);
        let again = plan(&step, &costs, &Options { budget: loose.peak, ..options }).unwrap();
        prop_assert!(again.peak <= loose.peak);
        // A search with fewer bytes takes another course, so its result may be a little slower; a sweep reuses plans.
        let slower = if policy == Policy::Optimal { loose.step_time.0 / 20 } else { 0 };
        prop_assert!(again.step_time.0 <= loose.step_time.0 + slower, "{} after {}", again.step_time, loose.step_time);
        let budget = Bytes(loose.min_feasible.0 + (loose.peak.0 - loose.min_feasible.0) * share / 100);
        match plan(&step, &costs, &Options { budget, ..options }) {
            Ok(plan) => {
                let budgets = Budgets { device: budget, host: Bytes::UNLIMITED };
                prop_assert_eq!(check(&step, &plan.schedule, budgets), []);
                prop_assert!(plan.step_time >= plan.simulation.compute && plan.most_live <= plan.peak);
                prop_assert!(plan.average <= plan.ours.maximum);
                let copies = |stream| plan.schedule.instructions.iter().any(|next| {
                    next.stream == stream && matches!(next.action, Action::Offload(..) | Action::Prefetch(..))
                });
                // The paper's policies have one memory stream.
                prop_assert!(matches!(policy, Policy::Overlap | Policy::Optimal) || !copies(Stream::Prefetch));
                prop_assert!(plan.bound.is_none_or(|bound| bound <= plan.step_time), "{:?}", plan.bound);
                prop_assert!(!copies(Stream::Compute));
            }
            Err(Error::OverBudget { needed, .. }) => {
                prop_assert!(needed > budget && algorithms == Algorithms::Performance, "{needed} over {budget}");
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
}
