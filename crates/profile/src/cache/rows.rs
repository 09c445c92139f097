//! Converts rows of the tables to values and back, resolves the IDs that they refer to, and checks them.
//!
//! A file edited by hand may hold rows that cannot be measurements. They are ignored when the cache is read, so that
//! one of them does not make the others unreadable; [`super::Cache::clear`] deletes them.

use std::sync::LazyLock;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};
use tightfit_conv::{Algorithm, Device, DivisionCost, Measurement, Notes, Problem};
use tightfit_units::{Bytes, Nanos};

use super::super::is_step_name;
use crate::bounds::{MOST_SPREAD, MOST_THREADS, MOST_TIME, MOST_WORKSPACE, shape_fault};
use crate::{Owner, RecordedNetwork};

/// The condition for a valid measurement `m` of a device `d`.
pub(super) static SOUND_MEASUREMENT: LazyLock<String> = LazyLock::new(|| {
    let (samples, time, workspace) = (Problem::MOST_SAMPLES, MOST_TIME.0, MOST_WORKSPACE.0);
    let word = u32::MAX;
    format!(
        "(m.micro_batch BETWEEN 1 AND {samples} AND m.time_ns BETWEEN 1 AND {time}
          AND (m.single_ns IS NULL OR m.single_ns BETWEEN 1 AND {time})
          AND m.workspace_bytes BETWEEN 0 AND {workspace} AND m.spread BETWEEN 0 AND {MOST_SPREAD:?}
          AND m.repeats BETWEEN 0 AND {word} AND m.notes BETWEEN 0 AND {word}
          AND d.threads BETWEEN 0 AND {MOST_THREADS})"
    )
});

/// The condition for a valid layer `l` of a network `n`.
pub(super) static SOUND_LAYER: LazyLock<String> = LazyLock::new(|| {
    let samples = Problem::MOST_SAMPLES;
    format!(
        "(l.mini_batch BETWEEN 1 AND {samples} AND (n.batch BETWEEN 0 AND {samples} OR n.batch = {}))",
        number(Owner::Network { batch: None })
    )
});

/// IDs of problems that some rows must not refer to.
pub(super) struct Unreadable {
    /// Problems that are neither convolutions nor training steps, so no row may refer to them. A list for `NOT IN`.
    pub rows: String,
    /// Not a convolution, so no layer may refer to them. A list for `NOT IN`.
    pub layers: String,
}

/// Finds these problems.
pub(super) fn unreadable(connection: &Connection) -> rusqlite::Result<Unreadable> {
    let (mut rows, mut layers) = (Vec::new(), Vec::new());
    let mut statement = connection.prepare("SELECT id, shape FROM problem")?;
    let mut problems = statement.query([])?;
    while let Some(problem) = problems.next()? {
        let (id, shape) = (problem.get::<_, i64>(0)?.to_string(), text(problem, 1)?);
        if shape_fault(&shape).is_some() {
            rows.push(id.clone());
        }
        if shape_fault(&shape).is_some() || is_step_name(&shape) {
            layers.push(id);
        }
    }
    Ok(Unreadable { rows: rows.join(","), layers: layers.join(",") })
}

/// The ID of a device, inserted if it is new.
pub(super) fn device_id(connection: &Connection, device: &Device) -> rusqlite::Result<i64> {
    let key = params![device.backend, device.name, device.library, whole(device.threads)];
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

/// The ID of a problem's shape, inserted if it is new.
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

/// The ID of a network, inserted if it is new.
pub(super) fn network_id(connection: &Connection, name: &str, owner: Owner) -> rusqlite::Result<i64> {
    let key = params![name, number(owner)];
    connection.execute("INSERT OR IGNORE INTO network (name, batch) VALUES (?, ?)", key)?;
    connection.query_row("SELECT id FROM network WHERE name = ? AND batch = ?", key, |row| row.get(0))
}

/// An owner as a value of the column `batch`. The largest number marks a network without a mini-batch.
fn number(owner: Owner) -> i64 {
    match owner {
        Owner::Program => 0,
        Owner::Network { batch: Some(batch) } => whole(batch),
        Owner::Network { batch: None } => i64::MAX,
    }
}

/// The owner of a number that passed [`SOUND_LAYER`].
fn owner(number: i64) -> Owner {
    match usize::try_from(number) {
        Ok(0) | Err(_) => Owner::Program,
        Ok(_) if number == i64::MAX => Owner::Network { batch: None },
        Ok(batch) => Owner::Network { batch: Some(batch) },
    }
}

/// Whether a table exists that was added later: a file written by an older program lacks it until it is opened for writing.
pub(super) fn has_table(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)")?
        .query_row([table], |row| row.get(0))
}

/// Deletes the rows of a table with devices in words whose name contains `part`. The words in parentheses are the library's.
pub(super) fn clear_devices(connection: &Connection, table: &str, part: &str) -> rusqlite::Result<()> {
    let mut find = connection.prepare(&format!("SELECT DISTINCT device FROM {table}"))?;
    let devices = find.query_map([], |row| text(row, 0))?.collect::<rusqlite::Result<Vec<String>>>()?;
    for device in devices {
        let name = device.rsplit_once(" (").map_or(device.as_str(), |(name, _)| name);
        if name.contains(part) {
            connection.execute(&format!("DELETE FROM {table} WHERE device = ?"), [&device])?;
        }
    }
    Ok(())
}

/// A number for a column, clamped to the largest that a column holds.
pub(super) fn whole(value: usize) -> i64 {
    signed(value as u64)
}

/// As [`whole`].
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A text; invalid UTF-8 is replaced.
pub(super) fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<String> {
    match row.get_ref(column)? {
        ValueRef::Text(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
        _ => row.get(column),
    }
}

/// A number that cannot be negative.
pub(super) fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    let value: i64 = row.get(column)?;
    usize::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// A device in four columns, from `first` on.
pub(super) fn device(row: &Row<'_>, first: usize) -> rusqlite::Result<Device> {
    Ok(Device {
        backend: text(row, first)?,
        name: text(row, first + 1)?,
        library: text(row, first + 2)?,
        threads: count(row, first + 3)?,
    })
}

/// A cost of dividing in two columns, from `first` on. The numbers of [`DivisionCost::NEVER`] exceed a signed column. The column's largest number
/// stands for them, and so does any negative number, the result of a cast.
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

/// A measurement in eight columns, from the first on, that passed [`SOUND_MEASUREMENT`].
pub(super) fn measurement(row: &Row<'_>) -> rusqlite::Result<Measurement> {
    Ok(Measurement {
        algorithm: Algorithm::new(&text(row, 0)?),
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
    let mut statement = connection.prepare(&format!(
        "SELECT n.id, n.name, n.batch, l.name, p.shape, l.mini_batch FROM network n JOIN layer l ON l.network = n.id
         JOIN problem p ON p.id = l.problem WHERE {} AND p.id NOT IN ({}) ORDER BY n.id, l.position",
        *SOUND_LAYER,
        unreadable(connection)?.layers
    ))?;
    let mut networks: Vec<(i64, RecordedNetwork)> = Vec::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let id = row.get(0)?;
        if networks.last().is_none_or(|(last, _)| *last != id) {
            let (name, owner) = (text(row, 1)?, owner(row.get(2)?));
            networks.push((id, RecordedNetwork { name, owner, layers: Vec::new() }));
        }
        if let Some((_, network)) = networks.last_mut() {
            network.layers.push((text(row, 3)?, text(row, 4)?, count(row, 5)?));
        }
    }
    Ok(networks.into_iter().map(|(_, network)| network).collect())
}
