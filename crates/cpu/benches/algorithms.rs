//! Every operation on two well-known layers by the algorithms made for them, and the matrix product that bounds the
//! GEMM algorithms.
//!
//! The plain product runs as a pointwise convolution, which is nothing but products, and counts the same operations as
//! the layer: its ratio to `explicit-gemm` is what unfolding costs. Compare within one run; machines drift.
//! `TIGHTFIT_THREADS` chooses the threads.

use divan::counter::ItemsCount;
use tightfit_conv::backend::Effort;
use tightfit_conv::{Algorithm, Backend, Operation, Problem};
use tightfit_cpu::CpuBackend;

const ALEXNET_CONV2: &str = "forward n32 c96 h27 w27 k256 r5 s5 pad2 f32";
const ALEXNET_CONV2_PRODUCT: &str = "forward n32 c2400 h27 w27 k256 r1 s1 f32";
const RESNET_3X3: &str = "forward n8 c256 h56 w56 k256 r3 s3 pad1 f32";
const RESNET_3X3_PRODUCT: &str = "forward n8 c2304 h56 w56 k256 r1 s1 f32";

// Fourier's spectra of 256 x 256 small filters take a gigabyte and seconds: not worth timing on the second layer.
const FOR_5X5: [&str; 5] = ["blocked-gemm", "implicit-gemm", "explicit-gemm", "fft", "fft-tiling"];
const FOR_3X3: [&str; 5] = ["blocked-gemm", "implicit-gemm", "explicit-gemm", "winograd-2x2", "winograd-4x4"];

fn main() {
    divan::main();
}

#[divan::bench(args = FOR_5X5, consts = [0, 1, 2], sample_count = 5)]
fn alexnet_conv2<const OPERATION: usize>(bencher: divan::Bencher, algorithm: &str) {
    bench(bencher, ALEXNET_CONV2, OPERATION, algorithm);
}

#[divan::bench(consts = [0, 1, 2], sample_count = 5)]
fn alexnet_conv2_product<const OPERATION: usize>(bencher: divan::Bencher) {
    bench(bencher, ALEXNET_CONV2_PRODUCT, OPERATION, "explicit-gemm");
}

#[divan::bench(args = FOR_3X3, consts = [0, 1, 2], sample_count = 5)]
fn resnet_3x3<const OPERATION: usize>(bencher: divan::Bencher, algorithm: &str) {
    bench(bencher, RESNET_3X3, OPERATION, algorithm);
}

#[divan::bench(consts = [0, 1, 2], sample_count = 5)]
fn resnet_3x3_product<const OPERATION: usize>(bencher: divan::Bencher) {
    bench(bencher, RESNET_3X3_PRODUCT, OPERATION, "explicit-gemm");
}

#[divan::bench(consts = [0, 1, 2], sample_count = 3)]
fn alexnet_conv2_direct<const OPERATION: usize>(bencher: divan::Bencher) {
    bench(bencher, ALEXNET_CONV2, OPERATION, "direct");
}

/// Times one run of an algorithm. Items are floating-point operations.
fn bench(bencher: divan::Bencher, line: &str, operation: usize, algorithm: &str) {
    let threads = std::env::var("TIGHTFIT_THREADS").ok().and_then(|text| text.parse().ok());
    let mut cpu = CpuBackend::new(threads);
    let problem = line.parse::<Problem>().unwrap().with_operation(Operation::ALL[operation]);
    let algorithm = Algorithm::new(algorithm);
    let once = Effort { warm_up: 0, least: 1, most: 1, ..Effort::default() };
    // Allocates and fills the buffers, which later runs find ready.
    cpu.measure(&problem, &algorithm, &once).unwrap();
    bencher
        .counter(ItemsCount::new(problem.flops() as u64))
        .bench_local(|| cpu.measure(&problem, &algorithm, &once).unwrap());
}
