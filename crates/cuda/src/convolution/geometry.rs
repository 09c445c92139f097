//! A problem in the form of cuDNN's descriptors: extents, strides, types, and memory alignment.

use tightfit_conv::problem::Storage;
use tightfit_conv::{Axis, Layout, Problem, Types};

use crate::sys::cudnn::{DataType, MathType, TensorFormat};

/// Extents and strides of the three tensors (n, c, then spatial; k, c of one group, then spatial), and the window.
pub(crate) struct Geometry {
    /// x or dx.
    pub x: Strided,
    /// w or dw.
    pub w: Strided,
    /// y or dy.
    pub y: Strided,
    /// Zeros before, for each spatial dimension.
    pub before: Vec<usize>,
    /// Zeros after.
    pub after: Vec<usize>,
    /// Strides of the window.
    pub strides: Vec<usize>,
    /// Dilations of the filter.
    pub dilations: Vec<usize>,
    /// Order of the dimensions.
    pub format: TensorFormat,
    /// Type of the elements.
    pub data: DataType,
    /// Type in which products are summed.
    pub arithmetic: DataType,
    /// Which instructions are allowed.
    pub math: MathType,
}

/// Where a tensor's elements lie: in separate memory, or as a view of a larger tensor.
pub(crate) struct Strided {
    /// Extents, in cuDNN's order for every layout.
    pub extents: Vec<usize>,
    /// Elements between neighbors of each dimension.
    pub strides: Vec<usize>,
}

impl Strided {
    fn new(outer: usize, channels: usize, spatial: [usize; 3], strides: [usize; 5], dimensions: usize) -> Strided {
        // The last dimensions are used; absent ones have extent 1 and do not affect the others.
        let used = |values: &[usize]| values[3 - dimensions..].to_vec();
        Strided {
            extents: [vec![outer, channels], used(&spatial)].concat(),
            strides: [strides[..2].to_vec(), used(&strides[2..])].concat(),
        }
    }

    /// Number of elements from the first to the last.
    pub fn span(&self) -> usize {
        1 + self.extents.iter().zip(&self.strides).map(|(extent, stride)| (extent - 1) * stride).sum::<usize>()
    }
}

impl Geometry {
    /// The geometry of a problem in its own types.
    pub fn of(problem: &Problem) -> Geometry {
        let convolution = problem.convolution();
        let (layout, axes) = (problem.layout(), convolution.axes());
        let strided = |outer, channels, spatial, strides| Strided::new(outer, channels, spatial, strides, axes.len());
        let (channels, filters) = (convolution.channels(), convolution.filters());
        let each = |field: fn(&Axis) -> usize| axes.iter().map(field).collect::<Vec<_>>();
        let (arithmetic, math) = arithmetic(problem.types());
        Geometry {
            x: strided(problem.batch(), channels, convolution.inputs(), problem.input_strides()),
            w: {
                let channels = channels / convolution.groups();
                strided(filters, channels, convolution.filter(), layout.strides(channels, convolution.filter()))
            },
            y: strided(problem.batch(), filters, convolution.outputs(), problem.output_strides()),
            before: each(|axis| axis.pad_before),
            after: each(|axis| axis.pad_after),
            strides: each(|axis| axis.stride),
            dilations: each(|axis| axis.dilation),
            format: match layout {
                Layout::Nchw => TensorFormat::NCHW,
                Layout::Nhwc => TensorFormat::NHWC,
            },
            data: data_type(problem.types().storage()),
            arithmetic,
            math,
        }
    }
}

/// cuDNN's data type of an element.
pub(crate) fn data_type(storage: Storage) -> DataType {
    match storage {
        Storage::F32 => DataType::FLOAT,
        Storage::F16 => DataType::HALF,
        Storage::Bf16 => DataType::BFLOAT16,
    }
}

/// The type of sums and the allowed instructions: allowing only FMA excludes tensor cores, and so tf32, from f32.
fn arithmetic(types: Types) -> (DataType, MathType) {
    match types {
        Types::F32 => (DataType::FLOAT, MathType::FMA),
        Types::Tf32 | Types::F16F32 | Types::Bf16 => (DataType::FLOAT, MathType::TENSOR_OP),
        Types::F16 => (DataType::HALF, MathType::TENSOR_OP),
    }
}

/// The alignment a plan may assume for the address of `batch` samples of `sample` elements: the largest power of two up
/// to 16 that divides their size.
///
/// Micro-batches run by falling alignment (see [`crate::CudaBackend`]), so each starts at a multiple of its alignment:
///
/// ```text
/// sample of 6 bytes      |-- 4 samples: 24 bytes --|-- 2: 12 --|- 1 -|
/// alignment              8                         4           2
/// address                0                         24          36        each a multiple of its alignment
/// ```
pub(crate) fn alignment(batch: usize, sample: usize, storage: Storage) -> usize {
    let bytes = batch * sample * storage.size();
    1 << bytes.trailing_zeros().min(MOST_ALIGNMENT.trailing_zeros())
}

/// The alignments a plan may assume for x and y of a problem: alignments of its samples, and for a view also of the
/// positions along the axes on which it is shorter than its tensor.
pub(crate) fn alignments(problem: &Problem, in_x: Storage, in_y: Storage) -> [usize; 2] {
    let convolution = problem.convolution();
    let of = |strides: [usize; 5], own: [usize; 3], whole: [usize; 3], storage| {
        let cut = (0..3).filter(|&axis| own[axis] < whole[axis]).map(|axis| alignment(1, strides[2 + axis], storage));
        cut.fold(alignment(problem.batch(), strides[0], storage), usize::min)
    };
    [
        of(problem.input_strides(), convolution.inputs(), problem.input_in(), in_x),
        of(problem.output_strides(), convolution.outputs(), problem.output_in(), in_y),
    ]
}

/// The largest alignment that plans assume.
pub(crate) const MOST_ALIGNMENT: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_and_strides_follow_layout_and_dimensions() {
        let problem: Problem = "forward n2 c6 h5 w4 k8 r3 s2 groups2 nhwc f16".parse().unwrap();
        let geometry = Geometry::of(&problem);
        assert_eq!(geometry.x.extents, [2, 6, 5, 4]);
        assert_eq!(geometry.x.strides, [120, 1, 24, 6]);
        assert_eq!(geometry.w.extents, [8, 3, 3, 2]);
        assert_eq!(geometry.w.strides, [18, 1, 6, 3]);
        assert_eq!(geometry.y.extents, [2, 8, 3, 3]);
        assert_eq!((geometry.data, geometry.arithmetic), (DataType::HALF, DataType::HALF));
        let problem: Problem = "forward n2 c3 d7 h5 w4 k8 t1 r3 s2 pad1:0x0x2 f32".parse().unwrap();
        let geometry = Geometry::of(&problem);
        assert_eq!(geometry.x.extents, [2, 3, 7, 5, 4]);
        assert_eq!(geometry.x.strides, [420, 140, 20, 4, 1]);
        assert_eq!((geometry.before, geometry.after), (vec![1, 0, 2], vec![0, 0, 2]));
        assert_eq!(geometry.w.span(), problem.filter_len());
    }

    #[test]
    fn by_falling_alignment_every_micro_batch_starts_at_a_multiple_of_its_own() {
        for sample in 1..40 {
            for sizes in [[4, 2, 1], [6, 5, 5], [8, 3, 12], [7, 7, 2]] {
                let mut sizes = sizes.map(|size| (alignment(size, sample, Storage::F16), size));
                sizes.sort_by(|a, b| b.cmp(a));
                let mut start = 0;
                for (alignment, size) in sizes {
                    assert_eq!(start % alignment, 0, "sample {sample}, sizes {sizes:?}");
                    start += size * sample * 2;
                }
            }
        }
    }
}
