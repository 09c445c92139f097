//! Configurations that run side by side have the same results as alone, whichever stream is late; on the mock libraries.

use tightfit_conv::backend::{Scale, Task};
use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, Problem};
use tightfit_cuda::{CudaBackend, Options};
use tightfit_test_support::mocks::Mocks;
use tightfit_units::{Error, Nanos};

use crate::reference::Data;

/// A kernel with its data and a configuration of one algorithm.
struct Kernel {
    problem: Problem,
    configuration: Configuration,
    data: Data,
    scale: Scale,
}

impl Kernel {
    fn new(backend: &mut CudaBackend, text: &str, name: &str, sizes: &[usize], scale: Scale) -> Kernel {
        let problem: Problem = text.parse().unwrap();
        let part = |&micro_batch: &usize| {
            let workspace =
                backend.workspace(&problem.with_batch(micro_batch).unwrap(), &Algorithm::new(name)).unwrap();
            Candidate { micro_batch, algorithm: Algorithm::new(name), time: Nanos(1), workspace }
        };
        let parts: Vec<Candidate> = sizes.iter().map(part).collect();
        let configuration = Configuration::new(parts, backend.division_cost(&problem).unwrap());
        Kernel { data: Data::whole(&problem), problem, configuration, scale }
    }

    fn task(&self) -> Task<'_> {
        let Kernel { problem, configuration, data, scale } = self;
        Task { problem, configuration, tensors: data.tensors(), scale: *scale }
    }
}

/// Four kernels with nothing in common: both families, divided and whole, adding to the output, summing in f32 scratch.
fn kernels(backend: &mut CudaBackend) -> Vec<Kernel> {
    let add = Scale { alpha: 1.0, beta: 1.0 };
    vec![
        Kernel::new(backend, "forward n6 c4 h6 w6 k8 r3 s3 pad1 f32", "legacy:gemm", &[3, 2, 1], Scale::OVERWRITE),
        Kernel::new(backend, "forward n5 c8 h5 w5 k4 r1 s1 f32", "engine0", &[5], add),
        Kernel::new(
            backend,
            "backward-filter n4 c8 h6 w6 k8 r3 s3 pad1 f16-f32",
            "legacy:algo-1",
            &[2, 2],
            Scale::OVERWRITE,
        ),
        Kernel::new(backend, "backward-data n4 c4 h6 w6 k4 r3 s3 pad1 f32", "legacy:algo-1", &[1, 3], add),
    ]
}

#[test]
fn outputs_match_runs_alone_whichever_stream_is_late() {
    let mocks = Mocks::new();
    for capture in [false, true] {
        let options = Options { untimed: true, capture, ..mocks.options() };
        let mut backend = CudaBackend::open(&options).unwrap();
        let kernels = kernels(&mut backend);
        let alone: Vec<Vec<f32>> = kernels
            .iter()
            .map(|k| backend.run(&k.problem, &k.configuration, k.data.tensors(), k.scale).unwrap().output)
            .collect();
        for (kernel, output) in kernels.iter().zip(&alone) {
            let expected = kernel.data.expected(&kernel.problem, kernel.scale);
            assert!(output.iter().zip(expected).all(|(&got, (want, _))| f64::from(got) == want), "{}", kernel.problem);
        }
        let tasks: Vec<Task<'_>> = kernels.iter().map(Kernel::task).collect();
        for late in 0..4 {
            mocks.delay_stream(late, 2000);
            let together = backend.run_together(&tasks).unwrap();
            assert_eq!((together.streams, &together.outputs), (4, &alone), "stream {late} late, capture {capture}");
            mocks.delay_stream(late, 0);
        }
        drop(backend);
        mocks.assert_nothing_left("running side by side");
        mocks.reset();
    }
}

#[test]
fn side_by_side_takes_as_long_as_the_longest_and_less_than_all_in_turn() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let kernels = kernels(&mut backend);
    let times: Vec<Nanos> = kernels
        .iter()
        .map(|k| backend.run(&k.problem, &k.configuration, k.data.tensors(), k.scale).unwrap().time)
        .collect();
    let tasks: Vec<Task<'_>> = kernels.iter().map(Kernel::task).collect();
    let together = backend.run_together(&tasks).unwrap().time;
    // The mock's clock is a function of the calls alone.
    let (longest, all) = (times.iter().copied().max().unwrap(), times.iter().copied().sum());
    assert!(longest <= together && together < all, "{longest} {together} {all}");
}

#[test]
fn more_kernels_than_streams_share_them() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { untimed: true, ..mocks.options() }).unwrap();
    let kernels: Vec<Kernel> = (0..3).flat_map(|_| kernels(&mut backend)).collect();
    let tasks: Vec<Task<'_>> = kernels.iter().map(Kernel::task).collect();
    let together = backend.run_together(&tasks).unwrap();
    assert!(together.streams < tasks.len());
    for (kernel, output) in kernels.iter().zip(&together.outputs) {
        let expected = kernel.data.expected(&kernel.problem, kernel.scale);
        assert!(output.iter().zip(expected).all(|(&got, (want, _))| f64::from(got) == want), "{}", kernel.problem);
    }
}

#[test]
fn each_segment_has_its_own_bounds() {
    let mocks = Mocks::new();
    let mut backend = CudaBackend::open(&Options { untimed: true, ..mocks.options() }).unwrap();
    // The reported workspace is a little smaller than the used one; the neighbor's segment must not take the difference.
    mocks.lie_workspace(-8);
    let kernels = kernels(&mut backend);
    let tasks: Vec<Task<'_>> = kernels.iter().map(Kernel::task).collect();
    let error = backend.run_together(&tasks).unwrap_err();
    assert!(matches!(&error, Error::Backend { .. }) && error.chain().contains("workspace"), "{}", error.chain());
}

#[test]
fn running_no_tasks_succeeds() {
    let mocks = Mocks::new();
    assert!(mocks.backend().run_together(&[]).unwrap().outputs.is_empty());
}
