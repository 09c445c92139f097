//! Where the numbers of layers are: by slot, and in the graph.

use tightfit_network::LayerId;

use super::value::Order;

/// The numbers that a layer keeps from step to step, one list per slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Slot {
    /// Filters of a convolution (k, c / groups, r, s) or the matrix of a fully connected layer (outputs, inputs).
    Weight,
    /// One number per filter or output.
    Bias,
    /// Batch normalization's factor per channel.
    Scale,
    /// Batch normalization's offset per channel.
    Shift,
    /// Batch normalization's running mean per channel.
    Mean,
    /// Batch normalization's running variance per channel.
    Variance,
}

/// The value of the graph that holds the numbers of a layer's slot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Source {
    pub layer: LayerId,
    pub slot: Slot,
    /// Its name.
    pub value: String,
    /// Their order in the slot, relative to the graph.
    pub order: Order,
    /// Whether it is an initializer.
    pub is_initializer: bool,
    /// Whether a node computes it from others.
    pub is_computed: bool,
}
