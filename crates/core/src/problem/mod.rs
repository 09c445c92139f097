//! One convolution as a library call sees it: its shape, the operation, the mini-batch, the number types and
//! the memory layout.
//!
//! Sizes are named as in cuDNN's documentation: n samples, c channels, (d) h w input, k filters, (t) r s filter,
//! (o) p q output. A convolution has two or three spatial dimensions, outermost first.

mod convolution;
mod layout;
mod operation;
mod storage;
mod text;
mod types;

pub use convolution::{Axis, Convolution};
pub use layout::Layout;
pub use operation::Operation;
pub use storage::Storage;
pub use text::{Line, parse_line};
pub use types::Types;

use crate::{Bytes, Error};

/// One convolution operation on one mini-batch (or micro-batch) in given number types and layout.
///
/// The text form ([`std::fmt::Display`] and [`std::str::FromStr`]) is one line, and parsing it gives the same problem:
///
/// ```
/// use tightfit_core::Problem;
/// let line = "forward n256 c96 h27 w27 k256 r5 s5 pad2 groups2 f32";
/// let problem: Problem = line.parse()?;
/// assert_eq!(problem.to_string(), line);
/// assert_eq!(problem.convolution().outputs(), [1, 27, 27]);
/// # Ok::<(), tightfit_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Problem {
    convolution: Convolution,
    operation: Operation,
    batch: usize,
    types: Types,
    layout: Layout,
}

impl Problem {
    /// The largest mini-batch: optimizers keep a table by samples.
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
        Ok(Problem { convolution, operation, batch, types, layout })
    }

    /// The same problem with another number of samples.
    ///
    /// # Errors
    /// As [`Problem::new`].
    pub fn with_batch(&self, batch: usize) -> Result<Problem, Error> {
        Problem::new(self.convolution, self.operation, batch, self.types, self.layout)
    }

    /// The same problem for another operation.
    pub fn with_operation(&self, operation: Operation) -> Problem {
        Problem { operation, ..*self }
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
