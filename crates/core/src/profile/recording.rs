//! Profiles as files: what one device was measured at, to be exchanged, committed and replayed.
//!
//! Lines of JSON, packed with gzip where the name ends in `.gz` (`docs/cache-format.md` has the fields):
//!
//! ```text
//! {"format":"tightfit-profile","version":1,"lines":4}
//! {"device":{"backend":"cuda","name":"NVIDIA H200","library":"cudnn 9.19.0","threads":0}}
//! {"network":{"name":"alexnet","batch":256,"layers":[["conv1","forward c3 h227 ...",256], ..]}}
//! {"division":"backward-filter c3 h227 ..","time_ns":4800,"workspace_bytes":139520}
//! {"problem":"forward c3 h227 ...","algorithm":"legacy:gemm","notes":0,"rows":[[n, time_ns, workspace_bytes, spread, repeats, single_ns], ..]}
//! ```
//!
//! `lines` says how many follow, so that a file cut off between two is noticed; files without it are read as they are.
//! A time of null stands for a candidate whose workspace is known and that was not run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use crate::candidate::{Algorithm, Measurement, Notes};
use crate::{Bytes, Device, DivisionCost, Error, Nanos, Problem};

const FORMAT: &str = "tightfit-profile";
const VERSION: u32 = 1;

/// The measurements of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Where they were made.
    pub device: Device,
    /// Networks that were profiled, with names and order of their layers.
    pub networks: Vec<RecordedNetwork>,
    problems: BTreeMap<String, BTreeMap<Algorithm, Recorded>>,
    divisions: BTreeMap<String, DivisionCost>,
}

/// Names and order of a network's kernels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedNetwork {
    /// The network's name.
    pub name: String,
    /// Its mini-batch.
    pub batch: usize,
    /// Layer name, the problem's shape ([`crate::Problem::shape`]) and mini-batch of each kernel.
    pub layers: Vec<(String, String, usize)>,
}

/// What is known of one algorithm on one problem, by micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Recorded {
    pub(super) notes: Notes,
    pub(super) rows: BTreeMap<usize, Row>,
}

/// One candidate: without a time, it was not run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) time: Option<Nanos>,
    pub(super) workspace: Bytes,
    pub(super) spread: f64,
    pub(super) repeats: u32,
    pub(super) single: Option<Nanos>,
}

/// Micro-batch, time, workspace, spread, repeats and single time of a line.
type JsonRow = (usize, Option<u64>, u64, f64, u32, Option<u64>);

#[derive(Serialize, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Format {
        format: String,
        version: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
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

impl Line {
    /// What makes a readable line impossible: a cache that took it in could not be read any more.
    fn fault(&self) -> Option<String> {
        // SQLite keeps signed numbers.
        const MOST: u64 = i64::MAX as u64;
        let (shape, rows) = match self {
            Line::Problem { problem, rows, .. } => (problem, rows.as_slice()),
            Line::Division { division, .. } => (division, &[][..]),
            Line::Format { .. } | Line::Device { .. } | Line::Network { .. } => return None,
        };
        let is_step = shape.starts_with("step ");
        let readable = || format!("{shape} n1").parse::<Problem>();
        if !is_step && let Err(error) = readable() {
            return Some(error.to_string());
        }
        let bad = rows.iter().find(|row| {
            let times = [row.1, row.5, Some(row.2)];
            row.0 == 0 || row.0 > Problem::MOST_SAMPLES || times.into_iter().flatten().any(|value| value > MOST)
        });
        bad.map(|row| format!("a row of `{shape}` is impossible: {row:?}"))
    }
}

impl Recording {
    /// An empty recording.
    pub fn new(device: Device) -> Recording {
        Recording { device, networks: Vec::new(), problems: BTreeMap::new(), divisions: BTreeMap::new() }
    }

    /// Adds a measurement of a problem's shape.
    pub fn add(&mut self, shape: &str, m: Measurement) {
        let recorded = self.problems.entry(shape.to_owned()).or_default().entry(m.algorithm).or_default();
        recorded.notes = m.notes;
        let row =
            Row { time: Some(m.time), workspace: m.workspace, spread: m.spread, repeats: m.repeats, single: m.single };
        recorded.rows.insert(m.micro_batch, row);
    }

    /// Adds everything that another recording has.
    pub fn merge(&mut self, other: Recording) {
        for (shape, algorithms) in other.problems {
            let problem = self.problems.entry(shape).or_default();
            for (algorithm, recorded) in algorithms {
                let known = problem.entry(algorithm).or_default();
                known.notes = recorded.notes;
                known.rows.extend(recorded.rows);
            }
        }
        self.divisions.extend(other.divisions);
        self.networks.extend(other.networks);
    }

    /// One recording for each device, in the order of appearance.
    pub fn by_device(recordings: &[Recording]) -> Vec<Recording> {
        let mut each: Vec<Recording> = Vec::new();
        for recording in recordings {
            match each.iter_mut().find(|known| known.device == recording.device) {
                Some(known) => known.merge(recording.clone()),
                None => each.push(recording.clone()),
            }
        }
        each
    }

    /// The recordings of devices with this name or, where there are none, with this in their name and library; upper and
    /// lower case are the same.
    ///
    /// # Errors
    /// [`Error::UnknownWord`], which lists the devices there are, if it fits none.
    pub fn named<'a>(recordings: &'a [Recording], name: &str) -> Result<Vec<&'a Recording>, Error> {
        let exact: Vec<&Recording> = recordings.iter().filter(|r| r.device.name.eq_ignore_ascii_case(name)).collect();
        if !exact.is_empty() {
            return Ok(exact);
        }
        let part = name.to_lowercase();
        let fits = |recording: &&Recording| recording.device.to_string().to_lowercase().contains(&part);
        let partly: Vec<&Recording> = recordings.iter().filter(fits).collect();
        if partly.is_empty() {
            let known = recordings.iter().map(|recording| recording.device.to_string());
            return Err(Error::unknown_word("recorded devices", name, known));
        }
        Ok(partly)
    }

    /// Adds what dividing a problem's shape costs.
    pub fn add_division_cost(&mut self, shape: &str, cost: DivisionCost) {
        self.divisions.insert(shape.to_owned(), cost);
    }

    /// What dividing costs, by problem's shape; nothing for those not named.
    pub fn division_costs(&self) -> impl Iterator<Item = (&str, DivisionCost)> {
        self.divisions.iter().map(|(shape, cost)| (shape.as_str(), *cost))
    }

    pub(crate) fn division_cost(&self, shape: &str) -> DivisionCost {
        self.divisions.get(shape).copied().unwrap_or_default()
    }

    /// Takes a line of a file that belongs to this device in.
    fn take(&mut self, line: Line) {
        match line {
            Line::Problem { problem, algorithm, notes, rows } => {
                let recorded = self.problems.entry(problem).or_default().entry(algorithm).or_default();
                recorded.notes = notes;
                recorded.rows.extend(rows.into_iter().map(|row| (row.0, Row::from(row))));
            }
            Line::Division { division, time_ns, workspace_bytes } => {
                let cost = DivisionCost { time: Nanos(time_ns), workspace: Bytes(workspace_bytes) };
                self.divisions.insert(division, cost);
            }
            Line::Format { .. } | Line::Device { .. } | Line::Network { .. } => {}
        }
    }

    /// Every problem's shape with its measurements; candidates that were not run are left out.
    pub fn measurements(&self) -> impl Iterator<Item = (&str, Vec<Measurement>)> {
        self.problems.iter().map(|(shape, algorithms)| {
            let all = algorithms.iter().flat_map(|(algorithm, recorded)| {
                recorded.rows.iter().filter_map(|(&n, row)| row.measurement(algorithm, recorded.notes, n))
            });
            (shape.as_str(), all.collect())
        })
    }

    /// The measurements of one problem's shape; none where it is not recorded.
    pub fn of(&self, shape: &str) -> Vec<Measurement> {
        let of = |(algorithm, recorded): (&Algorithm, &Recorded)| -> Vec<Measurement> {
            recorded.rows.iter().filter_map(|(&n, row)| row.measurement(algorithm, recorded.notes, n)).collect()
        };
        self.problems.get(shape).into_iter().flatten().flat_map(of).collect()
    }

    pub(super) fn algorithms(&self, shape: &str) -> Option<&BTreeMap<Algorithm, Recorded>> {
        self.problems.get(shape)
    }

    /// Reads the recordings of a file, one a device.
    ///
    /// # Errors
    /// [`Error::File`] naming the line if the file cannot be read, ends early, or is of another format or version.
    pub fn read(path: &Path) -> Result<Vec<Recording>, Error> {
        let file = |what: String, source| Error::File { path: path.to_owned(), what, source };
        let opened = File::open(path).map_err(|e| file("cannot be opened".to_owned(), Some(e.into())))?;
        let packed = path.extension().is_some_and(|extension| extension == "gz");
        let reader: Box<dyn Read> = if packed { Box::new(GzDecoder::new(opened)) } else { Box::new(opened) };
        let mut recordings: Vec<Recording> = Vec::new();
        let mut networks = Vec::new();
        let (mut promised, mut found) = (None, 0);
        for (number, text) in BufReader::new(reader).lines().enumerate() {
            found = number;
            let number = number + 1;
            let text = text.map_err(|e| {
                file(format!("line {number} cannot be read; the file may be cut off, fetch it again"), Some(e.into()))
            })?;
            let line: Line = serde_json::from_str(&text).map_err(|e| {
                file(format!("line {number} is not a line of a profile; the file may be cut off"), Some(e.into()))
            })?;
            match (number, line) {
                (1, Line::Format { format, version, lines }) if format == FORMAT && version == VERSION => {
                    promised = lines;
                }
                (1, Line::Format { format, version, .. }) => {
                    let what =
                        format!("is `{format}` version {version}; this program reads `{FORMAT}` version {VERSION}");
                    return Err(file(what, None));
                }
                (1, _) | (_, Line::Format { .. }) => {
                    return Err(file(
                        format!("line {number}: a profile begins, and only begins, with its format"),
                        None,
                    ));
                }
                (_, Line::Device { device }) => recordings.push(Recording::new(device)),
                (_, Line::Network { network }) => networks.push(network),
                (_, line) => {
                    let Some(recording) = recordings.last_mut() else {
                        return Err(file(format!("line {number}: a problem comes before its device"), None));
                    };
                    if let Some(fault) = line.fault() {
                        return Err(file(format!("line {number}: {fault}"), None));
                    }
                    recording.take(line);
                }
            }
        }
        if let Some(promised) = promised.filter(|promised| *promised != found) {
            let what = format!(
                "has {found} lines after the first, which promises {promised}; it may be cut off, fetch it again"
            );
            return Err(file(what, None));
        }
        if recordings.is_empty() {
            return Err(file("has no device in it; it may be cut off".to_owned(), None));
        }
        for recording in &mut recordings {
            recording.networks.clone_from(&networks);
        }
        Ok(recordings)
    }

    /// Writes recordings to a file, whole or not at all: into a neighbor first, then renamed.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written; one that was there stays as it was.
    pub fn write(path: &Path, recordings: &[Recording]) -> Result<(), Error> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(name);
        let write = || -> std::io::Result<()> {
            let out = BufWriter::new(File::create(&part)?);
            if path.extension().is_some_and(|extension| extension == "gz") {
                let mut packed = GzEncoder::new(out, Compression::best());
                write_lines(&mut packed, recordings)?;
                packed.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
            } else {
                let mut out = out;
                write_lines(&mut out, recordings)?;
                out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
            }
            std::fs::rename(&part, path)
        };
        write().map_err(|error| {
            // The neighbor may not even exist; the error to report is the first one.
            let _ = std::fs::remove_file(&part);
            let what = "cannot be written; is the folder there, is it writable, is the disk full?".to_owned();
            Error::File { path: path.to_owned(), what, source: Some(error.into()) }
        })
    }
}

fn write_lines(out: &mut impl Write, recordings: &[Recording]) -> std::io::Result<()> {
    let mut lines = 0;
    for_lines(recordings, |_| {
        lines += 1;
        Ok(())
    })?;
    let mut write = |line: Line| -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")
    };
    write(Line::Format { format: FORMAT.to_owned(), version: VERSION, lines: Some(lines) })?;
    for_lines(recordings, write)
}

/// Every line of a file but the first, in order.
fn for_lines(recordings: &[Recording], mut line: impl FnMut(Line) -> std::io::Result<()>) -> std::io::Result<()> {
    for network in recordings.first().map_or(&[][..], |recording| &recording.networks) {
        line(Line::Network { network: network.clone() })?;
    }
    for recording in recordings {
        line(Line::Device { device: recording.device.clone() })?;
        for (shape, cost) in recording.division_costs() {
            let (time_ns, workspace_bytes) = (cost.time.0, cost.workspace.0);
            line(Line::Division { division: shape.to_owned(), time_ns, workspace_bytes })?;
        }
        for (problem, algorithms) in &recording.problems {
            for (algorithm, recorded) in algorithms {
                line(Line::Problem {
                    problem: problem.clone(),
                    algorithm: algorithm.clone(),
                    notes: recorded.notes,
                    rows: recorded.rows.iter().map(|(&n, row)| row.json(n)).collect(),
                })?;
            }
        }
    }
    Ok(())
}

impl Row {
    fn json(&self, n: usize) -> JsonRow {
        let single = self.single.map(|time| time.0);
        // Four digits of a spread are more than it is worth, and keep files small.
        let spread = (self.spread * 1e4).round() / 1e4;
        (n, self.time.map(|time| time.0), self.workspace.0, spread, self.repeats, single)
    }

    pub(super) fn measurement(&self, algorithm: &Algorithm, notes: Notes, micro_batch: usize) -> Option<Measurement> {
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
