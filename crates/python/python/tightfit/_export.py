"""PyTorch models as networks: exported to ONNX, and read as any other ONNX file is."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ._native import network as layers_of
from .errors import BadInput


def network(model: nn.Module, example: Tensor, path: str | os.PathLike[str] | None = None) -> str:
    """Exports a model, as it is trained, to an ONNX file that can be used in place of a network's name.

    ::

        net = tightfit.torch.network(model, torch.randn(1, 3, 224, 224))
        tightfit.optimize(net, 256, workspace="64MiB", profile=profile)

    Needs the package ``onnx``. Batch normalization and dropout stay in, whatever the mode of the model. The model, its statistics and the state of
    the random numbers are left as they are.

    Parameters
    ----------
    model
        Any module with one input.
    example
        A mini-batch of samples; their number does not matter, their shape becomes that of the network.
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
    was_training = {name: module.training for name, module in model.named_modules()}
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    try:
        model.train()
        with torch.random.fork_rng(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _export(model, example, file)
    finally:
        for name, module in model.named_modules():
            module.training = was_training[name]
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
    layers_of(file)
    return file


def _export(model: nn.Module, example: Tensor, file: str) -> None:
    """Writes the file, by the exporter that works."""
    # The older exporter is much faster; it needs the package onnx alone.
    script: dict[str, Any] = {
        "dynamo": False,
        "training": torch.onnx.TrainingMode.TRAINING,
        "do_constant_folding": False,
        "input_names": ["input"],
        "dynamic_axes": {"input": {0: "batch"}},
    }
    # Optimizing would merge batch normalizations into convolutions.
    dynamo: dict[str, Any] = {"dynamo": True, "optimize": False, "verbose": False, "dynamic_shapes": ({0: "batch"},)}
    failures = []
    for options in (script, dynamo):
        try:
            torch.onnx.export(model, (example,), file, **options)
        except Exception as error:  # Exporters raise whatever their parts do.
            failures.append(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}")
        else:
            return
    missing = any("not installed" in failure for failure in failures)
    advice = "; install what is missing with `pip install onnx`" if missing else ""
    raise BadInput("PyTorch cannot export the model: " + "; ".join(failures) + advice)
