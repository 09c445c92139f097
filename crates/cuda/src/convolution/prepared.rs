//! One call of one algorithm, prepared as far as possible without memory, then bound to memory.

use std::sync::{Arc, OnceLock};

use tightfit_conv::backend::Scale;
use tightfit_conv::problem::Storage;
use tightfit_conv::{Notes, Operation, Problem};

use super::engines::configure;
use super::packing::{Copies, Packing};
use super::{Engine, Graph};
use crate::CudaError;
use crate::safe::{BoundPlan, Descriptor, Handle, Legacy, Packed, Plan, Region, RowCopy, Slice, TensorSpec};
use crate::sys::cudnn::LegacyAlgorithm;

/// The memory of one call, which borrows its buffers, output and workspace to write: data and other as in
/// [`tightfit_conv::backend::Tensors`], then output and workspace.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    /// x; for backward-data dy.
    pub data: Slice<'a>,
    /// w; for backward-filter dy.
    pub other: Slice<'a>,
    /// y, dx or dw.
    pub output: Slice<'a>,
    /// At least [`PreparedAlgorithm::workspace`] bytes.
    pub workspace: Slice<'a>,
}

/// An algorithm prepared for a problem.
pub(crate) struct PreparedAlgorithm {
    form: Form,
    workspace: usize,
    notes: Notes,
}

enum Form {
    Legacy {
        legacy: Legacy,
        algorithm: LegacyAlgorithm,
        bytes: [usize; 3],
    },
    /// The plan is built when first bound; querying the workspace does not need it.
    Engine {
        config: Arc<Descriptor>,
        tensors: Vec<TensorSpec>,
        plan: OnceLock<Arc<Plan>>,
    },
    /// A plan of the host program's.
    Theirs(Plan),
    /// A call on copies without gaps.
    Packed {
        inner: Arc<PreparedAlgorithm>,
        packing: Packing,
        handle: Arc<Handle>,
    },
}

impl PreparedAlgorithm {
    /// A legacy call, whose factors are given when it is bound.
    pub fn legacy(
        legacy: Legacy,
        algorithm: LegacyAlgorithm,
        workspace: usize,
        problem: &Problem,
    ) -> PreparedAlgorithm {
        let bytes = tensor_bytes(problem, problem.types().storage());
        PreparedAlgorithm { form: Form::Legacy { legacy, algorithm, bytes }, workspace, notes: Notes::NONE }
    }

    /// An engine of a graph, whose factors are the graph's.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`], also if the engine does not support the graph.
    pub fn engine(graph: &Graph, engine: &Engine) -> Result<PreparedAlgorithm, CudaError> {
        let (config, workspace, notes) = configure(graph, engine)?;
        let form = Form::Engine { config, tensors: graph.tensors.clone(), plan: OnceLock::new() };
        Ok(PreparedAlgorithm { form, workspace, notes })
    }

    /// A plan of the host program's.
    pub fn theirs(plan: Plan) -> PreparedAlgorithm {
        PreparedAlgorithm { workspace: plan.workspace(), form: Form::Theirs(plan), notes: Notes::NONE }
    }

    /// A call on copies without gaps of a problem's tensors.
    ///
    /// # Errors
    /// The errors of [`Packing::new`].
    pub fn packed(
        handle: &Arc<Handle>,
        inner: Arc<PreparedAlgorithm>,
        problem: &Problem,
        output: Storage,
        scale: Scale,
    ) -> Result<PreparedAlgorithm, CudaError> {
        let packing = Packing::new(problem, output, scale)?;
        let (workspace, notes) = (packing.len() + inner.workspace(), inner.notes());
        Ok(PreparedAlgorithm { form: Form::Packed { inner, packing, handle: handle.clone() }, workspace, notes })
    }

    /// Exact workspace bytes.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// cuDNN's notes on the engine's arithmetic; none for a legacy call.
    pub fn notes(&self) -> Notes {
        self.notes
    }

    /// Builds the plan, if there is one and it was not built before.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`], also if the engine is not supported after all.
    pub fn build(&self) -> Result<(), CudaError> {
        match &self.form {
            Form::Engine { config, tensors, plan } if plan.get().is_none() => {
                let built = Plan::new(config, tensors.clone())?;
                plan.get_or_init(|| Arc::new(built));
                Ok(())
            }
            Form::Packed { inner, .. } => inner.build(),
            _ => Ok(()),
        }
    }

    /// The plan, if there is one and it was built.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        match &self.form {
            Form::Engine { plan, .. } => plan.get(),
            _ => None,
        }
    }

    /// Uses a plan that was built for the same call on another handle of the device, unless there is one already.
    pub fn adopt(&self, built: &Plan) {
        if let Form::Engine { config, plan, .. } = &self.form
            && plan.get().is_none()
            && let Some(built) = built.on(config.handle())
        {
            plan.get_or_init(|| Arc::new(built));
        }
    }

    /// Binds the call to this memory; it can be enqueued any number of times. `scale` is for a legacy call; an engine
    /// has its graph's.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if memory is too short; [`CudaError::Misaligned`]; the errors of
    /// [`PreparedAlgorithm::build`].
    pub fn bind<'a>(&'a self, memory: &Memory<'a>, scale: Scale) -> Result<Launch<'a>, CudaError> {
        let Memory { data, other, output, workspace } = *memory;
        match &self.form {
            Form::Legacy { legacy, algorithm, bytes } => {
                let parts = [data, other, output];
                for (part, end) in parts.iter().chain([&workspace]).zip(bytes.iter().chain([&self.workspace])) {
                    if part.len() < *end {
                        return Err(CudaError::OutOfBounds { start: 0, end: *end, len: part.len() });
                    }
                }
                Ok(Launch::Legacy { legacy, algorithm: *algorithm, parts, workspace, scale })
            }
            Form::Theirs(plan) => Ok(Launch::Plan(plan.bind(&[data, other], output, workspace)?)),
            Form::Packed { inner, packing, handle } => {
                let Copies { before, tensors, workspace, after } = packing.bind([data, other, output], workspace)?;
                let [data, other, output] = tensors;
                let inner = Box::new(inner.bind(&Memory { data, other, output, workspace }, scale)?);
                Ok(Launch::Packed { before, inner, after, handle })
            }
            Form::Engine { plan, .. } => {
                self.build()?;
                match plan.get() {
                    Some(plan) => Ok(Launch::Plan(plan.bind(&[data, other], output, workspace)?)),
                    // `build` has set it or failed.
                    None => Err(CudaError::Answer { what: "a plan", count: 0, expected: "one" }),
                }
            }
        }
    }
}

/// A call on memory that it keeps alive: data, other, output and workspace in that order.
pub(crate) enum Fixed {
    /// Of the legacy interface, or on copies; bound again each time.
    Bound(Arc<PreparedAlgorithm>, [Region; 4], Scale),
    /// Of the backend interface.
    Plan(Packed),
}

impl Fixed {
    /// Binds the call to this memory; it can be enqueued any number of times.
    ///
    /// # Errors
    /// The errors of [`PreparedAlgorithm::bind`].
    pub fn new(call: &Arc<PreparedAlgorithm>, memory: [Region; 4], scale: Scale) -> Result<Fixed, CudaError> {
        let [data, other, output, workspace] = &memory;
        call.build()?;
        match &call.form {
            Form::Engine { plan, .. } => match plan.get() {
                Some(plan) => Ok(Fixed::Plan(plan.fix(&[data.clone(), other.clone()], output, workspace)?)),
                // `build` has set it or failed.
                None => Err(CudaError::Answer { what: "a plan", count: 0, expected: "one" }),
            },
            Form::Theirs(_) => Err(CudaError::Answer { what: "a plan of our own", count: 0, expected: "one" }),
            Form::Legacy { .. } | Form::Packed { .. } => {
                let fixed = Fixed::Bound(call.clone(), memory, scale);
                fixed.bind()?;
                Ok(fixed)
            }
        }
    }

    /// Enqueues the call on the handle's stream.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn enqueue(&self) -> Result<(), CudaError> {
        match self {
            Fixed::Plan(packed) => packed.enqueue(),
            Fixed::Bound(..) => self.bind()?.map_or(Ok(()), |launch| launch.enqueue()),
        }
    }

    fn bind(&self) -> Result<Option<Launch<'_>>, CudaError> {
        let Fixed::Bound(call, [data, other, output, workspace], scale) = self else { return Ok(None) };
        let (data, other, output) = (data.slice()?, other.slice()?, output.slice()?);
        call.bind(&Memory { data, other, output, workspace: workspace.slice()? }, *scale).map(Some)
    }
}

/// Bytes of data, other and output, in that order, from the first element to the last.
pub(crate) fn tensor_bytes(problem: &Problem, output: Storage) -> [usize; 3] {
    let (x, w, y) = (problem.input_span(), problem.filter_len(), problem.output_span());
    let own = problem.types().storage().size();
    match problem.operation() {
        Operation::Forward => [x * own, w * own, y * output.size()],
        Operation::BackwardData => [y * own, w * own, x * output.size()],
        Operation::BackwardFilter => [x * own, y * own, w * output.size()],
    }
}

/// A call with its memory.
pub(crate) enum Launch<'a> {
    /// Of the legacy interface.
    Legacy {
        /// Its descriptors.
        legacy: &'a Legacy,
        /// Its algorithm.
        algorithm: LegacyAlgorithm,
        /// Data, other and output.
        parts: [Slice<'a>; 3],
        /// Its workspace.
        workspace: Slice<'a>,
        /// Its factors.
        scale: Scale,
    },
    /// Of the backend interface.
    Plan(BoundPlan<'a>),
    /// On copies.
    Packed {
        /// To the copies.
        before: Vec<RowCopy<'a>>,
        /// The call.
        inner: Box<Launch<'a>>,
        /// From the copy of the output.
        after: Option<RowCopy<'a>>,
        /// Where all of them go.
        handle: &'a Handle,
    },
}

impl Launch<'_> {
    /// Enqueues the call on the handle's stream.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn enqueue(&self) -> Result<(), CudaError> {
        match self {
            Launch::Legacy { legacy, algorithm, parts: [data, other, output], workspace, scale } => {
                // SAFETY: `PreparedAlgorithm::bind`, the only place that makes one, checked the lengths.
                unsafe { legacy.enqueue(*algorithm, *data, *other, *output, *workspace, *scale) }
            }
            Launch::Plan(bound) => bound.enqueue(),
            Launch::Packed { before, inner, after, handle } => {
                before.iter().try_for_each(|copy| copy.enqueue(handle))?;
                inner.enqueue()?;
                after.iter().try_for_each(|copy| copy.enqueue(handle))
            }
        }
    }
}
