//! Feature maps: which layers write the same memory, and what the backward passes read again.
//!
//! A layer that may overwrite its input shares its map (Rhu et al. 2016, section 2.2, footnote 1), and so does one that
//! only sees its input in another shape:
//!
//! ```text
//! conv1 -> relu -> pool1 -> flatten -> fc1 -> relu -> dropout -> fc2
//! |--- map 1 --|  |---- map 2 -----|  |------- map 3 -------|  | 4 |
//! ```
//!
//! The gradient of a map is shared in the same way: going backward through an in-place layer overwrites it.

use serde::{Deserialize, Serialize};

use super::{Behavior, Layer, LayerId, Network, Part, Placement, Shape};

/// A map's place among those of its network, in the order in which they are first written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MapId(usize);

impl MapId {
    /// Index into [`FeatureMaps::iter`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// One piece of memory that holds the output of one layer or, one after another, of several.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureMap {
    /// The layers that write it, in order; the first is the one that it is allocated for.
    pub layers: Vec<LayerId>,
    /// Elements of one sample.
    pub elements: usize,
    /// The layers outside the map that read it going forward, in order.
    pub readers: Vec<LayerId>,
    /// Whether training needs its gradient: something upstream learns.
    pub gradient: bool,
}

/// The feature maps of a network, and which of them each layer writes.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureMaps {
    maps: Vec<FeatureMap>,
    of_layer: Vec<MapId>,
}

impl FeatureMaps {
    /// The maps of `network`.
    ///
    /// A layer works in place if it can, nothing else reads what it overwrites, and the layer that wrote it does not read
    /// its output again going backward. A rectified unit still may before a dropout: what is dropped gets no gradient,
    /// and the rest keeps its sign.
    pub fn of(network: &Network) -> FeatureMaps {
        let mut maps: Vec<FeatureMap> = Vec::new();
        let mut of_layer: Vec<MapId> = Vec::new();
        for (id, layer) in network.iter() {
            let first = layer.inputs.first().copied();
            let learns =
                layer.parameters > 0 || layer.inputs.iter().any(|input| maps[of_layer[input.index()].0].gradient);
            let Behavior { part, placement, .. } = layer.kind.behavior();
            let shared = first.filter(|&input| {
                part == Part::View || placement != Placement::Apart && may_overwrite(network, layer, input)
            });
            let map = match shared {
                Some(input) => of_layer[input.index()],
                None => {
                    maps.push(FeatureMap {
                        layers: vec![],
                        elements: layer.shape.len(),
                        readers: vec![],
                        gradient: learns,
                    });
                    MapId(maps.len() - 1)
                }
            };
            maps[map.0].layers.push(id);
            // A sum over a map that learns nothing may add one that does.
            maps[map.0].gradient |= learns;
            of_layer.push(map);
            for input in &layer.inputs {
                let read = of_layer[input.index()];
                if read != map && maps[read.0].readers.last() != Some(&id) {
                    maps[read.0].readers.push(id);
                }
            }
        }
        FeatureMaps { maps, of_layer }
    }

    /// The map that a layer writes.
    ///
    /// # Panics
    /// If `layer` is of a larger network.
    pub fn written_by(&self, layer: LayerId) -> MapId {
        self.of_layer[layer.index()]
    }

    /// One map.
    ///
    /// # Panics
    /// If `id` is of another network with more maps.
    pub fn get(&self, id: MapId) -> &FeatureMap {
        &self.maps[id.0]
    }

    /// All maps in the order in which they are first written.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (MapId, &FeatureMap)> {
        self.maps.iter().enumerate().map(|(index, map)| (MapId(index), map))
    }
}

/// Whether `layer` may write its output over that of `input`.
fn may_overwrite(network: &Network, layer: &Layer, mut input: LayerId) -> bool {
    let sole_reader = |id: LayerId| network.consumers(id).len() == 1;
    // A flattened map is the map before it: nothing else may read that one either.
    while sole_reader(input) {
        let writer = network.layer(input);
        let behavior = writer.kind.behavior();
        match (behavior.part, writer.inputs.first()) {
            (Part::View, Some(&before)) => input = before,
            // Where it worked in place, the map before it is overwritten too.
            (_, Some(&before)) if behavior.keeps_sign && sole_reader(before) => input = before,
            (Part::Input, _) => return false,
            _ if behavior.reads_sign_alone => return layer.kind.behavior().keeps_sign,
            _ => return !behavior.backward.output,
        }
    }
    false
}

impl Network {
    /// The shapes of one sample that a layer reads.
    ///
    /// # Panics
    /// If `layer` is of a larger network.
    pub fn input_shapes(&self, layer: LayerId) -> Vec<Shape> {
        self.layer(layer).inputs.iter().map(|&input| self.layer(input).shape).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Builder, Filters, LayerKind, Window};

    /// The names of the layers of every map.
    fn names(network: &Network) -> Vec<String> {
        let maps = FeatureMaps::of(network);
        let of = |map: &FeatureMap| {
            let names: Vec<&str> = map.layers.iter().map(|&layer| network.layer(layer).name.as_str()).collect();
            names.join(" ")
        };
        maps.iter().map(|(_, map)| of(map)).collect()
    }

    #[test]
    fn layers_that_may_overwrite_their_input_share_its_map() {
        let network = Network::open("digits-net").unwrap();
        let expected =
            ["input", "conv1 conv1.relu", "conv2 conv2.relu", "pool2 pool2.flatten", "fc1 fc1.relu", "fc2 loss"];
        assert_eq!(names(&network), expected);
        let vgg = names(&Network::open("vgg16").unwrap());
        assert!(vgg.contains(&"fc6 fc6.relu fc6.dropout".to_owned()), "{vgg:?}");
    }

    #[test]
    fn nothing_is_overwritten_that_is_read_again() {
        // The maximum's backward pass reads its output, which the rectified unit must leave alone.
        let quick = names(&Network::open("cifar10-quick").unwrap());
        assert!(quick.contains(&"pool1".to_owned()) && quick.contains(&"pool1.relu".to_owned()), "{quick:?}");
        // Two layers read the convolution.
        let mut net = Builder::new("fork");
        let fork = net.input(Shape::image(2, 4, 4)).conv("conv", Filters::new(2, 1)).here();
        let left = net.relu().here();
        let right = net.at(fork).max_pool("pool", Window::new(1, 1)).here();
        net.add("sum", &[left, right]);
        assert_eq!(names(&net.finish().unwrap()), ["input", "conv", "conv.relu", "pool", "sum"]);
    }

    #[test]
    fn a_sum_leaves_a_rectified_unit_under_a_dropout_alone() {
        let mut net = Builder::new("sum");
        let input = net.input(Shape::flat(4)).here();
        let dropped = net.fully_connected("fc", 4).relu().dropout(0.5).here();
        net.add("sum", &[dropped, input]);
        assert_eq!(names(&net.finish().unwrap()), ["input", "fc fc.relu fc.dropout", "sum"]);
    }

    #[test]
    fn a_residual_sum_overwrites_the_branch_that_only_it_reads() {
        let network = Network::open("resnet18").unwrap();
        let maps = FeatureMaps::of(&network);
        let (_, sum) = network.iter().find(|(_, layer)| layer.kind == LayerKind::Add).unwrap();
        let map = maps.get(maps.written_by(sum.inputs[0]));
        assert!(map.layers.len() >= 3, "batch normalization, sum and rectified unit: {map:?}");
        assert_ne!(maps.written_by(sum.inputs[0]), maps.written_by(sum.inputs[1]));
    }

    #[test]
    fn a_sum_learns_if_any_of_its_inputs_does() {
        let mut net = Builder::new("sum");
        let input = net.input(Shape::image(2, 4, 4)).here();
        let learned = net.conv("conv", Filters::new(2, 1)).here();
        let fixed = net.at(input).average_pool("mean", Window::new(1, 1)).here();
        net.add("sum", &[fixed, learned]);
        let network = net.finish().unwrap();
        let maps = FeatureMaps::of(&network);
        let sum = network.iter().next_back().unwrap().0;
        assert_eq!(names(&network), ["input", "conv", "mean sum"]);
        assert!(maps.get(maps.written_by(sum)).gradient);
    }

    #[test]
    fn the_input_needs_no_gradient() {
        let network = Network::open("lenet").unwrap();
        let gradients: Vec<bool> = FeatureMaps::of(&network).iter().map(|(_, map)| map.gradient).collect();
        assert_eq!(gradients.iter().filter(|gradient| !**gradient).count(), 1);
        assert!(!gradients[0]);
    }
}
