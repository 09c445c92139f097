//! The pictures of a plan's page, each an SVG document.
//!
//! `memory` and `streams` draw the step over time, `arena` the addresses of blocks, `layers` and `maps` rows of bytes and times, `bars` totals.
//!
//! **Source**: Rhu et al. 2016, figures 1 (working sets), 3 (breakdown), 4 (layers), 9 (average and maximum) and 10 (offloaded bytes), which show
//! many networks; these show one plan.

mod arena;
mod bars;
mod layers;
mod maps;
mod memory;
mod streams;

pub use arena::arena;
pub use bars::{kinds, totals};
pub use layers::layers;
pub use maps::maps;
pub use memory::memory;
pub use streams::streams;

use tightfit_plan::Kind;

use crate::svg::legend::color;

/// Width of pictures whose size does not depend on the network.
const WIDTH: f64 = 1040.0;

/// The color of a kind of memory in all pictures.
fn kind_color(kind: Kind) -> &'static str {
    match kind {
        Kind::Weights => "#777777",
        Kind::WeightGradients => "#999999",
        Kind::Momentum => "#bbbbbb",
        Kind::FeatureMaps => color(0),
        Kind::GradientMaps => color(4),
        Kind::Saved => color(2),
        Kind::Workspace => color(1),
    }
}

#[cfg(test)]
mod tests {
    use tightfit_plan::Policy;
    use tightfit_units::Bytes;

    use super::super::samples;
    use crate::svg::well_formed::check;

    #[test]
    fn pictures_of_every_policy_are_well_formed_and_labeled() {
        for policy in Policy::ALL {
            let plan = samples::planned("googlenet", 16, policy, Bytes::gib(2));
            check(&super::memory(&plan), &["feature-maps", "gradient-maps", "momentum", "live bytes"]);
            check(&super::arena(&plan), &["feature-maps", "gradient-maps", "address"]);
            check(&super::streams(&plan), &["compute", "offload", "prefetch", "forward", "backward"]);
            check(&super::totals(&plan), &["plain", "maximum", "average", "as in the paper: baseline"]);
            check(&super::kinds(&plan), &["weights", "feature-maps", "largest working set of a layer"]);
            check(&super::layers(&plan), &["conv1", "3a.5x5.reduce", "workspace"]);
            check(&super::maps(&plan), &["conv1", "3a", "reuse distance"]);
        }
    }

    /// Copies appear on their streams, and waits on the compute stream.
    #[test]
    fn copies_are_drawn() {
        let copied = super::streams(&samples::planned("vgg16", 8, Policy::VdnnAll, Bytes::gib(4)));
        assert!(copied.contains("offload feature map conv1_1") && copied.contains("prefetch feature map conv1_1"));
        let resident = super::streams(&samples::planned("vgg16", 8, Policy::Baseline, Bytes::gib(4)));
        assert!(!resident.contains("feature map conv1_1"));
    }

    #[test]
    fn a_plan_without_layers_can_be_drawn() {
        let mut plan = samples::small();
        (plan.layers, plan.maps) = (Vec::new(), Vec::new());
        plan.simulation.levels.clear();
        plan.simulation.spans.clear();
        for picture in
            [super::memory, super::arena, super::streams, super::totals, super::kinds, super::layers, super::maps]
        {
            check(&picture(&plan), &[]);
        }
    }
}
