//! The shape of a convolution: channels, filters, groups, and one axis for each spatial dimension.

use tightfit_units::Error;

/// One spatial dimension of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Axis {
    /// Extent of the input.
    pub input: usize,
    /// Extent of the filter.
    pub filter: usize,
    /// Zeros before the first input element.
    pub pad_before: usize,
    /// Zeros after the last input element; may differ from `pad_before`.
    pub pad_after: usize,
    /// Steps between neighboring outputs.
    pub stride: usize,
    /// Steps between neighboring filter elements; 1 is a dense filter.
    pub dilation: usize,
}

impl Axis {
    /// An absent dimension: extent 1, filter 1.
    pub const UNIT: Axis = Axis::new(1, 1);

    /// An axis without padding, with stride and dilation 1.
    pub const fn new(input: usize, filter: usize) -> Axis {
        Axis { input, filter, pad_before: 0, pad_after: 0, stride: 1, dilation: 1 }
    }

    /// This axis with the same padding on both sides.
    pub const fn pad(self, pad: usize) -> Axis {
        Axis { pad_before: pad, pad_after: pad, ..self }
    }

    /// This axis with another stride.
    pub const fn stride(self, stride: usize) -> Axis {
        Axis { stride, ..self }
    }

    /// The extent covered by the filter: (filter - 1) · dilation + 1.
    pub fn reach(&self) -> usize {
        (self.filter - 1) * self.dilation + 1
    }

    /// Extent of the output: the number of filter positions in the padded input.
    pub fn output(&self) -> usize {
        (self.input + self.pad_before + self.pad_after - self.reach()) / self.stride + 1
    }

    /// The axis cut to `outputs` outputs, padding included. Unchanged if it has no more, or if they would read padding alone.
    pub fn cut(self, outputs: usize) -> Axis {
        let padding = self.pad_before + self.pad_after;
        let input = (outputs.saturating_sub(1) * self.stride + self.reach()).saturating_sub(padding);
        if self.output() > outputs && input > 0 { Axis { input, ..self } } else { self }
    }

    /// Describes the fault of an axis that cannot be computed.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(&self) -> Result<(), String> {
        let Axis { input, filter, pad_before, pad_after, stride, dilation } = *self;
        if input == 0 || filter == 0 || stride == 0 || dilation == 0 {
            return Err(format!(
                "input {input}, filter {filter}, stride {stride} and dilation {dilation} must be at least 1"
            ));
        }
        if [input, filter, pad_before, pad_after, stride, dilation].iter().any(|&v| v > 1 << 31) {
            return Err("an extent is over 2^31".to_owned());
        }
        let padded = input + pad_before + pad_after;
        if self.reach() > padded {
            return Err(format!("the filter covers {}, more than the padded input of {padded}", self.reach()));
        }
        Ok(())
    }
}

/// The shape of a convolution without its mini-batch; checked when made, so every instance can be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Convolution {
    channels: usize,
    filters: usize,
    groups: usize,
    dimensions: usize,
    // The last `dimensions` of them are in use, the others are `Axis::UNIT`.
    axes: [Axis; 3],
}

impl Convolution {
    /// A convolution of `channels` inputs with `filters` filters in `groups`, over two or three `axes`, outermost first.
    ///
    /// # Errors
    /// [`Error::BadProblem`] if a size is zero, a filter is larger than its padded input, groups do not divide channels
    /// and filters, or a tensor of one sample has more than 2^60 elements.
    pub fn new(channels: usize, filters: usize, groups: usize, axes: &[Axis]) -> Result<Convolution, Error> {
        let bad = |what: String| Err(Error::BadProblem { what });
        let dimensions = axes.len();
        let axes = match *axes {
            [h, w] => [Axis::UNIT, h, w],
            [d, h, w] => [d, h, w],
            _ => return bad(format!("{dimensions} spatial dimensions; only 2 and 3 are supported")),
        };
        if channels == 0 || filters == 0 || groups == 0 {
            return bad(format!("c{channels} k{filters} groups{groups}: each must be at least 1"));
        }
        if !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
            return bad(format!("groups{groups} must divide both c{channels} and k{filters}"));
        }
        for (axis, name) in axes.iter().zip(["d", "h", "w"]) {
            if let Err(what) = axis.check() {
                return bad(format!("dimension {name}: {what}"));
            }
        }
        let convolution = Convolution { channels, filters, groups, dimensions, axes };
        let outputs = convolution.outputs();
        for sizes in [
            [channels, axes[0].input, axes[1].input, axes[2].input],
            [filters, outputs[0], outputs[1], outputs[2]],
            [channels.saturating_mul(filters), axes[0].filter, axes[1].filter, axes[2].filter],
        ] {
            let elements = sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
            if elements.is_none_or(|elements| elements > 1 << 60) {
                return bad("a tensor has more than 2^60 elements".to_owned());
            }
        }
        Ok(convolution)
    }

    /// Input channels c, over all groups.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Filters k (output channels), over all groups.
    pub fn filters(&self) -> usize {
        self.filters
    }

    /// Groups: filters of group g only see the channels of group g.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The spatial dimensions in use, two or three, outermost first.
    pub fn axes(&self) -> &[Axis] {
        &self.axes[3 - self.dimensions..]
    }

    /// The spatial dimensions padded to three with a leading [`Axis::UNIT`], so that one loop handles both.
    pub fn axes3(&self) -> [Axis; 3] {
        self.axes
    }

    /// Extents (d, h, w) of the input, d = 1 for two dimensions.
    pub fn inputs(&self) -> [usize; 3] {
        self.axes.map(|axis| axis.input)
    }

    /// Extents (t, r, s) of a filter, t = 1 for two dimensions.
    pub fn filter(&self) -> [usize; 3] {
        self.axes.map(|axis| axis.filter)
    }

    /// Extents (o, p, q) of the output, o = 1 for two dimensions.
    pub fn outputs(&self) -> [usize; 3] {
        self.axes.map(|axis| axis.output())
    }

    /// Elements of one input sample, c·(d·)h·w.
    pub fn input_len(&self) -> usize {
        self.channels * self.inputs().iter().product::<usize>()
    }

    /// Elements of one output sample, k·(o·)p·q.
    pub fn output_len(&self) -> usize {
        self.filters * self.outputs().iter().product::<usize>()
    }

    /// Elements of all filters, k·c/groups·(t·)r·s.
    pub fn filter_len(&self) -> usize {
        self.filters * (self.channels / self.groups) * self.filter().iter().product::<usize>()
    }
}
