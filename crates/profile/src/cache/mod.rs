//! The store of measurements on disk: one SQLite file, safe for several processes at once.
//!
//! The key of a measurement is everything it depends on: device, library version, threads, problem, algorithm and micro-batch. The workspace limit is
//! not part of it: a measurement made under one limit is valid under any other, and hits are filtered by the current limit. `docs/cache-format.md`
//! describes the tables.
//!
//! `open` opens and checks the file. `rows` converts rows to values. `layers`, `decisions`, `comparisons` and `marks` have one table each. `mend`
//! counts and deletes invalid rows, and `fault` words the errors.

mod comparisons;
mod decisions;
mod fault;
mod layers;
mod marks;
mod mend;
mod open;
mod rows;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use tightfit_conv::{Device, DivisionCost, Measurement, Problem};
use tightfit_network::Kernel;
use tightfit_units::Error;

use super::bounds;
use super::{Recording, Store};
use fault::{Fault, refuse};
pub use marks::Mark;
use rows::{
    SOUND_MEASUREMENT, count, device, device_id, division, measurement, problem_id, read_networks, signed, text,
    unreadable, whole,
};

/// An open cache file.
pub struct Cache {
    path: PathBuf,
    connection: Mutex<Connection>,
}

/// The numbers of measurements and decisions in the cache for one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The device.
    pub device: Device,
    /// Different problems.
    pub problems: usize,
    /// Measurements.
    pub measurements: usize,
    /// Decisions about convolutions of programs.
    pub decisions: usize,
    /// The number of these that left something to measure.
    pub unfinished: usize,
}

/// The counts of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Measurements that the recording had.
    pub measurements: usize,
    /// Its decisions about questions without a decision in the cache.
    pub new: usize,
    /// Its finished decisions that replaced unfinished ones.
    pub replaced: usize,
    /// Decisions of the cache that were kept instead of the recording's.
    pub kept: usize,
    /// Questions of the recording whose decision in the cache is still unfinished.
    pub unfinished: usize,
}

impl Cache {
    /// The default path of the cache, from environment variables: `TIGHTFIT_CACHE`, otherwise `tightfit/cache.db` in `XDG_CACHE_HOME` or
    /// `HOME/.cache`. `None` for `TIGHTFIT_CACHE=none`, or if no variable names a folder.
    ///
    /// `variable` looks one up. An empty variable counts as not set.
    ///
    /// ```
    /// use tightfit_profile::Cache;
    /// let path = Cache::default_path(|name| (name == "HOME").then(|| "/home/me".into()));
    /// assert_eq!(path, Some("/home/me/.cache/tightfit/cache.db".into()));
    /// assert_eq!(Cache::default_path(|_| Some("none".into())), None);
    /// ```
    pub fn default_path(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
        let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        match set("TIGHTFIT_CACHE") {
            Some(path) if path.as_os_str() == "none" => None,
            Some(path) => Some(path),
            None => {
                let caches = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")))?;
                Some(caches.join("tightfit").join("cache.db"))
            }
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the longest wait from now on while another program writes; 10 s by default.
    pub fn set_patience(&self, patience: Duration) {
        // It only fails on a closed connection.
        let _ = self.lock().busy_timeout(patience);
    }

    /// Whether the cause of an error is another program that was writing.
    pub fn is_locked(error: &Error) -> bool {
        fault::is_locked(error)
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        // A panic elsewhere cannot leave a statement incomplete: SQLite rolls it back.
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
            let mut statement = connection.prepare_cached(&format!(
                "SELECT m.algorithm, m.micro_batch, m.time_ns, m.single_ns, m.workspace_bytes, m.spread, m.repeats, m.notes
                 FROM measurement m JOIN device d ON d.id = m.device JOIN problem p ON p.id = m.problem
                 WHERE d.backend = ? AND d.name = ? AND d.library = ? AND d.threads = ? AND p.shape = ? AND {}",
                *SOUND_MEASUREMENT
            ))?;
            let key = params![device.backend, device.name, device.library, whole(device.threads), problem.shape()];
            statement.query_map(key, measurement)?.collect()
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Saves a new measurement of the problem's shape on `device`. It replaces one with no more repeats, and any with
    /// another workspace, which came from another library or driver of the same name.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be written, for example on a full disk; the old content stays. [`Error::BadOption`]
    /// for an impossible measurement, such as a time of 0.
    pub fn keep(&self, device: &Device, problem: &Problem, measurement: &Measurement) -> Result<(), Error> {
        self.write_all(device, &problem.shape(), std::slice::from_ref(measurement), Precedence::Today)
    }

    /// Saves new measurements of the problem's shape in one transaction, each as [`Cache::keep`] does.
    ///
    /// # Errors
    /// As [`Cache::keep`]; none of them is kept then.
    pub fn keep_new(&self, device: &Device, problem: &Problem, measurements: &[Measurement]) -> Result<(), Error> {
        self.write_all(device, &problem.shape(), measurements, Precedence::Today)
    }

    /// Saves measurements of one shape in one transaction. One with fewer repeats does not replace one with more.
    /// Removes the shape's marks of being fully measured.
    ///
    /// # Errors
    /// As [`Cache::keep`]; none of them is kept then.
    pub fn keep_all(&self, device: &Device, shape: &str, measurements: &[Measurement]) -> Result<(), Error> {
        self.write_all(device, shape, measurements, Precedence::Repeats)
    }

    fn write_all(
        &self,
        device: &Device,
        shape: &str,
        measurements: &[Measurement],
        precedence: Precedence,
    ) -> Result<(), Error> {
        bounds::refuse(shape, bounds::shape_fault(shape).or_else(|| bounds::device_fault(device)))?;
        for m in measurements {
            let fault = bounds::measurement_fault(m);
            bounds::refuse("a measurement", fault.map(|fault| format!("{} on `{shape}`: {fault}", m.algorithm)))?;
        }
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let device = device_id(&transaction, device)?;
            let problem = problem_id(&transaction, shape)?;
            insert(&transaction, [device, problem], measurements, precedence)?;
            if matches!(precedence, Precedence::Repeats) {
                transaction.execute("DELETE FROM surveyed WHERE device = ? AND problem = ?", [device, problem])?;
            }
            transaction.commit()
        };
        write().map_err(|error| self.refuse(error.into()))
    }

    /// The cost of dividing the problem's shape on `device`, if known.
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
            let key = params![device.backend, device.name, device.library, whole(device.threads), problem.shape()];
            statement.query_row(key, |row| division(row, 0)).optional()
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Saves the cost of dividing a shape on `device`.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn keep_division_cost(&self, device: &Device, shape: &str, cost: DivisionCost) -> Result<(), Error> {
        bounds::refuse(shape, bounds::shape_fault(shape).or_else(|| bounds::device_fault(device)))?;
        let cost = bounds::division(cost);
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

    /// The content of the cache, one entry per device.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn summary(&self) -> Result<Vec<Summary>, Error> {
        let read = || -> rusqlite::Result<Vec<Summary>> {
            let connection = self.lock();
            let mut statement = connection.prepare(&format!(
                "SELECT d.backend, d.name, d.library, d.threads, count(DISTINCT m.problem), count(*)
                 FROM measurement m JOIN device d ON d.id = m.device WHERE {} AND m.problem NOT IN ({})
                 GROUP BY d.id",
                *SOUND_MEASUREMENT,
                unreadable(&connection)?.rows
            ))?;
            let rows = statement.query_map([], |row| {
                let (device, problems, measurements) = (device(row, 0)?, count(row, 4)?, count(row, 5)?);
                Ok(Summary { device, problems, measurements, decisions: 0, unfinished: 0 })
            })?;
            let mut summaries = rows.collect::<rusqlite::Result<Vec<Summary>>>()?;
            decisions::count_in(&mut summaries, &connection)?;
            let order = |one: &Summary| {
                let Device { backend, name, library, threads } = one.device.clone();
                (backend, name, library, threads)
            };
            summaries.sort_by_key(order);
            Ok(summaries)
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// The whole cache, as one recording per device.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn recordings(&self) -> Result<Vec<Recording>, Error> {
        let read = || -> rusqlite::Result<Vec<Recording>> {
            let connection = self.lock();
            let unreadable = unreadable(&connection)?.rows;
            let mut statement = connection.prepare(&format!(
                "SELECT m.algorithm, m.micro_batch, m.time_ns, m.single_ns, m.workspace_bytes, m.spread, m.repeats, m.notes,
                    p.shape, d.backend, d.name, d.library, d.threads
                 FROM measurement m JOIN device d ON d.id = m.device JOIN problem p ON p.id = m.problem
                 WHERE {} AND p.id NOT IN ({unreadable})
                 ORDER BY d.id, p.id, m.algorithm, m.micro_batch",
                *SOUND_MEASUREMENT
            ))?;
            let mut recordings: Vec<Recording> = Vec::new();
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let device = device(row, 9)?;
                if recordings.last().is_none_or(|last| last.device != device) {
                    recordings.push(Recording::new(device));
                }
                if let Some(recording) = recordings.last_mut() {
                    recording.add(&text(row, 8)?, measurement(row)?);
                }
            }
            let mut statement = connection.prepare(&format!(
                "SELECT v.time_ns, v.workspace_bytes, p.shape, d.backend, d.name, d.library, d.threads
                 FROM division v JOIN device d ON d.id = v.device JOIN problem p ON p.id = v.problem
                 WHERE d.threads >= 0 AND p.id NOT IN ({unreadable})"
            ))?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let owner = device(row, 3)?;
                for recording in recordings.iter_mut().filter(|recording| recording.device == owner) {
                    recording.add_division_cost(&text(row, 2)?, division(row, 0)?);
                }
            }
            decisions::add_to(&mut recordings, &connection)?;
            let networks = read_networks(&connection)?;
            for recording in &mut recordings {
                recording.networks = networks.clone();
            }
            Ok(recordings)
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Imports every measurement, network and decision of a recording, and returns the counts. A network replaces the one with the same name and
    /// batch; the layers of a program are added, as by [`Cache::add_to_program`]. Shapes that get measurements lose their marks of being fully
    /// measured. A finished decision replaces an unfinished one; no other decision is replaced.
    ///
    /// # Errors
    /// As [`Cache::keep`]. An invalid recording changes nothing.
    pub fn import(&self, recording: &Recording) -> Result<Imported, Error> {
        bounds::refuse("a recording", recording.fault())?;
        let mut count = 0;
        for (shape, measurements) in recording.measurements() {
            self.keep_all(&recording.device, shape, &measurements)?;
            count += measurements.len();
        }
        for (shape, cost) in recording.division_costs() {
            self.keep_division_cost(&recording.device, shape, cost)?;
        }
        let imported = self.take_decisions(recording)?;
        recording.networks.iter().try_for_each(|network| self.take_network(network))?;
        Ok(Imported { measurements: count, ..imported })
    }

    /// Moves the journal's content into the file itself, so that a copy of the file is complete. Does not wait: what
    /// another process is reading at the moment stays in the journal.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn settle(&self) -> Result<(), Error> {
        let settle = || self.lock().query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        settle().map_err(|error| self.refuse(error.into()))
    }
}

impl Store for Cache {
    fn measurements(&self, device: &Device, problem: &Problem) -> Result<Vec<Measurement>, Error> {
        Cache::measurements(self, device, problem)
    }

    fn keep(&self, device: &Device, problem: &Problem, measurement: &Measurement) -> Result<(), Error> {
        Cache::keep(self, device, problem, measurement)
    }

    fn division_cost(&self, device: &Device, problem: &Problem) -> Result<Option<DivisionCost>, Error> {
        Cache::division_cost(self, device, problem)
    }

    fn keep_division_cost(&self, device: &Device, problem: &Problem, cost: DivisionCost) -> Result<(), Error> {
        Cache::keep_division_cost(self, device, &problem.shape(), cost)
    }

    fn keep_network(&self, name: &str, batch: Option<usize>, kernels: &[Kernel]) -> Result<(), Error> {
        Cache::keep_network(self, name, batch, kernels)
    }
}

/// Which of two measurements with the same key to keep.
#[derive(Clone, Copy)]
enum Precedence {
    /// The one with more repeats; if equal, the new one.
    Repeats,
    /// As above, but an old one that is invalid or has another workspace is always replaced.
    Today,
}

fn insert(
    transaction: &Transaction<'_>,
    [device, problem]: [i64; 2],
    measurements: &[Measurement],
    precedence: Precedence,
) -> rusqlite::Result<()> {
    let or = match precedence {
        Precedence::Repeats => "",
        Precedence::Today => {
            "OR excluded.workspace_bytes <> workspace_bytes
             OR NOT EXISTS (SELECT 1 FROM measurement m JOIN device d ON d.id = m.device
                WHERE m.device = excluded.device AND m.problem = excluded.problem AND m.algorithm = excluded.algorithm
                AND m.micro_batch = excluded.micro_batch AND {SOUND})"
        }
    };
    let or = or.replace("{SOUND}", &SOUND_MEASUREMENT);
    let mut statement = transaction.prepare_cached(&format!(
        "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
         ON CONFLICT DO UPDATE SET time_ns = excluded.time_ns, single_ns = excluded.single_ns,
            workspace_bytes = excluded.workspace_bytes, spread = excluded.spread,
            repeats = excluded.repeats, notes = excluded.notes
         WHERE excluded.repeats >= repeats {or}"
    ))?;
    for m in measurements {
        statement.execute(params![
            device,
            problem,
            m.algorithm.name(),
            whole(m.micro_batch),
            signed(m.time.0),
            m.single.map(|time| signed(time.0)),
            signed(m.workspace.0),
            m.spread,
            m.repeats,
            m.notes.0,
        ])?;
    }
    Ok(())
}
