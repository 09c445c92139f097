//! One convolution as a library call sees it: its shape, the operation, the mini-batch, the number types and
//! the memory layout.
//!
//! Sizes are named as in cuDNN's documentation: n samples, c channels, (d) h w input, k filters, (t) r s filter, (o) p q output. A convolution has
//! two or three spatial dimensions, outermost first.
//!
//! `convolution`, `operation`, `types`, `storage` and `layout` are the parts of a problem, `text` is its one-line form, and `part` cuts it into
//! blocks of samples and ranges.

mod convolution;
mod layout;
mod operation;
mod part;
mod storage;
mod text;
mod types;

pub use convolution::{Axis, Convolution};
pub use layout::Layout;
pub use operation::Operation;
pub use part::{Cuts, Dimension, Part};
pub use storage::Storage;
pub use text::{Line, parse_line};
pub use types::Types;

use tightfit_units::{Bytes, Error};

/// One convolution operation on one mini-batch (or micro-batch) in given number types and layout.
///
/// The text form ([`std::fmt::Display`] and [`std::str::FromStr`]) is one line, and parsing it gives the same problem:
///
/// ```
/// use tightfit_conv::Problem;
/// let line = "forward n256 c96 h27 w27 k256 r5 s5 pad2 groups2 f32";
/// let problem: Problem = line.parse()?;
/// assert_eq!(problem.to_string(), line);
/// assert_eq!(problem.convolution().outputs(), [1, 27, 27]);
/// # Ok::<(), tightfit_units::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    convolution: Convolution,
    operation: Operation,
    batch: usize,
    types: Types,
    layout: Layout,
    // Extents of the tensors that contain x and y: their own unless they are views of a larger one.
    input_in: [usize; 3],
    output_in: [usize; 3],
}

impl Problem {
    /// The largest mini-batch, because optimizers keep a table by samples.
    pub const MOST_SAMPLES: usize = 1 << 20;

    /// The problem of running `operation` of `convolution` on `batch` samples.
    ///
    /// # Errors
    /// [`Error::BadProblem`] if `batch` is zero or over [`Problem::MOST_SAMPLES`], or a tensor has more than 2^60 elements.
    pub fn new(
        convolution: Convolution,
        operation: Operation,
        batch: usize,
        types: Types,
        layout: Layout,
    ) -> Result<Problem, Error> {
        let bad = |what| Err(Error::BadProblem { what });
        if batch == 0 {
            return bad("n is 0; at least one sample is needed".to_owned());
        }
        if batch > Problem::MOST_SAMPLES {
            return bad(format!("n is {batch}; the maximum is {}", Problem::MOST_SAMPLES));
        }
        let largest = convolution.input_len().max(convolution.output_len());
        if largest.checked_mul(batch).is_none_or(|elements| elements > 1 << 60) {
            return bad(format!("n{batch} of {largest} elements per sample is more than 2^60 elements"));
        }
        let (input_in, output_in) = (convolution.inputs(), convolution.outputs());
        Ok(Problem { convolution, operation, batch, types, layout, input_in, output_in })
    }

    /// The same problem with x and y as views of larger tensors with these spatial extents (d, h, w), and with their strides: the problem of a
    /// [`Part`].
    ///
    /// # Errors
    /// [`Error::BadProblem`] if a tensor is smaller than its view, or has more than 2^60 elements.
    pub fn within(&self, inputs: [usize; 3], outputs: [usize; 3]) -> Result<Problem, Error> {
        let convolution = &self.convolution;
        for (name, own, whole, channels) in [
            ("x", convolution.inputs(), inputs, convolution.channels()),
            ("y", convolution.outputs(), outputs, convolution.filters()),
        ] {
            for (i, dimension) in ["d", "h", "w"].into_iter().enumerate() {
                if whole[i] < own[i] {
                    let what =
                        format!("{name} has {dimension}{}, more than {dimension}{} of its tensor", own[i], whole[i]);
                    return Err(Error::BadProblem { what });
                }
            }
            let mut sizes = whole.into_iter().chain([channels, self.batch]);
            let elements = sizes.try_fold(1usize, |product, size| product.checked_mul(size));
            if elements.is_none_or(|elements| elements > 1 << 60) {
                let what = format!("the tensor that {name} lies in has more than 2^60 elements");
                return Err(Error::BadProblem { what });
            }
        }
        Ok(Problem { input_in: inputs, output_in: outputs, ..*self })
    }

    /// The same problem on separate tensors instead of views of larger ones.
    pub fn packed(&self) -> Problem {
        Problem { input_in: self.convolution.inputs(), output_in: self.convolution.outputs(), ..*self }
    }

    /// The same problem with another number of samples.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn with_batch(&self, batch: usize) -> Result<Problem, Error> {
        let problem = Problem::new(self.convolution, self.operation, batch, self.types, self.layout)?;
        if self.is_packed() { Ok(problem) } else { problem.within(self.input_in, self.output_in) }
    }

    /// The same problem for another operation.
    pub fn with_operation(&self, operation: Operation) -> Problem {
        Problem { operation, ..*self }
    }

    /// The same problem in other number types.
    pub fn with_types(&self, types: Types) -> Problem {
        Problem { types, ..*self }
    }

    /// The shape, without mini-batch, operation, types and layout.
    pub fn convolution(&self) -> &Convolution {
        &self.convolution
    }

    /// The operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// Samples in this call.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Number types of data and arithmetic.
    pub fn types(&self) -> Types {
        self.types
    }

    /// Order of the dimensions in memory.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Elements of the input x (or its gradient dx), n·c·(d·)h·w.
    pub fn input_len(&self) -> usize {
        self.batch * self.convolution.input_len()
    }

    /// Elements of the output y (or its gradient dy), n·k·(o·)p·q.
    pub fn output_len(&self) -> usize {
        self.batch * self.convolution.output_len()
    }

    /// Elements of the filters w (or their gradient dw), k·c/groups·(t·)r·s.
    pub fn filter_len(&self) -> usize {
        self.convolution.filter_len()
    }

    /// Whether x and y are separate tensors rather than views of larger ones.
    pub fn is_packed(&self) -> bool {
        (self.input_in, self.output_in) == (self.convolution.inputs(), self.convolution.outputs())
    }

    /// Spatial extents (d, h, w) of the tensor that contains x.
    pub fn input_in(&self) -> [usize; 3] {
        self.input_in
    }

    /// Spatial extents (o, p, q) of the tensor that contains y.
    pub fn output_in(&self) -> [usize; 3] {
        self.output_in
    }

    /// Strides of x in elements: of sample, channel and the three spatial dimensions.
    pub fn input_strides(&self) -> [usize; 5] {
        self.layout.strides(self.convolution.channels(), self.input_in)
    }

    /// Strides of y in elements: of sample, filter and the three spatial dimensions.
    pub fn output_strides(&self) -> [usize; 5] {
        self.layout.strides(self.convolution.filters(), self.output_in)
    }

    /// Elements from the first to the last of x, including elements in between that are not part of it.
    pub fn input_span(&self) -> usize {
        let [d, h, w] = self.convolution.inputs();
        span([self.batch, self.convolution.channels(), d, h, w], self.input_strides())
    }

    /// Elements from the first to the last of y, including elements in between that are not part of it.
    pub fn output_span(&self) -> usize {
        let [d, h, w] = self.convolution.outputs();
        span([self.batch, self.convolution.filters(), d, h, w], self.output_strides())
    }

    /// Floating-point operations of the textbook loops, a multiplication and an addition counted as two.
    pub fn flops(&self) -> f64 {
        let c = &self.convolution;
        2.0 * self.output_len() as f64 * (c.filter_len() / c.filters()) as f64
    }

    /// Bytes of the tensors that the operation reads and writes.
    pub fn tensor_bytes(&self) -> Bytes {
        Bytes::of(self.input_len() + self.output_len() + self.filter_len(), self.types.storage().size())
    }
}

/// Elements from the first to the last of a tensor.
fn span(extents: [usize; 5], strides: [usize; 5]) -> usize {
    1 + extents.iter().zip(strides).map(|(extent, stride)| (extent - 1) * stride).sum::<usize>()
}
