//! Decides which engines may compute slices: only engines that have computed a slice right on this device with this
//! cuDNN.
//!
//! Engines of some versions compute wrong results, or write beyond their memory, where the padding before and after
//! differs. So before such a problem is timed, or one whose tensors are views of larger ones, it runs once on small whole
//! numbers between guards:
//!
//! ```text
//! data     | .. 1 0 -1 1 .. |        the same numbers over and over
//! output   | guard | y | guard |     chosen elements against 64-bit arithmetic; elements between a view's as before
//! scratch  | sum | guard | workspace | guard |
//! ```
//!
//! An engine that fails is refused like one that does not support the problem. A measurement in the cache therefore shows
//! that the engine has passed. A plan may come from another device's measurements, so before it is carried out, its engines
//! pass here.

use tightfit_conv::backend::Scale;
use tightfit_conv::execute::{Elements, products, reference_of};
use tightfit_conv::problem::Storage;
use tightfit_conv::{Notes, Operation, Problem, Types};
use tightfit_units::Bytes;

use super::CudaBackend;
use super::measure::{TimedStep, starts};
use super::steps::{Places, sum_bytes};
use crate::CudaError;
use crate::convolution::{Family, Launch, tensor_bytes};
use crate::safe::{Slice, Stream};

/// Numbers in the pattern of a tensor. A prime, so that no dimension repeats in step with it.
const PATTERN_NUMBERS: usize = 8191;
/// Bytes of a guard around the workspace: a known fault overran 680 KiB.
const WORKSPACE_GUARD_BYTES: usize = 1 << 20;
/// Bytes of a guard around a tensor.
const TENSOR_GUARD_BYTES: usize = 1 << 15;
/// The content of the workspace's guards.
const GUARD_FILL: u8 = 0xA5;
/// The most products to compute in 64 bits, for more elements than these.
const MAX_PRODUCTS: usize = 1 << 22;
const MIN_ELEMENTS: usize = 32;
/// The longest view whose gaps are compared element by element; of longer ones, some next to the written elements.
const MAX_COMPARED_VIEW: usize = 1 << 22;

/// Whether an engine must compute a problem right before it is used: one with uneven padding, or a view.
pub fn must_be_proven(problem: &Problem) -> bool {
    let uneven = problem.convolution().axes().iter().any(|axis| axis.pad_before != axis.pad_after);
    uneven || !problem.is_packed()
}

/// The number of a tensor (0 for data, 1 for other, 2 for output) at a place in its buffer: -1, 0 or 1.
fn number(tensor: usize, place: usize) -> f32 {
    (mixed(tensor * 7919 + place % PATTERN_NUMBERS) % 3) as f32 - 1.0
}

/// Multiplicative hashing (Knuth), of which the high bits are the random ones.
fn mixed(number: usize) -> u32 {
    (number as u32).wrapping_mul(2_654_435_761) >> 16
}

impl CudaBackend {
    /// Proves that an engine computes a problem right, if that needs proof. Its memory on the device is kept until
    /// [`CudaBackend::release`].
    ///
    /// # Errors
    /// [`CudaError::Unproven`] if the result is wrong or memory beyond was written; the errors of running.
    pub(super) fn prove_engine(&mut self, problem: &Problem, family: &Family) -> Result<(), CudaError> {
        if must_be_proven(problem) {
            let (workspace, notes) = self.requirement(problem, family)?;
            let timed = self.timed_step(problem, family)?;
            self.prove(problem, &timed, workspace, notes)?;
            self.proven.insert((*problem, family.clone()));
        }
        Ok(())
    }

    /// Whether an engine needs no proof for a problem, or was seen to compute it right.
    pub(super) fn is_proven(&self, problem: &Problem, family: &Family) -> bool {
        !must_be_proven(problem) || self.proven.contains(&(*problem, family.clone()))
    }

    /// Runs the call once before it is timed, and compares.
    fn prove(&mut self, problem: &Problem, timed: &TimedStep, workspace: Bytes, notes: Notes) -> Result<(), CudaError> {
        let storage = problem.types().storage();
        let size = storage.size();
        let bytes = tensor_bytes(problem, storage);
        let first = starts(problem, storage).map(|start| TENSOR_GUARD_BYTES + start);
        let workspace = usize::try_from(workspace.0).unwrap_or(usize::MAX);
        let sum = if timed.elementwise.is_some() { sum_bytes(problem) } else { 0 };
        let ends = [0, 1, 2].map(|tensor| first[tensor].saturating_add(bytes[tensor]));
        let after = sum + WORKSPACE_GUARD_BYTES;
        let whole = after.saturating_add(workspace).saturating_add(WORKSPACE_GUARD_BYTES);
        let [data, other, output] = ends.map(|end| end.saturating_add(TENSOR_GUARD_BYTES));
        let stream = self.handle.stream();
        let buffers = self.scratch.borrow([data, other, output, whole])?;
        for (tensor, buffer) in buffers[..3].iter_mut().enumerate() {
            let length = buffer.len();
            let filled = length.min(PATTERN_NUMBERS * size);
            let numbers: Vec<f32> = (0..filled / size).map(|place| number(tensor, place)).collect();
            buffer.slice_mut(0..filled / size * size)?.write(&storage.encode(&numbers), stream)?;
            buffer.slice_mut(0..length)?.repeat(filled / size * size, stream)?;
        }
        let [in_data, in_other, in_output, in_scratch] = buffers;
        in_scratch.slice_mut(0..sum)?.fill(0, stream)?;
        in_scratch.slice_mut(sum..whole)?.fill(GUARD_FILL, stream)?;
        let places = Places {
            data: in_data.slice(first[0]..ends[0])?,
            other: in_other.slice(first[1]..ends[1])?,
            output: *in_output.slice_mut(first[2]..ends[2])?,
            sum: if sum > 0 { Some(in_scratch.slice(0..sum)?) } else { None },
            workspace: in_scratch.slice(after..after + workspace)?,
        };
        let mut launches = Vec::new();
        timed.step.bind(places, timed.elementwise.as_deref(), &mut launches)?;
        launches.iter().try_for_each(Launch::enqueue)?;
        drop(launches);
        stream.synchronize()?;

        let at = |tensor: usize, index: usize| number(tensor, first[tensor] / size + index);
        let pattern = |range: std::ops::Range<usize>| {
            storage.encode(&range.map(|place| number(2, place % PATTERN_NUMBERS)).collect::<Vec<f32>>())
        };
        let (before, behind) = (first[2] / size, ends[2] / size);
        let guards = [
            (
                in_output.slice(first[2] - TENSOR_GUARD_BYTES..first[2])?,
                pattern(before - TENSOR_GUARD_BYTES / size..before),
            ),
            (
                in_output.slice(ends[2]..ends[2] + TENSOR_GUARD_BYTES)?,
                pattern(behind..behind + TENSOR_GUARD_BYTES / size),
            ),
            (in_scratch.slice(sum..after)?, vec![GUARD_FILL; WORKSPACE_GUARD_BYTES]),
            (in_scratch.slice(after + workspace..whole)?, vec![GUARD_FILL; WORKSPACE_GUARD_BYTES]),
        ];
        for (guard, expected) in &guards {
            if read(guard, stream)? != *expected {
                return Err(CudaError::Unproven { what: "writes outside its memory" });
            }
        }
        let length = bytes[2] / size;
        let gaps = if sum == 0 && length <= MAX_COMPARED_VIEW { gaps(problem, length) } else { Vec::new() };
        if !gaps.is_empty() {
            let found = storage.decode(&read(&in_output.slice(first[2]..ends[2])?, stream)?);
            if gaps.iter().any(|&index| found[index] != at(2, index)) {
                return Err(CudaError::Unproven { what: "writes between the rows of its output" });
            }
        }
        let adds = timed.step.adds() || sum > 0;
        let old = |index: usize| if sum > 0 { 0.0 } else { f64::from(at(2, index)) };
        let elements =
            Elements { data: &|index| f64::from(at(0, index)), other: &|index| f64::from(at(1, index)), output: &old };
        let (written, storage) = if sum > 0 {
            (in_scratch.slice(0..sum)?, Storage::F32)
        } else {
            (in_output.slice(first[2]..ends[2])?, storage)
        };
        let chosen = chosen(problem, written.len() / storage.size());
        let scale = Scale { alpha: 1.0, beta: if adds { 1.0 } else { 0.0 } };
        let expected = reference_of(problem, elements, scale, &chosen);
        let allowed = Allowed::of(problem, notes);
        for (index, expected) in chosen.into_iter().zip(expected) {
            let place = index * storage.size();
            let found = storage.decode(&read(&written.part(place..place + storage.size())?, stream)?);
            let found = found.first().map_or(f64::NAN, |&value| f64::from(value));
            // The gaps of a view belong to other parts.
            let (expected, allowed) =
                if expected.is_nan() { (old(index), 0.0) } else { (expected, allowed.at(expected)) };
            let error = (found - expected).abs();
            if error.is_nan() || error > allowed {
                return Err(CudaError::Unproven { what: "computes wrong results on small whole numbers" });
            }
        }
        Ok(())
    }
}

fn read(part: &Slice<'_>, stream: &Stream) -> Result<Vec<u8>, CudaError> {
    let mut bytes = vec![0; part.len()];
    part.read(&mut bytes, stream)?;
    Ok(bytes)
}

/// How far a result may be off.
struct Allowed {
    any: f64,
    relative: f64,
}

impl Allowed {
    /// Sums of whole numbers are exact but for how the result is stored. Transforms, which some engines do not report, and sums in half types round
    /// by some share of a typical sum. A halo that is missing, or read from elsewhere, causes an error of several times that share, if it contributes
    /// a good part of the products. In long sums, only some elements show the error.
    fn of(problem: &Problem, notes: Notes) -> Allowed {
        let rounds = notes.contains(Notes::FFT) || notes.contains(Notes::WINOGRAD) || problem.types() == Types::F16;
        let relative = match problem.types().storage() {
            Storage::F32 => 1e-6,
            Storage::F16 => 1.0 / 1024.0,
            Storage::Bf16 => 1.0 / 128.0,
        };
        Allowed { any: (products(problem) as f64).sqrt() * if rounds { 0.1 } else { 0.02 }, relative }
    }

    fn at(&self, expected: f64) -> f64 {
        self.any + self.relative * expected.abs()
    }
}

/// Extents and strides of the written tensor: samples (or filters), channels and three spatial dimensions.
fn written(problem: &Problem) -> ([usize; 5], [usize; 5]) {
    let convolution = problem.convolution();
    let (channels, filters) = (convolution.channels(), convolution.filters());
    let own = channels / convolution.groups();
    let (outer, inner, spatial, strides) = match problem.operation() {
        Operation::Forward => (problem.batch(), filters, convolution.outputs(), problem.output_strides()),
        Operation::BackwardData => (problem.batch(), channels, convolution.inputs(), problem.input_strides()),
        Operation::BackwardFilter => {
            (filters, own, convolution.filter(), problem.layout().strides(own, convolution.filter()))
        }
    };
    ([outer, inner, spatial[0], spatial[1], spatial[2]], strides)
}

/// Flat indices between the elements of the output, which belong to other parts.
fn gaps(problem: &Problem, length: usize) -> Vec<usize> {
    let (extents, strides) = written(problem);
    let mut is_gap = vec![true; length];
    let mut indices = vec![0];
    for (extent, stride) in extents.into_iter().zip(strides) {
        indices = indices.iter().flat_map(|index| (0..extent).map(move |at| index + at * stride)).collect();
    }
    indices.into_iter().for_each(|index| is_gap[index] = false);
    (0..length).filter(|&index| is_gap[index]).collect()
}

/// Flat indices of the output to compare: both ends and the middle of every dimension, and between a view's elements; some of
/// them, in no order, where each takes many products.
fn chosen(problem: &Problem, length: usize) -> Vec<usize> {
    let (extents, strides) = written(problem);
    let ends = |extent: usize| {
        let mut places = vec![0, 1, extent / 2, extent.saturating_sub(2), extent - 1];
        places.retain(|&place| place < extent);
        places.dedup();
        places
    };
    let mut indices = vec![0];
    for (place, extent) in extents.into_iter().enumerate() {
        // One place beyond: of a view it belongs to a neighbor, otherwise to the next row.
        let beyond = (place >= 2 && problem.operation() != Operation::BackwardFilter).then_some(extent);
        let places: Vec<usize> = ends(extent).into_iter().chain(beyond).collect();
        indices = indices.iter().flat_map(|index| places.iter().map(move |at| index + at * strides[place])).collect();
    }
    indices.retain(|&index| index < length);
    indices.sort_unstable();
    indices.dedup();
    // In no order, so that no row or column is left out.
    indices.sort_by_key(|&index| mixed(index));
    indices.truncate((MAX_PRODUCTS / products(problem).max(1)).max(MIN_ELEMENTS));
    indices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_and_uneven_padding_must_be_proven() {
        let must = |line: &str| must_be_proven(&line.parse().unwrap());
        assert!(!must("forward n1 c2 h8 w8 k2 r3 s3 pad1 f32"));
        assert!(must("forward n1 c2 h8 w8 k2 r3 s3 pad1:0x1 f32"));
        assert!(must("forward n1 c2 h8 w8 k2 r3 s3 pad1 f32 xh16"));
    }

    #[test]
    fn gaps_between_rows_are_compared() {
        let problem: Problem = "forward n2 c2 h4 w5 k3 r3 s3 pad1 f32 xh9 yh6".parse().unwrap();
        let gaps = gaps(&problem, problem.output_span());
        // Two rows of five behind each of six channels but the last.
        assert_eq!((gaps.len(), &gaps[..11]), (5 * 10, &[20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 50][..]));
        let dense: Problem = "backward-filter n2 c2 h4 w5 k3 r3 s3 pad1 f32 xh9 yh6".parse().unwrap();
        assert!(super::gaps(&dense, dense.filter_len()).is_empty());
    }

    #[test]
    fn numbers_are_mixed_and_chosen_outputs_touch_every_edge() {
        let counts =
            [-1.0, 0.0, 1.0].map(|value| (0..PATTERN_NUMBERS).filter(|&place| number(0, place) == value).count());
        assert!(counts.iter().all(|&count| count > PATTERN_NUMBERS / 4), "{counts:?}");
        let problem: Problem = "forward n1 c2 h4 w5 k2 r3 s3 pad1 f32 xh9 yh8".parse().unwrap();
        let chosen = chosen(&problem, problem.output_span());
        // The first row, the last, and one of the neighbor's.
        assert!([0, 3 * 5, 3 * 5 + 4, 4 * 5].iter().all(|index| chosen.contains(index)), "{chosen:?}");
        assert!(chosen.iter().all(|&index| index < problem.output_span()));
        // Where an element takes many products, some of all columns and rows of the filters.
        let long: Problem = "backward-filter n1 c64 h256 w1024 k64 r3 s3 pad1:0x1 f32 xh512 yh512".parse().unwrap();
        let some = super::chosen(&long, 64 * 64 * 9);
        assert_eq!(some.len(), MIN_ELEMENTS);
        for (divisor, extent) in [(1, 3), (3, 3)] {
            let places: std::collections::BTreeSet<usize> = some.iter().map(|index| index / divisor % extent).collect();
            assert_eq!(places.len(), extent);
        }
    }
}
