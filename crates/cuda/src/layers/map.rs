//! A feature map or its gradient on the device: its region, shape and layout.

use tightfit_conv::Layout;
use tightfit_conv::problem::Storage;
use tightfit_network::Shape;

use super::Libraries;
use crate::CudaError;
use crate::call::layers::Part;
use crate::convolution::data_type;
use crate::safe::{Region, Tensor};

/// Samples one after another without gaps.
#[derive(Clone)]
pub struct Map {
    /// Its bytes.
    pub region: Region,
    /// Number of samples.
    pub samples: usize,
    /// Shape of one sample.
    pub shape: Shape,
    /// Type of the elements.
    pub storage: Storage,
    /// Whether a sample is in the order c, then spatial, or has its channels last.
    pub layout: Layout,
}

impl Map {
    /// Elements of all samples.
    pub fn len(&self) -> usize {
        self.samples * self.shape.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of one channel of one sample.
    pub(super) fn area(&self) -> usize {
        self.shape.extents3().iter().product()
    }

    /// Channels of all samples.
    pub(super) fn planes(&self) -> usize {
        self.samples * self.shape.channels()
    }

    /// Fails if the region is smaller than the map.
    pub(super) fn check(&self) -> Result<(), CudaError> {
        self.region.must_hold(self.len() * self.storage.size())
    }

    /// Whether its channels are next to each other.
    pub(super) fn is_channels_last(&self) -> bool {
        self.layout == Layout::Nhwc
    }

    /// The map in cuDNN's form: n, c, and at least two spatial dimensions.
    pub(super) fn placed(&self, libraries: &Libraries) -> Result<TensorView, CudaError> {
        self.check()?;
        let used = if self.shape.extents().len() == 3 { 0 } else { 1 };
        let (channels, spatial) = (self.shape.channels(), self.shape.extents3());
        // Where a channel has one place, the layouts are the same, and this form is known to every call.
        let layout = if self.area() > 1 { self.layout } else { Layout::Nchw };
        let strides = layout.strides(channels, spatial);
        let extents = [&[self.samples, channels], &spatial[used..]].concat();
        let strides = [&strides[..2], &strides[2 + used..]].concat();
        let tensor = Tensor::new(&libraries.handle, data_type(self.storage), &extents, &strides)?;
        Ok(TensorView { tensor, region: self.region.clone() })
    }
}

/// Fails unless all maps are as long as they say, with as many elements of the same type: for a layer that does not ask where an element lies.
pub(super) fn must_be_alike(layer: &'static str, maps: &[&Map]) -> Result<(), CudaError> {
    let first = maps[0];
    for map in maps {
        map.check()?;
        if map.len() != first.len() || map.storage != first.storage {
            let what =
                format!("{} elements of {:?} from {} of {:?}", map.len(), map.storage, first.len(), first.storage);
            return Err(CudaError::Unfit { layer, what });
        }
    }
    Ok(())
}

/// A tensor's descriptor with its memory, which is long enough for it.
pub(super) struct TensorView {
    tensor: Tensor,
    region: Region,
}

impl TensorView {
    /// A tensor without gaps at the beginning of a region.
    pub fn packed(
        libraries: &Libraries,
        storage: Storage,
        extents: &[usize],
        region: &Region,
    ) -> Result<TensorView, CudaError> {
        let strides: Vec<usize> = (0..extents.len()).map(|i| extents[i + 1..].iter().product()).collect();
        region.must_hold(extents.iter().product::<usize>() * storage.size())?;
        let tensor = Tensor::new(&libraries.handle, data_type(storage), extents, &strides)?;
        Ok(TensorView { tensor, region: region.clone() })
    }

    /// The form that calls accept.
    pub fn part(&self) -> Part {
        Part { tensor: self.tensor.raw(), at: self.region.raw().as_void() }
    }
}
