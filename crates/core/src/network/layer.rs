//! One layer of a network: its kind, and where it stands.

use serde::{Deserialize, Serialize};

use super::{LayerKind, Shape};

/// A layer's place in its network's topological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerId(pub(super) usize);

impl LayerId {
    /// Index into [`Network::layers`](super::Network::layers).
    pub fn index(self) -> usize {
        self.0
    }
}

/// One layer of a network: what it computes, from which layers, and the shape it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Unique in its network.
    pub name: String,
    /// What it computes.
    pub kind: LayerKind,
    /// The layers whose outputs it reads, all of them earlier.
    pub inputs: Vec<LayerId>,
    /// Its output, per sample.
    pub shape: Shape,
    /// Numbers it learns: weights, biases, scales.
    pub parameters: usize,
}
