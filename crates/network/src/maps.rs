//! Feature maps: the layers that share memory, and the maps that need a gradient.
//!
//! A layer that may overwrite its input shares its input's map (Rhu et al. 2016, section 2.2, footnote 1), and so does
//! a layer that only reshapes its input:
//!
//! ```text
//! conv1 -> relu -> pool1 -> flatten -> fc1 -> relu -> dropout -> fc2
//! |--- map 1 --|  |---- map 2 -----|  |------- map 3 -------|  | 4 |
//! ```
//!
//! Layers share the map's gradient in the same way: an in-place layer overwrites it going backward.

use serde::{Deserialize, Serialize};

use super::{Behavior, Layer, LayerId, Network, Part, Placement, Shape};

/// A map's index among its network's maps, in the order of their first write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MapId(usize);

impl MapId {
    /// Index into [`FeatureMaps::iter`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A piece of memory that holds the output of one layer, or of several layers in succession.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureMap {
    /// The layers that write it, in order; it is allocated for the first.
    pub layers: Vec<LayerId>,
    /// Elements per sample.
    pub elements: usize,
    /// The layers that read it going forward without writing it, in order.
    pub readers: Vec<LayerId>,
    /// Whether training needs its gradient, because a layer upstream learns.
    pub gradient: bool,
}

/// The feature maps of a network, and the map that each layer writes.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureMaps {
    maps: Vec<FeatureMap>,
    of_layer: Vec<MapId>,
}

impl FeatureMaps {
    /// Computes the maps of `network`.
    ///
    /// A layer works in place if its kind can, no other layer reads the map it overwrites, and the layer that wrote the
    /// map does not read its output again going backward. Exception: dropout may overwrite a ReLU's output, because
    /// dropped elements get no gradient and the others keep their sign.
    pub fn of(network: &Network) -> FeatureMaps {
        FeatureMaps::of_trained(network, |layer| network.layer(layer).parameters > 0)
    }

    /// The maps of `network` if only some layers learn.
    pub fn of_trained(network: &Network, trains: impl Fn(LayerId) -> bool) -> FeatureMaps {
        let mut maps: Vec<FeatureMap> = Vec::new();
        let mut of_layer: Vec<MapId> = Vec::new();
        for (id, layer) in network.iter() {
            let first = layer.inputs.first().copied();
            let learns = trains(id) || layer.inputs.iter().any(|input| maps[of_layer[input.index()].0].gradient);
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
            // A sum in place over an input that needs no gradient may add one that does.
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
    /// If `layer` is out of range.
    pub fn written_by(&self, layer: LayerId) -> MapId {
        self.of_layer[layer.index()]
    }

    /// One map.
    ///
    /// # Panics
    /// If `id` is out of range.
    pub fn get(&self, id: MapId) -> &FeatureMap {
        &self.maps[id.0]
    }

    /// All maps in the order of their first write.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (MapId, &FeatureMap)> {
        self.maps.iter().enumerate().map(|(index, map)| (MapId(index), map))
    }
}

fn may_overwrite(network: &Network, layer: &Layer, mut input: LayerId) -> bool {
    let sole_reader = |id: LayerId| network.consumers(id).len() == 1;
    // A flattened map is the map before it: no other layer may read that one either.
    while sole_reader(input) {
        let writer = network.layer(input);
        let behavior = writer.kind.behavior();
        match (behavior.part, writer.inputs.first()) {
            (Part::View, Some(&before)) => input = before,
            // If the writer works in place, the map before it is overwritten too.
            (_, Some(&before)) if behavior.keeps_sign && sole_reader(before) => input = before,
            (Part::Input, _) => return false,
            _ if behavior.reads_sign_alone => return layer.kind.behavior().keeps_sign,
            _ => return !behavior.backward.output,
        }
    }
    false
}

impl Network {
    /// The input shapes of a layer, per sample.
    ///
    /// # Panics
    /// If `layer` is out of range.
    pub fn input_shapes(&self, layer: LayerId) -> Vec<Shape> {
        self.layer(layer).inputs.iter().map(|&input| self.layer(input).shape).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Filters, LayerKind, Window};

    /// The layer names of every map.
    fn names(network: &Network) -> Vec<String> {
        let maps = FeatureMaps::of(network);
        let layers = |map: &FeatureMap| {
            let names: Vec<&str> = map.layers.iter().map(|&layer| network.layer(layer).name.as_str()).collect();
            names.join(" ")
        };
        maps.iter().map(|(_, map)| layers(map)).collect()
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
    fn maps_that_are_read_again_are_not_overwritten() {
        // Max pooling reads its output going backward, so the ReLU must not overwrite it.
        let quick = names(&Network::open("cifar10-quick").unwrap());
        assert!(quick.contains(&"pool1".to_owned()) && quick.contains(&"pool1.relu".to_owned()), "{quick:?}");
        // Two layers read the convolution's output.
        let mut net = Builder::new("fork");
        let fork = net.input(Shape::image(2, 4, 4)).conv("conv", Filters::new(2, 1)).here();
        let left = net.relu().here();
        let right = net.at(fork).max_pool("pool", Window::new(1, 1)).here();
        net.add("sum", &[left, right]);
        assert_eq!(names(&net.finish().unwrap()), ["input", "conv", "conv.relu", "pool", "sum"]);
    }

    #[test]
    fn a_sum_does_not_overwrite_a_relu_under_dropout() {
        let mut net = Builder::new("sum");
        let input = net.input(Shape::flat(4)).here();
        let dropped = net.fully_connected("fc", 4).relu().dropout(0.5).here();
        net.add("sum", &[dropped, input]);
        assert_eq!(names(&net.finish().unwrap()), ["input", "fc fc.relu fc.dropout", "sum"]);
    }

    #[test]
    fn a_residual_sum_overwrites_its_private_branch() {
        let network = Network::open("resnet18").unwrap();
        let maps = FeatureMaps::of(&network);
        let (_, sum) = network.iter().find(|(_, layer)| layer.kind == LayerKind::Add).unwrap();
        let map = maps.get(maps.written_by(sum.inputs[0]));
        assert!(map.layers.len() >= 3, "batch normalization, sum and ReLU: {map:?}");
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
