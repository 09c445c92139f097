//! Loops in the widest vectors that this processor supports: the build itself targets the oldest of its family.
//!
//! [`vectorized`] keeps one copy of plain loops for each instruction set and picks one as it runs. [`add_rows`] and
//! [`dot_rows`] are written in vectors, because the rows of small images are too short for compilers to unroll:
//!
//! ```text
//! a row of 27 floats:  | 16 | 11 of 16 |      the last vector loads and stores only the lanes there are
//! ```

use pulp::{Arch, Simd, WithSimd};

/// Runs `work` with the widest vectors available; worthwhile from about a microsecond of work.
///
/// Functions called inside are vectorized only if inlined, so functions with loops are `#[inline(always)]`, as is a closure
/// too long for automatic inlining.
#[inline(always)]
pub fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(work)
}

/// The positions of rows of elements in a slice.
#[derive(Clone, Copy, Debug)]
pub struct Steps {
    /// The first element.
    pub start: usize,
    /// From a row to the next.
    pub row: usize,
    /// From an element to the next.
    pub element: usize,
}

/// into += factor · from, for a number of rows and elements.
pub fn add_rows(factor: f32, from: (&[f32], Steps), into: (&mut [f32], Steps), extent: [usize; 2]) {
    if from.1.element == 1 && into.1.element == 1 {
        return Arch::new().dispatch(AddRows { factor, from, into, extent });
    }
    let ((from, from_steps), (into, into_steps)) = (from, into);
    for row in 0..extent[0] {
        let from = from[from_steps.start + row * from_steps.row..].iter().step_by(from_steps.element);
        let into = into[into_steps.start + row * into_steps.row..].iter_mut().step_by(into_steps.element);
        into.take(extent[1]).zip(from).for_each(|(into, from)| *into += factor * from);
    }
}

/// The sum of a · b over a number of rows and elements.
pub fn dot_rows(a: (&[f32], Steps), b: (&[f32], Steps), extent: [usize; 2]) -> f32 {
    if a.1.element == 1 && b.1.element == 1 {
        return Arch::new().dispatch(DotRows { a, b, extent });
    }
    let ((a, a_steps), (b, b_steps)) = (a, b);
    // Several sums, because each addition waits for the one before it.
    let mut sums = [0.0; 8];
    for row in 0..extent[0] {
        let (a, b) = (&a[a_steps.start + row * a_steps.row..], &b[b_steps.start + row * b_steps.row..]);
        (0..extent[1]).for_each(|i| sums[i % 8] += a[i * a_steps.element] * b[i * b_steps.element]);
    }
    sums.iter().sum()
}

/// One call of [`add_rows`] on contiguous rows.
struct AddRows<'a> {
    factor: f32,
    from: (&'a [f32], Steps),
    into: (&'a mut [f32], Steps),
    extent: [usize; 2],
}

impl WithSimd for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let AddRows { factor, from: (from, from_steps), into: (into, into_steps), extent: [rows, count] } = self;
        let factor = simd.splat_f32s(factor);
        for row in 0..rows {
            let (from, from_rest) = S::as_simd_f32s(&from[from_steps.start + row * from_steps.row..][..count]);
            let (into, into_rest) = S::as_mut_simd_f32s(&mut into[into_steps.start + row * into_steps.row..][..count]);
            for (into, from) in into.iter_mut().zip(from) {
                *into = simd.mul_add_e_f32s(factor, *from, *into);
            }
            let (from, before) = (simd.partial_load_f32s(from_rest), simd.partial_load_f32s(into_rest));
            simd.partial_store_f32s(into_rest, simd.mul_add_e_f32s(factor, from, before));
        }
    }
}

/// One call of [`dot_rows`] on contiguous rows.
struct DotRows<'a> {
    a: (&'a [f32], Steps),
    b: (&'a [f32], Steps),
    extent: [usize; 2],
}

impl WithSimd for DotRows<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let DotRows { a: (a, a_steps), b: (b, b_steps), extent: [rows, count] } = self;
        let mut sum = simd.splat_f32s(0.0);
        for row in 0..rows {
            let (a, a_rest) = S::as_simd_f32s(&a[a_steps.start + row * a_steps.row..][..count]);
            let (b, b_rest) = S::as_simd_f32s(&b[b_steps.start + row * b_steps.row..][..count]);
            for (a, b) in a.iter().zip(b) {
                sum = simd.mul_add_e_f32s(*a, *b, sum);
            }
            sum = simd.mul_add_e_f32s(simd.partial_load_f32s(a_rest), simd.partial_load_f32s(b_rest), sum);
        }
        simd.reduce_sum_f32s(sum)
    }
}
