//! Profile files: the measurements of a device, to share, commit and replay.
//!
//! Lines of JSON, compressed with gzip if the name ends in `.gz` (`docs/cache-format.md` has the fields):
//!
//! ```text
//! {"format":"tightfit-profile","version":1,"lines":5}
//! {"device":{"backend":"cuda","name":"NVIDIA H200","library":"cudnn 9.19.0","threads":0}}
//! {"network":{"name":"alexnet","batch":256,"layers":[["conv1","forward c3 h227 ...",256], ..]}}
//! {"division":"backward-filter c3 h227 ..","time_ns":4800,"workspace_bytes":139520}
//! {"problem":"forward c3 h227 ...","algorithm":"legacy:gemm","notes":0,"rows":[[n, time_ns, workspace_bytes, spread, repeats, single_ns], ..]}
//! {"decision":"forward n256 c3 h227 ...","question":"..","configuration":{"parts":[..],"cost":{..}},"framework_ns":4800,"is_final":true}
//! ```
//!
//! `lines` is the number of lines that follow, so that a truncated file is detected; files without it are not checked. A time of null marks a
//! candidate whose workspace is known but that was not run.
//!
//! `line` reads and writes the lines, `devices` selects and merges recordings, `decisions` adds decisions, and `shipped` holds the recordings that
//! come with the program.

mod decisions;
mod devices;
mod line;
mod shipped;

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tightfit_conv::{Algorithm, Device, DivisionCost, Measurement, Notes};
use tightfit_units::bounded::{self, Lines};
use tightfit_units::{Bytes, Error, Nanos, output};

use super::bounds;
use super::{Decision, RecordedNetwork};
use line::{Line, Row, Spreads};
pub use shipped::Shipped;

const FORMAT: &str = "tightfit-profile";
const VERSION: u32 = 1;
/// The limit on one line: enough for every size of one algorithm up to a mini-batch of a million.
const MAX_LINE: Bytes = Bytes::mib(64);
/// The limit on all lines, uncompressed: about thirty million measurements.
const MAX_TEXT: Bytes = Bytes::gib(1);

const NO_DEVICE: &str = "contains no device; it may be truncated";

/// The measurements of one device, and the decisions based on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Where they were made.
    pub device: Device,
    /// Profiled networks and programs that ran, with the names and order of their layers.
    pub networks: Vec<RecordedNetwork>,
    problems: BTreeMap<String, BTreeMap<Algorithm, AlgorithmRows>>,
    divisions: BTreeMap<String, DivisionCost>,
    /// By problem and question.
    decisions: BTreeMap<(String, String), Decision>,
}

/// The candidates of one algorithm on one problem, by micro-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AlgorithmRows {
    pub(super) notes: Notes,
    pub(super) rows: BTreeMap<usize, Row>,
}

impl Recording {
    /// The first value that no file could hold, in words, if there is one.
    #[cfg(feature = "cache")]
    pub(super) fn fault(&self) -> Option<String> {
        let problem = |(shape, measurements): (&str, Vec<Measurement>)| {
            let fault = bounds::shape_fault(shape).or_else(|| measurements.iter().find_map(bounds::measurement_fault));
            fault.map(|fault| format!("`{shape}`: {fault}"))
        };
        bounds::device_fault(&self.device)
            .or_else(|| self.networks.iter().find_map(bounds::network_fault))
            .or_else(|| self.division_costs().find_map(|(shape, _)| bounds::shape_fault(shape)))
            .or_else(|| self.measurements().find_map(problem))
            .or_else(|| {
                self.decisions().find_map(|(problem, question, one)| bounds::decision_fault(problem, question, one))
            })
    }

    /// An empty recording.
    pub fn new(device: Device) -> Recording {
        let (problems, divisions, decisions) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Recording { device, networks: Vec::new(), problems, divisions, decisions }
    }

    /// Adds a measurement of a problem's shape.
    pub fn add(&mut self, shape: &str, m: Measurement) {
        let recorded = self.problems.entry(shape.to_owned()).or_default().entry(m.algorithm).or_default();
        recorded.notes = m.notes;
        let row =
            Row { time: Some(m.time), workspace: m.workspace, spread: m.spread, repeats: m.repeats, single: m.single };
        recorded.rows.insert(m.micro_batch, row);
    }

    /// Adds everything from another recording.
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
        self.decisions.extend(other.decisions);
        let known: HashSet<&RecordedNetwork> = self.networks.iter().collect();
        let new: Vec<RecordedNetwork> = other.networks.into_iter().filter(|network| !known.contains(network)).collect();
        self.networks.extend(new);
    }

    /// The networks of all recordings, each once: recordings of one file or cache share theirs.
    pub fn all_networks(recordings: &[Recording]) -> Vec<&RecordedNetwork> {
        let mut seen = HashSet::new();
        recordings.iter().flat_map(|recording| &recording.networks).filter(|network| seen.insert(*network)).collect()
    }

    /// Adds the cost of dividing a problem's shape.
    pub fn add_division_cost(&mut self, shape: &str, cost: DivisionCost) {
        self.divisions.insert(shape.to_owned(), cost);
    }

    /// The costs of dividing by problem shape; zero for shapes not listed.
    pub fn division_costs(&self) -> impl Iterator<Item = (&str, DivisionCost)> {
        self.divisions.iter().map(|(shape, cost)| (shape.as_str(), *cost))
    }

    pub(crate) fn division_cost(&self, shape: &str) -> DivisionCost {
        self.divisions.get(shape).copied().unwrap_or_default()
    }

    /// Adds a line of a file that belongs to this device.
    fn take(&mut self, line: Line) {
        match line {
            Line::Problem { problem, algorithm, notes, rows } => {
                let recorded = self.problems.entry(problem).or_default().entry(algorithm).or_default();
                recorded.notes = notes;
                recorded.rows.extend(rows.into_iter().map(|row| (row.0, Row::from(row))));
            }
            Line::Division { division, time_ns, workspace_bytes } => {
                let cost = DivisionCost { time: Nanos(time_ns), workspace: Bytes(workspace_bytes) };
                self.divisions.insert(division, bounds::division(cost));
            }
            Line::Decision { .. } => self.take_decision(line),
            Line::Format { .. } | Line::Device { .. } | Line::Network { .. } => {}
        }
    }

    /// Every problem's shape with its measurements; candidates that were not run are omitted.
    pub fn measurements(&self) -> impl Iterator<Item = (&str, Vec<Measurement>)> {
        self.problems.iter().map(|(shape, algorithms)| {
            let all = algorithms.iter().flat_map(|(algorithm, recorded)| {
                recorded.rows.iter().filter_map(|(&n, row)| row.measurement(algorithm, recorded.notes, n))
            });
            (shape.as_str(), all.collect())
        })
    }

    /// The measurements of one problem's shape; none if it is not recorded.
    pub fn of(&self, shape: &str) -> Vec<Measurement> {
        let rows = |(algorithm, recorded): (&Algorithm, &AlgorithmRows)| -> Vec<Measurement> {
            recorded.rows.iter().filter_map(|(&n, row)| row.measurement(algorithm, recorded.notes, n)).collect()
        };
        self.problems.get(shape).into_iter().flatten().flat_map(rows).collect()
    }

    pub(super) fn algorithms(&self, shape: &str) -> Option<&BTreeMap<Algorithm, AlgorithmRows>> {
        self.problems.get(shape)
    }

    /// Reads the recordings of a file, one per device.
    ///
    /// Memory is bounded for any file: at most 64 MiB per line and 1 GiB in total, uncompressed.
    ///
    /// # Errors
    /// [`Error::File`] naming the line if the file cannot be read, ends early, is of another format or version, or
    /// holds an impossible measurement, in which case the field is named too.
    pub fn read(path: &Path) -> Result<Vec<Recording>, Error> {
        if path.is_dir() {
            return Err(Fault::from("is a folder; name a profile file in it".to_owned()).in_file(path));
        }
        let reader = bounded::open(path).map_err(|error| Fault::of("cannot be opened", error));
        reader.and_then(read_lines).map_err(|fault| fault.in_file(path))
    }

    /// Reads the output of [`Recording::to_bytes`].
    ///
    /// # Errors
    /// [`Error::BadDocument`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Vec<Recording>, Error> {
        read_lines(bytes).map_err(|fault| Error::BadDocument { document: "profile", what: fault.chain() })
    }

    /// Recordings as the lines of a file, with every digit of their spreads.
    ///
    /// # Errors
    /// Never for recordings that were read or measured here.
    pub fn to_bytes(recordings: &[Recording]) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let bad = |error: std::io::Error| Error::BadDocument { document: "profile", what: error.to_string() };
        write_lines(&mut bytes, recordings, Spreads::Exact).map_err(bad)?;
        Ok(bytes)
    }

    /// Writes recordings to a file, through [`output`]; compressed with gzip if its name ends in `.gz`.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be written; an existing file is left unchanged.
    pub fn write(path: &Path, recordings: &[Recording]) -> Result<(), Error> {
        output::write_with(path, |mut out| {
            if path.extension().is_none_or(|extension| extension != "gz") {
                return write_lines(&mut out, recordings, Spreads::Short);
            }
            let mut packed = GzEncoder::new(out, Compression::best());
            write_lines(&mut packed, recordings, Spreads::Short)?;
            packed.finish().map(drop)
        })
    }
}

/// The reason why the lines are not a profile.
struct Fault {
    what: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Fault {
    fn of(what: impl Into<String>, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Fault {
        Fault { what: what.into(), source: Some(source.into()) }
    }

    fn in_file(self, path: &Path) -> Error {
        Error::File { path: path.to_owned(), what: self.what, source: self.source }
    }

    fn chain(self) -> String {
        self.source.map_or(self.what.clone(), |source| format!("{}: {source}", self.what))
    }
}

impl From<String> for Fault {
    fn from(what: String) -> Fault {
        Fault { what, source: None }
    }
}

fn read_lines(reader: impl BufRead) -> Result<Vec<Recording>, Fault> {
    let mut recordings: Vec<Recording> = Vec::new();
    let mut networks = Vec::new();
    for_read_lines(
        reader,
        |_| true,
        |number, line| {
            match line {
                Line::Device { device } => recordings.push(Recording::new(device)),
                Line::Network { network } => networks.push(network),
                line => match recordings.last_mut() {
                    Some(recording) => recording.take(line),
                    None => return Err(format!("line {number}: a problem comes before any device").into()),
                },
            }
            Ok(())
        },
    )?;
    if recordings.is_empty() {
        return Err(NO_DEVICE.to_owned().into());
    }
    for recording in &mut recordings {
        recording.networks.clone_from(&networks);
    }
    Ok(recordings)
}

/// Checks the format line and the number of lines. Calls `take` with the number and text of every other line whose text is wanted.
fn for_read_lines(
    reader: impl BufRead,
    is_wanted: impl Fn(&str) -> bool,
    mut take: impl FnMut(usize, Line) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut lines = Lines::new(reader, MAX_LINE, MAX_TEXT);
    let (mut promised, mut number) = (None, 0_usize);
    loop {
        let text = lines.next_line().map_err(|error| {
            Fault::of(format!("line {} cannot be read; the file may be truncated; get a new copy", number + 1), error)
        })?;
        let Some(text) = text else { break };
        number += 1;
        if number > 1 && !is_wanted(text) {
            continue;
        }
        let line = Line::parse(text).map_err(|error| {
            Fault::of(format!("line {number} is not a line of a profile; the file may be truncated"), error)
        })?;
        if let Some(fault) = line.fault() {
            return Err(format!("line {number}: {fault}").into());
        }
        match (number, line) {
            (1, Line::Format { format, version, lines }) if format == FORMAT && version == VERSION => {
                promised = lines;
            }
            (1, Line::Format { format, version, .. }) => {
                return Err(format!(
                    "is `{format}` version {version}; this program reads `{FORMAT}` version {VERSION}"
                )
                .into());
            }
            (1, _) | (_, Line::Format { .. }) => {
                return Err(format!("line {number}: a format line must come first, and only once").into());
            }
            (_, line) => take(number, line)?,
        }
    }
    if number == 0 {
        return Err(NO_DEVICE.to_owned().into());
    }
    let found = number - 1;
    if let Some(promised) = promised.filter(|promised| *promised != found) {
        return Err(format!(
            "has {found} lines after the first, but the first announces {promised}; the file may be truncated; get a new copy"
        )
        .into());
    }
    Ok(())
}

fn write_lines(out: &mut impl Write, recordings: &[Recording], spreads: Spreads) -> std::io::Result<()> {
    let mut lines = 0;
    for_lines(recordings, spreads, |_| {
        lines += 1;
        Ok(())
    })?;
    let mut write = |line: Line| -> std::io::Result<()> {
        serde_json::to_writer(&mut *out, &line)?;
        out.write_all(b"\n")
    };
    write(Line::Format { format: FORMAT.to_owned(), version: VERSION, lines: Some(lines) })?;
    for_lines(recordings, spreads, write)
}

/// Every line of a file but the first, in order.
fn for_lines(
    recordings: &[Recording],
    spreads: Spreads,
    mut line: impl FnMut(Line) -> std::io::Result<()>,
) -> std::io::Result<()> {
    for network in Recording::all_networks(recordings) {
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
                    rows: recorded.rows.iter().map(|(&n, row)| row.json(n, spreads)).collect(),
                })?;
            }
        }
        recording.decision_lines().try_for_each(&mut line)?;
    }
    Ok(())
}
