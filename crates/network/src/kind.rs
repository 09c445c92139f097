//! The kinds of layers. For each kind, this file defines its name, output shape, behavior, parameters and file fields;
//! maps, steps, sizes, costs and the trainer's memory follow from them.
//!
//! Shapes are per sample. Unless stated otherwise, a layer takes exactly one input.

use serde_json::{Value, json};
use tightfit_conv::Convolution;
use tightfit_conv::problem::Storage;

use super::behavior::{Behavior, ParameterKind, ParameterPass, Part, Placement, Saved, WithRelu, Work, reads};
use super::fields::{Fields, decimal, written_axes, written_shape};
use super::{Other, Pooling, PoolingMethod, Shape};

/// The computation of a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerKind {
    /// The samples. Shape: as stated. No inputs.
    Input {
        /// Shape of one sample.
        shape: Shape,
        /// The mini-batch, if the network states one, as layer lists do.
        batch: Option<usize>,
    },
    /// A convolution. Shape: k, p, q.
    Convolution {
        /// Its geometry; channels and extents match its input.
        convolution: Convolution,
        /// Whether it adds one number per filter.
        bias: bool,
    },
    /// max(x, 0), possibly in place. Shape: same as its input.
    Relu,
    /// The maximum or mean of each window. Shape: its input's channels, and the number of windows per dimension.
    Pooling(Pooling),
    /// Local response normalization across channels: y = x / (k + alpha / size · sum of squares)^beta, the sum over
    /// `size` neighboring channels. Shape: same as its input. Source: Krizhevsky 2012, 3.3, alpha scaled as Caffe does.
    Lrn {
        /// Channels in the sum.
        size: usize,
        /// Factor of the mean square.
        alpha: f32,
        /// The exponent.
        beta: f32,
        /// The constant that keeps the base above zero.
        k: f32,
    },
    /// Normalizes each channel over the mini-batch, then scales and shifts it. Shape: same as its input.
    BatchNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// Zeroes random elements in training and scales up the others to keep the mean. Shape: same as its input.
    Dropout {
        /// The fraction of elements to zero.
        rate: f32,
    },
    /// Connects every output to every input element. Shape: a vector of `outputs`.
    FullyConnected {
        /// Number of output features.
        outputs: usize,
        /// Whether it adds one number per output.
        bias: bool,
    },
    /// Concatenates two or more inputs of equal extents along channels. Shape: their extents, with the sum of their
    /// channels.
    Concat,
    /// The sum of two or more inputs of the same shape. Shape: same as its inputs.
    Add,
    /// Views a sample as one vector, without moving data. Shape: a vector of the input's length.
    Flatten,
    /// Views a sample in another shape of the same length, without moving data. Shape: as stated.
    Reshape {
        /// Shape of the view.
        shape: Shape,
    },
    /// Any other layer. It is planned from the sizes and reads that the file states, and runs if its function is known. Takes one or more inputs.
    /// Shape: as stated.
    Other(Box<Other>),
    /// Class probabilities, with the mean cross-entropy to the labels as the loss. Shape: same as its input (the
    /// probabilities).
    SoftmaxLoss,
}

impl LayerKind {
    /// The name used in files and reports.
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
            LayerKind::Reshape { .. } => "reshape",
            LayerKind::Other(_) => "other",
            LayerKind::SoftmaxLoss => "softmax-loss",
        }
    }

    /// The output shape.
    ///
    /// # Errors
    /// The fault of the inputs, in words.
    pub fn output(&self, inputs: &[Shape]) -> Result<Shape, String> {
        let one = || match inputs {
            [input] => Ok(*input),
            _ => Err(format!("{} takes one input, not {}", self.name(), inputs.len())),
        };
        let several = || match inputs {
            [first, _, ..] => Ok(*first),
            _ => Err(format!("{} takes two or more inputs, not {}", self.name(), inputs.len())),
        };
        let shape = match self {
            LayerKind::Input { batch: Some(0), .. } => return Err("the mini-batch is 0".to_owned()),
            LayerKind::Input { shape, .. } if inputs.is_empty() => *shape,
            LayerKind::Input { .. } => {
                return Err(format!("an input layer cannot have inputs, but has {}", inputs.len()));
            }
            LayerKind::Convolution { convolution, .. } => {
                let (input, wanted) = (one()?, Shape::input_of(convolution));
                if input != wanted {
                    return Err(format!("the convolution expects {wanted}, but its input is {input}"));
                }
                Shape::output_of(convolution)
            }
            LayerKind::Pooling(pooling) => {
                let input = one()?;
                if pooling.axes.map(|axis| axis.input) != input.extents3() {
                    return Err(format!("the pooling extents do not match the input {input}"));
                }
                for axis in &pooling.axes {
                    axis.check()?;
                    if axis.dilation != 1 {
                        return Err(format!("a window with holes, dilation {}, cannot be pooled", axis.dilation));
                    }
                    if axis.pad_before.max(axis.pad_after) >= axis.reach() {
                        return Err(format!("a window of {} could lie entirely in the padding", axis.reach()));
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
                    return Err(format!("{first} and {other} cannot be concatenated"));
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
            LayerKind::Lrn { size: 0, .. } => return Err("size is 0; it must be at least 1".to_owned()),
            LayerKind::Flatten => Shape::flat(one()?.len()),
            LayerKind::Reshape { shape } => {
                let input = one()?;
                if input.len() != shape.len() {
                    return Err(format!("{input} has {} elements, {shape} has {}", input.len(), shape.len()));
                }
                *shape
            }
            LayerKind::Other(other) => other.output(inputs)?,
            LayerKind::Relu
            | LayerKind::Lrn { .. }
            | LayerKind::BatchNorm { .. }
            | LayerKind::Dropout { .. }
            | LayerKind::SoftmaxLoss => one()?,
        };
        let tensor = (1..=1 << 60).contains(&shape.len());
        if tensor { Ok(shape) } else { Err(format!("output {shape} does not have 1 to 2^60 elements")) }
    }

    /// Number of parameters for inputs of these shapes, which [`LayerKind::output`] has accepted.
    pub(super) fn parameters(&self, inputs: &[Shape]) -> usize {
        self.parameter_kinds(inputs).iter().map(|(_, elements)| elements).sum()
    }

    /// The behavior of this kind.
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
                with_relu: WithRelu::Both,
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
            LayerKind::Add => {
                Behavior { placement: Placement::OverInputSharingGradient, with_relu: WithRelu::Forward, ..plain }
            }
            LayerKind::Flatten | LayerKind::Reshape { .. } => Behavior { part: Part::View, ..plain },
            LayerKind::Other(other) => other.behavior(),
            LayerKind::SoftmaxLoss => Behavior {
                part: Part::Loss,
                backward: reads(false, true, false),
                placement: Placement::OverInput,
                ..plain
            },
        }
    }

    /// The parameters for inputs of these shapes, in memory order, with their element counts; empty ones are omitted.
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
            LayerKind::Other(other) if other.function.is_some() => {
                return other.function.as_ref().map_or_else(Vec::new, |function| function.parameter_kinds(inputs));
            }
            LayerKind::Other(other) => [(ParameterKind::Weight, other.parameters), (ParameterKind::Bias, 0)],
            _ => return Vec::new(),
        };
        all.into_iter().filter(|(_, elements)| *elements > 0).collect()
    }

    /// The storage type of its parameters, given the storage type of the maps; batch normalization always uses 32 bits.
    pub fn parameter_storage(&self, maps: Storage) -> Storage {
        match self {
            LayerKind::BatchNorm { .. } => Storage::F32,
            _ => maps,
        }
    }

    /// Its fields in a file, in natural reading order; `output` is its output shape.
    pub(super) fn fields(&self, output: Shape) -> Vec<(&'static str, Value)> {
        let mut fields = Vec::new();
        match self {
            LayerKind::Input { shape, batch } => {
                fields.push(("shape", written_shape(*shape)));
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
            LayerKind::Reshape { shape } => fields.push(("shape", written_shape(*shape))),
            LayerKind::Other(other) => fields.extend(other.fields()),
            LayerKind::Relu | LayerKind::Concat | LayerKind::Add | LayerKind::Flatten | LayerKind::SoftmaxLoss => {}
        }
        fields
    }

    /// Reads a kind whose first input has this shape; an error names the wrong field.
    pub(super) fn read(fields: &mut Fields<'_>, input: Option<Shape>) -> Result<LayerKind, String> {
        // If the layer has no input, any shape works here: the rule of its kind rejects the layer later.
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
            "reshape" => LayerKind::Reshape { shape: fields.shape("shape")? },
            "other" => LayerKind::Other(Box::new(Other::read(fields)?)),
            "softmax-loss" => LayerKind::SoftmaxLoss,
            kind => return Err(format!("field `kind`: unknown kind of layer `{kind}`")),
        })
    }
}
