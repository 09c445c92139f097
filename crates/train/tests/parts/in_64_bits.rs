//! Gradients in 64 bits of two convolutions of 3x3 with a border of one, each followed by a ReLU and the first perhaps by batch
//! normalization, and of a layer of all to all.

/// The shape of a convolution's maps.
struct Shape {
    inputs: usize,
    outputs: usize,
    extent: usize,
}

impl Shape {
    fn positions(&self) -> usize {
        self.extent * self.extent
    }

    fn filters(&self) -> usize {
        self.outputs * self.inputs * 9
    }

    /// Calls `each` with the places of a factor of the input, of the filters and of the output.
    fn walk(&self, mut each: impl FnMut(usize, usize, usize)) {
        let Shape { inputs, outputs, extent } = *self;
        for (k, c) in (0..outputs).flat_map(|k| (0..inputs).map(move |c| (k, c))) {
            for (place, (r, s)) in (0..9).map(|place| (place, (place / 3, place % 3))) {
                for (y, x) in (0..extent).flat_map(|y| (0..extent).map(move |x| (y, x))) {
                    let (from_y, from_x) = (y + r, x + s);
                    if (1..=extent).contains(&from_y) && (1..=extent).contains(&from_x) {
                        let input = (c * extent + from_y - 1) * extent + from_x - 1;
                        each(input, (k * inputs + c) * 9 + place, (k * extent + y) * extent + x);
                    }
                }
            }
        }
    }

    /// The output for filters that biases may follow.
    fn forward(&self, x: &[f64], w: &[f64]) -> Vec<f64> {
        let bias = |at: usize| w.get(self.filters() + at / self.positions()).copied().unwrap_or_default();
        let mut out: Vec<f64> = (0..self.outputs * self.positions()).map(bias).collect();
        self.walk(|input, filter, output| out[output] += x[input] * w[filter]);
        out
    }

    /// Adds to the gradient of filters and biases. Returns the gradient of the input.
    fn backward(&self, x: &[f64], w: &[f64], dy: &[f64], dw: &mut [f64]) -> Vec<f64> {
        if dw.len() > self.filters() {
            dy.iter().enumerate().for_each(|(at, dy)| dw[self.filters() + at / self.positions()] += dy);
        }
        let mut dx = vec![0.0; x.len()];
        self.walk(|input, filter, output| {
            dw[filter] += x[input] * dy[output];
            dx[input] += w[filter] * dy[output];
        });
        dx
    }
}

fn relu(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| x.max(0.0)).collect()
}

fn relu_gradient(y: &[f64], dy: Vec<f64>) -> Vec<f64> {
    dy.into_iter().zip(y).map(|(dy, y)| if *y > 0.0 { dy } else { 0.0 }).collect()
}

/// A batch normalization of all samples.
struct Norm {
    /// The normalized values, which are then scaled and shifted.
    normal: Vec<Vec<f64>>,
    inverses: Vec<f64>,
}

impl Norm {
    fn of(x: &[Vec<f64>], channels: usize, epsilon: f64) -> Norm {
        let positions = x[0].len() / channels;
        let mut norm = Norm { normal: x.to_vec(), inverses: Vec::new() };
        for channel in 0..channels {
            let own = channel * positions..(channel + 1) * positions;
            let values = || x.iter().flat_map(|x| &x[own.clone()]);
            let count = values().count() as f64;
            let mean = values().sum::<f64>() / count;
            let variance = values().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
            let inverse = 1.0 / (variance + epsilon).sqrt();
            norm.inverses.push(inverse);
            norm.normal.iter_mut().flat_map(|x| &mut x[own.clone()]).for_each(|x| *x = (*x - mean) * inverse);
        }
        norm
    }

    /// Scales, then shifts.
    fn forward(&self, w: &[f64]) -> Vec<Vec<f64>> {
        let channels = self.inverses.len();
        let positions = self.normal[0].len() / channels;
        let scaled = |(at, x): (usize, &f64)| w[at / positions] * x + w[channels + at / positions];
        self.normal.iter().map(|x| x.iter().enumerate().map(scaled).collect()).collect()
    }

    fn backward(&self, w: &[f64], dy: &[Vec<f64>], dw: &mut [f64]) -> Vec<Vec<f64>> {
        let channels = self.inverses.len();
        let positions = dy[0].len() / channels;
        let count = (dy.len() * positions) as f64;
        for (x, dy) in self.normal.iter().zip(dy) {
            for (at, (x, dy)) in x.iter().zip(dy).enumerate() {
                dw[at / positions] += dy * x;
                dw[channels + at / positions] += dy;
            }
        }
        let gradient = |(at, (x, dy)): (usize, (&f64, &f64))| {
            let channel = at / positions;
            w[channel] * self.inverses[channel] * (dy - dw[channels + channel] / count - x * dw[channel] / count)
        };
        let samples = self.normal.iter().zip(dy);
        samples.map(|(x, dy)| x.iter().zip(dy).enumerate().map(gradient).collect()).collect()
    }
}

/// The gradients of the weights of each layer: convolution, normalization if there is an epsilon, convolution, all to all.
pub(super) fn exact(
    weights: &[Vec<f64>],
    samples: &[f32],
    labels: &[u32],
    extent: usize,
    epsilon: Option<f64>,
) -> Vec<Vec<f64>> {
    let (first, second) = (Shape { inputs: 3, outputs: 8, extent }, Shape { inputs: 8, outputs: 8, extent });
    let mut gradients: Vec<Vec<f64>> = weights.iter().map(|of| vec![0.0; of.len()]).collect();
    let wide = |x: &[f32]| -> Vec<f64> { x.iter().map(|number| f64::from(*number)).collect() };
    let x: Vec<Vec<f64>> = samples.chunks(3 * extent * extent).map(wide).collect();
    let before: Vec<Vec<f64>> = x.iter().map(|x| first.forward(x, &weights[0])).collect();
    let norm = epsilon.map(|epsilon| Norm::of(&before, first.outputs, epsilon));
    let a = norm.as_ref().map_or(before, |norm| norm.forward(&weights[1]));
    let a: Vec<Vec<f64>> = a.iter().map(|a| relu(a)).collect();
    let [.., of_second, of_last] = weights else { panic!("three layers") };
    let mut da: Vec<Vec<f64>> = Vec::new();
    for (a, label) in a.iter().zip(labels) {
        let b = relu(&second.forward(a, of_second));
        let (rows, biases) = of_last.split_at(10 * b.len());
        let dot = |row: &[f64]| row.iter().zip(&b).map(|(w, b)| w * b).sum::<f64>();
        let scores: Vec<f64> = rows.chunks(b.len()).zip(biases).map(|(row, bias)| dot(row) + bias).collect();
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        let [.., to_second, to_last] = gradients.as_mut_slice() else { panic!("three layers") };
        let mut db = vec![0.0; b.len()];
        for (class, score) in scores.iter().enumerate() {
            let wanted = if class == *label as usize { 1.0 } else { 0.0 };
            let d = (score.exp() / sum - wanted) / labels.len() as f64;
            for (at, value) in b.iter().enumerate() {
                to_last[class * b.len() + at] += d * value;
                db[at] += d * rows[class * b.len() + at];
            }
            to_last[10 * b.len() + class] += d;
        }
        let db = relu_gradient(&b, db);
        da.push(relu_gradient(a, second.backward(a, of_second, &db, to_second)));
    }
    if let Some(norm) = norm {
        da = norm.backward(&weights[1], &da, &mut gradients[1]);
    }
    for (x, da) in x.iter().zip(&da) {
        first.backward(x, &weights[0], da, &mut gradients[0]);
    }
    gradients
}
