//! Builds a network layer by layer, in code that reads like a published table.
//!
//! The builder has a current layer, and each call adds a layer after it. [`Builder::at`] returns to an earlier layer to
//! branch off; [`Builder::add`] and [`Builder::concat`] join branches:
//!
//! ```text
//! fork = net.here()        x ---- conv a ---- relu --.
//! a = net.conv().here()     \                         add ---- relu
//! net.at(fork); b = ..       `---- conv b -----------'
//! ```
//!
//! The builder keeps the first error, and [`Builder::finish`] returns it.

use std::collections::HashSet;

use tightfit_conv::{Axis, Convolution};
use tightfit_units::Error;

use super::{Layer, LayerId, LayerKind, Network, Pooling, PoolingMethod, Shape};

/// The filters of a convolution, the same in every spatial dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filters {
    count: usize,
    extent: usize,
    pad: usize,
    stride: usize,
    groups: usize,
    bias: bool,
}

impl Filters {
    /// `count` filters of `extent` in each dimension, with bias, without padding, with stride 1 and one group.
    pub const fn new(count: usize, extent: usize) -> Filters {
        Filters { count, extent, pad: 0, stride: 1, groups: 1, bias: true }
    }

    /// With this padding on every side.
    pub const fn pad(self, pad: usize) -> Filters {
        Filters { pad, ..self }
    }

    /// With this stride.
    pub const fn stride(self, stride: usize) -> Filters {
        Filters { stride, ..self }
    }

    /// With this many groups.
    pub const fn groups(self, groups: usize) -> Filters {
        Filters { groups, ..self }
    }

    /// Without bias, as is usual before batch normalization.
    pub const fn no_bias(self) -> Filters {
        Filters { bias: false, ..self }
    }
}

/// A pooling window, the same in every spatial dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    extent: usize,
    stride: usize,
    pad: usize,
    ceil: bool,
}

impl Window {
    /// Windows of `extent` in each dimension, `stride` apart, without padding and without partial windows.
    pub const fn new(extent: usize, stride: usize) -> Window {
        Window { extent, stride, pad: 0, ceil: false }
    }

    /// With this padding on every side.
    pub const fn pad(self, pad: usize) -> Window {
        Window { pad, ..self }
    }

    /// With a last, partial window at the edge, as in Caffe.
    pub const fn ceil(self) -> Window {
        Window { ceil: true, ..self }
    }
}

/// A network under construction.
///
/// Layers without an explicit name are named after the last named layer: `conv1.relu`.
///
/// ```
/// use tightfit_network::{Builder, Filters, Shape, Window};
/// let mut net = Builder::new("tiny");
/// net.input(Shape::image(1, 8, 8)).conv("conv1", Filters::new(16, 3).pad(1)).relu();
/// net.max_pool("pool1", Window::new(2, 2)).fully_connected("fc", 10).softmax_loss();
/// let network = net.finish()?;
/// assert_eq!(network.parameters(), 16 * 9 + 16 + 10 * 16 * 16 + 10);
/// # Ok::<(), tightfit_units::Error>(())
/// ```
#[derive(Debug)]
pub struct Builder {
    name: String,
    layers: Vec<Layer>,
    names: HashSet<String>,
    here: Option<LayerId>,
    stem: String,
    wrong: Option<Error>,
}

impl Builder {
    /// An empty network of this name.
    pub fn new(name: impl Into<String>) -> Builder {
        Builder {
            name: name.into(),
            layers: Vec::new(),
            names: HashSet::new(),
            here: None,
            stem: String::new(),
            wrong: None,
        }
    }

    /// Returns the network, if every layer is valid.
    ///
    /// # Errors
    /// [`Error::BadNetwork`] for the first invalid layer: a wrong number or shape of inputs, or a duplicate name.
    pub fn finish(self) -> Result<Network, Error> {
        self.check().map(|net| Network::new(net.name, net.layers))
    }

    /// Returns the builder if every layer so far is valid, otherwise the error of [`Builder::finish`].
    ///
    /// # Errors
    /// As [`Builder::finish`].
    pub fn check(self) -> Result<Builder, Error> {
        match self.wrong {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }

    /// The layers so far.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The current layer, which the next one will read; keep it to branch off later.
    pub fn here(&self) -> Option<LayerId> {
        self.here
    }

    /// The output shape of the current layer, if any.
    pub fn shape(&self) -> Option<Shape> {
        self.here.and_then(|here| self.layers.get(here.0)).map(|layer| layer.shape)
    }

    /// Makes an earlier layer current, so that the next one reads it.
    pub fn at(&mut self, layer: Option<LayerId>) -> &mut Builder {
        self.here = layer;
        self
    }

    /// Adds a layer of any kind that reads `inputs`, and makes it current. Does nothing after an error.
    pub fn layer(&mut self, name: impl Into<String>, kind: LayerKind, inputs: &[Option<LayerId>]) -> &mut Builder {
        let name = name.into();
        if self.wrong.is_none() {
            match self.checked(&name, kind, inputs) {
                Ok(layer) => {
                    self.here = Some(LayerId(self.layers.len()));
                    self.names.insert(name);
                    self.layers.push(layer);
                }
                Err(what) => self.refuse(name, what),
            }
        }
        self
    }

    fn checked(&self, name: &str, kind: LayerKind, inputs: &[Option<LayerId>]) -> Result<Layer, String> {
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || c == '#') {
            return Err("a name must not be empty or contain a space or #".to_owned());
        }
        if self.names.contains(name) {
            return Err("a layer with this name already exists".to_owned());
        }
        let inputs = inputs.iter().map(|id| id.filter(|id| id.0 < self.layers.len()));
        let inputs: Vec<LayerId> = inputs.collect::<Option<_>>().ok_or("reads a layer that does not exist")?;
        let shapes: Vec<Shape> = inputs.iter().map(|id| self.layers[id.0].shape).collect();
        let shape = kind.output(&shapes)?;
        let parameters = kind.parameters(&shapes);
        Ok(Layer { name: name.to_owned(), kind, inputs, shape, parameters })
    }

    fn refuse(&mut self, layer: String, what: String) {
        self.wrong.get_or_insert(Error::BadNetwork { network: self.name.clone(), layer, what });
    }

    /// Adds a layer after the current one, with a name that later layers derive theirs from.
    fn named(&mut self, name: impl Into<String>, kind: LayerKind) -> &mut Builder {
        self.stem = name.into();
        self.layer(self.stem.clone(), kind, &[self.here])
    }

    /// Adds a layer after the current one, named after the last named layer.
    fn after(&mut self, suffix: &str, kind: LayerKind) -> &mut Builder {
        self.layer(format!("{}.{suffix}", self.stem), kind, &[self.here])
    }

    /// The axes of a window over the current spatial dimensions; empty before the first layer, which the shape rule
    /// rejects.
    fn axes(&self, along: impl Fn(usize) -> Axis) -> Vec<Axis> {
        self.shape().map(|shape| shape.extents().iter().map(|&extent| along(extent)).collect()).unwrap_or_default()
    }

    /// Adds the input layer, named `input`.
    pub fn input(&mut self, shape: Shape) -> &mut Builder {
        self.stem = "input".to_owned();
        self.layer("input", LayerKind::Input { shape, batch: None }, &[])
    }

    /// Adds a convolution.
    pub fn conv(&mut self, name: impl Into<String>, filters: Filters) -> &mut Builder {
        let Filters { count, extent, pad, stride, groups, bias } = filters;
        let channels = self.shape().map_or(0, |shape| shape.channels());
        let axes = self.axes(|input| Axis::new(input, extent).pad(pad).stride(stride));
        match Convolution::new(channels, count, groups, &axes) {
            Ok(convolution) => self.named(name, LayerKind::Convolution { convolution, bias }),
            Err(error) => {
                self.refuse(name.into(), error.to_string());
                self
            }
        }
    }

    /// Adds max pooling.
    pub fn max_pool(&mut self, name: impl Into<String>, window: Window) -> &mut Builder {
        self.pool(name, PoolingMethod::Maximum, window)
    }

    /// Adds average pooling.
    pub fn average_pool(&mut self, name: impl Into<String>, window: Window) -> &mut Builder {
        self.pool(name, PoolingMethod::Average, window)
    }

    /// Adds global average pooling: the mean of each channel.
    pub fn global_average_pool(&mut self, name: impl Into<String>) -> &mut Builder {
        let axes = self.axes(|input| Axis::new(input, input));
        self.pool_axes(name, PoolingMethod::Average, &axes, false)
    }

    fn pool(&mut self, name: impl Into<String>, method: PoolingMethod, window: Window) -> &mut Builder {
        let Window { extent, stride, pad, ceil } = window;
        let axes = self.axes(|input| Axis::new(input, extent).pad(pad).stride(stride));
        self.pool_axes(name, method, &axes, ceil)
    }

    fn pool_axes(&mut self, name: impl Into<String>, method: PoolingMethod, axes: &[Axis], ceil: bool) -> &mut Builder {
        let mut all = [Axis::UNIT; 3];
        all[3 - axes.len()..].copy_from_slice(axes);
        self.named(name, LayerKind::Pooling(Pooling { method, axes: all, ceil }))
    }

    /// Adds a fully connected layer with bias.
    pub fn fully_connected(&mut self, name: impl Into<String>, outputs: usize) -> &mut Builder {
        self.named(name, LayerKind::FullyConnected { outputs, bias: true })
    }

    /// Adds a ReLU.
    pub fn relu(&mut self) -> &mut Builder {
        self.after("relu", LayerKind::Relu)
    }

    /// Adds local response normalization over 5 channels with alpha 1e-4, beta 0.75, k 1, as in Caffe's models.
    pub fn lrn(&mut self) -> &mut Builder {
        self.after("lrn", LayerKind::Lrn { size: 5, alpha: 1e-4, beta: 0.75, k: 1.0 })
    }

    /// Adds batch normalization with epsilon 1e-5.
    pub fn batch_norm(&mut self) -> &mut Builder {
        self.after("bn", LayerKind::BatchNorm { epsilon: 1e-5 })
    }

    /// Adds dropout.
    pub fn dropout(&mut self, rate: f32) -> &mut Builder {
        self.after("dropout", LayerKind::Dropout { rate })
    }

    /// Flattens each sample to a vector.
    pub fn flatten(&mut self) -> &mut Builder {
        self.after("flatten", LayerKind::Flatten)
    }

    /// Concatenates the branches along channels.
    pub fn concat(&mut self, name: impl Into<String>, branches: &[Option<LayerId>]) -> &mut Builder {
        self.stem = name.into();
        self.layer(self.stem.clone(), LayerKind::Concat, branches)
    }

    /// Adds the sum of the branches.
    pub fn add(&mut self, name: impl Into<String>, branches: &[Option<LayerId>]) -> &mut Builder {
        self.stem = name.into();
        self.layer(self.stem.clone(), LayerKind::Add, branches)
    }

    /// Adds the loss, named `loss`.
    pub fn softmax_loss(&mut self) -> &mut Builder {
        self.named("loss", LayerKind::SoftmaxLoss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Builder {
        let mut net = Builder::new("net");
        net.input(Shape::image(4, 6, 6));
        net
    }

    #[test]
    fn errors_name_the_invalid_layer() {
        type Fault = fn(&mut Builder) -> &mut Builder;
        let faults: [(&str, &str, Fault); 17] = [
            ("conv", "covers 9, more than the padded input of 6", |net| net.conv("conv", Filters::new(1, 9))),
            ("conv", "groups3 must divide", |net| net.conv("conv", Filters::new(3, 1).groups(3))),
            ("flat", "0 spatial dimensions", |net| net.flatten().conv("flat", Filters::new(1, 1))),
            ("pool", "covers 7", |net| net.max_pool("pool", Window::new(7, 1))),
            ("pool", "entirely in the padding", |net| net.max_pool("pool", Window::new(2, 1).pad(2))),
            ("pool", "at least 1", |net| net.average_pool("pool", Window::new(2, 0))),
            ("input", "already exists", |net| net.input(Shape::flat(1))),
            ("input.relu", "already exists", |net| net.relu().relu()),
            ("", "a name must not", |net| net.fully_connected("", 1)),
            ("a b", "a name must not", |net| net.fully_connected("a b", 1)),
            ("fc", "does not have 1 to 2^60", |net| net.fully_connected("fc", 0)),
            ("fc", "2^60 weights", |net| net.fully_connected("fc", usize::MAX)),
            ("lrn", "size is 0", |net| {
                net.layer("lrn", LayerKind::Lrn { size: 0, alpha: 1.0, beta: 1.0, k: 1.0 }, &[net.here()])
            }),
            ("cat", "two or more inputs, not 1", |net| net.concat("cat", &[net.here()])),
            ("cat", "cannot be concatenated", |net| {
                let image = net.here();
                let vector = net.flatten().here();
                net.concat("cat", &[image, vector])
            }),
            ("sum", "cannot be added", |net| {
                let image = net.here();
                let wider = net.conv("conv", Filters::new(5, 1)).here();
                net.add("sum", &[image, wider])
            }),
            ("sum", "does not exist", |net| net.add("sum", &[Some(LayerId(7)), None])),
        ];
        for (name, part, fault) in faults {
            let mut net = image();
            // Later errors do not hide the first one.
            fault(&mut net).fully_connected("later", 0).conv("later", Filters::new(0, 0));
            let Err(Error::BadNetwork { network, layer, what }) = net.finish() else {
                panic!("{name}, {part}: accepted")
            };
            assert_eq!((network.as_str(), layer.as_str()), ("net", name), "{what}");
            assert!(what.contains(part), "{name}: {what}");
        }
    }

    #[test]
    fn a_layer_needs_an_input() {
        type Add = fn(&mut Builder) -> &mut Builder;
        let layers: [Add; 3] =
            [Builder::relu, |net| net.conv("conv", Filters::new(1, 1)), |net| net.global_average_pool("pool")];
        for add in layers {
            let mut net = Builder::new("net");
            add(&mut net);
            assert!(matches!(net.finish(), Err(Error::BadNetwork { .. })));
        }
    }

    #[test]
    fn convolution_and_input_must_agree() {
        let convolution = Convolution::new(4, 1, 1, &[Axis::new(6, 1), Axis::new(5, 1)]).unwrap();
        let mut net = image();
        net.layer("conv", LayerKind::Convolution { convolution, bias: true }, &[net.here()]);
        let Err(Error::BadNetwork { what, .. }) = net.finish() else { panic!("accepted") };
        assert_eq!(what, "the convolution expects 4x6x5, but its input is 4x6x6");
    }

    /// Counts windows one by one: every start at which a whole window fits, and with `ceil` one more partial window if
    /// it begins in the input or the padding before it.
    #[test]
    fn pooling_output_matches_counted_windows() {
        for (extent, window, stride) in (1..9).flat_map(|e| (1..5).flat_map(move |w| (1..5).map(move |s| (e, w, s)))) {
            for pad in 0..window {
                let padded = extent + 2 * pad;
                if window > padded {
                    continue;
                }
                let whole = (0..padded).step_by(stride).filter(|start| start + window <= padded).count();
                let last_end = (whole - 1) * stride + window;
                let cut = last_end < padded && whole * stride < pad + extent;
                for (ceil, expected) in [(false, whole), (true, whole + usize::from(cut))] {
                    let mut net = Builder::new("net");
                    net.input(Shape::volume(2, extent, extent, extent));
                    net.max_pool("pool", Window { extent: window, stride, pad, ceil });
                    let shape = net.shape().map(|shape| shape.to_string());
                    let expected = format!("2x{expected}x{expected}x{expected}");
                    assert_eq!(shape, Some(expected), "{extent} {window}/{stride} pad {pad} ceil {ceil}");
                }
            }
        }
    }
}
