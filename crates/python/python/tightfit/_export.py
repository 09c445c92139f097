"""PyTorch models as networks: exported to ONNX, and read as any other ONNX file is."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ._native import network as layers_of
from .errors import BadInput, FileError


def network(model: nn.Module, example: Tensor, path: str | os.PathLike[str] | None = None) -> str:
    """Exports a model, as it is trained, to an ONNX file that can be used in place of a network's name.

    ::

        net = tightfit.torch.network(model, torch.randn(1, 3, 224, 224))
        tightfit.optimize(net, 256, workspace="64MiB", profile=profile)

    Needs the package ``onnx``. Batch normalization and dropout stay in, in every mode of the model. The file has the parameters and statistics of
    the model bit for bit. The model, with its modes, gradients and hooks, and the state of the random numbers are left as they are.

    Parameters
    ----------
    model
        Any module with one input.
    example
        A mini-batch of samples. Their number does not matter, and their shape becomes the network's.
    path
        Where to write the file, for ``tightfit plan FILE`` and other commands; the weights are in it. By default it
        is temporary and lasts until the process ends.

    Returns
    -------
    str
        The path of the file.

    Raises
    ------
    BadInput
        If PyTorch cannot export the model.
    FileError
        If the exported file has something that cannot be read as a network; the message names the operator.
    """
    if path is None:
        folder = tempfile.mkdtemp(prefix="tightfit-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        path = Path(folder) / f"{type(model).__name__.lower()}.onnx"
    file = os.fspath(path)
    if not file.endswith(".onnx"):
        raise BadInput(f"{file}: the name of an exported network must end in .onnx")
    if not isinstance(example, Tensor):
        raise BadInput(f"example takes a tensor, such as torch.randn(1, 3, 224, 224), not {type(example).__name__}")
    if not Path(file).absolute().parent.is_dir():
        raise FileError(f"cannot write {file}: there is no folder {Path(file).parent}; make it, or name another", file)
    with _unchanged(model) as tensors, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.train()
        for module in _computing_otherwise(model):
            module.training = False
        _export(model, example, file, tensors)
    layers_of(file)
    return file


# Modules whose weight a hook may compute from statistics that training updates.
_WEIGHTED = (nn.modules.conv._ConvNd, nn.Linear, nn.Embedding)


def _computing_otherwise(model: nn.Module) -> Iterator[nn.Module]:
    """The modules that compute with other numbers in training than afterwards. Dropout is not one of them: it does nothing afterwards."""
    for module in model.modules():
        if isinstance(module, _NormBase) and module.track_running_stats or isinstance(module, _WEIGHTED):
            yield module
        elif isinstance(module, nn.utils.parametrize.ParametrizationList):
            yield from module.modules()


class _Tensors:
    """The parameters and buffers of a model, and their numbers."""

    def __init__(self, model: nn.Module) -> None:
        tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.saved = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]

    def put_back(self) -> None:
        """Undoes the writes of a pass. An exporter that traces does not record this."""
        tracing = torch._C._get_tracing_state()
        torch._C._set_tracing_state(None)
        try:
            with torch.no_grad():
                for tensor, saved in self.saved:
                    # A backward pass that is still to come may need the tensor as it was left.
                    if not torch.equal(tensor, saved):
                        tensor.copy_(saved)
        finally:
            torch._C._set_tracing_state(tracing)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[_Tensors]:
    """Restores everything that a pass may change: numbers, the contents of modules (modes, hooks, tensors, attributes), and random states."""
    tensors = _Tensors(model)
    held = []
    for module in model.modules():
        if not isinstance(module, torch.jit.ScriptModule):
            names = vars(module)
            held.append((names, dict(names), [(value, value.copy()) for value in names.values() if isinstance(value, dict)]))
    modes = [(module, module.training) for module in model.modules()]
    numpy = sys.modules.get("numpy")
    python_state, numpy_state = random.getstate(), numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng():
            yield tensors
    finally:
        for names, had, inside in held:
            names.clear()
            names.update(had)
            for value, copy in inside:
                value.clear()
                value.update(copy)
        for module, training in modes:
            module.training = training
        tensors.put_back()
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)


def _export(model: nn.Module, example: Tensor, file: str, tensors: _Tensors) -> None:
    """Writes the file, by the exporter that works."""
    # The older exporter is much faster; it needs the package onnx alone.
    script: dict[str, Any] = {
        "dynamo": False,
        "training": torch.onnx.TrainingMode.PRESERVE,
        "do_constant_folding": False,
        "input_names": ["input"],
        "dynamic_axes": {"input": {0: "batch"}},
    }
    # Optimizing would merge batch normalizations into convolutions.
    dynamo: dict[str, Any] = {"dynamo": True, "optimize": False, "verbose": False, "dynamic_shapes": ({0: "batch"},)}
    failures = []
    for options in (script, dynamo):
        # The older exporter runs the model first, and writes its tensors as it finds them afterwards.
        traces = not options["dynamo"] and not isinstance(model, torch.jit.ScriptModule)
        hook = None if not traces else model.register_forward_hook(lambda *_: tensors.put_back(), always_call=True)
        try:
            torch.onnx.export(model, (example,), file, **options)
        except Exception as error:  # Exporters raise whatever their parts do.
            failures.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
        else:
            return
        finally:
            if hook is not None:
                hook.remove()
            tensors.put_back()
    missing = any("not installed" in failure for failure in failures)
    advice = "; install what is missing with `pip install onnx`" if missing else ""
    raise BadInput("PyTorch cannot export the model: " + "; ".join(failures) + advice)
