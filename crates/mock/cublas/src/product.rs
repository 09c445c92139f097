//! The product: c = alpha · a · b + beta · c, matrices in columns.

use std::ffi::c_int;

use tightfit_mock_support::driver::HeldRange;
use tightfit_mock_support::number::{DataType, round_tf32};

use crate::control::Failure;

/// A matrix in memory.
#[derive(Clone, Copy)]
pub struct Matrix {
    /// First element.
    pub address: usize,
    /// Type of the elements.
    pub data: DataType,
    /// Elements from one column to the next.
    pub leading: usize,
    /// Whether it is read transposed.
    pub transposed: bool,
}

impl Matrix {
    /// Rows and columns in memory of an operand that is `rows` by `columns` in the product.
    fn stored(&self, rows: usize, columns: usize) -> (usize, usize) {
        if self.transposed { (columns, rows) } else { (rows, columns) }
    }

    fn index(&self, row: usize, column: usize) -> usize {
        let (row, column) = self.stored(row, column);
        column * self.leading + row
    }

    fn hold(&self, rows: usize, columns: usize) -> Result<HeldRange, c_int> {
        let (rows, columns) = self.stored(rows, columns);
        HeldRange::range(self.address, ((columns - 1) * self.leading + rows) * self.data.bytes())
    }
}

/// One product.
pub struct Product {
    /// Rows, columns, and products of a sum.
    pub sizes: [usize; 3],
    /// m by k.
    pub a: Matrix,
    /// k by n.
    pub b: Matrix,
    /// m by n.
    pub c: Matrix,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the old content of c; 0 does not read it.
    pub beta: f32,
    /// Whether f32 is read as tf32.
    pub tf32: bool,
}

impl Product {
    /// Refuses columns that overlap.
    ///
    /// # Errors
    /// [`Failure::INVALID_VALUE`]; [`Failure::NOT_SUPPORTED`] for inputs of two types.
    pub fn check(&self) -> Result<(), Failure> {
        let [m, n, k] = self.sizes;
        let fits = |matrix: &Matrix, rows, columns| matrix.leading >= matrix.stored(rows, columns).0;
        if !fits(&self.a, m, k) || !fits(&self.b, k, n) || !fits(&self.c, m, n) {
            return Err(Failure::INVALID_VALUE);
        }
        if self.a.data == self.b.data { Ok(()) } else { Err(Failure::NOT_SUPPORTED) }
    }

    /// Virtual time in nanoseconds.
    pub fn nanos(&self) -> u64 {
        2_000 + self.sizes.iter().product::<usize>() as u64 / 10_000
    }

    /// Computes the product.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_ADDRESS` for memory that is not there.
    pub fn run(&self) -> Result<(), c_int> {
        let [m, n, k] = self.sizes;
        let _held = [self.a.hold(m, k)?, self.b.hold(k, n)?, self.c.hold(m, n)?];
        let read = |matrix: &Matrix, row, column| {
            // SAFETY: the element is within the memory that is held.
            let value = unsafe { matrix.data.read(matrix.address as *const u8, matrix.index(row, column)) };
            if self.tf32 && matrix.data == DataType::F32 { round_tf32(value) } else { value }
        };
        for column in 0..n {
            for row in 0..m {
                let sum = (0..k).fold(0.0, |sum, i| sum + read(&self.a, row, i) * read(&self.b, i, column));
                let place = self.c.index(row, column);
                let mut value = self.alpha * sum;
                if self.beta != 0.0 {
                    // SAFETY: the element is within the memory that is held.
                    value += self.beta * unsafe { self.c.data.read(self.c.address as *const u8, place) };
                }
                // SAFETY: as above.
                unsafe { self.c.data.write(self.c.address as *mut u8, place, value) };
            }
        }
        Ok(())
    }
}
