//! Every algorithm against the definition in f64, in a workspace and an output between guards, the workspace poisoned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use tightfit_conv::backend::{Effort, Scale, Tensors};
use tightfit_conv::candidate::Slices;
use tightfit_conv::problem::{Cuts, Dimension};
use tightfit_conv::{
    Algorithm, Axis, Backend, Candidate, Configuration, Convolution, DivisionCost, Layout, Operation, Problem, Types,
};
use tightfit_units::{Bytes, Error, Nanos};

use crate::call::Call;
use crate::method::{METHODS, Method};
use crate::shape::Shape;
use crate::team::Team;
use crate::{CpuBackend, reference};

/// Floats on each side of workspace and output that must stay as they are.
const GUARD: usize = 37;
const GUARD_BITS: u32 = 0x7fc5_a5a5;

/// A slice between guards.
struct Guarded {
    floats: Vec<f32>,
}

impl Guarded {
    fn new(contents: impl IntoIterator<Item = f32>) -> Guarded {
        let guard = [f32::from_bits(GUARD_BITS); GUARD];
        Guarded { floats: guard.into_iter().chain(contents).chain(guard).collect() }
    }

    fn inside(&mut self) -> &mut [f32] {
        let end = self.floats.len() - GUARD;
        &mut self.floats[GUARD..end]
    }

    fn intact(&self) -> bool {
        let guards = self.floats[..GUARD].iter().chain(&self.floats[self.floats.len() - GUARD..]);
        guards.into_iter().all(|guard| guard.to_bits() == GUARD_BITS)
    }
}

/// The tensors of a problem.
#[derive(Clone, Debug)]
struct Data {
    data: Vec<f32>,
    other: Vec<f32>,
    output: Vec<f32>,
}

impl Data {
    /// Numbers made by `number` from a pseudo-random 16-bit one.
    fn new(problem: &Problem, seed: u64, number: impl Fn(u64) -> f32) -> Data {
        let (x, w, y) = (problem.input_len(), problem.filter_len(), problem.output_len());
        let [data, other, output] = match problem.operation() {
            Operation::Forward => [x, w, y],
            Operation::BackwardData => [y, w, x],
            Operation::BackwardFilter => [x, y, w],
        };
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut numbers = |count: usize| -> Vec<f32> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                number(state >> 48)
            };
            (0..count).map(|_| next()).collect()
        };
        Data { data: numbers(data), other: numbers(other), output: numbers(output) }
    }

    fn whole(problem: &Problem, seed: u64) -> Data {
        Data::new(problem, seed, |bits| (bits % 7) as f32 - 3.0)
    }

    fn real(problem: &Problem, seed: u64) -> Data {
        Data::new(problem, seed, |bits| bits as f32 / 32768.0 - 1.0)
    }

    fn tensors(&self) -> Tensors<'_> {
        Tensors { data: &self.data, other: &self.other, output: &self.output }
    }

    fn absolute(&self) -> Data {
        let absolute = |values: &[f32]| values.iter().map(|value| value.abs()).collect();
        Data { data: absolute(&self.data), other: absolute(&self.other), output: absolute(&self.output) }
    }

    /// With beta = 0 the output holds what must not be read.
    fn poisoned_for(mut self, scale: Scale) -> Data {
        if scale.beta == 0.0 {
            self.output.fill(f32::NAN);
        }
        self
    }

    fn truth(&self, problem: &Problem, scale: Scale) -> Vec<f64> {
        let all: Vec<usize> = (0..self.output.len()).collect();
        reference(problem, self.tensors(), scale, &all)
    }
}

/// Runs one algorithm between guards; none if it refuses.
fn run(method: &Method, problem: &Problem, threads: usize, data: &Data, scale: Scale) -> Option<Vec<f32>> {
    let team = Team::new(threads);
    let floats = method.workspace(problem, threads).ok()?;
    let mut workspace = Guarded::new(std::iter::repeat_n(f32::NAN, floats));
    let mut output = Guarded::new(data.output.iter().copied());
    let shape = Shape::new(problem);
    let call = Call { problem, shape, team: &team, data: &data.data, other: &data.other, scale };
    (method.run)(&call, output.inside(), workspace.inside());
    assert!(workspace.intact(), "{} writes beyond its workspace on {problem}", method.name);
    assert!(output.intact(), "{} writes beyond its output on {problem}", method.name);
    Some(output.inside().to_vec())
}

/// Error allowed of an algorithm, relative to the largest sum of absolute products. A float has a rounding error of
/// 6e-8 and the sums here have up to a few thousand terms; F(4x4) multiplies it by the size of its matrices, measured
/// below 1e-5.
fn tolerance(method: &Method) -> f64 {
    if method.name == "winograd-4x4" { 4e-5 } else { 4e-6 }
}

fn is_exact(method: &Method) -> bool {
    ["direct", "blocked-gemm", "implicit-gemm", "explicit-gemm"].contains(&method.name)
}

prop_compose! {
    fn any_axis()(
        input in 1usize..12, filter in 1usize..5, before in 0usize..4, after in 0usize..4, stride in 1usize..4,
        dilation in 1usize..3,
    ) -> Axis {
        let least = ((filter - 1) * dilation + 1).saturating_sub(before + after).max(1);
        Axis { input: input.max(least), filter, pad_before: before, pad_after: after, stride, dilation }
    }
}

prop_compose! {
    /// An axis that every algorithm takes.
    fn dense_axis()(input in 1usize..40, before in 0usize..5, after in 0usize..5, filter in 3usize..4) -> Axis {
        let input = input.max(filter.saturating_sub(before + after)).max(1);
        Axis { input, filter, pad_before: before, pad_after: after, stride: 1, dilation: 1 }
    }
}

fn any_problem() -> impl Strategy<Value = Problem> {
    let pointwise = (1usize..9).prop_map(|input| Axis::new(input, 1));
    let large =
        (5usize..40, 2usize..12).prop_map(|(input, filter)| Axis::new(input.max(filter), filter).pad(filter / 3));
    let axes = prop_oneof![
        2 => prop::collection::vec(any_axis(), 2..4),
        3 => prop::collection::vec(dense_axis(), 2),
        1 => prop::collection::vec(large, 2),
        1 => prop::collection::vec(pointwise, 2..4),
    ];
    let channels = prop_oneof![3 => 1usize..5, 1 => 15usize..19];
    let operation = prop::sample::select(&Operation::ALL[..]);
    let layout = prop::sample::select(&Layout::ALL[..]);
    (axes, channels.clone(), channels, 1usize..4, 1usize..6, operation, layout).prop_map(
        |(axes, c, k, groups, n, operation, layout)| {
            let convolution = Convolution::new(c * groups, k * groups, groups, &axes).unwrap();
            Problem::new(convolution, operation, n, Types::F32, layout).unwrap()
        },
    )
}

fn any_scale() -> impl Strategy<Value = Scale> {
    let (alpha, beta) = (prop::sample::select(vec![1.0, 0.5, -2.0, 0.0]), prop::sample::select(vec![0.0, 1.0, 0.5]));
    (alpha, beta).prop_map(|(alpha, beta)| Scale { alpha, beta })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_algorithm_computes_the_definition(
        problem in any_problem(), scale in any_scale(), threads in 1usize..4, seed: u64,
    ) {
        let data = Data::real(&problem, seed).poisoned_for(scale);
        let truth = data.truth(&problem, scale);
        let positive = Scale { alpha: scale.alpha.abs(), beta: scale.beta };
        let largest = data.absolute().truth(&problem, positive).into_iter().fold(0.0, f64::max);
        for method in &METHODS {
            let Some(output) = run(method, &problem, threads, &data, scale) else { continue };
            for (index, (&got, &wanted)) in output.iter().zip(&truth).enumerate() {
                let error = (f64::from(got) - wanted).abs();
                prop_assert!(
                    error <= tolerance(method) * largest,
                    "{} on {problem}, {scale:?}, {threads} threads: [{index}] = {got}, not {wanted}", method.name
                );
            }
        }
    }

    #[test]
    fn whole_numbers_are_exact_for_every_number_of_threads(
        problem in any_problem(), scale in any_scale(), seed: u64,
    ) {
        let data = Data::whole(&problem, seed).poisoned_for(scale);
        let truth = data.truth(&problem, scale);
        for method in METHODS.iter().filter(|method| is_exact(method)) {
            for threads in 1..=3 {
                let output: Option<Vec<f64>> = run(method, &problem, threads, &data, scale)
                    .map(|output| output.into_iter().map(f64::from).collect());
                prop_assert_eq!(
                    output.as_ref(), Some(&truth), "{} on {}, {:?}, {} threads", method.name, problem, scale, threads
                );
            }
        }
    }

    #[test]
    fn divided_equals_undivided(
        problem in any_problem(), scale in any_scale(), seed: u64, cuts in prop::collection::vec(0usize..7, 6),
    ) {
        let mut cpu = CpuBackend::new(Some(2));
        let data = Data::whole(&problem, seed).poisoned_for(scale);
        let exact: Vec<_> = METHODS.iter().filter(|method| is_exact(method)).collect();
        let mut rest = problem.batch();
        let mut parts = Vec::new();
        for cut in cuts {
            let micro_batch = (cut / 3 + 1).min(rest);
            if micro_batch > 0 {
                parts.push(part(&mut cpu, &problem, micro_batch, exact[cut % 3].name));
            }
            rest -= micro_batch;
        }
        let configuration = Configuration::new(parts, DivisionCost::default());
        let output = cpu.run(&problem, &configuration, data.tensors(), scale).unwrap().output;
        let output: Vec<f64> = output.into_iter().map(f64::from).collect();
        prop_assert_eq!(output, data.truth(&problem, scale), "{} as {}, {:?}", problem, configuration, scale);
    }

    #[test]
    fn sliced_equals_undivided(
        problem in any_problem(), scale in any_scale(), seed: u64, size in 1usize..9,
        dimension in prop::sample::select(&Dimension::ALL[..]), threads in 1usize..4,
    ) {
        let mut cpu = CpuBackend::new(Some(threads));
        let data = Data::whole(&problem, seed).poisoned_for(scale);
        let truth = data.truth(&problem, scale);
        for method in &METHODS {
            let Some(configuration) = sliced(&mut cpu, &problem, method.name, dimension, size) else { continue };
            let output = cpu.run(&problem, &configuration, data.tensors(), scale).unwrap().output;
            // Transforms round; small whole numbers, halved, are the same after rounding to halves and quarters.
            let exact = is_exact(method) || method.name == "winograd-2x2";
            let near = |value: f32| if exact { f64::from(value) } else { (f64::from(value) * 4.0).round() / 4.0 };
            let output: Vec<f64> = output.into_iter().map(near).collect();
            prop_assert_eq!(&output, &truth, "{} as {}, {:?}", problem, configuration, scale);
        }
    }
}

/// The whole mini-batch in slices of `size` along a dimension, all by one algorithm; none if it refuses some slice or
/// there is one alone.
fn sliced(
    cpu: &mut CpuBackend,
    problem: &Problem,
    name: &str,
    dimension: Dimension,
    size: usize,
) -> Option<Configuration> {
    let algorithm = Algorithm::new(name);
    let ranges = Cuts::new(problem, dimension).ranges(size);
    let slices = Slices::new(dimension, ranges.iter().map(|range| (range.len(), algorithm.clone()))).ok()?;
    let whole = Candidate::new(slices.into(), problem.batch(), Nanos(1), Bytes::UNLIMITED);
    let calls = Configuration::new(vec![whole.clone()], DivisionCost::default()).calls(problem).ok()?;
    let workspaces = calls.iter().map(|call| cpu.workspace(&call.part.problem, &call.algorithm).ok());
    let workspace = workspaces.collect::<Option<Vec<Bytes>>>()?.into_iter().max()?;
    Some(Configuration::new(vec![Candidate { workspace, ..whole }], DivisionCost::default()))
}

#[test]
fn every_algorithm_runs_slices_of_every_dimension() {
    let shapes = [
        ("n2 c4 h13 w11 k6 r3 s3 pad1 groups2", Dimension::H, 4),
        ("n1 c3 h16 w9 k5 r3 s3 pad1", Dimension::W, 5),
        ("n1 c2 d9 h5 w4 k3 t3 r3 s3 pad1", Dimension::D, 2),
        ("n1 c2 d3 h9 w4 k3 t1 r3 s3 pad1", Dimension::H, 3),
    ];
    let mut cpu = CpuBackend::new(Some(2));
    for method in &METHODS {
        for ((line, dimension, size), operation) in shapes.iter().flat_map(|s| Operation::ALL.map(|o| (*s, o))) {
            for layout in ["", " nhwc"] {
                let problem = problem(&format!("{operation} {line} f32{layout}"));
                let runs = sliced(&mut cpu, &problem, method.name, dimension, size).is_some();
                let three = problem.convolution().axes().len() == 3;
                let transforms = method.name.starts_with("winograd") || method.name.starts_with("fft");
                let inner = dimension == Dimension::W || dimension == Dimension::H && three;
                let refuses = if transforms { three } else { method.name.ends_with("gemm") && inner };
                let expected = !refuses;
                assert_eq!(runs, expected, "{} on {problem} along {dimension}", method.name);
            }
        }
    }
}

#[test]
fn a_large_first_layer_runs_within_8_mib_in_slices() {
    let problem = problem("forward n1 c3 h1024 w1024 k4 r3 s3 pad1 f32");
    let mut cpu = CpuBackend::new(Some(2));
    let limit = Bytes::mib(8);
    for (name, size) in [("explicit-gemm", 64), ("winograd-2x2", 64), ("winograd-4x4", 64), ("fft-tiling", 64)] {
        let whole = cpu.workspace(&problem, &Algorithm::new(name)).unwrap();
        let sliced = sliced(&mut cpu, &problem, name, Dimension::H, size).unwrap();
        assert!(whole > limit && sliced.workspace() <= limit, "{name}: {whole}, sliced {}", sliced.workspace());
    }
    // To the bit, where arithmetic on whole numbers is exact.
    let data = Data::whole(&problem, 5);
    let sliced = sliced(&mut cpu, &problem, "winograd-2x2", Dimension::H, 64).unwrap();
    let sliced = cpu.run(&problem, &sliced, data.tensors(), Scale::OVERWRITE).unwrap().output;
    let whole = Configuration::new(vec![part(&mut cpu, &problem, 1, "blocked-gemm")], DivisionCost::default());
    let whole = cpu.run(&problem, &whole, data.tensors(), Scale::OVERWRITE).unwrap().output;
    assert!(sliced == whole);
}

fn part(cpu: &mut CpuBackend, problem: &Problem, micro_batch: usize, name: &str) -> Candidate {
    let algorithm = Algorithm::new(name);
    let workspace = cpu.workspace(&problem.with_batch(micro_batch).unwrap(), &algorithm).unwrap();
    Candidate { micro_batch, algorithm, time: Nanos(1), workspace }
}

fn problem(line: &str) -> Problem {
    line.parse().unwrap()
}

#[test]
fn the_definition_by_hand() {
    // x = 1 2 3, w = 1 10, one zero before: y = 10, 1 + 20, 2 + 30; scaled and added to the earlier content.
    let forward = problem("forward n1 c1 h1 w3 k1 r1 s2 pad0x1:0 f32");
    let tensors = Tensors { data: &[1.0, 2.0, 3.0], other: &[1.0, 10.0], output: &[1.0, 1.0, 1.0] };
    assert_eq!(reference(&forward, tensors, Scale { alpha: 2.0, beta: 3.0 }, &[2, 0, 1]), [67.0, 23.0, 45.0]);
    // dy = 1 2 3: dx gets 10 dy[p] + dy[p + 1].
    let data = forward.with_operation(Operation::BackwardData);
    assert_eq!(reference(&data, tensors, Scale::OVERWRITE, &[0, 1, 2]), [12.0, 23.0, 30.0]);
    // dw[0] = x[0] dy[1] + x[1] dy[2], dw[1] = x · dy.
    let filter = forward.with_operation(Operation::BackwardFilter);
    let tensors = Tensors { data: &[1.0, 2.0, 3.0], other: &[4.0, 5.0, 6.0], output: &[f32::NAN; 2] };
    assert_eq!(reference(&filter, tensors, Scale::OVERWRITE, &[0, 1]), [17.0, 32.0]);
    assert!(reference(&filter, tensors, Scale::OVERWRITE, &[2])[0].is_nan());
}

#[test]
fn guards_notice_a_stray_write() {
    let mut guarded = Guarded::new([0.0; 3]);
    guarded.inside().fill(1.0);
    assert!(guarded.intact());
    guarded.floats[GUARD + 3] = 0.0;
    assert!(!guarded.intact());
}

#[test]
fn refusals_name_their_reason() {
    for (line, name, reason) in [
        ("forward n1 c1 h8 w8 k1 r3 s3 stride2 f32", "winograd-2x2", "stride 1"),
        ("forward n1 c1 h8 w8 k1 r3 s3 dilation2 f32", "winograd-4x4", "dilation 1"),
        ("forward n1 c1 h8 w8 k1 r5 s5 f32", "winograd-4x4", "not 5x5"),
        ("forward n1 c1 d8 h8 w8 k1 t3 r3 s3 f32", "winograd-4x4", "not 3"),
        ("forward n1 c1 d8 h8 w8 k1 t3 r3 s3 f32", "fft", "not 3"),
        ("forward n1 c1 h8 w8 k1 r3 s3 stride2 f32", "fft", "stride 1"),
        ("forward n1 c1 h40 w40 k1 r33 s3 f32", "fft-tiling", "33x3 is larger than its 32x32 tiles"),
        ("forward n1 c1 h8 w8 k1 r3 s3 bf16", "direct", "not bf16"),
        ("forward n1 c1 h40 w40 k1 r33 s9 f32", "blocked-gemm", "at most 256 elements fit its blocks, not 297"),
        (
            "forward n1 c2048 h8 w8 k1 r3 s3 f32 nhwc",
            "blocked-gemm",
            "at most 16384 elements fit its blocks, not 18432",
        ),
        ("forward n1 c1 h8 w8 k1 r3 s3 f32", "cuda", "it has direct, blocked-gemm, implicit-gemm"),
    ] {
        let error = CpuBackend::new(Some(1)).workspace(&problem(line), &Algorithm::new(name)).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{name} on {line}: {error}");
    }
}

#[test]
fn pointwise_gemms_need_no_workspace() {
    for layout in ["", " nhwc"] {
        for operation in ["forward", "backward-data"] {
            let problem = problem(&format!("{operation} n8 c64 h14 w14 k32 r1 s1 f32{layout}"));
            for name in ["blocked-gemm", "implicit-gemm", "explicit-gemm"] {
                let workspace = CpuBackend::new(Some(2)).workspace(&problem, &Algorithm::new(name)).unwrap();
                assert_eq!(workspace, Bytes::ZERO, "{name} on {problem}");
            }
        }
    }
}

#[test]
fn blocked_gemm_adds_up_many_blocks() {
    // Several blocks of positions and of channels, the last of each cut off, in two groups.
    let lines = ["c150 h11 w13 k10 r3 s3 pad1 groups2 f32", "c150 h11 w13 k10 r3 s3 pad1 groups2 f32 nhwc"];
    for (line, operation) in lines.iter().flat_map(|line| Operation::ALL.map(|operation| (line, operation))) {
        let problem = problem(&format!("forward n3 {line}")).with_operation(operation);
        let data = Data::whole(&problem, 7);
        for scale in [Scale::OVERWRITE, Scale { alpha: 2.0, beta: -1.0 }] {
            for threads in [1, 2, 4] {
                let [blocked, direct] = ["blocked-gemm", "direct"]
                    .map(|name| run(Method::named(name).unwrap(), &problem, threads, &data, scale).unwrap());
                assert!(blocked == direct, "{problem} on {threads} threads");
            }
        }
    }
}

#[test]
fn only_the_direct_and_tiled_algorithms_keep_their_workspace_as_the_batch_grows() {
    let mut cpu = CpuBackend::new(Some(2));
    for operation in Operation::ALL {
        let small = problem("forward n2 c4 h20 w20 k4 r3 s3 pad1 f32").with_operation(operation);
        for (one, two) in
            cpu.offers(&small).unwrap().into_iter().zip(cpu.offers(&small.with_batch(8).unwrap()).unwrap())
        {
            let constant = ["direct", "blocked-gemm", "implicit-gemm"].contains(&one.algorithm.name());
            let (one, two) = (one.workspace.unwrap(), two.workspace.unwrap());
            assert!(if constant { one == two } else { one < two }, "{operation}: {one} and {two}");
        }
    }
}

#[test]
fn failed_allocations_are_errors() {
    let problem = problem("forward n1048576 c1024 h1024 w1024 k1 r1 s1 f32");
    let error = CpuBackend::new(Some(1)).measure(&problem, &Algorithm::new("direct"), &Effort::default()).unwrap_err();
    assert!(matches!(error, Error::Backend { .. }), "{error}");
    assert!(error.to_string().contains("4096 TiB"), "{error}");
}

#[test]
fn a_configuration_that_does_not_fit_the_call_is_refused() {
    let mut cpu = CpuBackend::new(Some(1));
    let problem = problem("forward n4 c2 h8 w8 k2 r3 s3 f32");
    let data = Data::whole(&problem, 1);
    let mut part = part(&mut cpu, &problem, 4, "explicit-gemm");
    let configuration = Configuration::new(vec![part.clone()], DivisionCost::default());
    let short = Tensors { data: &data.data[1..], ..data.tensors() };
    assert!(cpu.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE).is_ok());
    let error = cpu.run(&problem, &configuration, short, Scale::OVERWRITE).unwrap_err().to_string();
    assert!(error.contains("511"), "{error}");
    let error = cpu.run(&problem.with_batch(5).unwrap(), &configuration, data.tensors(), Scale::OVERWRITE);
    assert!(error.unwrap_err().to_string().contains("has 4 samples"));
    part.workspace = Bytes(part.workspace.0 - 4);
    let configuration = Configuration::new(vec![part], DivisionCost::default());
    let error = cpu.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE).unwrap_err().to_string();
    assert!(error.contains("was planned with"), "{error}");
}

#[test]
fn once_stopped_measurements_are_left_and_runs_are_not() {
    let stop = Arc::new(AtomicBool::new(false));
    let mut cpu = CpuBackend::new(Some(2));
    cpu.stop_on(&stop);
    for operation in Operation::ALL {
        let problem: Problem = format!("{operation} n3 c2 h9 w9 k4 r3 s3 pad1 f32").parse().unwrap();
        let algorithm = Algorithm::new("implicit-gemm");
        stop.store(false, Ordering::Relaxed);
        let measured = cpu.measure(&problem, &algorithm, &Effort::default()).unwrap().candidate();
        stop.store(true, Ordering::Relaxed);
        for offer in cpu.offers(&problem).unwrap().into_iter().filter(|offer| offer.workspace.is_ok()) {
            let left = cpu.measure(&problem, &offer.algorithm, &Effort::default());
            assert!(matches!(left, Err(Error::Interrupted)), "{problem}: {}", offer.algorithm);
        }
        let configuration = Configuration::new(vec![measured], DivisionCost::default());
        let (x, w, y) = (problem.input_len(), problem.filter_len(), problem.output_len());
        let [data, other, output] = match operation {
            Operation::Forward => [x, w, y],
            Operation::BackwardData => [y, w, x],
            Operation::BackwardFilter => [x, y, w],
        }
        .map(|length| vec![1.0; length]);
        let tensors = Tensors { data: &data, other: &other, output: &output };
        let run = cpu.run(&problem, &configuration, tensors, Scale::OVERWRITE).unwrap();
        assert!(run.output.iter().all(|value| *value > 1.0), "{problem}");
    }
}

#[test]
fn measurements_carry_workspace_and_repeats() {
    let mut cpu = CpuBackend::new(Some(2));
    let problem = problem("backward-filter n2 c3 h9 w9 k4 r3 s3 pad1 f32");
    for offer in cpu.offers(&problem).unwrap() {
        let effort = Effort { warm_up: 0, least: 2, most: 2, ..Effort::default() };
        let measurement = cpu.measure(&problem, &offer.algorithm, &effort).unwrap();
        assert_eq!(Ok(measurement.workspace), offer.workspace);
        assert_eq!((measurement.micro_batch, measurement.repeats), (2, 2));
        assert!(measurement.time > Nanos::ZERO);
    }
    assert_eq!(cpu.device().threads, 2);
    assert!(!cpu.device().name.is_empty());
}
