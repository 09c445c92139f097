//! Kinds of memory, and bytes of each.

use serde::{Deserialize, Serialize};
use tightfit_units::Bytes;

/// A category of memory in the device arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Weights, their 32-bit originals, running statistics.
    Weights,
    /// Gradients of the weights.
    WeightGradients,
    /// The solver's momentum.
    Momentum,
    /// Feature maps, and the labels.
    FeatureMaps,
    /// Gradients of feature maps.
    GradientMaps,
    /// Data other than maps that forward passes save.
    Saved,
    /// Scratch memory of convolutions.
    Workspace,
}

impl Kind {
    /// All kinds, resident ones first.
    pub const ALL: [Kind; 7] = [
        Kind::Weights,
        Kind::WeightGradients,
        Kind::Momentum,
        Kind::FeatureMaps,
        Kind::GradientMaps,
        Kind::Saved,
        Kind::Workspace,
    ];

    /// The name used in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::WeightGradients => "weight-gradients",
            Kind::Momentum => "momentum",
            Kind::FeatureMaps => "feature-maps",
            Kind::GradientMaps => "gradient-maps",
            Kind::Saved => "saved",
            Kind::Workspace => "workspace",
        }
    }

    /// Whether the vDNN paper counts it: weights, X, dX and dY, workspace.
    pub fn is_in_paper(self) -> bool {
        matches!(self, Kind::Weights | Kind::FeatureMaps | Kind::GradientMaps | Kind::Workspace)
    }
}

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindBytes([u64; Kind::ALL.len()]);

impl KindBytes {
    /// Bytes of one kind.
    pub fn get(&self, kind: Kind) -> Bytes {
        Bytes(self.0[kind as usize])
    }

    /// Adds bytes of one kind.
    pub fn add(&mut self, kind: Kind, bytes: u64) {
        self.0[kind as usize] += bytes;
    }

    /// Subtracts bytes of one kind.
    pub fn remove(&mut self, kind: Kind, bytes: u64) {
        let held = &mut self.0[kind as usize];
        *held = held.saturating_sub(bytes);
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> Bytes {
        Bytes(self.0.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes)))
    }

    /// Bytes of the kinds that the vDNN paper counts.
    pub fn in_paper(&self) -> Bytes {
        Kind::ALL.into_iter().filter(|kind| kind.is_in_paper()).map(|kind| self.get(kind)).sum()
    }
}
