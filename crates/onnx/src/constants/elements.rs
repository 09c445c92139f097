//! Operations on each element.

use super::arrange::spread;
use super::inputs::inputs;
use crate::call::Call;
use crate::proto::data_type;
use crate::value::{Constant, Data};
use tightfit_network::Activation;

/// Whether the result is a truth value for any type of inputs.
pub fn gives_truth(operator: &str) -> bool {
    let all =
        ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"];
    all.contains(&operator)
}

/// One of the operations below on all inputs, each broadcast to these extents.
pub fn apply(call: &Call<'_>, dims: &[usize]) -> Result<Data, String> {
    let inputs = inputs(call)?;
    let operator = call.operator();
    let parts = inputs.iter().map(|input| spread(input, dims)).collect::<Result<Vec<Data>, String>>()?;
    let whole: Option<Vec<&Vec<i64>>> = parts
        .iter()
        .map(|part| match part {
            Data::Integers(all) => Some(all),
            _ => None,
        })
        .collect();
    if let Some(parts) = whole {
        let overflow = || format!("`{operator}` of whole numbers has no result, or one that is too large");
        let (first, others) = parts.split_first().ok_or("it has no inputs")?;
        let results = first.iter().enumerate().map(|(at, &first)| match others {
            [] => whole_of_one(call, first),
            others => others.iter().try_fold(first, |sum, other| whole_of_two(call, sum, other[at])),
        });
        return results.collect::<Option<_>>().map(Data::Integers).ok_or_else(overflow);
    }
    let floats =
        inputs.iter().zip(&parts).map(|(input, part)| Constant { data: part.clone(), ..(*input).clone() }.floats());
    let floats: Vec<Vec<f64>> = floats.collect::<Option<_>>().ok_or("its input is not known")?;
    let (first, others) = floats.split_first().ok_or("it has no inputs")?;
    let none = || format!("`{operator}` of floating-point numbers is not supported here");
    if gives_truth(operator) {
        let results = first.iter().enumerate().map(|(at, &first)| match others {
            [] => truth_of_one(call, first),
            [other] => truth_of_two(operator, first, other[at]),
            _ => None,
        });
        return results.map(|truth| truth.map(i64::from)).collect::<Option<_>>().map(Data::Integers).ok_or_else(none);
    }
    let count = floats.len() as f64;
    let results = first.iter().enumerate().map(|(at, &first)| match others {
        [] => of_one(call, first),
        others => {
            let folded = others.iter().try_fold(first, |sum, other| of_two(call, sum, other[at]));
            folded.map(|sum| if operator == "Mean" { sum / count } else { sum })
        }
    });
    results.collect::<Option<_>>().map(Data::Floats).ok_or_else(none)
}

/// The elements of the second input at positions where the first is true, otherwise of the third.
pub fn choose(call: &Call<'_>, dims: &[usize]) -> Result<Data, String> {
    let part = |at| spread(call.constant(at)?, dims);
    let Data::Integers(which) = part(0)? else { return Err("its condition is not known".to_owned()) };
    fn chosen<T: Copy>(which: &[i64], yes: &[T], no: &[T]) -> Vec<T> {
        which.iter().zip(yes.iter().zip(no)).map(|(which, (yes, no))| if *which != 0 { *yes } else { *no }).collect()
    }
    match (part(1)?, part(2)?) {
        (Data::Integers(yes), Data::Integers(no)) => Ok(Data::Integers(chosen(&which, &yes, &no))),
        (Data::Floats(yes), Data::Floats(no)) => Ok(Data::Floats(chosen(&which, &yes, &no))),
        _ => Err("its input is not known".to_owned()),
    }
}

/// Keeps each element within two bounds, which are inputs or attributes.
pub fn clip(call: &Call<'_>) -> Result<Data, String> {
    let input = call.constant(0)?;
    let bound = |at: usize, name: &str| match call.optional(at) {
        Some(_) => super::inputs::number(call, at).map(Some),
        None => Ok(call.float(name).map(f64::from)),
    };
    let (low, high) = (bound(1, "min")?, bound(2, "max")?);
    let (low, high) = (low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY));
    match &input.data {
        Data::Unknown => Err("its input is not known".to_owned()),
        Data::Integers(all) => {
            Ok(Data::Integers(all.iter().map(|&number| number.max(low as i64).min(high as i64)).collect()))
        }
        Data::Floats(all) => Ok(Data::Floats(all.iter().map(|number| number.max(low).min(high)).collect())),
    }
}

fn whole_of_one(call: &Call<'_>, x: i64) -> Option<i64> {
    match call.operator() {
        "Neg" => x.checked_neg(),
        "Abs" => x.checked_abs(),
        "Sign" => Some(x.signum()),
        "Floor" | "Ceil" | "Round" | "Sum" | "Max" | "Min" => Some(x),
        "Not" => Some(i64::from(x == 0)),
        _ => None,
    }
}

fn whole_of_two(call: &Call<'_>, x: i64, y: i64) -> Option<i64> {
    match call.operator() {
        "Add" | "Sum" => x.checked_add(y),
        "Sub" => x.checked_sub(y),
        "Mul" => x.checked_mul(y),
        "Div" => x.checked_div(y),
        // The remainder has the sign of the divisor; with `fmod`, the sign of the number.
        "Mod" if call.int("fmod") == Some(1) => x.checked_rem(y),
        "Mod" => x.checked_rem(y).map(|rest| if rest != 0 && (rest < 0) != (y < 0) { rest + y } else { rest }),
        "Max" => Some(x.max(y)),
        "Min" => Some(x.min(y)),
        "Pow" => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
        "Equal" => Some(i64::from(x == y)),
        "Less" => Some(i64::from(x < y)),
        "LessOrEqual" => Some(i64::from(x <= y)),
        "Greater" => Some(i64::from(x > y)),
        "GreaterOrEqual" => Some(i64::from(x >= y)),
        "And" => Some(i64::from(x != 0 && y != 0)),
        "Or" => Some(i64::from(x != 0 || y != 0)),
        "Xor" => Some(i64::from((x != 0) != (y != 0))),
        _ => None,
    }
}

fn truth_of_one(call: &Call<'_>, x: f64) -> Option<bool> {
    let detects = |name: &str| call.int(name) != Some(0);
    match call.operator() {
        "IsNaN" => Some(x.is_nan()),
        "IsInf" => Some(
            x == f64::INFINITY && detects("detect_positive") || x == f64::NEG_INFINITY && detects("detect_negative"),
        ),
        _ => None,
    }
}

fn truth_of_two(operator: &str, x: f64, y: f64) -> Option<bool> {
    match operator {
        "Equal" => Some(x == y),
        "Less" => Some(x < y),
        "LessOrEqual" => Some(x <= y),
        "Greater" => Some(x > y),
        "GreaterOrEqual" => Some(x >= y),
        _ => None,
    }
}

fn of_one(call: &Call<'_>, x: f64) -> Option<f64> {
    let number = |name: &str, usual: f32| f64::from(call.float(name).unwrap_or(usual));
    Some(match call.operator() {
        "Neg" => -x,
        "Abs" => x.abs(),
        "Sign" if x == 0.0 => 0.0,
        "Sign" => x.signum(),
        "Floor" => x.floor(),
        "Ceil" => x.ceil(),
        "Round" => x.round_ties_even(),
        "Sqrt" => x.sqrt(),
        "Reciprocal" => x.recip(),
        "Exp" => x.exp(),
        "Log" => x.ln(),
        "Erf" => tightfit_network::erf(x),
        "Sin" => x.sin(),
        "Cos" => x.cos(),
        "Tan" => x.tan(),
        "Asin" => x.asin(),
        "Acos" => x.acos(),
        "Atan" => x.atan(),
        "Sinh" => x.sinh(),
        "Cosh" => x.cosh(),
        "Tanh" => x.tanh(),
        "Relu" => x.max(0.0),
        "Sigmoid" => Activation::Sigmoid.value(x),
        "Softplus" => Activation::Softplus.value(x),
        "HardSigmoid" => (number("alpha", 0.2) * x + number("beta", 0.5)).clamp(0.0, 1.0),
        "LeakyRelu" if x < 0.0 => x * number("alpha", 0.01),
        "LeakyRelu" | "Sum" | "Mean" | "Max" | "Min" => x,
        "Elu" if x < 0.0 => number("alpha", 1.0) * x.exp_m1(),
        "Elu" => x,
        _ => return None,
    })
}

fn of_two(call: &Call<'_>, x: f64, y: f64) -> Option<f64> {
    // Unlike Rust's functions, these propagate NaN.
    let either = |chosen: f64| if x.is_nan() || y.is_nan() { f64::NAN } else { chosen };
    Some(match call.operator() {
        "Add" | "Sum" | "Mean" => x + y,
        "Sub" => x - y,
        "Mul" => x * y,
        "Div" => x / y,
        "Max" => either(x.max(y)),
        "Min" => either(x.min(y)),
        "Pow" => x.powf(y),
        "Mod" if call.int("fmod") == Some(1) => x % y,
        "PRelu" => {
            if x < 0.0 {
                x * y
            } else {
                x
            }
        }
        _ => return None,
    })
}

/// The type of the result of an operation on elements.
pub fn of(call: &Call<'_>) -> Result<i32, String> {
    let typed = |at: usize| call.constant(at).map(|input| input.of);
    let stated = |name: &str| call.int(name).and_then(|of| i32::try_from(of).ok()).filter(|of| *of != 0);
    Ok(match call.operator() {
        operator if gives_truth(operator) => data_type::BOOL,
        "Where" => typed(1)?,
        "Cast" => stated("to").ok_or("its type is missing")?,
        // A type that only the samples have: numbers go through it nearly unchanged.
        "CastLike" => typed(1).unwrap_or(data_type::FLOAT),
        "DequantizeLinear" => stated("output_dtype").map_or_else(|| typed(1), Ok)?,
        "QuantizeLinear" => match (call.optional(2), stated("output_dtype")) {
            (Some(_), _) => typed(2)?,
            (None, Some(of)) => of,
            (None, None) => data_type::UINT8,
        },
        _ => typed(0)?,
    })
}
