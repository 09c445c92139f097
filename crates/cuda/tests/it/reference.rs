//! The convolution as plain loops in f64, and problems with data of small whole numbers, whose sums are exact in any order
//! and in every type.

use tightfit_conv::backend::{Scale, Tensors};
use tightfit_conv::{Operation, Problem};

/// Data of an operation.
pub struct Data {
    pub data: Vec<f32>,
    pub other: Vec<f32>,
    pub output: Vec<f32>,
}

impl Data {
    /// Whole numbers from -2 to 2, different in each tensor.
    pub fn whole(problem: &Problem) -> Data {
        let values = |len: usize, seed: usize| -> Vec<f32> {
            (0..len).map(|place| ((place * (7 + seed) + place / 3 + seed) % 5) as f32 - 2.0).collect()
        };
        let (x, w, y) = (problem.input_len(), problem.filter_len(), problem.output_len());
        let [data, other, output] = match problem.operation() {
            Operation::Forward => [x, w, y],
            Operation::BackwardData => [y, w, x],
            Operation::BackwardFilter => [x, y, w],
        };
        Data { data: values(data, 1), other: values(other, 2), output: values(output, 3) }
    }

    pub fn tensors(&self) -> Tensors<'_> {
        Tensors { data: &self.data, other: &self.other, output: &self.output }
    }

    /// alpha · result + beta · output, and the sum of the products' magnitudes behind each element.
    pub fn expected(&self, problem: &Problem, scale: Scale) -> Vec<(f64, f64)> {
        let (alpha, beta) = (f64::from(scale.alpha), f64::from(scale.beta));
        let mut sums = vec![(0.0, 0.0); self.output.len()];
        for_each_product(problem, |x, w, y| {
            let (data, other, output) = match problem.operation() {
                Operation::Forward => (x, w, y),
                Operation::BackwardData => (y, w, x),
                Operation::BackwardFilter => (x, y, w),
            };
            let product = f64::from(self.data[data]) * f64::from(self.other[other]);
            sums[output].0 += product;
            sums[output].1 += product.abs();
        });
        // With beta = 0 the output is not read.
        let before = |value: f32| if beta == 0.0 { 0.0 } else { beta * f64::from(value) };
        let scaled = sums
            .iter()
            .zip(&self.output)
            .map(|((sum, size), old)| (alpha * sum + before(*old), alpha.abs() * size + before(*old).abs()));
        scaled.collect()
    }
}

/// Visits the places in x, w and y of every product of a convolution.
fn for_each_product(problem: &Problem, mut visit: impl FnMut(usize, usize, usize)) {
    let convolution = problem.convolution();
    let (layout, axes) = (problem.layout(), convolution.axes3());
    let (channels, filters) = (convolution.channels() / convolution.groups(), convolution.filters());
    let x_strides = layout.strides(convolution.channels(), convolution.inputs());
    let w_strides = layout.strides(channels, convolution.filter());
    let y_strides = layout.strides(filters, convolution.outputs());
    let place = |strides: [usize; 5], at: [usize; 5]| strides.iter().zip(at).map(|(stride, at)| stride * at).sum();
    let all = |extents: [usize; 3]| {
        (0..extents.iter().product::<usize>())
            .map(move |i| [i / (extents[1] * extents[2]), i / extents[2] % extents[1], i % extents[2]])
    };
    for n in 0..problem.batch() {
        for k in 0..filters {
            let group = k / (filters / convolution.groups());
            for at_y in all(convolution.outputs()) {
                for c in 0..channels {
                    for at_w in all(convolution.filter()) {
                        let mut at_x = [0; 3];
                        let inside = (0..3).all(|i| {
                            let padded = at_y[i] * axes[i].stride + at_w[i] * axes[i].dilation;
                            at_x[i] = padded.wrapping_sub(axes[i].pad_before);
                            at_x[i] < axes[i].input
                        });
                        if inside {
                            let [xd, xh, xw] = at_x;
                            let ([wd, wh, ww], [yd, yh, yw]) = (at_w, at_y);
                            visit(
                                place(x_strides, [n, group * channels + c, xd, xh, xw]),
                                place(w_strides, [k, c, wd, wh, ww]),
                                place(y_strides, [n, k, yd, yh, yw]),
                            );
                        }
                    }
                }
            }
        }
    }
}
