//! The convolution problems of a network, and which of them are identical.

use std::collections::HashMap;

use tightfit_conv::{Layout, Operation, Problem, Types};
use tightfit_units::Error;

use super::Network;

/// One convolution operation of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Name of the layer.
    pub layer: String,
    /// Its problem.
    pub problem: Problem,
}

impl Network {
    /// Whether each convolution has a mini-batch stated in the network.
    pub fn has_batches(&self) -> bool {
        self.convolutions().all(|(id, _)| self.own_batch(id).is_some())
    }

    /// Every convolution in order, each with all `operations` in the given order.
    ///
    /// `batch` applies to all convolutions; with `None`, each uses the mini-batch stated in the network, as layer lists
    /// do. The first layer's backward-data is included: training does not need it, but the papers count it.
    ///
    /// ```
    /// use tightfit_conv::{Layout, Operation, Types};
    /// use tightfit_network::Network;
    /// let alexnet = Network::open("alexnet")?;
    /// let kernels = alexnet.kernels(Some(256), &Operation::ALL, Types::F32, Layout::Nchw)?;
    /// assert_eq!(kernels.len(), 15);
    /// assert_eq!(kernels[3].problem.to_string(), "forward n256 c96 h27 w27 k256 r5 s5 pad2 groups2 f32");
    /// # Ok::<(), tightfit_units::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::BadNetwork`] for the first layer without a mini-batch; [`Error::BadProblem`] if a mini-batch is zero or
    /// makes a tensor too large.
    pub fn kernels(
        &self,
        batch: Option<usize>,
        operations: &[Operation],
        types: Types,
        layout: Layout,
    ) -> Result<Vec<Kernel>, Error> {
        let mut kernels = Vec::new();
        for (id, convolution) in self.convolutions() {
            let layer = &self.layer(id).name;
            let batch = batch.or_else(|| self.own_batch(id)).ok_or_else(|| Error::BadNetwork {
                network: self.name.clone(),
                layer: layer.clone(),
                what: "has no mini-batch (n); give one for the whole network".to_owned(),
            })?;
            for &operation in operations {
                let problem = Problem::new(*convolution, operation, batch, types, layout)?;
                kernels.push(Kernel { layer: layer.clone(), problem });
            }
        }
        Ok(kernels)
    }
}

/// The distinct problems in order of first appearance, each with the indices of its kernels.
///
/// Each shape is therefore measured only once.
pub fn distinct(kernels: &[Kernel]) -> Vec<(Problem, Vec<usize>)> {
    let mut place = HashMap::new();
    let mut groups: Vec<(Problem, Vec<usize>)> = Vec::new();
    for (index, kernel) in kernels.iter().enumerate() {
        let group = *place.entry(kernel.problem).or_insert(groups.len());
        match groups.get_mut(group) {
            Some((_, members)) => members.push(index),
            None => groups.push((kernel.problem, vec![index])),
        }
    }
    groups
}
