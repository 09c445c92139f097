//! Pooling windows.

use tightfit_conv::Axis;

use super::Shape;
use super::fields::Fields;

/// How to reduce a pooling window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolingMethod {
    /// The largest element.
    Maximum,
    /// The mean of the elements inside the input; padding is excluded from both sum and count.
    Average,
}

/// Windows over each spatial dimension.
///
/// ```text
/// input    0 1 2 3 4 5        window 3, stride 2
///          [---]
///              [---]
///                  [--:      cut by the edge: counts only with `ceil`
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// How to reduce a window.
    pub method: PoolingMethod,
    /// Input, window (as `filter`), padding and stride of each dimension; [`Axis::UNIT`] for absent dimensions.
    pub axes: [Axis; 3],
    /// Whether a last, partial window at the edge counts, unless it would begin in the padding.
    pub ceil: bool,
}

impl Pooling {
    /// Reads windows over an input of this shape.
    pub(super) fn read(method: PoolingMethod, fields: &mut Fields<'_>, input: Shape) -> Result<Pooling, String> {
        let windows = fields.axes("window", input)?;
        let mut axes = [Axis::UNIT; 3];
        axes[3 - windows.len()..].copy_from_slice(&windows);
        Ok(Pooling { method, axes, ceil: fields.optional("ceil", Fields::truth)?.unwrap_or(false) })
    }

    /// Whether no input element belongs to two windows.
    pub fn is_apart(&self) -> bool {
        self.axes.iter().all(|axis| axis.dilation == 1 && axis.filter <= axis.stride)
    }

    /// Whether windows overlap and a window begins at every input element.
    pub fn is_dense(&self) -> bool {
        !self.is_apart() && self.axes.iter().all(|axis| axis.stride == 1)
    }

    /// Extents of the output (o, p, q); o is 1 for two dimensions.
    ///
    /// # Panics
    /// If a window is larger than its padded input, or a size is zero; neither occurs in a network.
    pub fn outputs(&self) -> [usize; 3] {
        self.axes.map(|axis| {
            let whole = axis.output();
            let covered = (whole - 1) * axis.stride + axis.reach();
            let left_over = covered < axis.input + axis.pad_before + axis.pad_after;
            let begins_inside = whole * axis.stride < axis.input + axis.pad_before;
            if self.ceil && left_over && begins_inside { whole + 1 } else { whole }
        })
    }
}
