//! A small convolution of the same kind. A new algorithm is timed on it before a large one, because a kernel on a device
//! cannot be stopped, and fallbacks for large volumes take a hundred times the running choice's time.
//!
//! ```text
//! n1 c128 d144 h256 w256 r3:  direct?   n1 c128 d36 h64 w64: 100 times what runs takes for as much work   not tried
//!                             gemm?     n1 c128 d36 h64 w64: 2 times                                      timed
//! ```

use std::time::Duration;

use tightfit_conv::Problem;
use tightfit_conv::problem::{Axis, Convolution};
use tightfit_units::Error;

use super::pace::MAX_DELAY_PER_STEP;
use super::rates::Rates;
use super::similar::Similar;
use super::task::CALLS;

/// The share of the work that is tried.
const PILOT_SHARE: f64 = 1.0 / 64.0;

/// The small convolution to try first, or `None` if the convolution itself cannot hold a step up for longer than it may be.
pub(super) fn pilot(problem: &Problem, rates: &Rates) -> Option<Problem> {
    let calls = CALLS as u32 * Duration::from_nanos(Similar::of_unknown(problem, rates).0);
    if calls <= MAX_DELAY_PER_STEP {
        return None;
    }
    shrunk(problem).ok().filter(|small| small.flops() * 2.0 < problem.flops())
}

/// The convolution with about a share of the work: fewer samples, and shorter maps, packed.
fn shrunk(problem: &Problem) -> Result<Problem, Error> {
    let batch = ((problem.batch() as f64 * PILOT_SHARE).ceil() as usize).max(1);
    let left = PILOT_SHARE * problem.batch() as f64 / batch as f64;
    let convolution = problem.convolution();
    let long = |axis: &&Axis| axis.output() > 1;
    let count = convolution.axes().iter().filter(long).count().max(1);
    let each = left.powf(1.0 / count as f64);
    let outputs = |axis: &Axis| ((axis.output() as f64 * each).ceil() as usize).max(1);
    let axes: Vec<Axis> = convolution.axes().iter().map(|axis| axis.cut(outputs(axis))).collect();
    let small = Convolution::new(convolution.channels(), convolution.filters(), convolution.groups(), &axes)?;
    Problem::new(small, problem.operation(), batch, problem.types(), problem.layout())
}

#[cfg(test)]
mod tests {
    use tightfit_units::Nanos;

    use super::*;

    #[test]
    fn a_pilot_is_small_and_of_the_same_kind() {
        let small = |line: &str| shrunk(&line.parse().unwrap()).unwrap().to_string();
        for (problem, expected) in [
            (
                "forward n1 c128 d144 h256 w256 k64 t3 r3 s3 pad1 bf16",
                "forward n1 c128 d36 h64 w64 k64 t3 r3 s3 pad1 bf16",
            ),
            ("backward-data n256 c64 h56 w56 k64 r3 s3 pad1 f32", "backward-data n4 c64 h56 w56 k64 r3 s3 pad1 f32"),
            (
                "forward n2 c8 h64 w64 k8 r3 s3 stride2 pad1 groups8 f32",
                "forward n1 c8 h11 w11 k8 r3 s3 pad1 stride2 groups8 f32",
            ),
        ] {
            assert_eq!(small(problem), expected);
        }
    }

    #[test]
    fn only_long_candidates_have_a_pilot() {
        let large: Problem = "forward n1 c128 d144 h256 w256 k64 t3 r3 s3 pad1 bf16".parse().unwrap();
        let usual: Problem = "forward n64 c64 h56 w56 k64 r3 s3 pad1 bf16".parse().unwrap();
        let mut rates = Rates::default();
        // 400 TFLOP/s.
        rates.add(&large, Nanos((large.flops() / 400e3) as u64));
        assert!(pilot(&large, &rates).is_some_and(|small| small.flops() < large.flops() / 32.0));
        assert_eq!(pilot(&usual, &rates), None);
    }
}
