//! Counts and deletes invalid rows, which only manual edits can create and which are ignored when a cache is read.

use rusqlite::{Connection, TransactionBehavior};
use tightfit_units::Error;

use super::rows::{SOUND_LAYER, SOUND_MEASUREMENT, clear_devices, unreadable};
use super::{Cache, comparisons, decisions};

/// The ignored rows of each table.
struct InvalidRows {
    /// Table, and the condition on its rows.
    tables: [(&'static str, String); 3],
}

impl InvalidRows {
    fn of(connection: &Connection) -> rusqlite::Result<InvalidRows> {
        let unreadable = unreadable(connection)?;
        let measurements = format!(
            "(device, problem, algorithm, micro_batch) IN (
                SELECT m.device, m.problem, m.algorithm, m.micro_batch
                FROM measurement m LEFT JOIN device d ON d.id = m.device
                WHERE {} IS NOT 1 OR m.problem IN ({}))",
            *SOUND_MEASUREMENT, unreadable.rows
        );
        let layers = format!(
            "(network, position) IN (
                SELECT l.network, l.position FROM layer l LEFT JOIN network n ON n.id = l.network
                WHERE {} IS NOT 1 OR l.problem IN ({}))",
            *SOUND_LAYER, unreadable.layers
        );
        let divisions = format!("problem IN ({})", unreadable.rows);
        Ok(InvalidRows { tables: [("measurement", measurements), ("layer", layers), ("division", divisions)] })
    }
}

impl Cache {
    /// The number of rows that are ignored when the cache is read, because they were edited by hand and cannot be measurements. [`Cache::clear`]
    /// deletes them.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read.
    pub fn left_out(&self) -> Result<usize, Error> {
        let read = || -> rusqlite::Result<usize> {
            let connection = self.lock();
            let count = |(table, condition): &(&str, String)| -> rusqlite::Result<usize> {
                let count = format!("SELECT count(*) FROM {table} WHERE {condition}");
                connection.query_row(&count, [], |row| super::rows::count(row, 0))
            };
            let rows: usize =
                InvalidRows::of(&connection)?.tables.iter().map(count).sum::<rusqlite::Result<usize>>()?;
            Ok(rows + decisions::invalid(&connection)? + comparisons::invalid(&connection)?)
        };
        read().map_err(|error| self.refuse(error.into()))
    }

    /// Deletes the measurements of devices whose name contains `device`, or all measurements, and returns how many.
    /// Also deletes the rows that [`Cache::left_out`] counts.
    ///
    /// # Errors
    /// As [`Cache::keep`].
    pub fn clear(&self, device: Option<&str>) -> Result<usize, Error> {
        let part = device.unwrap_or_default();
        let forget = || -> rusqlite::Result<usize> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            for (table, condition) in &InvalidRows::of(&transaction)?.tables {
                transaction.execute(&format!("DELETE FROM {table} WHERE {condition}"), [])?;
            }
            decisions::clear_invalid(&transaction)?;
            comparisons::clear_invalid(&transaction)?;
            let named = "SELECT id FROM device WHERE ?1 = '' OR instr(name, ?1) > 0";
            for table in [decisions::TABLE, comparisons::TABLE] {
                clear_devices(&transaction, table, part)?;
            }
            // The triggers delete the marks along with the rows.
            transaction.execute(&format!("DELETE FROM division WHERE device IN ({named})"), [part])?;
            let gone = transaction.execute(&format!("DELETE FROM measurement WHERE device IN ({named})"), [part])?;
            transaction.commit()?;
            Ok(gone)
        };
        forget().map_err(|error| self.refuse(error.into()))
    }
}
