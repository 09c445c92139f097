"""Forms of a model's inputs. Each plan is for one form, and may also hold for smaller ones."""

from __future__ import annotations

import operator
import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

__all__ = ["alike", "carries_gradients", "covers", "first_trained", "form_of", "form_of_block", "has_gradients", "other_layout", "values_of"]

# A form contains the input tensors of at least 1/16 of the bytes of the largest one. A detector's boxes and labels are smaller; their number changes
# in every step.
LARGE_INPUT_DIVISOR = 16
# Values that contain no others.
_LEAVES = (Tensor, int, float, str, type(None))
# Where each model's first trained parameter was found: its module, weakly, and its name.
_trained: weakref.WeakKeyDictionary[nn.Module, tuple[Any, str]] = weakref.WeakKeyDictionary()


def form_of(module: nn.Module, flat: list[Any], device: torch.device) -> Any:
    """The key of a plan: forms of the large inputs, training, autocast, whether gradients exist, `benchmark`, and the model's device."""
    large = max((value.nbytes for value in flat if isinstance(value, Tensor)), default=0) // LARGE_INPUT_DIVISOR
    forms = tuple(
        (value.shape, value.stride(), value.dtype, value.requires_grad) if isinstance(value, Tensor) else _word(value)
        for value in flat
        if not isinstance(value, Tensor) or value.nbytes >= large
    )
    # Under `benchmark`, convolutions use other algorithms.
    return forms, module.training, _cast(device), has_gradients(module), torch.backends.cudnn.benchmark, device


def form_of_block(module: nn.Module, device: torch.device) -> Any:
    """The key of a plan for a block of a program. Its inputs are not known."""
    return "block", _cast(device), has_gradients(module), device


def alike(one: Any, other: Any) -> bool:
    """Whether two forms are equal, or differ only in whether gradients exist."""
    place = 2 if one[0] == "block" else 3
    return bool(one[:place] == other[:place] and one[place + 1 :] == other[place + 1 :])


def _cast(device: torch.device) -> torch.dtype | None:
    """The type that autocast computes in, if it is on."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def covers(larger: Any, smaller: Any) -> bool:
    """Whether the smaller form equals the larger one except for smaller sizes."""
    if larger[1:] != smaller[1:] or larger[0] == "block" or len(larger[0]) != len(smaller[0]):
        return False
    for most, form in zip(larger[0], smaller[0], strict=True):
        if not (isinstance(most, tuple) and isinstance(form, tuple)):
            if most != form:
                return False
        elif most[2:] != form[2:] or len(most[0]) != len(form[0]) or any(map(operator.lt, most[0], form[0])):
            return False
    return True


def _word(value: Any) -> Any:
    """The entry in a form for an input that is not a tensor. For a float it is the type: its value often changes, and no plan depends on it."""
    return value if isinstance(value, int | str | bool | type(None)) else type(value).__name__


def other_layout(tensor: Tensor) -> str:
    """The layout of a tensor that is not strided: "nested" or "sparse"; "" for others."""
    if tensor.is_nested:
        return "nested"
    return "" if tensor.layout is torch.strided else "sparse"


def has_gradients(module: nn.Module) -> bool:
    """Whether the first trained parameter has a gradient, for example when gradients accumulate."""
    parameter = first_trained(module)
    return parameter is not None and parameter.grad is not None


def first_trained(module: nn.Module) -> nn.Parameter | None:
    """The first parameter that requires a gradient. Where many are frozen, the one that was found before is looked at first."""
    known = _trained.get(module)
    owner = known[0]() if known is not None else None
    if known is not None and owner is not None:
        # Of a module of TorchScript, these are no dictionary, and have no `get`.
        parameter = owner._parameters[known[1]] if known[1] in owner._parameters else None
        if parameter is not None and parameter.requires_grad:
            return parameter
    # In the order of `modules()`, which takes longer.
    waiting, seen = [module], set()
    while waiting:
        part = waiting.pop()
        if part in seen:
            continue
        seen.add(part)
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.requires_grad:
                _trained[module] = weakref.ref(part), name
                return parameter
        waiting += [child for child in part._modules.values() if child is not None][::-1]
    return None


def values_of(inputs: Any) -> list[Any]:
    """The values in the arguments of a call, a pair of `args` and `kwargs`. `tree_flatten` finds the same and takes longer."""
    if len(inputs) == 2 and type(inputs[0]) is tuple and type(inputs[1]) is dict:
        found = [*inputs[0], *inputs[1].values()]
        if all(isinstance(value, _LEAVES) for value in found):
            return found
    flat: list[Any] = tree_flatten(inputs)[0]
    return flat


def carries_gradients(args: Any) -> bool:
    """Whether an input of a model requires a gradient."""
    return any(isinstance(value, Tensor) and value.requires_grad for value in values_of(args))
