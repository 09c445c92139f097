//! A plan of the backend interface, and its launch on memory checked against the plan's requirements.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use super::{Descriptor, Handle, Region, Slice};
use crate::CudaError;
use crate::call::cudnn as call;
use crate::sys::cudnn::{Attribute, BackendDescriptor, Kind};

/// A plan's requirements on one tensor's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorSpec {
    /// The tensor's id in the operation graph.
    pub id: i64,
    /// Its bytes.
    pub bytes: usize,
    /// The alignment of its address.
    pub alignment: usize,
}

/// An engine's program for an operation graph.
pub(crate) struct Plan {
    descriptor: Held,
    /// On which it runs.
    handle: Arc<Handle>,
    tensors: Vec<TensorSpec>,
    workspace: usize,
}

/// A plan's descriptor, ours or the host program's.
enum Held {
    Ours(Arc<Descriptor>),
    Theirs(ManuallyDrop<Descriptor>),
}

impl Deref for Held {
    type Target = Descriptor;

    fn deref(&self) -> &Descriptor {
        match self {
            Held::Ours(descriptor) => descriptor,
            Held::Theirs(descriptor) => descriptor,
        }
    }
}

impl Plan {
    /// Builds the plan of an engine configuration; engines that compile do so here.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`], also if the engine is not supported after all.
    pub fn new(config: &Arc<Descriptor>, tensors: Vec<TensorSpec>) -> Result<Plan, CudaError> {
        let descriptor = Descriptor::new(config.handle(), Kind::EXECUTION_PLAN)?
            .with_handle(Attribute::EXECUTION_PLAN_HANDLE)?
            .with_objects(Attribute::EXECUTION_PLAN_ENGINE_CONFIG, &[config])?
            .finalize()?;
        let bytes: i64 = descriptor.get_one(Attribute::EXECUTION_PLAN_WORKSPACE_SIZE, "a plan's workspace")?;
        let workspace = usize::try_from(bytes).map_err(|_| CudaError::Answer {
            what: "a plan's workspace",
            count: bytes,
            expected: "0 or more",
        })?;
        Ok(Plan { descriptor: Held::Ours(descriptor), handle: config.handle().clone(), tensors, workspace })
    }

    /// The same plan, to be run on another handle of the device, but not on a handle of the host program, which destroys
    /// it.
    pub fn on(&self, handle: &Arc<Handle>) -> Option<Plan> {
        let Held::Ours(descriptor) = &self.descriptor else { return None };
        let (tensors, workspace) = (self.tensors.clone(), self.workspace);
        Some(Plan { descriptor: Held::Ours(descriptor.clone()), handle: handle.clone(), tensors, workspace })
    }

    /// A finalized plan of the host program, used as it is.
    ///
    /// # Safety
    /// As [`Descriptor::of_program`]; the plan computes with these tensors, inputs first, and needs no more workspace.
    pub unsafe fn of_program(
        handle: &Arc<Handle>,
        raw: BackendDescriptor,
        tensors: Vec<TensorSpec>,
        workspace: usize,
    ) -> Plan {
        // SAFETY: forwarded to the caller.
        let descriptor = unsafe { Descriptor::of_program(handle, raw) };
        Plan { descriptor: Held::Theirs(descriptor), handle: handle.clone(), tensors, workspace }
    }

    /// Its workspace in bytes.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Binds the plan to memory: `inputs` and then the output, in the order of the tensors it was built for.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if a tensor or the workspace is too short; [`CudaError::Misaligned`].
    pub fn bind<'a>(
        &'a self,
        inputs: &[Slice<'a>],
        output: Slice<'a>,
        workspace: Slice<'a>,
    ) -> Result<BoundPlan<'a>, CudaError> {
        Ok(BoundPlan { plan: self, pack: self.pack(inputs, output, workspace)?, memory: PhantomData })
    }

    /// Like [`Plan::bind`], but the result keeps plan and memory alive.
    ///
    /// # Errors
    /// As [`Plan::bind`].
    pub fn fix(self: &Arc<Plan>, inputs: &[Region], output: &Region, workspace: &Region) -> Result<Packed, CudaError> {
        let slices: Vec<Slice<'_>> = inputs.iter().map(Region::slice).collect::<Result<_, _>>()?;
        let pack = self.pack(&slices, output.slice()?, workspace.slice()?)?;
        let memory = inputs.iter().chain([output, workspace]).cloned().collect();
        Ok(Packed { plan: self.clone(), pack, _memory: memory })
    }

    fn pack(
        &self,
        inputs: &[Slice<'_>],
        output: Slice<'_>,
        workspace: Slice<'_>,
    ) -> Result<Arc<Descriptor>, CudaError> {
        let parts: Vec<Slice<'_>> = inputs.iter().copied().chain([output]).collect();
        for (tensor, part) in self.tensors.iter().zip(&parts) {
            fits(tensor.bytes, part)?;
            if !part.raw().0.is_multiple_of(tensor.alignment as u64) {
                return Err(CudaError::Misaligned { address: part.raw().0, alignment: tensor.alignment });
            }
        }
        fits(self.workspace, &workspace)?;
        let ids: Vec<i64> = self.tensors.iter().map(|tensor| tensor.id).collect();
        let addresses: Vec<_> = parts.iter().map(Slice::raw).collect();
        Descriptor::new(&self.handle, Kind::VARIANT_PACK)?
            .with(Attribute::VARIANT_PACK_UNIQUE_IDS, &ids)?
            .with_addresses(Attribute::VARIANT_PACK_DATA_POINTERS, &addresses)?
            .with_addresses(Attribute::VARIANT_PACK_WORKSPACE, &[workspace.raw()])?
            .finalize()
    }

    fn enqueue(&self, pack: &Arc<Descriptor>) -> Result<(), CudaError> {
        let calling = pack.handle().enter()?;
        // SAFETY: plan and pack are alive; `pack` checked the memory against what the plan was made for; whoever keeps
        // the pack keeps the memory, and its buffers wait for queued work before they are freed.
        unsafe { call::backend_execute(calling.cudnn, calling.handle, self.descriptor.raw(), pack.raw()) }
    }
}

fn fits(bytes: usize, part: &Slice<'_>) -> Result<(), CudaError> {
    if bytes <= part.len() { Ok(()) } else { Err(CudaError::OutOfBounds { start: 0, end: bytes, len: part.len() }) }
}

/// A plan with its memory, to be enqueued any number of times.
pub(crate) struct BoundPlan<'a> {
    plan: &'a Plan,
    pack: Arc<Descriptor>,
    memory: PhantomData<Slice<'a>>,
}

impl BoundPlan<'_> {
    /// Enqueues the plan on the handle's stream.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn enqueue(&self) -> Result<(), CudaError> {
        self.plan.enqueue(&self.pack)
    }
}

/// A plan with its memory, all of which it keeps alive.
pub(crate) struct Packed {
    plan: Arc<Plan>,
    pack: Arc<Descriptor>,
    _memory: Vec<Region>,
}

impl Packed {
    /// Enqueues the plan on the handle's stream.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    pub fn enqueue(&self) -> Result<(), CudaError> {
        self.plan.enqueue(&self.pack)
    }
}
