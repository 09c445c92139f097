//! Owners of the libraries' objects. Each keeps alive what it needs and is destroyed once; what goes wrong then is
//! recorded in the context and returned by the next call on it.
//!
//! ```text
//! Context <- Stream, Event, DeviceBuffer, PinnedBuffer, Graph
//!    ^------ Handle (cuDNN on one stream) <- Tensor, Filter, Convolution, Descriptor (backend interface)
//! ```

mod context;
mod copy;
mod descriptor;
mod event;
mod graph;
mod handle;
mod legacy;
mod memory;
mod plan;
mod stream;

pub use context::Context;
pub use copy::{Download, Upload};
pub(crate) use descriptor::Descriptor;
pub use event::Event;
pub use graph::Graph;
pub use handle::Handle;
pub(crate) use legacy::{Convolution, Filter, Legacy, Tensor};
pub use memory::{DeviceBuffer, PinnedBuffer, Slice, SliceMut};
pub(crate) use plan::{Bound, Expected, Plan};
pub use stream::Stream;
