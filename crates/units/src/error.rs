//! The errors of this crate: facts that a caller can match, and a message with a remedy.

use std::path::PathBuf;

use crate::Bytes;

/// The failure, its object, its extent, and a remedy; causes stay in [`std::error::Error::source`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A size in bytes that cannot be read.
    #[error("`{text}` is not a size; write {instead}")]
    BadSize {
        /// The input.
        text: String,
        /// Readable sizes: possible meanings of the input, or examples.
        instead: String,
    },

    /// A word that is not one of those allowed.
    #[error("`{word}` is not one of the {what}: {}", known.join(", "))]
    UnknownWord {
        /// The kind of word that was expected.
        what: &'static str,
        /// The input.
        word: String,
        /// The allowed words.
        known: Vec<String>,
    },

    /// A selection of a network's layers without a convolution.
    #[error("{network} has no matching convolutions")]
    NoConvolutions {
        /// Name of the network.
        network: String,
    },

    /// A name that matches more than one thing.
    #[error("`{word}` matches {} {what}: {}; use a more specific name", known.len(), known.join(", "))]
    Ambiguous {
        /// The kind of name.
        what: &'static str,
        /// The input.
        word: String,
        /// The matches.
        known: Vec<String>,
    },

    /// Recordings of several devices instead of one.
    #[error("a replay needs recordings from one device, but these are from {}", devices.join(" and "))]
    SeveralDevices {
        /// The devices.
        devices: Vec<String>,
    },

    /// Options that make no sense, alone or together.
    #[error("{what}")]
    BadOption {
        /// The options, and a replacement.
        what: String,
    },

    /// A line of text that is not a problem or a layer.
    #[error("cannot read `{line}` as a convolution: {what}")]
    BadLine {
        /// The line as given.
        line: String,
        /// The fault.
        what: String,
    },

    /// A convolution that cannot exist.
    #[error("impossible convolution: {what}")]
    BadProblem {
        /// Which size is wrong, and why.
        what: String,
    },

    /// An invalid layer, or a request that the network does not support.
    #[error("network {network}, layer {layer}: {what}")]
    BadNetwork {
        /// The network.
        network: String,
        /// The layer.
        layer: String,
        /// The fault.
        what: String,
    },

    /// A node of an ONNX model that cannot become a layer.
    #[error("{}, node {node}, operator {operator}: {what}", path.display())]
    BadNode {
        /// The file.
        path: PathBuf,
        /// The node's name, quoted.
        node: String,
        /// Its operator, quoted.
        operator: String,
        /// The fault.
        what: String,
    },

    /// A document in the wrong form.
    #[error("cannot be read as a {document}: {what}")]
    BadDocument {
        /// The expected kind of document.
        document: &'static str,
        /// The fault.
        what: String,
    },

    /// A line of a layer list that does not describe a layer.
    #[error("{list}, line {line}: not a valid layer description")]
    BadList {
        /// The list's name.
        list: String,
        /// The line, counted from 1.
        line: usize,
        /// The fault.
        #[source]
        source: Box<Error>,
    },

    /// No candidate of any size fits the limit.
    #[error(
        "{problem}: needs at least {} of workspace, but the limit is {}; raise the limit, or profile smaller micro-batches",
        needed.rounded_up(),
        limit.rounded_down()
    )]
    OverLimit {
        /// The kernel that does not fit, in its text form.
        problem: String,
        /// The least workspace of any configuration.
        needed: Bytes,
        /// The limit.
        limit: Bytes,
    },

    /// The measured sizes do not add up to the mini-batch.
    #[error("{problem}: no measured micro-batch sizes add up to {batch}{}", advice(*batch, reasons))]
    NotProfiled {
        /// The kernel without measurements, in its text form.
        problem: String,
        /// Its mini-batch.
        batch: usize,
        /// Why algorithms were refused or failed, if known.
        reasons: Vec<String>,
    },

    /// The kernels together need more than the total.
    #[error(
        "the kernels together need at least {} of workspace, but the total is {}; raise the total",
        needed.rounded_up(),
        total.rounded_down()
    )]
    OverTotal {
        /// The sum of the least workspaces.
        needed: Bytes,
        /// The total that was given.
        total: Bytes,
    },

    /// A network that the policy cannot schedule within the budget.
    #[error(
        "{network} needs {} under {policy}, but the budget is {}; memory peaks at {layer}: raise the budget{}{}, \
         or use a smaller mini-batch",
        at_least(*needed, *proven),
        budget.rounded_down(),
        cheaper(*needed, *least),
        longer(*proven)
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
        /// The layer at which memory peaks.
        layer: String,
        /// The least budget of any policy.
        least: Bytes,
        /// A proven minimum, if a longer search might find a plan far below `needed`.
        proven: Option<Bytes>,
    },

    /// A network whose tensors alone exceed the budget under the policy. No measurement is needed to know this.
    #[error(
        "{network} needs at least {} under {policy} before any workspace, but the budget is {}; memory peaks at {layer}: \
         raise the budget above that{}, or use a smaller mini-batch",
        needed.rounded_up(),
        budget.rounded_down(),
        cheaper(*budget + Bytes(1), *least)
    )]
    OverAnyBudget {
        /// The network.
        network: String,
        /// Name of the policy.
        policy: String,
        /// The smallest possible peak of live bytes, with no workspace.
        needed: Bytes,
        /// The budget that was given.
        budget: Bytes,
        /// The layer at which memory peaks.
        layer: String,
        /// The least budget of any policy, with no workspace.
        least: Bytes,
    },

    /// The offloaded data does not fit the host budget.
    #[error(
        "{network} offloads up to {} to the host at once, but the host budget is {}; raise it, or raise the device's \
         budget",
        needed.rounded_up(),
        budget.rounded_down()
    )]
    OverHostBudget {
        /// The network.
        network: String,
        /// Bytes of the pinned host arena.
        needed: Bytes,
        /// The host budget.
        budget: Bytes,
    },

    /// A step whose operations do not fit together or do not match its network.
    #[error("step {step}, {operation}: {what}")]
    BadStep {
        /// The step.
        step: String,
        /// The operation or tensor.
        operation: String,
        /// The fault.
        what: String,
    },

    /// A schedule that breaks a rule.
    #[error("the checker refused the schedule: {what}")]
    Unsound {
        /// Which rule, and where.
        what: String,
    },

    /// A device with no measurements from which to predict a network's training step.
    #[error(
        "{device}: no measured training steps or convolutions of {network} in these types; measure it first with `tightfit \
         profile {network}`"
    )]
    NoStepTimes {
        /// The device.
        device: String,
        /// The network.
        network: String,
    },

    /// The batch sizes measured on the devices do not add up to the mini-batch.
    #[error(
        "no combination of measured batch sizes adds up to {mini_batch}{}measure more sizes on each device with `tightfit profile`",
        instead(*largest)
    )]
    NoSplit {
        /// The mini-batch to split.
        mini_batch: usize,
        /// The largest smaller mini-batch that measured sizes add up to; 0 if none do.
        largest: usize,
    },

    /// An algorithm does not support this problem.
    #[error("{algorithm} refuses {problem}: {reason}")]
    Refused {
        /// The algorithm.
        algorithm: String,
        /// The problem as given, in its text form.
        problem: String,
        /// Why.
        reason: String,
    },

    /// A backend failed while computing or measuring.
    #[error("{backend}: {what}")]
    Backend {
        /// Which backend.
        backend: String,
        /// Its action, with the object.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// The device, or this process's context on it, is lost: every later call fails.
    #[error("{backend}: {what}; the device is unusable in this process; start a new one")]
    DeviceLost {
        /// Which backend.
        backend: String,
        /// Its action, with the object.
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
        /// The fault, and a remedy.
        what: String,
        /// The error underneath, if there is one.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },

    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}

/// The largest mini-batch that measured sizes add up to, if any.
fn instead(largest: usize) -> String {
    match largest {
        0 => "; ".to_owned(),
        _ => format!(", at most to {largest}; use that mini-batch, or "),
    }
}

/// The reasons, or a remedy if none are known.
fn advice(batch: usize, reasons: &[String]) -> String {
    match reasons {
        [] => format!("; measure it first with `tightfit profile NETWORK --batch {batch}`"),
        _ => format!(": {}", reasons.join("; ")),
    }
}

/// The least budget, or the smallest plan's budget with the proven minimum.
fn at_least(needed: Bytes, proven: Option<Bytes>) -> String {
    let needed = needed.rounded_up();
    match proven {
        None => format!("at least {needed}"),
        Some(proven) => format!("{needed} in the smallest plan found (proven minimum {})", proven.rounded_down()),
    }
}

/// Advice to plan for longer, if that may help.
fn longer(proven: Option<Bytes>) -> &'static str {
    if proven.is_none() { "" } else { ", or search longer with --plan-time, which may find a plan that needs less" }
}

/// Advice to use a policy that needs less memory, if one does.
fn cheaper(needed: Bytes, least: Bytes) -> String {
    if least >= needed {
        return String::new();
    }
    format!(", or use a policy that needs less (the least is {})", least.rounded_up())
}

impl Error {
    /// An [`Error::UnknownWord`] with the list of known ones.
    pub fn unknown_word<S: Into<String>>(what: &'static str, word: &str, known: impl IntoIterator<Item = S>) -> Error {
        Error::UnknownWord { what, word: word.to_owned(), known: known.into_iter().map(Into::into).collect() }
    }

    /// The message followed by its causes, on one line; a cause that the message already contains is not repeated.
    pub fn chain(&self) -> String {
        let causes = std::iter::successors(std::error::Error::source(self), |cause| cause.source());
        causes.map(ToString::to_string).fold(self.to_string(), |text, cause| match text.contains(&cause) {
            true => text,
            false => format!("{text}: {cause}"),
        })
    }

    /// Whether measuring must stop: the device is lost, or the user asked to stop.
    pub fn is_fatal(&self) -> bool {
        matches!(self, Error::DeviceLost { .. } | Error::Interrupted)
    }

    /// Whether more memory would help.
    pub fn is_over_limit(&self) -> bool {
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
