//! Slices along space as candidates: when they are found, what they do not change, and how they are stored.

use std::collections::BTreeSet;

use tightfit_conv::backend::{Effort, Run, Scale, Tensors};
use tightfit_conv::candidate::{Call, Limit};
use tightfit_conv::optimize::{check, divide, front};
use tightfit_conv::problem::Dimension;
use tightfit_conv::{
    Algorithm, Backend, Candidate, Configuration, Device, DivisionCost, Measurement, Notes, Offer, Operation, Problem,
};
use tightfit_profile::survey::{Divide, Env, Scope, Sizes, survey};
use tightfit_profile::{Cache, Decision, Replay};
use tightfit_units::{Bytes, Error, Nanos};

use crate::decisions::key;

/// A device with two algorithms. One takes 10 ns a position and no workspace. The other takes 1 ns and 64 bytes a position it reads. Both take 20 ns
/// a call. Fields make the fast one refuse uneven padding, or fewer rows than 64, or take 20 ns a position for columns that are part of longer rows,
/// and 2 ns on copies of these.
struct TwoAlgorithms {
    device: Device,
    only_even: bool,
    all_rows: bool,
    slow_columns: bool,
    measured: usize,
}

impl TwoAlgorithms {
    fn new() -> TwoAlgorithms {
        let device =
            Device { backend: "cpu".to_owned(), name: "made up".to_owned(), library: "two".to_owned(), threads: 0 };
        TwoAlgorithms { device, only_even: false, all_rows: false, slow_columns: false, measured: 0 }
    }
}

impl Backend for TwoAlgorithms {
    fn device(&self) -> &Device {
        &self.device
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        let offer = |name: &str| {
            let algorithm = Algorithm::new(name);
            let workspace = self.workspace(problem, &algorithm).map_err(|error| error.to_string());
            Offer { algorithm, notes: Notes::NONE, workspace }
        };
        Ok(["fast", "slow"].map(offer).to_vec())
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        let refused = |reason: &str| Error::Refused {
            algorithm: "fast".to_owned(),
            problem: problem.to_string(),
            reason: reason.to_owned(),
        };
        let uneven = problem.convolution().axes().iter().any(|axis| axis.pad_before != axis.pad_after);
        match algorithm.name() {
            "fast" if self.only_even && uneven => Err(refused("pads evenly")),
            "fast" if self.all_rows && Dimension::H.extent(problem) < 64 => Err(refused("takes all rows")),
            "fast" => Ok(Bytes(64 * problem.input_len() as u64)),
            "packed:fast" if self.slow_columns => Ok(Bytes(66 * problem.input_len() as u64)),
            "slow" => Ok(Bytes::ZERO),
            _ => Err(refused("is not there")),
        }
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, _: &Effort) -> Result<Measurement, Error> {
        self.measured += 1;
        let workspace = self.workspace(problem, algorithm)?;
        let each = match algorithm.name() {
            "fast" if self.slow_columns && !problem.is_packed() => 20,
            "fast" => 1,
            "packed:fast" if self.slow_columns => 2,
            _ => 10,
        };
        Ok(Measurement {
            repeats: 3,
            ..Measurement::once(
                algorithm.clone(),
                problem.batch(),
                Nanos(20 + each * problem.output_len() as u64),
                workspace,
            )
        })
    }

    fn run(&mut self, _: &Problem, _: &Configuration, _: Tensors<'_>, _: Scale) -> Result<Run, Error> {
        unreachable!("nothing is run here")
    }
}

fn problem(operation: Operation, batch: usize) -> Problem {
    format!("{operation} n{batch} c1 h64 w16 k1 r3 s3 pad1 f32").parse().unwrap()
}

fn candidates(along: Divide, limit: Limit, problem: Problem, backend: TwoAlgorithms, env: &Env<'_>) -> Vec<Candidate> {
    let scope = Scope { divide: along, ..Scope::new(Sizes::Fit, limit.ladder()) };
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(backend)];
    let mut found = survey(&[problem], &scope, &mut backends, env).unwrap();
    found.candidates.remove(&problem).unwrap().candidates
}

fn best(along: Divide, limit: u64, problem: Problem) -> Configuration {
    let limit = Bytes(limit);
    let found = candidates(along, Limit::PerKernel(limit), problem, TwoAlgorithms::new(), &Env::default());
    let free = DivisionCost::default();
    let best = divide(&problem, &found, limit, free).unwrap();
    assert_eq!(check::check_configuration(&problem, &found, limit, free, &best), vec![]);
    let points = front(&problem, &found, limit, free).unwrap();
    assert_eq!(check::check_front(&problem, &found, limit, free, &points), vec![]);
    best
}

/// Workspace of the fast algorithm on this many rows.
const fn rows(count: u64) -> u64 {
    64 * 16 * count
}

#[test]
fn a_mini_batch_of_1_runs_its_fast_algorithm_in_slices_that_fit() {
    for operation in Operation::ALL {
        let problem = problem(operation, 1);
        let batch = best(Divide::Batch, rows(20), problem);
        assert_eq!(batch.to_string(), "1 slow");
        let both = best(Divide::Both, rows(20), problem);
        assert_eq!(both, best(Divide::Space, rows(20), problem));
        assert!(both.is_sliced() && both.time() * 5 < batch.time(), "{operation}: {both}");
        assert!(both.to_string().contains("16 fast"), "{operation}: {both}");
        // The calls cover the whole, each within the limit.
        let calls = both.calls(&problem).unwrap();
        let extent = |call: &Call| match operation {
            Operation::BackwardData => call.part.problem.convolution().inputs()[1],
            _ => call.part.problem.convolution().outputs()[1],
        };
        assert_eq!(calls.iter().map(extent).sum::<usize>(), 64);
        assert_eq!(
            calls.iter().filter(|call| call.adds).count() + 1,
            match operation {
                Operation::BackwardFilter => calls.len(),
                _ => 1,
            }
        );
        // Where everything fits, nothing is sliced.
        assert_eq!(best(Divide::Both, rows(64), problem).to_string(), "1 fast");
    }
}

#[test]
fn the_batch_is_divided_first_and_small_batches_of_large_samples_both_ways() {
    let forward = |batch| problem(Operation::Forward, batch);
    // A sample fits: micro-batches alone.
    assert_eq!(best(Divide::Both, rows(64), forward(16)).to_string(), "16 x 1 fast");
    // Half a sample fits: six samples, each in slices; two samples, in slices of both.
    let six = best(Divide::Both, rows(40), forward(6));
    assert_eq!((six.parts().len(), six.is_sliced(), six.batch()), (6, true, 6), "{six}");
    let two = best(Divide::Both, rows(40), forward(2));
    assert_eq!((two.parts().len(), two.is_sliced(), two.batch()), (1, true, 2), "{two}");
    // Off is undivided.
    assert_eq!(best(Divide::Off, rows(40), forward(2)).to_string(), "2 slow");
}

#[test]
fn no_division_that_was_best_before_is_lost() {
    for batch in [1, 2, 3, 6, 32] {
        for limit in [0, rows(3), rows(20), rows(64), rows(200)] {
            for operation in Operation::ALL {
                let problem = problem(operation, batch);
                let [before, now] = [Divide::Batch, Divide::Both].map(|along| best(along, limit, problem).time());
                assert!(now <= before, "{problem} within {limit}: {now}, {before} before");
            }
        }
    }
}

#[test]
fn edges_take_another_algorithm_where_the_fast_one_refuses() {
    let forward = problem(Operation::Forward, 1);
    let limit = Bytes(rows(20));
    let backend = TwoAlgorithms { only_even: true, ..TwoAlgorithms::new() };
    let found = candidates(Divide::Both, Limit::PerKernel(limit), forward, backend, &Env::default());
    let best = divide(&forward, &found, limit, DivisionCost::default()).unwrap();
    let slices = best.parts()[0].algorithm.slices().unwrap();
    let names: Vec<&str> = slices.ranges().map(|(_, algorithm)| algorithm.name()).collect();
    assert_eq!((names[0], names[1], names[names.len() - 1]), ("slow", "fast", "slow"), "{best}");
}

#[test]
fn the_next_axis_is_sliced_where_no_slices_along_the_first_fit() {
    // Six columns: four and the halo, since cuts keep slices aligned.
    let limit = rows(24);
    for operation in Operation::ALL {
        let problem = problem(operation, 1);
        let backend = TwoAlgorithms { all_rows: true, ..TwoAlgorithms::new() };
        let found = candidates(Divide::Both, Limit::PerKernel(Bytes(limit)), problem, backend, &Env::default());
        let best = divide(&problem, &found, Bytes(limit), DivisionCost::default()).unwrap();
        assert!(best.to_string().contains("w4 fast"), "{operation}: {best}");
    }
}

#[test]
fn slices_along_an_inner_axis_are_measured_on_copies_as_well() {
    let limit = rows(26);
    for operation in Operation::ALL {
        let problem = problem(operation, 1);
        let backend = TwoAlgorithms { all_rows: true, slow_columns: true, ..TwoAlgorithms::new() };
        let found = candidates(Divide::Both, Limit::PerKernel(Bytes(limit)), problem, backend, &Env::default());
        let best = divide(&problem, &found, Bytes(limit), DivisionCost::default()).unwrap();
        assert!(best.to_string().contains("w4 packed:fast"), "{operation}: {best}");
    }
}

#[test]
fn large_samples_of_a_large_mini_batch_are_sliced() {
    let wide = |batch| format!("forward n{batch} c1 h64 w4096 k1 r3 s3 pad1 f32").parse::<Problem>().unwrap();
    // Input and output of a sample take 2 MiB, and the fast algorithm 16 MiB.
    for (batch, limit, is_sliced) in [(8, 1 << 20, true), (9, 1 << 20, true), (9, 3 << 20, false), (9, 1 << 14, false)]
    {
        let best = best(Divide::Both, limit, wide(batch));
        assert_eq!(best.is_sliced(), is_sliced, "{batch} samples within {limit} bytes: {best}");
    }
}

#[test]
fn one_total_gives_a_kernel_slices_of_the_share_it_gets() {
    let forward = problem(Operation::Forward, 1);
    let total = Bytes(rows(40));
    let found = candidates(Divide::Both, Limit::Total(total), forward, TwoAlgorithms::new(), &Env::default());
    let points = front(&forward, &found, total, DivisionCost::default()).unwrap();
    assert!(points.iter().filter(|point| point.is_sliced()).count() >= 3, "{points:?}");
}

#[test]
fn slices_are_kept_in_the_cache_and_answered_from_it_and_from_its_export() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let env = Env { cache: Some(&cache), ..Env::default() };
    let (forward, limit) = (problem(Operation::Forward, 1), Limit::PerKernel(Bytes(rows(20))));
    let first = candidates(Divide::Both, limit, forward, TwoAlgorithms::new(), &env);
    let scope = Scope::new(Sizes::Fit, limit.ladder());
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(TwoAlgorithms::new())];
    let again = survey(&[forward], &scope, &mut backends, &env).unwrap();
    assert_eq!((again.spent.measured, &again.candidates[&forward].candidates), (0, &first));
    let exported = cache.recordings().unwrap();
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Replay::of(exported).unwrap())];
    let replayed = survey(&[forward], &scope, &mut backends, &Env::default()).unwrap();
    assert_eq!(replayed.candidates[&forward].candidates, first);
}

#[test]
fn a_decision_for_slices_is_found_again_and_one_for_other_slices_refused() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let device = TwoAlgorithms::new().device;
    let decision = |name: &str| {
        let (algorithm, time, workspace) = (Algorithm::new(name), Nanos(70), Bytes(1024));
        let parts = [4, 2].map(|micro_batch| Candidate { micro_batch, algorithm: algorithm.clone(), time, workspace });
        let configuration = Some(Configuration::new(parts.to_vec(), DivisionCost::default()));
        Decision { configuration, framework_time: Some(Nanos(300)), is_final: true }
    };
    // Six outputs along h.
    let own = decision("2 x h3 engine2:k25=1");
    cache.keep_decision(&device, &key(), &own).unwrap();
    assert_eq!(cache.decision(&device, &key()).unwrap(), Some(own));
    let refused = cache.keep_decision(&device, &key(), &decision("2 x h4 engine2:k25=1")).unwrap_err().to_string();
    assert!(refused.contains("slices have h8 together, not h6"), "{refused}");
}

#[test]
fn slices_may_need_the_least_workspace() {
    struct OnlyFast(TwoAlgorithms);
    impl Backend for OnlyFast {
        fn device(&self) -> &Device {
            self.0.device()
        }
        fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
            Ok(self.0.offers(problem)?.into_iter().filter(|offer| offer.algorithm.name() == "fast").collect())
        }
        fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
            self.0.workspace(problem, algorithm)
        }
        fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error> {
            self.0.measure(problem, algorithm, effort)
        }
        fn run(&mut self, p: &Problem, c: &Configuration, t: Tensors<'_>, s: Scale) -> Result<Run, Error> {
            self.0.run(p, c, t, s)
        }
    }
    let forward = problem(Operation::Forward, 1);
    let needed: BTreeSet<u64> = [Divide::Batch, Divide::Both]
        .into_iter()
        .map(|along| {
            let scope = Scope { divide: along, ..Scope::new(Sizes::Fit, vec![Bytes(rows(1))]) };
            let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(OnlyFast(TwoAlgorithms::new()))];
            match survey(&[forward], &scope, &mut backends, &Env::default()).unwrap_err() {
                Error::OverLimit { needed, .. } => needed.0,
                error => panic!("{error}"),
            }
        })
        .collect();
    // One row reads three.
    assert_eq!(needed, BTreeSet::from([rows(3), rows(64)]));
}
