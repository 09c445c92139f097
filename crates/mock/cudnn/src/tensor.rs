//! A tensor: type, sizes and strides. Convolutions see every tensor as n c d h w, with depth 1 in two dimensions.

use crate::number::DataType;
use crate::status::Status;

/// A tensor as described by the caller; strides count elements.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Type of the elements.
    pub data_type: DataType,
    /// Sizes, n c then spatial; for filters k c then spatial.
    pub dims: Vec<i64>,
    /// Elements between neighbors of each dimension.
    pub strides: Vec<i64>,
    /// Bytes that every address given for it will be a multiple of.
    pub alignment: i64,
    /// Its name in graphs.
    pub uid: i64,
    /// Neither input nor output of the graph.
    pub is_inner: bool,
    /// One number, whose address is the host's.
    pub is_by_value: bool,
}

impl Tensor {
    /// A tensor whose addresses promise nothing beyond the element's own size.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`] for sizes under 1 or other than 3 to 8 dimensions.
    pub fn new(data_type: DataType, dims: &[i64], strides: &[i64]) -> Result<Tensor, Status> {
        if dims.len() != strides.len() || !(1..=8).contains(&dims.len()) || dims.iter().chain(strides).any(|&d| d < 1) {
            return Err(Status::BAD_PARAM);
        }
        let (dims, strides, alignment) = (dims.to_vec(), strides.to_vec(), data_type.bytes() as i64);
        Ok(Tensor { data_type, dims, strides, alignment, uid: 0, is_inner: false, is_by_value: false })
    }

    /// The same tensor in five dimensions: sizes 1 go between the channels and the spatial dimensions.
    ///
    /// # Errors
    /// [`Status::UNSUPPORTED_SHAPE`] with fewer than 3 dimensions or more than 5.
    pub fn expanded(&self) -> Result<Tensor, Status> {
        if !(3..=5).contains(&self.dims.len()) {
            return Err(Status::UNSUPPORTED_SHAPE);
        }
        let mut tensor = self.clone();
        // The stride of a dimension of size 1 is never used; this one is the stride of a packed tensor.
        let stride = self.strides[1];
        while tensor.dims.len() < 5 {
            tensor.dims.insert(2, 1);
            tensor.strides.insert(2, stride);
        }
        Ok(tensor)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.dims.iter().product::<i64>() as usize
    }

    /// Bytes from the first element to the end of the last.
    pub fn extent(&self) -> usize {
        let last: i64 = self.dims.iter().zip(&self.strides).map(|(d, s)| (d - 1) * s).sum();
        (last + 1) as usize * self.data_type.bytes()
    }

    /// Offsets in elements of all elements, by index, the last dimension fastest; other sizes than the tensor's broadcast
    /// its dimensions of size 1.
    pub fn offsets(&self, dims: &[i64]) -> Vec<usize> {
        let mut offsets = vec![0usize];
        for ((&size, &own), &stride) in dims.iter().zip(&self.dims).zip(&self.strides) {
            let stride = if own == 1 { 0 } else { stride as usize };
            offsets = offsets.iter().flat_map(|&o| (0..size as usize).map(move |i| o + i * stride)).collect();
        }
        offsets
    }

    /// Whether the channels are the fastest dimension.
    pub fn is_channels_last(&self) -> bool {
        self.strides.get(1) == Some(&1) && self.dims[2..].iter().any(|&d| d > 1) && self.dims[1] > 1
    }
}
