//! AlexNet: with two groups as first published, and with one column.

use tightfit_units::Error;

use crate::{Builder, Filters, Network, Shape, Window};

/// Two groups, on 227x227 crops as in Caffe's `bvlc_alexnet`. Source: Krizhevsky et al. 2012, 3.5.
pub(super) fn two_groups() -> Result<Network, Error> {
    let pool = Window::new(3, 2).ceil();
    let mut net = Builder::new("alexnet");
    net.input(Shape::image(3, 227, 227));
    net.conv("conv1", Filters::new(96, 11).stride(4)).relu().lrn().max_pool("pool1", pool);
    net.conv("conv2", Filters::new(256, 5).pad(2).groups(2)).relu().lrn().max_pool("pool2", pool);
    net.conv("conv3", Filters::new(384, 3).pad(1)).relu();
    net.conv("conv4", Filters::new(384, 3).pad(1).groups(2)).relu();
    net.conv("conv5", Filters::new(256, 3).pad(1).groups(2)).relu().max_pool("pool5", pool);
    net.flatten();
    net.fully_connected("fc6", 4096).relu().dropout(0.5);
    net.fully_connected("fc7", 4096).relu().dropout(0.5);
    net.fully_connected("fc8", 1000).softmax_loss();
    net.finish()
}

/// One column, on 224x224 crops, dropout ahead of the fully connected layers. Source: Krizhevsky 2014, "One weird trick".
pub(super) fn one_column() -> Result<Network, Error> {
    let pool = Window::new(3, 2);
    let mut net = Builder::new("alexnet-1col");
    net.input(Shape::image(3, 224, 224));
    net.conv("conv1", Filters::new(64, 11).stride(4).pad(2)).relu().max_pool("pool1", pool);
    net.conv("conv2", Filters::new(192, 5).pad(2)).relu().max_pool("pool2", pool);
    net.conv("conv3", Filters::new(384, 3).pad(1)).relu();
    net.conv("conv4", Filters::new(256, 3).pad(1)).relu();
    net.conv("conv5", Filters::new(256, 3).pad(1)).relu().max_pool("pool5", pool);
    net.flatten().dropout(0.5);
    net.fully_connected("fc6", 4096).relu().dropout(0.5);
    net.fully_connected("fc7", 4096).relu();
    net.fully_connected("fc8", 1000).softmax_loss();
    net.finish()
}
