//! The accuracy of outputs, compared with 64-bit arithmetic on separate data.

use std::sync::Arc;
use std::thread::JoinHandle;

use tightfit_conv::backend::Scale;
use tightfit_conv::execute::{Elements, products, reference_of};
use tightfit_conv::problem::Storage;
use tightfit_conv::{Configuration, Operation, Problem};
use tightfit_cuda::Pattern;

/// Products to spend on a comparison, which takes about a fifth of a second of one core.
const MAX_PRODUCTS: usize = 20_000_000;
/// Outputs to compare at least and at most.
const OUTPUTS: [usize; 2] = [4, 64];
/// Seams to compare at most.
const MAX_SEAMS: usize = 16;
/// How much larger the error may be.
const MAX_ERROR_RATIO: f64 = 2.0;
/// The error of a plainly wrong output, whatever the limit: Winograd's algorithm on 5x5 filters errs by half of a hundredth.
const MIN_WRONG_ERROR: f64 = 0.02;

/// The outputs to compare, by flat index: evenly spread, with the first and the last; and on both sides of the seams between
/// slices.
pub fn sampled(problem: &Problem, ours: &Configuration) -> Vec<usize> {
    let len = output_len(problem);
    let count = (MAX_PRODUCTS / products(problem).max(1)).clamp(OUTPUTS[0], OUTPUTS[1]).min(len);
    let evenly = (0..count).map(|nth| (nth as u128 * (len - 1) as u128 / (count - 1).max(1) as u128) as usize);
    let mut all: Vec<usize> = evenly.chain(seams(problem, ours)).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Outputs on both sides of some seams, each in another channel and place next to the seam.
fn seams(problem: &Problem, ours: &Configuration) -> Vec<usize> {
    let convolution = problem.convolution();
    let (strides, extents, channels) = match problem.operation() {
        Operation::Forward => (problem.output_strides(), convolution.outputs(), convolution.filters()),
        Operation::BackwardData => (problem.input_strides(), convolution.inputs(), convolution.channels()),
        // Its slices add up everywhere.
        Operation::BackwardFilter => return Vec::new(),
    };
    let slices = ours.parts().iter().find_map(|part| part.algorithm.slices());
    let Some(slices) = slices else { return Vec::new() };
    let along = slices.dimension().index();
    let starts: Vec<usize> = slices.ranges().map(|(range, _)| range.start).filter(|start| *start > 0).collect();
    let step = starts.len().div_ceil(MAX_SEAMS).max(1);
    let sides = starts.iter().step_by(step).flat_map(|start| [start - 1, *start]);
    let index = |(nth, position): (usize, usize)| {
        let spatial = (0..3).map(|axis| if axis == along { position } else { nth * 5 % extents[axis] });
        let at = spatial.enumerate().map(|(axis, place)| place * strides[2 + axis]).sum::<usize>();
        at + nth * 7 % channels * strides[1] + nth % problem.batch() * strides[0]
    };
    sides.enumerate().map(index).collect()
}

fn output_len(problem: &Problem) -> usize {
    match problem.operation() {
        Operation::Forward => problem.output_len(),
        Operation::BackwardData => problem.input_len(),
        Operation::BackwardFilter => problem.filter_len(),
    }
}

/// The outputs in 64-bit arithmetic, computed on a separate thread so that the program need not wait.
pub struct Truth(JoinHandle<Vec<f64>>);

impl Truth {
    /// Begins to compute, or `None` if no thread can be started.
    pub fn begin(problem: Problem, scale: Scale, pattern: Arc<Pattern>, at: Vec<usize>) -> Option<Truth> {
        let compute = move || {
            let element = |tensor: usize| {
                let pattern = &pattern;
                move |index: usize| f64::from(pattern.element(tensor, index))
            };
            let (data, other, output) = (element(0), element(1), element(2));
            reference_of(&problem, Elements { data: &data, other: &other, output: &output }, scale, &at)
        };
        std::thread::Builder::new().name("tightfit-compare".to_owned()).spawn(compute).map(Truth).ok()
    }

    /// Known after this time.
    #[cfg(test)]
    pub fn known_after(time: std::time::Duration, truth: Vec<f64>) -> Truth {
        Truth(std::thread::spawn(move || {
            std::thread::sleep(time);
            truth
        }))
    }

    /// Whether it is known by now.
    pub fn is_known(&self) -> bool {
        self.0.is_finished()
    }

    /// The errors of outputs. Waits if the truth is not known yet. Returns `None` if it could not be computed.
    pub fn errors(self, outputs: &[Vec<f32>]) -> Option<Vec<f64>> {
        let truth = self.0.join().ok()?;
        Some(outputs.iter().map(|outputs| error(&truth, outputs)).collect())
    }
}

/// Whether an error is as small as the framework's choice has, or, if it is not strict, at least not plainly wrong.
pub(super) fn is_allowed(storage: Storage, is_strict: bool, theirs: f64, ours: f64) -> bool {
    let allowed = MAX_ERROR_RATIO * theirs.max(rounding(storage));
    ours <= if is_strict { allowed } else { allowed.max(MIN_WRONG_ERROR) }
}

/// The root of the mean square of the differences, over the largest magnitude; infinite if anything is not a number.
fn error(truth: &[f64], outputs: &[f32]) -> f64 {
    let magnitude = truth.iter().fold(0.0f64, |most, value| most.max(value.abs()));
    let squares = truth.iter().zip(outputs).map(|(truth, output)| (f64::from(*output) - truth).powi(2));
    let error = (squares.sum::<f64>() / truth.len().max(1) as f64).sqrt() / magnitude.max(f64::MIN_POSITIVE);
    if error.is_finite() && truth.len() == outputs.len() { error } else { f64::INFINITY }
}

/// The average error of rounding a result to its type.
fn rounding(storage: Storage) -> f64 {
    match storage {
        Storage::F32 => 2f64.powi(-25),
        Storage::F16 => 2f64.powi(-13),
        Storage::Bf16 => 2f64.powi(-10),
    }
}

#[cfg(test)]
mod tests {
    use tightfit_conv::{Algorithm, Candidate, DivisionCost};
    use tightfit_units::{Bytes, Nanos};

    use super::*;

    #[test]
    fn an_error_is_seen_and_rounding_is_not() {
        let truth = [1.0, -2.0, 0.5, 4.0];
        let allows_if = |is_strict, theirs: [f32; 4], ours: [f32; 4], storage| {
            let truth = truth.to_vec();
            let truth = Truth(std::thread::spawn(move || truth));
            let errors = truth.errors(&[theirs.to_vec(), ours.to_vec()]).unwrap();
            is_allowed(storage, is_strict, errors[0], errors[1])
        };
        let allows = |theirs, ours, storage| allows_if(true, theirs, ours, storage);
        let exact = [1.0, -2.0, 0.5, 4.0];
        let off = |by: f32| [1.0 + by, -2.0, 0.5, 4.0 - by];
        assert!(allows(exact, exact, Storage::F32));
        assert!(allows(off(1e-4), off(1.9e-4), Storage::F32) && !allows(off(1e-4), off(2.1e-4), Storage::F32));
        assert!(!allows(exact, off(1e-5), Storage::F32) && allows(exact, off(2e-4), Storage::F16));
        assert!(!allows(exact, [f32::NAN, -2.0, 0.5, 4.0], Storage::Bf16));
        assert!(!allows(exact, [1.0, -2.0, 0.5, f32::INFINITY], Storage::Bf16));
        assert!(allows_if(false, exact, off(0.02), Storage::F32) && !allows_if(false, exact, off(0.2), Storage::F32));
    }

    #[test]
    fn few_outputs_of_many_products_are_compared_and_both_ends_are() {
        let few: Problem = "backward-filter n256 c64 h112 w112 k64 r3 s3 pad1 f32".parse().unwrap();
        let many: Problem = "forward n4 c3 h8 w8 k4 r3 s3 f32".parse().unwrap();
        let whole = |problem: &Problem| configuration(problem, "gemm");
        let sampled = |problem: &Problem| sampled(problem, &whole(problem));
        assert_eq!((sampled(&few).len(), sampled(&many).len()), (6, 64));
        assert_eq!((sampled(&few)[0], sampled(&few)[5]), (0, few.filter_len() - 1));
        let tiny: Problem = "backward-filter n2 c1 h4 w4 k1 r1 s1 f32".parse().unwrap();
        assert_eq!(sampled(&tiny), [0]);
    }

    #[test]
    fn outputs_on_both_sides_of_seams_are_compared() {
        let problem: Problem = "forward n2 c64 h12 w10 k32 r3 s3 pad1 f32".parse().unwrap();
        let rows = |ours: &Configuration| {
            let all = sampled(&problem, ours);
            assert!(all.iter().all(|index| *index < problem.output_len()));
            all.iter().map(|index| index / 10 % 12).collect::<Vec<usize>>()
        };
        let sliced = rows(&configuration(&problem, "h5 fft + h4 fft + h3 fft"));
        assert!([4, 5, 8, 9].iter().all(|row| sliced.contains(row)), "{sliced:?}");
        assert_eq!(sliced.len(), rows(&configuration(&problem, "fft")).len() + 4);
        let filter = problem.with_operation(Operation::BackwardFilter);
        assert!(seams(&filter, &configuration(&filter, "h5 fft + h4 fft + h3 fft")).is_empty());
    }

    fn configuration(problem: &Problem, algorithm: &str) -> Configuration {
        let part = Candidate::new(Algorithm::new(algorithm), problem.batch(), Nanos(1), Bytes::ZERO);
        Configuration::new(vec![part], DivisionCost::default())
    }
}
