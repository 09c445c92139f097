//! The store of measurements on disk: one SQLite file, safe for several processes at once.
//!
//! A measurement is found by everything that it depends on: device, library version, threads, the problem, the
//! algorithm and the micro-batch. The workspace limit is not among them: what was measured under one limit serves any
//! other, and a hit is filtered by today's limit. `docs/cache-format.md` describes the tables.

mod fault;
mod open;
mod rows;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::{RecordedNetwork, Recording};
use crate::network::Kernel;
use crate::{Device, DivisionCost, Error, Measurement, Problem};
use fault::{Fault, refuse};
use rows::{count, device, device_id, division, measurement, network_id, problem_id, read_networks, signed};

/// An open cache file.
pub struct Cache {
    path: PathBuf,
    connection: Mutex<Connection>,
}

/// How many measurements the cache has for one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Where they hold.
    pub device: Device,
    /// Different problems.
    pub problems: usize,
    /// Measurements.
    pub measurements: usize,
}

/// A layer as the table has it: name, shape, mini-batch.
type Layer = (String, String, usize);

impl Cache {
    /// The batch of a program among the networks: its layers have batches of their own.
    pub const PROGRAM: usize = 0;

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic elsewhere cannot leave a statement half done: SQLite rolls it back.
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, fault: Fault) -> Error {
        refuse(&self.path, fault)
    }

    /// Everything measured on `device` for the problem's shape, operation, types and layout, at any micro-batch.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn measurements(&self, device: &Device, problem: &Problem) -> Result<Vec<Measurement>, Error> {
        let read = || -> rusqlite::Result<Vec<Measurement>> {
            let connection = self.lock();
            let mut statement = connection.prepare_cached(
                "SELECT m.algorithm, m.micro_batch, m.time_ns, m.single_ns, m.workspace_bytes, m.spread, m.repeats, m.notes
                 FROM measurement m JOIN device d ON d.id = m.device JOIN problem p ON p.id = m.problem
                 WHERE d.backend = ? AND d.name = ? AND d.library = ? AND d.threads = ? AND p.shape = ?",
            )?;
            let key = params![device.backend, device.name, device.library, device.threads as i64, problem.shape()];
            statement.query_map(key, measurement)?.collect()
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Keeps a measurement of the problem's shape on `device`. One of fewer repeats does not replace one of more.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written, as on a full disk; what was there before stays.
    pub fn keep(&self, device: &Device, problem: &Problem, measurement: &Measurement) -> Result<(), Error> {
        self.keep_all(device, &problem.shape(), std::slice::from_ref(measurement))
    }

    /// Keeps measurements of one shape in one transaction.
    ///
    /// # Errors
    /// As [`Cache::keep`]; none of them is kept then.
    pub fn keep_all(&self, device: &Device, shape: &str, measurements: &[Measurement]) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let device = device_id(&transaction, device)?;
            let problem = problem_id(&transaction, shape)?;
            {
                let mut statement = transaction.prepare_cached(
                    "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
                     ON CONFLICT DO UPDATE SET time_ns = excluded.time_ns, single_ns = excluded.single_ns,
                        workspace_bytes = excluded.workspace_bytes, spread = excluded.spread,
                        repeats = excluded.repeats, notes = excluded.notes
                     WHERE excluded.repeats >= repeats",
                )?;
                for m in measurements {
                    statement.execute(params![
                        device,
                        problem,
                        m.algorithm.name(),
                        m.micro_batch as i64,
                        m.time.0 as i64,
                        m.single.map(|time| time.0 as i64),
                        m.workspace.0 as i64,
                        m.spread,
                        m.repeats,
                        m.notes.0,
                    ])?;
                }
            }
            transaction.commit()
        };
        write().map_err(|error| self.refuse(error.into()))
    }

    /// What dividing the problem's shape costs on `device`, if that is known.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn division_cost(&self, device: &Device, problem: &Problem) -> Result<Option<DivisionCost>, Error> {
        let read = || -> rusqlite::Result<Option<DivisionCost>> {
            let connection = self.lock();
            let mut statement = connection.prepare_cached(
                "SELECT v.time_ns, v.workspace_bytes
                 FROM division v JOIN device d ON d.id = v.device JOIN problem p ON p.id = v.problem
                 WHERE d.backend = ? AND d.name = ? AND d.library = ? AND d.threads = ? AND p.shape = ?",
            )?;
            let key = params![device.backend, device.name, device.library, device.threads as i64, problem.shape()];
            statement.query_row(key, |row| division(row, 0)).optional()
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Keeps what dividing a shape costs on `device`.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn keep_division_cost(&self, device: &Device, shape: &str, cost: DivisionCost) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let device = device_id(&transaction, device)?;
            let problem = problem_id(&transaction, shape)?;
            transaction.execute(
                "INSERT OR REPLACE INTO division VALUES (?, ?, ?, ?)",
                params![device, problem, signed(cost.time.0), signed(cost.workspace.0)],
            )?;
            transaction.commit()
        };
        write().map_err(|error| self.refuse(error.into()))
    }

    /// Keeps the names and order of a network's kernels, so that its profile can be read without the program that ran it.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn keep_network(&self, name: &str, batch: usize, kernels: &[Kernel]) -> Result<(), Error> {
        self.keep_layers(name, batch, &layers(kernels))
    }

    fn keep_layers(&self, name: &str, batch: usize, layers: &[Layer]) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let network = network_id(&transaction, name, batch)?;
            transaction.execute("DELETE FROM layer WHERE network = ?", [network])?;
            for (position, (layer, shape, mini_batch)) in layers.iter().enumerate() {
                let problem = problem_id(&transaction, shape)?;
                transaction.execute(
                    "INSERT INTO layer VALUES (?, ?, ?, ?, ?)",
                    params![network, position as i64, layer, problem, *mini_batch as i64],
                )?;
            }
            transaction.commit()
        };
        write().map_err(|error| self.refuse(error.into()))
    }

    /// Adds kernels to a program's, those that it has not: its processes meet them one by one, in any order. A program is
    /// a network of batch [`Cache::PROGRAM`].
    ///
    /// A kernel whose layer has no name, which is empty then, is known by its problem and mini-batch alone: it is added where
    /// the program has none of these, and the first named one of these takes its place.
    ///
    /// # Errors
    /// As [`Cache::keep`]; none of them is added then.
    pub fn add_to_program(&self, name: &str, kernels: &[Kernel]) -> Result<(), Error> {
        self.add_layers(name, &layers(kernels))
    }

    fn add_layers(&self, program: &str, layers: &[Layer]) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let network = network_id(&transaction, program, Cache::PROGRAM)?;
            for (layer, shape, mini_batch) in layers {
                let problem = problem_id(&transaction, shape)?;
                let row = params![network, layer, problem, *mini_batch as i64];
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

    /// The networks that were profiled and the programs that ran, each with its layers in order.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn networks(&self) -> Result<Vec<RecordedNetwork>, Error> {
        read_networks(&self.lock()).map_err(|error| self.refuse(error.into()))
    }

    /// What it holds, a line a device.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn summary(&self) -> Result<Vec<Summary>, Error> {
        let read = || -> rusqlite::Result<Vec<Summary>> {
            let connection = self.lock();
            let mut statement = connection.prepare(
                "SELECT d.backend, d.name, d.library, d.threads, count(DISTINCT m.problem), count(*)
                 FROM measurement m JOIN device d ON d.id = m.device GROUP BY d.id ORDER BY 1, 2, 3, 4",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(Summary { device: device(row, 0)?, problems: count(row, 4)?, measurements: count(row, 5)? })
            })?;
            rows.collect()
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Everything in it, as one recording a device.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn recordings(&self) -> Result<Vec<Recording>, Error> {
        let read = || -> rusqlite::Result<Vec<Recording>> {
            let connection = self.lock();
            let mut statement = connection.prepare(
                "SELECT m.algorithm, m.micro_batch, m.time_ns, m.single_ns, m.workspace_bytes, m.spread, m.repeats, m.notes,
                    p.shape, d.backend, d.name, d.library, d.threads
                 FROM measurement m JOIN device d ON d.id = m.device JOIN problem p ON p.id = m.problem
                 ORDER BY d.id, p.id, m.algorithm, m.micro_batch",
            )?;
            let mut recordings: Vec<Recording> = Vec::new();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let device = device(row, 9)?;
                if recordings.last().is_none_or(|last| last.device != device) {
                    recordings.push(Recording::new(device));
                }
                if let Some(recording) = recordings.last_mut() {
                    recording.add(&row.get::<_, String>(8)?, measurement(row)?);
                }
            }
            let mut statement = connection.prepare(
                "SELECT v.time_ns, v.workspace_bytes, p.shape, d.backend, d.name, d.library, d.threads
                 FROM division v JOIN device d ON d.id = v.device JOIN problem p ON p.id = v.problem",
            )?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let of = device(row, 3)?;
                for recording in recordings.iter_mut().filter(|recording| recording.device == of) {
                    recording.add_division_cost(&row.get::<_, String>(2)?, division(row, 0)?);
                }
            }
            let networks = read_networks(&connection)?;
            for recording in &mut recordings {
                recording.networks = networks.clone();
            }
            Ok(recordings)
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Takes in every measurement and network of a recording; gives how many measurements it had. A network replaces the one
    /// of its name and batch; the layers of a program are added, as by [`Cache::add_to_program`].
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn import(&self, recording: &Recording) -> Result<usize, Error> {
        let mut count = 0;
        for (shape, measurements) in recording.measurements() {
            self.keep_all(&recording.device, shape, &measurements)?;
            count += measurements.len();
        }
        for (shape, cost) in recording.division_costs() {
            self.keep_division_cost(&recording.device, shape, cost)?;
        }
        for network in &recording.networks {
            match network.batch {
                Cache::PROGRAM => self.add_layers(&network.name, &network.layers)?,
                batch => self.keep_layers(&network.name, batch, &network.layers)?,
            }
        }
        Ok(count)
    }

    /// Forgets the measurements of devices whose name contains `device`, or all; gives how many.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn clear(&self, device: Option<&str>) -> Result<usize, Error> {
        let part = device.unwrap_or_default();
        let forget = || -> rusqlite::Result<usize> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let named = "SELECT id FROM device WHERE ?1 = '' OR instr(name, ?1) > 0";
            transaction.execute(&format!("DELETE FROM division WHERE device IN ({named})"), [part])?;
            let gone = transaction.execute(&format!("DELETE FROM measurement WHERE device IN ({named})"), [part])?;
            transaction.commit()?;
            Ok(gone)
        };
        forget().map_err(|error| self.refuse(error.into()))
    }
}

fn layers(kernels: &[Kernel]) -> Vec<Layer> {
    kernels.iter().map(|k| (k.layer.clone(), k.problem.shape(), k.problem.batch())).collect()
}
