//! What the tensors of a plan are called, in reports, traces and messages.

use super::{Plan, Tensor, Workload};
use crate::network::{LayerId, MapId};

impl Workload<'_> {
    /// A tensor in words: what it is, and the name of its layer; a map belongs to the layer that writes it first.
    pub fn describe(&self, tensor: Tensor) -> String {
        let layer = |id: LayerId| &*self.network.layer(id).name;
        words(tensor, layer, |map| self.maps.get(map).layers.first().map_or("", |&first| layer(first)))
    }
}

impl Plan {
    /// A tensor in the words of [`Workload::describe`], for a plan whose workload is not at hand.
    pub fn describe(&self, tensor: Tensor) -> String {
        let map = |map: MapId| self.maps.get(map.index()).and_then(|map| map.layers.first()).map_or("", String::as_str);
        words(tensor, |layer| self.layer_name(layer), map)
    }

    /// The name of a layer of the plan's network.
    pub(crate) fn layer_name(&self, layer: LayerId) -> &str {
        self.layers.get(layer.index()).map_or("", |layer| &layer.name)
    }
}

fn words<'a>(tensor: Tensor, layer: impl Fn(LayerId) -> &'a str, map: impl Fn(MapId) -> &'a str) -> String {
    match tensor {
        Tensor::FeatureMap(id) => format!("feature map {}", map(id)),
        Tensor::Gradient(id) => format!("gradient map {}", map(id)),
        Tensor::Weights(id) => format!("weights {}", layer(id)),
        Tensor::MasterWeights(id) => format!("master weights {}", layer(id)),
        Tensor::WeightGradient(id) => format!("weight gradient {}", layer(id)),
        Tensor::Momentum(id) => format!("momentum {}", layer(id)),
        Tensor::Statistics(id) => format!("statistics {}", layer(id)),
        Tensor::Saved(id) => format!("saved {}", layer(id)),
        Tensor::Labels => "labels".to_owned(),
        Tensor::Workspace(id) => format!("workspace {}", layer(id)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Costs, Kernels, Options, plan};
    use crate::{Network, Types};

    #[test]
    fn a_plan_and_its_workload_call_a_tensor_the_same() {
        let network = Network::open("lenet").unwrap();
        let workload = Workload::new(&network, 4, Types::F32, false).unwrap();
        let kernels = Kernels::assumed(&workload, &Costs::cpu()).unwrap();
        let plan = plan(&workload, &kernels, &Costs::cpu(), &Options::default()).unwrap();
        let names = |describe: &dyn Fn(Tensor) -> String| -> Vec<String> {
            plan.schedule.blocks.iter().map(|block| describe(block.tensor)).collect()
        };
        let found = names(&|tensor| plan.describe(tensor));
        assert_eq!(found, names(&|tensor| workload.describe(tensor)));
        for name in ["feature map conv1", "gradient map conv2", "weights fc1", "momentum fc2", "labels"] {
            assert!(found.iter().any(|found| found == name), "{name}: {found:?}");
        }
    }
}
