//! The values of names in the graph: the output of a layer, or a constant.

use std::rc::Rc;

use super::proto::data_type;
use tightfit_network::{LayerId, Shape};

/// Constants with more elements keep their shape only.
pub const MOST_ELEMENTS: usize = 4096;

/// Extents of a tensor, the mini-batch included.
pub type Dims = Vec<usize>;

/// The value of a name.
#[derive(Clone, Debug)]
pub enum Value {
    /// The output of a layer.
    Map(Map),
    /// A value that does not depend on the samples.
    Constant(Rc<Constant>),
}

/// The output of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// The layer.
    pub layer: LayerId,
    /// Its extents, the stand-in for the mini-batch included.
    pub dims: Dims,
}

/// A value that does not depend on the samples: a weight, a shape, a random mask.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// Extents; none for a single number.
    pub dims: Dims,
    /// The type of the elements, one of [`data_type`].
    pub of: i32,
    /// The elements.
    pub data: Data,
    /// The value of the graph that has these elements.
    pub origin: Option<Origin>,
}

/// A value of the graph that does not depend on the samples: an initializer, or computed from initializers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its name.
    pub name: String,
    /// How its elements are ordered now.
    pub order: Order,
    /// Number of learned parameters in it, from the initializers that it is computed from. An initializer of a single floating-point number does not
    /// count.
    pub learned: usize,
}

/// The order of a value's elements relative to the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// As there.
    Same,
    /// Rows and columns are exchanged.
    Transposed,
}

/// The elements of a constant.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Not known: too many, or random.
    Unknown,
    /// Whole numbers and truths.
    Integers(Vec<i64>),
    /// Floating-point numbers.
    Floats(Vec<f64>),
}

/// Whether this is a floating-point type that the reader supports.
pub fn is_floating(of: i32) -> bool {
    matches!(of, data_type::FLOAT | data_type::FLOAT16 | data_type::BFLOAT16 | data_type::DOUBLE)
}

impl Value {
    /// Extents, the mini-batch included.
    pub fn dims(&self) -> &[usize] {
        match self {
            Value::Map(map) => &map.dims,
            Value::Constant(constant) => &constant.dims,
        }
    }

    /// A constant of 64-bit integers, or of 32-bit floating-point numbers.
    pub fn constant(dims: Dims, data: Data) -> Value {
        let of = if matches!(data, Data::Integers(_)) { data_type::INT64 } else { data_type::FLOAT };
        Value::Constant(Rc::new(Constant { dims, of, data, origin: None }))
    }

    /// The layer output, if the value is one.
    pub fn map(&self) -> Option<&Map> {
        match self {
            Value::Map(map) => Some(map),
            Value::Constant(_) => None,
        }
    }
}

impl Constant {
    /// Number of learned parameters in it.
    pub fn parameters(&self) -> usize {
        self.origin.as_ref().map_or(0, |origin| origin.learned)
    }

    /// Whether it may be learned: more than one floating-point number.
    pub fn is_learnable(&self) -> bool {
        is_floating(self.of) && elements(&self.dims).is_some_and(|count| count > 1)
    }

    /// Number of its elements if layers can learn it, otherwise 0.
    pub fn learnable(&self) -> usize {
        if self.is_learnable() { elements(&self.dims).unwrap_or(0) } else { 0 }
    }

    /// The elements as whole numbers.
    pub fn integers(&self) -> Option<Vec<i64>> {
        match &self.data {
            Data::Unknown => None,
            Data::Integers(all) => Some(all.clone()),
            // Conversion saturates; NaN becomes 0.
            Data::Floats(all) => Some(all.iter().map(|&number| number as i64).collect()),
        }
    }

    /// The elements as floating-point numbers.
    pub fn floats(&self) -> Option<Vec<f64>> {
        match &self.data {
            Data::Unknown => None,
            Data::Integers(all) => Some(all.iter().map(|&number| number as f64).collect()),
            Data::Floats(all) => Some(all.clone()),
        }
    }
}

/// Elements of a tensor with these extents, if at most 2^60. The limit applies even with an extent of 0, so that no product of some of the extents
/// overflows.
pub fn elements(dims: &[usize]) -> Option<usize> {
    let product = dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim.max(1)));
    let all = if dims.contains(&0) { 0 } else { product? };
    product.filter(|&product| product <= 1 << 60).map(|_| all)
}

/// The shape of one of `batch` samples.
///
/// If the first extent is not the mini-batch, as after windows were cut out, the sample is a vector of its share. More than three spatial extents
/// become three, and one becomes two with a leading 1.
pub fn sample(dims: &[usize], batch: usize) -> Result<Shape, String> {
    let all = elements(dims).ok_or_else(|| format!("{dims:?} has more than 2^60 elements"))?;
    match dims {
        _ if all == 0 => Err(format!("{dims:?} has no elements")),
        [first] if *first == batch => Ok(Shape::flat(1)),
        [first, c] if *first == batch => Ok(Shape::flat(*c)),
        [first, c, w] if *first == batch => Ok(Shape::image(*c, 1, *w)),
        [first, c, h, w] if *first == batch => Ok(Shape::image(*c, *h, *w)),
        [first, c, d, h, rest @ ..] if *first == batch => Ok(Shape::volume(*c, *d, *h, rest.iter().product())),
        _ if all % batch == 0 => Ok(Shape::flat(all / batch)),
        _ => Err(format!("{dims:?} is not divided among the samples of a mini-batch")),
    }
}

/// The extents of the result of an element-by-element operation: extents of 1 are broadcast.
pub fn broadcast<'a>(all: impl IntoIterator<Item = &'a [usize]>) -> Result<Dims, String> {
    let mut result: Dims = Vec::new();
    for dims in all {
        if dims.len() > result.len() {
            result.splice(0..0, std::iter::repeat_n(1, dims.len() - result.len()));
        }
        let skipped = result.len() - dims.len();
        for (own, &dim) in result[skipped..].iter_mut().zip(dims) {
            if *own == 1 {
                *own = dim;
            } else if dim != 1 && dim != *own {
                return Err(format!("extents of {own} and {dim} do not match"));
            }
        }
    }
    Ok(result)
}
