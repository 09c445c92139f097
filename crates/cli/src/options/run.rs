//! Options of `run`, and of `report`, which shows what it wrote.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use tightfit_profile::survey::TuneBudget;
use tightfit_units::Bytes;

use super::{DivideOption, RunBudget, SizeOption};

#[derive(Args)]
pub struct RunOptions {
    /// Workspace limit per kernel: auto for the workspace of the program's own choice (with --budget, for the workspace that fits
    /// the plan), or a size such as 512MiB
    /// [default: auto] [env: TIGHTFIT_WORKSPACE]
    #[arg(long, value_name = "SIZE", conflicts_with = "total_workspace")]
    pub workspace: Option<AutoOrBytes>,
    /// Total workspace of each GPU, divided among all kernels to minimize their total time; kernels of equal shape share
    /// one part [env: TIGHTFIT_TOTAL_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub total_workspace: Option<Bytes>,
    /// GPU memory for PyTorch models, weights and optimizer included: saved activations are kept, offloaded to host memory,
    /// or recomputed; 60% for a share of the model's memory without a budget, auto for all that is free
    #[arg(long, value_name = "SIZE", env = "TIGHTFIT_BUDGET")]
    pub budget: Option<RunBudget>,
    /// Whether activations may be recomputed with --budget; --recompute=false only keeps or offloads them
    #[arg(
        long,
        value_name = "true|false",
        env = "TIGHTFIT_RECOMPUTE",
        default_value_t = true,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = clap::ArgAction::Set
    )]
    pub recompute: bool,
    /// Print the cost of less memory: the predicted time of a step under shares of the model's memory, down to the least; then end
    /// the program before its first step. FILE.html gets the picture
    #[arg(long, value_name = "FILE.html", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub sweep: Option<PathBuf>,
    /// Compile the model that the program trains eagerly, within --budget; a model that cannot be compiled stays eager, said in
    /// a line
    #[arg(long, env = "TIGHTFIT_COMPILE", value_parser = clap::builder::FalseyValueParser::new(), requires = "budget")]
    pub compile: bool,
    /// Write a trace of the first 100 steps within --budget for Perfetto or chrome://tracing: phases, copies, reruns and
    /// memory; a page of the same name (.html) has the picture of the memory (%p becomes the process ID)
    #[arg(long, value_name = "FILE.json", env = "TIGHTFIT_TRACE", requires = "budget", conflicts_with = "sweep")]
    pub trace: Option<PathBuf>,
    #[command(flatten)]
    pub sizes: SizeOption,
    #[command(flatten)]
    pub divide: DivideOption,
    /// How to choose configurations; with --budget, cached or heuristic [default: measure; with --budget: heuristic]
    #[arg(long, value_enum, env = "TIGHTFIT_TUNE")]
    pub tune: Option<Tune>,
    /// Time that measuring may take in each process, such as 30s or 2m; 0 measures nothing, unlimited tries every candidate
    #[arg(long, value_name = "TIME", default_value = "10s", env = "TIGHTFIT_TUNE_BUDGET")]
    pub tune_budget: TuneBudget,
    /// Print nothing: no first line, no progress, no summary; warnings remain
    #[arg(long)]
    pub quiet: bool,
    /// Profile file with decisions to start from where the cache has none, as `cache export` writes it, or none to start
    /// without [default: what ships with tightfit for this GPU and cuDNN]
    #[arg(long, value_name = "FILE", env = "TIGHTFIT_SHIPPED")]
    pub shipped: Option<PathBuf>,
    /// Write a JSON report when tuning ends and when the program exits (%p becomes the process ID); its list of kernels is
    /// empty if no convolution ran [env: TIGHTFIT_REPORT]
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Program to run and its arguments; a script such as train.py runs with `python`
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

#[derive(Args)]
pub struct CompareOptions {
    #[command(flatten)]
    pub run: RunOptions,
    /// Steps to measure, after the first eight [default: the steps of 5 s, at least 20 and at most 200, within a minute]
    #[arg(long, value_name = "K", value_parser = super::number::whole::<u64>(5..=100_000))]
    pub steps: Option<u64>,
}

#[derive(Args)]
pub struct ReportOptions {
    /// Reports to show, one after another
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
    /// Draw workspace and time of each kernel, plain and now, to an SVG file (for a single report)
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// Write an HTML page with summaries, pictures and tables
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
}

impl RunOptions {
    /// The budget; all that a model needs where only a sweep is asked for.
    pub fn budget(&self) -> Option<RunBudget> {
        self.budget.or(self.sweep.is_some().then(RunBudget::all))
    }

    /// How configurations are chosen. Under a budget, none may change between a forward pass and its reruns, and
    /// nothing is measured outside the budget.
    ///
    /// # Errors
    /// The reason, if what was asked for does not go with the budget.
    pub fn tune(&self) -> Result<Tune, String> {
        match (self.budget(), self.tune) {
            (None, tune) => Ok(tune.unwrap_or(Tune::Measure)),
            // Decisions of a cache would change bits.
            (Some(_), None) => Ok(Tune::Heuristic),
            (Some(_), Some(tune @ (Tune::Cached | Tune::Heuristic))) => Ok(tune),
            (Some(_), Some(tune @ (Tune::Measure | Tune::First))) => {
                let name = tune.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
                Err(format!(
                    "--tune {name} does not go with --budget: measuring takes memory outside the budget, and what is computed \
                     again must run as it did at first; tune once without --budget, then run with --budget (--tune cached)"
                ))
            }
        }
    }
}

/// A limit per kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AutoOrBytes {
    /// The workspace that the program's own choice asks for.
    Auto,
    /// A size.
    Bytes(Bytes),
}

impl FromStr for AutoOrBytes {
    type Err = String;

    fn from_str(text: &str) -> Result<AutoOrBytes, String> {
        match text {
            "auto" => Ok(AutoOrBytes::Auto),
            size => {
                size.parse().map(AutoOrBytes::Bytes).map_err(|error: tightfit_units::Error| format!("{error}, or auto"))
            }
        }
    }
}

impl fmt::Display for AutoOrBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AutoOrBytes::Auto => f.write_str("auto"),
            AutoOrBytes::Bytes(Bytes::UNLIMITED) => f.write_str("unlimited"),
            AutoOrBytes::Bytes(bytes) => write!(f, "{}B", bytes.0),
        }
    }
}

/// How `run` chooses configurations.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tune {
    /// Measure what is missing from the cache between the program's calls, from its second step on
    Measure,
    /// Measure what is missing from the cache before a kernel first runs
    First,
    /// Measure nothing: use the cache, and `heuristic` for kernels that are not in it
    Cached,
    /// Measure nothing and use no cache: change only kernels that do not fit, using the framework's own algorithm on
    /// smaller batches, or else another algorithm
    Heuristic,
}
