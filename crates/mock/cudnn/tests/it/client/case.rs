//! Convolutions to try, their whole-number data, and their results by scattering: every product of the definition is added
//! to where it belongs, the other way round from the library's loops.

/// One convolution; three spatial dimensions inside, the last `spatial` of them described.
#[derive(Clone, Debug)]
pub struct Case {
    pub spatial: usize,
    pub n: i64,
    pub c: i64,
    pub k: i64,
    pub groups: i64,
    pub input: [i64; 3],
    pub filter: [i64; 3],
    pub pre: [i64; 3],
    pub post: [i64; 3],
    pub stride: [i64; 3],
    pub dilation: [i64; 3],
    pub channels_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Forward,
    BackwardData,
    BackwardFilter,
}

pub const OPERATIONS: [Operation; 3] = [Operation::Forward, Operation::BackwardData, Operation::BackwardFilter];

impl Case {
    /// A dense 3 x 3 convolution of a 6 x 5 image.
    pub fn dense(n: i64, c: i64, k: i64) -> Case {
        Case {
            spatial: 2,
            n,
            c,
            k,
            groups: 1,
            input: [1, 6, 5],
            filter: [1, 3, 3],
            pre: [0, 1, 1],
            post: [0, 1, 1],
            stride: [1; 3],
            dilation: [1; 3],
            channels_last: false,
        }
    }

    /// Sizes of x, w, y, in five dimensions.
    pub fn dims(&self) -> [[i64; 5]; 3] {
        let q: [i64; 3] = std::array::from_fn(|i| {
            let reach = self.dilation[i] * (self.filter[i] - 1) + 1;
            (self.input[i] + self.pre[i] + self.post[i] - reach) / self.stride[i] + 1
        });
        let five = |a: i64, b: i64, s: [i64; 3]| [a, b, s[0], s[1], s[2]];
        [five(self.n, self.c, self.input), five(self.k, self.c / self.groups, self.filter), five(self.n, self.k, q)]
    }

    /// Packed strides of five dimensions in this case's layout.
    pub fn strides(&self, dims: &[i64; 5]) -> [i64; 5] {
        let order = if self.channels_last { [0, 2, 3, 4, 1] } else { [0, 1, 2, 3, 4] };
        let (mut strides, mut step) = ([0; 5], 1);
        for &i in order.iter().rev() {
            strides[i] = step;
            step *= dims[i];
        }
        strides
    }

    /// As described: without the dimensions of size 1 that three spatial ones add.
    pub fn described(&self, five: &[i64; 5]) -> Vec<i64> {
        five[..2].iter().chain(&five[5 - self.spatial..]).copied().collect()
    }

    /// The values of the described dimensions.
    pub fn spatially(&self, three: &[i64; 3]) -> Vec<i64> {
        three[3 - self.spatial..].to_vec()
    }

    /// Whole numbers from -3 to 3, in memory order.
    pub fn data(&self, which: usize) -> Vec<f32> {
        let len = self.dims()[which].iter().product::<i64>();
        (0..len).map(|i| ((i * 5 + 3 * which as i64 + i / 7) % 7 - 3) as f32).collect()
    }

    /// Sums and sums of magnitudes of the output, in memory order.
    pub fn expected(&self, operation: Operation) -> (Vec<f64>, Vec<f64>) {
        let [x, w, y] = self.dims();
        let [sx, sw, sy] = [self.strides(&x), self.strides(&w), self.strides(&y)];
        let [dx, dw, dy] = [self.data(0), self.data(1), self.data(2)];
        let len = [y, x, w][operation as usize].iter().product::<i64>() as usize;
        let (mut sums, mut magnitudes) = (vec![0.0; len], vec![0.0; len]);
        let at = |s: [i64; 5], a: i64, b: i64, p: [i64; 3]| {
            (a * s[0] + b * s[1] + p[0] * s[2] + p[1] * s[3] + p[2] * s[4]) as usize
        };
        let spots = |d: &[i64; 5]| {
            let (h, w) = (d[3], d[4]);
            (0..d[2] * h * w).map(move |i| [i / (h * w), i / w % h, i % w])
        };
        for (n, k) in (0..self.n).flat_map(|n| (0..self.k).map(move |k| (n, k))) {
            for (c, q) in (0..w[1]).flat_map(|c| spots(&y).map(move |q| (c, q))) {
                for r in spots(&w) {
                    let p: [i64; 3] =
                        std::array::from_fn(|i| q[i] * self.stride[i] + r[i] * self.dilation[i] - self.pre[i]);
                    if (0..3).any(|i| p[i] < 0 || p[i] >= self.input[i]) {
                        continue;
                    }
                    let channel = k / (self.k / self.groups) * w[1] + c;
                    let (ix, iw, iy) = (at(sx, n, channel, p), at(sw, k, c, r), at(sy, n, k, q));
                    let (out, product) = match operation {
                        Operation::Forward => (iy, dx[ix] * dw[iw]),
                        Operation::BackwardData => (ix, dy[iy] * dw[iw]),
                        Operation::BackwardFilter => (iw, dx[ix] * dy[iy]),
                    };
                    sums[out] += f64::from(product);
                    magnitudes[out] += f64::from(product.abs());
                }
            }
        }
        (sums, magnitudes)
    }

    /// Which of x, w, y the operation writes.
    pub fn output(operation: Operation) -> usize {
        [2, 0, 1][operation as usize]
    }
}

/// Shapes that between them use everything: two and three dimensions, strides, dilation, groups, uneven padding, layout.
pub fn cases() -> Vec<Case> {
    let dense = Case::dense(3, 4, 2);
    vec![
        dense.clone(),
        Case { channels_last: true, ..dense.clone() },
        Case { stride: [1, 2, 3], groups: 2, ..dense.clone() },
        Case { dilation: [1, 2, 1], pre: [0, 2, 1], post: [0, 2, 1], ..dense.clone() },
        Case { filter: [1, 5, 5], pre: [0, 2, 2], post: [0, 2, 2], ..dense.clone() },
        Case {
            spatial: 3,
            input: [4, 3, 3],
            filter: [2, 3, 2],
            pre: [1, 1, 0],
            post: [1, 1, 0],
            stride: [2, 1, 1],
            ..dense.clone()
        },
        Case { spatial: 3, input: [3, 4, 4], filter: [3, 3, 3], pre: [1; 3], post: [1; 3], ..dense },
    ]
}
