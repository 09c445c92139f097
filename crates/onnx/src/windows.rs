//! Convolutions, transposed convolutions and pooling: operations with windows over the spatial axes.

use tightfit_conv::{Axis, Convolution};

use super::call::{Call, extent};
use super::given::not;
use super::layers::{Layers, name_of};
use super::shown::shown;
use super::slots::Slot;
use super::value::{Constant, Dims, Map, Value, elements};
use tightfit_network::{LayerKind, Pooling, PoolingMethod};

/// The spatial extents of an input of one to three spatial dimensions.
fn spatial(dims: &[usize]) -> Result<&[usize], String> {
    match dims.len() {
        3..=5 => Ok(&dims[2..]),
        rank => Err(format!("{rank} axes; windows need a mini-batch, channels, and 1 to 3 more")),
    }
}

/// An attribute with this many numbers.
fn numbers(call: &Call<'_>, name: &str, usual: usize, count: usize) -> Result<Vec<usize>, String> {
    let Some(given) = call.ints(name).filter(|given| !given.is_empty()) else { return Ok(vec![usual; count]) };
    if given.len() != count {
        return Err(format!("{name} has {} numbers, not {count}", given.len()));
    }
    given.into_iter().map(|number| extent(number, name)).collect()
}

/// One axis per spatial dimension, from the attributes of the node.
fn windows(call: &Call<'_>, inputs: &[usize], filters: &[usize]) -> Result<Vec<Axis>, String> {
    let rank = inputs.len();
    if filters.len() != rank {
        return Err(format!("windows of {} dimensions over {rank}", filters.len()));
    }
    let (strides, dilations) = (numbers(call, "strides", 1, rank)?, numbers(call, "dilations", 1, rank)?);
    let pads = numbers(call, "pads", 0, 2 * rank)?;
    let auto = call.text("auto_pad").unwrap_or_default();
    if !matches!(auto.as_str(), "" | "NOTSET") && pads.iter().any(|&pad| pad > 0) {
        return Err(format!("attribute `pads` = {pads:?} and auto_pad `{auto}` exclude each other"));
    }
    let mut axes = Vec::new();
    for at in 0..rank {
        let (input, filter, stride, dilation) = (inputs[at], filters[at], strides[at], dilations[at]);
        let (mut pad_before, mut pad_after) = (pads[at], pads[at + rank]);
        if stride == 0 || filter == 0 || dilation == 0 {
            return Err("a stride, dilation or window is 0".to_owned());
        }
        if input > 1 << 31 {
            return Err(format!("an extent of {input} is over 2^31"));
        }
        match auto.as_str() {
            "" | "NOTSET" => {}
            "VALID" => (pad_before, pad_after) = (0, 0),
            "SAME_UPPER" | "SAME_LOWER" => {
                let reach = (filter - 1).saturating_mul(dilation).saturating_add(1);
                let all = ((input.div_ceil(stride).max(1) - 1).saturating_mul(stride)).saturating_add(reach);
                let all = all.saturating_sub(input);
                let (less, more) = (all / 2, all - all / 2);
                (pad_before, pad_after) = if auto == "SAME_UPPER" { (less, more) } else { (more, less) };
            }
            other => return Err(format!("auto_pad is {}", shown(other))),
        }
        let axis = Axis { input, filter, pad_before, pad_after, stride, dilation };
        axis.check()?;
        axes.push(axis);
    }
    Ok(axes)
}

/// Turns one spatial dimension into two with a leading 1.
fn at_least_two(mut axes: Vec<Axis>) -> Vec<Axis> {
    if axes.len() == 1 {
        axes.insert(0, Axis::new(1, 1));
    }
    axes
}

/// A convolution with constant filters.
pub fn convolution(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let (x, filters) = (call.map(0)?, call.constant(1)?);
    let inputs = spatial(&x.dims)?;
    let groups = extent(call.int("group").unwrap_or(1), "group")?;
    let [count, depth, extents @ ..] = &filters.dims[..] else {
        return Err(format!("filters of {:?}", filters.dims));
    };
    if depth.checked_mul(groups) != Some(x.dims[1]) {
        return Err(format!("{groups} groups of filters {:?} over {} channels", filters.dims, x.dims[1]));
    }
    must_have_extents(call, extents)?;
    let axes = windows(call, inputs, extents)?;
    let dims: Dims = [x.dims[0], *count].into_iter().chain(axes.iter().map(Axis::output)).collect();
    let convolution = Convolution::new(x.dims[1], *count, groups, &at_least_two(axes));
    let convolution = convolution.map_err(|error| error.to_string())?;
    // Without a following batch normalization, an exporter may give it a constant of zeros.
    if call.optional(2).is_some() && elements(&call.constant(2)?.dims) != Some(*count) {
        return Err(format!("biases of {:?} for {count} filters", call.constant(2)?.dims));
    }
    let is_nothing =
        |bias: &Constant| bias.parameters() == 0 && bias.floats().is_some_and(|all| all.iter().all(|&x| x == 0.0));
    let bias = matches!(call.optional(2), Some(Value::Constant(bias)) if !is_nothing(bias));
    let name = name_of(call);
    let layer = layers.add(&name, LayerKind::Convolution { convolution, bias }, &[x.layer])?;
    layers.learn(layer, [(Slot::Weight, call.optional(1)), (Slot::Bias, call.optional(2).filter(|_| bias))]);
    layers.view(&name, &Map { layer, dims: dims.clone() }, dims)
}

/// Refuses a `kernel_shape` that differs from the filters' extents.
fn must_have_extents(call: &Call<'_>, filters: &[usize]) -> Result<(), String> {
    let given = call.ints("kernel_shape").filter(|given| !given.is_empty());
    match given.filter(|given| !given.iter().copied().eq(filters.iter().map(|&filter| filter as i64))) {
        Some(given) => Err(format!("attribute `kernel_shape` = {given:?}, but the filters have {filters:?}")),
        None => Ok(()),
    }
}

/// A transposed convolution: planned by its sizes.
pub fn transposed(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let (x, filters) = (call.map(0)?, call.constant(1)?);
    let inputs = spatial(&x.dims)?;
    let groups = extent(call.int("group").unwrap_or(1), "group")?;
    let [channels, per_group, extents @ ..] = &filters.dims[..] else {
        return Err(format!("filters of {:?}", filters.dims));
    };
    if *channels != x.dims[1] || extents.len() != inputs.len() {
        return Err(format!("filters of {:?} over {:?}", filters.dims, x.dims));
    }
    must_have_extents(call, extents)?;
    let rank = inputs.len();
    let (strides, dilations) = (numbers(call, "strides", 1, rank)?, numbers(call, "dilations", 1, rank)?);
    let (pads, more) = (numbers(call, "pads", 0, 2 * rank)?, numbers(call, "output_padding", 0, rank)?);
    let stated = call.ints("output_shape").filter(|given| !given.is_empty());
    let auto = call.text("auto_pad").unwrap_or_default();
    if !["", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"].contains(&auto.as_str()) {
        return Err(format!("auto_pad is {}", shown(&auto)));
    }
    if !matches!(auto.as_str(), "" | "NOTSET") && pads.iter().any(|&pad| pad > 0) {
        return Err(format!("attribute `pads` = {pads:?} and auto_pad `{auto}` exclude each other"));
    }
    let is_same = auto.starts_with("SAME");
    let mut dims = vec![x.dims[0], per_group.saturating_mul(groups)];
    for at in 0..rank {
        let reach = (extents[at].max(1) - 1).saturating_mul(dilations[at]).saturating_add(1 + more[at]);
        let all = (inputs[at].max(1) - 1).saturating_mul(strides[at]).saturating_add(reach);
        let output = match &stated {
            Some(stated) if stated.len() == rank => extent(stated[at], "output_shape")?,
            Some(stated) => return Err(format!("output_shape has {} numbers, not {rank}", stated.len())),
            _ if is_same => inputs[at].saturating_mul(strides[at]),
            _ => all.checked_sub(pads[at].saturating_add(pads[at + rank])).ok_or("the pads cut everything off")?,
        };
        dims.push(output);
    }
    let per_position =
        filters.dims[1..].iter().fold(*channels as u64, |product, &dim| product.saturating_mul(dim as u64));
    let positions = inputs.iter().fold(1u64, |product, &dim| product.saturating_mul(dim as u64));
    layers.other(call, dims, |other| {
        other.reads_inputs = true;
        other.multiply_adds = per_position.saturating_mul(positions).min(1 << 60);
    })
}

/// Pooling over windows.
pub fn pooling(call: &Call<'_>, layers: &mut Layers, method: PoolingMethod) -> Result<Value, String> {
    let x = call.map(0)?;
    let inputs = spatial(&x.dims)?;
    let kernel = call.ints("kernel_shape").ok_or("kernel_shape is missing")?;
    let kernel = kernel.into_iter().map(|number| extent(number, "kernel_shape")).collect::<Result<Vec<_>, _>>()?;
    let axes = windows(call, inputs, &kernel)?;
    let is_padded = axes.iter().any(|axis| axis.pad_before + axis.pad_after > 0);
    let ceil = call.int("ceil_mode") != Some(0) && call.given.version() >= 10;
    let pooling = Pooling { method, axes: three(&axes), ceil };
    let is_cut = ceil && pooling.outputs() != Pooling { ceil: false, ..pooling }.outputs();
    if is_cut && call.text("auto_pad").as_deref() == Some("VALID") {
        return Err("attribute `ceil_mode` = 1 and auto_pad `VALID` contradict each other".to_owned());
    }
    let all_in_padding = axes.iter().any(|axis| axis.pad_before.max(axis.pad_after) >= axis.reach());
    let counts = method == PoolingMethod::Average && call.int("count_include_pad").is_some_and(|counts| counts != 0);
    let why = if all_in_padding {
        Some("windows may lie in the padding alone".to_owned())
    } else if counts && is_padded {
        Some(not("count_include_pad", "1", "0"))
    } else {
        call.given.unlike()
    };
    pool(call, layers, pooling, why)
}

/// Pooling over the whole of each channel.
pub fn global(call: &Call<'_>, layers: &mut Layers, method: PoolingMethod) -> Result<Value, String> {
    let x = call.map(0)?;
    let axes: Vec<Axis> = spatial(&x.dims)?.iter().map(|&input| Axis::new(input, input)).collect();
    for axis in &axes {
        axis.check()?;
    }
    pool(call, layers, Pooling { method, axes: three(&axes), ceil: false }, None)
}

fn three(axes: &[Axis]) -> [Axis; 3] {
    let mut all = [Axis::UNIT; 3];
    all[3 - axes.len()..].copy_from_slice(axes);
    all
}

/// A pooling layer. If it cannot run, it is planned by its sizes, with the reason.
fn pool(call: &Call<'_>, layers: &mut Layers, pooling: Pooling, why: Option<String>) -> Result<Value, String> {
    let x = call.map(0)?;
    let outputs = pooling.outputs();
    let dims: Dims = x.dims[..2].iter().chain(&outputs[3 - (x.dims.len() - 2)..]).copied().collect();
    if let Some(why) = why.or_else(|| call.not_of_samples(&x.dims)) {
        let maximum = pooling.method == PoolingMethod::Maximum;
        return layers.planned(call, dims, why, |other| (other.reads_inputs, other.reads_output) = (maximum, maximum));
    }
    layers.map(&name_of(call), LayerKind::Pooling(pooling), &[x.layer], dims)
}
