//! The same tests on a real GPU and the real cuDNN. Ignored without one; `scripts/gpu-test.sh` runs them. `--nocapture`
//! shows the refused engines and their reasons.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tightfit_conv::backend::{Effort, Scale};
use tightfit_conv::problem::Dimension;
use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, Notes, Operation, Problem, Types};
use tightfit_cuda::doctor::doctor;
use tightfit_cuda::safe::DeviceBuffer;
use tightfit_cuda::{CudaBackend, Options};
use tightfit_units::{Error, Nanos};

use crate::reference::Data;
use crate::slices::sliced;

const SCALES: [Scale; 3] = [Scale::OVERWRITE, Scale { alpha: 1.0, beta: 1.0 }, Scale { alpha: 0.5, beta: 2.0 }];

/// How far from the truth, relative to the magnitudes that were added. Whole numbers this small are exact in every type but
/// where transforms come in, whose intermediate values are no whole numbers, and in bf16, which has 8 bits. Some engines
/// transform without a note about it (engine 17 of backward-filter in cuDNN 9.19): they get a few roundings.
fn tolerance(types: Types, notes: Notes) -> f64 {
    let transformed = notes.contains(Notes::FFT) || notes.contains(Notes::WINOGRAD);
    match types {
        Types::Bf16 => 2e-2,
        Types::F16 | Types::F16F32 if transformed => 2e-2,
        Types::Tf32 if transformed => 2e-3,
        _ if transformed => 1e-4,
        Types::F16 | Types::F16F32 => 2e-3,
        _ => 2e-6,
    }
}

/// Runs every offer of a problem in these micro-batches. Returns the number of right ones, why others were refused, and the
/// wrong ones.
fn check(
    backend: &mut CudaBackend,
    problem: &Problem,
    sizes: &[usize],
    scale: Scale,
) -> (usize, BTreeMap<String, usize>, Vec<String>) {
    let data = Data::whole(problem);
    let expected = data.expected(problem, scale);
    let (mut right, mut refused, mut wrong) = (0, BTreeMap::new(), Vec::new());
    let cost = backend.division_cost(problem).unwrap();
    for offer in backend.offers(problem).unwrap() {
        let mut run = || -> Result<Vec<f32>, Error> {
            let mut parts = Vec::new();
            for &micro_batch in sizes {
                let (part, algorithm) = (problem.with_batch(micro_batch)?, offer.algorithm.clone());
                let workspace = backend.workspace(&part, &algorithm)?;
                parts.push(Candidate { micro_batch, algorithm, time: Nanos(1), workspace });
            }
            Ok(backend.run(problem, &Configuration::new(parts, cost), data.tensors(), scale)?.output)
        };
        let output = match run() {
            Ok(output) => output,
            Err(Error::Refused { reason, .. }) => {
                *refused.entry(reason.chars().take(90).collect()).or_default() += 1;
                continue;
            }
            Err(error) if error.is_fatal() => panic!("{} of {problem}: {error}", offer.algorithm),
            Err(error) => {
                wrong.push(format!("{} of {problem} as {sizes:?} {scale:?}: {error}", offer.algorithm));
                continue;
            }
        };
        let worst =
            output.iter().zip(&expected).map(|(got, (want, size))| (f64::from(*got) - want).abs() / size.max(1.0));
        let worst = worst.fold(0.0, f64::max);
        let allowed = tolerance(problem.types(), offer.notes);
        if worst > allowed {
            wrong.push(format!("{} of {problem} as {sizes:?} {scale:?}: off by {worst}", offer.algorithm));
        }
        right += 1;
    }
    (right, refused, wrong)
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_doctor_finds_everything() {
    for finding in doctor(&Options::default()) {
        println!("{finding}");
        assert!(finding.is_found(), "{finding}");
    }
}

/// Ends a thread, also where this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A capture in the library would forbid calls of other threads.
#[test]
#[ignore = "needs a CUDA device"]
fn other_threads_go_on_while_engines_are_listed_and_measured() {
    let mut backend = CudaBackend::open(&Options::default()).unwrap();
    let context = backend.handle().context().clone();
    let effort = Effort { warm_up: 0, least: 1, most: 1, ..Effort::default() };
    let (is_over, failed) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut found = Vec::new();
    std::thread::scope(|threads| {
        let _ends = Ends(&is_over);
        threads.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                failed.fetch_add(u32::from(DeviceBuffer::new(&context, 4096).is_err()), Ordering::Relaxed);
            }
        });
        // Mode B of cuDNN 9.19 captures for the last two.
        for shape in [
            "n64 c64 h56 w56 k64 r3 s3 pad1",
            "n1 c256 h64 w64 k128 r1 s1",
            "n1 c512 h256 w256 k256 r3 s3 pad1",
            "n8 c16 d16 h32 w32 k32 t3 r3 s3 pad1",
        ] {
            for layout in ["", " nhwc"] {
                for (operation, types) in Operation::ALL.into_iter().flat_map(|of| Types::ALL.map(|types| (of, types)))
                {
                    let problem: Problem = format!("{operation} {shape} {types}{layout}").parse().unwrap();
                    let mut fails = |doing: String, before| {
                        if failed.load(Ordering::Relaxed) != before {
                            found.push(doing);
                        }
                        failed.load(Ordering::Relaxed)
                    };
                    let before = failed.load(Ordering::Relaxed);
                    let offers = backend.offers(&problem).unwrap();
                    let mut before = fails(format!("listing {problem}"), before);
                    for offer in offers.iter().take(4) {
                        let _ = backend.measure(&problem, &offer.algorithm, &effort);
                        before = fails(format!("{} of {problem}", offer.algorithm), before);
                    }
                }
            }
        }
    });
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_offer_computes_the_convolution_whole_and_divided() {
    let mut backend = CudaBackend::open(&Options { untimed: true, ..Options::default() }).unwrap();
    println!("{}", backend.device());
    let mut wrong = Vec::new();
    for shape in [
        "c16 h14 w14 k32 r3 s3 pad1",
        "c16 h14 w14 k32 r3 s3 pad1 nhwc",
        "c3 h15 w15 k8 r5 s5 pad2 stride2",
        "c16 h12 w12 k16 r3 s3 pad1 groups2",
        "c8 h12 w12 k8 r3 s3 pad2 dilation2",
        "c8 d6 h8 w8 k8 t3 r3 s3 pad1",
        "c8 h12 w12 k8 r3 s3 pad0:1",
    ] {
        for operation in Operation::ALL {
            for types in Types::ALL {
                let problem: Problem = format!("{operation} n6 {shape} {types}").parse().unwrap();
                for (sizes, scale) in [&[6][..], &[4, 2], &[3, 2, 1]].into_iter().zip(SCALES) {
                    let (right, refused, faults) = check(&mut backend, &problem, sizes, scale);
                    wrong.extend(faults);
                    println!("{problem} as {sizes:?} alpha {} beta {}: {right} right", scale.alpha, scale.beta);
                    for (reason, times) in refused {
                        println!("    {times} refused: {reason}");
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_algorithm_that_may_compute_a_slice_computes_it_right() {
    let mut backend = CudaBackend::open(&Options { untimed: true, ..Options::default() }).unwrap();
    let effort = Effort { warm_up: 0, least: 1, most: 1, ..Effort::default() };
    let mut wrong = Vec::new();
    for (shape, dimension, size) in [
        ("n1 c16 h32 w16 k32 r3 s3 pad1", Dimension::H, 8),
        ("n1 c16 h32 w16 k32 r3 s3 pad1 nhwc", Dimension::H, 8),
        ("n2 c16 h32 w16 k32 r3 s3 pad1 nhwc", Dimension::H, 8),
        ("n1 c8 h33 w15 k8 r5 s5 pad2 stride2", Dimension::H, 4),
        ("n1 c16 d16 h8 w8 k16 t3 r3 s3 pad1", Dimension::D, 4),
    ] {
        for operation in Operation::ALL {
            for types in [Types::F32, Types::Tf32, Types::F16F32, Types::Bf16] {
                let problem: Problem = format!("{operation} {shape} {types}").parse().unwrap();
                let data = Data::whole(&problem);
                let expected = data.expected(&problem, Scale::OVERWRITE);
                let (mut right, mut refused) = (0, BTreeMap::<String, usize>::new());
                for offer in backend.offers(&problem).unwrap() {
                    let own = &offer.algorithm;
                    let Some(configuration) = sliced(&mut backend, &problem, [own, own], dimension, size) else {
                        continue;
                    };
                    let calls = configuration.calls(&problem).unwrap();
                    let mut tried = calls.iter().map(|call| backend.measure(&call.part.problem, own, &effort));
                    if let Some(error) = tried.find_map(Result::err) {
                        assert!(!error.is_fatal(), "{own} of {problem}: {error}");
                        *refused.entry(format!("{own}: {error}").chars().take(160).collect()).or_default() += 1;
                        continue;
                    }
                    let output = match backend.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE) {
                        Ok(run) => run.output,
                        Err(error) => {
                            wrong.push(format!("{configuration} of {problem}: {error}"));
                            continue;
                        }
                    };
                    let apart =
                        |(got, (want, size)): (&f32, &(f64, f64))| (f64::from(*got) - want).abs() / size.max(1.0);
                    let worst = output.iter().zip(&expected).map(apart).fold(0.0, f64::max);
                    if worst > tolerance(types, offer.notes) {
                        wrong.push(format!("{configuration} of {problem}: off by {worst}"));
                    }
                    right += 1;
                }
                println!("{problem} along {dimension}: {right} right");
                refused.iter().for_each(|(reason, times)| println!("    {times} refused: {reason}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn half_gradients_are_summed_in_f32() {
    let mut backend = CudaBackend::open(&Options { untimed: true, ..Options::default() }).unwrap();
    for types in [Types::F16, Types::F16F32] {
        let problem: Problem = format!("backward-filter n3 c8 h1 w1 k8 r1 s1 {types}").parse().unwrap();
        println!("{problem}: dividing costs {:?}", backend.division_cost(&problem));
        // Per sample 2048, 1 and 1: a sum kept in f16 would stay at 2048.
        let per_sample = |values: [f32; 3]| values.into_iter().flat_map(|value| [value; 8]).collect::<Vec<f32>>();
        let data =
            Data { data: per_sample([64.0, 1.0, 1.0]), other: per_sample([32.0, 1.0, 1.0]), output: vec![0.0; 64] };
        let mut summed = 0;
        for offer in backend.offers(&problem).unwrap() {
            let part = problem.with_batch(1).unwrap();
            let Ok(workspace) = backend.workspace(&part, &offer.algorithm) else { continue };
            let part = Candidate { micro_batch: 1, algorithm: offer.algorithm.clone(), time: Nanos(1), workspace };
            let cost = backend.division_cost(&problem).unwrap();
            let configuration = Configuration::new(vec![part; 3], cost);
            match backend.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE) {
                Ok(run) => assert_eq!(run.output, [2050.0; 64], "{}", offer.algorithm),
                Err(Error::Refused { reason, .. }) => {
                    println!("    {} refused: {reason}", offer.algorithm);
                    continue;
                }
                Err(error) => panic!("{}: {error}", offer.algorithm),
            }
            summed += 1;
        }
        assert!(summed > 0, "{problem}: nothing could be divided");
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn filter_gradients_beyond_a_launchs_channel_limit_are_summed() {
    let mut backend = CudaBackend::open(&Options { untimed: true, ..Options::default() }).unwrap();
    let problem: Problem = "backward-filter n4 c512 h7 w7 k512 r3 s3 pad1 f16-f32".parse().unwrap();
    let (right, refused, wrong) = check(&mut backend, &problem, &[2, 2], Scale::OVERWRITE);
    println!("{problem}: {right} right, refused {refused:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(right > 0);
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_offer_is_measured_or_refused() {
    let mut backend = CudaBackend::open(&Options::default()).unwrap();
    for types in Types::ALL {
        for operation in Operation::ALL {
            let problem: Problem = format!("{operation} n64 c96 h27 w27 k256 r5 s5 pad2 {types}").parse().unwrap();
            let mut rows = Vec::new();
            let mut best = None;
            for offer in backend.offers(&problem).unwrap().iter().filter(|offer| offer.workspace.is_ok()) {
                match backend.measure(&problem, &offer.algorithm, &Effort { best, ..Effort::default() }) {
                    Ok(measurement) => {
                        best = Some(best.map_or(measurement.time, |best: Nanos| best.min(measurement.time)));
                        rows.push(measurement);
                    }
                    Err(Error::Refused { reason, .. }) => println!("    {} refused: {reason}", offer.algorithm),
                    Err(error) => panic!("{} of {problem}: {error}", offer.algorithm),
                }
            }
            rows.sort_by_key(|row| row.time);
            println!("{problem}: {} measured", rows.len());
            for row in rows.iter().take(6) {
                let single = row.single.unwrap_or_default();
                println!("    {} {} (alone {single}) {} {}", row.algorithm, row.time, row.workspace, row.notes);
            }
            assert!(!rows.is_empty());
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn a_captured_configuration_and_every_engine_compute_the_same() {
    let options = Options { capture: true, every_engine: true, untimed: true, ..Options::default() };
    let mut backend = CudaBackend::open(&options).unwrap();
    for operation in Operation::ALL {
        let problem: Problem = format!("{operation} n6 c16 h14 w14 k32 r3 s3 pad1 f16-f32").parse().unwrap();
        let (right, refused, wrong) = check(&mut backend, &problem, &[4, 2], Scale::OVERWRITE);
        assert!(wrong.is_empty(), "{wrong:#?}");
        println!("{problem}: {right} right, refused {refused:?}");
        assert!(right > 0);
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn out_of_memory_is_an_error_and_the_next_size_runs() {
    let mut backend = CudaBackend::open(&Options::default()).unwrap();
    let algorithm = Algorithm::new("legacy:implicit-gemm");
    let huge: Problem = "forward n60000 c64 h224 w224 k64 r1 s1 f32".parse().unwrap();
    let error = backend.measure(&huge, &algorithm, &Effort::default()).unwrap_err();
    assert!(!error.is_fatal(), "{error}");
    backend.measure(&huge.with_batch(4).unwrap(), &algorithm, &Effort::default()).unwrap();
}
