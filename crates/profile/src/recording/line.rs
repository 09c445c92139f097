//! The lines of a profile file.

use serde::{Deserialize, Deserializer, Serialize};
use tightfit_conv::{Algorithm, Configuration, Device, Measurement, Notes};
use tightfit_units::{Bytes, Nanos};

use crate::bounds::{
    decision_fault, device_fault, measurement_fault, network_fault, samples_fault, shape_fault, workspace_fault,
};
use crate::{Decision, RecordedNetwork};

/// Micro-batch, time, workspace, spread, repeats and single time of a candidate.
pub(super) type JsonRow = (usize, Option<u64>, u64, f64, u32, Option<u64>);

/// One candidate: without a time, it was not run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) time: Option<Nanos>,
    pub(crate) workspace: Bytes,
    pub(crate) spread: f64,
    pub(crate) repeats: u32,
    pub(crate) single: Option<Nanos>,
}

/// The digits of spreads to write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spreads {
    /// Four after the point: more than they are worth, and files stay small.
    Short,
    /// All.
    Exact,
}

impl Row {
    pub(super) fn json(&self, n: usize, spreads: Spreads) -> JsonRow {
        let single = self.single.map(|time| time.0);
        let spread = match spreads {
            Spreads::Short => (self.spread * 1e4).round() / 1e4,
            Spreads::Exact => self.spread,
        };
        (n, self.time.map(|time| time.0), self.workspace.0, spread, self.repeats, single)
    }

    pub(crate) fn measurement(&self, algorithm: &Algorithm, notes: Notes, micro_batch: usize) -> Option<Measurement> {
        Some(Measurement {
            algorithm: algorithm.clone(),
            micro_batch,
            time: self.time?,
            single: self.single,
            workspace: self.workspace,
            spread: self.spread,
            repeats: self.repeats,
            notes,
        })
    }
}

impl From<JsonRow> for Row {
    fn from((_, time, workspace, spread, repeats, single): JsonRow) -> Row {
        Row { time: time.map(Nanos), workspace: Bytes(workspace), spread, repeats, single: single.map(Nanos) }
    }
}

/// A line as it is written.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Line {
    Format {
        format: String,
        version: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        lines: Option<usize>,
    },
    Device {
        device: Device,
    },
    Network {
        network: RecordedNetwork,
    },
    Division {
        division: String,
        time_ns: u64,
        workspace_bytes: u64,
    },
    Problem {
        problem: String,
        algorithm: Algorithm,
        notes: Notes,
        rows: Vec<JsonRow>,
    },
    Decision {
        decision: String,
        question: String,
        configuration: Option<Configuration>,
        framework_ns: Option<u64>,
        is_final: bool,
    },
}

/// A line as read: the fields of every kind of line. Unlike an untagged enum, reading it does not buffer the line's
/// values, which would take many times the memory of the text.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Fields {
    format: Option<String>,
    version: Option<u32>,
    lines: Option<usize>,
    device: Option<Device>,
    network: Option<RecordedNetwork>,
    division: Option<String>,
    time_ns: Option<u64>,
    workspace_bytes: Option<u64>,
    problem: Option<String>,
    algorithm: Option<Algorithm>,
    notes: Option<Notes>,
    rows: Option<Vec<JsonRow>>,
    decision: Option<String>,
    question: Option<String>,
    #[serde(deserialize_with = "present")]
    configuration: Option<Option<Configuration>>,
    framework_ns: Option<u64>,
    is_final: Option<bool>,
}

const MISMATCH: &str = "its fields do not match any kind of line";

impl Fields {
    /// The number of kinds of lines that have one of these fields.
    fn kinds(&self) -> usize {
        let kinds = [
            self.format.is_some() || self.version.is_some() || self.lines.is_some(),
            self.device.is_some(),
            self.network.is_some(),
            self.division.is_some() || self.time_ns.is_some() || self.workspace_bytes.is_some(),
            self.problem.is_some() || self.algorithm.is_some() || self.notes.is_some() || self.rows.is_some(),
            self.decision.is_some()
                || self.question.is_some()
                || self.configuration.is_some()
                || self.framework_ns.is_some()
                || self.is_final.is_some(),
        ];
        kinds.into_iter().filter(|is_there| *is_there).count()
    }
}

/// A value that may be null, but not missing: null is the program's own choice.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<Configuration>>, D::Error> {
    Option::<Configuration>::deserialize(from).map(Some)
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// The fault: it is not JSON, or its fields do not match any kind of line.
    pub(super) fn parse(text: &str) -> Result<Line, Box<dyn std::error::Error + Send + Sync>> {
        let found = serde_json::from_str::<Fields>(text)?;
        match found {
            _ if found.kinds() != 1 => Err(MISMATCH.into()),
            Fields { format: Some(format), version: Some(version), lines, .. } => {
                Ok(Line::Format { format, version, lines })
            }
            Fields { device: Some(device), .. } => Ok(Line::Device { device }),
            Fields { network: Some(network), .. } => Ok(Line::Network { network }),
            Fields {
                division: Some(division), time_ns: Some(time_ns), workspace_bytes: Some(workspace_bytes), ..
            } => Ok(Line::Division { division, time_ns, workspace_bytes }),
            Fields {
                problem: Some(problem), algorithm: Some(algorithm), notes: Some(notes), rows: Some(rows), ..
            } => Ok(Line::Problem { problem, algorithm, notes, rows }),
            Fields {
                decision: Some(decision),
                question: Some(question),
                configuration: Some(configuration),
                framework_ns,
                is_final: Some(is_final),
                ..
            } => Ok(Line::Decision { decision, question, configuration, framework_ns, is_final }),
            _ => Err(MISMATCH.into()),
        }
    }

    /// The fault of a line that parses but cannot be a measurement, and could not be saved and read back.
    pub(super) fn fault(&self) -> Option<String> {
        match self {
            Line::Format { .. } => None,
            Line::Device { device } => device_fault(device).map(|fault| format!("device `{}`: {fault}", device.name)),
            Line::Network { network } => network_fault(network),
            Line::Division { division, .. } => shape_fault(division),
            Line::Problem { problem, algorithm, notes, rows } => shape_fault(problem).or_else(|| {
                let fault = |row: &JsonRow| {
                    let (micro_batch, row) = (row.0, Row::from(*row));
                    match row.measurement(algorithm, *notes, micro_batch) {
                        Some(measurement) => measurement_fault(&measurement),
                        // Not run: only its workspace is known.
                        None => samples_fault("micro_batch", micro_batch).or_else(|| workspace_fault(row.workspace)),
                    }
                };
                let mut faults = rows.iter().filter_map(fault);
                faults.next().map(|fault| format!("{algorithm} on `{problem}`: {fault}"))
            }),
            Line::Decision { decision, question, configuration, framework_ns, is_final } => {
                let (configuration, framework_time) = (configuration.clone(), framework_ns.map(Nanos));
                let found = Decision { configuration, framework_time, is_final: *is_final };
                decision_fault(decision, question, &found)
            }
        }
    }
}
