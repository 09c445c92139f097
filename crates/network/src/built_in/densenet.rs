//! DenseNet: each layer reads all earlier layers of its block.
//!
//! ```text
//! input --+-- BN, ReLU, 3x3 --.
//!         |                   concat --+-- BN, ReLU, 3x3 --.
//!         `-------------------'        |                   concat -- ..
//!                                      `-------------------'
//! ```
//!
//! Networks for ImageNet put a bottleneck (BN, ReLU, 1x1) before each 3x3, and halve the channels between blocks.

use tightfit_units::Error;

use crate::{Builder, Filters, Network, Shape, Window};

/// DenseNet with 40 layers and a growth rate of 40, for 32x32 images of 10 classes.
pub(super) fn densenet40() -> Result<Network, Error> {
    densenet("densenet40", 12, 40)
}

/// DenseNet without bottlenecks and compression: three blocks of `layers`, each layer adding `growth` channels.
///
/// Source: Huang et al. 2017, section 3 and table 2.
fn densenet(name: &str, layers: usize, growth: usize) -> Result<Network, Error> {
    let mut net = Builder::new(name);
    net.input(Shape::image(3, 32, 32));
    net.conv("conv1", Filters::new(16, 3).pad(1).no_bias());
    for block in 1..=3 {
        for layer in 1..=layers {
            let input = net.here();
            net.batch_norm().relu();
            net.conv(format!("b{block}.{layer}.conv"), Filters::new(growth, 3).pad(1).no_bias());
            let grown = net.here();
            net.concat(format!("b{block}.{layer}"), &[input, grown]);
        }
        net.batch_norm().relu();
        if block < 3 {
            let channels = net.shape().map_or(0, |shape| shape.channels());
            net.conv(format!("t{block}.conv"), Filters::new(channels, 1).no_bias());
            net.average_pool(format!("t{block}.pool"), Window::new(2, 2));
        }
    }
    net.global_average_pool("pool").flatten();
    net.fully_connected("fc", 10).softmax_loss();
    net.finish()
}

/// DenseNet-BC for 224x224 images of 1000 classes: four blocks of this many layers, each layer adding 32 channels.
///
/// Source: Huang et al. 2017, table 1.
pub(super) fn bottleneck(name: &str, layers: [usize; 4]) -> Result<Network, Error> {
    const GROWTH: usize = 32;
    let mut net = Builder::new(name);
    net.input(Shape::image(3, 224, 224));
    net.conv("conv1", Filters::new(2 * GROWTH, 7).pad(3).stride(2).no_bias()).batch_norm().relu();
    net.max_pool("pool1", Window::new(3, 2).pad(1));
    for (block, layers) in (1..).zip(layers) {
        for layer in 1..=layers {
            let input = net.here();
            net.batch_norm().relu();
            net.conv(format!("b{block}.{layer}.c1"), Filters::new(4 * GROWTH, 1).no_bias()).batch_norm().relu();
            net.conv(format!("b{block}.{layer}.c2"), Filters::new(GROWTH, 3).pad(1).no_bias());
            let grown = net.here();
            net.concat(format!("b{block}.{layer}"), &[input, grown]);
        }
        net.batch_norm().relu();
        if block < 4 {
            let channels = net.shape().map_or(0, |shape| shape.channels());
            net.conv(format!("t{block}.conv"), Filters::new(channels / 2, 1).no_bias());
            net.average_pool(format!("t{block}.pool"), Window::new(2, 2));
        }
    }
    net.global_average_pool("pool").flatten();
    net.fully_connected("fc", 1000).softmax_loss();
    net.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 2 of the paper: 1.0 M parameters with growth 12 and 40 layers, 7.0 M with growth 12 and 100 layers.
    #[test]
    fn parameter_counts_match_the_paper() {
        for (layers, published) in [(12, "1.0"), (32, "7.0")] {
            let parameters = densenet("densenet", layers, 12).unwrap().parameters();
            assert_eq!(format!("{:.1}", parameters as f64 / 1e6), published, "{layers} layers per block");
        }
    }
}
