//! One layer of a network.

use serde::{Deserialize, Serialize};

use super::{LayerKind, Shape};

/// A layer's index in its network's topological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerId(pub(super) usize);

impl LayerId {
    /// Index into [`Network::layers`](super::Network::layers).
    pub fn index(self) -> usize {
        self.0
    }
}

/// One layer of a network: what it computes, from which inputs, and its output shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Unique in its network.
    pub name: String,
    /// Its computation.
    pub kind: LayerKind,
    /// Its input layers, all earlier in the order.
    pub inputs: Vec<LayerId>,
    /// Its output shape, per sample.
    pub shape: Shape,
    /// Number of learned parameters: weights, biases, scales.
    pub parameters: usize,
}
