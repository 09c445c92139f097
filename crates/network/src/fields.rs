//! Reads and writes the fields of a JSON object, one by one, so that errors name the field.

use std::collections::BTreeSet;
use std::ops::Range;

use serde_json::{Map, Value, json};
use tightfit_conv::Axis;

use super::Shape;

/// An object whose fields are taken one by one.
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    left: BTreeSet<&'a str>,
}

impl<'a> Fields<'a> {
    /// The fields of a value that must be an object.
    pub fn of(value: &'a Value) -> Result<Fields<'a>, String> {
        let object = value.as_object().ok_or_else(|| format!("expected an object, got {}", shown(value)))?;
        Ok(Fields { object, left: object.keys().map(String::as_str).collect() })
    }

    fn take<T>(&mut self, field: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<T, String> {
        let value = self.object.get(field).ok_or_else(|| format!("field `{field}` is missing"))?;
        self.left.remove(field);
        read(value).ok_or_else(|| format!("field `{field}`: {} is not {what}", shown(value)))
    }

    /// An optional field, read by `read` if present.
    pub fn optional<T>(
        &mut self,
        field: &str,
        read: impl Fn(&mut Fields<'a>, &str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        if self.object.contains_key(field) { read(self, field).map(Some) } else { Ok(None) }
    }

    /// A string.
    pub fn text(&mut self, field: &str) -> Result<&'a str, String> {
        self.take(field, "text", Value::as_str)
    }

    /// A non-negative integer.
    pub fn count(&mut self, field: &str) -> Result<usize, String> {
        self.take(field, "a non-negative integer", count)
    }

    /// A Boolean.
    pub fn truth(&mut self, field: &str) -> Result<bool, String> {
        self.take(field, "true or false", Value::as_bool)
    }

    /// A number in a half-open range.
    pub fn number(&mut self, field: &str, range: Range<f32>) -> Result<f32, String> {
        let what = format!("a number of at least {:?} and less than {:?}", range.start, range.end);
        self.take(field, &what, |value| Some(value.as_f64()? as f32).filter(|number| range.contains(number)))
    }

    /// An array of non-negative integers.
    pub fn counts(&mut self, field: &str) -> Result<Vec<usize>, String> {
        self.take(field, "an array of non-negative integers", |value| value.as_array()?.iter().map(count).collect())
    }

    /// An array of strings.
    pub fn texts(&mut self, field: &str) -> Result<Vec<&'a str>, String> {
        self.take(field, "an array of text", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    /// An array of any values.
    pub fn array(&mut self, field: &str) -> Result<&'a [Value], String> {
        self.take(field, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    /// The shape of one sample.
    pub fn shape(&mut self, field: &str) -> Result<Shape, String> {
        match self.counts(field)?[..] {
            [features] => Ok(Shape::flat(features)),
            [c, h, w] => Ok(Shape::image(c, h, w)),
            [c, d, h, w] => Ok(Shape::volume(c, d, h, w)),
            _ => Err(format!("field `{field}`: expected [features], [c, h, w] or [c, d, h, w]")),
        }
    }

    /// One axis per spatial dimension of `input`; the filter or window extents are in field `extent`.
    pub fn axes(&mut self, extent: &str, input: Shape) -> Result<Vec<Axis>, String> {
        let extents = input.extents();
        let right = |field: &str, values: Vec<usize>| match values.len() == extents.len() {
            true => Ok(values),
            false => Err(format!(
                "field `{field}`: {} numbers for the {} dimensions of {input}",
                values.len(),
                extents.len()
            )),
        };
        let filter = self.counts(extent).and_then(|values| right(extent, values))?;
        let mut usual = |field: &str, usual: Vec<usize>| match self.optional(field, Fields::counts)? {
            Some(values) => right(field, values),
            None => Ok(usual),
        };
        let before = usual("pad", vec![0; extents.len()])?;
        let after = usual("pad_after", before.clone())?;
        let stride = usual("stride", vec![1; extents.len()])?;
        let dilation = usual("dilation", vec![1; extents.len()])?;
        let axis = |at: usize| Axis {
            input: extents[at],
            filter: filter[at],
            pad_before: before[at],
            pad_after: after[at],
            stride: stride[at],
            dilation: dilation[at],
        };
        Ok((0..extents.len()).map(axis).collect())
    }

    /// Rejects unknown fields; otherwise a misspelled field would silently keep its default.
    pub fn finish(self) -> Result<(), String> {
        match self.left.first() {
            Some(field) => Err(format!("unknown field `{field}`")),
            None => Ok(()),
        }
    }
}

/// The extents of filters or windows, and any padding, stride and dilation that differ from the defaults.
pub fn written_axes(extent: &'static str, axes: &[Axis]) -> Vec<(&'static str, Value)> {
    let along = |of: fn(&Axis) -> usize| -> Vec<usize> { axes.iter().map(of).collect() };
    let (before, after) = (along(|axis| axis.pad_before), along(|axis| axis.pad_after));
    let (stride, dilation) = (along(|axis| axis.stride), along(|axis| axis.dilation));
    let (zeros, ones) = (vec![0; axes.len()], vec![1; axes.len()]);
    let mut fields = vec![(extent, json!(along(|axis| axis.filter)))];
    for (field, values, usual) in [
        ("pad", &before, &zeros),
        ("pad_after", &after, &before),
        ("stride", &stride, &ones),
        ("dilation", &dilation, &ones),
    ] {
        fields.extend((values != usual).then(|| (field, json!(values))));
    }
    fields
}

/// A shape as [`Fields::shape`] reads it.
pub fn written_shape(shape: Shape) -> Value {
    [shape.channels()].iter().chain(shape.extents()).copied().collect()
}

/// A 32-bit number with the fewest digits that identify it, rather than the digits of its 64-bit form.
pub fn decimal(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().ok())
}

fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

/// A value as quoted in messages, shortened if long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
}
