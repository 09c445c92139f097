//! Parts of convolutions against the whole, exhaustively: every range of every small axis, computed alone from the definition on integers, has the
//! same bits.

use std::collections::BTreeSet;

use tightfit_conv::backend::Scale;
use tightfit_conv::execute::{Elements, reference_of};
use tightfit_conv::problem::{Cuts, Dimension, Part};
use tightfit_conv::{Axis, Convolution, Layout, Operation, Problem, Types};

/// Small whole numbers that repeat with no extent used here.
fn number(index: usize) -> f64 {
    (index * 7919 % 13) as f64 - 6.0
}

/// Every axis with these extents that has an output.
fn axes(input: usize) -> Vec<Axis> {
    let mut axes = Vec::new();
    for filter in 1..=3 {
        for (pad_before, pad_after) in [(0, 0), (1, 1), (0, 1), (2, 0), (1, 2), (3, 4)] {
            for (stride, dilation) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)] {
                let axis = Axis { input, filter, pad_before, pad_after, stride, dilation };
                if axis.reach() <= input + pad_before + pad_after {
                    axes.push(axis);
                }
            }
        }
    }
    axes
}

/// A problem with `axis` along `dimension` and short other axes, one of them with stride and uneven padding.
fn problem(axis: Axis, dimension: Dimension, operation: Operation, layout: Layout, three: bool) -> Problem {
    let uneven = Axis { input: 3, filter: 2, pad_before: 1, pad_after: 0, stride: 2, dilation: 1 };
    let mut axes = [Axis::new(2, 1), uneven, Axis::new(2, 2).pad(1)];
    axes[dimension.index()] = axis;
    let axes = if three { &axes[..] } else { &axes[1..] };
    let convolution = Convolution::new(4, 2, 2, axes).unwrap();
    Problem::new(convolution, operation, 2, Types::F32, layout).unwrap()
}

/// The lengths of data, other and output.
fn spans(problem: &Problem) -> [usize; 3] {
    let (x, w, y) = (problem.input_span(), problem.filter_len(), problem.output_span());
    match problem.operation() {
        Operation::Forward => [x, w, y],
        Operation::BackwardData => [y, w, x],
        Operation::BackwardFilter => [x, y, w],
    }
}

/// The outputs of a part from the whole tensors' numbers, by their place in the whole output.
fn outputs(whole: &Problem, part: &Part) -> Vec<(usize, f64)> {
    let limits = spans(whole);
    let read = |first: usize, limit: usize| {
        move |index: usize| {
            assert!(first + index < limit, "a part reads beyond the whole tensor");
            number(first + index)
        }
    };
    let (data, other) = (read(part.data, limits[0]), read(part.other, limits[1]));
    let at: Vec<usize> = (0..spans(&part.problem)[2]).collect();
    let elements = Elements { data: &data, other: &other, output: &|_| f64::NAN };
    let found = reference_of(&part.problem, elements, Scale::OVERWRITE, &at);
    let placed = at.into_iter().map(|index| part.output + index).zip(found);
    placed.filter(|(_, value)| !value.is_nan()).collect()
}

fn whole_outputs(whole: &Problem) -> Vec<f64> {
    let part = Part::of_samples(whole, 0..whole.batch()).unwrap();
    outputs(whole, &part).into_iter().map(|(_, value)| value).collect()
}

/// Every problem of the exhaustion, with the dimension to cut.
fn each(inputs: std::ops::RangeInclusive<usize>, mut check: impl FnMut(&Problem, Dimension)) {
    let mut turn = 0;
    for axis in inputs.flat_map(axes) {
        for operation in Operation::ALL {
            // Dimensions and layouts take turns, so that each meets every kind of axis.
            let dimension = Dimension::ALL[turn % 3];
            let layout = Layout::ALL[turn / 3 % 2];
            check(&problem(axis, dimension, operation, layout, dimension == Dimension::D || turn % 2 == 0), dimension);
            turn += 1;
        }
        turn += 1;
    }
}

#[test]
fn every_range_computed_alone_equals_the_whole() {
    let (mut computed, mut refused) = (0, 0);
    each(1..=7, |whole, dimension| {
        let expected = whole_outputs(whole);
        let extent = dimension.extent(whole);
        let axis = whole.convolution().axes3()[dimension.index()];
        for start in 0..extent {
            for end in start + 1..=extent {
                let Ok(part) = Part::slice(whole, 0..whole.batch(), dimension, start..end) else {
                    refused += 1;
                    continue;
                };
                let own = part.problem.convolution().axes3()[dimension.index()];
                let most = (axis.reach() - 1).max(axis.pad_before).max(axis.pad_after);
                assert!(own.pad_before <= most && own.pad_after <= most, "{whole} {dimension} {start}..{end}: {own:?}");
                assert_eq!(dimension.extent(&part.problem), end - start, "{whole} {dimension} {start}..{end}");
                if whole.operation() == Operation::BackwardFilter {
                    continue;
                }
                let found = outputs(whole, &part);
                let elements = expected.len() / extent * (end - start);
                assert_eq!(found.len(), elements, "{whole} {dimension} {start}..{end}");
                for (place, value) in found {
                    assert_eq!(value, expected[place], "{whole} {dimension} {start}..{end}: element {place}");
                }
                computed += 1;
            }
        }
    });
    assert!(computed > 10 * refused / 9, "{computed} ranges computed, {refused} refused");
}

#[test]
fn parts_of_every_size_cover_the_whole_and_those_of_backward_filter_add_up() {
    each(1..=9, |whole, dimension| {
        let axis = whole.convolution().axes3()[dimension.index()];
        let expected = whole_outputs(whole);
        for size in 1..=dimension.extent(whole) {
            let ranges = Cuts::new(whole, dimension).ranges(size);
            let mut sums = vec![0.0; expected.len()];
            let mut times = vec![0; expected.len()];
            let mut parts = Vec::new();
            for samples in [0..1, 1..2] {
                let all = ranges.iter().map(|range| Part::slice(whole, samples.clone(), dimension, range.clone()));
                parts.extend(all.filter_map(Result::ok));
            }
            // Alone on padding, or on input that is left over, nothing can be computed.
            if parts.len() < 2 * ranges.len() {
                let left = (axis.input + axis.pad_before + axis.pad_after - axis.reach()) % axis.stride;
                let is_odd =
                    axis.pad_before.max(axis.pad_after) >= axis.reach() || left > 0 || axis.reach() < axis.stride;
                assert!(is_odd, "{whole}: {dimension}{size} in {ranges:?}");
                continue;
            }
            for part in &parts {
                for (place, value) in outputs(whole, part) {
                    sums[place] += value;
                    times[place] += 1;
                }
            }
            assert_eq!(sums, expected, "{whole}: {dimension}{size}");
            let each = if whole.operation() == Operation::BackwardFilter { parts.len() } else { 1 };
            assert!(times.iter().all(|&times| times == each), "{whole}: {dimension}{size} in {ranges:?}");
        }
    });
}

#[test]
fn ranges_over_the_halo_are_three_problems() {
    each(8..=12, |whole, dimension| {
        let axis = whole.convolution().axes3()[dimension.index()];
        let halo = axis.reach().max(axis.pad_before).max(axis.pad_after);
        for size in 1..=dimension.extent(whole) {
            let ranges = Cuts::new(whole, dimension).ranges(size);
            // The ranges at both edges may be shorter.
            let problems: BTreeSet<Problem> = ranges
                .iter()
                .filter_map(|range| Part::slice(whole, 0..2, dimension, range.clone()).ok())
                .map(|part| part.problem)
                .collect();
            let shortest = ranges.iter().map(ExactSizeIterator::len).min().unwrap_or(0);
            if shortest >= halo {
                assert!(problems.len() <= 3, "{whole}: {dimension}{size} in {ranges:?}: {problems:?}");
            }
        }
    });
}

#[test]
fn a_part_is_a_view_of_the_whole_unless_it_lies_packed() {
    let part = |line: &str, dimension, range| {
        let whole: Problem = line.parse().unwrap();
        Part::slice(&whole, 0..whole.batch(), dimension, range).unwrap()
    };
    let nchw = part("forward n1 c8 d32 h9 w9 k8 t3 r3 s3 pad1 f32", Dimension::D, 2..4);
    assert_eq!(nchw.problem.to_string(), "forward n1 c8 d4 h9 w9 k8 t3 r3 s3 pad0x1x1 f32 xd32 yd32");
    assert_eq!((nchw.data, nchw.output), (81, 2 * 81));
    let nhwc = part("forward n1 c8 d32 h9 w9 k8 t3 r3 s3 pad1 f32 nhwc", Dimension::D, 2..4);
    assert_eq!(nhwc.problem.to_string(), "forward n1 c8 d4 h9 w9 k8 t3 r3 s3 pad0x1x1 f32 nhwc");
    let two = part("forward n2 c8 d32 h9 w9 k8 t3 r3 s3 pad1 f32 nhwc", Dimension::D, 2..4);
    assert_eq!(two.problem.to_string(), "forward n2 c8 d4 h9 w9 k8 t3 r3 s3 pad0x1x1 f32 nhwc xd32 yd32");
    // Backward-data pads up to reach - 1 at a cut.
    let first = part("backward-data n1 c8 h32 w32 k8 r3 s3 pad1 f32", Dimension::H, 0..8);
    assert_eq!(first.problem.to_string(), "backward-data n1 c8 h8 w32 k8 r3 s3 pad1:2x1 f32 xh32 yh32");
}

#[test]
fn cuts_keep_tensors_aligned_where_they_can() {
    let cuts = |line: &str, dimension| Cuts::new(&line.parse().unwrap(), dimension);
    // Rows of 9 floats: every fourth of both tensors is aligned, one pad apart, so y is.
    assert_eq!(cuts("forward n1 c8 h64 w9 k8 r3 s3 pad1 f32", Dimension::H).ranges(6)[1], 4..8);
    assert_eq!(cuts("forward n1 c8 h64 w8 k8 r3 s3 pad1 f32", Dimension::H).ranges(6)[1], 6..12);
    assert_eq!(cuts("forward n1 c8 h64 w9 k8 r3 s3 pad1 f32 nhwc", Dimension::H).ranges(6)[1], 6..12);
    // Backward-data cuts on strides, counted from the padding.
    assert_eq!(cuts("backward-data n1 c8 h64 w16 k8 r3 s3 pad1 stride2 f32", Dimension::H).ranges(6)[1], 5..11);
}

#[test]
fn impossible_parts_are_refused() {
    let whole: Problem = "forward n2 c1 h8 w8 k1 r1 s1 pad2 f32".parse().unwrap();
    let refusal = |samples, range| Part::slice(&whole, samples, Dimension::H, range).unwrap_err().to_string();
    assert!(refusal(1..3, 0..1).contains("no samples 1 to 2"));
    assert!(refusal(0..1, 3..13).contains("no range 3..13 of h12"));
    assert!(refusal(0..1, 3..3).contains("no range 3..3"));
    assert!(refusal(0..1, 0..2).contains("h 0..2 cannot be computed alone"));
}
