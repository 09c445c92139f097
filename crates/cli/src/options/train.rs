//! Options of `train`, and options that it shares with `predict` and `test`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tightfit_network::Hyperparameter;

use super::solver::SolverName;
use super::{Planning, number};

/// How pixels become numbers.
#[derive(Args)]
pub struct PixelOptions {
    /// Mean of each channel to subtract from pixels, which are from 0 to 1; ImageNet's are 0.485,0.456,0.406
    /// [default: pixels become numbers from -1 to 1]
    #[arg(long, value_name = "MEANS", value_delimiter = ',', requires = "std", value_parser = number::finite)]
    pub mean: Vec<f32>,
    /// Standard deviation of each channel to divide pixels by; ImageNet's are 0.229,0.224,0.225
    #[arg(long, value_name = "DEVIATIONS", value_delimiter = ',', requires = "mean", value_parser = number::finite)]
    pub std: Vec<f32>,
}

/// How the learning rate falls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScheduleName {
    /// Keep it constant
    Constant,
    /// Multiply it by --decay every --decay-every steps
    Step,
    /// Lower it along half a cosine, to 0 at the end
    Cosine,
}

/// The network, its memory and its pixels.
#[derive(Args)]
pub struct ModelOptions {
    /// Built-in network (see `tightfit networks`), ONNX model (.onnx) or network file (.json)
    pub network: String,
    #[command(flatten)]
    pub planning: Planning,
    #[command(flatten)]
    pub pixels: PixelOptions,
    /// Use random weights, not those in the ONNX model
    #[arg(long)]
    pub random_weights: bool,
}

#[derive(Args)]
pub struct TrainOptions {
    #[command(flatten)]
    pub model: ModelOptions,
    /// Use a plan written by `tightfit plan --out` instead of making one
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<PathBuf>,
    /// Training data: digits, synthetic, or a folder (CIFAR, MNIST, or images in one subfolder per class)
    #[arg(long, value_name = "DATA")]
    pub data: String,
    /// Hold back this share of the training samples for testing, such as 0.1
    #[arg(long, value_name = "SHARE", value_parser = number::number(|share: f64| share > 0.0 && share < 1.0, "a number between 0 and 1, such as 0.1"))]
    pub test_share: Option<f64>,
    /// Test with this data instead: its test part, or all of it if it has none
    #[arg(long, value_name = "DATA", conflicts_with = "test_share")]
    pub test_data: Option<String>,
    /// Mirror half of the training samples, at random
    #[arg(long)]
    pub flip: bool,
    /// Shift training samples at random by up to N pixels, as cropping padded images does
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::whole::<usize>(0..=u32::MAX.into()))]
    pub shift: usize,
    /// Cut a random part of each training sample, 8% to 100% of its area and 3/4 to 4/3 as wide as high, and scale it to
    /// the input, as torchvision's RandomResizedCrop does
    #[arg(long)]
    pub crop: bool,
    /// Number of training steps
    #[arg(long, value_name = "K", default_value_t = 100, value_parser = number::whole::<u64>(1..=u64::MAX))]
    pub steps: u64,
    /// Number of passes over the data, instead of --steps; with test samples, the accuracy is reported after each
    #[arg(long, value_name = "N", conflicts_with = "steps", value_parser = number::whole::<u64>(1..=u64::MAX))]
    pub epochs: Option<u64>,
    /// Save weights and solver state to a safetensors file at the end, and on Ctrl-C
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Also save every N steps
    #[arg(long, value_name = "N", requires = "save", value_parser = number::whole::<u64>(1..=u64::MAX))]
    pub save_every: Option<u64>,
    /// Start from the weights in a safetensors file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["random_weights", "resume"])]
    pub load: Option<PathBuf>,
    /// Continue a run from a file written by --save: same weights, solver state, data order and seed. Repeat the run's
    /// other options; --steps and --epochs count from its beginning. For the same bits as without an interruption, give
    /// both runs the same --plan and --threads
    #[arg(long, value_name = "FILE", conflicts_with = "random_weights")]
    pub resume: Option<PathBuf>,
    /// Solver: SGD, or AdamW, which takes memory for two moments of every weight [default: sgd, or the plan's]
    #[arg(long, value_enum)]
    pub solver: Option<SolverName>,
    /// Learning rate [default: 0.01, or 0.001 for AdamW]
    #[arg(long, value_name = "RATE", value_parser = number::hyperparameter(Hyperparameter::LearningRate))]
    pub learning_rate: Option<f32>,
    /// Momentum of SGD; 0 takes no memory [default: 0.9, or 0 with a plan made for --momentum 0]
    #[arg(long, value_name = "SHARE", value_parser = number::hyperparameter(Hyperparameter::Momentum))]
    pub momentum: Option<f32>,
    /// Weight decay: an L2 penalty for SGD, decoupled from the gradient for AdamW [default: 0.0005, or 0.01 for AdamW]
    #[arg(long, value_name = "FACTOR", value_parser = number::hyperparameter(Hyperparameter::WeightDecay))]
    pub weight_decay: Option<f32>,
    /// How the learning rate changes over the run
    #[arg(long, value_enum, default_value = "constant")]
    pub schedule: ScheduleName,
    /// Raise the learning rate linearly over the first N steps
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = number::whole::<u64>(0..=u64::MAX))]
    pub warm_up: u64,
    /// Multiply the learning rate every N steps under --schedule step [default: a third of the steps]
    #[arg(long, value_name = "N", value_parser = number::whole::<u64>(1..=u64::MAX))]
    pub decay_every: Option<u64>,
    /// The factor of --schedule step [default: 0.1]
    #[arg(long, value_name = "FACTOR", value_parser = number::hyperparameter(Hyperparameter::Decay))]
    pub decay: Option<f32>,
    /// Loss scale for the backward pass, so that small 16-bit gradients do not vanish
    #[arg(
        long,
        value_name = "FACTOR",
        default_value_t = 1.0,
        value_parser = number::hyperparameter(Hyperparameter::LossScale)
    )]
    pub loss_scale: f32,
    /// Write a trace of the last ten steps and of the planned step, for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Overwrite freed memory with NaN and measure how much of the arena is used; on the CPU, also verify every copy
    #[arg(long)]
    pub check: bool,
    /// Launch each step after the first as CUDA graphs, with the copies between them
    #[arg(long, conflicts_with = "trace")]
    pub graph: bool,
}
