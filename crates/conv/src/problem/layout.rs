//! Order of a tensor's dimensions in memory.

use serde::{Deserialize, Serialize};
use tightfit_units::by_name;

/// The order of the dimensions. Named for two spatial dimensions, but used for three as well (NCDHW, NDHWC).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Channels outside, width innermost; filters k, c, (t,) r, s.
    #[default]
    Nchw,
    /// Channels innermost; filters k, (t,) r, s, c.
    Nhwc,
}

impl Layout {
    /// Both, in the order of the documentation.
    pub const ALL: [Layout; 2] = [Layout::Nchw, Layout::Nhwc];

    /// The name used in text forms, files and options.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Nchw => "nchw",
            Layout::Nhwc => "nhwc",
        }
    }

    /// Strides, in elements, of a packed tensor of `channels` and three spatial `extents` (with a leading 1 for two dimensions): sample, channel, and
    /// the three spatial dimensions. Filters have the same order, with k instead of n.
    ///
    /// ```
    /// use tightfit_conv::Layout;
    /// assert_eq!(Layout::Nchw.strides(3, [1, 4, 5]), [60, 20, 20, 5, 1]);
    /// assert_eq!(Layout::Nhwc.strides(3, [1, 4, 5]), [60, 1, 60, 15, 3]);
    /// ```
    pub fn strides(self, channels: usize, extents: [usize; 3]) -> [usize; 5] {
        let [d, h, w] = extents;
        let sample = channels * d * h * w;
        match self {
            Layout::Nchw => [sample, d * h * w, h * w, w, 1],
            Layout::Nhwc => [sample, 1, h * w * channels, w * channels, channels],
        }
    }
}

by_name!(Layout, "layouts");
