//! The order of elements on a device with channels-last tensors, while files and the CPU have channels first.
//!
//! ```text
//! a sample of 3 channels and 2 places      c0p0 c0p1 c1p0 c1p1 c2p0 c2p1      in files
//!                                          c0p0 c1p0 c2p0 c0p1 c1p1 c2p1      with the channels last
//! ```
//!
//! A flattened map has the order of the map. A fully connected layer takes it with weights in that order. Other layers of vectors cannot, unless they
//! treat every element alike.

use tightfit_conv::Layout;
use tightfit_network::{LayerId, LayerKind, Network, Shape};
use tightfit_units::Error;

/// The order of the elements of a sample, of a filter, or of a row of a matrix on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Elements next to each other on the device: channels.
    pub channels: usize,
    /// The number of repetitions: positions of each channel.
    pub area: usize,
}

impl Order {
    /// `elements` in the order of files.
    pub fn plain(elements: usize) -> Order {
        Order { channels: elements, area: 1 }
    }

    /// Whether the device's order differs from the files'.
    pub fn is_turned(self) -> bool {
        self.channels > 1 && self.area > 1
    }

    /// Reorders numbers from file order to device order.
    ///
    /// ```
    /// use tightfit_plan::Order;
    /// let order = Order { channels: 3, area: 2 };
    /// let on_device = order.to_device(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    /// assert_eq!(on_device, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    /// assert_eq!(order.to_file(&on_device), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    /// ```
    pub fn to_device(self, numbers: &[f32]) -> Vec<f32> {
        let mut turned = Vec::with_capacity(numbers.len());
        for row in numbers.chunks(self.channels * self.area) {
            for place in 0..self.area {
                turned.extend(row.iter().skip(place).step_by(self.area));
            }
        }
        turned
    }

    /// Reorders numbers from device order to file order.
    pub fn to_file(self, numbers: &[f32]) -> Vec<f32> {
        Order { channels: self.area, area: self.channels }.to_device(numbers)
    }
}

/// The order of every layer's output in a layout.
///
/// # Errors
/// [`Error::BadNetwork`] naming a layer that cannot take its input in that order.
pub(crate) fn orders(network: &Network, layout: Layout) -> Result<Vec<Order>, Error> {
    let mut orders: Vec<Order> = Vec::with_capacity(network.layers().len());
    for (id, layer) in network.iter() {
        let inputs: Vec<Order> = layer.inputs.iter().map(|input| orders[input.index()]).collect();
        let order = match layout {
            Layout::Nchw => Some(Order::plain(layer.shape.len())),
            Layout::Nhwc => channels_last(&layer.kind, layer.shape, &network.input_shapes(id), &inputs),
        };
        let refused = || Error::BadNetwork {
            network: network.name().to_owned(),
            layer: layer.name.clone(),
            what: format!("a {} layer cannot take its input with the channels last; use nchw", layer.kind.name()),
        };
        orders.push(order.ok_or_else(refused)?);
    }
    Ok(orders)
}

/// The order of a layer's output with the channels last; `None` if the layer cannot compute in this layout.
fn channels_last(kind: &LayerKind, output: Shape, shapes: &[Shape], inputs: &[Order]) -> Option<Order> {
    let of = |shape: Shape| Order { channels: shape.channels(), area: shape.extents().iter().product() };
    // Vectors have the order of the map that they were flattened from.
    let is_mixed = shapes.iter().zip(inputs).any(|(shape, order)| of(*shape) != *order && order.is_turned());
    match kind {
        LayerKind::Flatten => inputs.first().copied(),
        LayerKind::Reshape { shape } => {
            let plain = !inputs.iter().any(|order| order.is_turned()) && !of(*shape).is_turned();
            plain.then(|| of(*shape))
        }
        LayerKind::Relu | LayerKind::Dropout { .. } => inputs.first().copied(),
        LayerKind::Add if is_mixed => inputs.first().copied().filter(|first| inputs.iter().all(|one| one == first)),
        LayerKind::FullyConnected { .. } => Some(of(output)),
        LayerKind::SoftmaxLoss => (!inputs.iter().any(|order| order.is_turned())).then(|| of(output)),
        // cuDNN normalizes across the channels of volumes only in channels-first layout.
        LayerKind::Lrn { .. } if output.extents().len() > 2 => None,
        LayerKind::Other(_) => None,
        LayerKind::Input { .. }
        | LayerKind::Convolution { .. }
        | LayerKind::Pooling(_)
        | LayerKind::Lrn { .. }
        | LayerKind::BatchNorm { .. }
        | LayerKind::Concat
        | LayerKind::Add => (!is_mixed).then(|| of(output)),
    }
}

/// The order of a layer's weights: of each filter, or of each row of its matrix.
pub(crate) fn of_weights(network: &Network, layout: Layout, orders: &[Order], layer: LayerId) -> Option<Order> {
    let layer = network.layer(layer);
    let order = match (&layer.kind, layout) {
        (LayerKind::Convolution { convolution, .. }, Layout::Nhwc) => Order {
            channels: convolution.channels() / convolution.groups(),
            area: convolution.filter().iter().product(),
        },
        (LayerKind::FullyConnected { .. }, _) => orders[layer.inputs.first()?.index()],
        _ => return None,
    };
    Some(order).filter(|order| order.is_turned())
}
