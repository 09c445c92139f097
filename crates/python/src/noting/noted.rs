//! The tensors that noted calls of a pass have made, and the outside tensors that they have read.

use std::collections::HashMap;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use super::calls::{Ended, Held, Source, Value};
use super::tensors::{Torch, address, identity, storage, version, view_of};

/// The outputs that are noted in one storage before the table is cleared of tensors that are gone.
const MOST_IN_STORAGE: usize = 8;

/// Why a call is not noted.
pub enum Refused {
    /// It has an argument of which nobody knows whether it stays as it is.
    Unknown,
    Failed(PyErr),
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Refused {
        Refused::Failed(error)
    }
}

/// Outputs of noted calls and tensors from outside, by identity and by storage.
#[pyclass(subclass, module = "tightfit._native")]
pub struct NotedTensors {
    /// The pass.
    #[pyo3(get)]
    pub active: Py<PyAny>,
    /// Small tensors that earlier calls read, and whether autograd saved them.
    pub keeps: Py<PyDict>,
    /// The number of the first tensor that the noted call has saved.
    #[pyo3(get)]
    pub first: usize,
    values: HashMap<usize, Py<Value>>,
    /// By storage, the identities of tensors that were outputs in it, the latest last.
    of_storage: HashMap<u64, Vec<usize>>,
    /// Tensors from outside, each with its storage.
    helds: HashMap<usize, (u64, Py<Held>)>,
}

#[pymethods]
impl NotedTensors {
    /// The noted output that a tensor is, or is a view of.
    fn value_in<'py>(
        slf: &Bound<'py, NotedTensors>,
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, Value>>> {
        NotedTensors::value_in_storage(slf, tensor, &Ended { call: None, pairs: &[], outputs: &[] })
    }

    /// Forgets the outputs and outside tensors in a storage, and returns them.
    fn take<'py>(slf: &Bound<'py, NotedTensors>, from: u64) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = slf.py();
        let (values, helds) = {
            let mut of = slf.borrow_mut();
            let helds: Vec<usize> = of.helds.iter().filter(|(_, (at, _))| *at == from).map(|(one, _)| *one).collect();
            let helds: Vec<_> = helds.iter().filter_map(|one| of.helds.remove(one)).map(|(_, held)| held).collect();
            (of.of_storage.remove(&from).unwrap_or_default(), helds)
        };
        let mut found: Vec<_> = helds.into_iter().map(|held| held.into_bound(py).into_any()).collect();
        for one in values {
            if let Some((value, _)) = NotedTensors::value_at(slf, one, from)? {
                let before = slf.borrow_mut().values.remove(&one);
                drop(before);
                found.push(value.into_any());
            }
        }
        Ok(found)
    }

    /// Forgets all outputs and outside tensors.
    fn forget(slf: &Bound<'_, NotedTensors>) {
        let gone = {
            let mut of = slf.borrow_mut();
            (std::mem::take(&mut of.values), std::mem::take(&mut of.helds))
        };
        drop(gone);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.active)?;
        visit.call(&self.keeps)?;
        self.values.values().try_for_each(|value| visit.call(value))?;
        self.helds.values().try_for_each(|(_, held)| visit.call(held))
    }

    fn __clear__(&mut self) {
        self.values.clear();
        self.helds.clear();
    }
}

impl NotedTensors {
    /// The tables of a pass that has noted nothing so far.
    pub fn new(active: Py<PyAny>, keeps: Py<PyDict>) -> NotedTensors {
        let (values, of_storage, helds) = (HashMap::new(), HashMap::new(), HashMap::new());
        NotedTensors { active, keeps, first: 0, values, of_storage, helds }
    }

    /// The noted output that a tensor is.
    pub fn value_of<'py>(
        slf: &Bound<'py, NotedTensors>,
        tensor: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, Value>>> {
        let known = slf.borrow().values.get(&identity(tensor)).map(|value| value.bind(slf.py()).clone());
        let Some(value) = known else { return Ok(None) };
        let is_it = value.borrow().seen.is(tensor, version(tensor)?);
        Ok(is_it.then_some(value))
    }

    /// The noted output that a saved tensor is, or is a view of. The call that saves it has just ended, if it is noted.
    pub fn value_in_storage<'py>(
        slf: &Bound<'py, NotedTensors>,
        tensor: &Bound<'py, PyAny>,
        ended: &Ended<'_, 'py>,
    ) -> PyResult<Option<Bound<'py, Value>>> {
        let py = slf.py();
        let value = NotedTensors::value_of(slf, tensor)?;
        if value.is_some() {
            return Ok(value);
        }
        let (of, last) = (storage(tensor)?, version(tensor)?);
        let Some(known) = slf.borrow().of_storage.get(&of).cloned() else { return Ok(None) };
        for (other, source) in ended.pairs {
            if let Source::Value(value) = source
                && storage(other)? == of
                && version(other)? == last
            {
                return Ok(Some(value.bind(py).clone()));
            }
        }
        let torch = Torch::get(py)?;
        for other in ended.outputs {
            if torch.is_tensor(other) && storage(other)? == of {
                return NotedTensors::value_of(slf, other);
            }
        }
        // Saved by a call without a note, such as a view of a noted output.
        for one in known.into_iter().rev() {
            if let Some((value, there)) = NotedTensors::value_at(slf, one, of)?
                && version(&there)? == last
                && value.borrow().seen.version == last
            {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Where a tensor that a call reads comes from.
    pub fn source(slf: &Bound<'_, NotedTensors>, torch: &Torch, tensor: &Bound<'_, PyAny>) -> Result<Source, Refused> {
        let py = slf.py();
        // A tensor of inference mode has no version: nobody knows whether it was written.
        let last = version(tensor).map_err(|_| Refused::Unknown)?;
        let (one, at) = (identity(tensor), address(tensor)?);
        let of = slf.borrow();
        if let Some(known) = of.values.get(&one)
            && known.borrow(py).seen.is_at(tensor, last, at)
        {
            return Ok(Source::Value(known.clone_ref(py)));
        }
        if let Some((_, known)) = of.helds.get(&one)
            && known.borrow(py).seen.is_at(tensor, last, at)
        {
            return Ok(Source::Held(known.clone_ref(py)));
        }
        drop(of);
        NotedTensors::outside(slf, torch, tensor).map(Source::Held)
    }

    /// NotedTensors a tensor that no noted call has made.
    fn outside(slf: &Bound<'_, NotedTensors>, torch: &Torch, tensor: &Bound<'_, PyAny>) -> Result<Py<Held>, Refused> {
        let py = slf.py();
        if !tensor.getattr(intern!(py, "layout"))?.is(&torch.strided)
            || tensor.getattr(intern!(py, "is_nested"))?.is_truthy()?
        {
            return Err(Refused::Unknown);
        }
        let (active, keeps) = {
            let of = slf.borrow();
            (of.active.bind(py).clone(), of.keeps.bind(py).clone())
        };
        let is_kept = match keeps.get_item(identity(tensor))? {
            Some(known) => {
                let (there, is_kept) = known.extract::<(Bound<'_, PyAny>, bool)>()?;
                is_kept && there.call0()?.is(tensor)
            }
            None => false,
        };
        let mut held = Held::new(tensor)?;
        if !is_kept {
            held.base = some(active.call_method1(intern!(py, "small"), (tensor,))?);
            held.is_copy = held.base.is_some();
        }
        if !held.is_copy {
            held.slot = some(active.call_method1(intern!(py, "slot_of"), (tensor,))?);
            held.view = Some(view_of(tensor)?.into_any().unbind());
        }
        let held = Py::new(py, held)?;
        let of = storage(tensor)?;
        let before = slf.borrow_mut().helds.insert(identity(tensor), (of, held.clone_ref(py)));
        drop(before);
        Ok(held)
    }

    /// Adds an output of a call.
    pub fn add(slf: &Bound<'_, NotedTensors>, value: Value, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let (one, of) = (identity(tensor), storage(tensor)?);
        let before = slf.borrow_mut().values.insert(one, Py::new(py, value)?);
        drop(before);
        let is_full = slf.borrow().of_storage.get(&of).is_some_and(|known| known.len() > MOST_IN_STORAGE);
        if is_full {
            // Addresses of storages that are gone are used again.
            let known = slf.borrow_mut().of_storage.remove(&of).unwrap_or_default();
            let mut there = Vec::new();
            for other in known {
                if NotedTensors::value_at(slf, other, of)?.is_some() {
                    there.push(other);
                }
            }
            slf.borrow_mut().of_storage.insert(of, there);
        }
        slf.borrow_mut().of_storage.entry(of).or_default().push(one);
        Ok(())
    }

    /// The noted output with this identity and its tensor, if the tensor is in a storage.
    fn value_at<'py>(
        slf: &Bound<'py, NotedTensors>,
        one: usize,
        of: u64,
    ) -> PyResult<Option<(Bound<'py, Value>, Bound<'py, PyAny>)>> {
        let py = slf.py();
        let known = slf.borrow().values.get(&one).map(|value| value.bind(py).clone());
        let Some(value) = known else { return Ok(None) };
        let there = value.borrow().tensor(py);
        match there {
            Some(there) if storage(&there)? == of => Ok(Some((value, there))),
            _ => Ok(None),
        }
    }
}

fn some(object: Bound<'_, PyAny>) -> Option<Py<PyAny>> {
    (!object.is_none()).then(|| object.unbind())
}
