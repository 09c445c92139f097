//! Computes the extents of an operation's outputs from the extents of its inputs and from constants.

use super::call::{Call, axes, axis, extent};
use super::value::{Dims, broadcast, elements};

/// The extents of every output of an operation that is neither a product nor a window; `None` for an unknown operator.
pub fn of(call: &Call<'_>) -> Result<Option<Vec<Dims>>, String> {
    let first = || Ok::<&[usize], String>(call.input(0)?.dims());
    let one = |dims: Dims| Ok(Some(vec![dims]));
    if !call.is_standard() {
        return Ok(None);
    }
    match call.operator() {
        operator if super::pointwise::of(operator).is_some() => {
            one(broadcast(call.inputs.iter().take(pointwise_inputs(operator)).flatten().map(|input| input.dims()))?)
        }
        "Softmax"
        | "LogSoftmax"
        | "Hardmax"
        | "LpNormalization"
        | "MeanVarianceNormalization"
        | "CumSum"
        | "RandomUniformLike"
        | "RandomNormalLike"
        | "Bernoulli" => one(first()?.to_vec()),
        "LayerNormalization"
        | "GroupNormalization"
        | "InstanceNormalization"
        | "RMSNormalization"
        | "BatchNormalization"
        | "LRN" => one(first()?.to_vec()),
        "Identity" | "Cast" | "CastLike" => one(first()?.to_vec()),
        "Reshape" => one(reshaped(call, first()?)?),
        "Flatten" => one(flattened(call, first()?)?),
        "Squeeze" => one(squeezed(call, first()?)?),
        "Unsqueeze" => one(unsqueezed(call, first()?)?),
        "Transpose" => one(transposed(call, first()?)?),
        "Concat" => one(joined(call)?),
        "Split" => Ok(Some(split(call, first()?)?)),
        "Slice" => one(sliced(call, first()?)?),
        "Gather" => one(gathered(call, first()?)?),
        "Pad" => one(padded(call, first()?)?),
        "Resize" | "Upsample" => one(resized(call, first()?)?),
        "Expand" => {
            let wanted = counts(call.integers_in(1)?.ok_or("input 1 is missing")?, "extent")?;
            one(broadcast([first()?, wanted.as_slice()])?)
        }
        "Tile" => {
            let times = counts(call.integers_in(1)?.ok_or("input 1 is missing")?, "repeat")?;
            let product = |(dim, times): (&usize, &usize)| dim.checked_mul(*times).ok_or("an extent is too large");
            one(first()?.iter().zip(&times).map(product).collect::<Result<_, _>>()?)
        }
        "DepthToSpace" => {
            let block = extent(call.int("blocksize").unwrap_or(0), "blocksize")?;
            match first()? {
                [n, c, h, w] if block > 0 && c % (block * block) == 0 => {
                    one(vec![*n, c / (block * block), h.saturating_mul(block), w.saturating_mul(block)])
                }
                dims => Err(format!("{dims:?} does not divide into blocks of {block}")),
            }
        }
        "SpaceToDepth" => {
            let block = extent(call.int("blocksize").unwrap_or(0), "blocksize")?;
            match first()? {
                [n, c, h, w] if block > 0 && h % block == 0 && w % block == 0 => {
                    one(vec![*n, c.saturating_mul(block * block), h / block, w / block])
                }
                dims => Err(format!("{dims:?} does not divide into blocks of {block}")),
            }
        }
        operator if operator.starts_with("Reduce") => one(reduced(call, first()?)?),
        "ArgMax" | "ArgMin" => {
            let dims = first()?;
            let along = axis(call.int("axis").unwrap_or(0), dims.len())?;
            one(without(dims, &[along], call.int("keepdims") != Some(0)))
        }
        _ => Ok(None),
    }
}

/// The number of inputs that an element-by-element operation broadcasts; the others are bounds and the like.
fn pointwise_inputs(operator: &str) -> usize {
    if operator == "Clip" { 1 } else { usize::MAX }
}

fn counts(numbers: Vec<i64>, what: &str) -> Result<Vec<usize>, String> {
    numbers.into_iter().map(|number| extent(number, what)).collect()
}

fn reshaped(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    let wanted = call.integers(1, "shape")?.ok_or("input 1 is missing")?;
    let keeps_zero = call.int("allowzero") != Some(1);
    let mut result: Vec<Option<usize>> = Vec::new();
    for (at, &number) in wanted.iter().enumerate() {
        result.push(match number {
            -1 => None,
            0 if keeps_zero => Some(*dims.get(at).ok_or("a 0 in the shape has no extent to keep")?),
            number => Some(extent(number, "extent")?),
        });
    }
    let all = elements(dims).ok_or("too many elements")?;
    let known = elements(&result.iter().flatten().copied().collect::<Dims>()).ok_or("too many elements")?;
    let free = result.iter().filter(|dim| dim.is_none()).count();
    let fits = match free {
        0 => known == all,
        1 => known > 0 && all % known == 0,
        _ => false,
    };
    if !fits {
        return Err(format!("{dims:?} cannot be reshaped to {wanted:?}"));
    }
    Ok(result.into_iter().map(|dim| dim.unwrap_or_else(|| all / known)).collect())
}

fn flattened(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    let given = call.int("axis").unwrap_or(1);
    let at = if given == dims.len() as i64 { dims.len() } else { axis(given, dims.len())? };
    let part = |dims: &[usize]| elements(dims).ok_or("too many elements");
    Ok(vec![part(&dims[..at])?, part(&dims[at..])?])
}

fn squeezed(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    let along = match call.integers(1, "axes")? {
        Some(given) => axes(&given, dims.len())?,
        None => (0..dims.len()).filter(|&at| dims[at] == 1).collect(),
    };
    match along.iter().find(|&&at| dims[at] != 1) {
        Some(at) => Err(format!("extent {at} of {dims:?} is not 1")),
        None => Ok(without(dims, &along, false)),
    }
}

fn unsqueezed(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    let given = call.integers(1, "axes")?.ok_or("axes are missing")?;
    let mut result = dims.to_vec();
    for at in axes(&given, dims.len() + given.len())? {
        if at > result.len() {
            return Err(format!("axis {at} of a tensor with {}", result.len()));
        }
        result.insert(at, 1);
    }
    Ok(result)
}

fn transposed(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    permutation(call, dims.len())?.iter().map(|&at| Ok(dims[at])).collect()
}

/// The input axis of each output axis of a transposition.
pub fn permutation(call: &Call<'_>, rank: usize) -> Result<Vec<usize>, String> {
    let Some(given) = call.ints("perm") else { return Ok((0..rank).rev().collect()) };
    let order = given.iter().map(|&at| axis(at, rank)).collect::<Result<Vec<usize>, String>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..rank) {
        Ok(order)
    } else {
        Err(format!("perm {given:?} is not an order of {rank} axes"))
    }
}

fn joined(call: &Call<'_>) -> Result<Dims, String> {
    let mut all = call.inputs.iter().flatten().map(|input| input.dims());
    let mut result = all.next().ok_or("nothing to join")?.to_vec();
    let along = axis(call.int("axis").unwrap_or(1), result.len())?;
    for dims in all {
        let fits = dims.len() == result.len() && (0..dims.len()).all(|at| at == along || dims[at] == result[at]);
        if !fits {
            return Err(format!("{result:?} and {dims:?} cannot be joined along axis {along}"));
        }
        result[along] = result[along].saturating_add(dims[along]);
    }
    Ok(result)
}

fn split(call: &Call<'_>, dims: &[usize]) -> Result<Vec<Dims>, String> {
    let along = axis(call.int("axis").unwrap_or(0), dims.len())?;
    let outputs = call.node.output.len().max(1);
    if let Some(number) = call.int("num_outputs").filter(|&number| number != outputs as i64) {
        return Err(format!("num_outputs is {number}, and it has {outputs} outputs"));
    }
    let sizes = match call.integers(1, "split")? {
        Some(sizes) => counts(sizes, "split")?,
        None => {
            let size = dims[along].div_ceil(outputs);
            (0..outputs).map(|at| size.min(dims[along].saturating_sub(at * size))).collect()
        }
    };
    if sizes.iter().fold(0usize, |sum, size| sum.saturating_add(*size)) != dims[along] || sizes.len() != outputs {
        return Err(format!("parts {sizes:?} of an extent of {} for {outputs} outputs", dims[along]));
    }
    Ok(sizes.into_iter().map(|size| replaced(dims, along, size)).collect())
}

fn replaced(dims: &[usize], at: usize, extent: usize) -> Dims {
    let mut dims = dims.to_vec();
    dims[at] = extent;
    dims
}

fn sliced(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    let mut result = dims.to_vec();
    for (at, start, end, step) in slices(call, dims)? {
        let count = if step > 0 { (end - start + step - 1) / step } else { (start - end - step - 1) / -step };
        result[at] = usize::try_from(count).unwrap_or(0);
    }
    Ok(result)
}

/// The axis, first element, end and step of each slice; the end is before the first element if the step is negative.
pub fn slices(call: &Call<'_>, dims: &[usize]) -> Result<Vec<(usize, i64, i64, i64)>, String> {
    let starts = call.integers(1, "starts")?.ok_or("starts are missing")?;
    let ends = call.integers(2, "ends")?.ok_or("ends are missing")?;
    let along = call.integers(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.integers_in(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), along.len(), steps.len()] != [starts.len(); 3] {
        return Err("starts, ends, axes and steps differ in length".to_owned());
    }
    let mut all = Vec::new();
    for (((start, end), along), step) in starts.into_iter().zip(ends).zip(along).zip(steps) {
        let at = axis(along, dims.len())?;
        let length = i64::try_from(dims[at]).unwrap_or(i64::MAX);
        let from_front = |place: i64| if place < 0 { place.saturating_add(length) } else { place };
        match step {
            0 => return Err("a step is 0".to_owned()),
            1.. => all.push((
                at,
                from_front(start).clamp(0, length),
                from_front(end).clamp(0, length),
                step.min(length + 1),
            )),
            _ => {
                let (start, end) = (from_front(start).clamp(-1, length - 1), from_front(end).clamp(-1, length - 1));
                all.push((at, start, end, step.max(-length - 1)));
            }
        }
    }
    Ok(all)
}

fn gathered(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    let along = axis(call.int("axis").unwrap_or(0), dims.len())?;
    let indices = call.input(1)?.dims();
    Ok([&dims[..along], indices, &dims[along + 1..]].concat())
}

fn padded(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    let pads = call.integers(1, "pads")?.ok_or("pads are missing")?;
    let along = match call.integers_in(3)? {
        Some(given) => given.iter().map(|&at| axis(at, dims.len())).collect::<Result<Vec<usize>, String>>()?,
        None => (0..dims.len()).collect(),
    };
    if pads.len() != 2 * along.len() {
        return Err(format!("{} pads for {} axes", pads.len(), along.len()));
    }
    let mut result = dims.to_vec();
    for (place, &at) in along.iter().enumerate() {
        let length = i64::try_from(dims[at]).unwrap_or(i64::MAX);
        let padded = length.saturating_add(pads[place]).saturating_add(pads[place + along.len()]);
        result[at] = extent(padded, "padded extent")?;
    }
    Ok(result)
}

fn resized(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    // Older versions have the scales where newer ones have a region.
    let scales_at = if call.given.version() < 11 { 1 } else { 2 };
    let along = match call.ints("axes") {
        Some(given) => given.iter().map(|&at| axis(at, dims.len())).collect::<Result<Vec<usize>, String>>()?,
        None => (0..dims.len()).collect(),
    };
    let mut result = dims.to_vec();
    if let Some(sizes) = call.integers_in(3)?.filter(|sizes| !sizes.is_empty()) {
        if sizes.len() != along.len() {
            return Err(format!("{} sizes for {} axes", sizes.len(), along.len()));
        }
        for (&at, &size) in along.iter().zip(&sizes) {
            result[at] = extent(size, "size")?;
        }
        return Ok(result);
    }
    let scales = match call.optional(scales_at) {
        Some(super::value::Value::Constant(constant)) => constant.floats(),
        _ => call.given.floats("scales"),
    };
    let scales = scales.ok_or("its scales are not known before the model runs")?;
    if scales.len() != along.len() {
        return Err(format!("{} scales for {} axes", scales.len(), along.len()));
    }
    for (&at, scale) in along.iter().zip(scales) {
        // Conversion saturates.
        result[at] = extent((dims[at] as f64 * scale).floor() as i64, "resized extent")?;
    }
    Ok(result)
}

fn reduced(call: &Call<'_>, dims: &[usize]) -> Result<Dims, String> {
    Ok(without(dims, &reduced_axes(call, dims.len())?, call.int("keepdims") != Some(0)))
}

/// The axes that a reduction combines.
pub fn reduced_axes(call: &Call<'_>, rank: usize) -> Result<Vec<usize>, String> {
    match call.integers(1, "axes")?.filter(|given| !given.is_empty()) {
        Some(given) => axes(&given, rank),
        None if call.int("noop_with_empty_axes") == Some(1) => Ok(Vec::new()),
        None => Ok((0..rank).collect()),
    }
}

/// The extents without these axes, or with extents of 1 for them.
fn without(dims: &[usize], axes: &[usize], keep: bool) -> Dims {
    let left = dims.iter().enumerate().filter_map(|(at, &dim)| match axes.contains(&at) {
        true => keep.then_some(1),
        false => Some(dim),
    });
    left.collect()
}
