//! Measures, plans and trains: a small network learns digits on the CPU, in a fixed arena whose size is known beforehand.

use std::sync::Arc;

use tightfit_conv::{Backend, Types};
use tightfit_cpu::CpuBackend;
use tightfit_network::built_in;
use tightfit_plan::{CostModel, Fronts, Mode, Options, Policy, Workload, plan};
use tightfit_profile::survey::{Env, Scope, Sizes, survey};
use tightfit_train::data::{self, Loader};
use tightfit_train::machine::cpu::{CpuMachine, Options as CpuOptions};
use tightfit_train::{Engine, Poison, Solver, evaluate};
use tightfit_units::Bytes;

const BATCH: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let network = built_in("digits-net")?;
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training)?;

    // Every algorithm on the whole mini-batch, in at most 1 MiB.
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(CpuBackend::new(None))];
    let scope = Scope::new(Sizes::Undivided, vec![Bytes::mib(1)]);
    let found = survey(&workload.problems()?, &scope, &mut backends, &Env::default())?;

    let costs = CostModel::cpu();
    let step = workload.step(&Fronts::of(&found.candidates)?, &costs)?;
    let options = Options { policy: Policy::VdnnAll, budget: Bytes::mib(8), ..Options::default() };
    let plan = plan(&step, &costs, &options)?;
    println!("an arena of {}, {} of it in use at once", plan.peak, plan.most_live);

    let dataset = data::open("digits", network.layers()[0].shape, 10, 1)?;
    let machine = || CpuMachine::new(CpuOptions::default());
    let mut engine = Engine::new(&workload, &plan.schedule, machine(), Solver::default(), Poison::Nothing)?;
    for (number, batch) in Loader::shuffled(Arc::clone(&dataset.train), BATCH, 1)?.take(60).enumerate() {
        let batch = batch?;
        let outcome = engine.step(&batch.samples, &batch.labels)?;
        if number % 20 == 0 {
            println!("step {number}: loss {:.3}", outcome.loss);
        }
    }

    let learned = engine.learned()?;
    if let Some(test) = dataset.test {
        let score = evaluate(machine(), &workload, &plan.schedule, &learned, test)?;
        println!("{:.1}% of {} digits read", score.accuracy() * 100.0, score.samples);
    }
    Ok(())
}

#[test]
fn runs() {
    main().unwrap();
}
