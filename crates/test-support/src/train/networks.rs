//! Small networks with forks and joins.

use tightfit_network::{Builder, Filters, Network, Shape, Window};
use tightfit_units::Error;

/// Two modules as in GoogLeNet, on images of `extent` squared: a fork with 1x1 and 3x3 filters and pooling, joined.
pub fn fork_and_join(extent: usize, width: usize) -> Result<Network, Error> {
    let mut net = Builder::new("fork-and-join");
    net.input(Shape::image(3, extent, extent));
    net.conv("conv1", Filters::new(2 * width, 3).pad(1)).relu().lrn().max_pool("pool1", Window::new(3, 2).ceil());
    for name in ["a", "b"] {
        let from = net.here();
        let one = net.at(from).conv(format!("{name}.1x1"), Filters::new(width, 1)).relu().here();
        net.at(from).conv(format!("{name}.reduce"), Filters::new(width * 3 / 4, 1)).relu();
        let three = net.conv(format!("{name}.3x3"), Filters::new(width * 3 / 2, 3).pad(1)).relu().here();
        net.at(from).max_pool(format!("{name}.pool"), Window::new(3, 1).pad(1));
        let pooled = net.conv(format!("{name}.project"), Filters::new(width, 1)).relu().here();
        net.concat(format!("{name}.join"), &[one, three, pooled]);
    }
    net.average_pool("pool2", Window::new(2, 2)).dropout(0.3).flatten().fully_connected("fc", 10).softmax_loss();
    net.finish()
}

/// Two dense steps after a local response normalization: each normalizes all maps so far and adds some to them.
pub fn dense(extent: usize, growth: usize) -> Result<Network, Error> {
    let mut net = Builder::new("dense");
    net.input(Shape::image(3, extent, extent));
    net.conv("conv1", Filters::new(2 * growth, 3).pad(1)).relu().lrn().max_pool("pool1", Window::new(2, 2));
    for name in ["d1", "d2"] {
        let from = net.here();
        let grown = net.batch_norm().relu().conv(name, Filters::new(growth, 3).pad(1).no_bias()).here();
        net.concat(format!("{name}.join"), &[from, grown]);
    }
    net.batch_norm().relu().global_average_pool("pool2").flatten().fully_connected("fc", 10).softmax_loss();
    net.finish()
}

/// Two blocks of three normalized branches, whose sum goes on: all of a block's branches add to one gradient.
pub fn sums(extent: usize, width: usize) -> Result<Network, Error> {
    let mut net = Builder::new("sums");
    net.input(Shape::image(3, extent, extent)).conv("conv1", Filters::new(width, 3).pad(1)).relu();
    for name in ["s1", "s2"] {
        let from = net.here();
        let branch = |net: &mut Builder, extent: usize| {
            let filters = Filters::new(width, extent).pad(extent / 2).no_bias();
            let normalized = net.at(from).conv(format!("{name}.{extent}x{extent}"), filters).batch_norm();
            // Sums of some branches alone are negative, where the sum of all is not.
            if extent == 3 { normalized.here() } else { normalized.relu().here() }
        };
        let branches = [1, 3, 5].map(|extent| branch(&mut net, extent));
        net.add(name, &branches).relu();
    }
    net.global_average_pool("pool").flatten().fully_connected("fc", 10).softmax_loss();
    net.finish()
}

/// Three residual blocks, the second of which halves the extents and goes from the first width to the second.
pub fn residual(extent: usize, [first, second]: [usize; 2]) -> Result<Network, Error> {
    let mut net = Builder::new("residual");
    net.input(Shape::image(3, extent, extent));
    net.conv("conv1", Filters::new(first, 3).pad(1).no_bias()).batch_norm().relu();
    for (name, filters, stride) in [("b1", first, 1), ("b2", second, 2), ("b3", second, 1)] {
        let from = net.here();
        net.conv(format!("{name}.c1"), Filters::new(filters, 3).pad(1).stride(stride).no_bias()).batch_norm().relu();
        let long = net.conv(format!("{name}.c2"), Filters::new(filters, 3).pad(1).no_bias()).batch_norm().here();
        let short = if stride == 1 {
            from
        } else {
            net.at(from).conv(format!("{name}.short"), Filters::new(filters, 1).stride(stride).no_bias()).batch_norm();
            net.here()
        };
        net.add(name, &[long, short]).relu();
    }
    net.global_average_pool("pool").flatten().fully_connected("fc", 10).softmax_loss();
    net.finish()
}
