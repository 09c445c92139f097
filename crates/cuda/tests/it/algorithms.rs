//! Every algorithm of both families computes the convolution, whole and divided, for any factors; on the mock
//! libraries.

use std::collections::BTreeSet;

use tightfit_conv::backend::{Effort, Scale};
use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, Notes, Operation, Problem, Types};
use tightfit_cuda::{CudaBackend, Options};
use tightfit_test_support::mocks::Mocks;
use tightfit_units::{Error, Nanos};

use crate::reference::Data;

const SCALES: [Scale; 3] = [Scale::OVERWRITE, Scale { alpha: 1.0, beta: 1.0 }, Scale { alpha: 0.5, beta: 2.0 }];

fn problem(text: &str) -> Problem {
    text.parse().unwrap()
}

/// A configuration of one algorithm on these micro-batches, with its workspaces as the backend says them.
fn configuration(
    backend: &mut CudaBackend,
    problem: &Problem,
    algorithm: &Algorithm,
    sizes: &[usize],
) -> Result<Configuration, Error> {
    let mut parts = Vec::new();
    for &micro_batch in sizes {
        let workspace = backend.workspace(&problem.with_batch(micro_batch)?, algorithm)?;
        parts.push(Candidate { micro_batch, algorithm: algorithm.clone(), time: Nanos(1), workspace });
    }
    Ok(Configuration::new(parts, backend.division_cost(problem)?))
}

/// Whole numbers are exact but through transforms, whose error the mock keeps within a thousandth of the magnitudes.
fn assert_right(output: &[f32], expected: &[(f64, f64)], notes: Notes, what: &str) {
    let transformed = notes.contains(Notes::FFT) || notes.contains(Notes::WINOGRAD);
    assert_eq!(output.len(), expected.len());
    for (place, (&got, &(want, size))) in output.iter().zip(expected).enumerate() {
        let tolerance = if transformed { 2e-3 * size } else { 0.0 };
        assert!((f64::from(got) - want).abs() <= tolerance, "{what}: {got} at {place}, {want} expected");
    }
}

#[test]
fn every_offer_computes_the_convolution_whole_and_divided() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { every_engine: true, untimed: true, ..mocks.options() }).unwrap();
    let mut computed: BTreeSet<(Operation, String)> = BTreeSet::new();
    let shapes = [
        "c3 h6 w5 k4 r3 s3 pad1",
        "c8 h7 w7 k8 r5 s5 pad2 groups1 nhwc",
        "c4 h9 w8 k6 r3 s2 pad0:1x2 stride2x1 dilation1x2 groups2",
        "c8 h5 w6 k16 r3 s3 pad1 stride2 groups2 nhwc",
        "c2 d4 h5 w3 k3 t2 r3 s1 pad1x1x0",
    ];
    for (place, shape) in shapes.into_iter().enumerate() {
        for operation in Operation::ALL {
            // Every type on two shapes, two on each of the others.
            let types = if place < 2 { &Types::ALL[..] } else { &[Types::F32, Types::F16F32] };
            for types in types {
                let problem = problem(&format!("{operation} n5 {shape} {types}"));
                let data = Data::whole(&problem);
                let expected = SCALES.map(|scale| data.expected(&problem, scale));
                for offer in backend.offers(&problem).unwrap() {
                    if offer.workspace.is_err() {
                        continue;
                    }
                    // Factors change along: undivided, divided, and divided with all that factors can ask for.
                    for ((sizes, scale), expected) in
                        [&[5][..], &[3, 2], &[2, 1, 2]].into_iter().zip(SCALES).zip(&expected)
                    {
                        let what = format!("{} of {problem} as {sizes:?}", offer.algorithm);
                        let configuration = match configuration(&mut backend, &problem, &offer.algorithm, sizes) {
                            Err(Error::Refused { .. }) => continue,
                            configuration => configuration.unwrap(),
                        };
                        let run = match backend.run(&problem, &configuration, data.tensors(), scale) {
                            // An engine may refuse the alignment of a micro-batch, or to add to the output.
                            Err(Error::Refused { .. }) if offer.algorithm.name().starts_with("engine") => continue,
                            run => run.unwrap_or_else(|error| panic!("{what}: {error}")),
                        };
                        assert_right(&run.output, expected, offer.notes, &what);
                        computed.insert((operation, offer.algorithm.name().to_owned()));
                    }
                }
            }
        }
    }
    for (operation, least) in Operation::ALL.into_iter().zip([7, 6, 6]) {
        let count_of =
            |start: &str| computed.iter().filter(|(o, name)| *o == operation && name.starts_with(start)).count();
        assert!(count_of("legacy:") >= least && count_of("engine") >= 9, "{operation}: {computed:?}");
    }
    drop(backend);
    mocks.assert_nothing_left("all offers");
}

#[test]
fn half_gradients_are_summed_in_f32() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    // 2048 + 1 is not a number of f16, so a sum kept in f16 would stay at 2048.
    for types in [Types::F16, Types::F16F32, Types::Bf16] {
        let problem = problem(&format!("backward-filter n3 c1 h1 w1 k1 r1 s1 {types}"));
        let data = Data { data: vec![64.0, 1.0, 1.0], other: vec![32.0, 1.0, 1.0], output: vec![f32::NAN] };
        let expected = if types == Types::Bf16 { 2048.0 } else { 2050.0 };
        let offers = backend.offers(&problem).unwrap();
        let usable: Vec<_> = offers.iter().filter(|offer| offer.workspace.is_ok()).collect();
        assert!(usable.iter().any(|offer| offer.algorithm.name().starts_with("legacy:")));
        assert!(usable.iter().any(|offer| offer.algorithm.name().starts_with("engine")));
        let mut summed = BTreeSet::new();
        for offer in usable {
            let configuration = configuration(&mut backend, &problem, &offer.algorithm, &[1, 1, 1]).unwrap();
            match backend.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE) {
                Ok(run) => assert_eq!(run.output, [expected], "{} {types}", offer.algorithm),
                Err(Error::Refused { .. }) => continue,
                Err(error) => panic!("{}: {error}", offer.algorithm),
            }
            summed.insert(offer.algorithm.name()[..6].to_owned());
        }
        assert_eq!(summed, BTreeSet::from(["engine".to_owned(), "legacy".to_owned()]), "{types}");
    }
}

#[test]
fn filter_gradients_beyond_a_launchs_channel_limit_are_summed() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let problem = problem("backward-filter n2 c1024 h1 w1 k1025 r1 s1 f16-f32");
    let data = Data::whole(&problem);
    let expected = data.expected(&problem, Scale::OVERWRITE);
    let algorithm = Algorithm::new("legacy:algo-0");
    let configuration = configuration(&mut backend, &problem, &algorithm, &[1, 1]).unwrap();
    let run = backend.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE).unwrap();
    assert_right(&run.output, &expected, Notes::default(), "two micro-batches");
}

#[test]
fn an_unread_output_may_hold_anything() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    for operation in Operation::ALL {
        for types in [Types::F32, Types::F16] {
            let problem = problem(&format!("{operation} n4 c8 h4 w4 k8 r3 s3 pad1 {types}"));
            let mut data = Data::whole(&problem);
            data.output.fill(f32::NAN);
            for name in ["legacy:algo-1", "legacy:implicit-gemm", "engine0"] {
                let algorithm = Algorithm::new(name);
                let Ok(configuration) = configuration(&mut backend, &problem, &algorithm, &[2, 2]) else { continue };
                let run = backend.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE).unwrap();
                let expected = data.expected(&problem, Scale::OVERWRITE);
                assert_right(&run.output, &expected, Notes::NONE, &format!("{name} of {problem}"));
            }
        }
    }
}

#[test]
fn a_captured_configuration_computes_the_same() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { capture: true, ..mocks.options() }).unwrap();
    for text in ["forward n5 c4 h6 w6 k4 r3 s3 pad1 f32", "backward-filter n5 c8 h6 w6 k8 r3 s3 pad1 f16-f32"] {
        let problem = problem(text);
        let data = Data::whole(&problem);
        for name in ["legacy:algo-1", "legacy:gemm", "engine0"] {
            let Ok(configuration) = configuration(&mut backend, &problem, &Algorithm::new(name), &[3, 2]) else {
                continue;
            };
            let run = backend.run(&problem, &configuration, data.tensors(), SCALES[2]).unwrap();
            assert_right(&run.output, &data.expected(&problem, SCALES[2]), Notes::NONE, name);
        }
    }
    assert!(mocks.calls("cuGraphLaunch") >= 6);
    drop(backend);
    mocks.assert_nothing_left("captures");
}

#[test]
fn micro_batches_run_late_without_the_host_waiting_between_them() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let problem = problem("backward-filter n6 c8 h5 w5 k8 r3 s3 pad1 f16-f32");
    let data = Data::whole(&problem);
    let algorithm = Algorithm::new("legacy:algo-1");
    mocks.delay(300);
    let mut waits = Vec::new();
    for sizes in [&[3, 3][..], &[1; 6]] {
        let configuration = configuration(&mut backend, &problem, &algorithm, sizes).unwrap();
        let before = mocks.count("synchronizations");
        let run = backend.run(&problem, &configuration, data.tensors(), SCALES[1]).unwrap();
        waits.push(mocks.count("synchronizations") - before);
        assert_right(&run.output, &data.expected(&problem, SCALES[1]), Notes::NONE, "delayed");
    }
    assert_eq!(waits[0], waits[1], "six micro-batches wait as often as two");
}

#[test]
fn every_offer_is_measured_or_refused() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    for operation in Operation::ALL {
        for types in Types::ALL {
            // Samples of an odd number of elements: the least alignment there is.
            let problem = problem(&format!("{operation} n3 c3 h5 w5 k5 r3 s3 pad1 {types}"));
            let mut measured = 0;
            for offer in backend.offers(&problem).unwrap() {
                match (backend.measure(&problem, &offer.algorithm, &Effort::default()), offer.workspace) {
                    (Ok(measurement), Ok(workspace)) => {
                        assert_eq!(measurement.workspace, workspace);
                        assert_eq!((measurement.micro_batch, measurement.notes), (3, offer.notes));
                        assert!(measurement.time > Nanos::ZERO && measurement.single.is_some());
                        assert_eq!(backend.workspace(&problem, &offer.algorithm).unwrap(), workspace);
                        measured += 1;
                    }
                    // An engine may refuse the alignment once its plan is built.
                    (Err(Error::Refused { .. }), _) => {}
                    (measured, offered) => panic!("{} of {problem}: {measured:?}, {offered:?}", offer.algorithm),
                }
            }
            assert!(measured >= 4, "{problem}: only {measured} measured");
        }
    }
    drop(backend);
    mocks.assert_nothing_left("measuring");
}

#[test]
fn a_slow_candidate_is_run_once_more_at_most() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let problem = problem("forward n8 c32 h28 w28 k32 r3 s3 pad1 f32");
    let algorithm = Algorithm::new("legacy:implicit-gemm");
    let quick = backend.measure(&problem, &algorithm, &Effort::default()).unwrap();
    assert!(quick.repeats >= 3);
    let effort = Effort { best: Some(Nanos(quick.time.0 / 10)), ..Effort::default() };
    assert_eq!(backend.measure(&problem, &algorithm, &effort).unwrap().repeats, 1);
}

#[test]
fn a_hopeless_candidate_costs_two_calls_and_a_good_one_many() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let algorithm = Algorithm::new("legacy:implicit-gemm");
    let mut cost = |problem: &Problem, bound: Option<Nanos>| {
        let before = mocks.count("executions");
        let measured = backend.measure(problem, &algorithm, &Effort { bound, ..Effort::default() }).unwrap();
        (measured, mocks.count("executions") - before)
    };
    // Gaps hardly count in a call of over half a millisecond, and may be all of a short one, which a series judges.
    let [long, short] =
        ["n4 c32 h28 w28 k32", "n1 c8 h8 w8 k8"].map(|shape| problem(&format!("forward {shape} r3 s3 pad1 f32")));
    for (problem, is_long) in [(long, true), (short, false)] {
        let (careful, executions) = cost(&problem, None);
        assert_eq!(careful.time > Nanos(550_000), is_long, "{problem}: {}", careful.time);
        assert!(careful.repeats >= 3 && executions > 3, "{problem}: {executions}");
        let (good, again) = cost(&problem, Some(careful.time));
        assert!(good.repeats >= 3 && again > 3, "{problem}: {again}");
        let (hopeless, few) = cost(&problem, Some(Nanos(careful.time.0 / 2)));
        assert_eq!(hopeless.repeats, 1, "{problem}");
        assert!(few <= if is_long { 2 } else { 2 + 11 }, "{problem}: {few}");
        // The mocks' times are functions of the calls.
        assert!(hopeless.time >= careful.time && hopeless.time <= careful.time + Effort::LAUNCH_GAPS, "{problem}");
    }
}

#[test]
fn wider_sums_compete_with_f16_alone() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    for types in Types::ALL {
        let problem = problem(&format!("forward n4 c8 h6 w6 k8 r3 s3 pad1 {types}"));
        let offers = backend.offers(&problem).unwrap();
        let wide = offers.iter().filter(|offer| offer.algorithm.name().ends_with("@f16-f32")).count();
        assert_eq!(wide > 0, types == Types::F16, "{types}");
        let refused = backend.workspace(&problem, &Algorithm::new("legacy:gemm@f16-f32"));
        assert_eq!(refused.is_err(), types != Types::F16, "{types}: {refused:?}");
    }
}

#[test]
fn no_heuristics_are_asked_that_capture_graphs() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    for operation in Operation::ALL {
        let problem = problem(&format!("{operation} n4 c8 h6 w6 k8 r3 s3 pad1 f16"));
        let offers = backend.offers(&problem).unwrap();
        assert!(offers.iter().any(|offer| offer.algorithm.name().starts_with("engine")), "{problem}");
        backend.division_cost(&problem).unwrap();
    }
    assert_eq!(mocks.count("mode-b"), 0);
}

#[test]
fn f32_leaves_out_tensor_cores_and_narrower_inputs() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { every_engine: true, ..mocks.options() }).unwrap();
    let offers = |backend: &mut CudaBackend, types| {
        let problem = problem(&format!("forward n4 c8 h6 w6 k8 r3 s3 pad1 {types}"));
        backend.offers(&problem).unwrap()
    };
    let has = |offers: &[tightfit_conv::Offer], note| {
        let noted = |offer: &&tightfit_conv::Offer| offer.notes.contains(note);
        let (usable, refused): (Vec<_>, Vec<_>) =
            offers.iter().filter(noted).partition(|offer| offer.workspace.is_ok());
        (!usable.is_empty(), !refused.is_empty())
    };
    let f32s = offers(&mut backend, Types::F32);
    assert_eq!(has(&f32s, Notes::TENSOR_CORE), (false, true));
    assert_eq!(has(&f32s, Notes::DOWN_CONVERT), (false, true));
    let tf32s = offers(&mut backend, Types::Tf32);
    assert!(has(&tf32s, Notes::TENSOR_CORE).0);
    assert_eq!(has(&tf32s, Notes::DOWN_CONVERT), (false, true));
    let excluded = f32s.iter().find(|offer| offer.notes.contains(Notes::TENSOR_CORE)).unwrap().algorithm.clone();
    let problem = problem("forward n4 c8 h6 w6 k8 r3 s3 pad1 f32");
    assert!(matches!(backend.workspace(&problem, &excluded), Err(Error::Refused { .. })));
    assert!(matches!(backend.measure(&problem, &excluded, &Effort::default()), Err(Error::Refused { .. })));
}

#[test]
fn names_stand_for_the_same_call_at_any_size() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { knobs: true, ..mocks.options() }).unwrap();
    let whole = problem("backward-data n16 c8 h6 w6 k8 r3 s3 pad1 f32");
    let mut turned = 0;
    for offer in backend.offers(&whole).unwrap() {
        let Ok(offered) = offer.workspace else { continue };
        turned += usize::from(offer.algorithm.name().contains(':') && offer.algorithm.name().starts_with("engine"));
        for micro_batch in [1, 8, 16] {
            let part = whole.with_batch(micro_batch).unwrap();
            let there: Vec<_> = backend.offers(&part).unwrap();
            let there = there.into_iter().find(|other| other.algorithm == offer.algorithm).unwrap();
            assert_eq!(there.workspace.unwrap(), backend.workspace(&part, &offer.algorithm).unwrap());
        }
        assert_eq!(backend.workspace(&whole, &offer.algorithm).unwrap(), offered);
    }
    assert!(turned >= 5, "only {turned} engines with knobs");
    for name in ["winograd-4x4", "legacy:algo-9", "engine99", "engine2:k25=77"] {
        let refused = backend.workspace(&whole, &Algorithm::new(name));
        assert!(matches!(refused, Err(Error::Refused { .. })), "{name}: {refused:?}");
    }
}

#[test]
fn uneven_padding_is_for_engines_alone() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    for offer in backend.offers(&problem("forward n2 c4 h6 w6 k4 r3 s3 pad0:1 f32")).unwrap() {
        if offer.algorithm.name().starts_with("legacy:") {
            assert!(offer.workspace.unwrap_err().contains("different padding before and after"));
        }
    }
}

#[test]
fn only_divided_half_gradients_cost_scratch() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    for operation in Operation::ALL {
        for types in Types::ALL {
            let problem = problem(&format!("{operation} n4 c8 h6 w6 k9 r3 s3 pad1 {types}"));
            let cost = backend.division_cost(&problem).unwrap();
            let pays = operation == Operation::BackwardFilter && !matches!(types, Types::F32 | Types::Tf32);
            // 9 · 8 · 3 · 3 elements of 4 bytes, rounded up to 256.
            assert_eq!(cost.workspace.0, if pays { 2816 } else { 0 }, "{problem}");
            assert_eq!(cost.time > Nanos::ZERO, pays, "{problem}");
        }
    }
}
