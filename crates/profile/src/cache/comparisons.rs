//! The errors of configurations against 64-bit arithmetic, so that no process repeats the comparison of another.
//!
//! The table refers to no other table, so that older programs can clear the cache without knowing it.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, TransactionBehavior, params};
use tightfit_conv::{Algorithm, Device};
use tightfit_units::Error;

use super::Cache;
use super::rows::{has_table, text};
use crate::bounds::{MOST_ERROR, comparison_fault, refuse};
use crate::{Comparison, ComparisonKey};

/// The table. A configuration is stored as JSON, without times.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS comparison (
    device TEXT NOT NULL,
    problem TEXT NOT NULL,
    question TEXT NOT NULL,
    configuration TEXT NOT NULL,
    error REAL NOT NULL,
    own TEXT,
    own_error REAL,
    PRIMARY KEY (device, problem, question, configuration)
) STRICT, WITHOUT ROWID;
";
pub(super) const TABLE: &str = "comparison";

impl Cache {
    /// The configurations compared on `device` for a question, without times.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn comparisons(&self, device: &Device, key: &ComparisonKey) -> Result<Vec<Comparison>, Error> {
        let read = || -> rusqlite::Result<Vec<Comparison>> {
            let connection = self.lock();
            if !has_table(&connection, TABLE)? {
                return Ok(Vec::new());
            }
            let problem = key.problem.to_string();
            let mut statement = connection.prepare_cached(
                "SELECT configuration, error, own, own_error FROM comparison
                 WHERE device = ? AND problem = ? AND question = ?",
            )?;
            let of_key = params![device.to_string(), problem, key.words()];
            let rows = statement.query_map(of_key, |row| sound(&problem, row, 0))?;
            rows.filter_map(Result::transpose).collect()
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Saves comparisons made on `device` for a question. They replace earlier ones of the same configurations. An infinite or undefined error is
    /// saved as the largest number.
    ///
    /// # Errors
    /// As [`Cache::keep`]; in that case no comparison is saved.
    pub fn keep_comparisons(&self, device: &Device, key: &ComparisonKey, new: &[Comparison]) -> Result<(), Error> {
        let problem = key.problem.to_string();
        let new: Vec<Comparison> = new.iter().map(bounded).collect();
        for one in &new {
            refuse("a comparison", comparison_fault(&problem, one))?;
        }
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for Comparison { configuration, error, own } in &new {
                // Only a map with keys other than texts could not be written.
                let configuration = serde_json::to_string(configuration).unwrap_or_default();
                let (own, own_error) = own.as_ref().map(|(own, error)| (own.to_string(), *error)).unzip();
                transaction
                    .prepare_cached("INSERT OR REPLACE INTO comparison VALUES (?, ?, ?, ?, ?, ?, ?)")?
                    .execute(params![device.to_string(), problem, key.words(), configuration, error, own, own_error])?;
            }
            transaction.commit()
        };
        write().map_err(|error| self.refuse(error.into()))
    }
}

/// The saved form: without times, and with finite errors.
fn bounded(Comparison { configuration, error, own }: &Comparison) -> Comparison {
    let own = own.as_ref().map(|(own, error)| (own.clone(), error.min(MOST_ERROR)));
    Comparison { configuration: configuration.without_times(), error: error.min(MOST_ERROR), own }
}

/// The comparison in a row from a column on; `None` if it cannot be a comparison of the problem.
fn sound(problem: &str, row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Comparison>> {
    let error = row.get(column + 1)?;
    let own = match row.get_ref(column + 2)? {
        ValueRef::Null => None,
        _ => Some(text(row, column + 2)?),
    };
    let own_error: Option<f64> = row.get(column + 3)?;
    if own.is_some() != own_error.is_some() {
        return Ok(None);
    }
    let own = own.as_deref().map(Algorithm::new).zip(own_error);
    let configuration = serde_json::from_str(&text(row, column)?).ok();
    let found = configuration.map(|configuration| Comparison { configuration, error, own });
    Ok(found.filter(|found| comparison_fault(problem, found).is_none()))
}

/// The keys of the rows that cannot be read.
fn unreadable(connection: &Connection) -> rusqlite::Result<Vec<[String; 4]>> {
    if !has_table(connection, TABLE)? {
        return Ok(Vec::new());
    }
    let mut statement =
        connection.prepare("SELECT device, problem, question, configuration, error, own, own_error FROM comparison")?;
    let mut rows = statement.query([])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let key = [text(row, 0)?, text(row, 1)?, text(row, 2)?, text(row, 3)?];
        if sound(&key[1], row, 3)?.is_none() {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// How many rows cannot be read.
pub(super) fn invalid(connection: &Connection) -> rusqlite::Result<usize> {
    unreadable(connection).map(|keys| keys.len())
}

/// Deletes the rows that cannot be read.
pub(super) fn clear_invalid(connection: &Connection) -> rusqlite::Result<()> {
    let of_key = "DELETE FROM comparison WHERE device = ? AND problem = ? AND question = ? AND configuration = ?";
    for key in unreadable(connection)? {
        connection.execute(of_key, key)?;
    }
    Ok(())
}
