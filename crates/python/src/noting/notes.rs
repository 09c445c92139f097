//! Notes the calls of a pass as they are made.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::calls::{Argument, Call, Ended, Held, IN_PLACE, Pair, Source, Value};
use super::decide::{find_missing, settle, settle_after};
use super::noted::{NotedTensors, Refused};
use super::rerun::copy_of;
use super::tensors::{Settings, Torch, detached, identity, truth, version};

/// Kinds of calls, flags of `functions.py`: it casts inputs under autocast, updates running statistics, may draw random
/// numbers, is not noted as a whole, gives the bytes of a tensor away, which may be written then, or makes casts itself.
const CASTS: u32 = 2;
const STATISTICS: u32 = 8;
const CHECKED: u32 = 16;
const OPENED: u32 = 32;
const DATA: u32 = 64;
const CASTS_INSIDE: u32 = 128;

/// The calls of one pass, noted as they are made.
#[pyclass(extends = NotedTensors, subclass, module = "tightfit._native")]
pub struct Notes {
    kinds: Py<PyDict>,
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
    /// Whether a noted call runs.
    #[pyo3(get)]
    runs: bool,
}

#[pymethods]
impl Notes {
    #[new]
    fn new(
        kinds: Py<PyDict>,
        active: &Bound<'_, PyAny>,
        device: &Bound<'_, PyAny>,
    ) -> PyResult<PyClassInitializer<Notes>> {
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
        let keeps = schedule.getattr("keeps")?.cast_into::<PyDict>()?.unbind();
        let notes = Notes {
            kinds,
            sees_all: schedule.getattr("looks")?.is_truthy()? || schedule.getattr("dropped")?.is_truthy()?,
            device: device.clone().unbind(),
            kind: kind.unbind(),
            stream,
            state: None,
            on: true,
            runs: false,
        };
        let tensors = NotedTensors::new(active.clone().unbind(), keeps);
        Ok(PyClassInitializer::from(tensors).add_subclass(notes))
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
        // Programs write through `.data` without gradients too.
        if !slf.borrow().on || flags & DATA == 0 && !truth(py, &torch.is_grad_enabled)? {
            return function.call(args, kwargs);
        }
        // A dispatch mode of the program may change what operations give.
        if flags & DATA == 0 && truth(py, &torch.dispatch_modes)? {
            return function.call(args, kwargs);
        }
        if flags & (OPENED | DATA) != 0 {
            let words = kwargs.map_or_else(|| PyDict::new(py), Clone::clone);
            return slf.call_method1(intern!(py, "_special"), (function, flags, args, words));
        }
        let mut args = args.clone();
        if flags & (CASTS | CASTS_INSIDE) != 0 && truth(py, &torch.is_any_autocast)? {
            if flags & CASTS != 0 {
                args = slf.call_method1(intern!(py, "cast"), (args,))?.cast_into()?;
            }
            if slf.call_method1(intern!(py, "_has_stale_casts"), (&args, kwargs))?.is_truthy()? {
                return function.call(args, kwargs);
            }
        }
        match NewCall::new(slf, torch, function, &args, kwargs, flags) {
            Ok(call) => call.run(slf, torch, function, &args, kwargs),
            Err(Refused::Unknown) => function.call(args, kwargs),
            Err(Refused::Failed(error)) => Err(error),
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.kinds)
    }
}

impl Notes {
    /// The settings under which a call runs now.
    fn settings(slf: &Bound<'_, Notes>, torch: &Torch) -> PyResult<Py<PyTuple>> {
        let py = slf.py();
        let kind = slf.borrow().kind.clone_ref(py);
        let now = torch.settings(py, &kind, Some(false))?;
        if let Some((before, state)) = &slf.borrow().state
            && before.is(py, &now)?
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

/// A call that is about to run.
struct NewCall<'py> {
    args: Vec<Argument>,
    kwargs: Vec<(Py<PyAny>, Argument)>,
    pairs: Vec<Pair<'py>>,
    flags: u32,
}

impl<'py> NewCall<'py> {
    /// Refers to the arguments of a call.
    fn new(
        slf: &Bound<'py, Notes>,
        torch: &Torch,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        flags: u32,
    ) -> Result<NewCall<'py>, Refused> {
        let py = slf.py();
        let mut noted = NewCall { args: Vec::with_capacity(args.len()), kwargs: Vec::new(), pairs: Vec::new(), flags };
        let statistics = if flags & STATISTICS != 0 { Some(statistics(torch, function, args, kwargs)?) } else { None };
        for (place, value) in args.iter().enumerate() {
            let argument = match &statistics {
                Some((places, trains)) if places.contains(&place) && !value.is_none() => {
                    if !torch.is_tensor(&value) {
                        return Err(Refused::Unknown);
                    }
                    // A later batch normalization that trains writes them without a new version.
                    let seen = detached(&value)?;
                    let seen = if *trains { seen } else { copy_of(&seen)? };
                    Argument::Scratch(seen.unbind())
                }
                _ => noted.argument(slf, torch, &value)?,
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
            let source = NotedTensors::source(slf.as_super(), torch, value)?;
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

    /// Runs the call, notes its outputs, and decides about its saved tensors.
    fn run(
        self,
        slf: &Bound<'py, Notes>,
        torch: &Torch,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let tensors = slf.as_super();
        let active = tensors.borrow().active.bind(py).clone();
        let grads = self.pairs.iter().map(|(tensor, _)| tensor.getattr(intern!(py, "requires_grad"))?.is_truthy());
        let grads = grads.collect::<PyResult<Vec<_>>>()?;
        let state = Notes::settings(slf, torch)?;
        settle(&active)?;
        let is_checked = self.flags & CHECKED != 0;
        let drawn = if is_checked { Some(slf.call_method0(intern!(py, "_generators"))?) } else { None };
        let first: usize = active.getattr(intern!(py, "k"))?.extract()?;
        tensors.borrow_mut().first = first;
        let before = std::mem::replace(&mut slf.borrow_mut().runs, true);
        let out = function.call(args, kwargs);
        tensors.borrow_mut().first = first;
        slf.borrow_mut().runs = before;
        let out = out?;
        let packs = active.getattr(intern!(py, "k"))?.extract::<usize>()? - first;
        let mut same = match drawn {
            Some(drawn) => !slf.call_method1(intern!(py, "_has_drawn"), (drawn,))?.is_truthy()?,
            None => true,
        };
        same = same && !Notes::is_elsewhere(slf, torch)?;
        let target = (self.flags & IN_PLACE != 0).then(|| self.pairs[0].0.clone());
        let is_target = |tensor: &Bound<'py, PyAny>| target.as_ref().is_some_and(|target| target.is(tensor));
        let (mut ready, mut missing) = (true, Vec::<Bound<'py, Held>>::new());
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
                        let is_new = !tensors.borrow().keeps.bind(py).contains(identity(tensor))?;
                        if is_new && tensor.getattr(intern!(py, "is_leaf"))?.is_truthy()? {
                            active.call_method1(intern!(py, "note_kept"), (tensor,))?;
                        }
                    } else if held.is_missing() && !is_target(tensor) {
                        missing.push(known.bind(py).clone());
                    }
                }
            }
            // It wrote to a tensor that it was not known to write to.
            same = same && (version(tensor)? == source.version(py) || is_target(tensor));
        }
        let missing = match same {
            true if !missing.is_empty() => find_missing(&active, slf.as_any(), missing)?,
            _ => Vec::new(),
        };
        let call = same.then(|| {
            let ready = ready && missing.is_empty();
            let sources = self.pairs.iter().map(|(_, source)| source.clone_ref(py)).collect();
            let (function, flags) = (function.clone().unbind(), self.flags);
            Py::new(
                py,
                Call::new(function, self.args, self.kwargs, sources, grads, flags, state, missing, ready, packs),
            )
        });
        let call = call.transpose()?.map(|call| call.into_bound(py));
        let outputs: Vec<_> = match (out.cast_exact::<PyTuple>(), out.cast_exact::<PyList>()) {
            (Ok(outputs), _) => outputs.iter().collect(),
            (_, Ok(outputs)) => outputs.iter().collect(),
            _ => vec![out.clone()],
        };
        if let Some(call) = &call {
            for (index, made) in outputs.iter().enumerate() {
                let is_given = || self.pairs.iter().any(|(tensor, _)| tensor.is(made));
                let is_new = || Ok::<_, PyErr>(!is_given() && NotedTensors::value_of(tensors, made)?.is_none());
                if torch.is_tensor(made) && (is_target(made) || is_new()?) {
                    NotedTensors::add(tensors, Value::new(call.clone().unbind(), index, made)?, made)?;
                }
            }
        }
        if slf.borrow().sees_all {
            active.call_method1(intern!(py, "call_ended"), (PyTuple::new(py, &outputs)?,))?;
        }
        settle_after(&active, &Ended { call: call.as_ref(), pairs: &self.pairs, outputs: &outputs })?;
        Ok(out)
    }
}

/// The places of a batch normalization's running statistics, and whether it trains: then it updates them and does not read them.
fn statistics(
    torch: &Torch,
    function: &Bound<'_, PyAny>,
    args: &Bound<'_, PyTuple>,
    kwargs: Option<&Bound<'_, PyDict>>,
) -> Result<([usize; 2], bool), Refused> {
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
    Ok((places, training.is_truthy()?))
}
