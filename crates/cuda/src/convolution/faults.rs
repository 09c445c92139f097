//! Questions that cuDNN must not be asked, and engines that it offers but that must not run, because the result is
//! worse than an error.

use tightfit_conv::problem::{Axis, Convolution};
use tightfit_conv::{Operation, Problem};

use super::Engine;
use crate::CudnnVersion;

/// Engines with a defect on some problems.
struct Fault {
    /// First and last version known to have the defect.
    versions: [CudnnVersion; 2],
    operation: Operation,
    /// The engines' global indices.
    engines: &'static [i64],
    /// Whether a problem is affected.
    concerns: fn(&Problem) -> bool,
    what: &'static str,
}

const CUDNN_9_19: [CudnnVersion; 2] = [CudnnVersion(91_900), CudnnVersion(91_999)];

/// `tests/device.rs` found all of these on an H200 with 6 samples of c8 h12 w12 k8 r3 s3 pad0:1, on which the other
/// engines, up to 160 counting knob settings, are correct.
const FAULTS: &[Fault] = &[
    // Overran 680 KiB, in f32.
    Fault {
        versions: CUDNN_9_19,
        operation: Operation::BackwardData,
        engines: &[50],
        concerns: is_uneven,
        what: "writes outside its workspace if the padding before and after differs",
    },
    // Off by 5 to 6 times the sum of the magnitudes of the products, in tf32 and the half types.
    Fault {
        versions: CUDNN_9_19,
        operation: Operation::BackwardData,
        engines: &[78],
        concerns: is_uneven,
        what: WRONG,
    },
    // Off by 6% to 8% of that sum: 18 in f32 and tf32, 70 in the half types, the others in all types.
    Fault {
        versions: CUDNN_9_19,
        operation: Operation::BackwardFilter,
        engines: &[1, 18, 20, 70],
        concerns: is_uneven,
        what: WRONG,
    },
];

const WRONG: &str = "computes wrong results if the padding before and after differs";

fn is_uneven(problem: &Problem) -> bool {
    problem.convolution().axes().iter().any(|axis| axis.pad_before != axis.pad_after)
}

/// Why an engine of this version must not run on the problem, or `None` if it may.
pub(crate) fn fault(version: CudnnVersion, problem: &Problem, engine: &Engine) -> Option<&'static str> {
    let known = FAULTS.iter().find(|fault| {
        (fault.versions[0]..=fault.versions[1]).contains(&version)
            && fault.operation == problem.operation()
            && fault.engines.contains(&engine.index)
            && (fault.concerns)(problem)
    });
    known.map(|fault| fault.what)
}

/// The problem whose engines to list in place of a slice's: on packed tensors, padded as much after as before. The
/// heuristics of cuDNN 9.19 read a wild address for slices of three dimensions, at least in mode B. Each engine still decides
/// on the slice itself.
pub(crate) fn listed(problem: &Problem) -> Problem {
    let convolution = problem.convolution();
    let even = |axis: &Axis| {
        let pad = axis.pad_before.max(axis.pad_after);
        Axis { pad_before: pad, pad_after: pad, ..*axis }
    };
    let axes: Vec<Axis> = convolution.axes().iter().map(even).collect();
    let (channels, filters, groups) = (convolution.channels(), convolution.filters(), convolution.groups());
    Convolution::new(channels, filters, groups, &axes)
        .and_then(|even| Problem::new(even, problem.operation(), problem.batch(), problem.types(), problem.layout()))
        .unwrap_or_else(|_| problem.packed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_kept_from_one_kind_of_problem() {
        let is_kept = |version: usize, problem: &str, index: i64| {
            let engine = Engine { index, knobs: Vec::new() };
            fault(CudnnVersion(version), &problem.parse().unwrap(), &engine).is_some()
        };
        let uneven = "backward-data n6 c8 h12 w12 k8 r3 s3 pad0:1 f32";
        assert!(is_kept(91_900, uneven, 50) && is_kept(91_901, uneven, 50));
        assert!(!is_kept(92_000, uneven, 50) && !is_kept(91_800, uneven, 50) && !is_kept(91_900, uneven, 49));
        assert!(!is_kept(91_900, "backward-data n6 c8 h12 w12 k8 r3 s3 pad1 f32", 50));
        assert!(is_kept(91_900, "backward-filter n6 c8 h12 w12 k8 r3 s3 pad1x0:1 f16", 70));
        assert!(!is_kept(91_900, "forward n6 c8 h12 w12 k8 r3 s3 pad0:1 f32", 50));
    }

    #[test]
    fn the_engines_of_a_slice_are_listed_for_a_packed_and_evenly_padded_problem() {
        let listed = |line: &str| listed(&line.parse().unwrap()).to_string();
        let even = "forward n1 c8 d4 h8 w8 k8 t3 r3 s3 pad1 f32";
        assert_eq!(listed(even), even);
        assert_eq!(listed("forward n1 c8 d4 h8 w8 k8 t3 r3 s3 pad1:0x1x1 f32 xd9 yd9"), even);
    }
}
