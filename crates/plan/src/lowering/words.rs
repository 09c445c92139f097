//! Names of a network's tensors in reports, traces and messages.

use tightfit_network::{LayerId, MapId};

use crate::{NetworkTensor, Workload};

impl Workload<'_> {
    /// Describes a tensor: its kind and the name of its layer. A map is named after the first layer that writes it.
    pub fn describe(&self, tensor: NetworkTensor) -> String {
        let layer = |id: LayerId| &*self.network.layer(id).name;
        let map = |map: MapId| self.maps.get(map).layers.first().map_or("", |&first| layer(first));
        match tensor {
            NetworkTensor::FeatureMap(id) => format!("feature map {}", map(id)),
            NetworkTensor::Gradient(id) => format!("gradient map {}", map(id)),
            NetworkTensor::Weights(id) => format!("weights {}", layer(id)),
            NetworkTensor::MasterWeights(id) => format!("master weights {}", layer(id)),
            NetworkTensor::WeightGradient(id) => format!("weight gradient {}", layer(id)),
            NetworkTensor::Momentum(id) => format!("momentum {}", layer(id)),
            NetworkTensor::SecondMoment(id) => format!("second moment {}", layer(id)),
            NetworkTensor::Statistics(id) => format!("statistics {}", layer(id)),
            NetworkTensor::Saved(id) => format!("saved {}", layer(id)),
            NetworkTensor::Labels => "labels".to_owned(),
            NetworkTensor::Workspace(id) => format!("workspace {}", layer(id)),
        }
    }
}
