//! The options of `plan`, and the planning options of `train` and `predict`.

use std::path::PathBuf;

use clap::{ArgAction, Args};
use tightfit_network::Hyperparameter;
use tightfit_plan::{self as plan, Algorithms};
use tightfit_profile::survey::Sizes;
use tightfit_units::{Bytes, Nanos};

use super::{Batch, Budget, DivideOption, SolverName, number};

/// The goal of the plan.
#[derive(Args, Clone)]
pub struct Planning {
    /// Mini-batch size; for `plan`, max is the largest that fits in the budget [default: 32]
    #[arg(short, long, value_name = "N", env = "TIGHTFIT_BATCH")]
    pub batch: Option<Batch>,
    /// Device memory for weights, feature maps, gradients and workspaces together, or a share of what a step takes that
    /// keeps everything, as in 60% [default: the free memory, less 256 MiB for libraries on a GPU; unlimited if nothing is
    /// measured]
    #[arg(long, value_name = "SIZE", env = "TIGHTFIT_BUDGET")]
    pub budget: Option<Budget>,
    /// Pinned host memory for offloaded feature maps
    #[arg(long, value_name = "SIZE", default_value = "unlimited", env = "TIGHTFIT_HOST_BUDGET")]
    pub host_budget: Bytes,
    /// Which feature maps to keep, offload or compute again: optimal (what makes a step fastest), overlap (offloads as
    /// few as the budget requires), baseline (keeps all), or a policy of the vDNN paper: vdnn-all, vdnn-conv, vdnn-dynamic
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub policy: plan::Policy,
    /// Keep the parameters of all layers whose names begin with PREFIX, which may be given several times; such layers need no
    /// weight gradients and no solver state
    #[arg(long, value_name = "PREFIX", value_delimiter = ',')]
    pub freeze: Vec<String>,
    /// How long the policy optimal may search, as in 2s or 500ms [default: a fixed amount of work, which gives the same plan each
    /// time]
    #[arg(long, value_name = "TIME")]
    pub plan_time: Option<Nanos>,
    /// Convolution algorithms: memory (least workspace), performance (fastest) or fit (fastest that fits)
    /// [default: fit]; vdnn-dynamic chooses them itself and does not accept this option
    #[arg(long)]
    pub algorithms: Option<Algorithms>,
    #[command(flatten)]
    pub divide: DivideOption,
    /// Whether branches of a network may run side by side on separate streams, where that is faster on the device; only
    /// the policy optimal does this
    #[arg(long, value_name = "on|off", default_value = "on", action = ArgAction::Set, value_parser = on_or_off)]
    pub lanes: bool,
    /// Micro-batch sizes to allow in divided convolutions: undivided, power-of-two, all or fit [default: fit]
    /// [env: TIGHTFIT_SIZES]
    #[arg(long)]
    pub sizes: Option<Sizes>,
    /// Copy, memory and arithmetic rates for anything that is not measured, of a card by its data sheet: 3090, 4090, 5090,
    /// a6000, a100, l4, l40s, t4, v100; or as measured: h200, h100, k40, cpu [default: the device's]. Where nothing is measured,
    /// the card's memory is the budget if none is given
    #[arg(long, value_name = "DEVICE")]
    pub costs: Option<String>,
}

/// Parses a switch.
fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("`{text}` is neither `on` nor `off`")),
    }
}

/// Shares of what plain training needs, in percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    from: u64,
    to: u64,
    step: u64,
}

impl Shares {
    /// All shares, rising; always with the last.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        (self.from..self.to).step_by(self.step as usize).chain([self.to])
    }
}

impl std::str::FromStr for Shares {
    type Err = String;

    fn from_str(text: &str) -> Result<Shares, String> {
        let bad = || {
            format!(
                "`{text}` is not a range of shares; write percentages from 1 to 1000, the smaller first, as in 25..100 or 25..100:5"
            )
        };
        let (range, step) = text.split_once(':').unwrap_or((text, "5"));
        let (from, to) = range.split_once("..").ok_or_else(bad)?;
        let number =
            |text: &str| text.trim_end_matches('%').parse::<u64>().ok().filter(|share| (1..=1000).contains(share));
        match (number(from), number(to), number(step)) {
            (Some(from), Some(to), Some(step)) if from <= to => Ok(Shares { from, to, step }),
            _ => Err(bad()),
        }
    }
}

#[derive(Args)]
pub struct PlanOptions {
    /// Built-in network (see `tightfit networks`), ONNX model (.onnx) or network file (.json)
    #[arg(required_unless_present = "step", conflicts_with = "step")]
    pub network: Option<String>,
    /// Plan a recorded step (JSON, also compressed if the name ends in .gz) instead of a network
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["batch", "inference", "training", "solver", "momentum", "assume", "measure", "sizes", "freeze"]
    )]
    pub step: Option<PathBuf>,
    /// Plan under several budgets: from one share to another of what plain training needs in percent, such as 25..100, or
    /// 25..100:5 in steps of 5; prints one row each, with the policy vdnn-dynamic and checkpoints for comparison
    #[arg(long, value_name = "FROM..TO", conflicts_with_all = ["budget", "out", "trace"])]
    pub sweep: Option<Shares>,
    /// Draw the time of a step under each budget of a sweep
    #[arg(long, value_name = "FILE.svg", requires = "sweep")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub planning: Planning,
    /// Plan the forward pass only, freeing each feature map after its last use. This is the default for an ONNX model
    /// without normalizations, as exported for inference
    #[arg(long)]
    pub inference: bool,
    /// Plan training, also for an ONNX model that was exported for inference
    #[arg(long, conflicts_with = "inference")]
    pub training: bool,
    /// Solver of the training that is planned; AdamW takes memory for two moments of every weight
    #[arg(long, value_enum, default_value_t, conflicts_with = "inference")]
    pub solver: SolverName,
    /// Momentum of SGD in the training that is planned; with 0, no memory is planned for it [default: 0.9]
    #[arg(
        long,
        value_name = "SHARE",
        value_parser = number::hyperparameter(Hyperparameter::Momentum),
        conflicts_with = "inference"
    )]
    pub momentum: Option<f32>,
    /// Measure nothing: assume convolutions without workspace that run at the rates of --costs (default: h200). This is
    /// the default if no GPU is found and no --backend is given. Cannot be used with --out
    #[arg(long)]
    pub assume: bool,
    /// Measure on the CPU if no GPU is found; a GPU, or the CPU under --backend cpu, is measured anyway
    #[arg(long, conflicts_with = "assume")]
    pub measure: bool,
    /// Write the plan for `tightfit train --plan`, or with --inference for `tightfit predict --plan` (compressed if the
    /// name ends in .gz); without a GPU, add --measure or --backend cpu
    #[arg(long, value_name = "PLAN")]
    pub out: Option<PathBuf>,
    /// Write an HTML page with pictures, also of a sweep
    #[arg(long, value_name = "FILE.html")]
    pub html: Option<PathBuf>,
    /// Write a trace of the planned step (its streams, waits and live bytes over time) for Perfetto or chrome://tracing
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}
