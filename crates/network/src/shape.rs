//! The shape of one sample of a feature map.

use std::fmt;

use tightfit_conv::Convolution;

/// Channels and spatial extents of one sample; the mini-batch is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    channels: usize,
    dimensions: usize,
    // Only the last `dimensions` are used; the others are 1.
    extents: [usize; 3],
}

impl Shape {
    /// A vector of `features`, as from a fully connected layer.
    pub const fn flat(features: usize) -> Shape {
        Shape { channels: features, dimensions: 0, extents: [1; 3] }
    }

    /// Two spatial dimensions: c, h, w.
    pub const fn image(channels: usize, height: usize, width: usize) -> Shape {
        Shape { channels, dimensions: 2, extents: [1, height, width] }
    }

    /// Three spatial dimensions: c, d, h, w.
    pub const fn volume(channels: usize, depth: usize, height: usize, width: usize) -> Shape {
        Shape { channels, dimensions: 3, extents: [depth, height, width] }
    }

    /// The input shape of a convolution.
    pub fn input_of(convolution: &Convolution) -> Shape {
        Shape { channels: convolution.channels(), dimensions: convolution.axes().len(), extents: convolution.inputs() }
    }

    /// The output shape of a convolution.
    pub fn output_of(convolution: &Convolution) -> Shape {
        Shape { channels: convolution.filters(), dimensions: convolution.axes().len(), extents: convolution.outputs() }
    }

    /// These extents with another number of channels.
    pub const fn with_channels(self, channels: usize) -> Shape {
        Shape { channels, ..self }
    }

    /// These channels with other extents (d, h, w); d is 1 for two dimensions.
    pub(super) const fn with_extents(self, extents: [usize; 3]) -> Shape {
        Shape { extents, ..self }
    }

    /// Channels, or features of a vector.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The spatial extents, outermost first: none, two or three.
    pub fn extents(&self) -> &[usize] {
        &self.extents[3 - self.dimensions..]
    }

    /// The spatial extents padded to three with 1s.
    pub fn extents3(&self) -> [usize; 3] {
        self.extents
    }

    /// Elements of one sample; saturates on overflow, which no shape in a network reaches.
    pub fn len(&self) -> usize {
        self.extents.iter().fold(self.channels, |product, &extent| product.saturating_mul(extent))
    }

    /// Whether the shape has no elements; never true in a network.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Shape {
    /// Writes the sizes, outermost first: `64x56x56`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.channels.to_string();
        for extent in self.extents() {
            text += &format!("x{extent}");
        }
        f.pad(&text)
    }
}
