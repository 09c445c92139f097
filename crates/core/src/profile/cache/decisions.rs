//! What was decided about convolutions of programs, so that the next process begins with it.
//!
//! The table refers to no other, so that older programs can clear the cache without knowing it.

use rusqlite::{Connection, OptionalExtension, params};

use super::Cache;
use super::rows::{signed, text};
use crate::profile::Admission;
use crate::{Algorithm, Bytes, Configuration, Device, Error, Nanos, Problem};

/// The table.
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

/// A question about a program's convolution: everything a decision depends on, except the device.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionKey {
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The program's own algorithm.
    pub chosen: Algorithm,
    /// Its workspace, by which another version of the library is noticed.
    pub chosen_workspace: Bytes,
    /// The largest workspace.
    pub limit: Bytes,
    /// Name of the rule that chose the sizes, such as `fit`; with ` auto` if the limit is the own choice's workspace.
    pub sizes: String,
    /// Which algorithms.
    pub admission: Admission,
    /// The bits of both factors.
    pub factors: [u32; 2],
    /// What every address is a multiple of.
    pub base: usize,
}

impl DecisionKey {
    fn words(&self) -> String {
        let DecisionKey { chosen, chosen_workspace, limit, sizes, admission, factors: [alpha, beta], base, .. } = self;
        let class = admission.class.map_or(-1, |class| i64::from(class.0));
        format!(
            "{chosen} {} limit {} sizes {sizes} deterministic {} class {class} without {} factors {alpha:08x} {beta:08x} base {base}",
            chosen_workspace.0, limit.0, admission.deterministic, admission.without.0
        )
    }
}

/// A decision that was measured and compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What runs; none for the program's own choice.
    pub configuration: Option<Configuration>,
    /// Time of the program's own choice, measured in turns with the configuration.
    pub framework_time: Option<Nanos>,
    /// Whether nothing is left to measure.
    pub is_final: bool,
}

impl Cache {
    /// The decision about a question on `device`; none if there is none, or none that can be read.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn decision(&self, device: &Device, key: &DecisionKey) -> Result<Option<Decision>, Error> {
        let read = || -> rusqlite::Result<Option<(String, Option<i64>, bool)>> {
            let connection = self.lock();
            if !has_decisions(&connection)? {
                return Ok(None);
            }
            connection
                .prepare_cached(
                    "SELECT configuration, framework_ns, is_final FROM decision
                     WHERE device = ? AND problem = ? AND question = ?",
                )?
                .query_row(params![device.to_string(), key.problem.to_string(), key.words()], |row| {
                    Ok((text(row, 0)?, row.get(1)?, row.get::<_, i64>(2)? != 0))
                })
                .optional()
        };
        let found = read().map_err(|error| self.refuse(error.into()))?;
        Ok(found.and_then(|(configuration, framework, is_final)| {
            let configuration: Option<Configuration> = serde_json::from_str(&configuration).ok()?;
            let is_whole = |configuration: &Configuration| configuration.batch() == key.problem.batch();
            let framework_time = framework.and_then(|nanos| u64::try_from(nanos).ok()).map(Nanos);
            let decision = || Decision { configuration: configuration.clone(), framework_time, is_final };
            configuration.as_ref().is_none_or(is_whole).then(decision)
        }))
    }

    /// Saves a decision in place of an earlier one.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn keep_decision(&self, device: &Device, key: &DecisionKey, decision: &Decision) -> Result<(), Error> {
        let configuration = serde_json::to_string(&decision.configuration).unwrap_or_else(|_| "null".to_owned());
        let write = || -> rusqlite::Result<usize> {
            self.lock().execute(
                "INSERT OR REPLACE INTO decision VALUES (?, ?, ?, ?, ?, ?)",
                params![
                    device.to_string(),
                    key.problem.to_string(),
                    key.words(),
                    configuration,
                    decision.framework_time.map(|time| signed(time.0)),
                    i64::from(decision.is_final),
                ],
            )
        };
        write().map(drop).map_err(|error| self.refuse(error.into()))
    }
}

/// Deletes the decisions of devices whose name contains `part`. The rest of a row's device, in parentheses, is its library's.
pub(super) fn clear(connection: &Connection, part: &str) -> rusqlite::Result<()> {
    let mut find = connection.prepare("SELECT DISTINCT device FROM decision")?;
    let devices = find.query_map([], |row| text(row, 0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    for device in devices {
        let name = device.rsplit_once(" (").map_or(device.as_str(), |(name, _)| name);
        if name.contains(part) {
            connection.execute("DELETE FROM decision WHERE device = ?", [&device])?;
        }
    }
    Ok(())
}

/// Whether the table exists: a file written by an older program lacks it until it is opened for writing.
fn has_decisions(connection: &Connection) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'decision')")?
        .query_row([], |row| row.get(0))
}
