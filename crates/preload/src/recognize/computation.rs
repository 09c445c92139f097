//! A convolution, from tensors and a window.

use std::ops::Deref;

use tightfit_conv::backend::Scale;
use tightfit_conv::problem::Storage;
use tightfit_conv::{Axis, Convolution, Layout, Operation, Problem, Types};
use tightfit_cuda::sys::cudnn::{ConvolutionMode, DataType};

use crate::reason::Reason;

/// The most dimensions of a cuDNN tensor (`CUDNN_DIM_MAX`).
const MAX_DIMENSIONS: usize = 8;

/// A number per dimension, stored inline because the legacy interface reads them at every call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    values: [usize; MAX_DIMENSIONS],
    len: usize,
}

impl Sizes {
    /// The numbers, or the reason why they are invalid.
    pub fn collect(all: impl Iterator<Item = Result<usize, Reason>>) -> Result<Sizes, Reason> {
        let mut sizes = Sizes { values: [0; MAX_DIMENSIONS], len: 0 };
        for one in all {
            *sizes.values.get_mut(sizes.len).ok_or(Reason::Shape)? = one?;
            sizes.len += 1;
        }
        Ok(sizes)
    }
}

impl Deref for Sizes {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.values[..self.len]
    }
}

/// A tensor as described: n, c, then spatial dimensions, in any layout.
#[derive(Clone, Debug)]
pub struct Tensor {
    pub(super) storage: Storage,
    pub(super) dims: Sizes,
    pub(super) strides: Sizes,
    pub(super) id: i64,
    pub(super) alignment: usize,
}

/// A convolution without its tensors.
#[derive(Clone, Debug)]
pub struct Window {
    pub(super) arithmetic: DataType,
    pub(super) before: Sizes,
    pub(super) after: Sizes,
    pub(super) strides: Sizes,
    pub(super) dilations: Sizes,
}

/// A convolution that may be divided, with all that its execution computes by.
#[derive(Clone, Debug)]
pub struct Computation {
    /// In the types that leave tensor cores out of f32; see [`Computation::problem`].
    pub(super) problem: Problem,
    /// Factors.
    pub scale: Scale,
    /// Ids of data, other and output, as in [`tightfit_conv::backend::Tensors`].
    pub ids: [i64; 3],
    /// The number that every address is a multiple of.
    pub base: usize,
}

impl Computation {
    /// The convolution of descriptors of the legacy interface, for addresses that are multiples of 16.
    ///
    /// # Errors
    /// The reason why it is left as it is.
    pub fn new(
        operation: Operation,
        tensors: [&Tensor; 3],
        window: &Window,
        scale: Scale,
    ) -> Result<Computation, Reason> {
        Ok(Computation { problem: problem(operation, tensors, window)?, scale, ids: [0; 3], base: 16 })
    }

    /// Groups of channels.
    pub fn groups(&self) -> usize {
        self.problem.convolution().groups()
    }

    /// The problem, with tf32 for f32 if tensor cores are allowed.
    pub fn problem(&self, has_tensor_cores: bool) -> Result<Problem, Reason> {
        let p = &self.problem;
        match p.types() {
            Types::F32 if has_tensor_cores => {
                Problem::new(*p.convolution(), p.operation(), p.batch(), Types::Tf32, p.layout())
                    .map_err(|_| Reason::Shape)
            }
            _ => Ok(*p),
        }
    }
}

impl Tensor {
    /// A tensor of the legacy interface.
    ///
    /// # Errors
    /// [`Reason::Types`] or [`Reason::Layout`].
    pub fn new(data: i32, dims: &[i32], strides: &[i32]) -> Result<Tensor, Reason> {
        Ok(Tensor {
            storage: storage(data.into())?,
            dims: positive(dims)?,
            strides: positive(strides)?,
            id: 0,
            alignment: 16,
        })
    }

    /// Packed filters of the legacy interface.
    ///
    /// # Errors
    /// As [`Tensor::new`].
    pub fn filters(data: i32, layout: Layout, dims: &[i32]) -> Result<Tensor, Reason> {
        let dims = positive(dims)?;
        let spatial = dims.len().checked_sub(2).filter(|spatial| *spatial <= 3).ok_or(Reason::Shape)?;
        let mut extents = [1; 3];
        extents[3 - spatial..].copy_from_slice(&dims[2..]);
        let all = layout.strides(dims[1], extents);
        let strides = Sizes::collect(all[..2].iter().chain(&all[5 - spatial..]).map(|stride| Ok(*stride)));
        Ok(Tensor { storage: storage(data.into())?, dims, strides: strides?, id: 0, alignment: 16 })
    }
}

impl Window {
    /// A convolution of the legacy interface, padded the same before and after.
    ///
    /// # Errors
    /// [`Reason::Mode`] or [`Reason::Shape`].
    pub fn new([pad, strides, dilations]: [&[i32]; 3], mode: i32, arithmetic: i32) -> Result<Window, Reason> {
        if ConvolutionMode(mode) != ConvolutionMode::CROSS_CORRELATION {
            return Err(Reason::Mode);
        }
        let pad = positive(pad)?;
        Ok(Window {
            arithmetic: DataType(arithmetic),
            before: pad,
            after: pad,
            strides: positive(strides)?,
            dilations: positive(dilations)?,
        })
    }
}

fn positive(values: &[i32]) -> Result<Sizes, Reason> {
    Sizes::collect(values.iter().map(|&value| usize::try_from(value).map_err(|_| Reason::Shape)))
}

pub(super) fn storage(data: i64) -> Result<Storage, Reason> {
    match DataType(i32::try_from(data).unwrap_or(-1)) {
        DataType::FLOAT => Ok(Storage::F32),
        DataType::HALF => Ok(Storage::F16),
        DataType::BFLOAT16 => Ok(Storage::Bf16),
        _ => Err(Reason::Types),
    }
}

/// The problem of three tensors and a window.
pub(super) fn problem(operation: Operation, [x, w, y]: [&Tensor; 3], window: &Window) -> Result<Problem, Reason> {
    if x.storage != w.storage || x.storage != y.storage {
        return Err(Reason::Types);
    }
    let types = match (x.storage, window.arithmetic) {
        (Storage::F32, DataType::FLOAT) => Types::F32,
        (Storage::F16, DataType::HALF) => Types::F16,
        (Storage::F16, DataType::FLOAT) => Types::F16F32,
        (Storage::Bf16, DataType::FLOAT) => Types::Bf16,
        _ => return Err(Reason::Types),
    };
    let spatial = x.dims.len().saturating_sub(2);
    let same = |values: &[usize]| values.len() == spatial;
    let described = [&window.before, &window.after, &window.strides, &window.dilations];
    if w.dims.len() != x.dims.len() || y.dims.len() != x.dims.len() || !described.iter().all(|values| same(values)) {
        return Err(Reason::Shape);
    }
    let axes: Vec<Axis> = (0..spatial)
        .map(|place| Axis {
            input: x.dims[2 + place],
            filter: w.dims[2 + place],
            pad_before: window.before[place],
            pad_after: window.after[place],
            stride: window.strides[place],
            dilation: window.dilations[place],
        })
        .collect();
    let (channels, filters, of_group) = (x.dims[1], w.dims[0], w.dims[1]);
    if of_group == 0 || channels % of_group != 0 {
        return Err(Reason::Shape);
    }
    let convolution = Convolution::new(channels, filters, channels / of_group, &axes).map_err(|_| Reason::Shape)?;
    let outputs = &convolution.outputs()[3 - spatial..];
    if y.dims[0] != x.dims[0] || y.dims[1] != filters || y.dims[2..] != *outputs {
        return Err(Reason::Shape);
    }
    let layout = Layout::ALL.into_iter().find(|layout| [x, w, y].iter().all(|tensor| is_packed(tensor, *layout)));
    Problem::new(convolution, operation, x.dims[0], types, layout.ok_or(Reason::Layout)?).map_err(|_| Reason::Shape)
}

/// Whether a tensor is packed in this layout. The stride of a dimension of extent 1 does not matter.
fn is_packed(tensor: &Tensor, layout: Layout) -> bool {
    let Some(spatial) = tensor.dims.len().checked_sub(2).filter(|spatial| *spatial <= 3) else { return false };
    if tensor.strides.len() != tensor.dims.len() {
        return false;
    }
    let mut extents = [1; 3];
    extents[3 - spatial..].copy_from_slice(&tensor.dims[2..]);
    let all = layout.strides(tensor.dims[1], extents);
    let packed = all[..2].iter().chain(&all[5 - spatial..]);
    tensor.dims.iter().zip(&*tensor.strides).zip(packed).all(|((&size, &own), &wanted)| size == 1 || own == wanted)
}
