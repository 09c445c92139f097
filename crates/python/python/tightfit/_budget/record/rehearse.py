"""Rehearses a step on fake tensors. Activations are neither computed nor allocated, and the model stays as it is.

The model is copied with fake parameters. Its code writes to the copy: counters, cached tables, running statistics. Facts that the forward pass
does not show are assumed and listed in `Rehearsal.assumed`.
"""

from __future__ import annotations

import copy
import enum
import functools
import logging
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_flatten, tree_map

from .compiled_parts import compiled_parts, within
from .cost import flops
from .leaked import make_real
from .marks import Marks
from .recorder import Packed, Recorder, has_storage
from .transforms import StepsAside, step_aside
from .unwatched import Ours
from .values import Values, has_values

__all__ = ["CannotRehearse", "Rehearsal", "assumed_loss", "follow", "is_recording", "name_externals", "no_autocast", "random_states_kept", "rehearse"]

_busy = threading.local()
# Types that inputs may consist of in a rehearsal.
_VALUES = (
    Tensor, bool, int, float, complex, str, bytes, type(None), enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class CannotRehearse(Exception):
    """The step cannot run on fake tensors; the text states the reason."""


@dataclass
class Rehearsal:
    """The recorded step, and the assumptions made for it."""

    recorder: Recorder
    gradients: set[int] = field(default_factory=set)
    assumed: list[str] = field(default_factory=list)


def is_recording() -> bool:
    """Whether this thread is rehearsing. Hooks on the model do nothing then."""
    return getattr(_busy, "depth", 0) > 0


@contextmanager
def _recording() -> Iterator[None]:
    _busy.depth = getattr(_busy, "depth", 0) + 1
    try:
        yield
    finally:
        _busy.depth -= 1


@contextmanager
def random_states_kept() -> Iterator[None]:
    """Restores the random states of Python, NumPy and PyTorch at exit."""
    of_python = random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    of_torch = torch.get_rng_state()
    gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    of_gpu = torch.cuda.get_rng_state() if gpu else None
    try:
        yield
    finally:
        random.setstate(of_python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if gpu:
            torch.cuda.set_rng_state(of_gpu)


def assumed_loss(outputs: Any) -> tuple[Tensor, str]:
    """A loss for unknown outputs: the first scalar among them, or else a loss with the memory of a cross entropy.

    A cross entropy keeps one copy of the outputs in 32 bits and makes two gradients. If the program's loss needs more, the first step shows it.
    """
    tensors = [
        value
        for value in _tensors(outputs)
        if value.requires_grad and (value.dtype.is_floating_point or value.dtype.is_complex)
    ]
    if not tensors:
        raise CannotRehearse("no output of the model requires a gradient")
    for value in tensors:
        if value.dim() == 0:
            return value, ""
    total = sum(value.float().log_softmax(-1).mean() for value in tensors)
    assert isinstance(total, Tensor)
    return total, "the loss is a cross entropy of the outputs, in 32 bits"


def _tensors(outputs: Any) -> list[Tensor]:
    """The tensors in outputs of any form, including fields of dataclasses."""
    found: list[Tensor] = []
    for value in tree_flatten(outputs)[0]:
        if isinstance(value, Tensor):
            found.append(value)
        elif hasattr(value, "__dataclass_fields__"):
            for item in vars(value).values():
                found.extend(_tensors(item))
    return found


def name_externals(recorder: Recorder, model: nn.Module, inputs: list[Any]) -> None:
    """Names parameters, buffers, gradients and inputs in the recorder."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        recorder.name(parameter, "parameter", name)
        if has_storage(parameter.grad):
            recorder.name(parameter.grad, "gradient", name)
    for name, buffer in model.named_buffers(remove_duplicate=False):
        recorder.name(buffer, "buffer", name)
    for position, value in enumerate(inputs):
        if isinstance(value, Tensor):
            recorder.name(value, "input", position)


def rehearse(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Callable[[Any], Tensor] | None = None,
    with_gradients: bool = False,
) -> Rehearsal:
    """Records forward and backward passes of a model on fake inputs like these.

    Parameters
    ----------
    model
        Left as it is.
    args, kwargs
        Inputs of its ``forward``; only shapes, strides and types are read.
    loss
        Maps the outputs to a scalar.
    with_gradients
        Whether parameters have gradients before the step, as when they accumulate.

    Raises
    ------
    CannotRehearse
        If the model cannot run on fake tensors, for example because it reads values of its tensors.
    """
    _refuse_objects(args, kwargs)
    _start_engine()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    values = Values()
    recorder = Recorder(flops, lambda tensors, changed: _refuse_writes(values, tensors, changed))
    result = Rehearsal(recorder)
    failed: CannotRehearse | None = None
    with _recording(), random_states_kept(), _without_log(), _own_parametrizations():
        try:
            _run(model, args, kwargs, loss, with_gradients, fake, values, recorder, result)
        except CannotRehearse as error:
            # Tracebacks hold tensors.
            failed = error.with_traceback(None)
        except Exception as error:
            first = str(error).splitlines()[:1]
            failed = CannotRehearse(": ".join([type(error).__name__, *first]))
            failed.__cause__ = error.with_traceback(None)
    make_real(recorder)
    if failed is not None:
        raise failed
    recorder.finish()
    return result


@contextmanager
def _without_log() -> Iterator[None]:
    """Keeps tracebacks of fake tensors out of the program's log: where a rehearsal fails, a real step is recorded."""
    logger, thread = logging.getLogger("torch._subclasses.fake_tensor"), threading.get_ident()

    def is_other(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


@contextmanager
def _own_parametrizations() -> Iterator[None]:
    """Keeps fake weights out of the program's ``parametrize.cached()``, which finds a weight by the module that was copied."""
    before, parametrize._cache = parametrize._cache, {}
    try:
        yield
    finally:
        parametrize._cache = before


@functools.cache
def _start_engine() -> None:
    """Starts autograd's engine, which creates a thread for each known device. After fake tensors, it would count a GPU that may not exist, and a
    forked child cannot have the GPU's thread."""
    with torch.enable_grad():
        torch.zeros((), requires_grad=True).backward()


def _refuse_objects(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses inputs that may hold hidden tensors, or that the model may write to."""
    for value in tree_flatten((args, kwargs))[0]:
        if not isinstance(value, _VALUES):
            raise CannotRehearse(f"an input is of type {type(value).__name__}")


def _refuse_writes(values: Values, tensors: list[Tensor], changed: list[Tensor]) -> None:
    """Refuses writes to real tensors that are neither the model's nor inputs, such as global ones, and to their gradients."""
    for tensor in tensors:
        if not isinstance(tensor, FakeTensor) and not values.owns(tensor) and (tensor.requires_grad or any(tensor is other for other in changed)):
            what = "needs a gradient" if tensor.requires_grad else "is written to"
            raise CannotRehearse(f"a tensor {list(tensor.shape)} that is not the model's {what}")


def _run(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Callable[[Any], Tensor] | None,
    with_gradients: bool,
    fake: FakeTensorMode,
    values: Values,
    recorder: Recorder,
    result: Rehearsal,
) -> None:
    step_aside()
    with FakeCopyMode(fake):
        copied = copy.deepcopy(model)
    values.copy_buffers(model, copied)
    follow(recorder, copied)
    if compiled_parts(copied):
        result.assumed.append("compiled modules save what they would save uncompiled")
    with fake:
        fake_args, fake_kwargs = tree_map(lambda value: _like(value, values), (args, kwargs))
        if with_gradients:
            for parameter in copied.parameters():
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
        flat = tree_flatten((fake_args, fake_kwargs))[0]
        name_externals(recorder, copied, flat)
        hooks = _Forget(recorder)
        with values, recorder:
            with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack), Marks(recorder):
                outputs = copied(*fake_args, **fake_kwargs)
            recorder.given = len(recorder.timeline)
            if loss is None:
                value, assumed = assumed_loss(outputs)
                result.assumed.extend([assumed] if assumed else [])
            else:
                value = loss(outputs)
            if value.dim() != 0:
                raise CannotRehearse(f"the loss has shape {tuple(value.shape)}; it must be a scalar")
            recorder.stage = "backward"
            # Programs leave autocast, and drop its cached casts, before the backward pass.
            recorder.drop_casts()
            with no_autocast():
                value.backward()
            del value, outputs
        for parameter in copied.parameters():
            if has_storage(parameter.grad):
                result.gradients.add(recorder.storage(parameter.grad).number)


@contextmanager
def no_autocast() -> Iterator[None]:
    """Switches autocast off. Its cache stays: the program may still use casts that it made before."""
    enabled = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    for kind in enabled:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in enabled:
            torch.set_autocast_enabled(kind, True)


def _like(value: Any, values: Values) -> Any:
    if not isinstance(value, Tensor):
        return value
    if has_values(value):
        return values.copy(value)
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


class _Forget(StepsAside):
    """Hooks that keep no tensor. Unpacking returns a new one of the same form."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def pack(self, tensor: Tensor) -> Any:
        number = self.recorder.saved(tensor)
        if self.recorder.storage(tensor).external is not None:
            return Packed((number, tensor.detach()))
        return Packed((number, (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)))

    def unpack(self, packed: Any) -> Tensor:
        number, form = packed
        recorder = self.recorder
        recorder.group = recorder.packs[number].group
        recorder.unpacking(number)
        if isinstance(form, Tensor):
            return form
        shape, stride, dtype, device = form
        recorder.paused += 1
        try:
            tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        finally:
            recorder.paused -= 1
        recorder.restored(number, tensor)
        return tensor


def follow(recorder: Recorder, model: nn.Module) -> list[Any]:
    """Registers hooks that pass the name of the running module to the recorder. Returns their handles."""
    parts = compiled_parts(model)
    for name in parts:
        while name:
            recorder.unnoted.add(name)
            name = name.rpartition(".")[0]
        recorder.unnoted.add("")
    handles: list[Any] = []
    # The model itself is being called already.
    recorder.called("")
    for name, module in model.named_modules():
        # PyTorch would compile hooks inside compiled parts.
        if not name or within(name, parts):
            continue
        handles.append(module.register_forward_pre_hook(_Enter(recorder, name), prepend=True))
        handles.append(module.register_forward_hook(_Leave(recorder, name), always_call=True))
    return handles


class _Enter(Ours):
    """Names the operations of a module after it."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name

    def __call__(self, module: Any, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self.recorder.called(self.name)


class _Leave(Ours):
    """Notes that a module's call has ended."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.recorder = recorder
        self.name = name

    def __call__(self, module: Any, inputs: Any, outputs: Any) -> None:
        self.recorder.returned(self.name, outputs)
