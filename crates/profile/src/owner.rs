//! Lists of layers, of a profiled network or of a program that ran.

use serde::{Deserialize, Serialize};

/// The owner of a list of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// A network that was profiled. A new list replaces the one before.
    Network {
        /// Its mini-batch; `None` if each layer has its own.
        batch: Option<usize>,
    },
    /// A program that ran under `tightfit run`. Each of its processes adds the layers it ran; each layer has its own
    /// mini-batch.
    Program,
}

impl Owner {
    /// The mini-batch that all its layers share, if any.
    pub fn batch(self) -> Option<usize> {
        match self {
            Owner::Network { batch } => batch,
            Owner::Program => None,
        }
    }
}

/// Names and order of a network's or a program's kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "NetworkFields", into = "NetworkFields")]
pub struct RecordedNetwork {
    /// Name of the network or program.
    pub name: String,
    /// Whether it is a network or a program, and its mini-batch.
    pub owner: Owner,
    /// Layer name, the problem's shape ([`tightfit_conv::Problem::shape`]) and mini-batch of each kernel.
    pub layers: Vec<(String, String, usize)>,
}

/// The word for a network without a mini-batch.
const LIST: &str = "list";

/// The form in files. A `batch` of 0 marks a program, unless `kind` marks a list.
#[derive(Serialize, Deserialize)]
struct NetworkFields {
    name: String,
    batch: usize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    layers: Vec<(String, String, usize)>,
}

impl TryFrom<NetworkFields> for RecordedNetwork {
    type Error = String;

    fn try_from(NetworkFields { name, batch, kind, layers }: NetworkFields) -> Result<RecordedNetwork, String> {
        let owner = match (kind.as_deref(), batch) {
            (None, 0) => Owner::Program,
            (Some(LIST), 0) => Owner::Network { batch: None },
            // The form in which older programs, which do not know `kind`, export a cache's list.
            (None, batch) if batch as u64 == i64::MAX as u64 => Owner::Network { batch: None },
            (None, batch) => Owner::Network { batch: Some(batch) },
            (Some(kind), batch) => return Err(format!("network `{name}` has batch {batch} and kind `{kind}`")),
        };
        Ok(RecordedNetwork { name, owner, layers })
    }
}

impl From<RecordedNetwork> for NetworkFields {
    fn from(RecordedNetwork { name, owner, layers }: RecordedNetwork) -> NetworkFields {
        let kind = (owner == Owner::Network { batch: None }).then(|| LIST.to_owned());
        NetworkFields { name, batch: owner.batch().unwrap_or(0), kind, layers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_is_read_back_and_batch_0_alone_is_a_program() {
        for owner in [Owner::Program, Owner::Network { batch: None }, Owner::Network { batch: Some(4) }] {
            let network = RecordedNetwork { name: "n".to_owned(), owner, layers: Vec::new() };
            let text = serde_json::to_string(&network).unwrap();
            assert_eq!(serde_json::from_str::<RecordedNetwork>(&text).unwrap(), network, "{text}");
        }
        let read = |text: &str| serde_json::from_str::<RecordedNetwork>(text);
        assert_eq!(read(r#"{"name":"n","batch":0,"layers":[]}"#).unwrap().owner, Owner::Program);
        let list = read(r#"{"name":"n","batch":9223372036854775807,"layers":[]}"#).unwrap();
        assert_eq!(list.owner, Owner::Network { batch: None });
        assert!(read(r#"{"name":"n","batch":4,"kind":"list","layers":[]}"#).is_err());
    }
}
