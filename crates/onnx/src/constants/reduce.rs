//! Operations that combine elements: reductions, products of matrices, normalization.

use super::arrange::{Walk, pick, spread, strides};
use crate::call::{Call, axis};
use crate::shapes::reduced_axes;
use crate::value::{Constant, Data, Dims, broadcast};

/// Combines the elements along some axes.
pub fn reduce(call: &Call<'_>, input: &Constant) -> Result<Data, String> {
    let rank = input.dims.len();
    let along = reduced_axes(call, rank)?;
    if along.is_empty() && call.int("noop_with_empty_axes") == Some(1) {
        return Ok(input.data.clone());
    }
    // The kept axes come first, then the reduced axes, so that the elements of each result are adjacent.
    let order: Vec<usize> =
        (0..rank).filter(|at| !along.contains(at)).chain((0..rank).filter(|at| along.contains(at))).collect();
    let own = strides(&input.dims);
    let dims: Dims = order.iter().map(|&at| input.dims[at]).collect();
    let sorted = pick(&input.data, Walk::new(&dims, order.iter().map(|&at| own[at]).collect(), 0))?;
    let together: usize = along.iter().map(|&at| input.dims[at]).product();
    if together == 0 {
        return Err("it reduces no elements".to_owned());
    }
    let unknown = || format!("`{}` of whole numbers has no result, or one that is too large", call.operator());
    match sorted {
        Data::Unknown => Err("its input is not known".to_owned()),
        Data::Integers(all) => {
            let results = all.chunks_exact(together).map(|all| whole(call.operator(), all));
            results.collect::<Option<_>>().map(Data::Integers).ok_or_else(unknown)
        }
        Data::Floats(all) => {
            let results = all.chunks_exact(together).map(|all| floating(call.operator(), all));
            let none = || format!("the operator `{}` is not supported", call.operator());
            results.collect::<Option<_>>().map(Data::Floats).ok_or_else(none)
        }
    }
}

fn whole(operator: &str, all: &[i64]) -> Option<i64> {
    let sum = |one: fn(i64) -> Option<i64>| all.iter().try_fold(0i64, |sum, &x| sum.checked_add(one(x)?));
    match operator {
        "ReduceProd" => all.iter().try_fold(1i64, |product, &x| product.checked_mul(x)),
        "ReduceSum" => sum(Some),
        "ReduceL1" => sum(i64::checked_abs),
        "ReduceSumSquare" => sum(|x| x.checked_mul(x)),
        "ReduceMax" => all.iter().copied().max(),
        "ReduceMin" => all.iter().copied().min(),
        _ => None,
    }
}

fn floating(operator: &str, all: &[f64]) -> Option<f64> {
    let sum = |one: fn(f64) -> f64| all.iter().map(|&x| one(x)).sum::<f64>();
    let either = |x: f64, y: f64, chosen: f64| if x.is_nan() || y.is_nan() { f64::NAN } else { chosen };
    Some(match operator {
        "ReduceProd" => all.iter().product(),
        "ReduceSum" => sum(|x| x),
        "ReduceMean" => sum(|x| x) / all.len() as f64,
        "ReduceL1" => sum(f64::abs),
        "ReduceL2" => sum(|x| x * x).sqrt(),
        "ReduceSumSquare" => sum(|x| x * x),
        "ReduceLogSum" => sum(|x| x).ln(),
        "ReduceLogSumExp" => sum(f64::exp).ln(),
        "ReduceMax" => all.iter().copied().reduce(|x, y| either(x, y, x.max(y)))?,
        "ReduceMin" => all.iter().copied().reduce(|x, y| either(x, y, x.min(y)))?,
        _ => return None,
    })
}

/// Cumulative sums along an axis.
pub fn cumulate(call: &Call<'_>, input: &Constant) -> Result<Data, String> {
    if call.int("exclusive").unwrap_or(0) != 0 || call.int("reverse").unwrap_or(0) != 0 {
        return Err("sums that leave out elements or go backward are not supported".to_owned());
    }
    let along = axis(super::inputs::number(call, 1)? as i64, input.dims.len())?;
    let step = strides(&input.dims)[along] as usize;
    let first = |at: usize| (at / step).is_multiple_of(input.dims[along]);
    match &input.data {
        Data::Unknown => Err("its input is not known".to_owned()),
        Data::Integers(all) => {
            let mut all = all.clone();
            for at in (0..all.len()).filter(|&at| !first(at)) {
                all[at] = all[at].checked_add(all[at - step]).ok_or("a sum is too large")?;
            }
            Ok(Data::Integers(all))
        }
        Data::Floats(all) => {
            let mut all = all.clone();
            for at in (0..all.len()).filter(|&at| !first(at)) {
                all[at] += all[at - step];
            }
            Ok(Data::Floats(all))
        }
    }
}

/// The extents of two factors, with vectors as matrices, and of their product.
fn product_dims(a: &[usize], b: &[usize]) -> Result<[Dims; 3], String> {
    let wrong = || format!("{a:?} and {b:?} cannot be multiplied");
    let left = if a.len() == 1 { vec![1, a[0]] } else { a.to_vec() };
    let right = if b.len() == 1 { vec![b[0], 1] } else { b.to_vec() };
    let ([outer_a @ .., rows, depth], [outer_b @ .., inner, columns]) = (&left[..], &right[..]) else {
        return Err(wrong());
    };
    if depth != inner {
        return Err(wrong());
    }
    let mut dims = broadcast([outer_a, outer_b])?;
    dims.extend([*rows, *columns]);
    Ok([left, right, dims])
}

/// The extents of a `MatMul`.
pub fn matmul_dims(a: &[usize], b: &[usize]) -> Result<Dims, String> {
    let [_, _, mut dims] = product_dims(a, b)?;
    if b.len() == 1 {
        dims.pop();
    }
    if a.len() == 1 {
        dims.remove(dims.len() + usize::from(b.len() == 1) - 2);
    }
    Ok(dims)
}

/// The product of two stacks of matrices.
pub fn matmul(a: &Constant, b: &Constant, most: usize) -> Result<Vec<f64>, String> {
    let [left, right, dims] = product_dims(&a.dims, &b.dims)?;
    let unknown = || "its input is not known".to_owned();
    let (x, y) = (a.floats().ok_or_else(unknown)?, b.floats().ok_or_else(unknown)?);
    let ([outer @ .., rows, columns], depth) = (&dims[..], left[left.len() - 1]) else { return Err(unknown()) };
    let stack: usize = outer.iter().product();
    if [stack, *rows, *columns, depth]
        .iter()
        .try_fold(1usize, |all, dim| all.checked_mul(*dim))
        .is_none_or(|all| all > most)
    {
        return Err(format!("a product of {:?} and {:?} is too large", a.dims, b.dims));
    }
    let places = |own: &[usize], size: usize| -> Vec<usize> {
        let own = &own[..own.len() - 2];
        let mut steps = vec![0; outer.len() - own.len()];
        steps.extend(own.iter().zip(strides(own)).map(|(dim, step)| if *dim == 1 { 0 } else { step * size as isize }));
        Walk::new(outer, steps, 0).collect()
    };
    let (lefts, rights) = (places(&left, rows * depth), places(&right, depth * columns));
    let mut all = Vec::with_capacity(stack * rows * columns);
    for (left, right) in lefts.into_iter().zip(rights) {
        for row in x[left..].chunks(depth.max(1)).take(*rows) {
            let mut sums = vec![0.0; *columns];
            for (x, line) in row.iter().zip(y[right..].chunks(columns.max(&1).to_owned())) {
                sums.iter_mut().zip(line).for_each(|(sum, y)| *sum += x * y);
            }
            all.extend(sums);
        }
    }
    Ok(all)
}

/// alpha · A · B + beta · C, where A and B may be transposed.
pub fn gemm(call: &Call<'_>, dims: &[usize], most: usize) -> Result<Vec<f64>, String> {
    let turned = |at: usize, name: &str| -> Result<Constant, String> {
        let input = call.constant(at)?;
        let [rows, columns] = input.dims[..] else { return Err(format!("{:?} is not a matrix", input.dims)) };
        if call.int(name).is_none_or(|turns| turns == 0) {
            return Ok((**input).clone());
        }
        let dims = vec![columns, rows];
        let data = pick(&input.data, Walk::new(&dims, vec![1, columns as isize], 0))?;
        Ok(Constant { data, dims: dims.clone(), ..(**input).clone() })
    };
    let factor = |name: &str| f64::from(call.float(name).unwrap_or(1.0));
    let mut all = matmul(&turned(0, "transA")?, &turned(1, "transB")?, most)?;
    all.iter_mut().for_each(|x| *x *= factor("alpha"));
    if call.optional(2).is_some() {
        let more = Constant { data: spread(call.constant(2)?, dims)?, ..(**call.constant(2)?).clone() };
        let more = more.floats().ok_or("its input is not known")?;
        all.iter_mut().zip(more).for_each(|(x, more)| *x += factor("beta") * more);
    }
    Ok(all)
}

/// Batch normalization in either form: `training_mode` takes the statistics from its input.
pub fn batch_norm(call: &Call<'_>, input: &Constant) -> Result<Data, String> {
    let unknown = || "its input is not known".to_owned();
    let mut all = input.floats().ok_or_else(unknown)?;
    let numbers = |at: usize| call.constant(at).and_then(|constant| constant.floats().ok_or_else(unknown));
    let (scales, shifts) = (numbers(1)?, numbers(2)?);
    let channels = *input.dims.get(1).ok_or("its input has no channels")?;
    let positions: usize = input.dims[2..].iter().product();
    let trains = call.int("training_mode").unwrap_or(0) != 0;
    let (mut means, mut variances) = (numbers(3)?, numbers(4)?);
    let epsilon = f64::from(call.float("epsilon").unwrap_or(1e-5));
    if [&scales, &shifts, &means, &variances].iter().any(|all| all.len() != channels) || channels * positions == 0 {
        return Err(format!("statistics that do not match {channels} channels"));
    }
    let channel = |at: usize| at / positions % channels;
    if trains {
        let count = (all.len() / channels) as f64;
        (means, variances) = (vec![0.0; channels], vec![0.0; channels]);
        all.iter().enumerate().for_each(|(at, x)| means[channel(at)] += x / count);
        all.iter().enumerate().for_each(|(at, x)| variances[channel(at)] += (x - means[channel(at)]).powi(2) / count);
    }
    for (at, x) in all.iter_mut().enumerate() {
        let c = channel(at);
        *x = (*x - means[c]) / (variances[c] + epsilon).sqrt() * scales[c] + shifts[c];
    }
    Ok(Data::Floats(all))
}
