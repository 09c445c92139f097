//! One node with the values of its inputs: typed access whose errors describe the fault.

use std::rc::Rc;

use super::given::{Given, is_standard};
use super::proto::{AttributeProto, NodeProto};
use super::value::{Constant, Dims, Map, Value};

/// A node about to become a layer, a view or a constant.
pub struct Call<'a> {
    /// The node.
    pub node: &'a NodeProto,
    /// The node's attributes, inputs and outputs, by the table of operators.
    pub given: Given<'a>,
    /// The values of its inputs; `None` for an omitted optional input.
    pub inputs: Vec<Option<Value>>,
    /// The number that represents the mini-batch in extents.
    pub batch: usize,
    /// The extents of its first output, if the file states them.
    pub stated: Option<Dims>,
}

impl<'a> Call<'a> {
    /// The operator.
    pub fn operator(&self) -> &'a str {
        &self.node.op_type
    }

    /// Whether the operator is in ONNX's own domain. Other domains may reuse its name with another meaning.
    pub fn is_standard(&self) -> bool {
        is_standard(self.node)
    }

    /// An input that may be left out.
    pub fn optional(&self, at: usize) -> Option<&Value> {
        self.inputs.get(at).and_then(Option::as_ref)
    }

    /// An input that must be there.
    pub fn input(&self, at: usize) -> Result<&Value, String> {
        self.optional(at).ok_or_else(|| format!("input {at} is missing"))
    }

    /// An input that must depend on the samples.
    pub fn map(&self, at: usize) -> Result<&Map, String> {
        self.input(at)?.map().ok_or_else(|| format!("input {at} does not depend on the samples"))
    }

    /// An input that must not depend on the samples.
    pub fn constant(&self, at: usize) -> Result<&Rc<Constant>, String> {
        match self.input(at)? {
            Value::Constant(constant) => Ok(constant),
            Value::Map(_) => Err(format!("input {at} depends on the samples; it must be a constant")),
        }
    }

    /// The integers in an input; `None` if it is omitted.
    pub fn integers_in(&self, at: usize) -> Result<Option<Vec<i64>>, String> {
        let Some(value) = self.optional(at) else { return Ok(None) };
        let known = match value {
            Value::Constant(constant) => constant.integers(),
            Value::Map(_) => None,
        };
        known.map(Some).ok_or_else(|| format!("input {at} is not known before the model runs"))
    }

    /// Integers from an input or, in versions that have it, from an attribute.
    pub fn integers(&self, at: usize, attribute: &str) -> Result<Option<Vec<i64>>, String> {
        Ok(self.integers_in(at)?.or_else(|| self.ints(attribute)))
    }

    /// Whether these are extents of one sample after another.
    pub fn is_of_samples(&self, dims: &[usize]) -> bool {
        dims.len() > 1 && dims[0] == self.batch
    }

    /// The reason to refuse extents whose first one is not the number of samples.
    pub fn not_of_samples(&self, dims: &[usize]) -> Option<String> {
        let what = || format!("its input of {dims:?} does not have the samples, {}, along its first axis", self.batch);
        (!self.is_of_samples(dims)).then(what)
    }

    /// The constants among the inputs.
    pub fn constants(&self) -> impl Iterator<Item = &Constant> {
        self.inputs.iter().flatten().filter_map(|input| match input {
            Value::Constant(constant) => Some(&**constant),
            Value::Map(_) => None,
        })
    }

    /// The inputs that depend on the samples.
    pub fn maps(&self) -> Vec<&Map> {
        self.inputs.iter().flatten().filter_map(Value::map).collect()
    }

    /// An integer, or the default.
    pub fn int(&self, name: &str) -> Option<i64> {
        self.given.int(name)
    }

    /// Integers, if given.
    pub fn ints(&self, name: &str) -> Option<Vec<i64>> {
        self.given.ints(name)
    }

    /// A floating-point number, or the default.
    pub fn float(&self, name: &str) -> Option<f32> {
        self.given.float(name)
    }

    /// A text, or the usual one.
    pub fn text(&self, name: &str) -> Option<String> {
        self.given.text(name)
    }

    /// The attribute of a `Constant` or `ConstantOfShape` node, of any type.
    pub fn value(&self) -> Option<&'a AttributeProto> {
        self.given.value()
    }
}

/// An axis counted from the front, from one that may count from the back.
pub fn axis(axis: i64, rank: usize) -> Result<usize, String> {
    let from_front = if axis < 0 { axis.checked_add(rank as i64) } else { Some(axis) };
    let inside = from_front.and_then(|axis| usize::try_from(axis).ok()).filter(|axis| *axis < rank);
    inside.ok_or_else(|| format!("axis {axis} of a tensor with {rank}"))
}

/// Axes counted from the front, in order.
pub fn axes(given: &[i64], rank: usize) -> Result<Vec<usize>, String> {
    let mut all = given.iter().map(|&given| axis(given, rank)).collect::<Result<Vec<usize>, String>>()?;
    all.sort_unstable();
    all.dedup();
    Ok(all)
}

/// A whole number as an extent.
pub fn extent(number: i64, what: &str) -> Result<usize, String> {
    let inside = usize::try_from(number).ok().filter(|extent| *extent <= 1 << 31);
    inside.ok_or_else(|| format!("{what} {number} is not from 0 to 2^31"))
}
