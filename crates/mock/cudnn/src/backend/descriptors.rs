//! The descriptors that a program has made.

use std::sync::Mutex;

use tightfit_mock_support::{Table, lock};

use super::attribute::{Attributes, Kind};
use super::built::Built;
use crate::Handle;
use crate::status::Status;

/// One descriptor: attributes until it is finalized, then the finished object.
pub struct Descriptor {
    pub kind: Kind,
    pub attributes: Attributes,
    pub built: Option<Built>,
}

/// All descriptors.
pub static DESCRIPTORS: Mutex<Table<Descriptor>> = Mutex::new(Table::new(0x6400_0000));

/// Live descriptors.
pub fn count(kind: &str) -> Option<u64> {
    (kind == "backend-descriptors").then(|| lock(&DESCRIPTORS).live() as u64)
}

/// Forgets all descriptors.
pub fn reset() {
    lock(&DESCRIPTORS).clear();
}

/// The content of a finalized descriptor.
pub fn built(handle: Handle) -> Result<Built, Status> {
    lock(&DESCRIPTORS).get(handle)?.built.clone().ok_or(Status::NOT_FINALIZED)
}
