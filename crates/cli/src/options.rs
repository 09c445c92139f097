//! The words of the command line. What sessions share is an environment variable too.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, RangedU64ValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tightfit_core::candidate::Limit;
use tightfit_core::execute::Values;
use tightfit_core::plan::{self, Algorithms};
use tightfit_core::survey::Policy;
use tightfit_core::{Bytes, Layout, Operation, Problem, Types};

use crate::commands::run;
use crate::failure::Failure;

/// Fit convolutional networks into the memory you have, as fast as that memory allows.
#[derive(Parser)]
#[command(name = "tightfit", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// What a plan says already, so that it cannot be said beside one.
const PLANNED: [&str; 9] =
    ["batch", "budget", "host_budget", "policy", "algorithms", "divide", "sizes", "costs", "types"];

impl Options {
    /// Reads the command line and the environment; ends the program where they make no sense.
    pub fn read() -> Options {
        let mut command = Options::command();
        // What the environment has for other commands is not even read for `run`, and so cannot be wrong.
        let first = command.clone().ignore_errors(true).try_get_matches();
        if first.is_ok_and(|matches| matches.subcommand_name() == Some("run")) {
            for (name, _) in run::UNUSED {
                command = command.mut_arg(name, |argument| argument.env(None));
            }
        }
        let matches = command.get_matches_mut();
        if let Some(what) = matches.subcommand_matches("run").and_then(run::refuse) {
            command.error(ErrorKind::ArgumentConflict, what).exit()
        }
        if let Some(name) = matches.subcommand_matches("train").and_then(said_beside_plan) {
            let name = name.replace('_', "-");
            let what =
                format!("the argument '--plan <PLAN>' cannot be used with '--{name}', which the plan says already");
            command.error(ErrorKind::ArgumentConflict, what).exit()
        }
        Options::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// The first option of the command line that a plan given there says already. The environment's are for other commands.
fn said_beside_plan(train: &ArgMatches) -> Option<&'static str> {
    let is_said = |name: &&str| train.value_source(name) == Some(ValueSource::CommandLine);
    PLANNED.into_iter().find(|name| is_said(&"plan") && is_said(name))
}

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// List the built-in networks, or one network's layers
    Networks(NetworksOptions),
    /// Say which backends and libraries were found, where, which versions, and what to do about the rest
    Doctor(DoctorOptions),
    /// Measure a network's convolutions and keep the measurements
    Profile(ProfileOptions),
    /// Divide a network's convolutions so that the fastest algorithms fit a workspace limit
    Optimize(OptimizeOptions),
    /// Optimize, run the result, and compare it with undivided convolutions and with 64-bit arithmetic
    Verify(VerifyOptions),
    /// Plan the training of a network in a given number of bytes: what stays, what is offloaded, which algorithms
    Plan(PlanOptions),
    /// Train a network in the memory that a plan gives it, to see how fast and how well; weights are not written to disk
    Train(TrainOptions),
    /// Divide one mini-batch over unequal devices so that the slowest is done first
    Split(SplitOptions),
    /// Run a program with its cuDNN convolutions divided, without changing the program
    Run(RunOptions),
    /// Look after the measurements kept on disk
    Cache(CacheOptions),
}

/// Options that every command takes.
#[derive(Args)]
pub struct Common {
    /// What computes: auto, cpu, cuda, or replay:FILE[,FILE ..] with recorded profiles
    #[arg(long, global = true, default_value = "auto", env = "TIGHTFIT_BACKEND", help_heading = "Common options")]
    pub backend: String,
    /// Number types: f32, tf32, f16, f16-f32 or bf16
    #[arg(long, global = true, default_value = "f32", env = "TIGHTFIT_TYPES", help_heading = "Common options")]
    pub types: Types,
    /// Order of the dimensions in memory: nchw or nhwc
    #[arg(long, global = true, default_value = "nchw", env = "TIGHTFIT_LAYOUT", help_heading = "Common options")]
    pub layout: Layout,
    /// Threads of the CPU backend [default: one a core]
    #[arg(long, global = true, value_parser = RangedU64ValueParser::<usize>::new().range(1..=1024), env = "TIGHTFIT_THREADS", help_heading = "Common options")]
    pub threads: Option<usize>,
    /// GPUs to measure on, of one kind, by number [default: 0]; `run` leaves convolutions on others as they are [default: all];
    /// `split` takes names, such as K80,K80,K20Xm
    #[arg(long, global = true, value_delimiter = ',', env = "TIGHTFIT_DEVICES", help_heading = "Common options")]
    pub devices: Vec<String>,
    /// cuDNN's library or the folder it is in [default: looked for in Python's packages and the system]
    #[arg(long, global = true, value_name = "PATH", env = "TIGHTFIT_CUDNN", help_heading = "Common options")]
    pub cudnn: Option<PathBuf>,
    /// Try every engine of cuDNN's backend API by index, not only those that its heuristics list
    #[arg(long, global = true, help_heading = "Common options")]
    pub every_engine: bool,
    /// Use only algorithms that give the same bits every time; what a program under `run` chose itself and what fits stays
    /// [env for run: TIGHTFIT_DETERMINISTIC]
    #[arg(long, global = true, help_heading = "Common options")]
    pub deterministic: bool,
    /// Use only algorithms whose arithmetic is of the same class (tensor cores, FFT, Winograd, ..) as the undivided choice
    #[arg(long, global = true, help_heading = "Common options")]
    pub exact_class: bool,
    /// Where measurements are kept, or none [default: tightfit/cache.db in the user's cache folder]
    #[arg(long, global = true, value_name = "FILE", env = "TIGHTFIT_CACHE", help_heading = "Common options")]
    pub cache: Option<PathBuf>,
    /// How to print results
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "table",
        env = "TIGHTFIT_FORMAT",
        help_heading = "Common options"
    )]
    pub format: Format,
    /// Seed of the random data that `verify` computes with, and of what `train` draws
    #[arg(long, global = true, default_value_t = 1, env = "TIGHTFIT_SEED", help_heading = "Common options")]
    pub seed: u64,
    /// Say more, on standard error; repeat for still more
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Common options")]
    pub verbose: u8,
}

/// A format of results.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For eyes
    Table,
    /// For programs
    Json,
    /// For spreadsheets
    Csv,
}

/// Reads a mini-batch.
fn samples() -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(1..=Problem::MOST_SAMPLES as u64)
}

/// Which kernels to look at.
#[derive(Args)]
pub struct Selection {
    /// A built-in network (see `tightfit networks`) or a file of layers
    pub network: String,
    /// Mini-batch [default: what the layers of a list state]
    #[arg(short, long, value_name = "N", env = "TIGHTFIT_BATCH", value_parser = samples())]
    pub batch: Option<usize>,
    /// Operations to look at
    #[arg(long, value_delimiter = ',', default_value = "forward,backward-data,backward-filter")]
    pub operations: Vec<Operation>,
    /// Only layers of these names
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub layers: Vec<String>,
}

/// Which micro-batch sizes may be used.
#[derive(Args)]
pub struct Sizes {
    /// Which micro-batch sizes may be used: undivided, power-of-two, all or fit
    #[arg(long, default_value = "fit", env = "TIGHTFIT_POLICY")]
    pub policy: Policy,
    /// Measure only what the policy asks for; "undivided" is then the best of those, not of every algorithm
    #[arg(long)]
    pub no_baseline: bool,
}

#[derive(Args)]
pub struct NetworksOptions {
    /// A built-in network, or a file of layers
    pub network: Option<String>,
    /// Write the network as JSON, which every command takes in place of a name
    #[arg(long, value_name = "FILE.json", requires = "network")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct DoctorOptions {
    /// Say whether `tightfit run` would reach a Python environment's convolutions
    #[arg(long)]
    pub preload: bool,
    /// The environment's interpreter, by file or by name [default: python3]
    #[arg(long, requires = "preload")]
    pub python: Option<OsString>,
}

#[derive(Args)]
pub struct ProfileOptions {
    #[command(flatten)]
    pub selection: Selection,
    /// Which micro-batch sizes to measure: undivided, power-of-two, all or fit
    #[arg(long, default_value = "fit", env = "TIGHTFIT_POLICY")]
    pub policy: Policy,
    /// Limits for which to measure; candidates over the largest are not run
    #[arg(long, value_delimiter = ',', default_value = "64MiB", env = "TIGHTFIT_WORKSPACE")]
    pub workspace: Vec<Bytes>,
}

/// What bounds the workspace: exactly one of the three. An environment variable counts where none is on the command line.
#[derive(Args)]
#[group(multiple = false)]
pub struct Bound {
    /// A limit for each kernel, such as 64MiB [env: TIGHTFIT_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub workspace: Option<Bytes>,
    /// One total, divided among all kernels so that they are fastest together [env: TIGHTFIT_TOTAL_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub total_workspace: Option<Bytes>,
    /// One workspace that the kernels share, one after another [env: TIGHTFIT_ONE_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub one_workspace: Option<Bytes>,
}

impl Bound {
    /// # Errors
    /// [`Failure::Usage`] where neither the command line nor the environment names one, or the environment two; those of
    /// reading a size.
    pub fn limit(&self) -> Result<Limit, Failure> {
        let given = [self.workspace, self.total_workspace, self.one_workspace];
        let limits = [Limit::PerKernel, Limit::Total, Limit::One];
        let mut found: Vec<Limit> = given.into_iter().zip(limits).filter_map(|(size, limit)| size.map(limit)).collect();
        if found.is_empty() {
            let names = ["TIGHTFIT_WORKSPACE", "TIGHTFIT_TOTAL_WORKSPACE", "TIGHTFIT_ONE_WORKSPACE"];
            for (name, limit) in names.into_iter().zip(limits) {
                if let Ok(size) = std::env::var(name) {
                    found.push(limit(size.parse()?));
                }
            }
        }
        match found[..] {
            [limit] => Ok(limit),
            _ => {
                let options = "--workspace, --total-workspace or --one-workspace (each a SIZE, such as 64MiB)";
                Err(Failure::Usage(format!("one of {options} is required, or one of their environment variables")))
            }
        }
    }
}

#[derive(Args)]
pub struct OptimizeOptions {
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub bound: Bound,
    #[command(flatten)]
    pub sizes: Sizes,
    /// Draw the result as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// What to draw [default: allotment with --total-workspace, front for one kernel, else layers]
    #[arg(long, value_enum, requires = "plot")]
    pub picture: Option<Picture>,
}

/// A picture of a result.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Picture {
    /// One kernel's time against workspace, with the divisions
    Front,
    /// Memory and time of every layer
    Layers,
    /// How a total is divided among kernels
    Allotment,
    /// Time of the network against the limit, for every policy
    Limits,
}

#[derive(Args)]
pub struct VerifyOptions {
    #[command(flatten)]
    pub selection: Selection,
    #[command(flatten)]
    pub bound: Bound,
    #[command(flatten)]
    pub sizes: Sizes,
    /// Compare every output with 64-bit arithmetic, instead of 4096 a kernel
    #[arg(long)]
    pub full: bool,
    /// Numbers to compute with: real, or whole (then sums are exact)
    #[arg(long, default_value = "real")]
    pub values: Values,
    /// Factor of the result
    #[arg(long, default_value_t = 1.0, allow_hyphen_values = true)]
    pub alpha: f32,
    /// Factor of what the output holds before
    #[arg(long, default_value_t = 0.0, allow_hyphen_values = true)]
    pub beta: f32,
}

/// What a plan is asked for.
#[derive(Args)]
pub struct Planning {
    /// Mini-batch
    #[arg(short, long, value_name = "N", env = "TIGHTFIT_BATCH", value_parser = samples())]
    pub batch: Option<usize>,
    /// Device memory for everything: weights, maps, gradients, workspaces [default: what is free, on a GPU less 256 MiB
    /// for libraries; unlimited where nothing is measured]
    #[arg(long, value_name = "SIZE", env = "TIGHTFIT_BUDGET")]
    pub budget: Option<Bytes>,
    /// Pinned host memory for what is offloaded
    #[arg(long, value_name = "SIZE", default_value = "unlimited", env = "TIGHTFIT_HOST_BUDGET")]
    pub host_budget: Bytes,
    /// Which feature maps move: baseline, vdnn-all, vdnn-conv, vdnn-dynamic or overlap
    #[arg(long, value_name = "POLICY", default_value = "vdnn-dynamic", value_parser = plan_policy)]
    pub policy: plan::Policy,
    /// Which algorithms convolutions get: memory (least workspace), performance (fastest), or fit (fastest in what is free)
    /// [default: fit]; vdnn-dynamic chooses among them itself
    #[arg(long)]
    pub algorithms: Option<Algorithms>,
    /// Whether mini-batches of convolutions may be divided
    #[arg(long, value_name = "on|off", default_value = "on", action = ArgAction::Set, value_parser = BoolishValueParser::new(), hide_possible_values = true)]
    pub divide: bool,
    /// Which micro-batch sizes may be used where they are divided: undivided, power-of-two, all or fit
    #[arg(long, value_name = "POLICY", default_value = "fit", env = "TIGHTFIT_POLICY")]
    pub sizes: Policy,
    /// Rates of copies, memory and arithmetic for what is not measured: h200, k40 or cpu [default: by the device]
    #[arg(long, value_name = "DEVICE")]
    pub costs: Option<String>,
}

/// A policy of plans; one that is known by name but not in this version says so.
fn plan_policy(word: &str) -> Result<plan::Policy, String> {
    match word {
        "optimal" => {
            Err("this version has no optimal policy; of those it has, vdnn-dynamic and overlap choose by the budget"
                .to_owned())
        }
        _ => word.parse().map_err(|error: tightfit_core::Error| error.to_string()),
    }
}

#[derive(Args)]
pub struct PlanOptions {
    /// A built-in network (see `tightfit networks`), or a file of one
    pub network: String,
    #[command(flatten)]
    pub planning: Planning,
    /// Plan forward passes alone, whose maps go after their last use
    #[arg(long)]
    pub inference: bool,
    /// Measure nothing: convolutions without workspace, as fast as the rates of --costs (else of an H200) allow; not with
    /// --out. So it is without this where no GPU is found and no --backend is named
    #[arg(long)]
    pub assume: bool,
    /// Measure on the CPU where no GPU is found; a GPU, and the CPU of --backend cpu, are measured without this
    #[arg(long, conflicts_with = "assume")]
    pub measure: bool,
    /// Write the plan for `tightfit train --plan` (packed if the name ends in .gz); without a GPU, with --measure
    #[arg(long, value_name = "PLAN")]
    pub out: Option<PathBuf>,
    /// Write a page with pictures
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct TrainOptions {
    /// A built-in network (see `tightfit networks`), or a file of one
    pub network: String,
    #[command(flatten)]
    pub planning: Planning,
    /// Carry out a plan that `tightfit plan --out` wrote, instead of planning
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<PathBuf>,
    /// What to learn: digits, synthetic, or a folder (CIFAR-10 binary, MNIST idx, images in a subfolder for each class)
    #[arg(long, value_name = "DATA")]
    pub data: String,
    /// Mini-batches to learn from
    #[arg(long, value_name = "K", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub steps: u64,
    /// Passes over the data, instead of a number of mini-batches
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,
    /// Factor of the gradients
    #[arg(long, value_name = "RATE", default_value_t = 0.01)]
    pub learning_rate: f32,
    /// Share of the last change of the weights that is repeated
    #[arg(long, value_name = "SHARE", default_value_t = 0.9)]
    pub momentum: f32,
    /// Factor of the weights that is added to their gradients
    #[arg(long, value_name = "FACTOR", default_value_t = 5e-4)]
    pub weight_decay: f32,
    /// Factor of the loss going backward, so that small gradients do not vanish in 16 bits
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub loss_scale: f32,
    /// Write what ran when in the last ten steps, beside what was planned, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Overwrite freed memory with NaN, and see how far the arena is used; on the CPU also compare every copy
    #[arg(long)]
    pub check: bool,
    /// Launch every step but the first as one CUDA graph
    #[arg(long, conflicts_with = "trace")]
    pub graph: bool,
}

#[derive(Args)]
pub struct SplitOptions {
    /// A built-in network, or a file of layers
    #[arg(long)]
    pub network: String,
    /// Mini-batch over all devices
    #[arg(short, long, value_name = "N", env = "TIGHTFIT_BATCH", value_parser = samples())]
    pub batch: usize,
    /// Workspace limit of each convolution, where steps are added up from convolutions
    #[arg(long, value_name = "SIZE", default_value = "unlimited", env = "TIGHTFIT_WORKSPACE")]
    pub workspace: Bytes,
    /// Which recorded sizes may be micro-batches: undivided, power-of-two, all or fit (as all)
    #[arg(long, default_value = "all", env = "TIGHTFIT_POLICY")]
    pub policy: Policy,
    /// Time of the other layers for one sample, in microseconds, where steps are added up from convolutions
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0.0, allow_hyphen_values = true)]
    pub rest: f64,
    /// Give each device a multiple of this power of two
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub multiple_of: usize,
    /// Memory of each device in turn, or one size for all
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub memory: Vec<Bytes>,
}

#[derive(Args)]
pub struct RunOptions {
    /// A limit for each kernel, such as 512MiB [default: 64MiB] [env: TIGHTFIT_WORKSPACE]
    #[arg(long, value_name = "SIZE", conflicts_with = "total_workspace")]
    pub workspace: Option<Bytes>,
    /// One total, divided among all kernels so that they are fastest together [env: TIGHTFIT_TOTAL_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub total_workspace: Option<Bytes>,
    /// Which micro-batch sizes may be used: undivided, power-of-two, all or fit
    #[arg(long, default_value = "fit", env = "TIGHTFIT_POLICY")]
    pub policy: Policy,
    /// How configurations are found
    #[arg(long, value_enum, default_value = "measure", env = "TIGHTFIT_TUNE")]
    pub tune: Tune,
    /// Write what was done to each kernel as JSON when the program ends (%p becomes its process number); without kernels where
    /// it ran no convolution [env: TIGHTFIT_REPORT]
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true)]
    pub command: Vec<OsString>,
}

/// How `run` finds configurations.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tune {
    /// Measure what the cache does not know, when a kernel is first prepared
    Measure,
    /// Measure nothing: use what the cache knows; other kernels as `heuristic` does
    Cached,
    /// Measure nothing and ask for workspaces alone: change only what does not fit, by the framework's own algorithm on
    /// smaller batches, or else by another one
    Heuristic,
}

#[derive(Args)]
pub struct CacheOptions {
    #[command(subcommand)]
    pub action: CacheAction,
}

/// What to do with the cache.
#[derive(Subcommand)]
pub enum CacheAction {
    /// Show for which devices it holds how much
    List {
        /// Show the layers of networks that were profiled and programs that ran instead
        #[arg(long)]
        layers: bool,
    },
    /// Write everything to a profile file (packed if its name ends in .gz)
    Export {
        /// The file to write
        file: PathBuf,
    },
    /// Take in profile files
    Import {
        /// Files written by `export`, or recorded profiles
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Take in other caches
    Merge {
        /// Cache files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Forget measurements
    Clear {
        /// Only of devices whose name contains this
        #[arg(long)]
        device: Option<String>,
    },
}
