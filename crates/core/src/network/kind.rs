//! The kinds of layers, each in one place: its name, the shape it gives, what it does and learns, and its fields in a file.
//! Maps, steps, sizes, costs and the trainer's memory follow from this.
//!
//! Shapes are of one sample. A rule that names one input refuses more, and none.

use serde_json::{Value, json};

use super::behavior::{Behavior, ParameterKind, ParameterPass, Part, Placement, Saved, Work, reads};
use super::fields::{Fields, decimal, written_axes};
use super::{Pooling, PoolingMethod, Shape};
use crate::Convolution;
use crate::problem::Storage;

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

    /// What the kind does.
    pub fn behavior(&self) -> Behavior {
        let plain = Behavior::PLAIN;
        match self {
            LayerKind::Input { .. } => Behavior { part: Part::Input, work: Work::Upload, ..plain },
            LayerKind::Convolution { .. } => {
                Behavior { backward: reads(true, false, false), work: Work::Convolution, ..plain }
            }
            LayerKind::FullyConnected { .. } => {
                Behavior { backward: reads(true, false, false), work: Work::Product, ..plain }
            }
            LayerKind::Relu => Behavior {
                backward: reads(false, true, false),
                placement: Placement::OverInput,
                reads_sign_alone: true,
                ..plain
            },
            LayerKind::Pooling(pooling) => {
                let maximum = pooling.method == PoolingMethod::Maximum;
                Behavior { backward: reads(maximum, maximum, false), ..plain }
            }
            LayerKind::Lrn { .. } => Behavior { backward: reads(true, true, false), ..plain },
            LayerKind::BatchNorm { .. } => Behavior {
                backward: reads(true, false, true),
                parameter_pass: ParameterPass::WithData,
                saved: Saved::PerChannel,
                statistics: true,
                samples_are_independent: false,
                ..plain
            },
            LayerKind::Dropout { .. } => Behavior {
                backward: reads(false, false, true),
                placement: Placement::OverInput,
                saved: Saved::PerElement,
                keeps_sign: true,
                ..plain
            },
            LayerKind::Concat => plain,
            LayerKind::Add => Behavior { placement: Placement::OverInputSharingGradient, ..plain },
            LayerKind::Flatten => Behavior { part: Part::View, ..plain },
            LayerKind::SoftmaxLoss => Behavior {
                part: Part::Loss,
                backward: reads(false, true, false),
                placement: Placement::OverInput,
                ..plain
            },
        }
    }

    /// What it learns on inputs of these shapes, in the order in which it lies in memory; those of no elements left out.
    pub fn parameter_kinds(&self, inputs: &[Shape]) -> Vec<(ParameterKind, usize)> {
        let first = inputs.first();
        let bias = |there: bool, outputs: usize| if there { outputs } else { 0 };
        let all = match self {
            LayerKind::Convolution { convolution, bias: has_bias } => [
                (ParameterKind::Weight, convolution.filter_len()),
                (ParameterKind::Bias, bias(*has_bias, convolution.filters())),
            ],
            LayerKind::FullyConnected { outputs, bias: has_bias } => [
                (ParameterKind::Weight, outputs * first.map_or(0, Shape::len)),
                (ParameterKind::Bias, bias(*has_bias, *outputs)),
            ],
            LayerKind::BatchNorm { .. } => {
                [ParameterKind::Scale, ParameterKind::Shift].map(|kind| (kind, first.map_or(0, Shape::channels)))
            }
            _ => return Vec::new(),
        };
        all.into_iter().filter(|(_, elements)| *elements > 0).collect()
    }

    /// How its parameters are stored where maps are stored so: batch normalization keeps 32 bits.
    pub fn parameter_storage(&self, maps: Storage) -> Storage {
        match self {
            LayerKind::BatchNorm { .. } => Storage::F32,
            _ => maps,
        }
    }

    /// Its fields in a file, in the order in which a person would tell them; `output` is the shape that it gives.
    pub(super) fn fields(&self, output: Shape) -> Vec<(&'static str, Value)> {
        let mut fields = Vec::new();
        match self {
            LayerKind::Input { shape, batch } => {
                fields.push(("shape", [shape.channels()].iter().chain(shape.extents()).copied().collect()));
                fields.extend(batch.map(|batch| ("batch", json!(batch))));
            }
            LayerKind::Convolution { convolution, bias } => {
                fields.push(("filters", json!(convolution.filters())));
                fields.extend(written_axes("filter", convolution.axes()));
                let groups = convolution.groups();
                fields.extend((groups != 1).then(|| ("groups", json!(groups))));
                fields.extend((!bias).then(|| ("bias", json!(bias))));
            }
            LayerKind::Pooling(pooling) => {
                fields.extend(written_axes("window", &pooling.axes[3 - output.extents().len()..]));
                fields.extend(pooling.ceil.then_some(("ceil", json!(true))));
            }
            LayerKind::Lrn { size, alpha, beta, k } => {
                fields.push(("size", json!(size)));
                fields.extend(
                    [("alpha", alpha), ("beta", beta), ("k", k)].map(|(field, value)| (field, decimal(*value))),
                );
            }
            LayerKind::BatchNorm { epsilon } => fields.push(("epsilon", decimal(*epsilon))),
            LayerKind::Dropout { rate } => fields.push(("rate", decimal(*rate))),
            LayerKind::FullyConnected { outputs, bias } => {
                fields.push(("outputs", json!(outputs)));
                fields.extend((!bias).then(|| ("bias", json!(bias))));
            }
            LayerKind::Relu | LayerKind::Concat | LayerKind::Add | LayerKind::Flatten | LayerKind::SoftmaxLoss => {}
        }
        fields
    }

    /// Reads a kind on a first input of this shape, or tells what is wrong with which field.
    pub(super) fn read(fields: &mut Fields<'_>, input: Option<Shape>) -> Result<LayerKind, String> {
        // A layer without inputs is refused by the rule of its kind, whatever the shape that is taken for it here.
        let input = input.unwrap_or(Shape::image(1, 1, 1));
        let any = f32::MIN..f32::INFINITY;
        Ok(match fields.text("kind")? {
            "input" => {
                LayerKind::Input { shape: fields.shape("shape")?, batch: fields.optional("batch", Fields::count)? }
            }
            "convolution" => {
                let (filters, axes) = (fields.count("filters")?, fields.axes("filter", input)?);
                let groups = fields.optional("groups", Fields::count)?.unwrap_or(1);
                let convolution = Convolution::new(input.channels(), filters, groups, &axes);
                LayerKind::Convolution {
                    convolution: convolution.map_err(|error| error.to_string())?,
                    bias: fields.optional("bias", Fields::truth)?.unwrap_or(true),
                }
            }
            "max-pooling" => LayerKind::Pooling(Pooling::read(PoolingMethod::Maximum, fields, input)?),
            "average-pooling" => LayerKind::Pooling(Pooling::read(PoolingMethod::Average, fields, input)?),
            "relu" => LayerKind::Relu,
            "lrn" => LayerKind::Lrn {
                size: fields.count("size")?,
                alpha: fields.number("alpha", any.clone())?,
                beta: fields.number("beta", any.clone())?,
                k: fields.number("k", any)?,
            },
            "batch-norm" => LayerKind::BatchNorm { epsilon: fields.number("epsilon", 0.0..f32::INFINITY)? },
            "dropout" => LayerKind::Dropout { rate: fields.number("rate", 0.0..1.0)? },
            "fully-connected" => LayerKind::FullyConnected {
                outputs: fields.count("outputs")?,
                bias: fields.optional("bias", Fields::truth)?.unwrap_or(true),
            },
            "concat" => LayerKind::Concat,
            "add" => LayerKind::Add,
            "flatten" => LayerKind::Flatten,
            "softmax-loss" => LayerKind::SoftmaxLoss,
            kind => return Err(format!("field `kind`: there is no kind of layer `{kind}`")),
        })
    }
}
