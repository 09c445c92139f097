//! The layers found so far, under names that users know from the model's code.

use std::collections::HashMap;

use tightfit_units::Error;

use super::call::Call;
use super::slots::{Slot, Source};
use super::value::{Dims, Map, Origin, Value, sample};
use tightfit_network::{Builder, LayerId, LayerKind, Network, Other, Shape};

/// Names longer than this are cut.
const LONGEST_NAME: usize = 120;

/// The layers found so far.
pub struct Layers {
    net: Builder,
    /// The names in use, each with the suffix to try next for another layer of that name.
    names: HashMap<String, usize>,
    batch: usize,
    sources: Vec<Source>,
    reasons: Vec<Reason>,
}

/// Why a layer cannot run.
pub type Reason = (LayerId, String);

impl Layers {
    /// An empty network; `batch` represents the mini-batch in extents.
    pub fn new(network: &str, batch: usize) -> Layers {
        Layers { net: Builder::new(network), names: HashMap::new(), batch, sources: Vec::new(), reasons: Vec::new() }
    }

    /// The network of these layers, the sources of their parameters, and the reasons why layers cannot run.
    pub fn finish(self) -> Result<(Network, Vec<Source>, Vec<Reason>), Error> {
        Ok((self.net.finish()?, self.sources, self.reasons))
    }

    /// Notes why a layer cannot run.
    pub fn cannot_run(&mut self, layer: LayerId, why: String) {
        self.reasons.push((layer, why));
    }

    fn shape(&self, layer: LayerId) -> Shape {
        self.net.layers()[layer.index()].shape
    }

    /// Adds a layer under a name like `wanted`.
    pub fn add(&mut self, wanted: &str, kind: LayerKind, inputs: &[LayerId]) -> Result<LayerId, String> {
        let shapes: Vec<Shape> = inputs.iter().map(|input| self.shape(*input)).collect();
        // The builder would keep the error until the end.
        kind.output(&shapes)?;
        let name = self.unique(wanted);
        let inputs: Vec<Option<LayerId>> = inputs.iter().copied().map(Some).collect();
        self.net.layer(name, kind, &inputs).here().ok_or_else(|| "the layer could not be added".to_owned())
    }

    /// Adds a layer whose output has these extents.
    pub fn map(&mut self, name: &str, kind: LayerKind, inputs: &[LayerId], dims: Dims) -> Result<Value, String> {
        let layer = self.add(name, kind, inputs)?;
        self.view(name, &Map { layer, dims: dims.clone() }, dims)
    }

    /// Adds a layer that is planned by its sizes, for a node with these extents. `other` sets its differences from a plain one. It runs if `other`
    /// sets a function that fits.
    pub fn other(&mut self, call: &Call<'_>, dims: Dims, other: impl FnOnce(&mut Other)) -> Result<Value, String> {
        let mut of = Other::new(call.operator(), sample(&dims, self.batch)?);
        of.parameters = call.constants().fold(0, |sum, constant| sum.saturating_add(constant.parameters()));
        other(&mut of);
        let inputs: Vec<LayerId> = call.maps().iter().map(|map| map.layer).collect();
        let shapes: Vec<Shape> = inputs.iter().map(|input| self.shape(*input)).collect();
        // The function's own number of learned parameters counts, even if the file computes them from fewer numbers. Scales and the like do not
        // count.
        if let Some(function) = &of.function {
            let learns = function.parameter_kinds(&shapes);
            of.parameters = learns.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count));
        }
        of.function = of.function.take().filter(|function| of.check(function, &shapes).is_ok());
        self.map(&name_of(call), LayerKind::Other(Box::new(of)), &inputs, dims)
    }

    /// Adds a layer that cannot run.
    pub fn planned(
        &mut self,
        call: &Call<'_>,
        dims: Dims,
        why: String,
        other: impl FnOnce(&mut Other),
    ) -> Result<Value, String> {
        let value = self.other(call, dims, other)?;
        if let Value::Map(map) = &value {
            self.cannot_run(map.layer, why);
        }
        Ok(value)
    }

    /// Records the values of the graph that are the parameters of a layer.
    pub fn learn<'a>(&mut self, layer: LayerId, slots: impl IntoIterator<Item = (Slot, Option<&'a Value>)>) {
        for (slot, value) in slots {
            if let Some(Value::Constant(constant)) = value
                && let Some(Origin { name, order, .. }) = &constant.origin
            {
                let (value, order) = (name.clone(), *order);
                self.sources.push(Source { layer, slot, value, order, is_initializer: false, is_computed: false });
            }
        }
    }

    /// Records the parameters of the layer with this output, if it runs by a function.
    pub fn learn_function<'a>(&mut self, output: &Value, slots: impl IntoIterator<Item = (Slot, Option<&'a Value>)>) {
        if let Value::Map(map) = output
            && let LayerKind::Other(other) = &self.net.layers()[map.layer.index()].kind
            && other.function.is_some()
        {
            self.learn(map.layer, slots);
        }
    }

    /// The same data with other extents.
    pub fn view(&mut self, name: &str, map: &Map, dims: Dims) -> Result<Value, String> {
        let shape = sample(&dims, self.batch)?;
        let own = self.shape(map.layer);
        if own == shape {
            return Ok(Value::Map(Map { layer: map.layer, dims }));
        }
        let kind = if shape == Shape::flat(own.len()) { LayerKind::Flatten } else { LayerKind::Reshape { shape } };
        let layer = self.add(&format!("{name}.view"), kind, &[map.layer])?;
        Ok(Value::Map(Map { layer, dims }))
    }

    /// A name that no layer has yet, without characters that names cannot contain.
    fn unique(&mut self, wanted: &str) -> String {
        let clean = |c: char| if c.is_control() || c.is_whitespace() || c == '#' { '_' } else { c };
        let mut name: String = wanted.chars().take(LONGEST_NAME).map(clean).collect();
        if name.is_empty() {
            name = "layer".to_owned();
        }
        let mut unique = name.clone();
        while self.names.contains_key(&unique) {
            let number = self.names.entry(name.clone()).or_insert(2);
            unique = format!("{name}~{number}");
            *number += 1;
        }
        self.names.insert(unique.clone(), 2);
        unique
    }
}

/// The name of a node for users: the module that holds its weights, else the exporter's path of modules, else its first output.
///
/// ```text
/// weights layer1.0.conv1.weight              layer1.0.conv1
/// node    /layer1/layer1.0/relu/Relu         layer1.0.relu
/// node    node_relu_1                        relu_1
/// ```
pub fn name_of(call: &Call<'_>) -> String {
    let stem = call.constants().filter_map(|constant| constant.origin.as_ref()).find_map(|origin| {
        let stem = origin.name.strip_suffix(".weight").or_else(|| origin.name.strip_suffix(".bias"))?;
        (!stem.is_empty()).then(|| stem.to_owned())
    });
    stem.unwrap_or_else(|| {
        let node = call.node;
        let name = [&node.name, node.output.first().unwrap_or(&node.op_type), &node.op_type];
        name.iter().find(|name| !name.is_empty()).map_or_else(String::new, |name| shortened(name))
    })
}

/// A node's path with each module once: `/layer1/layer1.0/relu/Relu` is `layer1.0.relu`.
fn shortened(path: &str) -> String {
    let Some(path) = path.strip_prefix('/') else { return path.strip_prefix("node_").unwrap_or(path).to_owned() };
    let mut modules: Vec<&str> = path.split('/').collect();
    if modules.len() > 1 {
        // The operator.
        modules.pop();
    }
    let mut name = String::new();
    for module in modules {
        let goes_on = module.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'));
        let last =
            name.rsplit('.').next().is_some_and(|last| !last.is_empty() && module.starts_with(&format!("{last}.")));
        if goes_on || name.is_empty() {
            name = module.to_owned();
        } else if last {
            let kept = name.len() - name.rsplit('.').next().map_or(0, str::len);
            name.truncate(kept);
            name += module;
        } else {
            name = format!("{name}.{module}");
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_each_module_once() {
        for (path, name) in [
            ("/layer1/layer1.0/relu/Relu", "layer1.0.relu"),
            (
                "/features/features.1/features.1.0/block/block.2/avgpool/GlobalAveragePool",
                "features.1.0.block.2.avgpool",
            ),
            ("/Add", "Add"),
            ("/relu_1/Relu", "relu_1"),
            ("node_Conv_12", "Conv_12"),
            ("a//b", "a//b"),
            ("", ""),
            ("/", ""),
        ] {
            assert_eq!(shortened(path), name, "{path}");
        }
    }

    #[test]
    fn names_are_unique_and_clean() {
        let mut layers = Layers::new("net", 1);
        let kind = LayerKind::Input { shape: Shape::flat(1), batch: None };
        let names: Vec<String> = ["a b\n", "a_b_", "", "a_b_~2", "a_b_"]
            .iter()
            .map(|wanted| {
                let id = layers.add(wanted, kind.clone(), &[]).unwrap();
                layers.net.layers()[id.index()].name.clone()
            })
            .collect();
        assert_eq!(names, ["a_b_", "a_b_~2", "layer", "a_b_~2~2", "a_b_~3"]);
    }
}
