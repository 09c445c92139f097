//! Slices along space, on the mock libraries: every algorithm computes them where they lie, and only engines that were
//! seen to compute them right are used.

use std::collections::BTreeSet;

use tightfit_conv::backend::{Effort, Scale};
use tightfit_conv::candidate::{Limit, Slices};
use tightfit_conv::problem::{Cuts, Dimension, Part};
use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, Notes, Operation, Problem, Types};
use tightfit_cuda::{CudaBackend, Options};
use tightfit_profile::survey::{Divide, Env, Scope, Sizes, survey};
use tightfit_test_support::mocks::Mocks;
use tightfit_units::{Bytes, Error, Nanos};

use crate::reference::Data;

const SCALES: [Scale; 2] = [Scale::OVERWRITE, Scale { alpha: 0.5, beta: 2.0 }];

/// The whole mini-batch in slices of `size`, the edges by `edge`, or `None` if an algorithm refuses its slices.
pub fn sliced(
    backend: &mut CudaBackend,
    problem: &Problem,
    [inner, edge]: [&Algorithm; 2],
    dimension: Dimension,
    size: usize,
) -> Option<Configuration> {
    let ranges = Cuts::new(problem, dimension).ranges(size);
    let last = ranges.len() - 1;
    let of = |place: usize| if place == 0 || place == last { edge.clone() } else { inner.clone() };
    let slices = Slices::new(dimension, ranges.iter().enumerate().map(|(i, range)| (range.len(), of(i)))).unwrap();
    let cost = backend.division_cost(problem).unwrap();
    let whole = |workspace| {
        let algorithm = slices.clone().into();
        let part = Candidate { micro_batch: problem.batch(), algorithm, time: Nanos(1), workspace };
        Configuration::new(vec![part], cost)
    };
    let calls = whole(Bytes::ZERO).calls(problem).unwrap();
    let mut workspace = Bytes::ZERO;
    for call in calls {
        match backend.workspace(&call.part.problem, &call.algorithm) {
            Ok(bytes) => workspace = workspace.max(bytes),
            Err(Error::Refused { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    }
    Some(whole(workspace))
}

#[test]
fn every_offer_computes_slices_where_they_lie() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { every_engine: true, untimed: true, ..mocks.options() }).unwrap();
    let mut computed: BTreeSet<(Operation, String)> = BTreeSet::new();
    let shapes = [
        ("n1 c8 h9 w8 k8 r3 s3 pad1", Dimension::H, 3),
        ("n2 c8 h9 w8 k8 r3 s3 pad1 nhwc", Dimension::H, 3),
        ("n1 c4 h6 w12 k6 r3 s2 pad0:1x2 stride2x1 dilation1x2 groups2", Dimension::W, 4),
        ("n1 c2 d7 h4 w4 k3 t3 r3 s1 pad1x1x0", Dimension::D, 2),
    ];
    for (shape, dimension, size) in shapes {
        for operation in Operation::ALL {
            for types in [Types::F32, Types::F16F32, Types::Bf16] {
                let problem: Problem = format!("{operation} {shape} {types}").parse().unwrap();
                let data = Data::whole(&problem);
                let expected = SCALES.map(|scale| data.expected(&problem, scale));
                // The edges, whose padding is uneven, by an engine that takes everything.
                let edge = Algorithm::new("engine0");
                for offer in backend.offers(&problem).unwrap().into_iter().filter(|offer| offer.workspace.is_ok()) {
                    let own = &offer.algorithm;
                    for edge in [own, &edge] {
                        let Some(configuration) = sliced(&mut backend, &problem, [own, edge], dimension, size) else {
                            continue;
                        };
                        for (scale, expected) in SCALES.into_iter().zip(&expected) {
                            let what = format!("{configuration} of {problem}");
                            let run = match backend.run(&problem, &configuration, data.tensors(), scale) {
                                // An engine may refuse to add to the output.
                                Err(Error::Refused { .. }) if own.name().starts_with("engine") => continue,
                                run => run.unwrap_or_else(|error| panic!("{what}: {error}")),
                            };
                            let transformed = offer.notes.contains(Notes::FFT) || offer.notes.contains(Notes::WINOGRAD);
                            for (place, (&got, &(want, size))) in run.output.iter().zip(expected).enumerate() {
                                let tolerance = if transformed { 2e-3 * size } else { 0.0 };
                                let error = (f64::from(got) - want).abs();
                                assert!(error <= tolerance, "{what}: {got} at {place}, {want} expected");
                            }
                            computed.insert((operation, own.name().to_owned()));
                        }
                    }
                }
            }
        }
    }
    for operation in Operation::ALL {
        let count =
            |start: &str| computed.iter().filter(|(o, name)| *o == operation && name.starts_with(start)).count();
        assert!(count("legacy:") >= 3 && count("engine") >= 5, "{operation}: {computed:?}");
    }
    drop(backend);
    mocks.assert_nothing_left("all slices");
}

#[test]
fn engines_that_refuse_strides_compute_slices_on_copies() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { every_engine: true, untimed: true, ..mocks.options() }).unwrap();
    let mut computed: BTreeSet<(Operation, String)> = BTreeSet::new();
    for (shape, dimension, size) in [
        ("n1 c8 h12 w8 k8 r3 s3 pad1", Dimension::H, 3),
        ("n2 c4 h12 w8 k8 r5 s5 pad2", Dimension::H, 4),
        ("n1 c2 d9 h6 w6 k3 t3 r3 s3 pad1", Dimension::D, 3),
    ] {
        for (operation, types) in Operation::ALL.into_iter().flat_map(|one| [(one, Types::F32), (one, Types::F16F32)]) {
            let problem: Problem = format!("{operation} {shape} {types}").parse().unwrap();
            let data = Data::whole(&problem);
            let middle = Cuts::new(&problem, dimension).ranges(size)[1].clone();
            let inner = Part::slice(&problem, 0..problem.batch(), dimension, middle).unwrap().problem;
            let offers = backend.offers(&inner).unwrap();
            let names: Vec<&str> = offers.iter().map(|offer| offer.algorithm.name()).collect();
            for offer in offers.iter().filter(|offer| offer.algorithm.name().starts_with("packed:")) {
                let name = offer.algorithm.name();
                let direct = offers.iter().find(|other| other.algorithm.name() == &name["packed:".len()..]);
                assert!(direct.is_none_or(|direct| direct.workspace.is_err()), "{name} among {names:?}");
                // The copies count.
                let own = backend.workspace(&inner.packed(), &Algorithm::new(&name["packed:".len()..])).unwrap();
                let copies = 4 * (inner.convolution().input_len() as u64) / if types == Types::F32 { 1 } else { 2 };
                assert!(offer.workspace.clone().unwrap().0 >= own.0 + copies, "{name} of {inner}");
                backend.measure(&inner, &offer.algorithm, &Effort::default()).unwrap();
                let edge = Algorithm::new("engine0");
                let configuration = sliced(&mut backend, &problem, [&offer.algorithm, &edge], dimension, size).unwrap();
                for scale in SCALES {
                    let run = backend.run(&problem, &configuration, data.tensors(), scale);
                    let run = run.unwrap_or_else(|error| panic!("{configuration} of {problem}: {error}"));
                    for (place, (&got, (want, size))) in
                        run.output.iter().zip(data.expected(&problem, scale)).enumerate()
                    {
                        let error = (f64::from(got) - want).abs();
                        assert!(
                            error <= 2e-3 * size,
                            "{configuration} of {problem}: {got} at {place}, {want} expected"
                        );
                    }
                }
                computed.insert((operation, name.to_owned()));
            }
        }
    }
    for operation in Operation::ALL {
        assert!(computed.iter().filter(|(one, _)| *one == operation).count() >= 2, "{computed:?}");
    }
    drop(backend);
    mocks.assert_nothing_left("slices on copies");
}

#[test]
fn an_engine_that_fails_on_a_slice_is_refused_by_name() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { every_engine: true, ..mocks.options() }).unwrap();
    for operation in Operation::ALL {
        for types in [Types::F32, Types::Bf16] {
            let read = |rest: &str| format!("{operation} n1 c8 h8 w8 k8 r3 s3 {rest}").parse::<Problem>().unwrap();
            let (plain, uneven) = (read(&format!("pad1 {types}")), read(&format!("pad1:0x1 {types}")));
            let view = read(&format!("pad0x1 {types} xh16 yh14"));
            let engine = Algorithm::new("engine0");
            for problem in [&plain, &uneven, &view] {
                let measured = backend.measure(problem, &engine, &Effort::default());
                measured.unwrap_or_else(|error| panic!("{problem}: {error}"));
            }
            mocks.spoil_engine(0);
            for problem in [&uneven, &view] {
                let error = backend.measure(problem, &engine, &Effort::default()).unwrap_err();
                assert!(matches!(error, Error::Refused { .. }), "{error}");
                assert!(
                    error.to_string().contains("engine0") && error.to_string().contains("computes wrong"),
                    "{error}"
                );
            }
            // Where nothing is known to fail, nothing is tried.
            backend.measure(&plain, &engine, &Effort::default()).unwrap();
            mocks.spoil_engine(-1);
        }
    }
}

#[test]
fn the_legacy_interface_refuses_one_sided_padding_by_name_and_takes_strides() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let legacy = Algorithm::new("legacy:implicit-gemm");
    let inner: Problem = "forward n1 c4 h6 w8 k4 r3 s3 pad0x1 f32 xh16 yh16".parse().unwrap();
    backend.measure(&inner, &legacy, &Effort::default()).unwrap();
    let edge: Problem = "forward n1 c4 h6 w8 k4 r3 s3 pad1:0x1 f32 xh16 yh16".parse().unwrap();
    let error = backend.measure(&edge, &legacy, &Effort::default()).unwrap_err();
    assert!(error.to_string().contains("legacy:implicit-gemm") && error.to_string().contains("padding"), "{error}");
}

#[test]
fn a_mini_batch_of_1_is_sliced_where_its_fast_algorithms_do_not_fit() {
    let mocks = Mocks::new();
    for operation in Operation::ALL {
        let problem: Problem = format!("{operation} n1 c8 h32 w8 k8 r3 s3 pad1 f16-f32").parse().unwrap();
        let limit = Bytes(6 << 10);
        let mut times = Vec::new();
        for divide in [Divide::Batch, Divide::Both] {
            let scope = Scope { divide, ..Scope::new(Sizes::Fit, Limit::PerKernel(limit).ladder()) };
            let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(mocks.backend())];
            let found = survey(&[problem], &scope, &mut backends, &Env::default()).unwrap();
            let candidates = &found.candidates[&problem];
            let best =
                tightfit_conv::optimize::divide(&problem, &candidates.candidates, limit, candidates.cost).unwrap();
            assert!(candidates.candidates.iter().any(|one| one.calls() > 1) == (divide == Divide::Both), "{operation}");
            times.push(best.time());
            if best.is_sliced() {
                let data = Data::whole(&problem);
                let run = backends[0].run(&problem, &best, data.tensors(), Scale::OVERWRITE).unwrap();
                let expected = data.expected(&problem, Scale::OVERWRITE);
                let wrong = run
                    .output
                    .iter()
                    .zip(&expected)
                    .position(|(&got, &(want, size))| (f64::from(got) - want).abs() > 2e-3 * size);
                assert_eq!(wrong, None, "{best}");
            }
        }
        assert!(times[1] <= times[0], "{operation}: {times:?}");
    }
}
