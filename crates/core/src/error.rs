//! Everything that can go wrong in this crate, as facts that a caller can match and a text that says what to do.

use std::path::PathBuf;

use crate::{Bytes, Problem};

/// What failed, on what, by how much, and what to try; causes stay in [`std::error::Error::source`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size in bytes that cannot be read.
    #[error("`{text}` is not a size; write bytes or a unit, as in 64MiB, 1.5GiB, 512MB, or unlimited")]
    BadSize {
        /// What was given.
        text: String,
    },

    /// A word that is none of the words allowed there.
    #[error("`{word}` is not one of the {what}: {}", known.join(", "))]
    UnknownWord {
        /// What kind of word was expected.
        what: &'static str,
        /// What was given.
        word: String,
        /// What is allowed.
        known: Vec<String>,
    },

    /// A name that fits several things.
    #[error("`{word}` fits {} {what}: {}; write more of the one that is meant", known.len(), known.join(", "))]
    Ambiguous {
        /// What kind of name it is.
        what: &'static str,
        /// What was given.
        word: String,
        /// What it fits.
        known: Vec<String>,
    },

    /// Options that make no sense, or none together.
    #[error("{what}")]
    BadOption {
        /// Which, and what to write instead.
        what: String,
    },

    /// A line of text that is not a problem or a layer.
    #[error("cannot read `{line}` as a convolution: {what}")]
    BadLine {
        /// The line as given.
        line: String,
        /// What is wrong with it.
        what: String,
    },

    /// A convolution that cannot exist.
    #[error("impossible convolution: {what}")]
    BadProblem {
        /// Which size is wrong, and why.
        what: String,
    },

    /// A layer that cannot be where it is, or a network that cannot be asked what it was asked.
    #[error("network {network}, layer {layer}: {what}")]
    BadNetwork {
        /// The network.
        network: String,
        /// The layer.
        layer: String,
        /// What is wrong with it.
        what: String,
    },

    /// A document that is not what it should be.
    #[error("cannot be read as a {document}: {what}")]
    BadDocument {
        /// What it should be.
        document: &'static str,
        /// What is wrong with it.
        what: String,
    },

    /// A line of a layer list that is not a layer.
    #[error("{list}, line {line}: not a layer of the list")]
    BadList {
        /// The list's name.
        list: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong with it.
        #[source]
        source: Box<Error>,
    },

    /// No candidate of any size fits the limit.
    #[error(
        "{problem}: needs at least {needed} of workspace, the limit is {limit}; raise it to that, or profile smaller micro-batches"
    )]
    OverLimit {
        /// The kernel that does not fit.
        problem: Box<Problem>,
        /// The least workspace of any configuration.
        needed: Bytes,
        /// The limit that was given.
        limit: Bytes,
    },

    /// The measured sizes do not add up to the mini-batch.
    #[error("{problem}: no measured micro-batch sizes add up to {}{}", problem.batch(), advice(reasons))]
    NotProfiled {
        /// The kernel without measurements.
        problem: Box<Problem>,
        /// Why algorithms were refused or failed, where that is known.
        reasons: Vec<String>,
    },

    /// The kernels together need more than the total.
    #[error("the kernels need at least {needed} of workspace together, the total is {total}; raise it to that")]
    OverTotal {
        /// The sum of the least workspaces.
        needed: Bytes,
        /// The total that was given.
        total: Bytes,
    },

    /// A network that no schedule of the policy brings under the budget.
    #[error(
        "{network} needs at least {needed} under {policy}, the budget is {budget}; {layer} is what fills it: raise the budget to that{}, or take a smaller mini-batch",
        cheaper(*needed, *least)
    )]
    OverBudget {
        /// The network.
        network: String,
        /// Name of the policy.
        policy: String,
        /// The least budget of the policy.
        needed: Bytes,
        /// The budget that was given.
        budget: Bytes,
        /// The layer at which the least budget is full.
        layer: String,
        /// The least budget of any policy.
        least: Bytes,
    },

    /// A network whose tensors alone no schedule of the policy brings under the budget: nothing need be measured to know.
    #[error(
        "{network} needs at least {needed} under {policy} before any workspace, the budget is {budget}; {layer} is what fills it: raise the budget above that{}, or take a smaller mini-batch",
        cheaper(*budget + Bytes(1), *least)
    )]
    OverAnyBudget {
        /// The network.
        network: String,
        /// Name of the policy.
        policy: String,
        /// The least bytes that are live at once, with no workspace.
        needed: Bytes,
        /// The budget that was given.
        budget: Bytes,
        /// The layer at which they are live.
        layer: String,
        /// The least budget of any policy with no workspace.
        least: Bytes,
    },

    /// What is to be offloaded does not fit the host's share.
    #[error(
        "{network} offloads {needed} to the host at once, and may use {budget} there; allow that much, or raise the device's budget"
    )]
    OverHostBudget {
        /// The network.
        network: String,
        /// Bytes of the pinned host arena.
        needed: Bytes,
        /// What was allowed.
        budget: Bytes,
    },

    /// A step whose operations do not fit together, or are not those of its network.
    #[error("step {step}, {operation}: {what}")]
    BadStep {
        /// The step.
        step: String,
        /// The operation or tensor.
        operation: String,
        /// What is wrong with it.
        what: String,
    },

    /// A schedule that breaks a rule of schedules.
    #[error("a schedule that the checker refuses: {what}")]
    Unsound {
        /// Which rule, and where.
        what: String,
    },

    /// A device of which nothing is known that says how long a network's training step takes there.
    #[error(
        "{device}: neither training steps nor the convolutions of {network} are measured there in these types; profile it first"
    )]
    NoStepTimes {
        /// The device.
        device: String,
        /// The network.
        network: String,
    },

    /// The batches that devices were measured at do not add up to the mini-batch.
    #[error("no measured batches of the devices add up to {mini_batch}; measure more sizes, or allow more")]
    NoSplit {
        /// The mini-batch that was to be split.
        mini_batch: usize,
    },

    /// An algorithm will not compute this problem.
    #[error("{algorithm} refuses {problem}: {reason}")]
    Refused {
        /// The algorithm that refuses.
        algorithm: String,
        /// The problem as given.
        problem: Box<Problem>,
        /// Why.
        reason: String,
    },

    /// A backend failed while it computed or measured.
    #[error("{backend}: {what}")]
    Backend {
        /// Which backend.
        backend: String,
        /// What it was doing, on what.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// The device, or the context that the process has on it, is lost: every later call fails.
    #[error("{backend}: {what}; the device is unusable in this process, start another")]
    DeviceLost {
        /// Which backend.
        backend: String,
        /// What it was doing, on what.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// A file that cannot be read or written.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// The person at the terminal asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// The reasons if there are any, and else what to do.
fn advice(reasons: &[String]) -> String {
    match reasons {
        [] => "; profile it first, with a policy that includes them".to_owned(),
        _ => format!(": {}", reasons.join("; ")),
    }
}

/// The policy that needs less, where there is one.
fn cheaper(needed: Bytes, least: Bytes) -> String {
    if least < needed { format!(", or take a policy that needs less (the least is {least})") } else { String::new() }
}

impl Error {
    /// An [`Error::UnknownWord`] with the list of known ones.
    pub fn unknown_word<S: Into<String>>(what: &'static str, word: &str, known: impl IntoIterator<Item = S>) -> Error {
        Error::UnknownWord { what, word: word.to_owned(), known: known.into_iter().map(Into::into).collect() }
    }

    /// The message with those of its causes, on one line; a cause that the message has told already is not repeated.
    pub fn chain(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |cause| cause.source());
        causes.map(ToString::to_string).fold(self.to_string(), |text, cause| match text.contains(&cause) {
            true => text,
            false => format!("{text}: {cause}"),
        })
    }

    /// Whether measuring has to end with it: the device is lost, or stopping was asked for.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Error::DeviceLost { .. } | Error::Interrupted)
    }

    /// Whether more memory would help: the command exits with 3.
    pub fn is_does_not_fit(&self) -> bool {
        matches!(
            self,
            Error::OverLimit { .. }
                | Error::OverTotal { .. }
                | Error::OverBudget { .. }
                | Error::OverAnyBudget { .. }
                | Error::OverHostBudget { .. }
        )
    }
}
