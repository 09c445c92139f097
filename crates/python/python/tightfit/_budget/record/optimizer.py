"""Memory of a model and its optimizer, now and after the first step, and the memory of an update."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .inputs import other_layout

__all__ = ["Optimizers", "assumed_bytes", "bytes_of_model", "lasting_bytes", "optimizer_bytes", "optimizers_of"]

# Tensors of a parameter's size that an optimizer keeps for each parameter.
_STATES = {"Adam": 2, "AdamW": 2, "NAdam": 2, "RAdam": 2, "Adamax": 2, "Adadelta": 2, "Adagrad": 1, "RMSprop": 1, "Rprop": 2, "ASGD": 1}


class Optimizers:
    """The optimizers of a model, held weakly: a program may replace them."""

    def __init__(self, optimizers: Iterable[Any]) -> None:
        self._places = [weakref.ref(optimizer) for optimizer in optimizers]

    @property
    def each(self) -> list[Any]:
        """The optimizers that are there."""
        return [optimizer for place in self._places if (optimizer := place()) is not None]

    @property
    def is_whole(self) -> bool:
        """Whether all of them are."""
        return len(self.each) == len(self._places)

    @property
    def param_groups(self) -> list[Any]:
        """The groups of all."""
        return [group for optimizer in self.each for group in optimizer.param_groups]

    @property
    def state(self) -> dict[Any, Any]:
        """The states of all optimizers, once each of them has one."""
        states = [optimizer.state for optimizer in self.each]
        return {parameter: values for state in states for parameter, values in state.items()} if all(states) else {}


def optimizers_of(model: nn.Module, optimizers: Iterable[Any]) -> Optimizers | None:
    """The optimizers that update parameters of the model, or None if none do yet. `optimizers` are in the order of their creation. Optimizers with
    more parameters are picked first, then later ones. An optimizer is left out if the earlier picks cover all of its parameters."""
    mine = {id(parameter) for parameter in model.parameters()}
    found: list[tuple[set[int], Any]] = []
    for optimizer in optimizers:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]} & mine
        found.insert(0, (held, optimizer))
    taken: set[int] = set()
    chosen = []
    for held, optimizer in sorted(found, key=lambda one: -len(one[0])):
        if held - taken:
            taken |= held
            chosen.append(optimizer)
    return Optimizers(chosen) if chosen else None


def optimizer_bytes(optimizer: Any, module: nn.Module | None, device: torch.device) -> tuple[int, int, str]:
    """Bytes of its state, bytes of scratch memory in its step, and the assumption about them, in words.

    AdamW with a state in the parameters' types is assumed if none is given.
    """
    if isinstance(optimizer, Optimizers):
        found = [optimizer_bytes(one, module, device) for one in optimizer.each]
        if found:
            # They update one after another, so their scratch memory is not added up.
            return sum(state for state, _, _ in found), max(scratch for _, scratch, _ in found), ""
        optimizer = None
    if optimizer is None:
        if module is None:
            return 0, 0, ""
        return assumed_bytes([_size(parameter) for parameter in module.parameters() if parameter.requires_grad], device)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]
    sizes = [_size(parameter) for parameter in parameters]
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    state = sum(
        local_part(value).untyped_storage().nbytes()
        for values in optimizer.state.values()
        for value in values.values()
        if isinstance(value, Tensor) and value.device.type == device.type
    )
    if not state:
        state = _states(type(optimizer).__name__, group) * sum(sizes)
    return state, _scratch(sizes, device, group), ""


def bytes_of_model(module: nn.Module | None) -> int:
    """Bytes of parameters, of gradients that are there, and of buffers."""
    if module is None:
        return 0
    total = 0
    for parameter in module.parameters():
        total += _size(parameter)
        if parameter.grad is not None:
            total += _size(parameter.grad)
    return total + sum(map(_size, module.buffers()))


def lasting_bytes(optimizer: Any, module: nn.Module, device: torch.device) -> int:
    """Bytes of what stays from step to step whatever is given up: the model, its gradients, and a given optimizer's state."""
    total = bytes_of_model(module)
    if optimizer is None:
        return total
    mine = {id(parameter) for parameter in module.parameters()}
    missing = [
        _size(parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) in mine and parameter.requires_grad and parameter.grad is None
    ]
    return total + sum(missing) + optimizer_bytes(optimizer, module, device)[0]


def assumed_bytes(sizes: list[int], device: torch.device) -> tuple[int, int, str]:
    """The same for AdamW, with parameters of these sizes."""
    return 2 * sum(sizes), _scratch(sizes, device, None), "the optimizer is AdamW"


def _states(name: str, group: dict[str, Any]) -> int:
    if name == "SGD":
        return 1 if group.get("momentum") else 0
    states = _STATES.get(name, 2)
    states += bool(group.get("amsgrad"))
    if name == "RMSprop":
        states += bool(group.get("momentum")) + bool(group.get("centered"))
    return states


def _scratch(sizes: list[int], device: torch.device, group: dict[str, Any] | None) -> int:
    """A fused update needs no scratch memory, an update over all parameters their size, and one by one the size of the largest."""
    group = group or {}
    if group.get("fused"):
        return 0
    foreach = group.get("foreach")
    if foreach or (foreach is None and device.type == "cuda"):
        return sum(sizes)
    return 2 * max(sizes, default=0)


def local_part(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds; any other tensor itself."""
    with torch.no_grad():
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor's storage; of a sparse gradient, which has none, the bytes of a dense one."""
    tensor = local_part(tensor)
    if other_layout(tensor):
        return int(tensor.numel() * tensor.itemsize)
    return int(tensor.untyped_storage().nbytes())
