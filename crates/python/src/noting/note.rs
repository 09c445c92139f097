//! Notes one call.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::calls::{Argument, Call, Held, IN_PLACE, Source, Value};
use super::decide::{Ended, Pair, find_missing, settle, settle_after};
use super::notes::{Notes, Refused};
use super::rerun::copy_of;
use super::tensors::{Torch, detached, identity, version};

/// Kinds of calls, flags of `functions.py`: it casts inputs under autocast, updates running statistics, may draw random
/// numbers, is not noted as a whole, gives the bytes of a tensor away, which may be written then, or makes casts itself.
pub const CASTS: u32 = 2;
const STATISTICS: u32 = 8;
const CHECKED: u32 = 16;
pub const OPENED: u32 = 32;
pub const DATA: u32 = 64;
pub const CASTS_INSIDE: u32 = 128;

/// A call that is about to run.
pub struct Noted<'py> {
    args: Vec<Argument>,
    kwargs: Vec<(Py<PyAny>, Argument)>,
    pairs: Vec<Pair<'py>>,
    flags: u32,
}

impl<'py> Noted<'py> {
    /// Refers to the arguments of a call.
    pub fn new(
        slf: &Bound<'py, Notes>,
        torch: &Torch,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
        flags: u32,
    ) -> Result<Noted<'py>, Refused> {
        let py = slf.py();
        let mut noted = Noted { args: Vec::with_capacity(args.len()), kwargs: Vec::new(), pairs: Vec::new(), flags };
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

    /// Runs the call, notes its outputs, and decides about its saved tensors.
    pub fn run(
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
        settle(&active)?;
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
                        let is_new = !slf.borrow().keeps.bind(py).contains(identity(tensor))?;
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
            true if !missing.is_empty() => find_missing(&active, slf, missing)?,
            _ => Vec::new(),
        };
        let call = same.then(|| {
            let ready = ready && missing.is_empty();
            let tensors = self.pairs.iter().map(|(_, source)| source.clone_ref(py)).collect();
            let (function, flags) = (function.clone().unbind(), self.flags);
            Py::new(
                py,
                Call::new(function, self.args, self.kwargs, tensors, grads, flags, state, missing, ready, packs),
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
                let is_new = || Ok::<_, PyErr>(!is_given() && Notes::value_of(slf, made)?.is_none());
                if torch.is_tensor(made) && (is_target(made) || is_new()?) {
                    Notes::add(slf, Value::new(call.clone().unbind(), index, made)?, made)?;
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
