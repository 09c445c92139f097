//! The free space of disks.

use std::path::Path;

use crate::Bytes;

use super::place::{self, Target};

/// The bytes that the disk for the file `path` has free for this user; `None` for special files, or if the disk does not report it. Quotas are not
/// counted.
pub fn free(path: &Path) -> Option<Bytes> {
    let Ok(Target::File(target)) = Target::of(path) else { return None };
    let disk = rustix::fs::statvfs(place::folder(&target)).ok()?;
    Some(Bytes(disk.f_bavail.saturating_mul(disk.f_frsize)))
}

/// The text of an error about a full disk, with the bytes needed if known.
pub fn full(path: &Path, needed: Option<Bytes>) -> String {
    let room = match (needed, free(path)) {
        (Some(needed), Some(free)) => format!(" ({} needed, {} free)", needed.rounded_up(), free.rounded_down()),
        (None, Some(free)) => format!(" ({} free)", free.rounded_down()),
        _ => String::new(),
    };
    format!("cannot be written: the disk is full{room}; free some space, or name a file on another disk")
}
