//! The three elementwise steps of adding up half-precision filter gradients in f32: widen, add, narrow. They are graphs of
//! the backend interface, so that no kernel has to be compiled here.
//!
//! ```text
//! widen    sum = dw              f32 <- half
//! add      sum = sum + dw        f32 <- f32, half        in place
//! narrow   dw = sum              half <- f32
//! ```

use std::sync::Arc;

use tightfit_conv::problem::Storage;

use super::engines::configure;
use super::geometry::{Strided, data_type};
use super::graph::{Graph, single, tensor};
use super::{Search, proposals};
use crate::CudaError;
use crate::safe::{Descriptor, Handle, Plan, TensorSpec};
use crate::sys::cudnn::{Attribute, DataType, Kind, PointwiseMode};

/// The steps for one number of elements.
pub(crate) struct Elementwise {
    /// f32 from half.
    pub widen: Plan,
    /// f32 from f32 and half.
    pub add: Plan,
    /// Half from f32.
    pub narrow: Plan,
}

impl Elementwise {
    /// The steps on `len` elements of a half-precision type, on buffers whose addresses are multiples of `base`.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`] if cuDNN has no engine for one of them that does without workspace; [`CudaError::Unfit`] if
    /// the elements cannot be laid out as a tensor.
    pub fn new(handle: &Arc<Handle>, half: Storage, len: usize, base: usize) -> Result<Elementwise, CudaError> {
        let [channels, row] = packings(len)?;
        let step = |mode, inputs: &[Storage], output| {
            let plan = |packed| plan(handle, mode, inputs, output, packed, base);
            plan(&channels).or_else(|_| plan(&row))
        };
        Ok(Elementwise {
            widen: step(PointwiseMode::IDENTITY, &[half], Storage::F32)?,
            add: step(PointwiseMode::ADD, &[Storage::F32, half], Storage::F32)?,
            narrow: step(PointwiseMode::IDENTITY, &[Storage::F32], half)?,
        })
    }

    /// The same steps, to be run on another handle of the device.
    pub fn on(&self, handle: &Arc<Handle>) -> Option<Elementwise> {
        let Elementwise { widen, add, narrow } = self;
        Some(Elementwise { widen: widen.on(handle)?, add: add.on(handle)?, narrow: narrow.on(handle)? })
    }
}

/// Maximum number of channels in a step: beyond 65535 blocks of 32 the launch fails with an invalid value, in cuDNN
/// 9.19 on an H200, though the plan was built.
const MAX_CHANNELS: usize = 1 << 20;

/// The elements as one tensor, in the two shapes that engines know best: all channels of as few points as can be, whose
/// neighbors are neighbors in either layout, and as few rows.
///
/// # Errors
/// [`CudaError::Unfit`] for more elements than a launch takes that fewer than 65536 equal parts do not add up to.
fn packings(len: usize) -> Result<[Strided; 2], CudaError> {
    let mut parts = len.div_ceil(MAX_CHANNELS).max(1)..1 << 16;
    let parts = parts.find(|parts| len.is_multiple_of(*parts)).ok_or_else(|| CudaError::Unfit {
        layer: "filter gradient",
        what: format!(
            "{len} elements are too many for one launch, and cannot be divided into fewer than 65536 equal parts"
        ),
    })?;
    let each = len / parts;
    Ok([
        Strided { extents: vec![parts, each, 1, 1], strides: vec![each, 1, each, each] },
        Strided { extents: vec![1, parts, each], strides: vec![len, each, 1] },
    ])
}

/// The first engine without workspace that builds.
fn plan(
    handle: &Arc<Handle>,
    mode: PointwiseMode,
    inputs: &[Storage],
    output: Storage,
    packed: &Strided,
    base: usize,
) -> Result<Plan, CudaError> {
    let mut tensors = Vec::new();
    let mut operation = Descriptor::new(handle, Kind::OPERATION_POINTWISE)?;
    let places = [Attribute::OPERATION_POINTWISE_XDESC, Attribute::OPERATION_POINTWISE_BDESC];
    let inputs = places.into_iter().zip(inputs.iter().copied());
    for (place, storage) in inputs.chain([(Attribute::OPERATION_POINTWISE_YDESC, output)]) {
        let id = tensors.len() as i64 + 1;
        let descriptor = tensor(handle, id, data_type(storage), packed, base)?;
        operation = operation.with_objects(place, &[&descriptor])?;
        tensors.push(TensorSpec { id, bytes: packed.span() * storage.size(), alignment: base });
    }
    let step = Descriptor::new(handle, Kind::POINTWISE)?
        .with(Attribute::POINTWISE_MODE, &[mode])?
        .with(Attribute::POINTWISE_MATH_PREC, &[DataType::FLOAT])?
        .finalize()?;
    let operation = operation.with_objects(Attribute::OPERATION_POINTWISE_PW_DESCRIPTOR, &[&step])?.finalize()?;
    let graph = Graph { descriptor: single(handle, &operation)?, tensors };
    let mut refusal = CudaError::Answer { what: "an elementwise step's engines", count: 0, expected: "one or more" };
    for proposal in proposals(&graph, Search::default())? {
        match configure(&graph, &proposal.engine) {
            Ok((config, 0, _)) => match Plan::new(&config, graph.tensors.clone()) {
                Ok(plan) if plan.workspace() == 0 => return Ok(plan),
                Ok(_) => {}
                Err(error) => refusal = error,
            },
            Ok(_) => {}
            Err(error) => refusal = error,
        }
    }
    Err(refusal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_elements_are_several_samples() {
        let channels = |len| packings(len).unwrap()[0].extents.clone();
        assert_eq!(channels(96), [1, 96, 1, 1]);
        assert_eq!(channels(512 * 512 * 9), [3, 512 * 512 * 3, 1, 1]);
        let prime = 2_097_169;
        assert!(matches!(packings(prime), Err(CudaError::Unfit { what, .. }) if what.contains("2097169")));
        for len in [1, MAX_CHANNELS, MAX_CHANNELS + 2, 4096 * 9216] {
            for packed in packings(len).unwrap() {
                assert_eq!(packed.extents.iter().product::<usize>(), len);
                assert!(packed.extents.iter().all(|&extent| extent <= MAX_CHANNELS), "{len}: {:?}", packed.extents);
            }
        }
    }
}
