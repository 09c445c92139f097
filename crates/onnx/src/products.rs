//! Matrix products: a vector times a learned matrix is a fully connected layer; others are only planned.

use super::call::Call;
use super::given::not;
use super::layers::{Layers, name_of};
use super::slots::Slot;
use super::value::{Constant, Dims, Map, Value, broadcast, elements};
use tightfit_network::{Function, LayerKind};

/// The transpose of the rows and columns of a constant.
fn turned(constant: &Constant) -> Option<Value> {
    use super::value::{Data, Order};
    let mut origin = constant.origin.clone()?;
    origin.order = match origin.order {
        Order::Same => Order::Transposed,
        Order::Transposed => Order::Same,
    };
    let dims = constant.dims.iter().rev().copied().collect();
    Some(Value::Constant(Constant { dims, of: constant.of, data: Data::Unknown, origin: Some(origin) }.into()))
}

/// A · B + C, with factors and transpositions.
pub fn gemm(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let turns = |name: &str| call.int(name).is_some_and(|turn| turn != 0);
    let (a, b) = (call.input(0)?, call.input(1)?);
    let matrix = |dims: &[usize], turn: bool| match (dims, turn) {
        ([rows, columns], false) | ([columns, rows], true) => Ok([*rows, *columns]),
        _ => Err(format!("{dims:?} is not a matrix")),
    };
    let ([rows, depth], [inner, columns]) = (matrix(a.dims(), turns("transA"))?, matrix(b.dims(), turns("transB"))?);
    if depth != inner {
        return Err(format!("{:?} and {:?} cannot be multiplied", a.dims(), b.dims()));
    }
    let factor = |name: &str| call.float(name).unwrap_or(1.0);
    let has_bias = call.optional(2).is_some();
    let unlike = [
        (turns("transA"), "transA", "1", "0"),
        (factor("alpha") != 1.0, "alpha", &factor("alpha").to_string(), "1"),
        (has_bias && factor("beta") != 1.0, "beta", &factor("beta").to_string(), "1"),
    ];
    let unlike =
        unlike.into_iter().find(|(differs, ..)| *differs).map(|(_, name, value, usual)| not(name, value, usual));
    let why = unlike.or_else(|| call.not_of_samples(&[rows, columns])).or_else(|| {
        let bias = call.optional(2).filter(|_| !is_bias(call.optional(2), columns))?;
        Some(format!("input 2 of {:?} is not one constant for each of {columns} outputs", bias.dims()))
    });
    match (a, b) {
        (Value::Map(x), Value::Constant(matrix)) if why.is_none() => {
            let matrix = if turns("transB") { Some(b.clone()) } else { turned(matrix) };
            connected(call, layers, x, (matrix.as_ref(), call.optional(2)), columns, vec![rows, columns])
        }
        (Value::Map(_), Value::Constant(_)) => {
            let why = why.unwrap_or_default();
            product(call, layers, vec![rows, columns], depth, &why)
        }
        _ => product(call, layers, vec![rows, columns], depth, "input 1 is not a constant"),
    }
}

/// Whether this is one number per output, or nothing.
fn is_bias(value: Option<&Value>, outputs: usize) -> bool {
    match value {
        None => true,
        Some(Value::Constant(bias)) => elements(&bias.dims) == Some(outputs) && bias.dims.last() == Some(&outputs),
        Some(Value::Map(_)) => false,
    }
}

/// A product over the last axes; `bias` is added by the only node that reads the product.
pub fn matmul(call: &Call<'_>, bias: Option<&Value>, layers: &mut Layers) -> Result<Value, String> {
    let (a, b) = (call.input(0)?.dims(), call.input(1)?.dims());
    // A vector is a row on the left and a column on the right.
    let (left, right) =
        (if a.len() == 1 { vec![1, a[0]] } else { a.to_vec() }, if b.len() == 1 { vec![b[0], 1] } else { b.to_vec() });
    let ([outer_a @ .., rows, depth], [outer_b @ .., inner, columns]) = (&left[..], &right[..]) else {
        return Err(format!("{a:?} and {b:?} cannot be multiplied"));
    };
    if depth != inner {
        return Err(format!("{a:?} and {b:?} cannot be multiplied"));
    }
    let mut dims: Dims = broadcast([outer_a, outer_b])?;
    dims.extend((a.len() > 1).then_some(*rows));
    dims.extend((b.len() > 1).then_some(*columns));
    if let (Value::Map(x), Value::Constant(matrix), 2, 2) = (call.input(0)?, call.input(1)?, a.len(), b.len())
        && is_bias(bias, *columns)
        && call.is_of_samples(a)
    {
        return connected(call, layers, x, (turned(matrix).as_ref(), bias), *columns, dims);
    }
    let depth = *depth;
    let more = match bias {
        Some(Value::Constant(bias)) => bias.parameters(),
        _ => 0,
    };
    let x_dims = a.len();
    let is_linear = matches!((call.input(0)?, call.input(1)?), (Value::Map(_), Value::Constant(_)))
        && b.len() == 2
        && (3..=5).contains(&x_dims)
        && dims.first() == Some(&call.batch)
        && is_bias(bias, *columns);
    let function = is_linear.then_some(Function::Linear { outputs: *columns, bias: bias.is_some() });
    let value = product_with(call, layers, dims, depth, more, function)?;
    let matrix = call.constant(1).ok().and_then(|matrix| turned(matrix));
    layers.learn_function(&value, [(Slot::Weight, matrix.as_ref()), (Slot::Bias, bias)]);
    Ok(value)
}

fn connected(
    call: &Call<'_>,
    layers: &mut Layers,
    x: &Map,
    (matrix, bias): (Option<&Value>, Option<&Value>),
    outputs: usize,
    dims: Dims,
) -> Result<Value, String> {
    let name = name_of(call);
    let kind = LayerKind::FullyConnected { outputs, bias: bias.is_some() };
    let layer = layers.add(&name, kind, &[x.layer])?;
    layers.learn(layer, [(Slot::Weight, matrix), (Slot::Bias, bias)]);
    layers.view(&name, &Map { layer, dims: dims.clone() }, dims)
}

fn product(call: &Call<'_>, layers: &mut Layers, dims: Dims, depth: usize, why: &str) -> Result<Value, String> {
    let value = product_with(call, layers, dims, depth, 0, None)?;
    if let Value::Map(map) = &value {
        layers.cannot_run(map.layer, why.to_owned());
    }
    Ok(value)
}

fn product_with(
    call: &Call<'_>,
    layers: &mut Layers,
    dims: Dims,
    depth: usize,
    more: usize,
    function: Option<Function>,
) -> Result<Value, String> {
    let all = elements(&dims).and_then(|all| all.checked_mul(depth)).ok_or("too many elements")?;
    let per_sample = (all / call.batch) as u64;
    layers.other(call, dims, |other| {
        other.reads_inputs = true;
        other.multiply_adds = per_sample.min(1 << 60);
        other.parameters = other.parameters.saturating_add(more);
        other.function = function;
    })
}
