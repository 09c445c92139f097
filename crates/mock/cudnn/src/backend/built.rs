//! The contents of finalized descriptors.

use std::sync::Arc;

use super::engine::{Config, Engine, KnobInfo};
use super::graph::{Graph, Node};
use crate::pointwise::Mode;
use crate::problem::Geometry;
use crate::tensor::Tensor;

/// The content of a finalized descriptor. It shares nothing with the descriptors it was made from, which may be destroyed.
#[derive(Clone)]
pub enum Built {
    Tensor(Arc<Tensor>),
    Convolution(Arc<Geometry>),
    Pointwise(Mode),
    Operation(Arc<Node>),
    Graph(Arc<Graph>),
    Heuristics(Arc<Vec<Config>>),
    Engine(Engine),
    KnobInfo(KnobInfo),
    KnobChoice {
        kind: i32,
        value: i64,
    },
    Config(Config),
    /// With the code that was compiled for it, which goes with it.
    Plan(Arc<Config>),
    VariantPack(Arc<VariantPack>),
}

/// Addresses by tensor name, and the workspace.
pub struct VariantPack {
    /// Names with addresses.
    pub data: Vec<(i64, usize)>,
    /// Address of the workspace; 0 for none.
    pub workspace: usize,
}
