//! OverFeat's fast model.

use tightfit_units::Error;

use crate::{Builder, Filters, Network, Shape, Window};

/// The fast model on 231x231 crops. Source: Sermanet et al. 2014, table 1.
pub(super) fn fast() -> Result<Network, Error> {
    let pool = Window::new(2, 2);
    let mut net = Builder::new("overfeat");
    net.input(Shape::image(3, 231, 231));
    net.conv("conv1", Filters::new(96, 11).stride(4)).relu().max_pool("pool1", pool);
    net.conv("conv2", Filters::new(256, 5)).relu().max_pool("pool2", pool);
    net.conv("conv3", Filters::new(512, 3).pad(1)).relu();
    net.conv("conv4", Filters::new(1024, 3).pad(1)).relu();
    net.conv("conv5", Filters::new(1024, 3).pad(1)).relu().max_pool("pool5", pool);
    net.flatten();
    net.fully_connected("fc6", 3072).relu().dropout(0.5);
    net.fully_connected("fc7", 4096).relu().dropout(0.5);
    net.fully_connected("fc8", 1000).softmax_loss();
    net.finish()
}
