//! Runs noted calls again.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFrozenSet, PyList, PyTuple};

use super::calls::{Argument, Call, IN_PLACE, Source, Value};
use super::slots::Slot;
use super::tensors::{Torch, detached, storage, version};

/// The calls that make one saved tensor again. The results of a call are dropped with their last reader.
#[pyclass(module = "tightfit._native")]
pub struct Rerun {
    /// The pass, and its saved tensor.
    active: Py<PyAny>,
    slot: Py<Slot>,
    /// The numbers of other saved tensors that stay as well.
    stay: Py<PyFrozenSet>,
    /// How often each call's results are still read, and the results.
    uses: HashMap<usize, usize>,
    made: HashMap<usize, Vec<Option<Py<PyAny>>>>,
    /// The tensors that are read of them: the reading call, and the reference to the tensor.
    reads: HashSet<(usize, usize)>,
    /// Whether a call works in place; then, storages of results that something else reads as well: a slot, a view, or what was there
    /// before.
    tracks: bool,
    shared: HashSet<u64>,
}

#[pymethods]
impl Rerun {
    #[new]
    fn new(active: Py<PyAny>, slot: Py<Slot>, stay: Py<PyFrozenSet>) -> Rerun {
        let (uses, made, reads, shared) = (HashMap::new(), HashMap::new(), HashSet::new(), HashSet::new());
        Rerun { active, slot, stay, uses, made, reads, tracks: false, shared }
    }

    /// The calls to run, each behind those whose results it reads.
    fn order(&mut self, last: &Bound<'_, Call>) -> PyResult<Vec<Py<Call>>> {
        let py = last.py();
        let mut found = Vec::new();
        self.uses.insert(last.as_ptr() as usize, 0);
        let mut entered = HashSet::new();
        let mut stack = vec![(last.clone().unbind(), false)];
        while let Some((call, is_done)) = stack.pop() {
            if is_done {
                found.push(call);
                continue;
            }
            let one = call.as_ptr() as usize;
            if !entered.insert(one) {
                continue;
            }
            stack.push((call.clone_ref(py), true));
            let of = call.borrow(py);
            self.tracks = self.tracks || of.flags & IN_PLACE != 0;
            for source in &of.tensors {
                let Source::Value(value) = source else { continue };
                let value = value.borrow(py);
                if is_there(py, &value)? || !self.reads.insert((one, source.identity())) {
                    continue;
                }
                let (maker, _) = value.origin();
                *self.uses.entry(maker).or_default() += 1;
                if !entered.contains(&maker) {
                    stack.push((value.call.clone_ref(py), false));
                }
            }
        }
        Ok(found)
    }

    /// Runs one of them.
    fn one(&mut self, py: Python<'_>, call: &Bound<'_, Call>) -> PyResult<()> {
        let torch = Torch::get(py)?;
        let (of, this) = (call.borrow(), call.as_ptr() as usize);
        let mut wanted = Vec::new();
        for slot in of.slots(py) {
            let slot = slot.cast_into::<Slot>()?;
            if self.fills(&slot)? {
                let place = slot.borrow().place;
                wanted.push((slot, place));
            }
        }
        let keeps = wanted.iter().any(|(_, place)| *place < 0);
        let is_in_place = of.flags & IN_PLACE != 0;
        // The same numbers, in another tensor.
        let moved = is_in_place && of.has_inplace(py) && (keeps || !self.owns(py, &of, this)?);
        let writes = is_in_place && !moved;
        let mut tensors = Vec::with_capacity(of.tensors.len());
        for (source, grad) in of.tensors.iter().zip(&of.grads) {
            let (tensor, is_own) = self.find(py, &of, this, source)?;
            tensors.push(if writes && tensors.is_empty() {
                if is_own { tensor } else { copy_of(&tensor)? }
            } else if *grad && !writes {
                detached(&tensor)?.call_method0(intern!(py, "requires_grad_"))?
            } else {
                detached(&tensor)?
            });
        }
        let args = of.args.iter().map(|argument| given(argument, &tensors, py)).collect::<PyResult<Vec<_>>>()?;
        let args = PyTuple::new(py, args)?;
        let kwargs = PyDict::new(py);
        for (name, argument) in &of.kwargs {
            kwargs.set_item(name, given(argument, &tensors, py)?)?;
        }
        if moved {
            kwargs.set_item(intern!(py, "inplace"), false)?;
        }
        let saved = Py::new(py, Saved { keeps, tensors: Mutex::default() })?;
        torch.set_grad_enabled.bind(py).call1((!writes,))?;
        torch.push_hooks.bind(py).call1((&saved, unread(py)?))?;
        let out = of.function.bind(py).call(&args, (!kwargs.is_empty()).then_some(&kwargs));
        torch.pop_hooks.bind(py).call0()?;
        let out = out?;
        drop((args, kwargs));
        let mut outputs = outputs(torch, &out)?;
        drop(out);
        if moved && let Some(Some(first)) = outputs.first_mut() {
            *first = laid_out(first, &tensors[0].call_method0(intern!(py, "stride"))?)?;
        }
        let saved = std::mem::take(&mut *saved.get().tensors.lock().unwrap_or_else(|error| error.into_inner()));
        if keeps && saved.len() != of.packs {
            let (function, packs, now) = (of.function.bind(py), of.packs, saved.len());
            return Err(PyRuntimeError::new_err(format!(
                "tightfit: {function} saved {packs} tensors, and {now} when it ran again; please report this"
            )));
        }
        if self.tracks && !writes {
            let given = tensors.iter().map(storage).collect::<PyResult<HashSet<_>>>()?;
            for value in outputs.iter().flatten() {
                let of = storage(value)?;
                if keeps || given.contains(&of) {
                    self.shared.insert(of);
                }
            }
        }
        drop(tensors);
        for (slot, place) in wanted {
            let made = match usize::try_from(place) {
                Ok(place) => outputs.get(place).cloned().flatten(),
                Err(_) => saved.get(usize::try_from(-1 - place)?).map(|made| made.bind(py).clone()),
            };
            // A call that ran out of place saves its input as it is, where the call in place saved a dense copy.
            let view = slot.borrow().view.as_ref().map(|view| view.bind(py).clone());
            let made = match (made, view) {
                (Some(made), Some(view)) => Some(laid_out(&made, &view.get_item(1)?)?),
                (made, _) => made,
            };
            if let Some(made) = &made
                && self.tracks
            {
                self.shared.insert(storage(made)?);
            }
            self.fill(&slot, made)?;
        }
        if self.uses.get(&this).is_some_and(|uses| *uses > 0) {
            self.made.insert(this, outputs.into_iter().map(|value| value.map(Bound::unbind)).collect());
        }
        Ok(())
    }
}

impl Rerun {
    /// Whether a saved tensor is made again now.
    fn fills(&self, slot: &Bound<'_, Slot>) -> PyResult<bool> {
        let of = slot.borrow();
        Ok(!of.is_filled() && (slot.is(&self.slot) || self.stay.bind(slot.py()).contains(of.number)?))
    }

    /// Puts a tensor that was made again into its slot.
    fn fill(&self, slot: &Bound<'_, Slot>, made: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        let py = slot.py();
        Slot::set_tensor(slot, made.map(Bound::unbind));
        let (number, round) = {
            let mut of = slot.borrow_mut();
            of.kept = false;
            of.round += 1;
            (of.number, of.round)
        };
        let rounds = self.active.bind(py).getattr(intern!(py, "schedule"))?.getattr(intern!(py, "rounds"))?;
        let rounds = rounds.cast::<PyDict>()?.get_item(number)?;
        if round >= rounds.map_or(Ok(1), |rounds| rounds.extract())? {
            // From here on it is kept, even if the graph is retained.
            Slot::set_call(slot, None);
        }
        Ok(())
    }

    /// Whether the result that a call works on is read once more, and nothing else has it.
    fn owns(&self, py: Python<'_>, call: &Call, this: usize) -> PyResult<bool> {
        let Some(source) = call.tensors.first() else { return Ok(false) };
        let Source::Value(value) = source else { return Ok(false) };
        if !self.reads.contains(&(this, source.identity())) {
            return Ok(false);
        }
        let (maker, index) = value.borrow(py).origin();
        let tensor = self.made.get(&maker).and_then(|made| made.get(index)?.as_ref());
        match tensor {
            Some(tensor) => Ok(self.uses.get(&maker) == Some(&1) && !self.shared.contains(&storage(tensor.bind(py))?)),
            None => Ok(false),
        }
    }

    /// The tensor for an argument of a call, and whether nothing else has it.
    fn find<'py>(
        &mut self,
        py: Python<'py>,
        call: &Call,
        this: usize,
        source: &Source,
    ) -> PyResult<(Bound<'py, PyAny>, bool)> {
        let lost = || {
            let function = call.function.bind(py);
            PyRuntimeError::new_err(format!("tightfit: what {function} has read was lost; please report this"))
        };
        if let Source::Value(value) = source
            && self.reads.contains(&(this, source.identity()))
        {
            let (maker, index) = value.borrow(py).origin();
            let made = self.made.get(&maker).and_then(|made| made.get(index)?.as_ref());
            let tensor = made.ok_or_else(lost)?.bind(py).clone();
            let uses = self.uses.entry(maker).or_default();
            *uses = uses.saturating_sub(1);
            if *uses > 0 {
                return Ok((tensor, false));
            }
            self.made.remove(&maker);
            let is_own = self.tracks && !self.shared.contains(&storage(&tensor)?);
            return Ok((tensor, is_own));
        }
        Ok((self.held(py, source)?.ok_or_else(lost)?, false))
    }

    /// The tensor of a noted value, if it is there or on the host.
    fn held<'py>(&self, py: Python<'py>, source: &Source) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (base, slot, view, transposed) = match source {
            Source::Value(value) => {
                let of = value.borrow(py);
                (bound(py, &of.base), of.found(py)?, bound(py, &of.view), false)
            }
            Source::Held(held) => {
                let of = held.borrow(py);
                if of.is_copy {
                    return Ok(bound(py, &of.base));
                }
                (bound(py, &of.base), bound(py, &of.slot), bound(py, &of.view), of.transposed)
            }
        };
        let found = if let Some(base) = base {
            let (last, origin) = (source.version(py), source.tensor(py));
            let is_changed = |tensor: &Bound<'py, PyAny>| Ok::<_, PyErr>(version(tensor)? != last);
            let changed = match origin {
                _ if is_changed(&base)? => Some(&base),
                Some(ref origin) if is_changed(origin)? => Some(origin),
                _ => None,
            };
            if let Some(changed) = changed {
                return Err(PyErr::from_value(python(py, "modified")?.call1((changed, last))?));
            }
            base
        } else {
            let Some(slot) = slot else { return Ok(None) };
            if !slot.cast::<Slot>()?.borrow().is_filled() {
                return Ok(None);
            }
            let active = self.active.bind(py);
            let content = active.call_method1(intern!(py, "content"), (&slot,))?;
            active.call_method1(intern!(py, "viewed"), (slot, content, view))?
        };
        if transposed { found.call_method0(intern!(py, "t")).map(Some) } else { Ok(Some(found)) }
    }
}

/// Takes the tensors that a call saves while it runs again. A node gets nothing: a node that held its own output would be a cycle
/// that nobody frees.
#[pyclass(frozen, module = "tightfit._native")]
pub struct Saved {
    keeps: bool,
    tensors: Mutex<Vec<Py<PyAny>>>,
}

#[pymethods]
impl Saved {
    fn __call__(&self, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.keeps {
            let tensor = detached(tensor)?.unbind();
            self.tensors.lock().unwrap_or_else(|error| error.into_inner()).push(tensor);
        }
        Ok(())
    }
}

/// Refuses to unpack a tensor that a rerun has saved.
#[pyfunction]
fn refuse(_packed: &Bound<'_, PyAny>) -> PyResult<()> {
    Err(PyRuntimeError::new_err("tightfit: the graph of a rerun was read; please report this"))
}

fn unread(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    static REFUSE: pyo3::sync::PyOnceLock<Py<PyAny>> = pyo3::sync::PyOnceLock::new();
    let made = REFUSE.get_or_try_init(py, || Ok::<_, PyErr>(wrap_pyfunction!(refuse, py)?.into_any().unbind()))?;
    Ok(made.bind(py).clone())
}

fn is_there(py: Python<'_>, value: &Value) -> PyResult<bool> {
    match value.found(py)? {
        _ if value.base.is_some() => Ok(true),
        Some(slot) => Ok(slot.cast::<Slot>()?.borrow().is_filled()),
        None => Ok(false),
    }
}

/// The tensors that a call returned, without their nodes.
fn outputs<'py>(torch: &Torch, out: &Bound<'py, PyAny>) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let alone = |value: Bound<'py, PyAny>| torch.is_tensor(&value).then(|| detached(&value)).transpose();
    if out.is_instance_of::<PyTuple>() || out.is_instance_of::<PyList>() {
        return out.try_iter()?.map(|value| alone(value?)).collect();
    }
    Ok(vec![alone(out.clone())?])
}

/// An argument for a rerun.
fn given<'py>(argument: &Argument, tensors: &[Bound<'py, PyAny>], py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
    let all = |items: &[Argument]| items.iter().map(|item| given(item, tensors, py)).collect::<PyResult<Vec<_>>>();
    match argument {
        Argument::Plain(value) => Ok(value.bind(py).clone()),
        Argument::Tensor(place) => Ok(tensors[*place].clone()),
        Argument::Scratch(statistics) => copy_of(statistics.bind(py)),
        Argument::List(items) => Ok(PyList::new(py, all(items)?)?.into_any()),
        Argument::Tuple(items) => Ok(PyTuple::new(py, all(items)?)?.into_any()),
    }
}

/// A function of `slots.py`.
fn python<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    py.import(intern!(py, "tightfit._budget.eager.slots"))?.getattr(name)
}

/// A copy with the same strides and alignment.
pub fn copy_of<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    python(tensor.py(), "copy_of")?.call1((tensor,))
}

/// A tensor with these strides: itself, or a copy.
fn laid_out<'py>(tensor: &Bound<'py, PyAny>, stride: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if tensor.call_method0(intern!(tensor.py(), "stride"))?.eq(stride)? {
        return Ok(tensor.clone());
    }
    python(tensor.py(), "laid_out")?.call1((tensor, stride))
}

fn bound<'py>(py: Python<'py>, object: &Option<Py<PyAny>>) -> Option<Bound<'py, PyAny>> {
    object.as_ref().map(|object| object.bind(py).clone())
}
