//! Networks as JSON: what an export writes and a hand can write.
//!
//! ```json
//! {"format": "tightfit-network", "version": 1, "name": "tiny", "layers": [
//!   {"name": "input", "kind": "input", "shape": [1, 28, 28]},
//!   {"name": "conv1", "kind": "convolution", "inputs": ["input"], "filters": 20, "filter": [5, 5], "pad": [2, 2]},
//!   {"name": "pool1", "kind": "max-pooling", "inputs": ["conv1"], "window": [2, 2], "stride": [2, 2]},
//!   {"name": "fc", "kind": "fully-connected", "inputs": ["pool1"], "outputs": 10},
//!   {"name": "loss", "kind": "softmax-loss", "inputs": ["fc"]}]}
//! ```
//!
//! Layers are read in order, each after those it reads; channels and extents follow from what it reads. What has a usual
//! value may be left out: strides and dilations of 1, no padding, one group, a bias.

use serde_json::{Map, Value, json};

use super::fields::{Fields, Fits};
use super::{Builder, Layer, LayerId, LayerKind, Network, Pooling, PoolingMethod, Shape};
use crate::{Axis, Convolution, Error};

/// The word by which a file of a network is known.
const FORMAT: &str = "tightfit-network";
/// Raised when a file of before could not be read as it was meant.
const VERSION: u64 = 1;

impl Network {
    /// Writes the network as JSON; reading it with [`Network::from_json`] gives the same network.
    pub fn to_json(&self) -> String {
        let layers: Vec<Value> = self.layers().iter().map(|layer| self.layer_json(layer)).collect();
        // Written by hand so that every layer has a line.
        let mut text = format!(
            "{{\n  \"format\": \"{FORMAT}\",\n  \"version\": {VERSION},\n  \"name\": {},\n  \"layers\": [",
            json!(self.name())
        );
        for (index, layer) in layers.iter().enumerate() {
            text += &format!("{}\n    {layer}", if index > 0 { "," } else { "" });
        }
        text + "\n  ]\n}\n"
    }

    fn layer_json(&self, layer: &Layer) -> Value {
        let mut object = Map::new();
        let mut put = |field: &str, value: Value| object.insert(field.to_owned(), value);
        put("name", json!(layer.name));
        put("kind", json!(layer.kind.name()));
        if !layer.inputs.is_empty() {
            put("inputs", layer.inputs.iter().map(|&input| json!(self.layer(input).name)).collect());
        }
        match &layer.kind {
            LayerKind::Input { shape, batch } => {
                put("shape", std::iter::once(shape.channels()).chain(shape.extents().iter().copied()).collect());
                if let Some(batch) = batch {
                    put("batch", json!(batch));
                }
            }
            LayerKind::Convolution { convolution, bias } => {
                put("filters", json!(convolution.filters()));
                put_axes("filter", convolution.axes(), &mut put);
                if convolution.groups() != 1 {
                    put("groups", json!(convolution.groups()));
                }
                put_bias(*bias, &mut put);
            }
            LayerKind::Pooling(pooling) => {
                put_axes("window", &pooling.axes[3 - layer.shape.extents().len()..], &mut put);
                if pooling.ceil {
                    put("ceil", json!(true));
                }
            }
            LayerKind::Lrn { size, alpha, beta, k } => {
                put("size", json!(size));
                for (field, value) in [("alpha", alpha), ("beta", beta), ("k", k)] {
                    put(field, decimal(*value));
                }
            }
            LayerKind::BatchNorm { epsilon } => {
                put("epsilon", decimal(*epsilon));
            }
            LayerKind::Dropout { rate } => {
                put("rate", decimal(*rate));
            }
            LayerKind::FullyConnected { outputs, bias } => {
                put("outputs", json!(outputs));
                put_bias(*bias, &mut put);
            }
            LayerKind::Relu | LayerKind::Concat | LayerKind::Add | LayerKind::Flatten | LayerKind::SoftmaxLoss => {}
        }
        Value::Object(object)
    }

    /// Reads a network from JSON: the inverse of [`Network::to_json`].
    ///
    /// # Errors
    /// [`Error::BadDocument`] for what is no JSON, no network, or of a later version; [`Error::BadNetwork`] with the layer
    /// and the field for anything wrong in a layer.
    pub fn from_json(text: &str) -> Result<Network, Error> {
        let bad = |what: String| Error::BadDocument { document: "network", what };
        let document: Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        Network::from_value(&document)
    }

    /// Reads a network from a parsed document, as [`Network::from_json`].
    pub(crate) fn from_value(document: &Value) -> Result<Network, Error> {
        let bad = |what: String| Error::BadDocument { document: "network", what };
        let mut fields = Fields::of(document).map_err(bad)?;
        fields.format(FORMAT, VERSION).map_err(bad)?;
        let name = fields.text("name").map_err(bad)?;
        let layers = fields.array("layers").map_err(bad)?;
        fields.finish().map_err(bad)?;
        let mut net = Builder::new(name.clone());
        for (index, layer) in layers.iter().enumerate() {
            let known = layer.get("name").and_then(Value::as_str).map_or(format!("number {index}"), str::to_owned);
            let wrong = |what| Error::BadNetwork { network: name.clone(), layer: known.clone(), what };
            let (own, kind, inputs) = read_layer(layer, &net).map_err(wrong)?;
            net.layer(own, kind, &inputs);
            // The first wrong layer is the one to tell of: later ones may be wrong because of it.
            net = net.check()?;
        }
        net.finish()
    }
}

/// The padding, stride and dilation of every dimension, where they are not the usual ones.
fn put_axes(extent: &str, axes: &[Axis], put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    let along = |of: fn(&Axis) -> usize| -> Vec<usize> { axes.iter().map(of).collect() };
    put(extent, json!(along(|axis| axis.filter)));
    let (before, after) = (along(|axis| axis.pad_before), along(|axis| axis.pad_after));
    for (field, values, usual) in [
        ("pad", &before, vec![0; axes.len()]),
        ("pad_after", &after, before.clone()),
        ("stride", &along(|axis| axis.stride), vec![1; axes.len()]),
        ("dilation", &along(|axis| axis.dilation), vec![1; axes.len()]),
    ] {
        if *values != usual {
            put(field, json!(values));
        }
    }
}

fn put_bias(bias: bool, put: &mut impl FnMut(&str, Value) -> Option<Value>) {
    if !bias {
        put("bias", json!(false));
    }
}

/// A 32-bit number by its shortest decimal digits, not by those of the 64-bit number nearest to it.
fn decimal(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, |value| json!(value))
}

/// A layer's name, kind and inputs, or what is wrong with which field.
fn read_layer(layer: &Value, net: &Builder) -> Result<(String, LayerKind, Vec<Option<LayerId>>), String> {
    let mut fields = Fields::of(layer)?;
    let name = fields.text("name")?;
    let kind = fields.text("kind")?;
    let names = if fields.has("inputs") { fields.texts("inputs")? } else { Vec::new() };
    let mut inputs = Vec::new();
    for input in &names {
        let found = net.find(input).ok_or(format!("field `inputs`: there is no layer `{input}` before this one"))?;
        inputs.push(Some(found));
    }
    let input = inputs.first().copied().flatten().and_then(|input| net.shape_of(input));
    let kind = read_kind(&kind, &mut fields, input)?;
    fields.finish()?;
    Ok((name, kind, inputs))
}

fn read_kind(kind: &str, fields: &mut Fields<'_>, input: Option<Shape>) -> Result<LayerKind, String> {
    let maximum = LayerKind::Pooling(pooling(PoolingMethod::Maximum)).name();
    Ok(match kind {
        "input" => LayerKind::Input { shape: shape(fields)?, batch: fields.optional("batch", Fields::count)? },
        "convolution" => {
            let axes = axes("filter", fields, input.map_or(&[][..], |input| input.extents_of()))?;
            let filters = fields.count("filters")?;
            let groups = fields.optional("groups", Fields::count)?.unwrap_or(1);
            let channels = input.map_or(0, |input| input.channels());
            let convolution = Convolution::new(channels, filters, groups, &axes).map_err(|error| error.to_string())?;
            LayerKind::Convolution { convolution, bias: bias(fields)? }
        }
        "max-pooling" | "average-pooling" => {
            let method = if kind == maximum { PoolingMethod::Maximum } else { PoolingMethod::Average };
            let known = axes("window", fields, input.map_or(&[][..], |input| input.extents_of()))?;
            let mut axes = [Axis::UNIT; 3];
            axes[3 - known.len()..].copy_from_slice(&known);
            LayerKind::Pooling(Pooling { method, axes, ceil: fields.optional("ceil", Fields::truth)?.unwrap_or(false) })
        }
        "relu" => LayerKind::Relu,
        "lrn" => LayerKind::Lrn {
            size: fields.count("size")?,
            alpha: fields.number("alpha", Fits::Any)?,
            beta: fields.number("beta", Fits::Any)?,
            k: fields.number("k", Fits::Any)?,
        },
        "batch-norm" => LayerKind::BatchNorm { epsilon: fields.number("epsilon", Fits::Positive)? },
        "dropout" => LayerKind::Dropout { rate: fields.number("rate", Fits::Share)? },
        "fully-connected" => LayerKind::FullyConnected { outputs: fields.count("outputs")?, bias: bias(fields)? },
        "concat" => LayerKind::Concat,
        "add" => LayerKind::Add,
        "flatten" => LayerKind::Flatten,
        "softmax-loss" => LayerKind::SoftmaxLoss,
        _ => return Err(format!("field `kind`: there is no kind `{kind}` of layer")),
    })
}
