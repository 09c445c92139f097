//! What the program was told of a kernel, and what runs for it: two values, of which only the second may change.

use std::sync::Arc;

use tightfit_core::{Bytes, Configuration};

use crate::reason::Reason;

/// The workspace that the program was told. Fixed, because the program sizes its memory by it: whatever runs later must
/// need no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// cuDNN's own answer, for the framework's choice.
    Own(Bytes),
    /// Our answer in its place.
    Ours(Bytes),
}

impl Told {
    /// What the program was told.
    pub fn workspace(self) -> Bytes {
        let (Told::Own(bytes) | Told::Ours(bytes)) = self;
        bytes
    }

    /// What to report in place of cuDNN's own answer; none if that holds.
    pub fn replacement(self) -> Option<usize> {
        match self {
            Told::Own(_) => None,
            Told::Ours(bytes) => Some(usize::try_from(bytes.0).unwrap_or(usize::MAX)),
        }
    }
}

/// What runs. Cheap to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Running {
    /// The framework's choice, because nothing better is known.
    Kept,
    /// The framework's choice, because nothing could be decided or nothing fits.
    Left(Reason),
    /// A configuration of ours, in the program's workspace.
    Ours(Arc<Configuration>),
    /// A configuration of ours, in its part of one total.
    Shared(Arc<Configuration>),
}

impl Running {
    /// What it needs of the program's workspace, if the framework's choice needs `own`.
    pub fn needs(&self, own: Bytes) -> Bytes {
        match self {
            Running::Kept | Running::Left(_) => own,
            Running::Ours(configuration) => configuration.workspace(),
            Running::Shared(_) => Bytes::ZERO,
        }
    }

    /// The configuration of ours; none if the framework's choice runs.
    pub fn configuration(&self) -> Option<&Arc<Configuration>> {
        match self {
            Running::Kept | Running::Left(_) => None,
            Running::Ours(configuration) | Running::Shared(configuration) => Some(configuration),
        }
    }
}
