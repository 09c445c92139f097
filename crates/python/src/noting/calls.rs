//! Noted calls, and the tensors that they read and make.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyWeakrefMethods, PyWeakrefReference};
use pyo3::{PyTraverseError, PyVisit};

use super::tensors::{Torch, address, detached, version};

/// The call writes to its first argument: a flag of `functions.py`.
pub const IN_PLACE: u32 = 4;

/// Where a tensor that a call reads comes from.
pub enum Source {
    Value(Py<Value>),
    Held(Py<Held>),
}

impl Source {
    /// The same reference.
    pub fn clone_ref(&self, py: Python<'_>) -> Source {
        match self {
            Source::Value(value) => Source::Value(value.clone_ref(py)),
            Source::Held(held) => Source::Held(held.clone_ref(py)),
        }
    }

    /// The identity of the value or held tensor.
    pub fn identity(&self) -> usize {
        match self {
            Source::Value(value) => value.as_ptr() as usize,
            Source::Held(held) => held.as_ptr() as usize,
        }
    }

    /// The version of the tensor when the call ran.
    pub fn version(&self, py: Python<'_>) -> i64 {
        match self {
            Source::Value(value) => value.borrow(py).seen.version,
            Source::Held(held) => held.borrow(py).seen.version,
        }
    }

    /// The tensor, if it is still there.
    pub fn tensor<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        match self {
            Source::Value(value) => value.borrow(py).tensor(py),
            Source::Held(held) => held.borrow(py).tensor(py),
        }
    }

    /// As Python sees it.
    pub fn object<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match self {
            Source::Value(value) => value.bind(py).clone().into_any(),
            Source::Held(held) => held.bind(py).clone().into_any(),
        }
    }

    fn into_any(self) -> Py<PyAny> {
        match self {
            Source::Value(value) => value.into_any(),
            Source::Held(held) => held.into_any(),
        }
    }
}

/// A tensor that a call reads, and where it comes from.
pub type Pair<'py> = (Bound<'py, PyAny>, Source);

/// The call that has just ended: the tensors that it read, and its outputs.
pub struct Ended<'a, 'py> {
    /// `None` if it cannot run again.
    pub call: Option<&'a Bound<'py, Call>>,
    pub pairs: &'a [Pair<'py>],
    pub outputs: &'a [Bound<'py, PyAny>],
}

/// An argument of a call.
pub enum Argument {
    /// The same whenever it is read.
    Plain(Py<PyAny>),
    /// A tensor, by its place among the tensors that the call reads.
    Tensor(usize),
    /// Running statistics that the call updates and does not read, or a copy of the statistics that it reads. A rerun gets a copy.
    Scratch(Py<PyAny>),
    List(Vec<Argument>),
    Tuple(Vec<Argument>),
}

impl Argument {
    fn visit(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Argument::Plain(value) | Argument::Scratch(value) => visit.call(value),
            Argument::Tensor(_) => Ok(()),
            Argument::List(items) | Argument::Tuple(items) => items.iter().try_for_each(|item| item.visit(visit)),
        }
    }
}

/// A call of a function.
///
/// `flags` are its kind, see `functions.py`, and `state` are the settings under which it ran. `packs` is how many tensors autograd
/// saved during the call. `ready` says whether it can run again now: nothing that it needs is missing.
#[pyclass(module = "tightfit._native")]
pub struct Call {
    #[pyo3(get, set)]
    pub function: Py<PyAny>,
    pub args: Vec<Argument>,
    pub kwargs: Vec<(Py<PyAny>, Argument)>,
    /// The tensors that it reads, each once.
    pub tensors: Vec<Source>,
    /// Whether each of these requires a gradient.
    pub grads: Vec<bool>,
    #[pyo3(get)]
    pub flags: u32,
    #[pyo3(get)]
    pub state: Py<PyTuple>,
    /// Large tensors from outside that nothing holds so far.
    pub missing: Vec<Py<Held>>,
    ready: AtomicBool,
    /// Saved tensors that it makes again, weakly.
    slots: Mutex<Vec<Py<PyWeakrefReference>>>,
    pub packs: usize,
}

impl Call {
    /// A call that has run, for which nothing is missing if it is ready.
    #[expect(clippy::too_many_arguments, reason = "the parts of a call")]
    pub fn new(
        function: Py<PyAny>,
        args: Vec<Argument>,
        kwargs: Vec<(Py<PyAny>, Argument)>,
        tensors: Vec<Source>,
        grads: Vec<bool>,
        flags: u32,
        state: Py<PyTuple>,
        missing: Vec<Py<Held>>,
        is_ready: bool,
        packs: usize,
    ) -> Call {
        let ready = AtomicBool::new(is_ready);
        Call { function, args, kwargs, tensors, grads, flags, state, missing, ready, slots: Mutex::default(), packs }
    }

    /// Whether it is known that it can run again now.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    fn references(&self) -> MutexGuard<'_, Vec<Py<PyWeakrefReference>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a keyword says if it works in place: then it can work out of place too.
    pub fn has_inplace(&self, py: Python<'_>) -> bool {
        self.kwargs.iter().any(|(name, _)| name.bind(py).eq(intern!(py, "inplace")).unwrap_or(false))
    }

    /// Whether it saves the same tensors again: a call in place runs out of place instead, if it has an argument for that.
    pub fn makes_saved(&self, py: Python<'_>) -> bool {
        self.flags & IN_PLACE == 0 || self.has_inplace(py)
    }

    /// Adds a saved tensor that it makes again.
    pub fn add_slot(&self, slot: &Bound<'_, PyAny>) -> PyResult<()> {
        let slot = PyWeakrefReference::new(slot)?.unbind();
        self.references().push(slot);
        Ok(())
    }
}

#[pymethods]
impl Call {
    /// Whether everything that it needs is held, or can be made again.
    pub fn can_run(slf: &Bound<'_, Call>) -> PyResult<bool> {
        let py = slf.py();
        let (mut calls, mut seen) = (vec![slf.clone().unbind()], HashSet::new());
        while let Some(call) = calls.pop() {
            let of = call.borrow(py);
            if of.is_ready() || !seen.insert(call.as_ptr()) {
                continue;
            }
            if of.missing.iter().any(|held| held.borrow(py).is_missing()) {
                return Ok(false);
            }
            for source in &of.tensors {
                if let Source::Value(value) = source {
                    let value = value.borrow(py);
                    if !value.is_held(py)? {
                        calls.push(value.call.clone_ref(py));
                    }
                }
            }
        }
        slf.borrow().ready.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// The saved tensors that it makes again and that are still there.
    #[getter]
    pub fn slots<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyAny>> {
        self.references().iter().filter_map(|slot| slot.bind(py).upgrade()).collect()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.function)?;
        visit.call(&self.state)?;
        self.args.iter().try_for_each(|argument| argument.visit(&visit))?;
        for (name, argument) in &self.kwargs {
            visit.call(name)?;
            argument.visit(&visit)?;
        }
        for source in &self.tensors {
            match source {
                Source::Value(value) => visit.call(value)?,
                Source::Held(held) => visit.call(held)?,
            }
        }
        self.missing.iter().try_for_each(|held| visit.call(held))?;
        self.references().iter().try_for_each(|slot| visit.call(slot))
    }

    fn __clear__(&mut self) {
        self.args.clear();
        self.kwargs.clear();
        self.tensors.clear();
        self.missing.clear();
    }
}

thread_local! {
    /// References of calls that are gone, while they are dropped one after another.
    static DROPPED: RefCell<Vec<Source>> = const { RefCell::new(Vec::new()) };
    static IS_DROPPING: Cell<bool> = const { Cell::new(false) };
}

impl Drop for Call {
    /// A call refers to the calls before it. A loop drops a long chain of them, for which the stack is too small.
    fn drop(&mut self) {
        let tensors = std::mem::take(&mut self.tensors);
        DROPPED.with_borrow_mut(|dropped| dropped.extend(tensors));
        if IS_DROPPING.replace(true) {
            return;
        }
        while let Some(source) = DROPPED.with_borrow_mut(Vec::pop) {
            drop(source.into_any());
        }
        IS_DROPPING.set(false);
    }
}

/// A tensor as it was when a call ran: the tensor (weakly), its version, and its address, which shows whether a program has given it
/// other bytes by `.data`.
pub struct Seen {
    tensor: Py<PyWeakrefReference>,
    pub version: i64,
    address: u64,
}

impl Seen {
    /// A tensor as it is now.
    fn new(tensor: &Bound<'_, PyAny>) -> PyResult<Seen> {
        let (version, address) = (version(tensor)?, address(tensor)?);
        Ok(Seen { tensor: PyWeakrefReference::new(tensor)?.unbind(), version, address })
    }

    /// Whether it is this tensor, which has this version now.
    pub fn is(&self, tensor: &Bound<'_, PyAny>, version: i64) -> bool {
        self.version == version && self.tensor.bind(tensor.py()).upgrade().is_some_and(|there| there.is(tensor))
    }

    /// Whether it is this tensor, which has this version and this address now.
    pub fn is_at(&self, tensor: &Bound<'_, PyAny>, version: i64, address: u64) -> bool {
        self.address == address && self.is(tensor, version)
    }
}

/// An output of a call: the call, which of its outputs, and the tensor.
///
/// `base` is the tensor's bytes if autograd keeps them, `slot` the slot that answers for them otherwise, and `view` the tensor as a view
/// of its storage.
#[pyclass(module = "tightfit._native")]
pub struct Value {
    #[pyo3(get)]
    pub call: Py<Call>,
    #[pyo3(get)]
    pub index: usize,
    pub seen: Seen,
    #[pyo3(get, set)]
    pub base: Option<Py<PyAny>>,
    #[pyo3(get, set)]
    pub slot: Option<Py<PyAny>>,
    #[pyo3(get, set)]
    pub view: Option<Py<PyAny>>,
}

impl Value {
    /// The noted output that a tensor is.
    pub fn new(call: Py<Call>, index: usize, tensor: &Bound<'_, PyAny>) -> PyResult<Value> {
        Ok(Value { call, index, seen: Seen::new(tensor)?, base: None, slot: None, view: None })
    }

    /// The identity of its call, and which of the call's outputs it is.
    pub fn origin(&self) -> (usize, usize) {
        (self.call.as_ptr() as usize, self.index)
    }
}

#[pymethods]
impl Value {
    /// The version of the tensor when the call ran.
    #[getter]
    fn version(&self) -> i64 {
        self.seen.version
    }

    /// The tensor, if it is still there.
    pub fn tensor<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.seen.tensor.bind(py).upgrade()
    }

    /// Whether its bytes stay as long as it is needed. A slot that is made again goes when autograd lets go of it.
    pub fn is_held(&self, py: Python<'_>) -> PyResult<bool> {
        if self.base.is_some() {
            return Ok(true);
        }
        match &self.slot {
            Some(slot) => Ok(!Torch::get(py)?.is_weakref(slot.bind(py))),
            None => Ok(false),
        }
    }

    /// The slot that answers for its bytes, if that is still there.
    pub fn found<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match &self.slot {
            Some(slot) if Torch::get(py)?.is_weakref(slot.bind(py)) => {
                Ok(slot.bind(py).cast::<PyWeakrefReference>()?.upgrade())
            }
            slot => Ok(slot.as_ref().map(|slot| slot.bind(py).clone())),
        }
    }

    /// Lets a copy of its bytes answer for it.
    fn hold(&mut self, copy: &Bound<'_, PyAny>) -> PyResult<()> {
        (self.seen, self.base, self.slot) = (Seen::new(copy)?, Some(copy.clone().unbind()), None);
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.call)?;
        visit.call(&self.seen.tensor)?;
        [&self.base, &self.slot, &self.view].into_iter().flatten().try_for_each(|object| visit.call(object))
    }

    fn __clear__(&mut self) {
        (self.base, self.slot, self.view) = (None, None, None);
    }
}

/// A tensor from outside of the noted calls: a copy if it is small, else what autograd saves of it.
///
/// `transposed` says that `slot` or `base` has the tensor's matrix transposed.
#[pyclass(module = "tightfit._native")]
pub struct Held {
    pub seen: Seen,
    #[pyo3(get, set)]
    pub base: Option<Py<PyAny>>,
    #[pyo3(get, set)]
    pub slot: Option<Py<PyAny>>,
    #[pyo3(get, set)]
    pub view: Option<Py<PyAny>>,
    #[pyo3(get)]
    pub is_copy: bool,
    #[pyo3(get)]
    pub transposed: bool,
}

impl Held {
    /// A tensor that nothing holds yet.
    pub fn new(tensor: &Bound<'_, PyAny>) -> PyResult<Held> {
        let (base, slot, view) = (None, None, None);
        Ok(Held { seen: Seen::new(tensor)?, base, slot, view, is_copy: false, transposed: false })
    }

    /// Whether nothing holds it.
    pub fn is_missing(&self) -> bool {
        self.base.is_none() && self.slot.is_none()
    }

    /// Lets its cast that autograd has saved answer for it.
    pub fn hold_cast(&mut self, saved: &Bound<'_, PyAny>, transposed: bool) -> PyResult<()> {
        (self.seen, self.base, self.transposed) = (Seen::new(saved)?, Some(detached(saved)?.unbind()), transposed);
        Ok(())
    }
}

#[pymethods]
impl Held {
    /// The version of the tensor when a call read it.
    #[getter]
    fn version(&self) -> i64 {
        self.seen.version
    }

    /// The tensor, if it is still there.
    pub fn tensor<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.seen.tensor.bind(py).upgrade()
    }

    /// The slot that answers for its bytes.
    fn found<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.slot.as_ref().map(|slot| slot.bind(py).clone())
    }

    /// Lets a copy of its bytes answer for it.
    fn hold(&mut self, copy: &Bound<'_, PyAny>) -> PyResult<()> {
        (self.seen, self.base, self.slot) = (Seen::new(copy)?, Some(copy.clone().unbind()), None);
        (self.is_copy, self.transposed) = (true, false);
        Ok(())
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.seen.tensor)?;
        [&self.base, &self.slot, &self.view].into_iter().flatten().try_for_each(|object| visit.call(object))
    }

    fn __clear__(&mut self) {
        (self.base, self.slot, self.view) = (None, None, None);
    }
}
