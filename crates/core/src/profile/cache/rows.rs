//! What rows of the tables stand for, and the numbers by which they refer to each other.

use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::candidate::{Algorithm, Measurement, Notes};
use crate::profile::RecordedNetwork;
use crate::{Bytes, Device, DivisionCost, Nanos};

/// The number of a device, which is written if it is new.
pub(super) fn device_id(connection: &Connection, device: &Device) -> rusqlite::Result<i64> {
    let key = params![device.backend, device.name, device.library, device.threads as i64];
    let found = connection
        .prepare_cached("SELECT id FROM device WHERE backend = ? AND name = ? AND library = ? AND threads = ?")?
        .query_row(key, |row| row.get(0))
        .optional()?;
    match found {
        Some(id) => Ok(id),
        None => {
            connection.execute("INSERT INTO device (backend, name, library, threads) VALUES (?, ?, ?, ?)", key)?;
            Ok(connection.last_insert_rowid())
        }
    }
}

/// The number of a problem's shape, which is written if it is new.
pub(super) fn problem_id(connection: &Connection, shape: &str) -> rusqlite::Result<i64> {
    let found = connection
        .prepare_cached("SELECT id FROM problem WHERE shape = ?")?
        .query_row([shape], |row| row.get(0))
        .optional()?;
    match found {
        Some(id) => Ok(id),
        None => {
            connection.execute("INSERT INTO problem (shape) VALUES (?)", [shape])?;
            Ok(connection.last_insert_rowid())
        }
    }
}

/// The number of a network, which is written if it is new.
pub(super) fn network_id(connection: &Connection, name: &str, batch: usize) -> rusqlite::Result<i64> {
    let key = params![name, batch as i64];
    connection.execute("INSERT OR IGNORE INTO network (name, batch) VALUES (?, ?)", key)?;
    connection.query_row("SELECT id FROM network WHERE name = ? AND batch = ?", key, |row| row.get(0))
}

/// A number that cannot be negative.
pub(super) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    let value: i64 = row.get(column)?;
    usize::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// A device in four columns, from `first` on.
pub(super) fn device(row: &Row<'_>, first: usize) -> rusqlite::Result<Device> {
    Ok(Device {
        backend: row.get(first)?,
        name: row.get(first + 1)?,
        library: row.get(first + 2)?,
        threads: count(row, first + 3)?,
    })
}

/// A cost of dividing in two columns, from `first` on. The numbers of [`DivisionCost::NEVER`] are larger than a signed column
/// holds: its largest stands for them, and so does a negative one, which is what a cast makes of them.
pub(super) fn division(row: &Row<'_>, first: usize) -> rusqlite::Result<DivisionCost> {
    let finite = |column| -> rusqlite::Result<Option<u64>> {
        let value: i64 = row.get(column)?;
        Ok(u64::try_from(value).ok().filter(|_| value != i64::MAX))
    };
    let DivisionCost { time, workspace } = DivisionCost::NEVER;
    Ok(DivisionCost {
        time: finite(first)?.map_or(time, Nanos),
        workspace: finite(first + 1)?.map_or(workspace, Bytes),
    })
}

/// A number for a column of [`division`].
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A measurement in eight columns, from the first on.
pub(super) fn measurement(row: &Row<'_>) -> rusqlite::Result<Measurement> {
    Ok(Measurement {
        algorithm: Algorithm::new(&row.get::<_, String>(0)?),
        micro_batch: count(row, 1)?,
        time: Nanos(count(row, 2)? as u64),
        single: row.get::<_, Option<i64>>(3)?.map(|ns| Nanos(ns.unsigned_abs())),
        workspace: Bytes(count(row, 4)? as u64),
        spread: row.get(5)?,
        repeats: row.get(6)?,
        notes: Notes(row.get(7)?),
    })
}

/// All networks with their layers.
pub(super) fn read_networks(connection: &Connection) -> rusqlite::Result<Vec<RecordedNetwork>> {
    let mut statement = connection.prepare(
        "SELECT n.name, n.batch, l.name, p.shape, l.mini_batch FROM network n JOIN layer l ON l.network = n.id
         JOIN problem p ON p.id = l.problem ORDER BY n.id, l.position",
    )?;
    let mut networks: Vec<RecordedNetwork> = Vec::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (name, batch): (String, usize) = (row.get(0)?, count(row, 1)?);
        if networks.last().is_none_or(|last| last.name != name || last.batch != batch) {
            networks.push(RecordedNetwork { name, batch, layers: Vec::new() });
        }
        if let Some(network) = networks.last_mut() {
            network.layers.push((row.get(2)?, row.get(3)?, count(row, 4)?));
        }
    }
    Ok(networks)
}
