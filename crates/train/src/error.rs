//! What can go wrong while a schedule is carried out.

use std::path::PathBuf;

use tightfit_core::{Bytes, Types};

/// What failed, by how much, and what to try.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot give the arena.
    #[error("the device has {free} free, the plan needs {needed}; {}", advice(*budget))]
    DeviceMemory {
        /// What the plan needs.
        needed: Bytes,
        /// What is free.
        free: Bytes,
        /// The most that a plan may need, with room for what lies beside its arena.
        budget: Bytes,
    },

    /// The device has the arena, and too little beside it.
    #[error(
        "beside the plan's arena of {arena} the device has {free} free, too little for the libraries' code and scratch; \
         {}",
        advice(*budget)
    )]
    BesideArena {
        /// Size of the arena.
        arena: Bytes,
        /// What is free beside it.
        free: Bytes,
        /// As in [`Error::DeviceMemory`].
        budget: Bytes,
        /// What could not be done.
        #[source]
        source: Box<Error>,
    },

    /// The host cannot give the pinned arena.
    #[error("the host may use {free} more ({limit}), the plan pins {needed}; plan with a smaller --host-budget")]
    HostMemory {
        /// What the plan needs.
        needed: Bytes,
        /// What is left.
        free: Bytes,
        /// Which limit binds: the machine's memory, or that of the control group.
        limit: String,
    },

    /// An error of the problem, its algorithms, or the library below.
    #[error(transparent)]
    Core(#[from] tightfit_core::Error),

    /// A schedule that does not belong to the network, or contradicts itself.
    #[error("the schedule cannot be carried out: {what}; plan again for this network")]
    Unsound {
        /// What is wrong.
        what: String,
    },

    /// A mini-batch, or what was learned, is not what the network takes.
    #[error("given were {what}, the network takes {wanted}")]
    Batch {
        /// What was given.
        what: String,
        /// What is taken.
        wanted: String,
    },

    /// A machine does not compute in these number types.
    #[error("{machine} does not compute in {types}; {instead} does")]
    Types {
        /// Which machine.
        machine: &'static str,
        /// What was asked for.
        types: Types,
        /// What would do it.
        instead: &'static str,
    },

    /// A machine failed at a step.
    #[error("{machine}, {step}: {what}")]
    Step {
        /// Which machine.
        machine: &'static str,
        /// The layer and its pass, or the copy.
        step: String,
        /// What went wrong.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// Data to train on that cannot be read or used.
    #[error("{}: {what}", path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// The system gives no thread to read data with.
    #[error("a thread that reads data cannot be had; is there a limit on processes, as `ulimit -u` shows?")]
    LoaderThread {
        /// The error underneath.
        #[source]
        source: std::io::Error,
    },

    /// The thread that reads data has ended although batches were still asked for.
    #[error("the thread that reads data has ended; the error before this one says why")]
    LoaderEnded,
}

/// What helps where the device has too little: whole mebibytes, which are read as they are printed.
fn advice(budget: Bytes) -> String {
    match budget.0 >> 20 {
        0 => "free what other programs hold of it".to_owned(),
        mebibytes => format!("plan with --budget {mebibytes}MiB or less"),
    }
}

impl Error {
    /// Whether a smaller plan would do, or more memory.
    pub fn is_does_not_fit(&self) -> bool {
        match self {
            Error::DeviceMemory { .. } | Error::BesideArena { .. } | Error::HostMemory { .. } => true,
            Error::Core(error) => error.is_does_not_fit(),
            _ => false,
        }
    }
}
