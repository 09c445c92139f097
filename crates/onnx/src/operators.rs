//! Converts each operator to a layer that runs, a layer that is only planned, a view, or a constant.

use std::rc::Rc;

use super::call::{Call, axis, extent};
use super::constants::{self, range};
use super::functions;
use super::layers::{Layers, name_of};
use super::pointwise::{self, Reads};
use super::proto::data_type;
use super::shapes;
use super::shown::shown;
use super::slots::Slot;
use super::tensor;
use super::value::{Constant, Data, Dims, MOST_ELEMENTS, Map, Order, Origin, Value, elements, is_floating};
use super::{products, windows};
use tightfit_network::{Function, LayerKind, PoolingMethod};

/// Reads a node. Returns the values of its outputs; these may be fewer than it names.
pub fn read(call: &Call<'_>, layers: &mut Layers) -> Result<Vec<Value>, String> {
    let one = |value: Result<Value, String>| value.map(|value| vec![value]);
    if !call.is_standard() {
        return if call.maps().is_empty() { of_constants(call) } else { plain(call, layers) };
    }
    if let Some(value) = made_of_nothing(call, MOST_ELEMENTS)? {
        return Ok(vec![value]);
    }
    // A cast uses only the type of its second input.
    let is_constant = call.operator() == "CastLike" && call.map(0).is_err();
    if call.maps().is_empty() || is_constant {
        return of_constants(call);
    }
    match call.operator() {
        "Conv" => one(windows::convolution(call, layers)),
        "ConvTranspose" => one(windows::transposed(call, layers)),
        "MaxPool" => one(windows::pooling(call, layers, PoolingMethod::Maximum)),
        "AveragePool" => one(windows::pooling(call, layers, PoolingMethod::Average)),
        "GlobalMaxPool" => one(windows::global(call, layers, PoolingMethod::Maximum)),
        "GlobalAveragePool" => one(windows::global(call, layers, PoolingMethod::Average)),
        // Values that the layers below do not compute with.
        _ if call.given.unlike().is_some() => plain(call, layers),
        "Gemm" => one(products::gemm(call, layers)),
        "MatMul" => one(products::matmul(call, None, layers)),
        "ReduceMean" if is_over_positions(call)? => one(mean(call, layers)),
        "BatchNormalization" | "LRN" if call.not_of_samples(call.input(0)?.dims()).is_some() => plain(call, layers),
        "BatchNormalization" => one(batch_norm(call, layers)),
        "LRN" => one(lrn(call, layers)),
        "Relu" => {
            let x = call.map(0)?;
            one(layers.map(&name_of(call), LayerKind::Relu, &[x.layer], x.dims.clone()))
        }
        "Dropout" => one(dropout(call, layers)),
        "Cast" | "CastLike" if !keeps_numbers(call) => plain(call, layers),
        "Identity" | "Cast" | "CastLike" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => view(call, layers),
        // Exporters spell out the factors of functions even if they are 1.
        "Mul" | "Div" if is_by_one(call) => Ok(vec![Value::Map(call.map(0)?.clone())]),
        "Add" | "Sum" if is_sum_of_maps(call) => {
            let (dims, maps) = (call.input(0)?.dims().to_vec(), call.maps());
            let inputs: Vec<_> = maps.iter().map(|map| map.layer).collect();
            one(layers.map(&name_of(call), LayerKind::Add, &inputs, dims))
        }
        "Concat" => one(concat(call, layers)),
        "Transpose" => one(transpose(call, layers)),
        _ => plain(call, layers),
    }
}

/// The values of `Constant`, `Shape` and similar nodes, which need no data. The elements are unknown if there are more than `most`.
pub fn made_of_nothing(call: &Call<'_>, most: usize) -> Result<Option<Value>, String> {
    let list = |numbers: Vec<i64>| Value::constant(vec![numbers.len()], Data::Integers(numbers));
    Ok(Some(match call.operator() {
        "Constant" => {
            let value = call.value().ok_or("it has no value")?;
            match value.name.as_str() {
                "value" => {
                    let tensor = value.t.as_ref().ok_or("its value is no tensor")?;
                    Value::Constant(Rc::new(tensor::constant(tensor)?))
                }
                "value_int" => Value::constant(vec![], Data::Integers(vec![value.i])),
                "value_ints" => list(value.ints.clone()),
                "value_float" => Value::constant(vec![], Data::Floats(vec![f64::from(value.f)])),
                "value_floats" => {
                    let all: Vec<f64> = value.floats.iter().map(|&number| f64::from(number)).collect();
                    Value::constant(vec![all.len()], Data::Floats(all))
                }
                other => return Err(format!("a value of kind `{other}` is not supported")),
            }
        }
        "Shape" => {
            let dims = call.input(0)?.dims();
            let rank = dims.len() as i64;
            let place = |name: &str, usual: i64| {
                let place = call.int(name).unwrap_or(usual);
                (if place < 0 { place.saturating_add(rank) } else { place }).clamp(0, rank) as usize
            };
            let (start, end) = (place("start", 0), place("end", rank));
            list(dims.get(start..end).unwrap_or_default().iter().map(|&dim| dim as i64).collect())
        }
        "Size" => {
            let all = elements(call.input(0)?.dims()).ok_or("too many elements")?;
            Value::constant(vec![], Data::Integers(vec![all as i64]))
        }
        "ConstantOfShape" => {
            let given = call.integers(0, "shape")?.ok_or("its shape is missing")?;
            let dims: Dims = given.iter().map(|&dim| extent(dim, "extent")).collect::<Result<_, _>>()?;
            let count = elements(&dims).ok_or("too many elements")?;
            let filling = match call.value().and_then(|value| value.t.as_ref()) {
                Some(tensor) => tensor::constant(tensor)?,
                None => Constant { dims: vec![], of: data_type::FLOAT, data: Data::Floats(vec![0.0]), origin: None },
            };
            let data = match filling.data {
                _ if count > most => Data::Unknown,
                Data::Integers(number) if number.len() == 1 => Data::Integers(vec![number[0]; count]),
                Data::Floats(number) if number.len() == 1 => Data::Floats(vec![number[0]; count]),
                _ => Data::Unknown,
            };
            Value::Constant(Rc::new(Constant { dims, of: filling.of, data, origin: None }))
        }
        "RandomUniform" | "RandomNormal" => {
            let given = call.integers(0, "shape")?.ok_or("its shape is missing")?;
            let dims: Dims = given.iter().map(|&dim| extent(dim, "extent")).collect::<Result<_, _>>()?;
            elements(&dims).ok_or("too many elements")?;
            Value::constant(dims, Data::Unknown)
        }
        // Random numbers with the samples' extents, not computed from the samples.
        "RandomUniformLike" | "RandomNormalLike" => Value::constant(call.input(0)?.dims().to_vec(), Data::Unknown),
        "Range" => Value::Constant(Rc::new(range(call, most)?)),
        _ => return Ok(None),
    }))
}

/// The outputs of a node none of whose inputs depends on the samples.
pub fn of_constants(call: &Call<'_>) -> Result<Vec<Value>, String> {
    if call.is_standard()
        && let Some(value) = made_of_nothing(call, MOST_ELEMENTS)?
    {
        return Ok(vec![value]);
    }
    let all = match constants::dims(call)? {
        Some(all) => all,
        None => vec![call.stated.clone().ok_or_else(|| unknown(call))?],
    };
    if let Some(dims) = all.iter().find(|dims| elements(dims).is_none()) {
        return Err(format!("an output of {dims:?} has more than 2^60 elements"));
    }
    // The numbers may be read later, or never. Only small constants must be known here.
    let mut constants = constants::compute(call, &all, MOST_ELEMENTS).unwrap_or_else(|_| {
        let of = constants::type_of(call);
        all.into_iter().map(|dims| Constant { dims, of, data: Data::Unknown, origin: None }).collect()
    });
    let learned: usize = call.constants().map(Constant::parameters).max().unwrap_or(0);
    for (at, constant) in constants.iter_mut().enumerate() {
        let learned = constant.learnable().min(learned);
        constant.origin =
            call.node.output.get(at).map(|name| Origin { name: name.clone(), order: Order::Same, learned });
    }
    if let Some(first) = constants.first_mut()
        && let Some(passed) = passed_on(call, first)
    {
        first.origin = Some(passed);
    }
    Ok(constants.into_iter().map(|constant| Value::Constant(Rc::new(constant))).collect())
}

/// The value whose elements a node passes on unchanged, or with rows and columns exchanged.
fn passed_on(call: &Call<'_>, output: &Constant) -> Option<Origin> {
    let Some(Value::Constant(first)) = call.optional(0) else { return None };
    let mut origin = first.origin.clone()?;
    let same = elements(&output.dims) == elements(&first.dims);
    // A further reordering of a transposed matrix is a separate tensor.
    let is_plain = origin.order == Order::Same;
    match call.operator() {
        "Identity" => {}
        "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Expand" if same && is_plain => {}
        "Cast" | "CastLike" if is_floating(first.of) && matches!(output.of, data_type::FLOAT | data_type::DOUBLE) => {}
        "Transpose" if first.dims.len() < 2 => {}
        "Transpose" if first.dims.len() == 2 && shapes::permutation(call, 2).ok()? == [1, 0] => {
            origin.order = if is_plain { Order::Transposed } else { Order::Same };
        }
        _ => return None,
    }
    Some(origin)
}

/// The message for an unknown operator.
pub fn unknown(call: &Call<'_>) -> String {
    let from = if call.is_standard() { String::new() } else { format!(" of {}", shown(&call.node.domain)) };
    // Only the first output's shape can be taken from the file.
    if call.node.output.iter().skip(1).any(|name| !name.is_empty()) {
        return format!("the operator{from} is not supported; export the model without it");
    }
    format!(
        "the operator{from} is not supported, and the file does not state its output's shape; export the model without \
         it, or run shape inference (onnx.shape_inference) on the file"
    )
}

/// Any other node: one layer per output, planned from its sizes.
fn plain(call: &Call<'_>, layers: &mut Layers) -> Result<Vec<Value>, String> {
    let operator = call.operator();
    let Some(all) = shapes::of(call)? else {
        let dims = call.stated.clone().ok_or_else(|| unknown(call))?;
        // Its backward pass is unknown and may read everything.
        let every = |other: &mut tightfit_network::Other| (other.reads_inputs, other.reads_output) = (true, true);
        return Ok(vec![layers.other(call, dims, every)?]);
    };
    let maps = call.maps();
    let is_alone = maps.len() == 1;
    let learns = call.constants().any(|constant| constant.parameters() > 0);
    let (inputs, output) = match pointwise::of(operator) {
        Some(Reads::Nothing) => (false, false),
        Some(Reads::Inputs) => (true, false),
        Some(Reads::Output) => (false, true),
        // The gradient of a divisor needs the divisor; the gradient of a constant factor needs nothing.
        Some(Reads::OtherFactor) => (!is_alone || learns || operator == "Div" && call.map(0).is_err(), false),
        None => match operator {
            "Softmax" | "LogSoftmax" => (false, true),
            "ReduceMean" | "ReduceSum" | "Transpose" | "Concat" | "Split" | "Slice" | "Gather" | "Pad" | "Resize"
            | "Upsample" | "Expand" | "Tile" | "DepthToSpace" | "SpaceToDepth" | "CumSum" | "ArgMax" | "ArgMin"
            | "Hardmax" => (false, false),
            "ReduceMax" | "ReduceMin" | "ReduceL2" | "ReduceLogSumExp" => (true, true),
            _ => (true, false),
        },
    };
    let (function, why) = match functions::of(call) {
        Ok(function) => (function, None),
        Err(why) => (None, Some(why)),
    };
    let mut values = Vec::new();
    for dims in all {
        let keeps_size = is_alone && maps[0].dims == dims && pointwise::of(operator).is_some();
        let in_place = keeps_size && !inputs;
        values.push(layers.other(call, dims, |other| {
            (other.reads_inputs, other.reads_output, other.in_place) = (inputs, output, in_place);
            // Scales and regions are not learned, even if they are initializers.
            if matches!(operator, "Resize" | "Upsample") {
                other.parameters = 0;
            }
            other.function.clone_from(&function);
        })?);
    }
    if let (Some(why), Some(Value::Map(map))) = (why, values.first()) {
        layers.cannot_run(map.layer, why);
    }
    if let (Some(function), Some(value)) = (&function, values.first()) {
        let constants = || call.inputs.iter().flatten().filter(|input| matches!(input, Value::Constant(_)));
        let slots = match function {
            Function::Scale => vec![(Slot::Scale, constants().next())],
            Function::LayerNorm { .. } => vec![(Slot::Scale, call.optional(1)), (Slot::Shift, call.optional(2))],
            _ => Vec::new(),
        };
        layers.learn_function(value, slots);
    }
    Ok(values)
}

fn view(call: &Call<'_>, layers: &mut Layers) -> Result<Vec<Value>, String> {
    let dims = shapes::of(call)?.and_then(|all| all.into_iter().next()).ok_or_else(|| unknown(call))?;
    Ok(vec![layers.view(&name_of(call), call.map(0)?, dims)?])
}

/// Whether a cast results in floating-point numbers, which layers compute with in 32 bits.
fn keeps_numbers(call: &Call<'_>) -> bool {
    match call.optional(1) {
        Some(Value::Constant(like)) => is_floating(like.of),
        Some(Value::Map(_)) => false,
        None => call.int("to").and_then(|to| i32::try_from(to).ok()).is_some_and(is_floating),
    }
}

/// Whether the second factor or the divisor is the number 1.
fn is_by_one(call: &Call<'_>) -> bool {
    let one = call.constant(1).ok().filter(|one| one.parameters() == 0);
    call.map(0).is_ok_and(|x| one.is_some_and(|one| one.dims.len() <= x.dims.len()))
        && one.and_then(|one| one.floats()).is_some_and(|all| all == [1.0])
}

/// Whether all inputs are layers of one shape, so that their sum can run.
fn is_sum_of_maps(call: &Call<'_>) -> bool {
    let maps = call.maps();
    let count = call.inputs.iter().flatten().count();
    maps.len() > 1 && maps.len() == count && maps.iter().all(|map| map.dims == maps[0].dims)
}

/// Joins along the channels; any other way of joining is planned by its sizes.
fn concat(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let dims = shapes::of(call)?.and_then(|all| all.into_iter().next()).ok_or_else(|| unknown(call))?;
    let maps = call.maps();
    let all = call.inputs.iter().flatten().count();
    let along = axis(call.int("axis").unwrap_or(1), dims.len())?;
    if let ([only], 1) = (&maps[..], all) {
        return Ok(Value::Map((*only).clone()));
    }
    if along == 1 && maps.len() == all && dims.first() == Some(&call.batch) && dims.len() <= 5 {
        let inputs: Vec<_> = maps.iter().map(|map| map.layer).collect();
        return layers.map(&name_of(call), LayerKind::Concat, &inputs, dims);
    }
    layers.planned(call, dims, format!("it joins along axis {along}, or constants"), |_| {})
}

/// A transposition; if only extents of 1 move, it moves no data.
fn transpose(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let x = call.map(0)?;
    let order = shapes::permutation(call, x.dims.len())?;
    let dims: Dims = order.iter().map(|&at| x.dims[at]).collect();
    let moved: Vec<usize> = order.into_iter().filter(|&at| x.dims[at] != 1).collect();
    if moved.is_sorted() {
        return layers.view(&name_of(call), x, dims);
    }
    let (function, why) = match functions::of(call) {
        Ok(function) => (function, None),
        Err(why) => (None, Some(why)),
    };
    match why {
        Some(why) => layers.planned(call, dims, why, |_| {}),
        None => layers.other(call, dims, |other| other.function = function),
    }
}

/// Whether a reduction combines all positions of each channel, and nothing else.
fn is_over_positions(call: &Call<'_>) -> Result<bool, String> {
    let Ok(x) = call.map(0) else { return Ok(false) };
    let rank = x.dims.len();
    Ok((3..=5).contains(&rank) && shapes::reduced_axes(call, rank)?.into_iter().eq(2..rank))
}

fn mean(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let pooled = windows::global(call, layers, PoolingMethod::Average)?;
    match (call.int("keepdims"), pooled.map()) {
        (Some(0), Some(map)) => layers.view(&name_of(call), map, map.dims[..2].to_vec()),
        _ => Ok(pooled),
    }
}

/// Batch normalization in its training or inference form: in training, both compute statistics of the mini-batch.
fn batch_norm(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let x = call.map(0)?;
    let channels = *x.dims.get(1).ok_or("its input has no channels")?;
    for at in 1..5 {
        let numbers = call.constant(at)?;
        if elements(&numbers.dims) != Some(channels) {
            return Err(format!("input {at} of {:?} does not match {channels} channels", numbers.dims));
        }
    }
    let epsilon = call.float("epsilon").unwrap_or(1e-5);
    if !(epsilon >= 0.0 && epsilon.is_finite()) {
        return Err(format!("epsilon is {epsilon}"));
    }
    let name = name_of(call);
    let layer = layers.add(&name, LayerKind::BatchNorm { epsilon }, &[x.layer])?;
    let slots = [Slot::Scale, Slot::Shift, Slot::Mean, Slot::Variance];
    layers.learn(layer, slots.into_iter().zip(1..).map(|(slot, at)| (slot, call.optional(at))));
    layers.view(&name, &Map { layer, dims: x.dims.clone() }, x.dims.clone())
}

fn lrn(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let x = call.map(0)?;
    let kind = LayerKind::Lrn {
        size: extent(call.int("size").unwrap_or(0), "size")?,
        alpha: call.float("alpha").unwrap_or(1e-4),
        beta: call.float("beta").unwrap_or(0.75),
        k: call.float("bias").unwrap_or(1.0),
    };
    layers.map(&name_of(call), kind, &[x.layer], x.dims.clone())
}

/// Dropout in its training or inference form: training drops elements in both.
fn dropout(call: &Call<'_>, layers: &mut Layers) -> Result<Value, String> {
    let x = call.map(0)?;
    let rate = match call.optional(1) {
        Some(_) => {
            let known = call.constant(1)?.floats().filter(|all| all.len() == 1);
            known.ok_or("input 1 (`ratio`) is not known before the model runs")?[0] as f32
        }
        None => call.float("ratio").unwrap_or(0.5),
    };
    if !(0.0..1.0).contains(&rate) {
        return Err(format!("a ratio of {rate}; it must be from 0 to below 1"));
    }
    match rate {
        0.0 => Ok(Value::Map(x.clone())),
        rate => layers.map(&name_of(call), LayerKind::Dropout { rate }, &[x.layer], x.dims.clone()),
    }
}
