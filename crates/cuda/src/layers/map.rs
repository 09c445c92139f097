//! A feature map or its gradient on the device: where it lies, and its shape.

use tightfit_core::network::Shape;
use tightfit_core::problem::Storage;

use super::Libraries;
use crate::CudaError;
use crate::call::layers::Part;
use crate::convolution::data_type;
use crate::safe::{Region, Tensor};

/// Samples one after another, each c, then spatial, without gaps.
#[derive(Clone)]
pub struct Map {
    /// Its bytes.
    pub region: Region,
    /// How many samples.
    pub samples: usize,
    /// One sample.
    pub shape: Shape,
    /// Type of the elements.
    pub storage: Storage,
}

impl Map {
    /// Elements of all samples.
    pub fn len(&self) -> usize {
        self.samples * self.shape.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements of one channel of one sample.
    pub(super) fn area(&self) -> usize {
        self.shape.extents3().iter().product()
    }

    /// Refuses a region of fewer bytes than the map's.
    pub(super) fn check(&self) -> Result<(), CudaError> {
        self.region.must_hold(self.len() * self.storage.size())
    }

    /// The map as cuDNN takes it: n, c, and at least two spatial dimensions.
    pub(super) fn placed(&self, libraries: &Libraries) -> Result<Placed, CudaError> {
        let spatial =
            if self.shape.extents().len() == 3 { &self.shape.extents3()[..] } else { &self.shape.extents3()[1..] };
        let extents = [&[self.samples, self.shape.channels()], spatial].concat();
        Placed::packed(libraries, self.storage, &extents, &self.region)
    }

    /// Some channels of every sample, or all, as a tensor of three extents: n, c and the area; `row` elements lie from one
    /// sample to the next.
    pub(super) fn channels(
        &self,
        libraries: &Libraries,
        first: usize,
        channels: usize,
        row: usize,
    ) -> Result<Placed, CudaError> {
        let (size, area) = (self.storage.size(), self.area());
        let region = self.region.part(first * area * size..self.region.len())?;
        let extents = [self.samples, channels, area, 1];
        Placed::new(libraries, self.storage, &extents, &[row, area, 1, 1], &region)
    }
}

/// A tensor's descriptor with its memory, which is long enough for it.
pub(super) struct Placed {
    tensor: Tensor,
    region: Region,
}

impl Placed {
    /// A tensor of any positive strides at the beginning of a region.
    pub fn new(
        libraries: &Libraries,
        storage: Storage,
        extents: &[usize],
        strides: &[usize],
        region: &Region,
    ) -> Result<Placed, CudaError> {
        let last: usize = extents.iter().zip(strides).map(|(extent, stride)| (extent - 1) * stride).sum();
        region.must_hold((last + 1) * storage.size())?;
        let tensor = Tensor::new(&libraries.handle, data_type(storage), extents, strides)?;
        Ok(Placed { tensor, region: region.clone() })
    }

    /// A tensor without gaps.
    pub fn packed(
        libraries: &Libraries,
        storage: Storage,
        extents: &[usize],
        region: &Region,
    ) -> Result<Placed, CudaError> {
        let strides: Vec<usize> = (0..extents.len()).map(|i| extents[i + 1..].iter().product()).collect();
        Placed::new(libraries, storage, extents, &strides, region)
    }

    /// As calls take it.
    pub fn part(&self) -> Part {
        Part { tensor: self.tensor.raw(), at: self.region.raw().as_void() }
    }
}
