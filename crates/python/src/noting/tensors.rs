//! Attributes of Python's tensors, and the functions of PyTorch that a noted call reads. PyTorch's C++ interface changes with its
//! versions, so all of these are Python's.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PySlice, PyTuple, PyType};

/// Types and functions of PyTorch, looked up once.
pub struct Torch {
    tensor: Py<PyType>,
    parameter: Py<PyType>,
    size: Py<PyType>,
    weakref: Py<PyType>,
    /// Types of arguments that are the same whenever they are read.
    plain: Vec<Py<PyType>>,
    pub strided: Py<PyAny>,
    pub batch_norm: Py<PyAny>,
    pub is_grad_enabled: Py<PyAny>,
    pub set_grad_enabled: Py<PyAny>,
    pub is_any_autocast: Py<PyAny>,
    /// How many dispatch modes are on.
    pub dispatch_modes: Py<PyAny>,
    is_autocast: Py<PyAny>,
    autocast_dtype: Py<PyAny>,
    keeps_casts: Py<PyAny>,
    /// The settings that choose kernels: on a GPU, and elsewhere.
    kernels: [Vec<Choice>; 2],
    pub push_hooks: Py<PyAny>,
    pub pop_hooks: Py<PyAny>,
    /// The stream of a GPU; builds for CPUs have none.
    pub stream: Option<Py<PyAny>>,
}

impl Torch {
    /// The types and functions; the first call imports them.
    pub fn get(py: Python<'_>) -> PyResult<&'static Torch> {
        static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
        TORCH.get_or_try_init(py, || Torch::new(py))
    }

    fn new(py: Python<'_>) -> PyResult<Torch> {
        let torch = py.import("torch")?;
        let private = torch.getattr("_C")?;
        let autograd = private.getattr("_autograd")?;
        let builtins = py.import("builtins")?;
        let named = |of: &Bound<'_, PyAny>, name: &str| Ok::<_, PyErr>(of.getattr(name)?.unbind());
        let class =
            |of: &Bound<'_, PyAny>, name: &str| Ok::<_, PyErr>(of.getattr(name)?.cast_into::<PyType>()?.unbind());
        let mut plain = Vec::new();
        for name in ["bool", "int", "float", "complex", "str"] {
            plain.push(class(&builtins, name)?);
        }
        for name in ["dtype", "device", "layout", "memory_format"] {
            plain.push(class(&torch, name)?);
        }
        plain.push(py.None().bind(py).get_type().unbind());
        plain.push(py.Ellipsis().bind(py).get_type().unbind());
        Ok(Torch {
            tensor: class(&torch, "Tensor")?,
            parameter: class(&torch.getattr("nn")?, "Parameter")?,
            size: class(&torch, "Size")?,
            weakref: class(py.import("weakref")?.as_any(), "ref")?,
            plain,
            strided: named(&torch, "strided")?,
            batch_norm: named(py.import("torch.nn.functional")?.as_any(), "batch_norm")?,
            is_grad_enabled: named(&torch, "is_grad_enabled")?,
            set_grad_enabled: named(&private, "_set_grad_enabled")?,
            dispatch_modes: named(&private, "_len_torch_dispatch_stack")?,
            is_any_autocast: named(&private, "_is_any_autocast_enabled")?,
            is_autocast: named(&torch, "is_autocast_enabled")?,
            autocast_dtype: named(&torch, "get_autocast_dtype")?,
            keeps_casts: named(&torch, "is_autocast_cache_enabled")?,
            kernels: [choices(py, "cuda")?, choices(py, "cpu")?],
            push_hooks: named(&autograd, "_push_saved_tensors_default_hooks")?,
            pop_hooks: named(&autograd, "_pop_saved_tensors_default_hooks")?,
            stream: private.getattr_opt("_cuda_getCurrentRawStream")?.map(Bound::unbind),
        })
    }

    /// Whether a value is a tensor of PyTorch's own class.
    pub fn is_tensor(&self, value: &Bound<'_, PyAny>) -> bool {
        is_of(value, &self.tensor)
    }

    /// Whether it is a tensor or a parameter.
    pub fn is_tensor_or_parameter(&self, value: &Bound<'_, PyAny>) -> bool {
        is_of(value, &self.tensor) || is_of(value, &self.parameter)
    }

    /// Whether it is a shape.
    pub fn is_size(&self, value: &Bound<'_, PyAny>) -> bool {
        is_of(value, &self.size)
    }

    /// Whether it is the same whenever it is read. A slice is, unless a bound of it is a tensor.
    pub fn is_plain(&self, value: &Bound<'_, PyAny>) -> bool {
        let py = value.py();
        if let Ok(slice) = value.cast_exact::<PySlice>() {
            let bounds = [intern!(py, "start"), intern!(py, "stop"), intern!(py, "step")];
            return bounds.into_iter().all(|bound| slice.getattr(bound).is_ok_and(|bound| self.is_plain(&bound)));
        }
        self.plain.iter().any(|plain| is_of(value, plain))
    }

    /// Whether it is a weak reference.
    pub fn is_weakref(&self, value: &Bound<'_, PyAny>) -> bool {
        is_of(value, &self.weakref)
    }

    /// Reads the settings under which calls run now.
    pub fn settings(&self, py: Python<'_>, device: &Py<PyAny>, caches: Option<bool>) -> PyResult<Settings> {
        let is_cast = truth(py, &self.is_any_autocast)? && self.is_autocast.bind(py).call1((device,))?.is_truthy()?;
        let [on_gpu, elsewhere] = &self.kernels;
        let choices = if device.bind(py).eq(intern!(py, "cuda"))? { on_gpu } else { elsewhere };
        let kernels = choices.iter().map(|choice| choice.read(py)).collect::<PyResult<_>>()?;
        Ok(Settings {
            dtype: if is_cast { Some(self.autocast_dtype.call1(py, (device,))?) } else { None },
            caches: match caches {
                Some(caches) => caches,
                None => truth(py, &self.keeps_casts)?,
            },
            kernels,
        })
    }
}

/// A setting that chooses kernels: a `Choice` of `settings.py`.
struct Choice {
    read: Py<PyAny>,
    /// Reads it where `read` raises, as it has done if `raises`.
    other: Option<Py<PyAny>>,
    raises: AtomicBool,
}

impl Choice {
    fn read(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let Some(other) = &self.other else { return self.read.call0(py) };
        if !self.raises.load(Ordering::Relaxed) {
            if let Ok(value) = self.read.call0(py) {
                return Ok(value);
            }
            self.raises.store(true, Ordering::Relaxed);
        }
        other.call0(py)
    }
}

/// The settings that choose kernels on a kind of device.
fn choices(py: Python<'_>, kind: &str) -> PyResult<Vec<Choice>> {
    let all = py.import("tightfit._budget.record.settings")?.getattr("CHOICES")?.get_item(kind)?;
    let one = |choice: PyResult<Bound<'_, PyAny>>| {
        let (read, _write, other) = choice?.extract::<(Py<PyAny>, Py<PyAny>, Option<Py<PyAny>>)>()?;
        Ok(Choice { read, other, raises: AtomicBool::new(false) })
    };
    all.try_iter()?.map(one).collect()
}

/// The settings that choose kernels: the type to which autocast casts, whether it keeps casts of parameters, and the others.
pub struct Settings {
    dtype: Option<Py<PyAny>>,
    caches: bool,
    kernels: Vec<Py<PyAny>>,
}

impl Settings {
    /// Whether two settings are the same. A type is one object.
    pub fn is(&self, py: Python<'_>, other: &Settings) -> PyResult<bool> {
        let address = |dtype: &Option<Py<PyAny>>| dtype.as_ref().map(Py::as_ptr);
        if (address(&self.dtype), self.caches) != (address(&other.dtype), other.caches) {
            return Ok(false);
        }
        for (one, another) in self.kernels.iter().zip(&other.kernels) {
            if !one.is(another) && !one.bind(py).eq(another)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The settings as Python changes them: the kind of device, the type, whether casts are kept, and the values of `settings.py`.
    pub fn tuple<'py>(&self, py: Python<'py>, device: &Py<PyAny>) -> PyResult<Bound<'py, PyTuple>> {
        let dtype = self.dtype.as_ref().map_or_else(|| py.None(), |dtype| dtype.clone_ref(py));
        let mut all = vec![device.clone_ref(py), dtype, PyBool::new(py, self.caches).to_owned().into_any().unbind()];
        all.extend(self.kernels.iter().map(|value| value.clone_ref(py)));
        PyTuple::new(py, all)
    }
}

/// The settings that choose kernels: the kind of device, the type to which autocast casts, whether it keeps casts of parameters,
/// which reruns do not, and the values of `settings.py`.
#[pyfunction]
#[pyo3(signature = (kind, caches = None))]
pub fn settings<'py>(py: Python<'py>, kind: Py<PyAny>, caches: Option<bool>) -> PyResult<Bound<'py, PyTuple>> {
    Torch::get(py)?.settings(py, &kind, caches)?.tuple(py, &kind)
}

fn is_of(value: &Bound<'_, PyAny>, class: &Py<PyType>) -> bool {
    value.get_type_ptr().cast() == class.as_ptr()
}

/// Calls a function that returns whether something is on.
pub fn truth(py: Python<'_>, read: &Py<PyAny>) -> PyResult<bool> {
    read.bind(py).call0()?.is_truthy()
}

/// The identity of an object.
pub fn identity(object: &Bound<'_, PyAny>) -> usize {
    object.as_ptr() as usize
}

/// How often a tensor was written.
pub fn version(tensor: &Bound<'_, PyAny>) -> PyResult<i64> {
    tensor.getattr(intern!(tensor.py(), "_version"))?.extract()
}

/// Where a tensor's bytes begin.
pub fn address(tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
    tensor.call_method0(intern!(tensor.py(), "data_ptr"))?.extract()
}

/// The identity of a tensor's storage.
pub fn storage(tensor: &Bound<'_, PyAny>) -> PyResult<u64> {
    let py = tensor.py();
    tensor.call_method0(intern!(py, "untyped_storage"))?.getattr(intern!(py, "_cdata"))?.extract()
}

/// A tensor of the same bytes that refers to no node.
pub fn detached<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    tensor.call_method0(intern!(tensor.py(), "detach"))
}

/// A saved tensor that refers to no node, which would make a cycle. A parameter, which none made, is itself: plain autograd, too,
/// sees what a program assigns to its `.data`.
#[pyfunction]
pub fn unowned<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if tensor.getattr(intern!(tensor.py(), "is_leaf"))?.is_truthy()? { Ok(tensor.clone()) } else { detached(tensor) }
}

/// A tensor as a view of its storage: shape, strides, offset and type.
#[pyfunction]
pub fn view_of<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyTuple>> {
    let py = tensor.py();
    let shape = tensor.getattr(intern!(py, "shape"))?;
    let stride = tensor.call_method0(intern!(py, "stride"))?;
    let offset = tensor.call_method0(intern!(py, "storage_offset"))?;
    (shape, stride, offset, tensor.getattr(intern!(py, "dtype"))?).into_pyobject(py)
}
