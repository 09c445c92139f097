//! Marks questions that were fully measured. The cache then answers them without the backend setting up any candidate.
//!
//! A mark asserts that rows exist, so it must be deleted with them: triggers delete a problem's marks as soon as one of its rows is deleted or
//! changed.

use rusqlite::{OptionalExtension, TransactionBehavior, params};
use tightfit_conv::{Candidate, Device, Problem};
use tightfit_units::{Bytes, Error};

use super::Cache;
use super::rows::{device_id, has_table, problem_id, signed, whole};
use crate::Admission;

/// The table of marks with the triggers that keep it valid. Older programs do not touch the table, but the triggers
/// still run for them.
pub(super) const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS surveyed (
    device INTEGER NOT NULL REFERENCES device (id),
    problem INTEGER NOT NULL REFERENCES problem (id),
    mini_batch INTEGER NOT NULL,
    sizes TEXT NOT NULL,
    limit_bytes INTEGER NOT NULL,
    deterministic INTEGER NOT NULL,
    class INTEGER NOT NULL,
    without INTEGER NOT NULL,
    PRIMARY KEY (device, problem, mini_batch, sizes, limit_bytes, deterministic, class, without)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS measurement_deleted AFTER DELETE ON measurement BEGIN
    DELETE FROM surveyed WHERE device = OLD.device AND problem = OLD.problem;
END;
CREATE TRIGGER IF NOT EXISTS measurement_changed AFTER UPDATE ON measurement BEGIN
    DELETE FROM surveyed WHERE device = OLD.device AND problem = OLD.problem;
END;
CREATE TRIGGER IF NOT EXISTS division_deleted AFTER DELETE ON division BEGIN
    DELETE FROM surveyed WHERE device = OLD.device AND problem = OLD.problem;
END;
";
/// The triggers' names.
pub(super) const TRIGGERS: [&str; 3] = ["measurement_deleted", "measurement_changed", "division_deleted"];

/// A question about one kernel: everything its answer depends on, except the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The kernel at its mini-batch.
    pub problem: Problem,
    /// Name of the rule that chose the sizes, such as `fit`.
    pub sizes: String,
    /// The largest workspace.
    pub limit: Bytes,
    /// Which algorithms.
    pub admission: Admission,
}

impl Cache {
    /// Whether the question was fully measured on `device`, and all its measurements are still here.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn is_surveyed(&self, device: &Device, mark: &Mark) -> Result<bool, Error> {
        let read = || -> rusqlite::Result<bool> {
            let connection = self.lock();
            if !has_table(&connection, "surveyed")? {
                return Ok(false);
            }
            let Mark { problem, sizes, .. } = mark;
            let [limit, deterministic, class, without] = mark.numbers();
            connection
                .prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM surveyed s
                     JOIN device d ON d.id = s.device JOIN problem p ON p.id = s.problem
                     WHERE d.backend = ? AND d.name = ? AND d.library = ? AND d.threads = ? AND p.shape = ?
                     AND s.mini_batch = ? AND s.sizes = ? AND s.limit_bytes = ? AND s.deterministic = ?
                     AND s.class = ? AND s.without = ?)",
                )?
                .query_row(
                    params![
                        device.backend,
                        device.name,
                        device.library,
                        whole(device.threads),
                        problem.shape(),
                        whole(problem.batch()),
                        sizes,
                        limit,
                        deterministic,
                        class,
                        without,
                    ],
                    |row| row.get(0),
                )
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Marks a question as fully measured with these candidates, and returns whether it did. It does not if a candidate
    /// is missing from the cache, for example because writing it failed.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn mark_surveyed(&self, device: &Device, mark: &Mark, candidates: &[Candidate]) -> Result<bool, Error> {
        let write = || -> rusqlite::Result<bool> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let device = device_id(&transaction, device)?;
            let problem = problem_id(&transaction, &mark.problem.shape())?;
            for candidate in candidates {
                let is_here = transaction
                    .prepare_cached(
                        "SELECT 1 FROM measurement WHERE device = ? AND problem = ? AND algorithm = ?
                         AND micro_batch = ? AND workspace_bytes = ?",
                    )?
                    .query_row(
                        params![
                            device,
                            problem,
                            candidate.algorithm.name(),
                            whole(candidate.micro_batch),
                            signed(candidate.workspace.0),
                        ],
                        |_| Ok(()),
                    )
                    .optional()?;
                if is_here.is_none() {
                    return Ok(false);
                }
            }
            let [limit, deterministic, class, without] = mark.numbers();
            transaction.execute(
                "INSERT OR IGNORE INTO surveyed VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                params![
                    device,
                    problem,
                    whole(mark.problem.batch()),
                    mark.sizes,
                    limit,
                    deterministic,
                    class,
                    without,
                ],
            )?;
            transaction.commit()?;
            Ok(true)
        };
        write().map_err(|error| self.refuse(error.into()))
    }
}

impl Mark {
    /// Limit, whether only deterministic algorithms, numerical class (-1 for any), and the excluded notes.
    fn numbers(&self) -> [i64; 4] {
        let Admission { deterministic, class, without } = self.admission;
        [
            signed(self.limit.0),
            i64::from(deterministic),
            class.map_or(-1, |class| i64::from(class.0)),
            i64::from(without.0),
        ]
    }
}
