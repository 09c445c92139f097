//! Opens a cache file: creates a missing one, and refuses a file that is not a cache before writing anything to it.

use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use tightfit_units::{Error, output};

use super::fault::{BUSY, Fault, SCHEMA_VERSION, refuse};
use super::{Cache, comparisons, decisions, marks};

/// Marks a file as a tightfit cache: "tfit".
const APPLICATION: i32 = 0x7466_6974;
/// The largest file to check when it is opened, which takes about 3 ms per MiB. Damage in a larger file is found when
/// it is read.
const CHECKED: i64 = 8 << 20;
/// The tables without the tables of [`LATER`]. Batch 0 of a network marks a program, and the largest number marks a network without a mini-batch. A
/// layer's name is empty if the program gave none.
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
/// Tables that were added later, even to files of older programs.
const LATER: [&str; 3] = [marks::SCHEMA, decisions::SCHEMA, comparisons::SCHEMA];

impl Cache {
    /// Opens a cache for reading and writing; creates it and its folder if missing.
    ///
    /// Uses a write-ahead log (WAL), or a rollback journal on a network file system, where shared memory does not work
    /// between hosts.
    ///
    /// # Errors
    /// [`Error::File`] with what to do if the file is not a cache, of another version, damaged, not writable, or locked
    /// for more than ten seconds. The file is left unchanged.
    pub fn open(path: &Path) -> Result<Cache, Error> {
        let made = |error: std::io::Error| Error::File {
            path: path.to_owned(),
            what: format!(
                "cannot be created in the folder {}; name another file with --cache FILE, or keep nothing with --cache none",
                output::folder(path).display()
            ),
            source: Some(Box::new(error)),
        };
        check_type(path)?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(made)?;
        }
        // SQLite opens a file without write permission for reading and fails at the first write; report that now.
        std::fs::OpenOptions::new().append(true).create(true).open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem if path.exists() => {
                Error::File {
                    path: path.to_owned(),
                    what: "is read-only; make it writable, or copy it and use the copy".to_owned(),
                    source: Some(Box::new(error)),
                }
            }
            _ => made(error),
        })?;
        let cache = Cache::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        cache.prepare().map_err(|error| cache.refuse(error))?;
        Ok(cache)
    }

    /// Opens an existing cache for reading and writing, as [`Cache::open`] does.
    ///
    /// # Errors
    /// The errors of [`Cache::open`], and [`Error::File`] for a missing file.
    pub fn open_existing(path: &Path) -> Result<Cache, Error> {
        must_exist(path)?;
        Cache::open(path)
    }

    /// Opens an existing cache read-only; the file may be read-only too.
    ///
    /// # Errors
    /// As [`Cache::open_existing`].
    pub fn open_read_only(path: &Path) -> Result<Cache, Error> {
        must_exist(path)?;
        check_type(path)?;
        let cache = Cache::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let checked = cache.check(&cache.lock());
        match checked {
            // Another process has created the file but not its tables yet: the cache is empty.
            Ok(Contents::Nothing) => {
                let connection = Connection::open_in_memory().and_then(|connection| {
                    connection.execute_batch(SCHEMA)?;
                    LATER.iter().try_for_each(|schema| connection.execute_batch(schema))?;
                    Ok(connection)
                });
                let connection = Mutex::new(connection.map_err(|error| cache.refuse(error.into()))?);
                Ok(Cache { connection, ..cache })
            }
            Ok(Contents::Measurements) => Ok(cache),
            // A write-ahead log needs a second file next to the cache, which a read-only folder does not allow. But no process can write there, so
            // the file is opened as immutable. The same holds on a full disk, unless a log exists whose rows would be missed.
            Err(Fault::Sql(error))
                if matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly))
                    || (has_no_room(&error) && !has_log(path)) =>
            {
                let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
                let cache = Cache::connect_to(&unchanging(path), path, flags)?;
                cache.check(&cache.lock()).map_err(|error| cache.refuse(error))?;
                Ok(cache)
            }
            Err(fault) => Err(cache.refuse(fault)),
        }
    }

    fn connect(path: &Path, flags: OpenFlags) -> Result<Cache, Error> {
        // SQLite treats `:memory:` and names beginning with `file:` specially. With a folder in front they are ordinary names.
        let name = if path.is_relative() { Path::new(".").join(path) } else { path.to_owned() };
        Cache::connect_to(&name, path, flags)
    }

    fn connect_to(name: &Path, path: &Path, flags: OpenFlags) -> Result<Cache, Error> {
        let connection = Connection::open_with_flags(name, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .and_then(|connection| connection.busy_timeout(BUSY).map(|()| connection))
            .map_err(|error| refuse(path, error.into()))?;
        Ok(Cache { path: path.to_owned(), connection: Mutex::new(connection) })
    }

    fn prepare(&self) -> Result<(), Fault> {
        let mut connection = self.lock();
        self.check(&connection)?;
        let journal = if on_network(&self.path) { "DELETE" } else { "WAL" };
        // Switching the journal does not wait for another process that switches at the same moment, so it is retried. If the answer is not `wal`, the
        // rollback journal stays in force, which is safe everywhere.
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
        LATER.iter().try_for_each(|schema| transaction.execute_batch(schema))?;
        transaction.commit()?;
        Ok(())
    }

    /// Refuses a file that is not a cache, before writing anything to it.
    fn check(&self, connection: &Connection) -> Result<Contents, Fault> {
        // One transaction, so that another process cannot create the tables between two queries.
        let transaction = connection.unchecked_transaction()?;
        let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
        let application: i32 = transaction.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        match (application, version(&transaction)?) {
            (0, 0) if tables == 0 => return Ok(Contents::Nothing),
            (APPLICATION, SCHEMA_VERSION) => {}
            (APPLICATION, other) => return Err(Fault::Version(other)),
            _ => return Err(Fault::Foreign),
        }
        check_schema(&transaction)?;
        let bytes: i64 = transaction.query_row(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
            [],
            |row| row.get(0),
        )?;
        if bytes > CHECKED {
            return Ok(Contents::Measurements);
        }
        let answer: String = transaction.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if answer == "ok" { Ok(Contents::Measurements) } else { Err(Fault::Damaged(answer)) }
    }
}

fn must_exist(path: &Path) -> Result<(), Error> {
    if path.exists() {
        return Ok(());
    }
    let what = "there is no such file; profile something first, or name another file".to_owned();
    Err(Error::File { path: path.to_owned(), what, source: None })
}

/// Refuses anything but regular files, including a cache's journals, because reading a pipe may never end.
fn check_type(path: &Path) -> Result<(), Error> {
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        let path = PathBuf::from(name);
        let Ok(found) = std::fs::metadata(&path) else { continue };
        if !found.is_file() {
            let what = if found.is_dir() { "is a folder" } else { "is not a regular file, but a pipe or a device" };
            let what = format!("{what}; name another file, or run without a cache");
            return Err(Error::File { path, what, source: None });
        }
    }
    Ok(())
}

/// Refuses a file with a view instead of a table or with unknown triggers, because querying a view may never end.
fn check_schema(connection: &Connection) -> Result<(), Fault> {
    let mut statement = connection.prepare("SELECT type, name FROM sqlite_schema WHERE type IN ('view', 'trigger')")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        if kind == "view" || !marks::TRIGGERS.contains(&name.as_str()) {
            return Err(Fault::Damaged(format!("the {kind} `{name}` does not belong in a cache")));
        }
    }
    Ok(())
}

/// Whether the shared-memory file of a write-ahead log could not grow, as on a full disk.
fn has_no_room(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

/// Whether a non-empty write-ahead log exists for the file.
fn has_log(path: &Path) -> bool {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    std::fs::metadata(name).is_ok_and(|log| log.len() > 0)
}

/// The URI with which SQLite reads an immutable file, without a journal.
fn unchanging(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut name = String::from("file:");
    for byte in absolute.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => name.push(char::from(*byte)),
            // Writing to a string cannot fail.
            other => drop(write!(name, "%{other:02x}")),
        }
    }
    OsString::from(name + "?immutable=1").into()
}

/// The content of a file that may be a cache.
enum Contents {
    /// Not even tables.
    Nothing,
    /// The tables of this version.
    Measurements,
}

fn version(connection: &Connection) -> rusqlite::Result<i32> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

/// Whether a path is on a file system shared with other hosts, where a journal in shared memory is not safe.
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
