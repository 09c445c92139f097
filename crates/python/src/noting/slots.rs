//! The state of each value that autograd saves in a pass.

use pyo3::prelude::*;
use pyo3::types::{PyWeakrefMethods, PyWeakrefReference};
use pyo3::{PyTraverseError, PyVisit, intern};

use super::calls::Call;
use super::noted::NotedTensors;
use super::tensors::{detached, version, view_of};

/// The bytes of one saved value of one pass.
#[pyclass(weakref, module = "tightfit._native")]
pub struct Slot {
    /// The plan's tensor; negative for values that the plan does not know.
    #[pyo3(get)]
    pub number: i64,
    /// The value, while it is on the device.
    pub tensor: Option<Py<PyAny>>,
    /// Whether that is the saved tensor, not one that was fetched or rebuilt.
    #[pyo3(get, set)]
    pub kept: bool,
    /// The version of the saved tensor.
    #[pyo3(get)]
    pub version: i64,
    /// The saved tensor and its storage, weakly.
    origin: Option<Py<PyWeakrefReference>>,
    storage: Option<Py<PyWeakrefReference>>,
    /// Whether writes to other parts of its storage do not change its version.
    is_apart: bool,
    /// Its copy on the host, and the ticket of that copy. A copy is one of the whole storage.
    #[pyo3(get, set)]
    pub host: Option<Py<PyAny>>,
    #[pyo3(get, set)]
    ticket: Option<Py<PyAny>>,
    /// The call that makes it again.
    pub call: Option<Py<Call>>,
    /// Which of the call's outputs it is; -1 - k for the k-th tensor that the call saves itself.
    #[pyo3(get)]
    pub place: i64,
    /// How often it was made again.
    #[pyo3(get)]
    pub round: usize,
    /// The tensor that was packed first, as a view of its storage.
    #[pyo3(get, set)]
    pub view: Option<Py<PyAny>>,
    /// Its signs, where these are all that is read.
    #[pyo3(get)]
    pub mask: Option<Py<PyAny>>,
}

#[pymethods]
impl Slot {
    #[new]
    pub fn new(number: i64) -> Slot {
        let (tensor, origin, storage, host, ticket) = (None, None, None, None, None);
        let (call, view, mask) = (None, None, None);
        let (kept, is_apart, version, place, round) = (false, false, -1, 0, 0);
        Slot { number, tensor, kept, version, origin, storage, is_apart, host, ticket, call, place, round, view, mask }
    }

    #[getter]
    fn tensor<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.tensor.as_ref().map(|tensor| tensor.bind(py).clone())
    }

    #[setter]
    pub fn set_tensor(slf: &Bound<'_, Slot>, tensor: Option<Py<PyAny>>) {
        // The dropped reference may be the last one.
        let before = std::mem::replace(&mut slf.borrow_mut().tensor, tensor);
        drop(before);
    }

    #[getter]
    fn call<'py>(&self, py: Python<'py>) -> Option<Bound<'py, Call>> {
        self.call.as_ref().map(|call| call.bind(py).clone())
    }

    #[setter]
    pub fn set_call(slf: &Bound<'_, Slot>, call: Option<Py<Call>>) {
        let before = std::mem::replace(&mut slf.borrow_mut().call, call);
        drop(before);
    }

    /// Whether it answers for a saved tensor.
    #[getter]
    pub fn has_begun(&self) -> bool {
        self.origin.is_some()
    }

    /// The saved tensor, if it is still there.
    pub fn origin<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.origin.as_ref().and_then(|origin| origin.bind(py).upgrade())
    }

    /// Lets it answer for a saved tensor.
    pub fn begin(slf: &Bound<'_, Slot>, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let origin = PyWeakrefReference::new(tensor)?.unbind();
        let storage = tensor.call_method0(intern!(py, "untyped_storage"))?;
        let storage = PyWeakrefReference::new(&storage)?.unbind();
        let (version, view, is_apart) = (version(tensor)?, view_of(tensor)?.into_any().unbind(), is_apart(tensor)?);
        let mut of = slf.borrow_mut();
        of.is_apart = is_apart;
        (of.origin, of.storage, of.version, of.view) = (Some(origin), Some(storage), version, Some(view));
        Ok(())
    }

    /// Whether it answers for a tensor's storage as it is now.
    pub fn has(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = tensor.py();
        let storage = self.storage.as_ref().and_then(|storage| storage.bind(py).upgrade());
        let is_same = storage.is_some_and(|storage| {
            tensor.call_method0(intern!(py, "untyped_storage")).is_ok_and(|other| other.is(&storage))
        });
        if !is_same || self.version != version(tensor)? {
            return Ok(false);
        }
        if let Some(view) = &self.view {
            return Ok(view_of(tensor)?.eq(view.bind(py))? || !self.is_apart && !is_apart(tensor)?);
        }
        Ok(true)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.call)?;
        let objects = [&self.tensor, &self.host, &self.ticket, &self.view, &self.mask];
        objects.into_iter().flatten().try_for_each(|object| visit.call(object))
    }

    fn __clear__(&mut self) {
        (self.tensor, self.host, self.ticket, self.call) = (None, None, None, None);
    }
}

impl Slot {
    /// Whether its bytes are on the device or on the host.
    pub fn is_filled(&self) -> bool {
        self.tensor.is_some() || self.host.is_some()
    }
}

/// The handle that autograd holds for a saved tensor that is not just kept.
#[pyclass(module = "tightfit._native")]
pub struct Handle {
    /// Its number in the pass.
    #[pyo3(get)]
    pub k: i64,
    /// The saved tensor, if it just stays.
    #[pyo3(get)]
    pub tensor: Option<Py<PyAny>>,
    #[pyo3(get)]
    pub version: i64,
    #[pyo3(get)]
    pub slot: Option<Py<Slot>>,
    /// Its view of the slot's storage; `None` for the slot's own.
    #[pyo3(get)]
    view: Option<Py<PyAny>>,
    /// The node that saves the tensor and does not read it.
    #[pyo3(get, set)]
    pub reader: Option<Py<PyAny>>,
}

#[pymethods]
impl Handle {
    #[new]
    fn new(k: i64, tensor: &Bound<'_, PyAny>) -> PyResult<Handle> {
        Ok(Handle { k, tensor: None, version: version(tensor)?, slot: None, view: None, reader: None })
    }

    /// Lets a slot answer for it.
    pub fn join(
        slf: &Bound<'_, Handle>,
        slot: &Bound<'_, Slot>,
        tensor: &Bound<'_, PyAny>,
        notes: Option<&Bound<'_, NotedTensors>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let view = view_of(tensor)?.into_any();
        let is_on_host = slot.borrow().host.is_some();
        let is_own = match &slot.borrow().view {
            Some(own) if !is_on_host => view.eq(own)?,
            _ => false,
        };
        {
            let mut of = slf.borrow_mut();
            (of.slot, of.tensor) = (Some(slot.clone().unbind()), None);
            of.view = (!is_own).then(|| view.clone().unbind());
        }
        let is_made_again = slot.borrow().call.is_some();
        let (Some(notes), false) = (notes, is_made_again) else { return Ok(()) };
        let Some(value) = NotedTensors::value_of(notes, tensor)? else { return Ok(()) };
        if value.borrow().is_held(py)? {
            return Ok(());
        }
        // Another view of bytes that stay, or that go to the host: reruns read it there.
        if is_on_host {
            let mut of = value.borrow_mut();
            (of.slot, of.view) = (Some(slot.clone().into_any().unbind()), Some(view.unbind()));
        } else {
            let base = detached(tensor)?.unbind();
            value.borrow_mut().base = Some(base);
        }
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.slot)?;
        [&self.tensor, &self.view, &self.reader].into_iter().flatten().try_for_each(|object| visit.call(object))
    }

    fn __clear__(&mut self) {
        (self.tensor, self.slot) = (None, None);
    }
}

/// Whether a tensor is a part of its storage and has its own versions, such as each result of `unsafe_chunk`: a write to another part does not change
/// its version.
fn is_apart(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = tensor.py();
    if !tensor.getattr(intern!(py, "_base"))?.is_none() {
        return Ok(false);
    }
    let whole = tensor.call_method0(intern!(py, "untyped_storage"))?.call_method0(intern!(py, "nbytes"))?;
    tensor.getattr(intern!(py, "nbytes"))?.lt(whole)
}
