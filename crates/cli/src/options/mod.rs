//! The command line. Options that a whole session shares can also be set by environment variables.

mod batch;
mod budget;
mod cache;
mod divide;
mod examples;
mod idle;
mod negative;
mod number;
mod plan;
mod predict;
mod program;
mod purposes;
mod read;
mod run;
mod sizes;
mod solver;
mod suggestions;
mod train;
mod units;
mod workspace;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use tightfit_conv::execute::Values;
use tightfit_conv::{Layout, Operation, Types};
use tightfit_units::Bytes;

pub use batch::Batch;
pub use budget::{Budget, RunBudget, Share};
pub use cache::{CacheAction, CacheOptions};
pub use divide::DivideOption;
pub use idle::definition;
pub use plan::{PlanOptions, Planning, Shares};
pub use predict::{ForwardOptions, PredictOptions, TestOptions};
pub use program::started;
pub use run::{AutoOrBytes, CompareOptions, ReportOptions, RunOptions, Tune};
pub use sizes::{SizeOption, sizes};
pub use solver::SolverName;
pub use suggestions::must_exist;
pub use train::{PixelOptions, ScheduleName, TrainOptions};
pub use units::of_environment;
pub use workspace::WorkspaceOptions;

/// Train in the GPU memory you have, and ask first how much a model needs.
#[derive(Parser)]
#[command(name = "tightfit", version = version(), propagate_version = true, after_help = examples::ALL)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    pub command: Command,
}

/// The version, with the commit where the build named one: a release does, a folder without a repository cannot.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| match option_env!("TIGHTFIT_COMMIT") {
        Some(commit) => format!("{} ({})", env!("CARGO_PKG_VERSION"), commit.get(..12).unwrap_or(commit)),
        None => env!("CARGO_PKG_VERSION").to_owned(),
    });
    &VERSION
}

/// The commands.
#[derive(Subcommand)]
pub enum Command {
    /// List the built-in networks, or show the layers of one
    #[command(after_help = examples::NETWORKS)]
    Networks(NetworksOptions),
    /// Check which backends and libraries are available, and how to fix what is missing
    #[command(after_help = examples::DOCTOR)]
    Doctor(DoctorOptions),
    /// Measure a network's convolutions and save the measurements
    #[command(after_help = examples::PROFILE)]
    Profile(ProfileOptions),
    /// Divide a network's convolutions so that the fastest algorithms fit a workspace limit
    #[command(after_help = examples::OPTIMIZE)]
    Optimize(OptimizeOptions),
    /// Optimize, then run the result and compare it with undivided convolutions and 64-bit arithmetic
    #[command(after_help = examples::VERIFY)]
    Verify(VerifyOptions),
    /// Plan a training step within a memory budget: what stays, what is offloaded, which algorithms run
    #[command(after_help = examples::PLAN)]
    Plan(PlanOptions),
    /// Train a network within a memory budget; report speed and accuracy, and save the weights with --save
    #[command(after_help = examples::TRAIN)]
    Train(TrainOptions),
    /// Predict the classes of images within a memory budget, with their probabilities
    #[command(after_help = examples::PREDICT)]
    Predict(PredictOptions),
    /// Test trained weights on labeled samples that were not trained on, and report accuracy and loss
    #[command(after_help = examples::TEST)]
    Test(TestOptions),
    /// Split one mini-batch across unequal devices so that the slowest finishes as early as possible
    #[command(after_help = examples::SPLIT)]
    Split(SplitOptions),
    /// Run a program: its PyTorch models within --budget, or its cuDNN convolutions tuned
    #[command(after_help = examples::RUN)]
    Run(RunOptions),
    /// Run a program plain and under tightfit: step time, peak and losses side by side
    #[command(after_help = examples::COMPARE)]
    Compare(CompareOptions),
    /// Show reports of `tightfit run`: what runs for each kernel, time and workspace saved, what tuning cost
    #[command(after_help = examples::REPORT)]
    Report(ReportOptions),
    /// Manage the measurement cache
    #[command(after_help = examples::CACHE)]
    Cache(CacheOptions),
    /// Print a completion script for a shell
    #[command(after_help = examples::COMPLETIONS)]
    Completions(CompletionsOptions),
    /// Print the manual page of this command, or of one of its subcommands; with --out, write all of them
    #[command(after_help = examples::MAN)]
    Man(ManOptions),
}

/// Options that several commands take; `idle` says which have no effect where.
#[derive(Args)]
pub struct Common {
    /// Backend: auto, cpu or cuda; replay answers from the cache, replay:FILE[,FILE ..] from recorded profiles
    #[arg(long, global = true, default_value = "auto", env = "TIGHTFIT_BACKEND", help_heading = "Common options")]
    pub backend: String,
    /// Data types: f32, tf32, f16, f16-f32 or bf16
    #[arg(long, global = true, default_value = "f32", env = "TIGHTFIT_TYPES", help_heading = "Common options")]
    pub types: Types,
    /// Tensor layout: nchw or nhwc [default: nchw; for plans in 16-bit types nhwc, where the network allows it]
    #[arg(long, global = true, env = "TIGHTFIT_LAYOUT", help_heading = "Common options")]
    pub layout: Option<Layout>,
    /// Threads of the CPU backend [default: one per core]
    #[arg(long, global = true, value_parser = number::whole::<usize>(1..=1024), env = "TIGHTFIT_THREADS", help_heading = "Common options")]
    pub threads: Option<usize>,
    /// GPUs to measure on, by number, all of the same model [default: 0]; for `run`, the GPUs whose convolutions are
    /// measured and divided, while others stay unchanged [default: all]; with --backend replay, the name of the recorded
    /// device; for `split`, device names, such as K80,K80,K20Xm
    #[arg(long, global = true, value_delimiter = ',', env = "TIGHTFIT_DEVICES", help_heading = "Common options")]
    pub devices: Vec<String>,
    /// cuDNN library, or its folder [default: search Python's packages and the system]
    #[arg(long, global = true, value_name = "PATH", env = "TIGHTFIT_CUDNN", help_heading = "Common options")]
    pub cudnn: Option<PathBuf>,
    /// Try every engine of cuDNN's backend API by index, not only those its heuristics list
    #[arg(long, global = true, help_heading = "Common options")]
    pub every_engine: bool,
    /// Use only deterministic algorithms, which repeat every bit; `run` still keeps the program's own choice if it fits
    /// [env for run: TIGHTFIT_DETERMINISTIC]
    #[arg(long, global = true, help_heading = "Common options")]
    pub deterministic: bool,
    /// Use only algorithms of the same numerical class (tensor cores, FFT, Winograd, ..) as the undivided choice
    /// [env for run: TIGHTFIT_EXACT_CLASS]
    #[arg(long, global = true, help_heading = "Common options")]
    pub exact_class: bool,
    /// Cache file for measurements, or none [default: tightfit/cache.db in the user's cache folder]
    #[arg(long, global = true, value_name = "FILE", env = "TIGHTFIT_CACHE", help_heading = "Common options")]
    pub cache: Option<PathBuf>,
    /// Output format
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "table",
        env = "TIGHTFIT_FORMAT",
        help_heading = "Common options"
    )]
    pub format: Format,
    /// Seed for random numbers: weights, input values and the order of samples
    #[arg(long, global = true, default_value_t = 1, value_parser = number::whole::<u64>(0..=u64::MAX), env = "TIGHTFIT_SEED", help_heading = "Common options")]
    pub seed: u64,
    /// Increase verbosity (repeatable)
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Common options")]
    pub verbose: u8,
}

/// An output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable
    Table,
    /// Machine-readable
    Json,
    /// For spreadsheets
    Csv,
}

/// Which kernels to work on.
#[derive(Args)]
pub struct SelectionOptions {
    /// Built-in network (see `tightfit networks`), ONNX model (.onnx), network file (.json), layer list, or the name of a
    /// program that ran under `tightfit run`
    pub network: String,
    /// Mini-batch size [default: as stated in the file, or as the program ran]
    #[arg(short, long, value_name = "N", env = "TIGHTFIT_BATCH", value_parser = number::samples())]
    pub batch: Option<usize>,
    /// Operations to include
    #[arg(long, value_delimiter = ',', default_value = "forward,backward-data,backward-filter")]
    pub operations: Vec<Operation>,
    /// Include only these layers
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub layers: Vec<String>,
}

#[derive(Args)]
pub struct NetworksOptions {
    /// Built-in network, ONNX model (.onnx), network file (.json) or layer list
    pub network: Option<String>,
    /// Write the network as JSON, to a file that other commands accept in place of a name
    #[arg(long, value_name = "FILE.json", requires = "network")]
    pub out: Option<PathBuf>,
}

#[derive(Args)]
pub struct DoctorOptions {
    /// Check whether `tightfit run` can intercept the convolutions of a Python environment
    #[arg(long)]
    pub preload: bool,
    /// The environment's interpreter, by path or name [default: python3]
    #[arg(long, requires = "preload")]
    pub python: Option<OsString>,
}

#[derive(Args)]
pub struct ProfileOptions {
    #[command(flatten)]
    pub selection: SelectionOptions,
    #[command(flatten)]
    pub sizes: SizeOption,
    #[command(flatten)]
    pub divide: DivideOption,
    /// Workspace limits to measure for; candidates above the largest are not run
    #[arg(long, value_delimiter = ',', default_value = "64MiB", env = "TIGHTFIT_WORKSPACE")]
    pub workspace: Vec<Bytes>,
}

/// The network to optimize, and the limit.
#[derive(Args)]
pub struct RequestOptions {
    #[command(flatten)]
    pub selection: SelectionOptions,
    #[command(flatten)]
    pub bound: WorkspaceOptions,
    #[command(flatten)]
    pub sizes: SizeOption,
    #[command(flatten)]
    pub divide: DivideOption,
    /// Measure only what the sizes need; "undivided" is then the fastest of that, not of all algorithms
    #[arg(long)]
    pub no_baseline: bool,
}

#[derive(Args)]
pub struct OptimizeOptions {
    #[command(flatten)]
    pub request: RequestOptions,
    /// Draw the result to an SVG file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// The picture to draw [default: front for a single kernel, allotment with --total-workspace, otherwise layers]
    #[arg(long, value_enum, requires = "plot")]
    pub picture: Option<Picture>,
}

/// A picture of a result.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Picture {
    /// Time against workspace for one kernel, with the divisions
    Front,
    /// Memory and time of every layer
    Layers,
    /// How a total is divided among kernels
    Allotment,
    /// Network time against the limit, for every choice of --sizes
    Limits,
}

#[derive(Args)]
pub struct VerifyOptions {
    #[command(flatten)]
    pub request: RequestOptions,
    /// Compare every output with 64-bit arithmetic, instead of 4096 per kernel
    #[arg(long)]
    pub full: bool,
    /// Input values: real, or whole (whole numbers, whose sums are exact)
    #[arg(long, default_value = "real")]
    pub values: Values,
    /// Scale factor for the result
    #[arg(long, default_value_t = 1.0, value_parser = number::finite)]
    pub alpha: f32,
    /// Scale factor for the previous contents of the output
    #[arg(long, default_value_t = 0.0, value_parser = number::finite)]
    pub beta: f32,
}

#[derive(Args)]
pub struct SplitOptions {
    /// Built-in network, ONNX model (.onnx), network file (.json) or layer list
    #[arg(long)]
    pub network: String,
    /// Mini-batch size over all devices
    #[arg(short, long, value_name = "N", env = "TIGHTFIT_BATCH", value_parser = number::samples())]
    pub batch: usize,
    /// Workspace limit per convolution, for steps that are summed from convolutions
    #[arg(long, value_name = "SIZE", default_value = "unlimited", env = "TIGHTFIT_WORKSPACE")]
    pub workspace: Bytes,
    #[command(flatten)]
    pub sizes: SizeOption,
    /// Time per sample of the other layers, in microseconds, for steps that are summed from convolutions
    #[arg(
        long,
        value_name = "MICROSECONDS",
        default_value_t = 0.0,
        value_parser = number::number(|time: f64| time >= 0.0 && time.is_finite(), "a time of at least 0 microseconds")
    )]
    pub rest: f64,
    /// Round each device's share to a multiple of this power of two
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::samples())]
    pub multiple_of: usize,
    /// Memory of each device, in the order of --devices, or one size for all; recorded steps must say how much they take
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    pub memory: Vec<Bytes>,
}

#[derive(Args)]
pub struct CompletionsOptions {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[derive(Args)]
pub struct ManOptions {
    /// A subcommand, such as run, or cache list
    #[arg(value_name = "SUBCOMMAND")]
    pub command: Vec<String>,
    /// Write the pages of this command and of all subcommands to a folder, which must exist, instead of printing one
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    pub out: Option<PathBuf>,
}
