//! Options of `predict` and `test`, which run what `train` learned.

use std::path::PathBuf;

use clap::Args;

use super::number;
use super::train::ModelOptions;

/// The options of a forward pass.
#[derive(Args)]
pub struct ForwardOptions {
    #[command(flatten)]
    pub model: ModelOptions,
    /// Use a plan written by `tightfit plan --inference --out` instead of making one
    #[arg(long, value_name = "PLAN")]
    pub plan: Option<PathBuf>,
    /// Use the weights in a safetensors file, such as `tightfit train --save` writes
    #[arg(long, value_name = "FILE", conflicts_with = "random_weights")]
    pub load: Option<PathBuf>,
    /// Use this data instead: its test part, or all of it if it has none, with the classes of --data
    #[arg(long, value_name = "DATA", requires = "data")]
    pub test_data: Option<String>,
    /// Stop after this many mini-batches [default: all samples once; 100 of synthetic data]
    #[arg(long, value_name = "K", value_parser = number::whole::<u64>(1..=u64::MAX))]
    pub batches: Option<u64>,
    /// Overwrite freed memory with NaN and measure how much of the arena is used
    #[arg(long)]
    pub check: bool,
    /// Launch each mini-batch after the first as CUDA graphs, with the copies between them
    #[arg(long)]
    pub graph: bool,
}

#[derive(Args)]
pub struct TestOptions {
    #[command(flatten)]
    pub forward: ForwardOptions,
    /// Data: digits, or a folder (CIFAR, MNIST, or images in one subfolder per class); its test part, or
    /// all of it if it has none
    #[arg(long, value_name = "DATA")]
    pub data: String,
}

#[derive(Args)]
pub struct PredictOptions {
    #[command(flatten)]
    pub forward: ForwardOptions,
    /// Images (.png, .jpg, .webp, .bmp, .tif, ..), and folders with images in them
    #[arg(value_name = "IMAGES", required_unless_present = "data", conflicts_with = "data")]
    pub images: Vec<PathBuf>,
    /// Data instead of images: digits, synthetic, or a folder (CIFAR, MNIST, or images in one subfolder per
    /// class); its test part, or all of it if it has none
    #[arg(long, value_name = "DATA")]
    pub data: Option<String>,
    /// Print the N most probable classes of each sample
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::whole::<usize>(1..=u64::MAX))]
    pub top: usize,
}
