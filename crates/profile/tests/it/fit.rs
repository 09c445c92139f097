//! The `fit` sizes: on random recordings, `fit` finds an answer if one exists. On recorded devices, it is nearly as good as `all` for half the cost
//! of power-of-two.

use std::path::Path;

use proptest::prelude::*;
use tightfit_conv::candidate::Limit;
use tightfit_conv::optimize::{check, divide};
use tightfit_conv::{Algorithm, Backend, Candidate, Device, Layout, Measurement, Operation, Problem, Types};
use tightfit_network::{Network, distinct};
use tightfit_profile::survey::{Env, Scope, Sizes, Survey, survey};
use tightfit_profile::{Recording, Replay};
use tightfit_units::{Bytes, Error, Nanos};

const BATCH: usize = 24;

fn problem() -> Problem {
    format!("forward n{BATCH} c3 h8 w8 k4 r3 s3 f32").parse().unwrap()
}

/// Algorithm, size, time and workspace, with any holes, in any order, and with workspaces that fall where they should rise.
fn rows() -> impl Strategy<Value = Vec<(usize, usize, u64, u64)>> {
    proptest::collection::vec((0..5usize, 1..=BATCH, 1..1000u64, 0..60u64), 1..60)
}

fn recording(rows: &[(usize, usize, u64, u64)]) -> Recording {
    let device = Device { backend: "cuda".into(), name: "random".into(), library: "1".into(), threads: 0 };
    let mut recording = Recording::new(device);
    for &(algorithm, micro_batch, time, workspace) in rows {
        let measurement = Measurement {
            repeats: 3,
            ..Measurement::once(Algorithm::new(&format!("a{algorithm}")), micro_batch, Nanos(time), Bytes(workspace))
        };
        recording.add(&problem().shape(), measurement);
    }
    recording
}

fn replay(recording: &Recording) -> Vec<Box<dyn Backend>> {
    vec![Box::new(Replay::of([recording.clone()]).unwrap())]
}

fn found(recording: &Recording, sizes: Sizes, limit: Limit) -> Result<Vec<Candidate>, Error> {
    let scope = Scope::new(sizes, limit.ladder());
    let mut survey = survey(&[problem()], &scope, &mut replay(recording), &Env::default())?;
    Ok(survey.candidates.remove(&problem()).unwrap().candidates)
}

/// Time of AlexNet's kernels at 256 samples under a limit each, and one call of every candidate that was asked for.
fn alexnet(recording: &Recording, operations: &[Operation], sizes: Sizes, limit: Bytes) -> (Nanos, Nanos) {
    let network = Network::open("alexnet-1col").unwrap();
    let kernels = network.kernels(Some(256), operations, Types::F32, Layout::Nchw).unwrap();
    let problems: Vec<Problem> = distinct(&kernels).into_iter().map(|(problem, _)| problem).collect();
    let scope = Scope::new(sizes, Limit::PerKernel(limit).ladder());
    let survey = survey(&problems, &scope, &mut replay(recording), &Env::default()).unwrap();
    let time = |problem: &Problem| {
        let found = &survey.candidates[problem];
        divide(problem, &found.candidates, limit, found.cost).unwrap().time()
    };
    (kernels.iter().map(|kernel| time(&kernel.problem)).sum(), survey.spent.kernel_time)
}

/// Both libraries' interfaces, with every size from 1 to 256 recorded. Times come from the recording, so they are reproducible.
#[test]
fn fit_is_nearly_as_fast_as_all_sizes_for_half_the_cost_of_powers_of_two() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/recorded");
    let recorded = [
        ("h200-legacy-alexnet-1col-all.jsonl.gz", &Operation::ALL[..], &[64, 128, 384][..]),
        ("h200-2026-11-21-all-sizes.jsonl.gz", &[Operation::Forward], &[64, 128, 384]),
        // One of its kernels takes 250 times longer at its largest size than at the size below.
        ("h200-alexnet-1col-all.jsonl.gz", &Operation::ALL, &[64, 512]),
    ];
    for (file, operations, limits) in recorded {
        let recordings = Recording::read(&folder.join(file)).unwrap();
        let [recording] = &recordings[..] else { panic!("{file} is of one device") };
        // Under limits that hardly any candidate fits, power-of-two has few candidates and costs little; see docs/results.md.
        for limit in limits.iter().copied().map(Bytes::mib) {
            let (fit, fit_cost) = alexnet(recording, operations, Sizes::Fit, limit);
            let (all, all_cost) = alexnet(recording, operations, Sizes::All, limit);
            let (_, power_cost) = alexnet(recording, operations, Sizes::PowerOfTwo, limit);
            assert!(all_cost > power_cost * 10, "{file}, {limit}: not all sizes are recorded");
            assert!(fit.ratio(all) <= 1.01, "{file}, {limit}: {fit} against {all}");
            assert!(fit_cost.ratio(power_cost) <= 0.5, "{file}, {limit}: cost {fit_cost} against {power_cost}");
        }
    }
}

/// A plan that computes a stretch in parts knows nearly the least times of these, for a mini-batch of any size.
#[test]
fn parts_of_a_mini_batch_are_nearly_as_fast_as_of_all_sizes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/recorded");
    let [recording] = &Recording::read(&folder.join("h200-legacy-alexnet-1col-all.jsonl.gz")).unwrap()[..] else {
        panic!("one device")
    };
    let network = Network::open("alexnet-1col").unwrap();
    let limit = Bytes::mib(384);
    for (batch, parts) in [(176, [88, 44, 22, 11]), (250, [125, 63, 31, 16])] {
        let kernels = network.kernels(Some(batch), &Operation::ALL, Types::F32, Layout::Nchw).unwrap();
        let problems: Vec<Problem> = distinct(&kernels).into_iter().map(|(problem, _)| problem).collect();
        let run = |sizes: Sizes, parts: &[usize]| {
            let parts = problems.iter().map(|problem| (*problem, parts.to_vec())).collect();
            let scope = Scope { parts, ..Scope::new(sizes, Limit::PerKernel(limit).ladder()) };
            survey(&problems, &scope, &mut replay(recording), &Env::default()).unwrap()
        };
        let (whole, fit, all) = (run(Sizes::Fit, &[]), run(Sizes::Fit, &parts), run(Sizes::All, &[]));
        let mut unknown = 0;
        for part in parts {
            let time = |survey: &Survey| -> Option<Nanos> {
                let times = problems.iter().map(|problem| {
                    let found = &survey.candidates[problem];
                    let part = problem.with_batch(part).unwrap();
                    divide(&part, &found.candidates, limit, found.cost).ok().map(|found| found.time())
                });
                times.sum()
            };
            let (fit, all) = (time(&fit).unwrap(), time(&all).unwrap());
            assert!(fit.ratio(all) <= 1.05, "{part} of {batch}: {fit} against {all}");
            unknown += usize::from(time(&whole).is_none_or(|whole| whole.ratio(all) > 1.5));
        }
        assert!(unknown >= 2, "the sizes for {batch} do not do for its parts");
        let more = fit.spent.kernel_time.ratio(whole.spent.kernel_time);
        assert!(more <= 1.7, "{more}");
    }
}

proptest! {
    #[test]
    fn fit_answers_where_all_sizes_do(rows in rows(), limit in 0..60u64) {
        let recording = recording(&rows);
        let limit = Bytes(limit);
        let all = found(&recording, Sizes::All, Limit::PerKernel(limit));
        let fit = found(&recording, Sizes::Fit, Limit::PerKernel(limit));
        prop_assert_eq!(all.is_ok(), fit.is_ok(), "{:?} {:?}", all, fit);
        if let (Ok(all), Ok(fit)) = (all, fit) {
            let divided = divide(&problem(), &fit, limit, Default::default()).unwrap();
            prop_assert_eq!(check::check_configuration(&problem(), &fit, limit, Default::default(), &divided), vec![]);
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
        let all = found(&recording, Sizes::All, Limit::Total(Bytes(total)));
        let fit = found(&recording, Sizes::Fit, Limit::Total(Bytes(total)));
        prop_assert_eq!(all.is_ok(), fit.is_ok(), "{:?} {:?}", all, fit);
        if let (Ok(all), Ok(fit)) = (all, fit) {
            prop_assert_eq!(least(&fit), least(&all));
        }
    }
}
