//! Selects convolutions of a network.

use tightfit_conv::{Layout, Operation, Types};
use tightfit_network::{Kernel, Network};
use tightfit_units::Error;

use super::Model;

/// Convolutions of a network at a mini-batch, in one type and layout.
///
/// ```
/// use tightfit_conv::Operation;
/// use tightfit_network::built_in;
/// use tightfit_profile::Selection;
///
/// let every = Selection::new(built_in("alexnet")?, Some(128));
/// assert_eq!(every.kernels()?.len(), 15);
/// let some = Selection { operations: vec![Operation::Forward], layers: vec!["conv2".to_owned()], ..every };
/// assert_eq!(some.kernels()?.len(), 1);
/// # Ok::<(), tightfit_units::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The network or program.
    pub model: Model,
    /// The mini-batch; `None` if the layers state their own.
    pub batch: Option<usize>,
    /// The operations, in any order.
    pub operations: Vec<Operation>,
    /// Names of the layers; empty for all layers.
    pub layers: Vec<String>,
    /// Number types of data and arithmetic.
    pub types: Types,
    /// Order of the dimensions in memory.
    pub layout: Layout,
}

impl Selection {
    /// All convolutions of `network`, all three operations, in 32-bit floating point and NCHW.
    pub fn new(network: Network, batch: Option<usize>) -> Selection {
        Selection {
            model: Model::Network(network),
            batch,
            operations: Operation::ALL.to_vec(),
            layers: Vec::new(),
            types: Types::F32,
            layout: Layout::default(),
        }
    }

    /// One kernel per selected layer and operation, in network order.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] for a layer that the network lacks; [`Error::NoConvolutions`] if nothing is selected; the
    /// errors of [`Model::kernels`].
    pub fn kernels(&self) -> Result<Vec<Kernel>, Error> {
        let mut operations = self.operations.clone();
        operations.sort();
        operations.dedup();
        let mut kernels = self.model.kernels(self.batch, &operations, self.types, self.layout)?;
        for name in &self.layers {
            if !kernels.iter().any(|kernel| kernel.layer == *name) {
                let mut known: Vec<String> = kernels.into_iter().map(|kernel| kernel.layer).collect();
                known.dedup();
                return Err(Error::UnknownWord { what: "layers", word: name.clone(), known });
            }
        }
        kernels.retain(|kernel| self.layers.is_empty() || self.layers.contains(&kernel.layer));
        if kernels.is_empty() {
            return Err(Error::NoConvolutions { network: self.model.name().to_owned() });
        }
        Ok(kernels)
    }

    /// Whether every convolution of a network is selected, in all three operations.
    pub fn is_whole(&self) -> bool {
        matches!(self.model, Model::Network(_))
            && self.layers.is_empty()
            && Operation::ALL.iter().all(|operation| self.operations.contains(operation))
    }
}
