//! What the parts of a schedule are called.

use crate::network::LayerId;
use crate::plan::{Action, Pass, Plan, Step, Stream, Tensor};

/// The name of a layer of the plan's network.
pub fn layer(plan: &Plan, layer: LayerId) -> &str {
    plan.layers.get(layer.index()).map_or("", |layer| &layer.name)
}

/// A tensor by its kind and the layer that it belongs to; a map belongs to the layer that writes it first.
pub fn tensor(plan: &Plan, tensor: Tensor) -> String {
    let map = |map: crate::network::MapId| {
        let writers = plan.maps.get(map.index()).map_or(&[][..], |map| &map.layers[..]);
        writers.first().map_or("", String::as_str)
    };
    match tensor {
        Tensor::FeatureMap(id) => format!("feature map {}", map(id)),
        Tensor::Gradient(id) => format!("gradient map {}", map(id)),
        Tensor::Weights(id) => format!("weights {}", layer(plan, id)),
        Tensor::MasterWeights(id) => format!("master weights {}", layer(plan, id)),
        Tensor::WeightGradient(id) => format!("weight gradient {}", layer(plan, id)),
        Tensor::Momentum(id) => format!("momentum {}", layer(plan, id)),
        Tensor::Statistics(id) => format!("statistics {}", layer(plan, id)),
        Tensor::Saved(id) => format!("saved {}", layer(plan, id)),
        Tensor::Labels => "labels".to_owned(),
        Tensor::Workspace(id) => format!("workspace {}", layer(plan, id)),
    }
}

pub fn stream(stream: Stream) -> &'static str {
    match stream {
        Stream::Compute => "compute",
        Stream::Offload => "offload",
        Stream::Prefetch => "prefetch",
    }
}

pub fn pass(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "forward",
        Pass::BackwardData => "backward-data",
        Pass::BackwardFilter => "backward-filter",
        Pass::Update => "update",
    }
}

/// What a step that takes time does; nothing for one that takes none.
pub fn work(plan: &Plan, step: &Step) -> Option<String> {
    let block = |block: crate::plan::BlockId| tensor(plan, plan.schedule.blocks[block.0].tensor);
    match &step.action {
        Action::Compute(compute) => {
            let how = compute.configuration.as_ref().map(|found| format!(", {found}")).unwrap_or_default();
            let again = if compute.again { " again" } else { "" };
            Some(format!("{} {}{again}{how}", layer(plan, compute.layer), pass(compute.pass)))
        }
        Action::Offload(from, _) => Some(format!("offload {}", block(*from))),
        Action::Prefetch(_, to) => Some(format!("prefetch {}", block(*to))),
        Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => None,
    }
}
