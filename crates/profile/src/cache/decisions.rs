//! Decisions about the convolutions of programs, so that the next process can start with them.
//!
//! The table refers to no other table, so that older programs can clear the cache without knowing it.

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tightfit_conv::Device;
use tightfit_units::{Error, Nanos};

use super::rows::{device, device_id, has_table, signed, text};
use super::{Cache, Imported, Summary};
use crate::bounds::{decision_fault, device_fault, refuse};
use crate::{Decision, DecisionKey, Recording};

/// The backend of programs under `tightfit run`, the only ones with decisions.
const DECIDES: &str = "cuda";
/// The table's name.
pub(super) const TABLE: &str = "decision";
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS decision (
    device TEXT NOT NULL,
    problem TEXT NOT NULL,
    question TEXT NOT NULL,
    configuration TEXT NOT NULL,
    framework_ns INTEGER,
    is_final INTEGER NOT NULL,
    PRIMARY KEY (device, problem, question)
) STRICT, WITHOUT ROWID;
";

impl Cache {
    /// The decision about a question on `device`; `None` if no readable decision exists.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn decision(&self, device: &Device, key: &DecisionKey) -> Result<Option<Decision>, Error> {
        let read = || find(&self.lock(), device, &key.problem.to_string(), &key.words());
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Saves a decision, replacing an earlier one.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn keep_decision(&self, device: &Device, key: &DecisionKey, decision: &Decision) -> Result<(), Error> {
        let (problem, question) = (key.problem.to_string(), key.words());
        refuse("a decision", decision_fault(&problem, &question, decision))?;
        let write = || insert(&self.lock(), device, &problem, &question, decision);
        write().map_err(|error| self.refuse(error.into()))
    }

    /// Imports the decisions of a recording. A decision is imported if the cache has none for its question, or if it is finished and the cache's is
    /// not. Returns the counts, without measurements.
    pub(super) fn take_decisions(&self, recording: &Recording) -> Result<Imported, Error> {
        if recording.decisions().next().is_none() {
            return Ok(Imported::default());
        }
        let device = &recording.device;
        let write = || -> rusqlite::Result<Imported> {
            let mut imported = Imported::default();
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Rows of decisions lack the backend.
            device_id(&transaction, device)?;
            for (problem, question, decision) in recording.decisions() {
                let known = find(&transaction, device, problem, question)?.map(|known| known.is_final);
                let is_taken = known.is_none_or(|is_final| !is_final && decision.is_final);
                match known {
                    None => imported.new += 1,
                    Some(_) if is_taken => imported.replaced += 1,
                    Some(_) => imported.kept += 1,
                }
                if is_taken {
                    insert(&transaction, device, problem, question, decision)?;
                }
                imported.unfinished += usize::from(!decision.is_final && known != Some(true));
            }
            transaction.commit()?;
            Ok(imported)
        };
        write().map_err(|error| self.refuse(error.into()))
    }
}

fn find(connection: &Connection, device: &Device, problem: &str, question: &str) -> rusqlite::Result<Option<Decision>> {
    if !has_table(connection, TABLE)? {
        return Ok(None);
    }
    let found = connection
        .prepare_cached(
            "SELECT configuration, framework_ns, is_final FROM decision
             WHERE device = ? AND problem = ? AND question = ?",
        )?
        .query_row(params![device.to_string(), problem, question], Stored::of)
        .optional()?;
    Ok(found.and_then(|stored| stored.decision(problem, question)))
}

fn insert(
    connection: &Connection,
    device: &Device,
    problem: &str,
    question: &str,
    decision: &Decision,
) -> rusqlite::Result<()> {
    let configuration = serde_json::to_string(&decision.configuration).unwrap_or_else(|_| "null".to_owned());
    let (framework, is_final) = (decision.framework_time.map(|time| signed(time.0)), i64::from(decision.is_final));
    connection
        .prepare_cached("INSERT OR REPLACE INTO decision VALUES (?, ?, ?, ?, ?, ?)")?
        .execute(params![device.to_string(), problem, question, configuration, framework, is_final])
        .map(drop)
}

/// The columns of a decision as they are stored.
struct Stored {
    configuration: String,
    framework: Option<i64>,
    is_final: bool,
}

impl Stored {
    /// From the first three columns.
    fn of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Stored> {
        Ok(Stored { configuration: text(row, 0)?, framework: row.get(1)?, is_final: row.get::<_, i64>(2)? != 0 })
    }

    /// `None` for a row that cannot be a decision about the problem. An impossible time becomes `None`.
    fn decision(self, problem: &str, question: &str) -> Option<Decision> {
        let configuration = serde_json::from_str(&self.configuration).ok()?;
        let framework_time = self.framework.and_then(|nanos| u64::try_from(nanos).ok()).map(Nanos);
        let decision = Decision { configuration, framework_time, is_final: self.is_final };
        decision_fault(problem, question, &decision).is_none().then_some(decision)
    }
}

/// Calls `take` for every row, with its device in words, problem and question, and its decision if it can be read.
fn for_all(
    connection: &Connection,
    mut take: impl FnMut([String; 3], Option<Decision>) -> rusqlite::Result<()>,
) -> rusqlite::Result<()> {
    if !has_table(connection, TABLE)? {
        return Ok(());
    }
    let mut statement = connection.prepare(
        "SELECT configuration, framework_ns, is_final, device, problem, question FROM decision
         ORDER BY device, problem, question",
    )?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let key = [text(row, 3)?, text(row, 4)?, text(row, 5)?];
        let decision = Stored::of(row)?.decision(&key[1], &key[2]);
        take(key, decision)?;
    }
    Ok(())
}

/// Adds all decisions to the recordings of their devices, in order of the devices' first appearance.
pub(super) fn add_to(recordings: &mut Vec<Recording>, connection: &Connection) -> rusqlite::Result<()> {
    let devices = devices(connection)?;
    for_all(connection, |[words, problem, question], decision| {
        let owner = owner(&devices, &words);
        let (Some(decision), Ok(problem), None) = (decision, problem.parse(), device_fault(&owner)) else {
            return Ok(());
        };
        let place = recordings.iter().position(|recording| recording.device == owner).unwrap_or_else(|| {
            recordings.push(Recording::new(owner));
            recordings.len() - 1
        });
        recordings[place].add_answer(&problem, question, decision);
        Ok(())
    })?;
    let place = |recording: &Recording| devices.iter().position(|device| *device == recording.device);
    recordings.sort_by_key(|recording| place(recording).unwrap_or(usize::MAX));
    Ok(())
}

/// Adds the numbers of decisions to the entries of their devices, with new entries for devices without measurements.
pub(super) fn count_in(summaries: &mut Vec<Summary>, connection: &Connection) -> rusqlite::Result<()> {
    let devices = devices(connection)?;
    for_all(connection, |[words, ..], decision| {
        let (Some(decision), owner) = (decision, owner(&devices, &words)) else { return Ok(()) };
        let place = summaries.iter().position(|summary| summary.device == owner).unwrap_or_else(|| {
            summaries.push(Summary { device: owner, problems: 0, measurements: 0, decisions: 0, unfinished: 0 });
            summaries.len() - 1
        });
        summaries[place].decisions += 1;
        summaries[place].unfinished += usize::from(!decision.is_final);
        Ok(())
    })
}

/// The devices in the cache, in order of first appearance.
fn devices(connection: &Connection) -> rusqlite::Result<Vec<Device>> {
    let mut statement =
        connection.prepare("SELECT backend, name, library, threads FROM device WHERE threads >= 0 ORDER BY id")?;
    statement.query_map([], |row| device(row, 0))?.collect()
}

/// The device of a row, by its words.
fn owner(devices: &[Device], words: &str) -> Device {
    let known = devices.iter().filter(|device| device.to_string() == words);
    known.max_by_key(|device| device.backend == DECIDES).cloned().unwrap_or_else(|| device_of(words))
}

/// A device without measurements, from its words.
fn device_of(words: &str) -> Device {
    let (name, library) = words.strip_suffix(')').and_then(|words| words.rsplit_once(" (")).unwrap_or((words, ""));
    Device { backend: DECIDES.to_owned(), name: name.to_owned(), library: library.to_owned(), threads: 0 }
}

/// How many rows cannot be read.
pub(super) fn invalid(connection: &Connection) -> rusqlite::Result<usize> {
    let mut count = 0;
    for_all(connection, |_, decision| {
        count += usize::from(decision.is_none());
        Ok(())
    })?;
    Ok(count)
}

/// Deletes the rows that cannot be read.
pub(super) fn clear_invalid(connection: &Connection) -> rusqlite::Result<()> {
    let mut keys = Vec::new();
    for_all(connection, |key, decision| {
        if decision.is_none() {
            keys.push(key);
        }
        Ok(())
    })?;
    for key in keys {
        connection.execute("DELETE FROM decision WHERE device = ? AND problem = ? AND question = ?", key)?;
    }
    Ok(())
}
