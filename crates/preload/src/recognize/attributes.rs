//! Reads the attributes of backend descriptors.

use tightfit_conv::Operation;
use tightfit_conv::backend::Scale;
use tightfit_cuda::sys::cudnn::{Attribute, ConvolutionMode, DataType, Kind};

use super::computation::{Computation, Sizes, Tensor, Window, problem, storage};
use crate::reason::Reason;
use crate::shadow::{Attributes, Object};

fn sizes<N>(attributes: &Attributes<N>, name: Attribute) -> Result<Sizes, Reason> {
    let values = attributes.integers(name).ok_or(Reason::Attribute)?;
    Sizes::collect(values.iter().map(|&value| usize::try_from(value).map_err(|_| Reason::Layout)))
}

/// The attributes of a tensor that are understood.
const TENSOR: [Attribute; 10] = [
    Attribute::TENSOR_BYTE_ALIGNMENT,
    Attribute::TENSOR_DATA_TYPE,
    Attribute::TENSOR_DIMENSIONS,
    Attribute::TENSOR_STRIDES,
    Attribute::TENSOR_VECTOR_COUNT,
    Attribute::TENSOR_VECTORIZED_DIMENSION,
    Attribute::TENSOR_UNIQUE_ID,
    Attribute::TENSOR_IS_VIRTUAL,
    Attribute::TENSOR_IS_BY_VALUE,
    Attribute::TENSOR_REORDERING_MODE,
];

/// The attributes of a convolution's window that are understood.
const WINDOW: [Attribute; 7] = [
    Attribute::CONVOLUTION_COMP_TYPE,
    Attribute::CONVOLUTION_CONV_MODE,
    Attribute::CONVOLUTION_DILATIONS,
    Attribute::CONVOLUTION_FILTER_STRIDES,
    Attribute::CONVOLUTION_POST_PADDINGS,
    Attribute::CONVOLUTION_PRE_PADDINGS,
    Attribute::CONVOLUTION_SPATIAL_DIMS,
];

/// The tensor of these attributes.
///
/// # Errors
/// The reason why no convolution of it is divided.
fn tensor<N>(attributes: &Attributes<N>) -> Result<Tensor, Reason> {
    let is_set = |name| attributes.get(name).is_some() && attributes.integer(name) != Some(0);
    if attributes.integer(Attribute::TENSOR_VECTOR_COUNT).unwrap_or(1) != 1
        || is_set(Attribute::TENSOR_REORDERING_MODE)
        || attributes.get(Attribute::TENSOR_RAGGED_OFFSET_DESC).is_some()
    {
        return Err(Reason::Special);
    }
    if is_set(Attribute::TENSOR_IS_VIRTUAL) || is_set(Attribute::TENSOR_IS_BY_VALUE) {
        return Err(Reason::Virtual);
    }
    if !attributes.are_among(&TENSOR) {
        return Err(Reason::Attribute);
    }
    let alignment = attributes
        .integer(Attribute::TENSOR_BYTE_ALIGNMENT)
        .and_then(|value| usize::try_from(value).ok())
        .ok_or(Reason::Attribute)?;
    if !alignment.is_power_of_two() {
        return Err(Reason::Layout);
    }
    Ok(Tensor {
        storage: storage(attributes.integer(Attribute::TENSOR_DATA_TYPE).ok_or(Reason::Attribute)?)?,
        dims: sizes(attributes, Attribute::TENSOR_DIMENSIONS)?,
        strides: sizes(attributes, Attribute::TENSOR_STRIDES)?,
        id: attributes.integer(Attribute::TENSOR_UNIQUE_ID).ok_or(Reason::Attribute)?,
        alignment,
    })
}

/// The window of these attributes.
///
/// # Errors
/// The reason why no convolution with it is divided.
fn window<N>(attributes: &Attributes<N>) -> Result<Window, Reason> {
    if !attributes.are_among(&WINDOW) {
        return Err(Reason::Attribute);
    }
    if attributes.integer(Attribute::CONVOLUTION_CONV_MODE) != Some(i64::from(ConvolutionMode::CROSS_CORRELATION.0)) {
        return Err(Reason::Mode);
    }
    Ok(Window {
        arithmetic: DataType(
            i32::try_from(attributes.integer(Attribute::CONVOLUTION_COMP_TYPE).unwrap_or(-1)).unwrap_or(-1),
        ),
        before: sizes(attributes, Attribute::CONVOLUTION_PRE_PADDINGS)?,
        after: sizes(attributes, Attribute::CONVOLUTION_POST_PADDINGS)?,
        strides: sizes(attributes, Attribute::CONVOLUTION_FILTER_STRIDES)?,
        dilations: sizes(attributes, Attribute::CONVOLUTION_DILATIONS)?,
    })
}

/// The convolution of an operation's attributes.
///
/// # Errors
/// The reason why it is left as it is.
pub fn computation<N>(kind: Kind, attributes: &Attributes<N>) -> Result<Computation, Reason> {
    // Attributes of x, w, y, window, alpha and beta.
    let (operation, [x, w, y, window, alpha, beta]) = match kind {
        Kind::OPERATION_CONVOLUTION_FORWARD => (
            Operation::Forward,
            [
                Attribute::FORWARD_X,
                Attribute::FORWARD_W,
                Attribute::FORWARD_Y,
                Attribute::FORWARD_CONV_DESC,
                Attribute::FORWARD_ALPHA,
                Attribute::FORWARD_BETA,
            ],
        ),
        Kind::OPERATION_CONVOLUTION_BACKWARD_DATA => (
            Operation::BackwardData,
            [
                Attribute::BWD_DATA_DX,
                Attribute::BWD_DATA_W,
                Attribute::BWD_DATA_DY,
                Attribute::BWD_DATA_CONV_DESC,
                Attribute::BWD_DATA_ALPHA,
                Attribute::BWD_DATA_BETA,
            ],
        ),
        _ => (
            Operation::BackwardFilter,
            [
                Attribute::BWD_FILTER_X,
                Attribute::BWD_FILTER_DW,
                Attribute::BWD_FILTER_DY,
                Attribute::BWD_FILTER_CONV_DESC,
                Attribute::BWD_FILTER_ALPHA,
                Attribute::BWD_FILTER_BETA,
            ],
        ),
    };
    if !attributes.are_among(&[x, w, y, window, alpha, beta]) {
        return Err(Reason::Attribute);
    }
    let object =
        |name, kind| attributes.object(name).and_then(|object| object.attributes_of(kind)).ok_or(Reason::Descriptor);
    let tensor = |name| tensor(object(name, Kind::TENSOR)?);
    let (x, w, y) = (tensor(x)?, tensor(w)?, tensor(y)?);
    let window = self::window(object(window, Kind::CONVOLUTION)?)?;
    let factor = |name, default| attributes.real(name, default).map(|value| value as f32).ok_or(Reason::Attribute);
    let scale = Scale { alpha: factor(alpha, 1.0)?, beta: factor(beta, 0.0)? };
    let problem = problem(operation, [&x, &w, &y], &window)?;
    let ids = match operation {
        Operation::Forward => [x.id, w.id, y.id],
        Operation::BackwardData => [y.id, w.id, x.id],
        Operation::BackwardFilter => [x.id, y.id, w.id],
    };
    let base = x.alignment.min(w.alignment).min(y.alignment).min(16);
    Ok(Computation { problem, scale, ids, base })
}

/// Addresses by the tensors' ids, and the workspace, from a variant pack.
pub struct Addresses<'a> {
    ids: &'a [i64],
    addresses: &'a [i64],
    /// The workspace's address; 0 for none.
    pub workspace: u64,
    /// Whether something else was set, such as other shapes.
    pub is_special: bool,
}

impl<'a> Addresses<'a> {
    /// The settings of a variant pack, or `None` for any other object.
    pub fn read<N>(pack: &'a Object<N>) -> Option<Addresses<'a>> {
        const KNOWN: [Attribute; 3] = [
            Attribute::VARIANT_PACK_UNIQUE_IDS,
            Attribute::VARIANT_PACK_DATA_POINTERS,
            Attribute::VARIANT_PACK_WORKSPACE,
        ];
        let [ids, addresses, workspace] = KNOWN;
        let attributes = pack.attributes_of(Kind::VARIANT_PACK)?;
        Some(Addresses {
            ids: attributes.integers(ids).unwrap_or_default(),
            addresses: attributes.integers(addresses).unwrap_or_default(),
            workspace: attributes.integer(workspace).unwrap_or(0) as u64,
            is_special: !attributes.are_among(&KNOWN),
        })
    }

    /// The address of a tensor.
    pub fn find(&self, id: i64) -> Option<u64> {
        let place = self.ids.iter().position(|known| *known == id)?;
        self.addresses.get(place).map(|&address| address as u64)
    }
}
