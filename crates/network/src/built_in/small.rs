//! Small networks that a CPU trains in seconds to minutes.

use tightfit_units::Error;

use crate::{Builder, Filters, Network, Shape, Window};

/// LeNet for 28x28 digits with one ReLU, as in Caffe's example; after LeCun et al. 1998.
pub(super) fn lenet() -> Result<Network, Error> {
    let mut net = Builder::new("lenet");
    net.input(Shape::image(1, 28, 28));
    net.conv("conv1", Filters::new(20, 5)).max_pool("pool1", Window::new(2, 2));
    net.conv("conv2", Filters::new(50, 5)).max_pool("pool2", Window::new(2, 2));
    net.flatten();
    net.fully_connected("fc1", 500).relu();
    net.fully_connected("fc2", 10).softmax_loss();
    net.finish()
}

/// Caffe's quick network for CIFAR-10, 32x32 in ten classes.
pub(super) fn cifar10_quick() -> Result<Network, Error> {
    let halve = Window::new(3, 2).ceil();
    let mut net = Builder::new("cifar10-quick");
    net.input(Shape::image(3, 32, 32));
    net.conv("conv1", Filters::new(32, 5).pad(2)).max_pool("pool1", halve).relu();
    net.conv("conv2", Filters::new(32, 5).pad(2)).relu().average_pool("pool2", halve);
    net.conv("conv3", Filters::new(64, 5).pad(2)).relu().average_pool("pool3", halve);
    net.flatten();
    net.fully_connected("fc1", 64);
    net.fully_connected("fc2", 10).softmax_loss();
    net.finish()
}

/// Two convolutions and two fully connected layers for digits of 8x8 pixels.
pub(super) fn digits_net() -> Result<Network, Error> {
    let mut net = Builder::new("digits-net");
    net.input(Shape::image(1, 8, 8));
    net.conv("conv1", Filters::new(16, 3).pad(1)).relu();
    net.conv("conv2", Filters::new(32, 3).pad(1)).relu().max_pool("pool2", Window::new(2, 2));
    net.flatten();
    net.fully_connected("fc1", 64).relu();
    net.fully_connected("fc2", 10).softmax_loss();
    net.finish()
}
