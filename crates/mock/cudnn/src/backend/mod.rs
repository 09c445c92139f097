//! The backend API: descriptors with attributes, finalized into operations, graphs, engines and plans.
//!
//! ```text
//! tensors, convolution -> operation -> graph -> heuristics -> configurations -> plan -> execute with a variant pack
//!                                        \----> engine by index ---/
//! ```
//! `attribute` the attributes · `descriptors` all of them · `build` finalizing · `built` and `graph` its results · `engine` engines, knobs, heuristics · `answer` queries of finished
//! objects · `execute` running a plan

mod answer;
mod attribute;
mod build;
mod built;
mod descriptors;
mod engine;
mod execute;
mod graph;

use std::ffi::{c_int, c_void};

use attribute::{Attributes, Kind};
use built::Built;
use descriptors::{DESCRIPTORS, Descriptor, built};
pub use descriptors::{count, reset};

use tightfit_mock_support::lock;

use crate::control::{call, release};
use crate::status::Status;
use crate::{Handle, Out, handle, room};

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendCreateDescriptor(kind: c_int, descriptor: Out<Handle>) -> c_int {
    call("cudnnBackendCreateDescriptor", || {
        let descriptor = room(descriptor)?;
        let new = Descriptor { kind: Kind::from_raw(kind)?, attributes: Attributes::default(), built: None };
        descriptor.write(lock(&DESCRIPTORS).insert(new));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendDestroyDescriptor(descriptor: Handle) -> c_int {
    release("cudnnBackendDestroyDescriptor", || Ok(lock(&DESCRIPTORS).remove(descriptor).map(drop)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendSetAttribute(
    descriptor: Handle,
    name: c_int,
    of_type: c_int,
    count: i64,
    array: *const c_void,
) -> c_int {
    call("cudnnBackendSetAttribute", || {
        let kind = {
            let descriptors = lock(&DESCRIPTORS);
            let descriptor = descriptors.get(descriptor)?;
            if descriptor.built.is_some() {
                return Err(Status::BAD_PARAM);
            }
            descriptor.kind
        };
        attribute::check(kind, name, of_type, count)?;
        // SAFETY: the caller gives `count` elements of the type it names, as `read` expects.
        let value = unsafe { attribute::read(of_type, count, array, built) }?;
        lock(&DESCRIPTORS).get_mut(descriptor)?.attributes.set(name, value);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendFinalize(descriptor: Handle) -> c_int {
    call("cudnnBackendFinalize", || {
        let (kind, attributes) = {
            let descriptors = lock(&DESCRIPTORS);
            let descriptor = descriptors.get(descriptor)?;
            if descriptor.built.is_some() {
                return Err(Status::BAD_PARAM);
            }
            (descriptor.kind, descriptor.attributes.clone())
        };
        let built = build::build(kind, &attributes)?;
        lock(&DESCRIPTORS).get_mut(descriptor)?.built = Some(built);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendGetAttribute(
    descriptor: Handle,
    name: c_int,
    of_type: c_int,
    requested: i64,
    count: Out<i64>,
    array: *mut c_void,
) -> c_int {
    call("cudnnBackendGetAttribute", || {
        let answer = answer::answer(&built(descriptor)?, name)?;
        // SAFETY: the caller gives room for `requested` elements of the type it names, as `write` expects.
        let available = unsafe { answer.write(of_type, requested, array) }?;
        if let Some(count) = count {
            count.write(available);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendExecute(handle: Handle, plan: Handle, variant_pack: Handle) -> c_int {
    call("cudnnBackendExecute", || match (built(plan)?, built(variant_pack)?) {
        (Built::Plan(config), Built::VariantPack(pack)) => execute::execute(handle::stream_of(handle)?, &config, &pack),
        _ => Err(Status::DESCRIPTOR_TYPE),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetExecutionPlanWorkspaceSize(
    _handle: Handle,
    plan: Handle,
    _variant_pack: Handle,
    bytes: Out<usize>,
) -> c_int {
    call("cudnnGetExecutionPlanWorkspaceSize", || match built(plan)? {
        Built::Plan(config) => {
            room(bytes)?.write(usize::try_from(config.workspace()).unwrap_or(usize::MAX));
            Ok(())
        }
        _ => Err(Status::DESCRIPTOR_TYPE),
    })
}

/// Adds the plan's work to a graph.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendPopulateCudaGraph(
    _handle: Handle,
    plan: Handle,
    variant_pack: Handle,
    graph: Handle,
) -> c_int {
    call("cudnnBackendPopulateCudaGraph", || match (built(plan)?, built(variant_pack)?) {
        (Built::Plan(config), Built::VariantPack(pack)) => execute::execute(graph, &config, &pack),
        _ => Err(Status::DESCRIPTOR_TYPE),
    })
}

/// Accepts a plan and its addresses; the graph stays as it is.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnBackendUpdateCudaGraph(
    _handle: Handle,
    plan: Handle,
    variant_pack: Handle,
    _graph: *mut c_void,
) -> c_int {
    call("cudnnBackendUpdateCudaGraph", || match (built(plan)?, built(variant_pack)?) {
        (Built::Plan(_), Built::VariantPack(_)) => Ok(()),
        _ => Err(Status::DESCRIPTOR_TYPE),
    })
}
