//! The lines of a profile file.

use serde::{Deserialize, Serialize};

use super::Row;
use crate::profile::RecordedNetwork;
use crate::profile::bounds::{
    device_fault, measurement_fault, network_fault, samples_fault, shape_fault, workspace_fault,
};
use crate::{Algorithm, Device, Notes};

/// Micro-batch, time, workspace, spread, repeats and single time of a candidate.
pub(super) type JsonRow = (usize, Option<u64>, u64, f64, u32, Option<u64>);

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
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// The fault: it is not JSON, or its fields do not match any kind of line.
    pub(super) fn parse(text: &str) -> Result<Line, Box<dyn std::error::Error + Send + Sync>> {
        let found = serde_json::from_str::<Fields>(text)?;
        let format = (found.format, found.version, found.lines);
        let division = (found.division, found.time_ns, found.workspace_bytes);
        let problem = (found.problem, found.algorithm, found.notes, found.rows);
        match (format, found.device, found.network, division, problem) {
            ((Some(format), Some(version), lines), None, None, (None, None, None), (None, None, None, None)) => {
                Ok(Line::Format { format, version, lines })
            }
            ((None, None, None), Some(device), None, (None, None, None), (None, None, None, None)) => {
                Ok(Line::Device { device })
            }
            ((None, None, None), None, Some(network), (None, None, None), (None, None, None, None)) => {
                Ok(Line::Network { network })
            }
            (
                (None, None, None),
                None,
                None,
                (Some(division), Some(time_ns), Some(workspace_bytes)),
                (None, None, None, None),
            ) => Ok(Line::Division { division, time_ns, workspace_bytes }),
            (
                (None, None, None),
                None,
                None,
                (None, None, None),
                (Some(problem), Some(algorithm), Some(notes), Some(rows)),
            ) => Ok(Line::Problem { problem, algorithm, notes, rows }),
            _ => Err("its fields do not match any kind of line".into()),
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
        }
    }
}
