//! Tensors of step files.

use serde::{Deserialize, Serialize};
use tightfit_units::Bytes;

use crate::step::{Kind, Residence, Tensor, TensorId};

#[derive(Serialize, Deserialize)]
pub(super) struct TensorObject {
    pub(super) name: String,
    pub(super) bytes: Bytes,
    pub(super) kind: KindWord,
    pub(super) residence: ResidenceWord,
    #[serde(default)]
    pub(super) result: bool,
    #[serde(default)]
    pub(super) alias: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) in_place_of: Option<usize>,
    #[serde(default)]
    pub(super) sample_bytes: Option<Bytes>,
}

/// The kinds of memory, in the singular; files may also use the plural of reports.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KindWord {
    #[serde(alias = "feature-maps", alias = "input")]
    FeatureMap,
    #[serde(alias = "gradient-maps")]
    GradientMap,
    #[serde(alias = "weights")]
    Weight,
    #[serde(alias = "weight-gradients")]
    WeightGradient,
    #[serde(alias = "momentum")]
    OptimizerState,
    #[serde(alias = "saved")]
    Other,
    Workspace,
}

impl KindWord {
    const ALL: [(KindWord, Kind); 7] = [
        (KindWord::FeatureMap, Kind::FeatureMaps),
        (KindWord::GradientMap, Kind::GradientMaps),
        (KindWord::Weight, Kind::Weights),
        (KindWord::WeightGradient, Kind::WeightGradients),
        (KindWord::OptimizerState, Kind::Momentum),
        (KindWord::Other, Kind::Saved),
        (KindWord::Workspace, Kind::Workspace),
    ];

    fn kind(self) -> Kind {
        let found = KindWord::ALL.iter().find(|(word, _)| *word as usize == self as usize);
        found.map_or(Kind::Saved, |(_, kind)| *kind)
    }

    fn of(kind: Kind) -> KindWord {
        let found = KindWord::ALL.iter().find(|(_, of)| *of == kind);
        found.map_or(KindWord::Other, |(word, _)| *word)
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ResidenceWord {
    Resident,
    Movable,
    Temporary,
}

impl TensorObject {
    pub(super) fn tensor(&self) -> Tensor {
        Tensor {
            name: self.name.clone(),
            bytes: self.bytes,
            kind: self.kind.kind(),
            residence: match self.residence {
                ResidenceWord::Resident => Residence::Resident,
                ResidenceWord::Movable => Residence::Movable,
                ResidenceWord::Temporary => Residence::Temporary,
            },
            is_result: self.result,
            groups: Vec::new(),
            alias: self.alias.map(TensorId),
            in_place_of: self.in_place_of.map(TensorId),
            sample_bytes: self.sample_bytes,
        }
    }

    pub(super) fn of(tensor: &Tensor) -> TensorObject {
        TensorObject {
            name: tensor.name.clone(),
            bytes: tensor.bytes,
            kind: KindWord::of(tensor.kind),
            residence: match tensor.residence {
                Residence::Resident => ResidenceWord::Resident,
                Residence::Movable => ResidenceWord::Movable,
                Residence::Temporary => ResidenceWord::Temporary,
            },
            result: tensor.is_result,
            alias: tensor.alias.map(|alias| alias.0),
            in_place_of: tensor.in_place_of.map(|TensorId(before)| before),
            sample_bytes: tensor.sample_bytes,
        }
    }
}
