//! The kernels of a network that can run concurrently: kernels of one operation with no path between their layers.
//!
//! ```text
//!                 level 1         level 2
//!         ,-- 1x1 ---------------------------.
//!         |-- 1x1 reduce --- 3x3 ------------|
//! input --+-- 1x1 reduce --- 5x5 ------------+-- concat
//!         `-- pool --------- (none) -- 1x1 --'         the projection is on level 1: pooling is not a convolution
//! ```
//!
//! A convolution's level is the largest number of convolutions on any path to it, itself included. A path from one
//! convolution to another raises the level, so convolutions on one level never wait for each other. Unconnected layers,
//! as in a layer list, never run in one step and so never concurrently.

use std::collections::HashMap;

use tightfit_conv::Operation;

use super::{Kernel, LayerKind, Network};

impl Network {
    /// Groups of kernels that can run concurrently, as indices into `kernels`, in the order of their first members.
    /// Every kernel is in exactly one group; most groups have one member.
    ///
    /// Groups run one after another. Members of a group overlap, so they cannot share a workspace.
    ///
    /// - Cost: O(layers + kernels).
    ///
    /// ```
    /// use tightfit_conv::{Layout, Operation, Types};
    /// use tightfit_network::Network;
    /// let network = Network::open("googlenet")?;
    /// let kernels = network.kernels(Some(1), &[Operation::Forward], Types::F32, Layout::Nchw)?;
    /// let sizes: Vec<usize> = network.concurrent(&kernels).iter().map(Vec::len).collect();
    /// assert_eq!(sizes[..7], [1, 1, 1, 4, 2, 4, 2]);
    /// # Ok::<(), tightfit_units::Error>(())
    /// ```
    pub fn concurrent(&self, kernels: &[Kernel]) -> Vec<Vec<usize>> {
        let levels = self.levels();
        let parts = self.parts();
        let places: HashMap<&str, usize> = self.iter().map(|(id, layer)| (layer.name.as_str(), id.index())).collect();
        let mut found: HashMap<(Operation, usize, usize), usize> = HashMap::new();
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (index, kernel) in kernels.iter().enumerate() {
            let known = places.get(kernel.layer.as_str()).map(|&place| (parts[place], levels[place]));
            let group = match known {
                Some((part, level)) => *found.entry((kernel.problem.operation(), part, level)).or_insert(groups.len()),
                // A layer of another network: nothing is known about its neighbors.
                None => groups.len(),
            };
            match groups.get_mut(group) {
                Some(members) => members.push(index),
                None => groups.push(vec![index]),
            }
        }
        groups
    }

    /// The most convolutions on any path to each layer, itself included.
    fn levels(&self) -> Vec<usize> {
        let mut levels: Vec<usize> = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            let above = layer.inputs.iter().map(|input| levels[input.index()]).max().unwrap_or(0);
            levels.push(above + usize::from(matches!(layer.kind, LayerKind::Convolution { .. })));
        }
        levels
    }

    /// For each layer, the first layer of its connected component, ignoring edge directions.
    fn parts(&self) -> Vec<usize> {
        let mut parts: Vec<usize> = (0..self.layers.len()).collect();
        let root = |parts: &[usize], mut layer: usize| {
            while parts[layer] != layer {
                layer = parts[layer];
            }
            layer
        };
        for (index, layer) in self.layers.iter().enumerate() {
            for input in &layer.inputs {
                let (a, b) = (root(&parts, index), root(&parts, input.index()));
                parts[a.max(b)] = a.min(b);
            }
        }
        (0..parts.len()).map(|layer| root(&parts, layer)).collect()
    }
}
