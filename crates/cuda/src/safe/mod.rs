//! Owners of the libraries' objects. Each keeps its dependencies alive and is destroyed once; errors of destructors are
//! recorded in the context and returned by the next call on it.
//!
//! ```text
//! Context <- Stream, Event, DeviceBuffer, PinnedBuffer, Graph
//!    ^------ Handle (cuDNN on one stream) <- Tensor, Filter, Convolution, Descriptor (backend interface)
//!               ^--- Blas, Kernels (on the same stream)
//! Region (a part of a DeviceBuffer with several owners), PinnedArena, Staging: memory of work that is prepared once
//! ```

mod blas;
mod context;
mod copy;
mod descriptor;
mod event;
mod graph;
mod handle;
mod kernels;
mod legacy;
mod memory;
mod pinned;
mod plan;
mod region;
mod rows;
mod stream;
mod stream_memory;

pub use blas::Blas;
pub(crate) use blas::matrix;
pub use context::Context;
pub use copy::{Download, Upload};
pub(crate) use descriptor::Descriptor;
pub use event::Event;
pub(crate) use graph::Capture;
pub use graph::Graph;
pub(crate) use handle::Calling;
pub use handle::Handle;
pub use kernels::Kernels;
pub(crate) use kernels::{Argument, Kernel, THREADS, blocks, row_blocks};
pub(crate) use legacy::{Convolution, Filter, Legacy, Tensor};
pub use memory::{DeviceBuffer, PinnedBuffer, Slice, SliceMut};
pub use pinned::{PinnedArena, Staging};
pub(crate) use plan::{BoundPlan, Packed, Plan, TensorSpec};
pub use region::Region;
pub(crate) use rows::{RowCopy, Rows};
pub use stream::Stream;
pub use stream_memory::StreamMemory;
