//! The work to schedule: a network at a mini-batch, in training or inference, and the sizes of its tensors.

use tightfit_conv::problem::Storage;
use tightfit_conv::{Layout, Operation, Problem, Types};
use tightfit_network::{Behavior, FeatureMaps, LayerId, LayerKind, Network, ParameterKind, Part, Saved, WithRelu};
use tightfit_units::{Bytes, Error};

use crate::lowering::order::{of_weights, orders};
use crate::{ALIGNMENT, Mode, NetworkTensor, Order, Pass};

/// One of a layer's parameters, with its position in the layer's weight, gradient and momentum blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The kind of parameter.
    pub kind: ParameterKind,
    /// First element. The same for every element size, and a multiple of [`ALIGNMENT`] / 2 so that every storage type
    /// is aligned.
    pub offset: usize,
    /// Number of elements.
    pub elements: usize,
}

/// A network at a mini-batch.
#[derive(Clone, Debug)]
pub struct Workload<'a> {
    /// The layers.
    pub network: &'a Network,
    /// Which layers share memory.
    pub maps: FeatureMaps,
    /// The mini-batch: samples per step.
    pub batch: usize,
    /// Number types of maps and arithmetic.
    pub types: Types,
    /// Order of the dimensions of maps and filters on the device; set by [`Workload::with_layout`].
    pub layout: Layout,
    /// Training or inference.
    pub mode: Mode,
    /// Whether the solver keeps the last change of every parameter, or AdamW's first moment.
    pub momentum: bool,
    /// Whether the solver is AdamW and keeps a second moment of every parameter.
    pub second_moment: bool,
    /// For each layer, whether its parameters stay as they are.
    frozen: Vec<bool>,
    /// The order of every layer's output.
    orders: Vec<Order>,
}

impl<'a> Workload<'a> {
    /// A workload of `network` with `batch` samples per step, whose solver has momentum.
    ///
    /// # Errors
    /// [`Error::BadNetwork`] for a layer list, whose layers are not connected, and for training a network without a
    /// loss; [`Error::BadProblem`] if `batch` is zero or makes a tensor of more than 2^60 elements.
    pub fn new(network: &'a Network, batch: usize, types: Types, mode: Mode) -> Result<Workload<'a>, Error> {
        let bad = |layer: &str, what: &str| {
            Err(Error::BadNetwork {
                network: network.name().to_owned(),
                layer: layer.to_owned(),
                what: what.to_owned(),
            })
        };
        let inputs = network.layers().iter().filter(|layer| layer.kind.behavior().part == Part::Input);
        if let Some(second) = inputs.clone().nth(1) {
            return bad(&second.name, "a second input; layer lists are not networks that can be planned or trained");
        }
        let losses = network.layers().iter().filter(|layer| layer.kind.behavior().part == Part::Loss).count();
        match network.layers().last() {
            Some(last) if losses != 1 && mode == Mode::Training => {
                return bad(&last.name, "training needs exactly one softmax-loss layer");
            }
            None => return bad("none", "the network has no layers"),
            Some(_) => {}
        }
        if batch == 0 {
            return Err(Error::BadProblem { what: "the mini-batch is 0; use at least 1".to_owned() });
        }
        let largest = network.layers().iter().map(|layer| layer.shape.len()).max().unwrap_or(1);
        if largest.checked_mul(batch).is_none_or(|elements| elements > 1 << 60) {
            return Err(Error::BadProblem {
                what: format!("{batch} samples of {largest} elements are more than 2^60 elements"),
            });
        }
        Ok(Workload {
            network,
            maps: FeatureMaps::of(network),
            batch,
            types,
            layout: Layout::Nchw,
            mode,
            momentum: true,
            second_moment: false,
            frozen: vec![false; network.layers().len()],
            orders: orders(network, Layout::Nchw)?,
        })
    }

    /// This workload with or without momentum. Without it, no memory holds the last changes.
    pub fn with_momentum(self, momentum: bool) -> Workload<'a> {
        Workload { momentum, ..self }
    }

    /// This workload with or without AdamW, which keeps two moments of every parameter.
    pub fn with_adamw(self, adamw: bool) -> Workload<'a> {
        Workload { momentum: self.momentum || adamw, second_moment: adamw, ..self }
    }

    /// This workload with frozen layers: the layers whose names begin with a prefix keep their parameters, and have no weight gradients or solver
    /// state. A normalization still normalizes by its mini-batch, and updates its running statistics.
    ///
    /// # Errors
    /// [`Error::BadOption`] if a prefix names no layer with parameters, or if no layer would train.
    pub fn with_frozen(self, prefixes: &[String]) -> Result<Workload<'a>, Error> {
        let network = self.network;
        let has =
            |prefix: &str| network.layers().iter().any(|layer| layer.parameters > 0 && layer.name.starts_with(prefix));
        if let Some(prefix) = prefixes.iter().find(|prefix| !has(prefix)) {
            let what = format!(
                "no layer of {} that has parameters has a name that begins with `{prefix}`; `tightfit networks` lists them",
                network.name()
            );
            return Err(Error::BadOption { what });
        }
        let is_frozen = |name: &str| prefixes.iter().any(|prefix| name.starts_with(prefix.as_str()));
        let frozen: Vec<bool> = network.layers().iter().map(|layer| is_frozen(&layer.name)).collect();
        let trains = |layer: LayerId| network.layer(layer).parameters > 0 && !frozen[layer.index()];
        if !prefixes.is_empty() && !network.iter().any(|(layer, _)| trains(layer)) {
            let what = format!("all layers of {} are frozen, so nothing trains", network.name());
            return Err(Error::BadOption { what });
        }
        let maps = FeatureMaps::of_trained(network, trains);
        Ok(Workload { maps, frozen, ..self })
    }

    /// Whether a layer has parameters that the solver changes.
    ///
    /// # Panics
    /// If `layer` is out of range.
    pub fn trains(&self, layer: LayerId) -> bool {
        self.network.layer(layer).parameters > 0 && !self.frozen[layer.index()]
    }

    /// This workload with maps and filters in another layout. Weight files do not change.
    ///
    /// # Errors
    /// [`Error::BadNetwork`] for channels last in a network with an unknown layer, or with a layer that takes a flattened map of several channels and
    /// positions, unless the layer is fully connected, a ReLU or dropout.
    pub fn with_layout(self, layout: Layout) -> Result<Workload<'a>, Error> {
        Ok(Workload { layout, orders: orders(self.network, layout)?, ..self })
    }

    /// This workload in the default layout: channels last for 16-bit types if the network allows it. For a recording, the measured layout, which is
    /// channels first.
    pub fn with_usual_layout(self, is_recorded: bool) -> Workload<'a> {
        match self.types.storage() {
            Storage::F16 | Storage::Bf16 if !is_recorded => self.clone().with_layout(Layout::Nhwc).unwrap_or(self),
            _ => self,
        }
    }

    /// The order of a layer's output on the device.
    ///
    /// # Panics
    /// If `layer` is out of range.
    pub fn order(&self, layer: LayerId) -> Order {
        self.orders[layer.index()]
    }

    /// The order of each filter of a convolution, or of each row of a fully connected layer's matrix, if the device's order differs from the files';
    /// `None` for every other layer.
    ///
    /// # Panics
    /// If `layer` is out of range.
    pub fn weight_order(&self, layer: LayerId) -> Option<Order> {
        of_weights(self.network, self.layout, &self.orders, layer)
    }

    /// The ReLU that passes of this layer compute as well (see [`Behavior::with_relu`]): one in place over its output, which
    /// nothing else reads.
    ///
    /// # Panics
    /// If `layer` is out of range.
    pub(crate) fn relu_over(&self, layer: LayerId) -> Option<LayerId> {
        let &[relu] = self.network.consumers(layer) else { return None };
        let in_place = self.maps.written_by(relu) == self.maps.written_by(layer);
        let joins =
            self.network.layer(relu).kind == LayerKind::Relu && self.behavior(layer).with_relu != WithRelu::Nothing;
        (in_place && joins).then_some(relu)
    }

    /// The passes of the layer below a ReLU that also compute it.
    pub(crate) fn computed_below(&self, relu: LayerId) -> WithRelu {
        match self.network.layer(relu).inputs[..] {
            [below] if self.relu_over(below) == Some(relu) => self.behavior(below).with_relu,
            _ => WithRelu::Nothing,
        }
    }

    /// The parameters of a layer, in memory order.
    pub fn parameters(&self, layer: LayerId) -> Vec<Parameter> {
        let kinds = self.network.layer(layer).kind.parameter_kinds(&self.network.input_shapes(layer));
        let mut offset = 0;
        let mut parameters = Vec::new();
        for (kind, elements) in kinds {
            parameters.push(Parameter { kind, offset, elements });
            offset = (offset + elements).next_multiple_of(ALIGNMENT as usize / 2);
        }
        parameters
    }

    /// Bytes of a tensor for the whole mini-batch, before rounding up to [`ALIGNMENT`]. Workspaces depend on the
    /// configuration and are not known here.
    pub fn bytes(&self, tensor: NetworkTensor) -> Bytes {
        let storage = self.types.storage().size();
        let parameters = |layer| self.parameters(layer).last().map_or(0, |last| last.offset + last.elements);
        match tensor {
            NetworkTensor::FeatureMap(map) | NetworkTensor::Gradient(map) => {
                Bytes::of(self.maps.get(map).elements, self.batch.saturating_mul(storage))
            }
            NetworkTensor::Weights(layer) => Bytes::of(parameters(layer), self.parameter_storage(layer).size()),
            NetworkTensor::MasterWeights(layer)
            | NetworkTensor::WeightGradient(layer)
            | NetworkTensor::Momentum(layer)
            | NetworkTensor::SecondMoment(layer) => Bytes::of(parameters(layer), 4),
            NetworkTensor::Statistics(layer) if self.behavior(layer).statistics => self.two_per_channel(layer),
            NetworkTensor::Saved(layer) => match self.behavior(layer).saved {
                // Mean and inverse standard deviation.
                Saved::PerChannel => self.two_per_channel(layer),
                Saved::PerElement => Bytes::of(self.network.layer(layer).shape.len(), self.batch),
                Saved::Nothing => Bytes::ZERO,
            },
            NetworkTensor::Labels => Bytes::of(self.batch, 4),
            NetworkTensor::Statistics(_) | NetworkTensor::Workspace(_) => Bytes::ZERO,
        }
    }

    /// Bytes of a tensor per sample; `None` for a tensor that is not divided into samples.
    pub fn bytes_per_sample(&self, tensor: NetworkTensor) -> Option<Bytes> {
        let has_samples = match tensor {
            NetworkTensor::FeatureMap(_) | NetworkTensor::Gradient(_) | NetworkTensor::Labels => true,
            NetworkTensor::Saved(layer) => self.behavior(layer).saved == Saved::PerElement,
            _ => false,
        };
        has_samples.then(|| Bytes(self.bytes(tensor).0 / self.batch as u64))
    }

    pub(crate) fn behavior(&self, layer: LayerId) -> Behavior {
        self.network.layer(layer).kind.behavior()
    }

    fn two_per_channel(&self, layer: LayerId) -> Bytes {
        Bytes::of(2 * channel_stride(self.network.layer(layer).shape.channels()), 4)
    }

    /// The storage type of a layer's parameters; batch normalization always uses 32 bits.
    pub fn parameter_storage(&self, layer: LayerId) -> Storage {
        self.network.layer(layer).kind.parameter_storage(self.types.storage())
    }

    /// The distinct problems of all convolutions in the workload, in order of computation.
    ///
    /// # Errors
    /// [`Error::BadProblem`] if the mini-batch is too large.
    pub fn problems(&self) -> Result<Vec<Problem>, Error> {
        let mut problems = Vec::new();
        for of in &self.lower()?.passes {
            problems.extend(self.problem_of(of.layer, of.pass)?.filter(|problem| !problems.contains(problem)));
        }
        Ok(problems)
    }

    /// The problem of one operation of a convolution.
    ///
    /// # Errors
    /// [`Error::BadProblem`] if the mini-batch is too large; [`Error::BadNetwork`] if the layer is not a convolution.
    pub fn problem(&self, layer: LayerId, operation: Operation) -> Result<Problem, Error> {
        match &self.network.layer(layer).kind {
            LayerKind::Convolution { convolution, .. } => {
                Problem::new(*convolution, operation, self.batch, self.types, self.layout)
            }
            kind => Err(Error::BadNetwork {
                network: self.network.name().to_owned(),
                layer: self.network.layer(layer).name.clone(),
                what: format!("a {} layer is not a convolution", kind.name()),
            }),
        }
    }

    /// The problem of a pass, if the layer is a convolution.
    pub(crate) fn problem_of(&self, layer: LayerId, pass: Pass) -> Result<Option<Problem>, Error> {
        match (&self.network.layer(layer).kind, pass.operation()) {
            (LayerKind::Convolution { .. }, Some(operation)) => self.problem(layer, operation).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether the solver keeps a 32-bit copy of a layer's 16-bit parameters.
    pub fn has_master_weights(&self, layer: LayerId) -> bool {
        self.trains(layer) && self.parameter_storage(layer) != Storage::F32 && self.mode == Mode::Training
    }
}

/// Distance in elements between the two numbers of each channel, aligned so that each can be passed to a library
/// separately.
pub fn channel_stride(channels: usize) -> usize {
    channels.next_multiple_of(ALIGNMENT as usize / 4)
}

#[cfg(test)]
mod tests {
    use tightfit_network::{Builder, Filters, Shape};

    use super::*;
    use crate::LayerPass;

    #[test]
    fn the_usual_layout_is_channels_last_in_16_bits_where_layers_allow_it() {
        type Layers = fn(&mut Builder) -> &mut Builder;
        let networks: [(&str, bool, Layers); 4] = [
            ("a matrix takes a flattened map", true, |net| net.flatten().fully_connected("fc", 3)),
            ("flattened maps are not joined", false, |net| {
                let flat = net.flatten().here();
                net.concat("join", &[flat, flat]).fully_connected("fc", 3)
            }),
            ("pictures are normalized across channels", true, |net| net.lrn().flatten().fully_connected("fc", 3)),
            ("classes in place", false, |net| net.flatten()),
        ];
        for (what, allowed, layers) in networks {
            let mut net = Builder::new("net");
            net.input(Shape::image(3, 4, 4)).conv("conv", Filters::new(4, 3).pad(1));
            layers(&mut net).softmax_loss();
            let network = net.finish().unwrap();
            let usual = |types: Types, is_recorded: bool| {
                let workload = Workload::new(&network, 2, types, Mode::Training).unwrap();
                workload.with_usual_layout(is_recorded).layout
            };
            for types in [Types::F16F32, Types::Bf16] {
                assert_eq!(usual(types, false) == Layout::Nhwc, allowed, "{what}");
                assert_eq!(usual(types, true), Layout::Nchw, "{what}, recorded");
            }
            assert_eq!(usual(Types::F32, false), Layout::Nchw);
        }
        let mut net = Builder::new("volumes");
        net.input(Shape::volume(3, 4, 4, 4)).lrn().flatten().fully_connected("fc", 3).softmax_loss();
        let network = net.finish().unwrap();
        let workload = Workload::new(&network, 2, Types::Bf16, Mode::Training).unwrap();
        assert_eq!(workload.with_usual_layout(false).layout, Layout::Nchw);
    }

    #[test]
    fn frozen_layers_have_no_gradients_of_weights_and_those_below_all_that_trains_no_backward_passes() {
        let mut net = Builder::new("frozen");
        net.input(Shape::image(2, 4, 4)).conv("a", Filters::new(2, 3).pad(1)).relu();
        net.conv("b", Filters::new(2, 3).pad(1)).batch_norm().relu();
        net.conv("c", Filters::new(2, 1)).flatten().fully_connected("fc", 3).softmax_loss();
        let network = net.finish().unwrap();
        let backward = |frozen: &[&str]| {
            let frozen: Vec<String> = frozen.iter().map(|&prefix| prefix.to_owned()).collect();
            let workload =
                Workload::new(&network, 2, Types::F16F32, Mode::Training).unwrap().with_frozen(&frozen).unwrap();
            let lowered = workload.lower().unwrap();
            let line =
                |pass: &LayerPass| format!("{} {:?} {:?}", network.layer(pass.layer).name, pass.pass, pass.roles);
            lowered.passes.iter().filter(|pass| pass.pass != Pass::Forward).map(line).collect::<Vec<_>>()
        };
        let expected = [
            "loss BackwardData [Y, Labels, Dx(0)]",
            "fc BackwardFilter [X(0), Dy, Dw]",
            "fc Update [W, Dw, Momentum, Master]",
        ];
        assert_eq!(backward(&["a", "b", "c"]), expected);
        let expected = [
            "loss BackwardData [Y, Labels, Dx(0)]",
            "fc BackwardData [Dy, W, Dx(0)]",
            "c BackwardFilter [X(0), Dy, Dw]",
            "c BackwardData [Dy, W, Dx(0)]",
            "c Update [W, Dw, Momentum, Master]",
            "b.bn BackwardData [X(0), Saved, Dy, W, Dw, Dx(0)]",
            "b BackwardData [Dy, W, Dx(0)]",
            "a.relu BackwardData [Y, Dy, Dx(0)]",
            "a BackwardFilter [X(0), Dy, Dw]",
            "a Update [W, Dw, Momentum, Master]",
        ];
        assert_eq!(backward(&["b", "fc"]), expected);
        let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
        for (prefixes, wrong) in
            [(vec!["d"], "`d`"), (vec!["a", "b", "c", "fc"], "nothing trains"), (vec!["loss"], "`loss`")]
        {
            let prefixes: Vec<String> = prefixes.into_iter().map(str::to_owned).collect();
            let error = workload.clone().with_frozen(&prefixes).unwrap_err().to_string();
            assert!(error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn bytes_of_a_small_network_by_hand() {
        let network = Network::open("digits-net").unwrap();
        let workload = Workload::new(&network, 10, Types::F32, Mode::Training).unwrap();
        let (conv1, _) = network.iter().find(|(_, layer)| layer.name == "conv1").unwrap();
        let map = workload.maps.written_by(conv1);
        assert_eq!(workload.bytes(NetworkTensor::FeatureMap(map)), Bytes(16 * 64 * 10 * 4));
        let bias = workload.parameters(conv1)[1];
        assert_eq!((bias.kind, bias.offset, bias.elements), (ParameterKind::Bias, 256, 16), "after 144, aligned");
        assert_eq!(workload.bytes(NetworkTensor::WeightGradient(conv1)), Bytes((256 + 16) * 4));
        assert_eq!(workload.bytes(NetworkTensor::Labels), Bytes(40));
    }

    #[test]
    fn untrainable_networks_are_rejected() {
        let list = Network::open("deepbench").unwrap();
        assert!(matches!(Workload::new(&list, 1, Types::F32, Mode::Training), Err(Error::BadNetwork { .. })));
        let lenet = Network::open("lenet").unwrap();
        assert!(matches!(Workload::new(&lenet, 0, Types::F32, Mode::Training), Err(Error::BadProblem { .. })));
        assert!(matches!(Workload::new(&lenet, usize::MAX, Types::F32, Mode::Training), Err(Error::BadProblem { .. })));
    }
}
