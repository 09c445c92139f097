//! The store of measurements on disk: one SQLite file, safe for several processes at once.
//!
//! A measurement is found by everything that it depends on: device, library version, threads, the problem, the
//! algorithm and the micro-batch. The workspace limit is not among them: what was measured under one limit serves any
//! other, and a hit is filtered by today's limit. `docs/cache-format.md` describes the tables.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, Row, TransactionBehavior, params};

use super::{Algorithm, Device, Measurement, Notes, Recording};
use crate::network::Kernel;
use crate::{Bytes, DivisionCost, Error, Nanos, Problem};

/// Marks a file as a tightfit cache: "tfit".
const APPLICATION: i32 = 0x7466_6974;
/// The layout of the tables; a file with another is left as it is.
const SCHEMA_VERSION: i32 = 1;
/// How long to wait for another process that is writing.
const BUSY: Duration = Duration::from_secs(10);

const SCHEMA: &str = "
CREATE TABLE device (
    id INTEGER PRIMARY KEY,
    backend TEXT NOT NULL,
    name TEXT NOT NULL,
    library TEXT NOT NULL,
    threads INTEGER NOT NULL,
    UNIQUE (backend, name, library, threads)
) STRICT;
CREATE TABLE problem (
    id INTEGER PRIMARY KEY,
    shape TEXT NOT NULL UNIQUE
) STRICT;
CREATE TABLE measurement (
    device INTEGER NOT NULL REFERENCES device (id),
    problem INTEGER NOT NULL REFERENCES problem (id),
    algorithm TEXT NOT NULL,
    micro_batch INTEGER NOT NULL,
    time_ns INTEGER NOT NULL,
    single_ns INTEGER,
    workspace_bytes INTEGER NOT NULL,
    spread REAL NOT NULL,
    repeats INTEGER NOT NULL,
    notes INTEGER NOT NULL,
    PRIMARY KEY (device, problem, algorithm, micro_batch)
) STRICT, WITHOUT ROWID;
CREATE TABLE division (
    device INTEGER NOT NULL REFERENCES device (id),
    problem INTEGER NOT NULL REFERENCES problem (id),
    time_ns INTEGER NOT NULL,
    workspace_bytes INTEGER NOT NULL,
    PRIMARY KEY (device, problem)
) STRICT, WITHOUT ROWID;
CREATE TABLE network (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    batch INTEGER NOT NULL,
    UNIQUE (name, batch)
) STRICT;
CREATE TABLE layer (
    network INTEGER NOT NULL REFERENCES network (id),
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    problem INTEGER NOT NULL REFERENCES problem (id),
    mini_batch INTEGER NOT NULL,
    PRIMARY KEY (network, position)
) STRICT, WITHOUT ROWID;
";

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

impl Cache {
    /// Opens a cache for reading and writing; makes it, and the folder it is in, if there is none.
    ///
    /// Writes are journaled ahead (WAL); on a network file system, whose shared memory does not work between hosts,
    /// with a rollback journal instead.
    ///
    /// # Errors
    /// [`Error::File`] with what to do if the file is no cache, of another version, damaged, not writable, or locked
    /// for more than ten seconds. The file is left as it was.
    pub fn open(path: &Path) -> Result<Cache, Error> {
        let made = |error: std::io::Error| Error::File {
            path: path.to_owned(),
            what: "cannot be made here; name another file with --cache, or go without with --cache none".to_owned(),
            source: Some(Box::new(error)),
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(made)?;
        }
        // SQLite opens a file without write permission for reading and fails at the first write; say it at once.
        std::fs::OpenOptions::new().append(true).create(true).open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Error::File {
                path: path.to_owned(),
                what: "is read-only; copy it and name the copy with --cache, or make it writable".to_owned(),
                source: Some(Box::new(error)),
            },
            _ => made(error),
        })?;
        let cache = Cache::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        cache.prepare().map_err(|error| cache.refuse(error))?;
        Ok(cache)
    }

    /// Opens an existing cache for reading alone; the file may be read-only.
    ///
    /// # Errors
    /// As [`Cache::open`], and [`Error::File`] if there is no such file.
    pub fn open_read_only(path: &Path) -> Result<Cache, Error> {
        if !path.exists() {
            let what = "there is no such file; profile something first, or name another with --cache".to_owned();
            return Err(Error::File { path: path.to_owned(), what, source: None });
        }
        let cache = Cache::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let checked = cache.check(&cache.lock());
        match checked {
            // Another process has made the file and not yet its tables: it holds nothing.
            Ok(Contents::Nothing) => {
                let connection = Connection::open_in_memory().and_then(|connection| {
                    connection.execute_batch(SCHEMA)?;
                    Ok(connection)
                });
                let connection = Mutex::new(connection.map_err(|error| cache.refuse(error.into()))?);
                Ok(Cache { connection, ..cache })
            }
            Ok(Contents::Measurements) => Ok(cache),
            // A journal written ahead wants a file of its own beside the cache, which a read-only folder cannot give;
            // nobody can write there either, so the file may be taken as unchanging.
            Err(Fault::Sql(error))
                if matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly)) =>
            {
                let name = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
                let cache = Cache::connect(format!("file:{name}?immutable=1").as_ref(), flags)?;
                let cache = Cache { path: path.to_owned(), ..cache };
                cache.check(&cache.lock()).map_err(|error| cache.refuse(error))?;
                Ok(cache)
            }
            Err(fault) => Err(cache.refuse(fault)),
        }
    }

    fn connect(path: &Path, flags: OpenFlags) -> Result<Cache, Error> {
        let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .and_then(|connection| connection.busy_timeout(BUSY).map(|()| connection))
            .map_err(|error| refuse(path, error.into()))?;
        Ok(Cache { path: path.to_owned(), connection: Mutex::new(connection) })
    }

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

    fn prepare(&self) -> Result<(), Fault> {
        let mut connection = self.lock();
        self.check(&connection)?;
        let journal = if on_network(&self.path) { "DELETE" } else { "WAL" };
        // Switching does not wait for another process that switches at the same moment, so it is tried again. Where the
        // answer is not `wal` the rollback journal stays in force, which is safe everywhere.
        let started = Instant::now();
        loop {
            match connection.query_row(&format!("PRAGMA journal_mode = {journal}"), [], |_| Ok(())) {
                Err(error)
                    if matches!(
                        error.sqlite_error_code(),
                        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
                    ) && started.elapsed() < BUSY =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                switched => break switched?,
            }
        }
        connection.execute_batch("PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON;")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if version(&transaction)? == 0 {
            transaction.execute_batch(SCHEMA)?;
            transaction.pragma_update(None, "application_id", APPLICATION)?;
            transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
        }
        transaction.commit()?;
        Ok(())
    }

    /// Refuses what is no cache, before anything is written to it.
    fn check(&self, connection: &Connection) -> Result<Contents, Fault> {
        // One transaction, so that another process cannot make the tables between two questions.
        let transaction = connection.unchecked_transaction()?;
        let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        let application: i32 = transaction.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        match (application, version(&transaction)?) {
            (0, 0) if tables == 0 => return Ok(Contents::Nothing),
            (APPLICATION, SCHEMA_VERSION) => {}
            (APPLICATION, other) => return Err(Fault::Version(other)),
            _ => return Err(Fault::Foreign),
        }
        let answer: String = transaction.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if answer == "ok" { Ok(Contents::Measurements) } else { Err(Fault::Damaged(answer)) }
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
            // "Never" is the largest number, which a signed column cannot hold.
            let bytes = i64::try_from(cost.workspace.0).unwrap_or(i64::MAX);
            transaction.execute(
                "INSERT OR REPLACE INTO division VALUES (?, ?, ?, ?)",
                params![device, problem, cost.time.0 as i64, bytes],
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
        let layers: Vec<_> = kernels.iter().map(|k| (k.layer.clone(), k.problem.shape(), k.problem.batch())).collect();
        self.keep_layers(name, batch, &layers)
    }

    fn keep_layers(&self, name: &str, batch: usize, layers: &[(String, String, usize)]) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            let mut connection = self.lock();
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction
                .execute("INSERT OR IGNORE INTO network (name, batch) VALUES (?, ?)", params![name, batch as i64])?;
            let network: i64 = transaction.query_row(
                "SELECT id FROM network WHERE name = ? AND batch = ?",
                params![name, batch as i64],
                |row| row.get(0),
            )?;
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

    /// Takes in every measurement and network of a recording; gives how many measurements it had.
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
            self.keep_layers(&network.name, network.batch, &network.layers)?;
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

/// What a file that may be a cache holds.
enum Contents {
    /// Not even tables.
    Nothing,
    /// The tables of this version.
    Measurements,
}

/// What is wrong with a file.
enum Fault {
    Foreign,
    Version(i32),
    Damaged(String),
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Sql(error)
    }
}

fn refuse(path: &Path, fault: Fault) -> Error {
    let code = match &fault {
        Fault::Sql(error) => error.sqlite_error_code(),
        _ => None,
    };
    let what = match &fault {
        Fault::Foreign => "is a database, but not a tightfit cache; name another file with --cache".to_owned(),
        Fault::Version(version) => format!(
            "is a tightfit cache of version {version}, this program reads version {SCHEMA_VERSION}; name another file \
             with --cache, or export it with the program that wrote it and import that here"
        ),
        Fault::Damaged(answer) => damaged(answer),
        Fault::Sql(error) => match code {
            Some(ErrorCode::NotADatabase) => "is not a tightfit cache; name another file with --cache".to_owned(),
            Some(ErrorCode::DatabaseCorrupt) => damaged(&error.to_string()),
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => {
                "cannot be written, as on a full disk; free some space, or name a file elsewhere with --cache"
                    .to_owned()
            }
            Some(ErrorCode::ReadOnly) => "is read-only; copy it and name the copy with --cache".to_owned(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                format!("is locked by another program for over {} s; try again", BUSY.as_secs())
            }
            _ => "cannot be used as a cache; name another file with --cache".to_owned(),
        },
    };
    let source: Option<Box<dyn std::error::Error + Send + Sync>> = match fault {
        Fault::Sql(error) => Some(Box::new(error)),
        _ => None,
    };
    Error::File { path: path.to_owned(), what, source }
}

fn damaged(how: &str) -> String {
    format!("is damaged ({how}); move it away to start a new one, or name another with --cache")
}

fn version(connection: &Connection) -> rusqlite::Result<i32> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

fn device_id(connection: &Connection, device: &Device) -> rusqlite::Result<i64> {
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

fn problem_id(connection: &Connection, shape: &str) -> rusqlite::Result<i64> {
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

fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<usize> {
    let value: i64 = row.get(column)?;
    usize::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, value))
}

/// A device in four columns, from `first` on.
fn device(row: &Row<'_>, first: usize) -> rusqlite::Result<Device> {
    Ok(Device {
        backend: row.get(first)?,
        name: row.get(first + 1)?,
        library: row.get(first + 2)?,
        threads: count(row, first + 3)?,
    })
}

/// A cost of dividing in two columns, from `first` on.
fn division(row: &Row<'_>, first: usize) -> rusqlite::Result<DivisionCost> {
    let bytes = count(row, first + 1)? as u64;
    let workspace = if bytes == i64::MAX as u64 { Bytes::UNLIMITED } else { Bytes(bytes) };
    Ok(DivisionCost { time: Nanos(count(row, first)? as u64), workspace })
}

fn measurement(row: &Row<'_>) -> rusqlite::Result<Measurement> {
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

fn read_networks(connection: &Connection) -> rusqlite::Result<Vec<super::RecordedNetwork>> {
    let mut statement = connection.prepare(
        "SELECT n.name, n.batch, l.name, p.shape, l.mini_batch FROM network n JOIN layer l ON l.network = n.id
         JOIN problem p ON p.id = l.problem ORDER BY n.id, l.position",
    )?;
    let mut networks: Vec<super::RecordedNetwork> = Vec::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (name, batch): (String, usize) = (row.get(0)?, count(row, 1)?);
        if networks.last().is_none_or(|last| last.name != name || last.batch != batch) {
            networks.push(super::RecordedNetwork { name, batch, layers: Vec::new() });
        }
        if let Some(network) = networks.last_mut() {
            network.layers.push((row.get(2)?, row.get(3)?, count(row, 4)?));
        }
    }
    Ok(networks)
}

/// Whether a path lies on a file system that other hosts share: there a journal in shared memory is not safe.
fn on_network(path: &Path) -> bool {
    const SHARED: [&str; 13] = [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "afs",
        "fuse.sshfs",
        "9p",
    ];
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mounts") else { return false };
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?.replace("\\040", " "), words.next()?.to_owned()))
    };
    let longest =
        mounts.lines().filter_map(mount).filter(|(folder, _)| path.starts_with(folder)).max_by_key(|m| m.0.len());
    longest.is_some_and(|(_, kind)| SHARED.contains(&kind.as_str()))
}
