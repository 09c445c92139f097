//! The kinds of layers: what each gives for what it is given, and what it learns.
//!
//! Shapes are of one sample. A rule that names one input refuses more, and none.

use serde::{Deserialize, Serialize};

use super::Shape;
use crate::{Axis, Convolution};

/// A layer's place in its network's topological order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerId(pub(super) usize);

impl LayerId {
    /// Index into [`Network::layers`](super::Network::layers).
    pub fn index(self) -> usize {
        self.0
    }
}

/// One layer of a network: what it computes, from which layers, and the shape it gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// Unique in its network.
    pub name: String,
    /// What it computes.
    pub kind: LayerKind,
    /// The layers whose outputs it reads, all of them earlier.
    pub inputs: Vec<LayerId>,
    /// Its output, per sample.
    pub shape: Shape,
    /// Numbers it learns: weights, biases, scales.
    pub parameters: usize,
}

/// What a layer computes.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerKind {
    /// The samples. Shape: as given. No inputs.
    Input {
        /// One sample.
        shape: Shape,
        /// The mini-batch, where the network states one: layer lists do.
        batch: Option<usize>,
    },
    /// A convolution. Shape: k filters by its outputs p, q.
    Convolution {
        /// Its shape; channels and extents are those of its input.
        convolution: Convolution,
        /// Whether a number for each filter is added.
        bias: bool,
    },
    /// max(x, 0), which may be computed in place. Shape: as its input.
    Relu,
    /// The largest or the mean of each window. Shape: c channels of its input by the number of windows.
    Pooling(Pooling),
    /// Local response normalization across channels: y = x / (k + alpha / size · sum of squares)^beta, the sum over
    /// `size` neighboring channels. Shape: as its input. Source: Krizhevsky 2012, 3.3, alpha scaled as Caffe does.
    Lrn {
        /// Channels in the sum.
        size: usize,
        /// Factor of the mean square.
        alpha: f32,
        /// The exponent.
        beta: f32,
        /// What is added to keep the base from zero.
        k: f32,
    },
    /// Each channel normalized over the mini-batch, then scaled and shifted. Shape: as its input.
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Elements zeroed at random in training, the others scaled up to keep the mean. Shape: as its input.
    Dropout {
        /// The share that is zeroed.
        rate: f32,
    },
    /// Every output from every element of the input. Shape: a vector of `outputs`.
    FullyConnected {
        /// Features given.
        outputs: usize,
        /// Whether a number for each output is added.
        bias: bool,
    },
    /// Two or more inputs of equal extents side by side in channels. Shape: their extents, the sum of their channels.
    Concat,
    /// The sum of two or more inputs of one shape. Shape: that one.
    Add,
    /// All elements of a sample as one vector, without moving them. Shape: a vector of the input's length.
    Flatten,
    /// Probabilities of the classes, and their mean cross-entropy with the labels as the loss. Shape: as its input (the
    /// probabilities).
    SoftmaxLoss,
}

/// What is taken of a pooling window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolingMethod {
    /// The largest element.
    Maximum,
    /// The mean of the elements inside the input: padding counts neither in the sum nor in the divisor.
    Average,
}

/// Windows over each spatial dimension.
///
/// ```text
/// input    0 1 2 3 4 5        window 3, stride 2
///          [---]
///              [---]
///                  [--:      cut by the edge: there with `ceil` alone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// What is taken of a window.
    pub method: PoolingMethod,
    /// Input, window (as `filter`), padding, stride of each dimension; [`Axis::UNIT`] for one that is not there.
    pub axes: [Axis; 3],
    /// Whether a last window that the edge cuts counts, unless it would begin in the padding.
    pub ceil: bool,
}

impl Pooling {
    /// Extents of the output (o, p, q), o = 1 for two dimensions.
    ///
    /// # Panics
    /// If a window is larger than its padded input, or a size is zero; in a network neither is so.
    pub fn outputs(&self) -> [usize; 3] {
        self.axes.map(|axis| {
            let whole = axis.output();
            let covered = (whole - 1) * axis.stride + axis.reach();
            let left_over = covered < axis.input + axis.pad_before + axis.pad_after;
            let begins_inside = whole * axis.stride < axis.input + axis.pad_before;
            if self.ceil && left_over && begins_inside { whole + 1 } else { whole }
        })
    }
}

impl LayerKind {
    /// The kind's name, as reports print it.
    pub fn name(&self) -> &'static str {
        match self {
            LayerKind::Input { .. } => "input",
            LayerKind::Convolution { .. } => "convolution",
            LayerKind::Relu => "relu",
            LayerKind::Pooling(Pooling { method: PoolingMethod::Maximum, .. }) => "max-pooling",
            LayerKind::Pooling(Pooling { method: PoolingMethod::Average, .. }) => "average-pooling",
            LayerKind::Lrn { .. } => "lrn",
            LayerKind::BatchNorm { .. } => "batch-norm",
            LayerKind::Dropout { .. } => "dropout",
            LayerKind::FullyConnected { .. } => "fully-connected",
            LayerKind::Concat => "concat",
            LayerKind::Add => "add",
            LayerKind::Flatten => "flatten",
            LayerKind::SoftmaxLoss => "softmax-loss",
        }
    }

    /// The output's shape by the rule of each kind, or what is wrong with the inputs.
    pub(super) fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let one = || match inputs {
            [input] => Ok(*input),
            _ => Err(format!("{} takes one input, not {}", self.name(), inputs.len())),
        };
        let several = || match inputs {
            [first, _, ..] => Ok(*first),
            _ => Err(format!("{} takes two or more inputs, not {}", self.name(), inputs.len())),
        };
        let shape = match self {
            LayerKind::Input { batch: Some(0), .. } => return Err("a mini-batch of 0".to_owned()),
            LayerKind::Input { shape, .. } if inputs.is_empty() => *shape,
            LayerKind::Input { .. } => return Err(format!("an input layer reads {} layers", inputs.len())),
            LayerKind::Convolution { convolution, .. } => {
                let (input, wanted) = (one()?, Shape::input_of(convolution));
                if input != wanted {
                    return Err(format!("the convolution takes {wanted}, its input gives {input}"));
                }
                Shape::output_of(convolution)
            }
            LayerKind::Pooling(pooling) => {
                let input = one()?;
                if pooling.axes.map(|axis| axis.input) != input.extents3() {
                    return Err(format!("pooling of other extents than those of {input}"));
                }
                for axis in &pooling.axes {
                    axis.check()?;
                    if axis.pad_before.max(axis.pad_after) >= axis.reach() {
                        return Err(format!("a window of {} could lie in the padding alone", axis.reach()));
                    }
                }
                input.with_extents(pooling.outputs())
            }
            LayerKind::FullyConnected { outputs, .. } => {
                let input = one()?;
                if outputs.checked_mul(input.len()).is_none_or(|weights| weights > 1 << 60) {
                    return Err(format!("{input} to {outputs}: more than 2^60 weights"));
                }
                Shape::flat(*outputs)
            }
            LayerKind::Concat => {
                let first = several()?;
                if let Some(other) = inputs.iter().find(|shape| shape.extents() != first.extents()) {
                    return Err(format!("{first} and {other} cannot lie side by side"));
                }
                first.with_channels(inputs.iter().fold(0, |sum, shape| sum.saturating_add(shape.channels())))
            }
            LayerKind::Add => {
                let first = several()?;
                if let Some(other) = inputs.iter().find(|shape| **shape != first) {
                    return Err(format!("{first} and {other} cannot be added"));
                }
                first
            }
            LayerKind::Lrn { size: 0, .. } => return Err("a sum over 0 channels; size is at least 1".to_owned()),
            LayerKind::Flatten => Shape::flat(one()?.len()),
            LayerKind::Relu
            | LayerKind::Lrn { .. }
            | LayerKind::BatchNorm { .. }
            | LayerKind::Dropout { .. }
            | LayerKind::SoftmaxLoss => one()?,
        };
        let tensor = (1..=1 << 60).contains(&shape.len());
        if tensor { Ok(shape) } else { Err(format!("gives {shape}, not 1 to 2^60 elements")) }
    }

    /// Numbers to learn on inputs of these shapes, which [`LayerKind::output`] has accepted.
    pub(super) fn parameters(&self, inputs: &[Shape]) -> usize {
        self.parameter_kinds(inputs).iter().map(|(_, elements)| elements).sum()
    }
}
