//! Computes what does not depend on the samples, as far as extents depend on it: shape arithmetic.
//!
//! ```text
//! x -> Shape -> Gather 0 -> Concat [.., -1] -> Reshape          the first extent of x, then the rest in one
//! ```

use super::call::{Call, axis};
use super::shapes::{permutation, slices};
use super::value::{Constant, Data, Dims, MOST_ELEMENTS, Value, broadcast, elements};

/// The elements of a node's first output; unknown if it is none of the operations that shapes are made of, if there are
/// too many elements, or if those of its inputs are unknown.
pub fn fold(call: &Call<'_>, dims: &[usize]) -> Data {
    if elements(dims).is_none_or(|elements| elements > MOST_ELEMENTS) {
        return Data::Unknown;
    }
    let folded = match call.operator() {
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Identity" => first(call).map(|input| input.data.clone()),
        "Cast" | "CastLike" => cast(call),
        "Concat" => concat(call, dims),
        "Gather" => gather(call),
        "Slice" => slice(call),
        "Transpose" => transpose(call, dims),
        "Expand" => first(call).and_then(|input| spread(input, dims)),
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => reduce(call, dims),
        "Where" => choose(call, dims),
        _ => pointwise(call, dims),
    };
    folded.unwrap_or(Data::Unknown)
}

/// The numbers of a `Range`.
pub fn range(call: &Call<'_>) -> Option<Vec<i64>> {
    let one = |at| call.integers_in(at).ok().flatten().filter(|all| all.len() == 1).map(|all| all[0]);
    let (start, end, step) = (one(0)?, one(1)?, one(2)?);
    let mut all = Vec::new();
    let mut number = start;
    while if step > 0 { number < end } else { number > end } {
        if step == 0 || all.len() == MOST_ELEMENTS {
            return None;
        }
        all.push(number);
        number = number.checked_add(step)?;
    }
    Some(all)
}

fn first<'a>(call: &'a Call<'_>) -> Option<&'a Constant> {
    constant(call, 0)
}

fn constant<'a>(call: &'a Call<'_>, at: usize) -> Option<&'a Constant> {
    match call.optional(at)? {
        Value::Constant(constant) => Some(constant),
        Value::Map(_) => None,
    }
}

fn cast(call: &Call<'_>) -> Option<Data> {
    const FLOATS: [i64; 4] = [1, 10, 11, 16];
    let input = first(call)?;
    let to_floats = match (call.int("to"), call.optional(1)) {
        (Some(to), _) => FLOATS.contains(&to),
        (None, Some(Value::Constant(like))) => !matches!(like.data, Data::Integers(_)),
        (None, _) => true,
    };
    Some(if to_floats { Data::Floats(input.floats()?) } else { Data::Integers(input.integers()?) })
}

/// Joins the parts of lists; of tensors only along their first axis.
fn concat(call: &Call<'_>, dims: &[usize]) -> Option<Data> {
    if axis(call.int("axis")?, dims.len()).ok()? != 0 {
        return None;
    }
    let parts = call.constants().collect::<Vec<_>>();
    if parts.iter().all(|part| matches!(part.data, Data::Integers(_))) {
        return Some(Data::Integers(parts.iter().filter_map(|part| part.integers()).flatten().collect()));
    }
    let floats: Option<Vec<Vec<f64>>> = parts.iter().map(|part| part.floats()).collect();
    Some(Data::Floats(floats?.concat()))
}

/// Picks elements of a list.
fn gather(call: &Call<'_>) -> Option<Data> {
    let input = first(call)?;
    if input.dims.len() != 1 {
        return None;
    }
    let places = constant(call, 1)?.integers()?;
    pick(&input.data, places.iter().map(|&place| axis(place, input.dims[0]).ok()))
}

/// Cuts a list.
fn slice(call: &Call<'_>) -> Option<Data> {
    let input = first(call)?;
    let cuts = slices(call, &input.dims).ok()?;
    let [(0, start, end, step)] = cuts[..] else { return None };
    if input.dims.len() != 1 {
        return None;
    }
    let mut places = Vec::new();
    let mut place = start;
    while if step > 0 { place < end } else { place > end } {
        places.push(usize::try_from(place).ok());
        place += step;
    }
    pick(&input.data, places.into_iter())
}

fn pick(data: &Data, mut places: impl Iterator<Item = Option<usize>>) -> Option<Data> {
    match data {
        Data::Unknown => None,
        Data::Integers(all) => places
            .try_fold(Vec::new(), |mut picked, place| {
                picked.push(*all.get(place?)?);
                Some(picked)
            })
            .map(Data::Integers),
        Data::Floats(all) => places
            .try_fold(Vec::new(), |mut picked, place| {
                picked.push(*all.get(place?)?);
                Some(picked)
            })
            .map(Data::Floats),
    }
}

fn transpose(call: &Call<'_>, dims: &[usize]) -> Option<Data> {
    let input = first(call)?;
    let order = permutation(call, input.dims.len()).ok()?;
    let steps = strides(&input.dims);
    let places = (0..elements(dims)?).map(|at| {
        let places = places(at, dims);
        Some(order.iter().zip(places).map(|(axis, place)| steps[*axis] * place).sum())
    });
    pick(&input.data, places)
}

/// Elements between neighbors along each axis.
fn strides(dims: &[usize]) -> Vec<usize> {
    (0..dims.len()).map(|at| dims[at + 1..].iter().product()).collect()
}

/// The place of an element along each axis.
fn places(at: usize, dims: &[usize]) -> Vec<usize> {
    strides(dims).iter().zip(dims).map(|(step, dim)| at / step % dim).collect()
}

/// A constant stretched to these extents.
fn spread(input: &Constant, dims: &[usize]) -> Option<Data> {
    let skipped = dims.len().checked_sub(input.dims.len())?;
    let steps = strides(&input.dims);
    let places = (0..elements(dims)?).map(|at| {
        let places = places(at, dims);
        let own = input.dims.iter().zip(&steps).zip(&places[skipped..]);
        Some(own.map(|((dim, step), place)| if *dim == 1 { 0 } else { step * place }).sum())
    });
    pick(&input.data, places)
}

fn reduce(call: &Call<'_>, dims: &[usize]) -> Option<Data> {
    if elements(dims)? != 1 {
        return None;
    }
    let all = first(call)?.integers()?;
    let result = match call.operator() {
        "ReduceProd" => all.iter().try_fold(1i64, |product, number| product.checked_mul(*number)),
        "ReduceSum" => all.iter().try_fold(0i64, |sum, number| sum.checked_add(*number)),
        "ReduceMax" => all.iter().copied().max(),
        _ => all.iter().copied().min(),
    };
    result.map(|number| Data::Integers(vec![number]))
}

fn choose(call: &Call<'_>, dims: &[usize]) -> Option<Data> {
    let part = |at| match spread(constant(call, at)?, dims)? {
        Data::Integers(all) => Some(all),
        Data::Floats(_) | Data::Unknown => None,
    };
    let (which, yes, no) = (part(0)?, part(1)?, part(2)?);
    let chosen = which.iter().zip(yes.iter().zip(no)).map(|(which, (yes, no))| if *which != 0 { *yes } else { no });
    Some(Data::Integers(chosen.collect()))
}

/// Arithmetic on known numbers; whole numbers stay whole, and an overflow makes the result unknown.
fn pointwise(call: &Call<'_>, dims: &[usize]) -> Option<Data> {
    let inputs: Vec<&Constant> = call.constants().collect();
    let matching: Dims = broadcast(inputs.iter().map(|input| input.dims.as_slice())).ok()?;
    if matching != dims || inputs.is_empty() {
        return None;
    }
    let parts: Vec<Data> = inputs.iter().map(|input| spread(input, dims)).collect::<Option<_>>()?;
    let integers: Option<Vec<&Vec<i64>>> = parts
        .iter()
        .map(|part| match part {
            Data::Integers(all) => Some(all),
            _ => None,
        })
        .collect();
    let count = elements(dims)?;
    if let Some(parts) = integers {
        let mut results = Vec::new();
        for at in 0..count {
            results.push(match parts[..] {
                [x] => unary_integer(call.operator(), x[at])?,
                [x, y] => binary_integer(call.operator(), x[at], y[at])?,
                _ => return None,
            });
        }
        return Some(Data::Integers(results));
    }
    let floats: Vec<Vec<f64>> = parts
        .into_iter()
        .map(|part| match part {
            Data::Floats(all) => Some(all),
            Data::Integers(all) => Some(all.iter().map(|&number| number as f64).collect()),
            Data::Unknown => None,
        })
        .collect::<Option<_>>()?;
    let mut results = Vec::new();
    for at in 0..count {
        results.push(match &floats[..] {
            [x] => unary_float(call.operator(), x[at])?,
            [x, y] => binary_float(call.operator(), x[at], y[at])?,
            _ => return None,
        });
    }
    Some(Data::Floats(results))
}

fn unary_integer(operator: &str, x: i64) -> Option<i64> {
    match operator {
        "Neg" => x.checked_neg(),
        "Abs" => x.checked_abs(),
        "Floor" | "Ceil" | "Round" => Some(x),
        "Not" => Some(i64::from(x == 0)),
        _ => None,
    }
}

fn binary_integer(operator: &str, x: i64, y: i64) -> Option<i64> {
    match operator {
        "Add" => x.checked_add(y),
        "Sub" => x.checked_sub(y),
        "Mul" => x.checked_mul(y),
        "Div" => x.checked_div(y),
        "Mod" => x.checked_rem_euclid(y),
        "Max" => Some(x.max(y)),
        "Min" => Some(x.min(y)),
        "Equal" => Some(i64::from(x == y)),
        "Less" => Some(i64::from(x < y)),
        "Greater" => Some(i64::from(x > y)),
        "And" => Some(i64::from(x != 0 && y != 0)),
        "Or" => Some(i64::from(x != 0 || y != 0)),
        _ => None,
    }
}

fn unary_float(operator: &str, x: f64) -> Option<f64> {
    match operator {
        "Neg" => Some(-x),
        "Floor" => Some(x.floor()),
        "Ceil" => Some(x.ceil()),
        "Round" => Some(x.round_ties_even()),
        "Sqrt" => Some(x.sqrt()),
        _ => None,
    }
}

fn binary_float(operator: &str, x: f64, y: f64) -> Option<f64> {
    match operator {
        "Add" => Some(x + y),
        "Sub" => Some(x - y),
        "Mul" => Some(x * y),
        "Div" => Some(x / y),
        "Max" => Some(x.max(y)),
        "Min" => Some(x.min(y)),
        "Pow" => Some(x.powf(y)),
        _ => None,
    }
}
