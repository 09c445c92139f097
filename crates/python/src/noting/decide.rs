//! Decides about the tensors that autograd has saved, once the operation that saves them has returned.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PySet, PyTuple, PyWeakrefReference};

use super::calls::{Call, Ended, Held, Source};
use super::noted::NotedTensors;
use super::slots::{Handle, Slot};
use super::tensors::{detached, identity, storage, unowned, version, view_of};

/// Actions of `plan/pack_schedule.py`.
const LEAF: u32 = 1;
const OFFLOAD: u32 = 2;

/// Decides about the tensors of a pass that wait, which no noted call has saved.
#[pyfunction]
pub fn settle(active: &Bound<'_, PyAny>) -> PyResult<()> {
    settle_after(active, &Ended { call: None, pairs: &[], outputs: &[] })
}

/// Decides about the tensors that wait, which a call has saved.
pub fn settle_after<'py>(active: &Bound<'py, PyAny>, ended: &Ended<'_, 'py>) -> PyResult<()> {
    let py = active.py();
    let pending = pending(active)?;
    if pending.is_empty() {
        return Ok(());
    }
    active.setattr(intern!(py, "pending"), PyList::empty(py))?;
    for waiting in pending.iter() {
        let (handle, tensor) = waiting.extract::<(Option<Bound<'py, Handle>>, Bound<'py, PyAny>)>()?;
        let Some(handle) = handle else { continue };
        settle_one(active, &handle, &tensor, ended)?;
        if handle.borrow().slot.is_none() {
            // Nothing else answers for it, so it stays.
            let stays = unowned(&tensor)?.unbind();
            handle.borrow_mut().tensor = Some(stays);
        }
    }
    Ok(())
}

/// Handles that wait, and their tensors.
pub fn pending<'py>(active: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    Ok(active.getattr(intern!(active.py(), "pending"))?.cast_into::<PyList>()?)
}

fn settle_one<'py>(
    active: &Bound<'py, PyAny>,
    handle: &Bound<'py, Handle>,
    tensor: &Bound<'py, PyAny>,
    ended: &Ended<'_, 'py>,
) -> PyResult<()> {
    let py = active.py();
    let move_unplanned = || active.call_method1(intern!(py, "_move_unplanned"), (handle, tensor)).map(|_| ());
    let schedule = active.getattr(intern!(py, "schedule"))?;
    let Some(answer) = answer(&schedule, handle.borrow().k)? else { return move_unplanned() };
    let kind: u32 = answer.get_item(0)?.extract()?;
    let number: i64 = answer.get_item(3)?.extract()?;
    let expected = answer.get_item(4)?.cast_into::<PyTuple>()?;
    if !tensor.getattr(intern!(py, "shape"))?.eq(expected.get_item(0)?)?
        || !tensor.getattr(intern!(py, "dtype"))?.is(expected.get_item(1)?)
    {
        return move_unplanned();
    }
    if kind == OFFLOAD {
        if handle.borrow().slot.is_none() {
            active.call_method1(intern!(py, "_offloaded"), (handle, tensor))?;
        }
        return Ok(());
    }
    let notes = active.getattr(intern!(py, "noting"))?;
    let notes = if notes.is_none() { None } else { Some(notes.cast_into::<NotedTensors>()?) };
    let slot = active.call_method1(intern!(py, "_slot"), (number,))?.cast_into::<Slot>()?;
    if slot.borrow().has_begun() {
        let is_it = slot.borrow().has(tensor)?;
        return match is_it {
            true => Handle::join(handle, &slot, tensor, notes.as_ref()),
            false if kind != LEAF => move_unplanned(),
            false => Ok(()),
        };
    }
    let value = match &notes {
        Some(notes) => NotedTensors::value_in_storage(notes, tensor, ended)?,
        None => None,
    };
    Slot::begin(&slot, tensor)?;
    let keep = || {
        let kept = detached(tensor)?.unbind();
        let mut of = slot.borrow_mut();
        (of.tensor, of.kept) = (Some(kept), true);
        Ok::<_, PyErr>(())
    };
    if kind == LEAF {
        keep()?;
        if let Some(value) = value {
            let whole = value.borrow().tensor(py);
            let is_held = value.borrow().base.is_some() || value.borrow().slot.is_some();
            if let (Some(whole), false) = (whole, is_held) {
                let base = detached(&whole)?.unbind();
                value.borrow_mut().base = Some(base);
            }
        }
        let saved = active.getattr(intern!(py, "saved"))?;
        return saved.cast::<PyDict>()?.set_item(identity(tensor), slot);
    }
    let whole = value.as_ref().and_then(|value| value.borrow().tensor(py));
    let call = if let (Some(value), Some(whole)) = (value, whole) {
        let is_it = whole.is(tensor);
        let (call, index) = (value.borrow().call.clone_ref(py), value.borrow().index);
        if !is_it {
            // A view of a noted output: the output runs again, and has the same layout then.
            let view = view_of(&whole)?.into_any().unbind();
            slot.borrow_mut().view = Some(view);
        }
        // Calls that read it are ready once its bytes stay, so they must not go after that.
        let is_answered = if is_it { value.borrow().is_held(py)? } else { value.borrow().slot.is_some() };
        if !is_answered {
            let slot = PyWeakrefReference::new(&slot)?.into_any().unbind();
            value.borrow_mut().slot = Some(slot);
        }
        slot.borrow_mut().place = i64::try_from(index)?;
        Some(call)
    } else if let Some(call) = ended.call
        && handle.borrow().version == version(tensor)?
        && call.borrow().makes_saved(py)
        && !is_outside(tensor, ended)?
    {
        let first = notes.as_ref().map_or(0, |notes| notes.borrow().first);
        slot.borrow_mut().place = -1 - (handle.borrow().k - i64::try_from(first)?);
        Some(call.clone().unbind())
    } else {
        None
    };
    let Some(call) = call else {
        for slots in [intern!(py, "slots"), intern!(py, "alive")] {
            active.getattr(slots)?.cast::<PyDict>()?.del_item(number)?;
        }
        return move_unplanned();
    };
    let call = call.into_bound(py);
    call.borrow().add_slot(slot.as_any())?;
    slot.borrow_mut().call = Some(call.clone().unbind());
    let reader = handle.borrow().reader.as_ref().map(|reader| reader.bind(py).clone());
    if let Some(reader) = reader
        && schedule.getattr(intern!(py, "masked"))?.cast::<PyFrozenSet>()?.contains(number)?
    {
        let mask = active.call_method1(intern!(py, "mask"), (tensor, reader))?;
        slot.borrow_mut().mask = (!mask.is_none()).then(|| mask.unbind());
    }
    Handle::join(handle, &slot, tensor, notes.as_ref())?;
    let waits = schedule.getattr(intern!(py, "keep_until_filled"))?.cast::<PySet>()?.contains(number)?
        && !active.getattr(intern!(py, "released"))?.cast::<PySet>()?.contains(number)?;
    if waits || !Call::can_run(&call)? { keep() } else { Ok(()) }
}

/// The plan's answer to a pack, if the plan knows it.
fn answer<'py>(schedule: &Bound<'py, PyAny>, k: i64) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let answers = schedule.getattr(intern!(schedule.py(), "answers"))?.cast_into::<PyList>()?;
    match usize::try_from(k) {
        Ok(k) if k < answers.len() => Ok(Some(answers.get_item(k)?.cast_into()?)),
        _ => Ok(None),
    }
}

/// Whether a saved tensor is one that a call has read from outside: running the call again would need it.
fn is_outside(tensor: &Bound<'_, PyAny>, ended: &Ended<'_, '_>) -> PyResult<bool> {
    let of = storage(tensor)?;
    for (other, source) in ended.pairs {
        if matches!(source, Source::Held(_)) && storage(other)? == of {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Looks for large tensors from outside among what a call has saved: what autograd keeps may be kept. Returns the others.
pub fn find_missing<'py>(
    active: &Bound<'py, PyAny>,
    notes: &Bound<'py, PyAny>,
    missing: Vec<Bound<'py, Held>>,
) -> PyResult<Vec<Py<Held>>> {
    let py = active.py();
    let schedule = active.getattr(intern!(py, "schedule"))?;
    let mut still = Vec::new();
    for held in missing {
        let origin = held.borrow().tensor(py);
        if let Some(origin) = origin {
            let is_leaf = origin.getattr(intern!(py, "is_leaf"))?.is_truthy()?;
            let mut is_found = false;
            for waiting in pending(active)?.iter() {
                let (handle, saved) = waiting.extract::<(Option<Bound<'py, Handle>>, Bound<'py, PyAny>)>()?;
                if saved.is(&origin) || storage(&saved)? == storage(&origin)? {
                    let base = detached(&origin)?.unbind();
                    held.borrow_mut().base = Some(base);
                } else {
                    // A cast of a parameter has another type.
                    let dtype = intern!(py, "dtype");
                    if saved.getattr(dtype)?.is(&origin.getattr(dtype)?) || !is_leaf {
                        continue;
                    }
                    let is_cast = notes.call_method1(intern!(py, "is_cast"), (&saved, &origin))?.extract::<i32>()?;
                    if is_cast == 0 {
                        continue;
                    }
                    held.borrow_mut().hold_cast(&saved, is_cast < 0)?;
                }
                is_found = true;
                if let Some(handle) = handle
                    && goes_out(&schedule, handle.borrow().k)?
                {
                    // Its bytes go to the host with the saved tensor's.
                    let slot = active.call_method1(intern!(py, "_offloaded"), (handle, saved))?.unbind();
                    let mut of = held.borrow_mut();
                    let base = of.base.take();
                    of.slot = Some(slot);
                    drop(of);
                    if let Some(base) = base {
                        let view = view_of(base.bind(py))?.into_any().unbind();
                        held.borrow_mut().view = Some(view);
                    }
                }
                break;
            }
            if !is_found {
                let slot = active.call_method1(intern!(py, "slot_of"), (origin,))?;
                held.borrow_mut().slot = (!slot.is_none()).then(|| slot.unbind());
            }
        }
        if held.borrow().is_missing() {
            still.push(held.unbind());
        }
    }
    Ok(still)
}

/// Whether the saved tensor of a pack goes to the host.
fn goes_out(schedule: &Bound<'_, PyAny>, k: i64) -> PyResult<bool> {
    match answer(schedule, k)? {
        Some(answer) => Ok(answer.get_item(0)?.extract::<u32>()? == OFFLOAD),
        None => Ok(true),
    }
}
