//! Errors of running a schedule.

use std::path::PathBuf;

use tightfit_conv::Types;
use tightfit_units::Bytes;

/// The failure, its size, and advice.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device has too little memory for the arena.
    #[error(
        "the plan needs {} on the device, but only {} is free; {}",
        needed.rounded_up(),
        free.rounded_down(),
        advice(*budget)
    )]
    DeviceMemory {
        /// The memory that the plan needs.
        needed: Bytes,
        /// The free memory.
        free: Bytes,
        /// The largest budget that leaves room for everything outside the arena.
        budget: Bytes,
    },

    /// The arena fits the device, but too little is left outside it.
    #[error(
        "with the plan's arena of {arena}, the device has only {free} free, too little for the libraries' code and \
         scratch; {}",
        advice(*budget)
    )]
    LibraryMemory {
        /// Size of the arena.
        arena: Bytes,
        /// Free memory outside it.
        free: Bytes,
        /// As in [`Error::DeviceMemory`].
        budget: Bytes,
        /// The failed work.
        #[source]
        source: Box<Error>,
    },

    /// The host has too little memory for the pinned arena.
    #[error(
        "the plan pins {} on the host, but only {} is left ({limit}); plan with a smaller host budget",
        needed.rounded_up(),
        free.rounded_down()
    )]
    HostMemory {
        /// The memory that the plan needs.
        needed: Bytes,
        /// The memory left.
        free: Bytes,
        /// The limit: the machine's memory or the control group's.
        limit: String,
    },

    /// An error in the problem, its algorithms, or the library underneath.
    #[error(transparent)]
    Core(#[from] tightfit_units::Error),

    /// A schedule that does not match the network, or contradicts itself.
    #[error("cannot run the schedule: {what}; plan again for this network")]
    Unsound {
        /// The fault.
        what: String,
    },

    /// A mini-batch or set of weights that does not match the network.
    #[error("got {what}, expected {wanted}")]
    Batch {
        /// The given value.
        what: String,
        /// The network's own value.
        wanted: String,
    },

    /// A machine does not support these number types.
    #[error("{machine} does not support {types}; use {instead}")]
    Types {
        /// The machine.
        machine: &'static str,
        /// The types requested.
        types: Types,
        /// The alternative.
        instead: &'static str,
    },

    /// A machine failed at a step.
    #[error("{machine}, {step}: {what}")]
    Step {
        /// The machine.
        machine: &'static str,
        /// The layer and its pass, or the copy.
        step: String,
        /// The fault.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// Training data that cannot be read or used.
    #[error("{}: {what}", path.display())]
    Data {
        /// The file or folder.
        path: PathBuf,
        /// Its fault.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// The data-loading thread could not be started.
    #[error("could not start the data-loading thread; check the process limit with `ulimit -u`")]
    LoaderThread {
        /// The error underneath.
        #[source]
        source: std::io::Error,
    },

    /// The data-loading thread ended while batches were still expected.
    #[error("the data-loading thread has ended; see the previous error for the cause")]
    LoaderEnded,
}

/// Advice if the device has too little memory, in whole mebibytes so that the number is exact as printed.
fn advice(budget: Bytes) -> String {
    match budget.0 >> 20 {
        0 => "free memory that other programs hold".to_owned(),
        mebibytes => format!("plan with a budget of {mebibytes} MiB or less"),
    }
}

impl Error {
    /// Whether a smaller plan or more memory would help.
    pub fn is_over_limit(&self) -> bool {
        match self {
            Error::DeviceMemory { .. } | Error::LibraryMemory { .. } | Error::HostMemory { .. } => true,
            Error::Core(error) => error.is_over_limit(),
            _ => false,
        }
    }
}
