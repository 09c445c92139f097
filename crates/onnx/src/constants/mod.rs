//! Computes values that do not depend on the samples: the shapes that exporters spell out, and weights that the file computes.
//!
//! ```text
//! x -> Shape -> Gather 0 -> Concat [.., -1] -> Reshape      the first extent of x, then the rest in one
//! v -> ReduceL2 --.
//! v ------------ Div -- Mul by g -- Conv                    weight normalization
//! ```
//!
//! An operation is computed only if each of its attributes is known here. Otherwise its result is unknown, and
//! [`Model::weights`](super::Model::weights) reports the reason.
//!
//! `elements`, `arrange`, `reduce` and `quantized` compute groups of operations from their `inputs`; `types` converts between types of elements.

mod arrange;
mod elements;
mod inputs;
mod quantized;
mod reduce;
pub mod types;

use std::rc::Rc;

use super::call::Call;
use super::proto::data_type;
use super::shapes;
use super::value::{Constant, Data, Dims, elements as count};

/// The most elements of a constant that is computed.
pub const MOST_COMPUTED: usize = 1 << 27;

/// The extents of every output of an operation on constants; `None` if they are not known.
pub fn dims(call: &Call<'_>) -> Result<Option<Vec<Dims>>, String> {
    if !call.is_standard() {
        return Ok(None);
    }
    let first = || Ok::<Dims, String>(call.input(0)?.dims().to_vec());
    Ok(Some(vec![match call.operator() {
        "DequantizeLinear" | "QuantizeLinear" | "Trilu" | "EyeLike" | "BatchNormalization" => first()?,
        "MatMul" => reduce::matmul_dims(&first()?, call.input(1)?.dims())?,
        "Gemm" => {
            let turned = |at: usize, name: &str| {
                let dims = call.input(at)?.dims();
                let turns = call.int(name).is_some_and(|turns| turns != 0);
                Ok::<Dims, String>(if turns { dims.iter().rev().copied().collect() } else { dims.to_vec() })
            };
            reduce::matmul_dims(&turned(0, "transA")?, &turned(1, "transB")?)?
        }
        _ => return shapes::of(call),
    }]))
}

/// The outputs of an operation on constants, with these extents. An error gives the reason why they cannot be computed, such as more than `most`
/// elements.
pub fn compute(call: &Call<'_>, outputs: &[Dims], most: usize) -> Result<Vec<Constant>, String> {
    let first = outputs.first().ok_or("it has no outputs")?;
    if let Some(dims) = outputs.iter().find(|dims| count(dims).is_none_or(|count| count > most)) {
        return Err(format!("{dims:?} has more than {most} elements"));
    }
    if !call.is_standard() {
        return Err(format!("the operator of {} is not supported", super::shown::shown(&call.node.domain)));
    }
    let known = attributes(call.operator()).ok_or("the operator is not supported")?;
    if let Some(unlike) = call.given.unlike() {
        return Err(unlike);
    }
    let names = call.node.attribute.iter().map(|attribute| attribute.name.as_str());
    if let Some(name) = names.clone().find(|name| !known.contains(name)) {
        return Err(format!("its attribute {} is not supported", super::shown::shown(name)));
    }
    let input = call.constant(0)?;
    let mut of = elements::of(call)?;
    let data = match call.operator() {
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Identity" => known_data(input)?,
        "Cast" | "CastLike" => types::cast(input, of)?,
        "Concat" => arrange::concat(call)?,
        "Split" => {
            let parts = arrange::split(call, input, outputs)?;
            let all = parts.into_iter().zip(outputs);
            return Ok(all.map(|(data, dims)| Constant { dims: dims.clone(), of, data, origin: None }).collect());
        }
        "Gather" => arrange::gather(call, input, first)?,
        "Slice" => arrange::slice(call, input, first)?,
        "Transpose" => arrange::transpose(call, input, first)?,
        "Expand" => arrange::spread(input, first)?,
        "Tile" => arrange::tile(input, first)?,
        "Pad" => arrange::pad(call, input, first)?,
        "Trilu" => arrange::triangle(call, input)?,
        "EyeLike" => {
            of = call.int("dtype").and_then(|of| i32::try_from(of).ok()).unwrap_or(of);
            let shift = call.int("k").unwrap_or(0);
            let columns = *first.get(1).filter(|_| first.len() == 2).ok_or("its input is not a matrix")?;
            let is_one = |at: usize| (at % columns) as i64 - (at / columns) as i64 == shift;
            let all = (0..first[0] * columns).map(|at| i64::from(is_one(at))).collect();
            types::cast(
                &Constant { dims: first.clone(), of: data_type::INT64, data: Data::Integers(all), origin: None },
                of,
            )?
        }
        "Where" => elements::choose(call, first)?,
        "Clip" => elements::clip(call)?,
        "DequantizeLinear" => quantized::dequantized(call)?,
        "QuantizeLinear" => quantized::quantized(call, of)?,
        "MatMul" => Data::Floats(reduce::matmul(input, call.constant(1)?, most.saturating_mul(8))?),
        "Gemm" => Data::Floats(reduce::gemm(call, first, most.saturating_mul(8))?),
        "BatchNormalization" => reduce::batch_norm(call, input)?,
        "CumSum" => reduce::cumulate(call, input)?,
        operator if operator.starts_with("Reduce") => reduce::reduce(call, input)?,
        _ => elements::apply(call, first)?,
    };
    let data = types::fit(of, data)?;
    let length = match &data {
        Data::Integers(all) => all.len(),
        Data::Floats(all) => all.len(),
        Data::Unknown => 0,
    };
    match count(first) == Some(length) {
        true => Ok(vec![Constant { dims: first.clone(), of, data, origin: None }]),
        false => Err(format!("it results in {length} numbers, which do not fill {first:?}")),
    }
}

/// The attributes that an operation on constants may have; `None` for one that is not computed.
fn attributes(operator: &str) -> Option<&'static [&'static str]> {
    Some(match operator {
        "Reshape" => &["allowzero"],
        "Flatten" | "Concat" | "Gather" => &["axis"],
        "Squeeze" | "Unsqueeze" => &["axes"],
        "Identity" | "Expand" | "Tile" | "Where" | "MatMul" => &[],
        "Cast" | "CastLike" => &["to", "saturate", "round_mode"],
        "Split" => &["axis", "split", "num_outputs"],
        "Slice" => &["starts", "ends", "axes"],
        "Transpose" => &["perm"],
        "Pad" => &["mode", "pads", "value"],
        "Trilu" => &["upper"],
        "EyeLike" => &["dtype", "k"],
        "Clip" => &["min", "max"],
        "DequantizeLinear" => &["axis", "block_size", "output_dtype"],
        "QuantizeLinear" => &["axis", "block_size", "output_dtype", "saturate"],
        "BatchNormalization" => &["epsilon", "momentum", "training_mode"],
        "CumSum" => &["exclusive", "reverse"],
        "ReduceSum" | "ReduceMean" | "ReduceProd" | "ReduceMax" | "ReduceMin" | "ReduceL1" | "ReduceL2"
        | "ReduceSumSquare" | "ReduceLogSum" | "ReduceLogSumExp" => &["axes", "keepdims", "noop_with_empty_axes"],
        "Gemm" => &["alpha", "beta", "transA", "transB"],
        "Mod" => &["fmod"],
        "IsInf" => &["detect_negative", "detect_positive"],
        "HardSigmoid" => &["alpha", "beta"],
        "LeakyRelu" | "Elu" => &["alpha"],
        "Add" | "Sub" | "Mul" | "Div" | "Pow" | "Sum" | "Mean" | "Max" | "Min" | "Neg" | "Abs" | "Sign" | "Floor"
        | "Ceil" | "Round" | "Sqrt" | "Reciprocal" | "Exp" | "Log" | "Erf" | "Sin" | "Cos" | "Tan" | "Asin"
        | "Acos" | "Atan" | "Sinh" | "Cosh" | "Tanh" | "Relu" | "Sigmoid" | "Softplus" | "PRelu" | "Equal" | "Less"
        | "LessOrEqual" | "Greater" | "GreaterOrEqual" | "And" | "Or" | "Xor" | "Not" | "IsNaN" => &[],
        _ => return None,
    })
}

/// The numbers of a `Range`; an error gives the reason why they are unknown.
pub fn range(call: &Call<'_>, most: usize) -> Result<Constant, String> {
    let known = || -> Option<[&Rc<Constant>; 3]> {
        let [start, end, step] = [call.constant(0).ok()?, call.constant(1).ok()?, call.constant(2).ok()?];
        Some([start, end, step]).filter(|all| all.iter().all(|one| one.data != Data::Unknown))
    };
    let unknown = "its bounds are not known before the model runs, or too far apart";
    let bounds = known().ok_or(unknown)?;
    let of = bounds[0].of;
    let number = |at: usize| bounds[at].floats().filter(|all| all.len() == 1).map(|all| all[0]).ok_or(unknown);
    let (start, end, step) = (number(0)?, number(1)?, number(2)?);
    let length = ((end - start) / step).ceil().max(0.0);
    if step == 0.0 || length.is_nan() || length > most as f64 {
        return Err(unknown.to_owned());
    }
    let all = (0..length as usize).map(|at| start + at as f64 * step);
    let data = match bounds[0].data {
        Data::Integers(_) => Data::Integers(all.map(|number| number as i64).collect()),
        _ => Data::Floats(all.collect()),
    };
    Ok(Constant { dims: vec![length as usize], of, data: types::fit(of, data)?, origin: None })
}

fn known_data(input: &Constant) -> Result<Data, String> {
    match &input.data {
        Data::Unknown => Err("its input is not known".to_owned()),
        data => Ok(data.clone()),
    }
}

/// The type of the outputs of an operation on constants, if known.
pub fn type_of(call: &Call<'_>) -> i32 {
    let of = if call.is_standard() { elements::of(call).ok() } else { None };
    of.unwrap_or(data_type::FLOAT)
}
