//! The layers of networks that were profiled and of programs that ran.

use rusqlite::{TransactionBehavior, params};
use tightfit_network::Kernel;
use tightfit_units::Error;

use super::Cache;
use super::rows::{network_id, problem_id, read_networks, whole};
use crate::{Owner, RecordedNetwork};

/// A row of the layer table: name, shape, mini-batch.
type Layer = (String, String, usize);

impl Cache {
    /// Saves the names and order of a network's kernels, so that its profile can be read without the program that ran it. They replace the kernels
    /// with the same name and mini-batch. The mini-batch is `None` for a list whose layers have separate mini-batches.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn keep_network(&self, name: &str, batch: Option<usize>, kernels: &[Kernel]) -> Result<(), Error> {
        self.keep_layers(name, Owner::Network { batch }, &layers(kernels))
    }

    /// Adds the kernels that a program does not have yet: its processes meet them one by one, in any order.
    ///
    /// A kernel with an empty layer name is identified by its problem and mini-batch alone: it is added only if the
    /// program has no such kernel, and the first named one replaces it.
    ///
    /// # Errors
    /// As [`Cache::keep`]; in that case no kernel is added.
    pub fn add_to_program(&self, name: &str, kernels: &[Kernel]) -> Result<(), Error> {
        self.add_layers(name, &layers(kernels))
    }

    /// Imports the layers of a recording.
    pub(super) fn take_network(&self, network: &RecordedNetwork) -> Result<(), Error> {
        match network.owner {
            Owner::Program => self.add_layers(&network.name, &network.layers),
            Owner::Network { .. } => self.keep_layers(&network.name, network.owner, &network.layers),
        }
    }

    /// The networks that were profiled and the programs that ran, each with its layers in order.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn networks(&self) -> Result<Vec<RecordedNetwork>, Error> {
        read_networks(&self.lock()).map_err(|error| self.refuse(error.into()))
    }

    fn keep_layers(&self, name: &str, owner: Owner, layers: &[Layer]) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let network = network_id(&transaction, name, owner)?;
            transaction.execute("DELETE FROM layer WHERE network = ?", [network])?;
            for (position, (layer, shape, mini_batch)) in layers.iter().enumerate() {
                let problem = problem_id(&transaction, shape)?;
                transaction.execute(
                    "INSERT INTO layer VALUES (?, ?, ?, ?, ?)",
                    params![network, whole(position), layer, problem, whole(*mini_batch)],
                )?;
            }
            transaction.commit()
        };
        write().map_err(|error| self.refuse(error.into()))
    }

    fn add_layers(&self, program: &str, layers: &[Layer]) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let network = network_id(&transaction, program, Owner::Program)?;
            for (layer, shape, mini_batch) in layers {
                let problem = problem_id(&transaction, shape)?;
                let row = params![network, layer, problem, whole(*mini_batch)];
                let is_known: bool = transaction.query_row(
                    "SELECT EXISTS (SELECT 1 FROM layer
                     WHERE network = ?1 AND ?2 IN ('', name) AND problem = ?3 AND mini_batch = ?4)",
                    row,
                    |found| found.get(0),
                )?;
                if is_known {
                    continue;
                }
                let named = transaction.execute(
                    "UPDATE layer SET name = ?2 WHERE network = ?1 AND name = '' AND problem = ?3 AND mini_batch = ?4",
                    row,
                )?;
                if named == 0 {
                    transaction.execute(
                        "INSERT INTO layer SELECT ?1, coalesce(max(position) + 1, 0), ?2, ?3, ?4
                         FROM layer WHERE network = ?1",
                        row,
                    )?;
                }
            }
            transaction.commit()
        };
        write().map_err(|error| self.refuse(error.into()))
    }
}

fn layers(kernels: &[Kernel]) -> Vec<Layer> {
    kernels.iter().map(|k| (k.layer.clone(), k.problem.shape(), k.problem.batch())).collect()
}
