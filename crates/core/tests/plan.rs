//! Plans of all built-in networks under all policies: accepted by the checker, within the budget, and tight.

use std::collections::HashMap;

use tightfit_core::network::{Network, names};
use tightfit_core::optimize::Candidates;
use tightfit_core::plan::{
    Algorithms, Budgets, Costs, Kernels, Options, Plan, Policy, Workload, check, plan,
};
use tightfit_core::{
    Algorithm, Bytes, Candidate, DivisionCost, Error, Nanos, Operation, Problem, Types,
};

/// Three algorithms for every convolution, at the whole mini-batch and at half: none, some and much workspace, the more
/// the faster.
fn kernels(workload: &Workload<'_>) -> Kernels {
    let costs = Costs::h200();
    let mut candidates: HashMap<Problem, Candidates> = HashMap::new();
    for (layer, _) in workload.network.convolutions() {
        for operation in Operation::ALL {
            let problem = Kernels::problem(workload, layer, operation).unwrap();
            let mut all = Vec::new();
            for micro_batch in [problem.batch(), problem.batch() / 2].into_iter().filter(|size| *size > 0) {
                let part = problem.with_batch(micro_batch).unwrap();
                for (name, slow, share) in [("direct", 4, 0), ("gemm", 2, 1), ("fft", 1, 4)] {
                    all.push(Candidate {
                        algorithm: Algorithm::new(name),
                        micro_batch,
                        time: Nanos(costs.convolution(&part).0 * slow),
                        workspace: Bytes(part.tensor_bytes().0 / 4 * share),
                    });
                }
            }
            let candidates_of = Candidates { candidates: all, cost: DivisionCost::default() };
            candidates.insert(problem, candidates_of);
        }
    }
    Kernels::of(&candidates).unwrap()
}

fn batch(network: &str) -> usize {
    if network.starts_with("vgg") && network.len() > 5 { 4 } else { 16 }
}

fn trainable() -> impl Iterator<Item = Network> {
    names().map(|(name, _)| Network::open(name).unwrap()).filter(|network| !network.name().starts_with("deepbench"))
}

fn accepted(workload: &Workload<'_>, plan: &Plan) {
    let budgets = Budgets { device: plan.options.budget, host: plan.options.host_budget };
    let violations = check(workload, &plan.schedule, budgets);
    let first: Vec<_> = violations.iter().take(5).collect();
    assert!(violations.is_empty(), "{} {}: {} faults, {first:?}", plan.network, plan.options.policy, violations.len());
}

#[test]
fn every_network_under_every_policy_is_accepted_and_tight() {
    let costs = Costs::h200();
    let mut wasted: Vec<String> = Vec::new();
    for network in trainable() {
        let workload = Workload::new(&network, batch(network.name()), Types::F32, false).unwrap();
        let kernels = kernels(&workload);
        for policy in Policy::ALL {
            for algorithms in Algorithms::ALL {
                let options = Options { policy, algorithms, ..Options::default() };
                let loose = plan(&workload, &kernels, &costs, &options).unwrap();
                accepted(&workload, &loose);
                let middle = Bytes((loose.peak.0 + loose.min_feasible.0) / 2);
                for budget in [loose.peak, middle, loose.min_feasible] {
                    let options = Options { budget, ..options };
                    let plan = match plan(&workload, &kernels, &costs, &options) {
                        Ok(plan) => plan,
                        Err(Error::OverBudget { .. }) if algorithms == Algorithms::Performance => continue,
                        Err(error) => panic!("{} {policy} {algorithms}: {error}", network.name()),
                    };
                    accepted(&workload, &plan);
                    assert!(plan.peak <= budget);
                    if plan.fragmentation() > 0.1 {
                        wasted.push(format!("{} {policy} {algorithms} {budget}: {:.4}", network.name(), plan.fragmentation()));
                    }
                }
            }
        }
    }
    assert!(wasted.is_empty(), "{}: {wasted:#?}", wasted.len());
}
