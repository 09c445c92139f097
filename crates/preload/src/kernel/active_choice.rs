//! The reported workspace of a kernel, and the choice that runs for it: two values, of which only the second may change.

use std::sync::Arc;

use tightfit_conv::Configuration;
use tightfit_units::Bytes;

use crate::reason::Reason;

/// The workspace that was reported to the program. Fixed, because the program sizes its memory by it: every later
/// choice must need no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// cuDNN's own answer, for the framework's choice.
    Own(Bytes),
    /// Our answer in its place.
    Ours(Bytes),
}

impl Reported {
    /// The answer to the program.
    pub fn workspace(self) -> Bytes {
        let (Reported::Own(bytes) | Reported::Ours(bytes)) = self;
        bytes
    }

    /// The report in place of cuDNN's own answer, or `None` if that holds.
    pub fn replacement(self) -> Option<usize> {
        match self {
            Reported::Own(_) => None,
            Reported::Ours(bytes) => Some(usize::try_from(bytes.0).unwrap_or(usize::MAX)),
        }
    }
}

/// The choice that runs. Cheap to copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActiveChoice {
    /// The framework's choice, because nothing better is known.
    Kept,
    /// The framework's choice, because nothing could be decided or nothing fits.
    Left(Reason),
    /// Our configuration, in the program's workspace.
    Ours(Arc<Configuration>),
    /// Our configuration, in its part of one total.
    Shared(Arc<Configuration>),
}

impl ActiveChoice {
    /// The bytes that it needs of the program's workspace, if the framework's choice needs `own`.
    pub fn needs(&self, own: Bytes) -> Bytes {
        match self {
            ActiveChoice::Kept | ActiveChoice::Left(_) => own,
            ActiveChoice::Ours(configuration) => configuration.workspace(),
            ActiveChoice::Shared(_) => Bytes::ZERO,
        }
    }

    /// Our configuration, or `None` if the framework's choice runs.
    pub fn configuration(&self) -> Option<&Arc<Configuration>> {
        match self {
            ActiveChoice::Kept | ActiveChoice::Left(_) => None,
            ActiveChoice::Ours(configuration) | ActiveChoice::Shared(configuration) => Some(configuration),
        }
    }
}
