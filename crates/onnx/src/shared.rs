//! Parameters that several layers use: as one tensor, or in ways that cannot be trained as one.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::graph::Graph;
use super::shown::shown;
use super::slots::{Slot, Source};
use super::value::Constant;
use tightfit_network::{LayerId, Network};

/// Numbers that several layers use as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shared {
    /// The name of the initializer, or of the computed value.
    pub name: String,
    /// Whether it is an initializer.
    pub is_initializer: bool,
    /// The layers, each with the slot that the numbers fill.
    pub uses: Vec<(LayerId, Slot)>,
}

/// The uses of numbers by layers.
#[derive(Clone, Debug, Default)]
pub(super) struct Uses {
    shared: Vec<Shared>,
    /// Numbers that two layers use in different ways, with these ways.
    apart: Vec<Apart>,
}

#[derive(Clone, Debug)]
struct Apart {
    name: String,
    layers: [LayerId; 2],
    how: &'static str,
}

impl Uses {
    /// The uses of all learned numbers.
    ///
    /// - Cost: the nodes between initializers and layers, once.
    pub fn of(graph: &Graph<'_>, sources: &[Source]) -> Uses {
        let mut all = Uses::default();
        let mut by_value: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
        for source in sources {
            by_value.entry(&source.value).or_default().push(source);
        }
        for (name, of) in &by_value {
            let Some((first, others)) = of.split_first() else { continue };
            for other in others {
                let how = if first.order != other.order {
                    "as it is and transposed"
                } else if class(first.slot) != class(other.slot) {
                    "as weights and as statistics of batch normalization"
                } else {
                    continue;
                };
                all.apart.push(Apart { name: (*name).to_owned(), layers: [first.layer, other.layer], how });
            }
            if !others.is_empty() {
                let uses = of.iter().map(|source| (source.layer, source.slot)).collect();
                all.shared.push(Shared { name: (*name).to_owned(), is_initializer: first.is_initializer, uses });
            }
        }
        all.computations(graph, &by_value);
        all
    }

    /// Finds initializers that two layers' parameters depend on through different nodes.
    fn computations(&mut self, graph: &Graph<'_>, by_value: &BTreeMap<&str, Vec<&Source>>) {
        let learned = learned(graph);
        let mut owners: HashMap<&str, (&str, LayerId)> = HashMap::new();
        for (value, of) in by_value {
            let Some(layer) = of.first().map(|source| source.layer) else { continue };
            let mut open: Vec<&str> = vec![value];
            while let Some(name) = open.pop() {
                if !graph.constant(name).is_some_and(Constant::is_learnable) {
                    continue;
                }
                match owners.get(name) {
                    Some((owner, _)) if owner == value => continue,
                    Some((_, other)) if learned.contains(name) => {
                        let how = "through different computations";
                        self.apart.push(Apart { name: name.to_owned(), layers: [*other, layer], how });
                        continue;
                    }
                    Some(_) => continue,
                    None => owners.insert(name, (value, layer)),
                };
                open.extend(graph.writer(name).iter().flat_map(|node| &node.input).map(String::as_str));
            }
        }
    }

    /// The shared numbers; an error names numbers that cannot be shared.
    pub fn shared(&self, network: &Network) -> Result<Vec<Shared>, String> {
        if let Some(Apart { name, layers, how }) = self.apart.first() {
            let [one, other] = layers.map(|layer| &network.layer(layer).name);
            return Err(format!(
                "layers {one} and {other} use {} {how}, so it cannot be trained as one; export the model with parameters of \
                 their own, in training mode so that equal ones are not merged",
                shown(name)
            ));
        }
        Ok(self.shared.clone())
    }
}

/// The values that depend on more than one of the file's floating-point numbers. Numbers that only fill a shape do not count.
fn learned<'a>(graph: &Graph<'a>) -> HashSet<&'a str> {
    let learnable = |name: &str| graph.constant(name).is_some_and(Constant::is_learnable);
    let mut all = HashSet::new();
    for node in (0..graph.len()).map(|at| graph.node(at)) {
        let held = node.input.iter().map(String::as_str).filter(|name| graph.writer(name).is_none() && learnable(name));
        all.extend(held);
        if node.op_type == "Constant" || node.input.iter().any(|name| all.contains(name.as_str())) {
            all.extend(node.output.iter().map(String::as_str).filter(|name| learnable(name)));
        }
    }
    all
}

/// The class of a slot. Slots of different classes cannot be one tensor: trained parameters, means, variances.
fn class(slot: Slot) -> Slot {
    match slot {
        Slot::Mean | Slot::Variance => slot,
        _ => Slot::Weight,
    }
}
