//! The `fit` policy on random recordings: whatever it leaves out, it finds an answer where there is one.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use tightfit_core::candidate::Limit;
use tightfit_core::optimize::{check, divide};
use tightfit_core::profile::{Recording, Replay};
use tightfit_core::survey::{Policy, Scope, Silent, survey};
use tightfit_core::{Algorithm, Backend, Bytes, Candidate, Device, Error, Measurement, Nanos, Notes, Problem};

const BATCH: usize = 24;

fn problem() -> Problem {
    format!("forward n{BATCH} c3 h8 w8 k4 r3 s3 f32").parse().unwrap()
}

/// Algorithm, size, time and workspace: any holes, any order, workspaces that fall where they should rise.
fn rows() -> impl Strategy<Value = Vec<(usize, usize, u64, u64)>> {
    proptest::collection::vec((0..5usize, 1..=BATCH, 1..1000u64, 0..60u64), 1..60)
}

fn recording(rows: &[(usize, usize, u64, u64)]) -> Recording {
    let device = Device { backend: "cuda".into(), name: "random".into(), library: "1".into(), threads: 0 };
    let mut recording = Recording::new(device);
    for &(algorithm, micro_batch, time, workspace) in rows {
        let measurement = Measurement {
            algorithm: Algorithm::new(&format!("a{algorithm}")),
            micro_batch,
            time: Nanos(time),
            single: None,
            workspace: Bytes(workspace),
            spread: 0.0,
            repeats: 3,
            notes: Notes::NONE,
        };
        recording.add(&problem().shape(), measurement);
    }
    recording
}

fn found(recording: &Recording, policy: Policy, limit: Limit) -> Result<Vec<Candidate>, Error> {
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Replay::of([recording.clone()]).unwrap())];
    let stop = AtomicBool::new(false);
    let scope = Scope {
        policy,
        limits: limit.ladder(),
        baseline: None,
        deterministic: false,
        exact_class: false,
        cache: None,
        stop: &stop,
    };
    let mut survey = survey(&[problem()], &scope, &mut backends, &Silent)?;
    Ok(survey.candidates.remove(&problem()).unwrap().candidates)
}

proptest! {
    #[test]
    fn fit_answers_where_all_sizes_do(rows in rows(), limit in 0..60u64) {
        let recording = recording(&rows);
        let limit = Bytes(limit);
        let all = found(&recording, Policy::All, Limit::PerKernel(limit));
        let fit = found(&recording, Policy::Fit, Limit::PerKernel(limit));
        prop_assert_eq!(all.is_ok(), fit.is_ok(), "{:?} {:?}", all, fit);
        if let (Ok(all), Ok(fit)) = (all, fit) {
            let divided = divide(&problem(), &fit, limit, Default::default()).unwrap();
            prop_assert_eq!(check::check_configuration(&problem(), &fit, limit, Default::default(), &divided), vec![]);
            let best = divide(&problem(), &all, limit, Default::default()).unwrap();
            prop_assert!(best.time() <= divided.time());
            // The whole mini-batch is among the sizes wherever an algorithm computes it within the limit.
            let whole = |candidates: &[Candidate]| candidates.iter().any(|c| c.micro_batch == BATCH && c.workspace <= limit);
            prop_assert_eq!(whole(&all), whole(&fit));
        }
    }

    #[test]
    fn fit_under_a_total_knows_the_least_workspace(rows in rows(), total in 0..60u64) {
        let recording = recording(&rows);
        let least = |candidates: &[Candidate]| match divide(&problem(), candidates, Bytes(0), Default::default()) {
            Ok(_) => Bytes(0),
            Err(Error::OverLimit { needed, .. }) => needed,
            Err(error) => panic!("{error}"),
        };
        let all = found(&recording, Policy::All, Limit::Total(Bytes(total)));
        let fit = found(&recording, Policy::Fit, Limit::Total(Bytes(total)));
        prop_assert_eq!(all.is_ok(), fit.is_ok(), "{:?} {:?}", all, fit);
        if let (Ok(all), Ok(fit)) = (all, fit) {
            prop_assert_eq!(least(&fit), least(&all));
        }
    }
}
