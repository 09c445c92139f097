//! VGG: groups of 3x3 convolutions, each group at half the resolution of the one before.

use tightfit_units::Error;

use crate::{Builder, Filters, Network, Shape, Window};

/// VGG with this many convolutions in each of the five groups. Source: Simonyan and Zisserman 2015, table 1.
pub(super) fn vgg(name: &str, convolutions: [usize; 5]) -> Result<Network, Error> {
    let mut net = Builder::new(name);
    net.input(Shape::image(3, 224, 224));
    for (group, (count, filters)) in (1..).zip(convolutions.into_iter().zip([64, 128, 256, 512, 512])) {
        for i in 1..=count {
            net.conv(format!("conv{group}_{i}"), Filters::new(filters, 3).pad(1)).relu();
        }
        net.max_pool(format!("pool{group}"), Window::new(2, 2));
    }
    net.flatten();
    net.fully_connected("fc6", 4096).relu().dropout(0.5);
    net.fully_connected("fc7", 4096).relu().dropout(0.5);
    net.fully_connected("fc8", 1000).softmax_loss();
    net.finish()
}

/// VGG-19 with `more` convolutions added to every group, with the group's filter count.
///
/// Source: Rhu et al. 2016 (vDNN), which adds 20 per group for each hundred; the paper calls VGG-19 "VGG-16", after its
/// 16 convolutions.
pub(super) fn vgg19_deepened(name: &str, more: usize) -> Result<Network, Error> {
    vgg(name, [2, 2, 4, 4, 4].map(|count| count + more))
}
