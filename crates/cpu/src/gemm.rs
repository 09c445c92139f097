//! Matrix products: the one checked wrapper of the `gemm` crate, whose call takes raw pointers.
//!
//! A matrix is a slice with two strides, so transposing is swapping them and nothing is copied:
//!
//! ```text
//! element (i, j) of an operand = data[i * row + j * column]       complex: two floats an element
//! ```

use gemm::{Parallelism, c32};

/// The type of the elements, and how they multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One float an element.
    Real,
    /// Two floats an element, real and imaginary part; the left operand is conjugated.
    ConjugateLeft,
}

impl Kind {
    /// Floats of one element.
    pub fn width(self) -> usize {
        match self {
            Kind::Real => 1,
            Kind::ConjugateLeft => 2,
        }
    }
}

/// Elements from one row to the next, and from one column to the next.
#[derive(Clone, Copy, Debug)]
pub struct Strides {
    /// Elements from a row to the next.
    pub row: usize,
    /// Elements from a column to the next.
    pub column: usize,
}

impl Strides {
    /// Rows that lie `row` elements apart and are contiguous themselves.
    pub fn rows(row: usize) -> Strides {
        Strides { row, column: 1 }
    }

    /// The same elements as the transposed matrix.
    pub fn transposed(self) -> Strides {
        Strides { row: self.column, column: self.row }
    }

    /// The floats from the first to the last element of a `rows` x `columns` matrix, or `None` on overflow.
    fn reach(self, rows: usize, columns: usize, width: usize) -> Option<usize> {
        let down = (rows - 1).checked_mul(self.row)?;
        let along = (columns - 1).checked_mul(self.column)?;
        down.checked_add(along)?.checked_add(1)?.checked_mul(width)
    }

    /// Whether no two elements of a `rows` x `columns` matrix share an address.
    fn are_distinct(self, rows: usize, columns: usize) -> bool {
        let beyond = |outer: usize, inner: usize, count: usize| inner > 0 && outer / inner >= count;
        (columns == 1 || self.column > 0)
            && (rows == 1 || self.row > 0)
            && (rows == 1
                || columns == 1
                || beyond(self.row, self.column, columns)
                || beyond(self.column, self.row, rows))
    }
}

/// out = beta · out + alpha · left · right, with `left` of m x k, `right` of k x n and `out` of m x n elements.
///
/// With beta = 0 `out` is not read. `size` is (m, n, k); a slice may be longer than its matrix reaches. With `threads`
/// over 1 the product itself is divided among the threads of the current rayon pool, never along k, so that the result
/// does not depend on it.
///
/// # Panics
/// If an operand reaches beyond its slice or two elements of `out` coincide: a mistake in the calling algorithm, caught
/// here as an index out of range would be.
#[allow(clippy::too_many_arguments)]
pub fn multiply(
    kind: Kind,
    size: (usize, usize, usize),
    alpha: f32,
    (left, left_strides): (&[f32], Strides),
    (right, right_strides): (&[f32], Strides),
    beta: f32,
    (out, out_strides): (&mut [f32], Strides),
    threads: usize,
) {
    let (m, n, k) = size;
    if m == 0 || n == 0 {
        return;
    }
    assert!(k > 0, "a product over nothing");
    let fits = |strides: Strides, rows, columns, length| {
        strides.reach(rows, columns, kind.width()).is_some_and(|reach| reach <= length)
    };
    assert!(fits(left_strides, m, k, left.len()), "left operand: {m} x {k} in {left_strides:?} of {}", left.len());
    assert!(fits(right_strides, k, n, right.len()), "right operand: {k} x {n} in {right_strides:?} of {}", right.len());
    assert!(fits(out_strides, m, n, out.len()), "result: {m} x {n} in {out_strides:?} of {}", out.len());
    assert!(out_strides.are_distinct(m, n), "result: elements of {m} x {n} in {out_strides:?} coincide");
    let parallelism = if threads > 1 { Parallelism::Rayon(threads) } else { Parallelism::None };
    let (out_cs, out_rs) = (out_strides.column as isize, out_strides.row as isize);
    let (left_cs, left_rs) = (left_strides.column as isize, left_strides.row as isize);
    let (right_cs, right_rs) = (right_strides.column as isize, right_strides.row as isize);
    let (out, left, right) = (out.as_mut_ptr(), left.as_ptr(), right.as_ptr());
    // SAFETY: the assertions above keep every element of the three operands inside its slice (lengths of slices fit
    // isize, so the strides do too) and the elements of `out` apart. `out` is borrowed mutably, so it overlaps neither
    // operand. A c32 is two adjacent f32 of the same alignment, and every pair of floats is a valid one.
    unsafe {
        match kind {
            Kind::Real => gemm::gemm(
                m,
                n,
                k,
                out,
                out_cs,
                out_rs,
                beta != 0.0,
                left,
                left_cs,
                left_rs,
                right,
                right_cs,
                right_rs,
                beta,
                alpha,
                false,
                false,
                false,
                parallelism,
            ),
            Kind::ConjugateLeft => gemm::gemm(
                m,
                n,
                k,
                out.cast::<c32>(),
                out_cs,
                out_rs,
                beta != 0.0,
                left.cast::<c32>(),
                left_cs,
                left_rs,
                right.cast::<c32>(),
                right_cs,
                right_rs,
                c32::new(beta, 0.0),
                c32::new(alpha, 0.0),
                false,
                true,
                false,
                parallelism,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7 + 3) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn real_products_equal_the_plain_loops() {
        let (m, n, k) = (5, 7, 3);
        let (left, right) = (numbers(m * k), numbers(k * n));
        for beta in [0.0, 2.0] {
            let before = if beta == 0.0 { vec![f32::NAN; m * n] } else { numbers(m * n) };
            let mut out = before.clone();
            let (l, r) = ((&left[..], Strides::rows(k)), (&right[..], Strides::rows(k).transposed()));
            multiply(Kind::Real, (m, n, k), 3.0, l, r, beta, (&mut out, Strides::rows(n)), 1);
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|l| left[i * k + l] * right[j * k + l]).sum();
                    let kept = if beta == 0.0 { 0.0 } else { beta * before[i * n + j] };
                    assert_eq!(out[i * n + j], kept + 3.0 * sum, "({i}, {j}) beta {beta}");
                }
            }
        }
    }

    #[test]
    fn complex_products_conjugate_the_left_operand() {
        let mut out = [f32::NAN; 2];
        // conj(1 + 2i) (3 + 4i) + conj(5 + 6i) (7 + 8i) = (11 - 2i) + (83 - 2i)
        let (left, right) = ([1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]);
        let one = Strides::rows(1);
        let l = (&left[..], Strides::rows(2));
        multiply(Kind::ConjugateLeft, (1, 1, 2), 1.0, l, (&right, one), 0.0, (&mut out, one), 1);
        assert_eq!(out, [94.0, -4.0]);
    }

    #[test]
    #[should_panic(expected = "right operand")]
    fn an_operand_beyond_its_slice_is_caught() {
        let s = Strides::rows(2);
        multiply(Kind::Real, (2, 2, 2), 1.0, (&[0.0; 4], s), (&[0.0; 3], s), 0.0, (&mut [0.0; 4], s), 1);
    }

    #[test]
    #[should_panic(expected = "coincide")]
    fn results_that_coincide_are_caught() {
        let s = Strides::rows(2);
        multiply(Kind::Real, (2, 2, 2), 1.0, (&[0.0; 4], s), (&[0.0; 4], s), 0.0, (&mut [0.0; 4], Strides::rows(1)), 1);
    }
}
