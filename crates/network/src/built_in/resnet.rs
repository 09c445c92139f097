//! ResNet: blocks that add their output to their input.
//!
//! ```text
//! basic       input -+- 3x3 ------- 3x3 -+- add       bottleneck  input -+- 1x1 - 3x3 - 1x1 (x4) -+- add
//!                    `---- (1x1 down) ---'                               `------ (1x1 down) ------'
//! ```
//!
//! The shortcut has a 1x1 convolution where stride or channels change. The stride is on the block's first 3x3, as is
//! common today (v1.5), not on a bottleneck's first 1x1 as published. Source: He et al. 2016, table 1.

use tightfit_units::Error;

use crate::{Builder, Filters, Network, Shape, Window};

/// ResNet with blocks of two 3x3 convolutions, with the given numbers of blocks in the four stages.
pub(super) fn basic(name: &str, blocks: [usize; 4]) -> Result<Network, Error> {
    resnet(name, blocks, 1, |net, block, width, stride| {
        conv_bn(net, format!("{block}.c1"), Filters::new(width, 3).pad(1).stride(stride)).relu();
        conv_bn(net, format!("{block}.c2"), Filters::new(width, 3).pad(1));
    })
}

/// ResNet with bottleneck blocks (1x1, 3x3, 1x1), this many in each of the four stages.
pub(super) fn bottleneck(name: &str, blocks: [usize; 4]) -> Result<Network, Error> {
    resnet(name, blocks, 4, |net, block, width, stride| {
        conv_bn(net, format!("{block}.c1"), Filters::new(width, 1)).relu();
        conv_bn(net, format!("{block}.c2"), Filters::new(width, 3).pad(1).stride(stride)).relu();
        conv_bn(net, format!("{block}.c3"), Filters::new(4 * width, 1));
    })
}

/// The common part of both forms. `body` adds a block's convolutions with a given width (in filters) and stride, up to
/// the sum; the block's output has `expansion` times its width.
fn resnet(
    name: &str,
    blocks: [usize; 4],
    expansion: usize,
    body: impl Fn(&mut Builder, &str, usize, usize),
) -> Result<Network, Error> {
    let mut net = Builder::new(name);
    net.input(Shape::image(3, 224, 224));
    conv_bn(&mut net, "conv1".to_owned(), Filters::new(64, 7).pad(3).stride(2)).relu();
    net.max_pool("pool1", Window::new(3, 2).pad(1));
    for (stage, (count, width)) in (1..).zip(blocks.into_iter().zip([64, 128, 256, 512])) {
        for i in 0..count {
            let block = format!("l{stage}.{i}");
            let stride = if stage > 1 && i == 0 { 2 } else { 1 };
            let input = net.here();
            let reshaped = stride > 1 || net.shape().is_some_and(|shape| shape.channels() != expansion * width);
            body(&mut net, &block, width, stride);
            let residual = net.here();
            net.at(input);
            if reshaped {
                conv_bn(&mut net, format!("{block}.down"), Filters::new(expansion * width, 1).stride(stride));
            }
            let shortcut = net.here();
            net.add(block, &[residual, shortcut]).relu();
        }
    }
    net.global_average_pool("pool5").flatten();
    net.fully_connected("fc", 1000).softmax_loss();
    net.finish()
}

fn conv_bn(net: &mut Builder, name: String, filters: Filters) -> &mut Builder {
    net.conv(name, filters.no_bias()).batch_norm()
}
