//! GoogLeNet: inception modules of four parallel branches.
//!
//! ```text
//!         ,-- 1x1 ------------.
//!         |-- 1x1 -- 3x3 -----|
//! input --+-- 1x1 -- 5x5 -----+-- concat
//!         `-- pool -- 1x1 ----'
//! ```

use tightfit_units::Error;

use crate::{Builder, Filters, Network, Shape, Window};

/// GoogLeNet on 224x224 crops, without the two auxiliary classifiers, which are used only in training.
///
/// Source: Szegedy et al. 2015, table 1.
pub(super) fn googlenet() -> Result<Network, Error> {
    let halve = Window::new(3, 2).ceil();
    let mut net = Builder::new("googlenet");
    net.input(Shape::image(3, 224, 224));
    net.conv("conv1", Filters::new(64, 7).pad(3).stride(2)).relu().max_pool("pool1", halve).lrn();
    net.conv("conv2.reduce", Filters::new(64, 1)).relu();
    net.conv("conv2", Filters::new(192, 3).pad(1)).relu().lrn().max_pool("pool2", halve);
    //                   1x1  3x3 reduce  3x3  5x5 reduce  5x5  pool proj
    inception(&mut net, "3a", 64, [96, 128], [16, 32], 32);
    inception(&mut net, "3b", 128, [128, 192], [32, 96], 64);
    net.max_pool("pool3", halve);
    inception(&mut net, "4a", 192, [96, 208], [16, 48], 64);
    inception(&mut net, "4b", 160, [112, 224], [24, 64], 64);
    inception(&mut net, "4c", 128, [128, 256], [24, 64], 64);
    inception(&mut net, "4d", 112, [144, 288], [32, 64], 64);
    inception(&mut net, "4e", 256, [160, 320], [32, 128], 128);
    net.max_pool("pool4", halve);
    inception(&mut net, "5a", 256, [160, 320], [32, 128], 128);
    inception(&mut net, "5b", 384, [192, 384], [48, 128], 128);
    net.global_average_pool("pool5").flatten().dropout(0.4);
    net.fully_connected("fc", 1000).softmax_loss();
    net.finish()
}

/// One module: filter counts of the 1x1 branch, of the 3x3 and 5x5 branches (each with its 1x1 reduction), and of the
/// 1x1 projection after pooling.
fn inception(net: &mut Builder, name: &str, one: usize, three: [usize; 2], five: [usize; 2], projected: usize) {
    let input = net.here();
    let one = net.conv(format!("{name}.1x1"), Filters::new(one, 1)).relu().here();

    net.at(input).conv(format!("{name}.3x3.reduce"), Filters::new(three[0], 1)).relu();
    let three = net.conv(format!("{name}.3x3"), Filters::new(three[1], 3).pad(1)).relu().here();

    net.at(input).conv(format!("{name}.5x5.reduce"), Filters::new(five[0], 1)).relu();
    let five = net.conv(format!("{name}.5x5"), Filters::new(five[1], 5).pad(2)).relu().here();

    net.at(input).max_pool(format!("{name}.pool"), Window::new(3, 1).pad(1));
    let pool = net.conv(format!("{name}.pool.project"), Filters::new(projected, 1)).relu().here();

    net.concat(name, &[one, three, five, pool]);
}
