//! The notes of a pass.

use std::collections::HashMap;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::calls::{Argument, Call, Held, IN_PLACE, Source, Value};
use super::tensors::{Settings, Torch, address, identity, refers_to, storage, truth, version, view_of};

/// Kinds of calls, flags of `functions.py`: it casts inputs under autocast, updates running statistics, may draw random
/// numbers; from `OPENED` on, the call is not noted as a whole.
const CASTS: u32 = 2;
const STATISTICS: u32 = 8;
const CHECKED: u32 = 16;
const OPENED: u32 = 32;
/// So many outputs in one storage are looked through before those that are gone are forgotten.
const MOST_IN_STORAGE: usize = 8;

/// A tensor that a call reads, and where it comes from.
type Pair<'py> = (Bound<'py, PyAny>, Source);

/// Why a call is not noted.
enum Refused {
    /// It has an argument of which nobody knows whether it stays as it is.
    Unknown,
    Failed(PyErr),
}

impl From<PyErr> for Refused {
    fn from(error: PyErr) -> Refused {
        Refused::Failed(error)
    }
}

/// The calls of one pass, noted as they are made.
#[pyclass(subclass, module = "tightfit._native")]
pub struct Notes {
    kinds: Py<PyDict>,
    /// The pass.
    #[pyo3(get)]
    active: Py<PyAny>,
    /// Small tensors that earlier calls read, and whether autograd saved them.
    keeps: Py<PyDict>,
    /// Whether the pass wants to see each call that has ended.
    sees_all: bool,
    #[pyo3(get)]
    device: Py<PyAny>,
    #[pyo3(get)]
    kind: Py<PyAny>,
    /// The index of the GPU and its stream, on a GPU.
    stream: Option<(usize, u64)>,
    state: Option<(Settings, Py<PyTuple>)>,
    #[pyo3(get, set)]
    on: bool,
    /// Whether a noted call runs, and the number of its first saved tensor.
    #[pyo3(get)]
    runs: bool,
    #[pyo3(get)]
    first: usize,
    values: HashMap<usize, Py<Value>>,
    /// By storage, the identities of tensors that were outputs in it, the latest last.
    of_storage: HashMap<u64, Vec<usize>>,
    helds: HashMap<usize, Py<Held>>,
}

#[pymethods]
impl Notes {
    #[new]
    fn new(kinds: Py<PyDict>, active: &Bound<'_, PyAny>, device: &Bound<'_, PyAny>) -> PyResult<Notes> {
        let py = active.py();
        let schedule = active.getattr("schedule")?;
        let kind = device.getattr("type")?;
        let stream = match (kind.eq("cuda")?, &Torch::get(py)?.stream) {
            (true, Some(read)) => {
                let index = device.getattr("index")?.extract::<Option<usize>>()?.unwrap_or(0);
                Some((index, read.call1(py, (index,))?.extract(py)?))
            }
            _ => None,
        };
        Ok(Notes {
            kinds,
            active: active.clone().unbind(),
            keeps: schedule.getattr("keeps")?.cast_into::<PyDict>()?.unbind(),
            sees_all: schedule.getattr("looks")?.is_truthy()? || schedule.getattr("dropped")?.is_truthy()?,
            device: device.clone().unbind(),
            kind: kind.unbind(),
            stream,
            state: None,
            on: true,
            runs: false,
            first: 0,
            values: HashMap::new(),
            of_storage: HashMap::new(),
            helds: HashMap::new(),
        })
    }

    /// Calls a function, and notes the call if it may be made again.
    fn note<'py>(
        slf: &Bound<'py, Notes>,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let torch = Torch::get(py)?;
        let kwargs = kwargs.filter(|kwargs| !kwargs.is_empty());
        let kinds = slf.borrow().kinds.bind(py).clone();
        let Some(flags) = kinds.get_item(function)? else { return function.call(args, kwargs) };
        let flags: u32 = flags.extract()?;
        if !slf.borrow().on || !truth(py, &torch.is_grad_enabled)? {
            return function.call(args, kwargs);
        }
        if flags >= OPENED {
            let words = kwargs.map_or_else(|| PyDict::new(py), Clone::clone);
            return slf.call_method1(intern!(py, "_special"), (function, flags, args, words));
        }
        let mut args = args.clone();
        if flags & CASTS != 0 && truth(py, &torch.is_any_autocast)? {
            args = slf.call_method1(intern!(py, "cast"), (args,))?.cast_into()?;
            if slf.call_method1(intern!(py, "_has_stale_casts"), (&args, kwargs))?.is_truthy()? {
                return function.call(args, kwargs);
            }
        }
        match Noted::new(slf, torch, function, &args, kwargs, flags) {
            Ok(noted) => noted.run(slf, torch, function, &args, kwargs),
            Err(Refused::Unknown) => function.call(args, kwargs),
            Err(Refused::Failed(error)) => Err(error),
        }
    }

    /// The noted output that a tensor is.
    fn value_of<'py>(slf: &Bound<'py, Notes>, tensor: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, Value>>> {
        let known = slf.borrow().values.get(&identity(tensor)).map(|value| value.bind(slf.py()).clone());
        let Some(value) = known else { return Ok(None) };
        let is_it = value.borrow().version == version(tensor)? && refers_to(&value.borrow().tensor, tensor);
        Ok(is_it.then_some(value))
    }

    /// The noted output that a saved tensor is, or is a view of. The call that saves it reads `pairs` and makes `outputs`, if it is noted.
    fn value_in_storage<'py>(
        slf: &Bound<'py, Notes>,
        tensor: &Bound<'py, PyAny>,
        pairs: &Bound<'py, PyAny>,
        outputs: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, Value>>> {
        let value = Notes::value_of(slf, tensor)?;
        if value.is_some() {
            return Ok(value);
        }
        let of = storage(tensor)?;
        let Some(known) = slf.borrow().of_storage.get(&of).cloned() else { return Ok(None) };
        for pair in pairs.try_iter()? {
            let (other, source) = pair?.extract::<(Bound<'py, PyAny>, Bound<'py, PyAny>)>()?;
            if let Ok(value) = source.cast_into::<Value>()
                && storage(&other)? == of
                && version(&other)? == version(tensor)?
            {
                return Ok(Some(value));
            }
        }
        let torch = Torch::get(slf.py())?;
        for other in outputs.try_iter()? {
            let other = other?;
            if torch.is_tensor(&other) && storage(&other)? == of {
                return Notes::value_of(slf, &other);
            }
        }
        // Saved by a call without a note, such as a view of a noted output.
        for one in known.into_iter().rev() {
            if let Some((value, there)) = Notes::value_at(slf, one, of)? {
                let last = version(tensor)?;
                if version(&there)? == last && value.borrow().version == last {
                    return Ok(Some(value));
                }
            }
        }
        Ok(None)
    }

    /// Forgets the outputs and outside tensors in a storage, and returns them.
    fn take<'py>(slf: &Bound<'py, Notes>, from: u64) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let py = slf.py();
        let all: Vec<(usize, Source)> = {
            let of = slf.borrow();
            let values = of.values.iter().map(|(one, value)| (*one, Source::Value(value.clone_ref(py))));
            values.chain(of.helds.iter().map(|(one, held)| (*one, Source::Held(held.clone_ref(py))))).collect()
        };
        let mut found = Vec::new();
        for (one, source) in all {
            let Some(there) = source.tensor(py) else { continue };
            if storage(&there)? != from {
                continue;
            }
            found.push(source.object(py));
            let mut of = slf.borrow_mut();
            match source {
                Source::Value(_) => drop(of.values.remove(&one)),
                Source::Held(_) => drop(of.helds.remove(&one)),
            }
        }
        Ok(found)
    }

    /// Forgets all outputs and outside tensors.
    fn forget(slf: &Bound<'_, Notes>) {
        let gone = {
            let mut of = slf.borrow_mut();
            (std::mem::take(&mut of.values), std::mem::take(&mut of.helds))
        };
        drop(gone);
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.kinds)?;
        visit.call(&self.active)?;
        visit.call(&self.keeps)?;
        self.values.values().try_for_each(|value| visit.call(value))?;
        self.helds.values().try_for_each(|held| visit.call(held))
    }

    fn __clear__(&mut self) {
        self.values.clear();
        self.helds.clear();
    }
}

impl Notes {
    /// Where a tensor that a call reads comes from.
    fn source(slf: &Bound<'_, Notes>, torch: &Torch, tensor: &Bound<'_, PyAny>) -> Result<Source, Refused> {
        let py = slf.py();
        let (one, at, last) = (identity(tensor), address(tensor)?, version(tensor)?);
        let of = slf.borrow();
        if let Some(known) = of.values.get(&one) {
            let value = known.borrow(py);
            if value.version == last && value.address == at && refers_to(&value.tensor, tensor) {
                return Ok(Source::Value(known.clone_ref(py)));
            }
        }
        if let Some(known) = of.helds.get(&one) {
            let held = known.borrow(py);
            if held.version == last && held.address == at && refers_to(&held.tensor, tensor) {
                return Ok(Source::Held(known.clone_ref(py)));
            }
        }
        drop(of);
        Notes::outside(slf, torch, tensor).map(Source::Held)
    }

    /// Notes a tensor that no noted call has made.
    fn outside(slf: &Bound<'_, Notes>, torch: &Torch, tensor: &Bound<'_, PyAny>) -> Result<Py<Held>, Refused> {
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
        let before = slf.borrow_mut().helds.insert(identity(tensor), held.clone_ref(py));
        drop(before);
        Ok(held)
    }

    /// Adds an output of a call.
    fn add(slf: &Bound<'_, Notes>, value: Value, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
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
                if Notes::value_at(slf, other, of)?.is_some() {
                    there.push(other);
                }
            }
            slf.borrow_mut().of_storage.insert(of, there);
        }
        slf.borrow_mut().of_storage.entry(of).or_default().push(one);
        Ok(())
    }

    /// The noted output with this identity and its tensor, if the tensor is in a storage.
    #[expect(clippy::type_complexity, reason = "a value and its tensor")]
    fn value_at<'py>(
        slf: &Bound<'py, Notes>,
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

    /// The settings under which a call runs now.
    fn settings(slf: &Bound<'_, Notes>, torch: &Torch) -> PyResult<Py<PyTuple>> {
        let py = slf.py();
        let kind = slf.borrow().kind.clone_ref(py);
        let now = torch.settings(py, &kind, Some(false))?;
        if let Some((before, state)) = &slf.borrow().state
            && before.is(&now)
        {
            return Ok(state.clone_ref(py));
        }
        let state = now.tuple(py, &kind)?.unbind();
        slf.borrow_mut().state = Some((now, state.clone_ref(py)));
        Ok(state)
    }

    /// Whether the stream is another than the pass's.
    fn is_elsewhere(slf: &Bound<'_, Notes>, torch: &Torch) -> PyResult<bool> {
        match (slf.borrow().stream, &torch.stream) {
            (Some((index, stream)), Some(read)) => Ok(read.bind(slf.py()).call1((index,))?.extract::<u64>()? != stream),
            _ => Ok(false),
        }
    }
}

fn some(object: Bound<'_, PyAny>) -> Option<Py<PyAny>> {
    (!object.is_none()).then(|| object.unbind())
}

/// A call that is about to run.
struct Noted<'py> {
    args: Vec<Argument>,
    kwargs: Vec<(Py<PyAny>, Argument)>,
    pairs: Vec<Pair<'py>>,
    flags: u32,
}

impl<'py> Noted<'py> {
    fn new(
        slf: &Bound<'py, Notes>,
        torch: &Torch,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        flags: u32,
    ) -> Result<Noted<'py>, Refused> {
        let py = slf.py();
        let mut noted = Noted { args: Vec::with_capacity(args.len()), kwargs: Vec::new(), pairs: Vec::new(), flags };
        let scratches = if flags & STATISTICS != 0 { scratches(torch, function, args, kwargs)? } else { None };
        for (place, value) in args.iter().enumerate() {
            let is_scratch = scratches.is_some_and(|places| places.contains(&place)) && !value.is_none();
            let argument = match is_scratch {
                true if torch.is_tensor(&value) => Argument::Scratch(super::tensors::detached(&value)?.unbind()),
                true => return Err(Refused::Unknown),
                false => noted.argument(slf, torch, &value)?,
            };
            noted.args.push(argument);
        }
        if let Some(kwargs) = kwargs {
            if flags & STATISTICS == 0 {
                if let Some(inplace) = kwargs.get_item(intern!(py, "inplace"))? {
                    noted.flags = if inplace.is_truthy()? { flags | IN_PLACE } else { flags & !IN_PLACE };
                }
                if kwargs.contains(intern!(py, "out"))? {
                    return Err(Refused::Unknown);
                }
            }
            for (name, value) in kwargs.iter() {
                let argument = noted.argument(slf, torch, &value)?;
                noted.kwargs.push((name.unbind(), argument));
            }
        }
        if noted.pairs.is_empty() || noted.flags & IN_PLACE != 0 && !noted.writes_value() {
            return Err(Refused::Unknown);
        }
        Ok(noted)
    }

    /// Whether the first argument is an output of a noted call.
    fn writes_value(&self) -> bool {
        match self.args.first() {
            Some(Argument::Tensor(place)) => matches!(self.pairs[*place].1, Source::Value(_)),
            _ => false,
        }
    }

    /// Notes an argument.
    fn argument(
        &mut self,
        slf: &Bound<'py, Notes>,
        torch: &Torch,
        value: &Bound<'py, PyAny>,
    ) -> Result<Argument, Refused> {
        if torch.is_tensor_or_parameter(value) {
            let source = Notes::source(slf, torch, value)?;
            let known = self.pairs.iter().position(|(_, other)| other.identity() == source.identity());
            return Ok(Argument::Tensor(known.unwrap_or_else(|| {
                self.pairs.push((value.clone(), source));
                self.pairs.len() - 1
            })));
        }
        if torch.is_plain(value) {
            return Ok(Argument::Plain(value.clone().unbind()));
        }
        if let Ok(list) = value.cast_exact::<PyList>() {
            let items = list.iter().map(|item| self.argument(slf, torch, &item));
            return items.collect::<Result<_, _>>().map(Argument::List);
        }
        if value.cast_exact::<PyTuple>().is_err() && !torch.is_size(value) {
            return Err(Refused::Unknown);
        }
        let tuple = value.cast::<PyTuple>().map_err(PyErr::from)?;
        if tuple.iter().all(|item| torch.is_plain(&item)) {
            return Ok(Argument::Plain(value.clone().unbind()));
        }
        let items = tuple.iter().map(|item| self.argument(slf, torch, &item));
        items.collect::<Result<_, _>>().map(Argument::Tuple)
    }

    /// Runs the call, and decides about what it has made and saved.
    fn run(
        self,
        slf: &Bound<'py, Notes>,
        torch: &Torch,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let active = slf.borrow().active.bind(py).clone();
        let grads = self.pairs.iter().map(|(tensor, _)| tensor.getattr(intern!(py, "requires_grad"))?.is_truthy());
        let grads = grads.collect::<PyResult<Vec<_>>>()?;
        let state = Notes::settings(slf, torch)?;
        if active.getattr(intern!(py, "pending"))?.is_truthy()? {
            active.call_method0(intern!(py, "flush"))?;
        }
        let is_checked = self.flags & CHECKED != 0;
        let drawn = if is_checked { Some(slf.call_method0(intern!(py, "_generators"))?) } else { None };
        let first: usize = active.getattr(intern!(py, "k"))?.extract()?;
        let before = {
            let mut of = slf.borrow_mut();
            of.first = first;
            std::mem::replace(&mut of.runs, true)
        };
        let out = function.call(args, kwargs);
        {
            let mut of = slf.borrow_mut();
            (of.first, of.runs) = (first, before);
        }
        let out = out?;
        let packs = active.getattr(intern!(py, "k"))?.extract::<usize>()? - first;
        let mut same = match drawn {
            Some(drawn) => !slf.call_method1(intern!(py, "_has_drawn"), (drawn,))?.is_truthy()?,
            None => true,
        };
        same = same && !Notes::is_elsewhere(slf, torch)?;
        let target = (self.flags & IN_PLACE != 0).then(|| self.pairs[0].0.clone());
        let is_target = |tensor: &Bound<'py, PyAny>| target.as_ref().is_some_and(|target| target.is(tensor));
        let (mut ready, mut missing) = (true, Vec::new());
        for (tensor, source) in &self.pairs {
            match source {
                Source::Value(value) => {
                    let value = value.borrow(py);
                    ready = ready && (value.call.borrow(py).is_ready() || value.is_held(py)?);
                }
                Source::Held(known) => {
                    let held = known.borrow(py);
                    if held.is_copy {
                        drop(held);
                        let is_new = !slf.borrow().keeps.bind(py).contains(identity(tensor))?;
                        if is_new && tensor.getattr(intern!(py, "is_leaf"))?.is_truthy()? {
                            active.call_method1(intern!(py, "note_kept"), (tensor,))?;
                        }
                    } else if held.is_missing() && !is_target(tensor) {
                        missing.push(known.clone_ref(py));
                    }
                }
            }
            // It wrote to a tensor that it was not known to write to.
            same = same && (version(tensor)? == source.version(py) || is_target(tensor));
        }
        if !missing.is_empty() && same {
            missing = active.call_method1(intern!(py, "find_missing"), (missing,))?.extract()?;
        }
        let call = same.then(|| {
            let ready = ready && missing.is_empty();
            let tensors = self.pairs.iter().map(|(_, source)| source.clone_ref(py)).collect();
            let (function, flags) = (function.clone().unbind(), self.flags);
            Py::new(
                py,
                Call::new(function, self.args, self.kwargs, tensors, grads, flags, state, missing, ready, packs),
            )
        });
        let call = call.transpose()?;
        let outputs = match out.cast_exact::<PyTuple>() {
            Ok(outputs) => outputs.clone().into_any(),
            Err(_) if out.cast_exact::<PyList>().is_ok() => out.clone(),
            Err(_) => PyTuple::new(py, [&out])?.into_any(),
        };
        if let Some(call) = &call {
            for (index, made) in outputs.try_iter()?.enumerate() {
                let made = made?;
                let is_given = || self.pairs.iter().any(|(tensor, _)| tensor.is(&made));
                let is_new = || Ok::<_, PyErr>(!is_given() && Notes::value_of(slf, &made)?.is_none());
                if torch.is_tensor(&made) && (is_target(&made) || is_new()?) {
                    Notes::add(slf, Value::new(call.clone_ref(py), index, &made)?, &made)?;
                }
            }
        }
        if slf.borrow().sees_all || active.getattr(intern!(py, "pending"))?.is_truthy()? {
            let pairs = self.pairs.into_iter().map(|(tensor, source)| (tensor, source.object(py)));
            let pairs = PyList::new(py, pairs.collect::<Vec<_>>())?;
            active.call_method1(intern!(py, "call_ended"), (call, pairs, outputs))?;
        }
        Ok(out)
    }
}

/// The places of the statistics that a batch normalization updates and does not read, if it trains.
fn scratches(
    torch: &Torch,
    function: &Bound<'_, PyAny>,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> Result<Option<[usize; 2]>, Refused> {
    let py = function.py();
    let places = if function.is(&torch.batch_norm) { [1, 2] } else { [3, 4] };
    let named = match kwargs {
        Some(kwargs) => kwargs.get_item(intern!(py, "training"))?,
        None => None,
    };
    let training = match named {
        Some(training) => training,
        None if args.len() > 5 => args.get_item(5)?,
        None => return Err(Refused::Unknown),
    };
    if training.is_none() || args.len() <= places[1] {
        return Err(Refused::Unknown);
    }
    Ok(training.is_truthy()?.then_some(places))
}
