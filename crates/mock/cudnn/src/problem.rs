//! One convolution, whichever interface described it.
//!
//! ```text
//! forward          y  = alpha * conv(x, w)   + beta * y
//! backward-data    dx = alpha * convT(dy, w) + beta * dx
//! backward-filter  dw = alpha * corr(x, dy)  + beta * dw
//! ```
//! x, w, y stand for dx, dw, dy too: the operation says which one is written.

use crate::number::DataType;
use crate::status::Status;
use crate::tensor::Tensor;

/// Which of the three convolutions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Writes y.
    Forward,
    /// Writes dx.
    BackwardData,
    /// Writes dw.
    BackwardFilter,
}

/// Padding, strides and dilation of each spatial dimension, and how to sum.
#[derive(Clone, Debug, PartialEq)]
pub struct Geometry {
    /// Zeros before the first element.
    pub pre: Vec<i64>,
    /// Zeros after the last element.
    pub post: Vec<i64>,
    /// Steps of the filter.
    pub strides: Vec<i64>,
    /// Distance of neighboring filter elements.
    pub dilations: Vec<i64>,
    /// True convolution (the filter mirrored) instead of cross-correlation.
    pub mirrored: bool,
    /// Type that sums are kept in.
    pub accumulate: DataType,
}

/// One convolution; all tensors in five dimensions, the geometry in three.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Which of the three.
    pub operation: Operation,
    /// x or dx.
    pub x: Tensor,
    /// w or dw.
    pub w: Tensor,
    /// y or dy.
    pub y: Tensor,
    /// Padding, strides, dilation.
    pub geometry: Geometry,
    /// Spatial dimensions as described: 1 to 3.
    pub spatial: usize,
    /// Groups of channels.
    pub groups: i64,
    /// Factor of the result.
    pub alpha: f32,
    /// Factor of the output's earlier content; 0 does not read it.
    pub beta: f32,
    /// Whether f32 inputs may be rounded for tensor cores.
    pub tensor_cores: bool,
}

impl Problem {
    /// Checks that the shapes belong together and brings all to three spatial dimensions.
    ///
    /// # Errors
    /// [`Status::SHAPE_MISMATCH`] if they don't; [`Status::UNSUPPORTED_SHAPE`] for more than three spatial dimensions.
    pub fn new(operation: Operation, [x, w, y]: [&Tensor; 3], geometry: &Geometry) -> Result<Problem, Status> {
        let spatial = x.dims.len().saturating_sub(2);
        let mut geometry = geometry.clone();
        for (values, neutral) in
            [(&mut geometry.pre, 0), (&mut geometry.post, 0), (&mut geometry.strides, 1), (&mut geometry.dilations, 1)]
        {
            if values.len() != spatial {
                return Err(Status::SHAPE_MISMATCH);
            }
            while values.len() < 3 {
                values.insert(0, neutral);
            }
        }
        if w.dims.len() != x.dims.len() || y.dims.len() != x.dims.len() {
            return Err(Status::SHAPE_MISMATCH);
        }
        let (x, w, y) = (x.expanded()?, w.expanded()?, y.expanded()?);
        let groups = x.dims[1] / w.dims[1];
        let channels_agree = groups * w.dims[1] == x.dims[1] && groups > 0 && w.dims[0] % groups == 0;
        let sizes_agree = (0..3).all(|i| {
            let reach = geometry.dilations[i] * (w.dims[2 + i] - 1) + 1;
            let room = x.dims[2 + i] + geometry.pre[i] + geometry.post[i] - reach;
            room >= 0 && y.dims[2 + i] == room / geometry.strides[i] + 1
        });
        if !channels_agree || !sizes_agree || y.dims[0] != x.dims[0] || y.dims[1] != w.dims[0] {
            return Err(Status::SHAPE_MISMATCH);
        }
        let (alpha, beta, tensor_cores) = (1.0, 0.0, true);
        Ok(Problem { operation, x, w, y, geometry, spatial, groups, alpha, beta, tensor_cores })
    }

    /// The tensor that is written.
    pub fn output(&self) -> &Tensor {
        match self.operation {
            Operation::Forward => &self.y,
            Operation::BackwardData => &self.x,
            Operation::BackwardFilter => &self.w,
        }
    }

    /// The tensors that are read.
    pub fn inputs(&self) -> [&Tensor; 2] {
        match self.operation {
            Operation::Forward => [&self.x, &self.w],
            Operation::BackwardData => [&self.y, &self.w],
            Operation::BackwardFilter => [&self.x, &self.y],
        }
    }

    /// Multiplications.
    pub fn products(&self) -> u64 {
        (self.y.len() as u64).saturating_mul(self.w.dims[1..].iter().product::<i64>() as u64)
    }
}
