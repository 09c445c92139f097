//! The functions of single nodes that can run.

use super::call::{Call, axis};
use super::given::not;
use super::shapes;
use super::value::{Constant, Map, Value};
use tightfit_network::{Activation, Function, Sampling};

/// The function of a node; `None` for an operator that never runs. An error gives the reason why this node cannot run although its operator can.
pub fn of(call: &Call<'_>) -> Result<Option<Function>, String> {
    if !call.given.runs() {
        return Ok(None);
    }
    if let Some(why) = call.given.unlike() {
        return Err(why);
    }
    let number = |name: &str, usual: f32| call.float(name).unwrap_or(usual);
    let activation = match call.operator() {
        "Sigmoid" => Activation::Sigmoid,
        "HardSigmoid" => Activation::HardSigmoid { alpha: number("alpha", 0.2), beta: number("beta", 0.5) },
        "Tanh" => Activation::Tanh,
        "Clip" => Activation::Clip { low: bound(call, 1, "min", f32::MIN)?, high: bound(call, 2, "max", f32::MAX)? },
        "LeakyRelu" => Activation::LeakyRelu { slope: number("alpha", 0.01) },
        "Elu" => Activation::Elu { alpha: number("alpha", 1.0) },
        "HardSwish" => Activation::HardSwish,
        "Swish" => match number("alpha", 1.0) {
            1.0 => Activation::Silu,
            alpha => return Err(not("alpha", &alpha.to_string(), "1")),
        },
        "Gelu" => match call.text("approximate").as_deref() {
            None | Some("" | "none") => Activation::Gelu,
            Some("tanh") => Activation::GeluTanh,
            Some(other) => return Err(not("approximate", other, "`none` or `tanh`")),
        },
        "Softplus" => Activation::Softplus,
        "Mish" => Activation::Mish,
        "Mul" => return product(call).map(Some),
        "LayerNormalization" => return layer_norm(call).map(Some),
        "Transpose" => return transpose(call).map(Some),
        "Resize" => return resize(call).map(Some),
        "Cast" => return Err(not("to", &call.int("to").unwrap_or(0).to_string(), "a type of floating-point numbers")),
        "BatchNormalization" | "LRN" => return Err(call.not_of_samples(call.input(0)?.dims()).unwrap_or_default()),
        _ => return Ok(None),
    };
    activation.check()?;
    Ok(Some(Function::Activation(activation)))
}

/// A bound of a `Clip`: an input or, in older versions, an attribute.
fn bound(call: &Call<'_>, at: usize, name: &str, usual: f32) -> Result<f32, String> {
    match call.optional(at) {
        Some(Value::Constant(constant)) => {
            let known = constant.floats().filter(|all| all.len() == 1).map(|all| all[0] as f32);
            known.ok_or_else(|| format!("input {at} (`{name}`) is not known before the model runs"))
        }
        Some(Value::Map(_)) => Err(format!("input {at} (`{name}`) depends on the samples")),
        None => Ok(call.float(name).unwrap_or(usual)),
    }
}

/// A product of two maps, or of a map and a learned number for each channel.
fn product(call: &Call<'_>) -> Result<Function, String> {
    match (call.input(0)?, call.input(1)?) {
        (Value::Map(left), Value::Map(right)) if left.dims.len() == right.dims.len() => Ok(Function::Multiply),
        (Value::Map(x), Value::Constant(factor)) | (Value::Constant(factor), Value::Map(x))
            if is_per_channel(factor, x) =>
        {
            Ok(Function::Scale)
        }
        (left, right) => {
            let (left, right) = (left.dims(), right.dims());
            Err(format!(
                "its factors of {left:?} and {right:?} are not maps of one shape, or one learned for each channel"
            ))
        }
    }
}

/// Whether these are floating-point numbers with extents (c, 1, 1) for maps of (n, c, h, w), or the equivalent for other ranks.
fn is_per_channel(factor: &Constant, x: &Map) -> bool {
    let Some((first, others)) = factor.dims.split_first() else { return false };
    factor.is_learnable()
        && x.dims.get(1) == Some(first)
        && others.len() + 2 == x.dims.len()
        && others.iter().all(|&extent| extent == 1)
}

/// Normalization along the last axis, with a learned factor and offset for each place.
fn layer_norm(call: &Call<'_>) -> Result<Function, String> {
    let x = call.map(0)?;
    let given = call.int("axis").unwrap_or(-1);
    let along = axis(given, x.dims.len())?;
    if along + 1 != x.dims.len() || along == 0 {
        return Err(not("axis", &given.to_string(), "the last axis"));
    }
    for (at, name) in [(1, "Scale"), (2, "B")] {
        if call.constant(at)?.dims != x.dims[along..] {
            return Err(format!("input {at} (`{name}`) is not one number for each place of the last axis"));
        }
    }
    Ok(Function::LayerNorm { epsilon: call.float("epsilon").unwrap_or(1e-5) })
}

/// An exchange of axes within each sample.
fn transpose(call: &Call<'_>) -> Result<Function, String> {
    let x = call.map(0)?;
    let order = shapes::permutation(call, x.dims.len())?;
    let moved = || not("perm", &format!("{order:?}"), "an order of the axes of samples of three or four");
    let (first, others) = order.split_first().ok_or_else(moved)?;
    // For samples of other ranks, the file names too few or too many extents.
    let fits = *first == 0 && x.dims[0] == call.batch && matches!(others.len(), 3 | 4);
    if !fits {
        return Err(moved());
    }
    Ok(Function::Transpose { order: others.iter().map(|axis| axis - 1).collect() })
}

/// A change of the extents of each channel, as PyTorch exports `interpolate`.
fn resize(call: &Call<'_>) -> Result<Function, String> {
    if call.given.version() < 11 {
        return Err("in version 10 of the operators it does not say where elements are taken from".to_owned());
    }
    let x = call.map(0)?;
    let output = shapes::of(call)?.and_then(|all| all.into_iter().next()).unwrap_or_default();
    let (Some(from), Some(to)) = (x.dims.get(2..), output.get(2..)) else {
        return Err(format!("its input has extents of {:?}", x.dims));
    };
    if let Some(axes) = call.ints("axes") {
        return Err(not("axes", &format!("{axes:?}"), "left out"));
    }
    if x.dims[..2] != output[..2] || x.dims[0] != call.batch || !matches!(from.len(), 2 | 3) {
        return Err(format!("it brings {:?} to {output:?}; only the last two or three extents may change", x.dims));
    }
    // Scales that do not result in whole extents shift the positions.
    let is_whole = |(scale, (from, to)): (&f64, (&usize, &usize))| (*from as f64 * scale - *to as f64).abs() < 1e-6;
    let scales = match call.optional(2) {
        Some(Value::Constant(constant)) => constant.floats().ok_or("its scales are not known before the model runs")?,
        _ => Vec::new(),
    };
    if !scales.iter().zip(x.dims.iter().zip(&output)).all(is_whole) {
        return Err(format!("its scales {scales:?} do not give whole extents"));
    }
    let text = |name: &str| call.text(name).unwrap_or_default();
    let (mode, places, nearest) = (text("mode"), text("coordinate_transformation_mode"), text("nearest_mode"));
    let sampling = match (mode.as_str(), places.as_str()) {
        ("nearest", "asymmetric") if nearest == "floor" => Sampling::Nearest,
        ("linear", "half_pixel") => Sampling::Linear,
        ("linear", "pytorch_half_pixel") if !to.contains(&1) => Sampling::Linear,
        ("linear", "align_corners") => Sampling::LinearAligned,
        _ => {
            let given = format!("`{mode}` at `{places}`, `{nearest}`");
            return Err(not(
                "mode",
                &given,
                "`nearest` at `asymmetric`, `floor`, or `linear` at half pixels or corners",
            ));
        }
    };
    Ok(Function::Resize { sampling, extents: to.to_vec() })
}
