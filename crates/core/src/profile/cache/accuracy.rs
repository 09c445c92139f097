//! How far configurations err against 64-bit arithmetic, so that what one process has compared no other compares again.
//!
//! The table refers to no other, so that older programs can clear the cache without knowing it.

use rusqlite::{Connection, TransactionBehavior, params};

use super::Cache;
use super::rows::{has_table, text};
use crate::profile::bounds::{MOST_ERROR, error_fault, refuse};
use crate::{Configuration, Device, Error, Problem};

/// The table. A configuration is stored as JSON, without times.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS accuracy (
    device TEXT NOT NULL,
    problem TEXT NOT NULL,
    configuration TEXT NOT NULL,
    error REAL NOT NULL,
    PRIMARY KEY (device, problem, configuration)
) STRICT, WITHOUT ROWID;
";
/// Its name.
pub(super) const TABLE: &str = "accuracy";

impl Cache {
    /// The configurations of the problem at its mini-batch that were compared on `device`, without times, each with its error: the
    /// root of the mean square of the differences from 64-bit arithmetic, over the largest magnitude.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn errors(&self, device: &Device, problem: &Problem) -> Result<Vec<(Configuration, f64)>, Error> {
        let read = || -> rusqlite::Result<Vec<(Configuration, f64)>> {
            let connection = self.lock();
            if !has_table(&connection, TABLE)? {
                return Ok(Vec::new());
            }
            let problem = problem.to_string();
            let mut statement = connection
                .prepare_cached("SELECT configuration, error FROM accuracy WHERE device = ? AND problem = ?")?;
            let rows = statement.query_map(params![device.to_string(), problem], |row| {
                Ok(sound(&problem, &text(row, 0)?, row.get(1)?))
            })?;
            rows.filter_map(Result::transpose).collect()
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Saves the errors of configurations of the problem at its mini-batch on `device`, in place of earlier ones. An error that is
    /// infinite or no number is saved as the largest.
    ///
    /// # Errors
    /// As [`Cache::keep`]; none of them is kept then.
    pub fn keep_errors(
        &self,
        device: &Device,
        problem: &Problem,
        errors: &[(Configuration, f64)],
    ) -> Result<(), Error> {
        let problem = problem.to_string();
        let errors = errors.iter().map(|(configuration, error)| (configuration.without_times(), error.min(MOST_ERROR)));
        let errors: Vec<(Configuration, f64)> = errors.collect();
        for (configuration, error) in &errors {
            refuse("an error", error_fault(&problem, configuration, *error))?;
        }
        let write =
            || -> rusqlite::Result<()> {
                let mut connection = self.lock();
                let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
                for (configuration, error) in &errors {
                    // Only a map with keys other than texts could not be written.
                    let configuration = serde_json::to_string(configuration).unwrap_or_default();
                    transaction
                        .prepare_cached("INSERT OR REPLACE INTO accuracy VALUES (?, ?, ?, ?)")?
                        .execute(params![device.to_string(), problem, configuration, error])?;
                }
                transaction.commit()
            };
        write().map_err(|error| self.refuse(error.into()))
    }
}

/// A row; none for one that cannot be a comparison of the problem.
fn sound(problem: &str, configuration: &str, error: f64) -> Option<(Configuration, f64)> {
    let configuration = serde_json::from_str(configuration).ok()?;
    error_fault(problem, &configuration, error).is_none().then_some((configuration, error))
}

/// The keys of the rows that cannot be read.
fn unreadable(connection: &Connection) -> rusqlite::Result<Vec<[String; 3]>> {
    if !has_table(connection, TABLE)? {
        return Ok(Vec::new());
    }
    let mut statement = connection.prepare("SELECT device, problem, configuration, error FROM accuracy")?;
    let mut rows = statement.query([])?;
    let mut keys = Vec::new();
    while let Some(row) = rows.next()? {
        let key = [text(row, 0)?, text(row, 1)?, text(row, 2)?];
        if sound(&key[1], &key[2], row.get(3)?).is_none() {
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
    for key in unreadable(connection)? {
        connection.execute("DELETE FROM accuracy WHERE device = ? AND problem = ? AND configuration = ?", key)?;
    }
    Ok(())
}
