//! Reads a report. Fields that it does not name are ignored, so that later versions can add some.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::error::Category;
use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Problem};
use tightfit_units::{Bytes, Nanos};

use crate::failure::Failure;

/// The largest report to read. One kernel takes about a kilobyte, and each of its micro-batches 150 bytes.
const MOST: Bytes = Bytes::mib(256);
/// The longest time that a report may hold, in microseconds; the same bound as in the cache.
const MOST_MICROS: f64 = (1_u64 << 53) as f64 / 1e3;

/// The report of a program under `tightfit run`.
pub struct Report {
    /// The file that it was read from.
    pub file: String,
    /// The first device that ran a convolution; none if none ran.
    pub device: Option<String>,
    /// The file of the real cuDNN.
    pub cudnn: Option<String>,
    /// The limit of kernels that have no own limit.
    pub limit: Limit,
    /// The kernels that ran, in the order of their first calls.
    pub kernels: Vec<Kernel>,
    /// Calls that were left unchanged, by reason.
    pub passed: Vec<Passed>,
    /// The cost of choosing, and more.
    pub totals: Totals,
}

impl Report {
    /// Reads the report in a file.
    ///
    /// # Errors
    /// [`Failure::Wrong`], naming the file and what to do, if it cannot be read, or if this version does not read such reports.
    pub fn read(path: &Path) -> Result<Report, Failure> {
        let wrong = |what: String| Failure::Wrong(format!("{}: {what}", path.display()));
        let text = read(path).map_err(|error| {
            wrong(format!("cannot be read: {error}; `tightfit run --report FILE -- COMMAND` writes a report"))
        })?;
        let document: Document = serde_json::from_slice(&text).map_err(|error| {
            wrong(match error.classify() {
                Category::Eof => format!("ends early ({error}); run the program again with `tightfit run --report`"),
                Category::Data => format!(
                    "not a report that this version ({}) reads: {error}; if an older version wrote it, run the program \
                     again with `tightfit run --report`",
                    env!("CARGO_PKG_VERSION")
                ),
                Category::Syntax | Category::Io => {
                    format!("not JSON: {error}; give a file that `tightfit run --report FILE` wrote")
                }
            })
        })?;
        let Document { device, cudnn, limit, kernels, passed_through: passed, totals } = document;
        Ok(Report { file: clean(&path.to_string_lossy()), device, cudnn, limit, kernels, passed, totals })
    }

    /// Its subject, on one line.
    pub fn head(&self) -> String {
        let device = self.device.as_deref().unwrap_or("no device");
        format!("{}: {device}, {}\n", self.file, self.limit.words())
    }

    /// Whether kernels ran on more than one device.
    pub fn has_devices(&self) -> bool {
        self.kernels.windows(2).any(|pair| pair[0].device != pair[1].device)
    }
}

/// The text of a file, up to [`MOST`]. Named pipes are refused, because opening one waits for a writer.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let is_open = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|folder| path.starts_with(folder));
    if !is_open && std::fs::metadata(path)?.file_type().is_fifo() {
        return Err(std::io::Error::other("it is a named pipe; write it to a file first"));
    }
    let mut text = Vec::new();
    File::open(path)?.take(MOST.0 + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST.0 {
        return Err(std::io::Error::other(format!("it is longer than {MOST}, which no report is")));
    }
    Ok(text)
}

/// The report as the library writes it (`report` in crates/preload).
#[derive(Deserialize)]
#[serde(expecting = "a report")]
struct Document {
    #[serde(deserialize_with = "nullable")]
    device: Option<String>,
    #[serde(deserialize_with = "nullable")]
    cudnn: Option<String>,
    #[serde(flatten)]
    limit: Limit,
    kernels: Vec<Kernel>,
    passed_through: Vec<Passed>,
    totals: Totals,
}

/// The limit of kernels that have no own limit; all three are missing if only calls of the program set limits.
#[derive(Deserialize, Serialize)]
pub struct Limit {
    workspace_limit: Option<Word>,
    workspace_limit_bytes: Option<Bytes>,
    total_workspace_bytes: Option<Bytes>,
}

impl Limit {
    fn words(&self) -> String {
        match (&self.workspace_limit, self.workspace_limit_bytes, self.total_workspace_bytes) {
            (Some(Word(word)), ..) => format!("workspace limit {word}"),
            (_, Some(bytes), _) => format!("workspace limit {bytes} per kernel"),
            (.., Some(bytes)) => format!("total workspace {bytes}"),
            (None, None, None) => "no workspace limit except those that the program set".to_owned(),
        }
    }
}

/// A text for one line of a terminal.
#[derive(Deserialize, Serialize)]
struct Word(#[serde(deserialize_with = "words")] String);

/// A convolution that ran.
#[derive(Deserialize)]
pub struct Kernel {
    /// Its layer, or a name by its convolution's order of first call.
    #[serde(deserialize_with = "words")]
    pub name: String,
    /// The convolution.
    #[serde(deserialize_with = "problem")]
    pub problem: Problem,
    /// The number of its device.
    pub device: u64,
    /// How often it ran.
    pub calls: u64,
    /// The program's own choice.
    pub framework: Own,
    /// The configuration that ran last.
    pub ours: Running,
    /// The decision: divided, replaced, kept, or the reason why the kernel was left unchanged.
    #[serde(deserialize_with = "words")]
    pub decision: String,
}

impl Kernel {
    /// Whether the program's own choice runs.
    pub fn runs_own(&self) -> bool {
        matches!(self.ours.configuration.parts(), [part] if part.algorithm.name() == self.framework.algorithm)
    }

    /// The speedup over the program's own choice; none if either time is unknown.
    pub fn gain(&self) -> Option<f64> {
        Some(self.framework.time?.ratio(self.ours.time?))
    }
}

/// The program's own choice.
#[derive(Deserialize)]
pub struct Own {
    /// The algorithm's name.
    #[serde(deserialize_with = "words")]
    pub algorithm: String,
    /// Time of a call; none if it was not measured.
    #[serde(rename = "time_us", deserialize_with = "time")]
    pub time: Option<Nanos>,
    /// The workspace that it asks for.
    #[serde(rename = "workspace_bytes")]
    pub workspace: Bytes,
}

/// The calls that run.
#[derive(Deserialize)]
pub struct Running {
    /// Its micro-batches.
    #[serde(deserialize_with = "configuration")]
    pub configuration: Configuration,
    /// Time of all micro-batches; none if it was not measured.
    #[serde(rename = "time_us", deserialize_with = "time")]
    pub time: Option<Nanos>,
    /// The workspace that it needs.
    #[serde(rename = "workspace_bytes")]
    pub workspace: Bytes,
}

/// Calls that were left unchanged.
#[derive(Deserialize)]
pub struct Passed {
    /// Why.
    #[serde(deserialize_with = "words")]
    pub reason: String,
    /// How many.
    pub calls: u64,
}

/// Sums over the process.
#[derive(Clone, Copy, Deserialize)]
pub struct Totals {
    /// Time that choosing took; none if unknown.
    #[serde(rename = "tuning_us", deserialize_with = "time")]
    pub tuning: Option<Nanos>,
    /// Measurements made.
    pub tuning_measurements: u64,
    /// Answers from the cache, or shipped.
    pub cache_hits: u64,
    /// Shipped answers; 0 in reports of older versions, which had none.
    #[serde(default)]
    pub shipped_hits: u64,
    /// Configurations that were fast enough, but not accurate enough.
    pub less_accurate: u64,
    /// Kernels that were planned and never ran.
    pub planned_only: u64,
    /// Kernels that were still being tuned when it was written; 0 in reports of older versions.
    #[serde(default)]
    pub undecided: usize,
}

/// A text that may be null, but not missing.
fn nullable<'de, D: Deserializer<'de>>(from: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map(|text| clean(&text)))
}

/// A text for one line of a terminal.
fn words<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::deserialize(from).map(|text| clean(&text))
}

fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Nanos>, D::Error> {
    match Option::<f64>::deserialize(from)? {
        Some(us) if !(0.0..=MOST_MICROS).contains(&us) => Err(D::Error::custom(format!("a time of {us} µs"))),
        us => Ok(us.map(Nanos::from_micros)),
    }
}

fn problem<'de, D: Deserializer<'de>>(from: D) -> Result<Problem, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

fn configuration<'de, D: Deserializer<'de>>(from: D) -> Result<Configuration, D::Error> {
    #[derive(Deserialize)]
    struct Part {
        micro_batch: usize,
        #[serde(deserialize_with = "words")]
        algorithm: String,
        #[serde(deserialize_with = "time")]
        time_us: Option<Nanos>,
        workspace_bytes: Bytes,
    }
    let parts = Vec::<Part>::deserialize(from)?.into_iter().map(|part| {
        Candidate::new(
            Algorithm::new(&part.algorithm),
            part.micro_batch,
            part.time_us.unwrap_or_default(),
            part.workspace_bytes,
        )
    });
    Ok(Configuration::new(parts.collect(), DivisionCost::default()))
}
