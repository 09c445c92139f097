//! Networks as JSON, for export and for writing by hand.
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
//! Layers appear in order, each after its inputs; channels and extents follow from the inputs. Fields with a default
//! may be omitted: stride and dilation 1, no padding, one group, a bias.

use std::collections::HashMap;

use serde_json::{Value, json};
use tightfit_units::Error;

use super::fields::Fields;
use super::{Builder, Layer, LayerId, LayerKind, Network, Shape};

/// Identifies a network file.
const FORMAT: &str = "tightfit-network";
/// Increased when older files could no longer be read correctly.
const VERSION: usize = 1;

impl Network {
    /// Writes the network as JSON, one layer per line; reading it with [`Network::from_json`] gives the same network.
    pub fn to_json(&self) -> String {
        let layers: Vec<String> = self.layers().iter().map(|layer| format!("    {}", self.line(layer))).collect();
        format!(
            "{{\n  \"format\": \"{FORMAT}\",\n  \"version\": {VERSION},\n  \"name\": {},\n  \"layers\": [\n{}\n  ]\n}}\n",
            json!(self.name()),
            layers.join(",\n")
        )
    }

    /// A layer as an object, with its fields in natural reading order.
    fn line(&self, layer: &Layer) -> String {
        let mut fields = vec![("name", json!(layer.name)), ("kind", json!(layer.kind.name()))];
        if !layer.inputs.is_empty() {
            let names = layer.inputs.iter().map(|&input| json!(self.layer(input).name));
            fields.push(("inputs", names.collect()));
        }
        fields.extend(layer.kind.fields(layer.shape));
        let fields: Vec<String> = fields.iter().map(|(field, value)| format!("{:?}: {value}", field)).collect();
        format!("{{{}}}", fields.join(", "))
    }

    /// Reads a network from JSON: the inverse of [`Network::to_json`].
    ///
    /// # Errors
    /// [`Error::BadDocument`] if the text is not JSON, not a network, or has another version; [`Error::BadNetwork`]
    /// with the layer and the field for any error in a layer.
    pub fn from_json(text: &str) -> Result<Network, Error> {
        let bad = |what| Error::BadDocument { document: "network", what };
        let document: Value = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        let (name, layers) = head(&document).map_err(bad)?;
        let mut net = Builder::new(name);
        let mut known = HashMap::new();
        for (index, layer) in layers.iter().enumerate() {
            let own = layer.get("name").and_then(Value::as_str).map_or(format!("number {index}"), str::to_owned);
            let wrong = |what| Error::BadNetwork { network: name.to_owned(), layer: own.clone(), what };
            let (kind, inputs) = read_layer(layer, &known).map_err(wrong)?;
            net.layer(own.clone(), kind, &inputs);
            // Report the first invalid layer: it may cause the errors of later ones.
            net = net.check()?;
            known.extend(net.here().zip(net.shape()).map(|given| (own, given)));
        }
        net.finish()
    }
}

/// The name and the layers of a document of this format and version.
fn head(document: &Value) -> Result<(&str, &[Value]), String> {
    let mut fields = Fields::of(document)?;
    let (format, version) = (fields.text("format")?, fields.count("version")?);
    if format != FORMAT {
        return Err(format!("its format is `{format}`, expected `{FORMAT}`"));
    }
    if version != VERSION {
        return Err(format!("it has version {version}, but this program reads version {VERSION}"));
    }
    let found = (fields.text("name")?, fields.array("layers")?);
    fields.finish()?;
    Ok(found)
}

/// The layers read so far, with their output shapes.
type ReadLayers = HashMap<String, (LayerId, Shape)>;

/// Reads a layer's kind and inputs; an error names the wrong field.
fn read_layer(layer: &Value, known: &ReadLayers) -> Result<(LayerKind, Vec<Option<LayerId>>), String> {
    let mut fields = Fields::of(layer)?;
    fields.text("name")?;
    let names = fields.optional("inputs", Fields::texts)?.unwrap_or_default();
    let find = |name: &&str| {
        known.get(*name).copied().ok_or(format!("field `inputs`: there is no layer `{name}` before this one"))
    };
    let inputs: Vec<(LayerId, Shape)> = names.iter().map(find).collect::<Result<_, String>>()?;
    let kind = LayerKind::read(&mut fields, inputs.first().map(|(_, shape)| *shape))?;
    fields.finish()?;
    Ok((kind, inputs.iter().map(|(id, _)| Some(*id)).collect()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tightfit_conv::{Axis, Convolution};

    use super::*;
    use crate::{Filters, Window, names};

    #[test]
    fn built_in_networks_round_trip() {
        for (name, _) in names() {
            let network = Network::open(name).unwrap();
            assert_eq!(Network::from_json(&network.to_json()).unwrap(), network, "{name}");
        }
    }

    #[test]
    fn unusual_layers_round_trip() {
        let mut net = Builder::new("a \"name\"");
        let volume = net.input(Shape::volume(4, 9, 8, 7)).here();
        let uneven = Axis { input: 8, filter: 3, pad_before: 2, pad_after: 0, stride: 2, dilation: 2 };
        let axes = [Axis::new(9, 1), uneven, Axis::new(7, 1).pad(1)];
        let convolution = Convolution::new(4, 6, 2, &axes).unwrap();
        net.layer("3d", LayerKind::Convolution { convolution, bias: true }, &[volume]);
        net.max_pool("pool", Window::new(2, 2).pad(1).ceil()).lrn().batch_norm().dropout(0.3).flatten();
        net.fully_connected("fc", 3);
        let network = net.finish().unwrap();
        assert_eq!(Network::from_json(&network.to_json()).unwrap(), network);
    }

    proptest! {
        #[test]
        fn rates_round_trip_exactly(rate in 0.0f32..1.0, epsilon in f32::MIN_POSITIVE..f32::MAX) {
            let mut net = Builder::new("net");
            let input = net.input(Shape::flat(2)).dropout(rate).here();
            net.layer("bn", LayerKind::BatchNorm { epsilon }, &[input]);
            let network = net.finish().unwrap();
            prop_assert_eq!(Network::from_json(&network.to_json()).unwrap(), network);
        }

        #[test]
        fn any_text_is_read_or_rejected(text in "\\PC{0,60}") {
            let _ = Network::from_json(&text);
        }
    }

    /// A network of an input and the given layer.
    fn with(layer: &str) -> Result<Network, Error> {
        Network::from_json(&format!(
            r#"{{"format": "tightfit-network", "version": 1, "name": "net", "layers": [
                {{"name": "input", "kind": "input", "shape": [4, 6, 6]}}, {layer}]}}"#
        ))
    }

    #[test]
    fn fields_with_defaults_may_be_omitted() {
        let by_hand =
            with(r#"{"name": "conv", "kind": "convolution", "inputs": ["input"], "filters": 2, "filter": [3, 3]}"#);
        let mut net = Builder::new("net");
        net.input(Shape::image(4, 6, 6)).conv("conv", Filters::new(2, 3));
        assert_eq!(by_hand.unwrap(), net.finish().unwrap());
    }

    #[test]
    fn errors_name_the_layer_and_the_field() {
        let conv = |rest: &str| format!(r#"{{"name": "x", "kind": "convolution", "inputs": ["input"], {rest}}}"#);
        for (layer, name, part) in [
            ("7".to_owned(), "number 1", "expected an object, got 7"),
            ("{}".to_owned(), "number 1", "field `name` is missing"),
            (r#"{"name": "x"}"#.to_owned(), "x", "field `kind` is missing"),
            (r#"{"name": "x", "kind": "conv"}"#.to_owned(), "x", "unknown kind of layer `conv`"),
            (r#"{"name": "x", "kind": "relu"}"#.to_owned(), "x", "relu takes one input, not 0"),
            (
                r#"{"name": "x", "kind": "relu", "inputs": "input"}"#.to_owned(),
                "x",
                "field `inputs`: \"input\" is not an array",
            ),
            (
                r#"{"name": "x", "kind": "relu", "inputs": ["y"]}"#.to_owned(),
                "x",
                "field `inputs`: there is no layer `y`",
            ),
            (
                r#"{"name": "x", "kind": "relu", "inputs": ["input"], "slope": 1}"#.to_owned(),
                "x",
                "unknown field `slope`",
            ),
            (r#"{"name": "input", "kind": "relu", "inputs": ["input"]}"#.to_owned(), "input", "already exists"),
            (
                r#"{"name": "x", "kind": "input", "shape": [1, 2]}"#.to_owned(),
                "x",
                "field `shape`: expected [features]",
            ),
            (
                r#"{"name": "x", "kind": "dropout", "inputs": ["input"], "rate": 1}"#.to_owned(),
                "x",
                "field `rate`: 1 is not a number of at least 0.0 and less than 1.0",
            ),
            (
                r#"{"name": "x", "kind": "lrn", "inputs": ["input"], "size": 5, "alpha": 1e99, "beta": 1, "k": 1}"#
                    .to_owned(),
                "x",
                "field `alpha`: 1e+99 is not a number of",
            ),
            (conv(r#""filter": [3, 3]"#), "x", "field `filters` is missing"),
            (conv(r#""filters": -1, "filter": [3, 3]"#), "x", "field `filters`: -1 is not a non-negative integer"),
            (conv(r#""filters": 1, "filter": [3]"#), "x", "field `filter`: 1 numbers for the 2 dimensions of 4x6x6"),
            (conv(r#""filters": 1, "filter": [9, 9]"#), "x", "the filter covers 9"),
            (conv(r#""filters": 1, "filter": [3, 3], "stride": [0, 1]"#), "x", "must be at least 1"),
            (conv(r#""filters": 3, "filter": [3, 3], "groups": 2"#), "x", "groups2 must divide"),
            (conv(r#""filters": 1, "filter": [3, 3], "bias": 0"#), "x", "field `bias`: 0 is not true or false"),
            (conv(r#""filters": 1, "filter": [3, 3], "pad_after": [1, 1, 1]"#), "x", "field `pad_after`: 3 numbers"),
        ] {
            let error = with(&layer).unwrap_err();
            let Error::BadNetwork { network, layer, what } = error else { panic!("{layer}: {error}") };
            assert_eq!((network.as_str(), layer.as_str()), ("net", name), "{what}");
            assert!(what.contains(part), "{layer}: {what}");
        }
    }

    #[test]
    fn other_documents_are_rejected() {
        for (text, part) in [
            ("", "EOF while parsing"),
            ("[]", "expected an object, got []"),
            (r#"{"format": "tightfit-plan", "version": 1}"#, "its format is `tightfit-plan`"),
            (r#"{"format": "tightfit-network", "version": 2}"#, "version 2, but this program reads version 1"),
            (r#"{"format": "tightfit-network", "version": 1, "name": "n"}"#, "field `layers` is missing"),
            (r#"{"format": "tightfit-network", "version": 1, "name": "n", "layers": [], "x": 1}"#, "unknown field `x`"),
        ] {
            let error = Network::from_json(text).unwrap_err();
            assert!(matches!(error, Error::BadDocument { .. }) && error.to_string().contains(part), "{text}: {error}");
        }
    }
}
