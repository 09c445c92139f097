//! Brings the planes of a map to other extents: each output is a weighted sum of a few inputs, and the gradient takes
//! the same way back.
//!
//! ```text
//! x  | 0 | 1 |            y[place] = x[first] · (1 - weight) + x[second] · weight     for each axis
//! y  |0|.25|.75|1|
//! ```

use tightfit_network::Sampling;

use super::Store;
use crate::team::Team;

/// y from x, whose planes have these extents and are brought to those.
pub fn forward(team: &Team, sampling: Sampling, extents: (&[usize], &[usize]), x: &[f32], y: &mut [f32]) {
    let terms = Terms::new(sampling, extents);
    let planes = x.chunks(terms.inputs).zip(y.chunks_mut(terms.outputs)).collect();
    team.share(planes, &mut [], |(x, y): (&[f32], &mut [f32]), _, _| {
        y.fill(0.0);
        terms.each(|input, output, weight| y[output] += weight * x[input]);
    });
}

/// dx from dy.
pub fn backward(
    team: &Team,
    sampling: Sampling,
    extents: (&[usize], &[usize]),
    dy: &[f32],
    dx: &mut [f32],
    store: Store,
) {
    let terms = Terms::new(sampling, extents);
    let planes = dy.chunks(terms.outputs).zip(dx.chunks_mut(terms.inputs)).collect();
    team.share(planes, &mut [], |(dy, dx): (&[f32], &mut [f32]), _, _| {
        if store == Store::Write {
            dx.fill(0.0);
        }
        terms.each(|input, output, weight| dx[input] += weight * dy[output]);
    });
}

/// A place of the input, and its weight.
type Term = (usize, f32);

/// The products that outputs are sums of.
struct Terms {
    /// For each axis and place, the places of the input with their weights.
    axes: Vec<Vec<[Term; 2]>>,
    /// Elements between neighbors along each axis of the input.
    strides: Vec<usize>,
    inputs: usize,
    outputs: usize,
}

impl Terms {
    fn new(sampling: Sampling, (input, output): (&[usize], &[usize])) -> Terms {
        let pair = |(first, second, weight)| [(first, 1.0 - weight), (second, weight)];
        let axis = |(&input, &output)| sampling.places(input, output).into_iter().map(pair).collect();
        Terms {
            axes: input.iter().zip(output).map(axis).collect(),
            strides: (0..input.len()).map(|axis| input[axis + 1..].iter().product()).collect(),
            inputs: input.iter().product(),
            outputs: output.iter().product(),
        }
    }

    /// Visits every input of every output, in one order: its place, the place of the output, and the weight.
    fn each(&self, mut visit: impl FnMut(usize, usize, f32)) {
        let mut output = 0;
        self.along(0, &[(0, 1.0)], &mut |inputs| {
            inputs.iter().for_each(|&(input, weight)| visit(input, output, weight));
            output += 1;
        });
    }

    /// Extends the terms of the earlier axes by the terms of each place of this one.
    fn along(&self, axis: usize, before: &[Term], visit: &mut dyn FnMut(&[Term])) {
        let Some(places) = self.axes.get(axis) else { return visit(before) };
        let mut terms = Vec::with_capacity(2 * before.len());
        for pair in places {
            terms.clear();
            for &(start, share) in before {
                let weighted = pair.iter().filter(|(_, weight)| *weight != 0.0);
                terms.extend(weighted.map(|(place, weight)| (start + place * self.strides[axis], share * weight)));
            }
            self.along(axis + 1, &terms, visit);
        }
    }
}
