//! The functions of single nodes, as far as they can run.

use super::call::{Call, axis};
use super::shapes;
use super::value::{Constant, Map, Value};
use crate::network::{Activation, Function, Sampling};

/// The function of a node, if it is one that can run.
pub fn of(call: &Call<'_>) -> Option<Function> {
    let number = |name: &str, usual: f32| call.float(name).unwrap_or(usual);
    let activation = match call.operator() {
        "Sigmoid" => Activation::Sigmoid,
        "HardSigmoid" => Activation::HardSigmoid { alpha: number("alpha", 0.2), beta: number("beta", 0.5) },
        "Tanh" => Activation::Tanh,
        "Clip" => Activation::Clip { low: bound(call, 1, "min", f32::MIN)?, high: bound(call, 2, "max", f32::MAX)? },
        "LeakyRelu" => Activation::LeakyRelu { slope: number("alpha", 0.01) },
        "Elu" => Activation::Elu { alpha: number("alpha", 1.0) },
        "HardSwish" => Activation::HardSwish,
        "Swish" if number("alpha", 1.0) == 1.0 => Activation::Silu,
        "Gelu" => match call.text("approximate").as_deref() {
            None | Some("" | "none") => Activation::Gelu,
            Some("tanh") => Activation::GeluTanh,
            Some(_) => return None,
        },
        "Softplus" => Activation::Softplus,
        "Mish" => Activation::Mish,
        "Mul" => return product(call),
        "LayerNormalization" => return layer_norm(call),
        "Transpose" => return transpose(call),
        "Resize" => return resize(call),
        _ => return None,
    };
    Some(Function::Activation(activation))
}

/// A bound of a `Clip`: an input or, in older models, an attribute.
fn bound(call: &Call<'_>, at: usize, attribute: &str, usual: f32) -> Option<f32> {
    match call.optional(at) {
        Some(Value::Constant(constant)) => Some(constant.floats()?.first().copied()? as f32),
        Some(Value::Map(_)) => None,
        None => Some(call.float(attribute).unwrap_or(usual)),
    }
}

/// A product of two maps, or of a map and a learned number for each channel.
fn product(call: &Call<'_>) -> Option<Function> {
    match (call.optional(0)?, call.optional(1)?) {
        (Value::Map(left), Value::Map(right)) => (left.dims.len() == right.dims.len()).then_some(Function::Multiply),
        (Value::Map(x), Value::Constant(factor)) | (Value::Constant(factor), Value::Map(x)) => {
            is_per_channel(factor, x).then_some(Function::Scale)
        }
        _ => None,
    }
}

/// Whether these are floating-point numbers of the extents (c, 1, 1) for maps of (n, c, h, w), or alike.
fn is_per_channel(factor: &Constant, x: &Map) -> bool {
    let Some((first, others)) = factor.dims.split_first() else { return false };
    factor.is_learnable()
        && x.dims.get(1) == Some(first)
        && others.len() + 2 == x.dims.len()
        && others.iter().all(|&extent| extent == 1)
}

/// Normalization along the last axis, with a learned factor and offset for each place.
fn layer_norm(call: &Call<'_>) -> Option<Function> {
    let x = call.map(0).ok()?;
    let along = axis(call.int("axis").unwrap_or(-1), x.dims.len()).ok()?;
    let is_last = along + 1 == x.dims.len() && along > 0;
    let per_place = |at| call.constant(at).is_ok_and(|numbers| numbers.dims == x.dims[along..]);
    let epsilon = call.float("epsilon").unwrap_or(1e-5);
    (is_last && per_place(1) && per_place(2)).then_some(Function::LayerNorm { epsilon })
}

/// An exchange of axes within each sample.
fn transpose(call: &Call<'_>) -> Option<Function> {
    let x = call.map(0).ok()?;
    let order = shapes::permutation(call, x.dims.len()).ok()?;
    let (first, others) = order.split_first()?;
    // Samples of other ranks have extents that the file does not name, or fewer.
    let fits = *first == 0 && x.dims[0] == call.batch && matches!(others.len(), 3 | 4);
    fits.then(|| Function::Transpose { order: others.iter().map(|axis| axis - 1).collect() })
}

/// A change of the extents of each channel, as PyTorch exports `interpolate`.
fn resize(call: &Call<'_>) -> Option<Function> {
    let x = call.map(0).ok()?;
    let output = shapes::of(call).ok()??.into_iter().next()?;
    let (from, to) = (x.dims.get(2..)?, output.get(2..)?);
    let keeps_others = x.dims[..2] == output[..2] && x.dims[0] == call.batch && call.ints("axes").is_none();
    // Scales that do not give whole extents put the places elsewhere than extents do.
    let is_whole = |(scale, (from, to)): (&f64, (&usize, &usize))| (*from as f64 * scale - *to as f64).abs() < 1e-6;
    let scales = match call.optional(2) {
        Some(Value::Constant(constant)) => constant.floats()?,
        _ => Vec::new(),
    };
    let fits = scales.is_empty() || scales.iter().zip(x.dims.iter().zip(&output)).all(is_whole);
    let text = |name: &str, usual: &str| call.text(name).unwrap_or_else(|| usual.to_owned());
    let (mode, places) = (text("mode", "nearest"), text("coordinate_transformation_mode", "half_pixel"));
    let sampling = match (mode.as_str(), places.as_str()) {
        ("nearest", "asymmetric") if text("nearest_mode", "round_prefer_floor") == "floor" => Sampling::Nearest,
        ("linear", "half_pixel") => Sampling::Linear,
        ("linear", "pytorch_half_pixel") if !to.contains(&1) => Sampling::Linear,
        ("linear", "align_corners") => Sampling::LinearAligned,
        _ => return None,
    };
    let is_smoothed = call.int("antialias").is_some_and(|smooth| smooth != 0);
    let extents = to.to_vec();
    (keeps_others && fits && !is_smoothed && matches!(from.len(), 2 | 3))
        .then_some(Function::Resize { sampling, extents })
}
