//! The windows of a pooling.

/// Most windows that hold any element of a tile; axes are as in [`places`].
pub fn windows_of_a_tile(axes: &[[usize; 6]]) -> usize {
    let along = |&[input, output, filter, stride, pad, tile]: &[usize; 6]| {
        let held = |begin: usize| {
            let end = (begin + tile).min(input);
            (0..output).filter(|at| at * stride < end + pad && at * stride + filter > begin + pad).count()
        };
        (0..input).step_by(tile).map(held).max().unwrap_or(0)
    };
    axes.iter().map(along).product()
}

/// Places of a plane in a pooling's window, in row order; axes are input, output, filter, stride, padding, tile.
pub fn places(axes: &[[usize; 6]], window: usize) -> Vec<usize> {
    let mut at = window;
    let mut ranges: Vec<_> = axes
        .iter()
        .rev()
        .map(|&[input, output, filter, stride, pad, _]| {
            let start = at % output * stride;
            at /= output;
            (input, start.saturating_sub(pad)..(start + filter).saturating_sub(pad).min(input))
        })
        .collect();
    ranges.reverse();
    ranges.into_iter().fold(vec![0], |places, (input, range)| {
        places.into_iter().flat_map(|place| range.clone().map(move |i| place * input + i)).collect()
    })
}
