//! The computation of a layer of kind [`LayerKind::Other`](super::LayerKind::Other), if it can run.
//!
//! The layer is planned from the sizes and reads that the file states; its function must agree with them.

use serde_json::{Value, json};

use super::behavior::ParameterKind;
use super::fields::{Fields, decimal};
use super::{Activation, Sampling, Shape};

/// The computation of a layer. The axes of a sample are its channels and extents, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Function {
    /// A function of each element.
    Activation(Activation),
    /// The product of two maps of the same shape, or of a map and one number for each of its channels.
    Multiply,
    /// The product with a learned number for each channel.
    Scale,
    /// Normalizes the elements along the last axis to mean 0 and deviation 1, then scales and shifts each position of the axis by learned numbers.
    /// **Source:** Ba et al. 2016.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
    },
    /// A fully connected layer along the last axis, the same for all other axes.
    Linear {
        /// Number of output features.
        outputs: usize,
        /// Whether it adds a learned number per output.
        bias: bool,
    },
    /// Exchanges axes.
    Transpose {
        /// For each axis of the output: the input's axis.
        order: Vec<usize>,
    },
    /// Changes the extents of each channel.
    Resize {
        /// Where the elements are taken from.
        sampling: Sampling,
        /// The extents of the output.
        extents: Vec<usize>,
    },
    /// Zeroes random whole samples in training, and scales up the others to keep the mean.
    /// **Source:** Huang et al. 2016, stochastic depth.
    DropSamples {
        /// The fraction of samples to zero.
        rate: f32,
    },
}

/// The facts of a function that matter to a planner.
pub(super) struct Facts {
    pub shape: Shape,
    pub parameters: usize,
    pub reads_inputs: bool,
    pub reads_output: bool,
    pub may_overwrite: bool,
}

impl Function {
    /// The name in files.
    pub fn name(&self) -> &'static str {
        match self {
            Function::Activation(activation) => activation.name(),
            Function::Multiply => "multiply",
            Function::Scale => "scale",
            Function::LayerNorm { .. } => "layer-norm",
            Function::Linear { .. } => "linear",
            Function::Transpose { .. } => "transpose",
            Function::Resize { sampling, .. } => sampling.name(),
            Function::DropSamples { .. } => "drop-samples",
        }
    }

    /// The facts for inputs of these shapes.
    ///
    /// # Errors
    /// The fault of the shapes or the parameters, in words.
    pub(super) fn facts(&self, inputs: &[Shape]) -> Result<Facts, String> {
        let one = || match inputs {
            [input] => Ok(*input),
            _ => Err(format!("{} takes one input, not {}", self.name(), inputs.len())),
        };
        let parameters = self.parameter_kinds(inputs).iter().fold(0usize, |sum, (_, more)| sum.saturating_add(*more));
        let facts = |shape| Facts { shape, parameters, reads_inputs: true, reads_output: false, may_overwrite: false };
        Ok(match self {
            Function::Activation(activation) => {
                activation.check()?;
                let reads_output = activation.reads_output();
                Facts { reads_inputs: !reads_output, reads_output, may_overwrite: reads_output, ..facts(one()?) }
            }
            Function::Multiply => {
                let [left, right] = inputs else {
                    return Err(format!("multiply takes two inputs, not {}", inputs.len()));
                };
                let whole = if left.len() < right.len() { right } else { left };
                let fits = |part: &Shape| {
                    let per_channel = part.channels() == whole.channels() && part.len() == part.channels();
                    part == whole || per_channel && part.extents().len() == whole.extents().len()
                };
                if !fits(left) || !fits(right) {
                    return Err(format!("{left} and {right} cannot be multiplied"));
                }
                facts(*whole)
            }
            Function::Scale => facts(one()?),
            Function::LayerNorm { epsilon } => {
                if !(*epsilon >= 0.0 && epsilon.is_finite()) {
                    return Err(format!("epsilon is {epsilon}"));
                }
                facts(one()?)
            }
            Function::Linear { outputs, .. } => {
                let input = one()?;
                let weights = outputs.checked_mul(last(input));
                if weights.is_none_or(|weights| !(1..=1 << 60).contains(&weights)) {
                    return Err(format!("{input} to {outputs}: not 1 to 2^60 weights"));
                }
                let mut axes = axes(input);
                axes.splice(axes.len() - 1.., [*outputs]);
                facts(shape(&axes)?)
            }
            Function::Transpose { order } => {
                let input = axes(one()?);
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if !sorted.into_iter().eq(0..input.len()) {
                    return Err(format!("{order:?} is not an order of {} axes", input.len()));
                }
                let output: Vec<usize> = order.iter().map(|&axis| input[axis]).collect();
                Facts { reads_inputs: false, ..facts(shape(&output)?) }
            }
            Function::Resize { extents, .. } => {
                let input = one()?;
                if extents.len() != input.extents().len() || extents.contains(&0) || extents.is_empty() {
                    return Err(format!("{input} cannot be brought to extents of {extents:?}"));
                }
                let output: Vec<usize> = [input.channels()].into_iter().chain(extents.iter().copied()).collect();
                Facts { reads_inputs: false, ..facts(shape(&output)?) }
            }
            Function::DropSamples { rate } => {
                if !(0.0..1.0).contains(rate) {
                    return Err(format!("a rate of {rate}; it must be from 0 to below 1"));
                }
                Facts { reads_inputs: false, may_overwrite: true, ..facts(one()?) }
            }
        })
    }

    /// The parameters for inputs of these shapes, in memory order, with their element counts.
    pub fn parameter_kinds(&self, inputs: &[Shape]) -> Vec<(ParameterKind, usize)> {
        let Some(&first) = inputs.first() else { return Vec::new() };
        match self {
            Function::Scale => vec![(ParameterKind::Scale, first.channels())],
            Function::LayerNorm { .. } => {
                vec![(ParameterKind::Scale, last(first)), (ParameterKind::Shift, last(first))]
            }
            Function::Linear { outputs, bias } => {
                let mut all = vec![(ParameterKind::Weight, outputs.saturating_mul(last(first)))];
                all.extend(bias.then_some((ParameterKind::Bias, *outputs)));
                all
            }
            _ => Vec::new(),
        }
    }

    /// Its name and parameters as fields of a file; [`Function::read`] reads them.
    pub(super) fn fields(&self) -> Vec<(&'static str, Value)> {
        let mut fields = vec![("function", json!(self.name()))];
        match self {
            Function::Activation(activation) => fields.extend(activation.fields()),
            Function::LayerNorm { epsilon } => fields.push(("epsilon", decimal(*epsilon))),
            Function::Linear { outputs, bias } => {
                fields.push(("outputs", json!(outputs)));
                fields.extend((!bias).then(|| ("bias", json!(bias))));
            }
            Function::Transpose { order } => fields.push(("order", json!(order))),
            Function::Resize { extents, .. } => fields.push(("extents", json!(extents))),
            Function::DropSamples { rate } => fields.push(("rate", decimal(*rate))),
            Function::Multiply | Function::Scale => {}
        }
        fields
    }

    /// Reads the fields; an error names the wrong one.
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Function, String> {
        let name = fields.text("function")?;
        Ok(match name {
            "multiply" => Function::Multiply,
            "scale" => Function::Scale,
            "layer-norm" => Function::LayerNorm { epsilon: fields.number("epsilon", 0.0..f32::INFINITY)? },
            "linear" => Function::Linear {
                outputs: fields.count("outputs")?,
                bias: fields.optional("bias", Fields::truth)?.unwrap_or(true),
            },
            "transpose" => Function::Transpose { order: fields.counts("order")? },
            "drop-samples" => Function::DropSamples { rate: fields.number("rate", 0.0..1.0)? },
            _ => match (Activation::read(name, fields)?, Sampling::ALL.into_iter().find(|all| all.name() == name)) {
                (Some(activation), _) => Function::Activation(activation),
                (None, Some(sampling)) => Function::Resize { sampling, extents: fields.counts("extents")? },
                (None, None) => return Err(format!("field `function`: unknown function `{name}`")),
            },
        })
    }
}

/// The axes of a sample: its channels and extents.
fn axes(shape: Shape) -> Vec<usize> {
    [shape.channels()].into_iter().chain(shape.extents().iter().copied()).collect()
}

/// The length of the last axis.
fn last(shape: Shape) -> usize {
    shape.extents().last().copied().unwrap_or(shape.channels())
}

fn shape(axes: &[usize]) -> Result<Shape, String> {
    match *axes {
        [features] => Ok(Shape::flat(features)),
        [c, h, w] => Ok(Shape::image(c, h, w)),
        [c, d, h, w] => Ok(Shape::volume(c, d, h, w)),
        _ => Err(format!("{axes:?} is not the shape of a sample")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, LayerKind, Network, Other};

    /// Each function on its input shapes, with the shape of its output.
    fn all() -> Vec<(Function, Vec<Shape>, Shape)> {
        let image = Shape::image(4, 3, 5);
        let alone = |function, output| (function, vec![image], output);
        let with_numbers = [
            Activation::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 },
            Activation::Clip { low: f32::MIN, high: 6.0 },
            Activation::LeakyRelu { slope: 0.01 },
            Activation::Elu { alpha: 1.5 },
        ];
        let activations = with_numbers.into_iter().chain(Activation::PLAIN);
        let mut all: Vec<_> = activations.map(|activation| alone(Function::Activation(activation), image)).collect();
        all.extend([
            (Function::Multiply, vec![Shape::image(4, 1, 1), image], image),
            (Function::Multiply, vec![image, image], image),
            alone(Function::Scale, image),
            alone(Function::LayerNorm { epsilon: 1e-6 }, image),
            alone(Function::Linear { outputs: 7, bias: true }, Shape::image(4, 3, 7)),
            alone(Function::Linear { outputs: 2, bias: false }, Shape::image(4, 3, 2)),
            alone(Function::Transpose { order: vec![1, 2, 0] }, Shape::image(3, 5, 4)),
            alone(Function::DropSamples { rate: 0.1 }, image),
        ]);
        all.extend(
            Sampling::ALL
                .map(|sampling| alone(Function::Resize { sampling, extents: vec![6, 4] }, Shape::image(4, 6, 4))),
        );
        all
    }

    /// The layer of a function, with the function's facts for the planner.
    fn other(function: &Function, inputs: &[Shape], shape: Shape) -> Other {
        let facts = function.facts(inputs).unwrap();
        Other {
            parameters: facts.parameters,
            reads_inputs: facts.reads_inputs,
            reads_output: facts.reads_output,
            function: Some(function.clone()),
            ..Other::new(function.name(), shape)
        }
    }

    #[test]
    fn layers_with_functions_round_trip() {
        for (function, inputs, shape) in all() {
            let mut net = Builder::new("net");
            let mut layers = Vec::new();
            for (at, &shape) in inputs.iter().enumerate() {
                layers.push(net.layer(format!("in{at}"), LayerKind::Input { shape, batch: None }, &[]).here());
            }
            net.layer("x", LayerKind::Other(Box::new(other(&function, &inputs, shape))), &layers);
            let network = net.finish().unwrap();
            assert_eq!(Network::from_json(&network.to_json()).unwrap(), network, "{function:?}");
        }
    }

    #[test]
    fn a_layer_that_the_planner_is_told_wrong_of_is_refused() {
        for (function, inputs, shape) in all() {
            let right = other(&function, &inputs, shape);
            assert_eq!(right.output(&inputs), Ok(shape), "{function:?}");
            let wrong = [
                Other { shape: shape.with_channels(shape.channels() + 1), ..right.clone() },
                Other { parameters: right.parameters + 1, ..right.clone() },
                Other { reads_inputs: false, reads_output: false, ..right.clone() },
            ];
            let reads = right.reads_inputs || right.reads_output;
            for wrong in wrong.iter().take(if reads { 3 } else { 2 }) {
                wrong.output(&inputs).unwrap_err();
            }
        }
        let image = Shape::image(4, 3, 5);
        for (function, inputs) in [
            (Function::Multiply, vec![Shape::flat(4), image]),
            (Function::Multiply, vec![Shape::image(4, 3, 1), image]),
            (Function::Scale, vec![image, image]),
            (Function::Linear { outputs: 0, bias: true }, vec![image]),
            (Function::Transpose { order: vec![0, 0, 1] }, vec![image]),
            (Function::Resize { sampling: Sampling::Nearest, extents: vec![6] }, vec![image]),
            (Function::Resize { sampling: Sampling::Nearest, extents: vec![6, 0] }, vec![image]),
            (Function::DropSamples { rate: 1.0 }, vec![image]),
            (Function::Activation(Activation::Clip { low: 1.0, high: 1.0 }), vec![image]),
        ] {
            assert!(function.facts(&inputs).is_err(), "{function:?}");
        }
    }
}
