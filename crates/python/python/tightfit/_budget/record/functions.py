"""Which functions of PyTorch may be called again in the backward pass.

A function mode sees functions, which have no schemas and no tags. A recorded step shows the operations inside of each function's calls. A function
may be called again if each of these operations gives the same bits for the same inputs and changes nothing else. A function that is not in the
recording is never called again. Each call of a pass is checked too: see `noting`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from .rerunnable import may_run_again

if TYPE_CHECKING:
    from .data import Operation

__all__ = ["CASTING", "CASTS", "CHECKED", "IN_PLACE", "OPENED", "STATISTICS", "Marked", "is_in_place", "kinds_of", "opened"]

# The kind of a call, as flags: it gives the same bits; it casts inputs under autocast; it writes to its first argument; it updates running
# statistics; it may draw random numbers, which each call shows; it is noted by its parts; and it gives the bytes of a tensor away.
# The last one: it makes casts inside. Under autocast, they may be of parameters, and cached.
SAME, CASTS, IN_PLACE, STATISTICS, CHECKED, OPENED, DATA, CASTS_INSIDE = 1, 2, 4, 8, 16, 32, 64, 128

# Functions whose inputs autocast casts to 16 bits on every device. Their casts are noted apart: a cast alone is cheap to run again.
CASTING = frozenset(
    [
        functional.linear, functional.conv1d, functional.conv2d, functional.conv3d, torch.conv1d, torch.conv2d, torch.conv3d,
        torch.matmul, torch.bmm, torch.mm, torch.addmm, torch.baddbmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm, Tensor.mm,
        Tensor.addmm, Tensor.baddbmm, functional.scaled_dot_product_attention,
    ]
)  # fmt: skip
_BATCH_NORMS = frozenset([functional.batch_norm, torch.batch_norm])
_IN_PLACE_OPERATORS = frozenset(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "and", "or", "xor", "pow"))
# Python functions that only choose between operations by their arguments, and draw no random numbers.
_WRAPPERS = frozenset(
    """
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d avg_pool2d batch_norm celu elu gelu glu group_norm hardsigmoid hardswish
    hardtanh instance_norm interpolate layer_norm leaky_relu log_softmax max_pool2d max_pool3d mish normalize relu relu6 rms_norm selu
    sigmoid silu softmax softmin softsign tanh tanhshrink threshold upsample
    """.split()
)
# Functions that draw random numbers whenever their arguments ask for it, whatever was recorded.
_RANDOM = ("dropout", "bernoulli", "rand", "normal_", "rrelu", "gumbel", "multinomial", "poisson", "fractional", "uniform_", "exponential_")


class Marked:
    """A call of a function in a recorded step: the function, and the storages that it may change because it works in place."""

    __slots__ = ("function", "target")

    def __init__(self, function: Any, target: int | None) -> None:
        self.function, self.target = function, target


def opened(function: Any) -> Callable[..., Any] | None:
    """For a function whose parts are rerun separately: its body, whose calls are noted one by one. None for other functions."""
    return _multi_head_attention if function is functional.multi_head_attention_forward else None


def _without_dispatch(function: Any) -> Callable[..., Any]:
    """A copy of a function that bypasses function modes itself. The functions that it calls still go through them."""
    names = {**function.__globals__, "has_torch_function": lambda _: False}
    made = FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_multi_head_attention = _without_dispatch(functional.multi_head_attention_forward)


def is_in_place(function: Any, kwargs: dict[str, Any] | None) -> bool:
    """Whether a call writes to its first argument, judged by its name and arguments."""
    name = getattr(function, "__name__", "")
    return bool(kwargs and kwargs.get("inplace")) or name in _IN_PLACE_OPERATORS or (name.endswith("_") and not name.endswith("__"))


def kinds_of(calls: Sequence[Marked], operations: Sequence[Operation]) -> dict[Any, int]:
    """The functions of a recorded step that may be called again, with the flags of their calls."""
    inside: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.call >= 0:
            inside[operation.call].append(operation)
    found: dict[Any, int] = {}
    refused: set[Any] = set()
    for number, marked in enumerate(calls):
        if number not in inside:
            continue
        function = marked.function
        flags = _flags(function, inside[number])
        if flags and all(_is_same(one, marked, flags) for one in inside[number]):
            found[function] = found.get(function, 0) | flags
        else:
            refused.add(function)
    kinds = {function: flags for function, flags in found.items() if function not in refused}
    if kinds:
        kinds[functional.multi_head_attention_forward] = OPENED
        kinds.setdefault(Tensor.to, SAME)
        kinds[Tensor.data.__get__] = DATA
    return kinds


def _is_same(operation: Operation, marked: Marked, flags: int) -> bool:
    if not may_run_again(operation):
        return False
    return flags & STATISTICS > 0 or all(storage == marked.target for storage in operation.changes)


def _flags(function: Any, operations: list[Operation]) -> int:
    """The flags of a function, if its operations give the same bits; 0 if it is never called again."""
    name = getattr(function, "__name__", "")
    if any(word in name for word in _RANDOM):
        return 0
    flags = SAME
    if function in CASTING:
        flags |= CASTS
    elif any(operation.name == "_to_copy" for operation in operations):
        flags |= CASTS_INSIDE
    if is_in_place(function, None):
        flags |= IN_PLACE
    if function in _BATCH_NORMS:
        flags |= STATISTICS
    draws = isinstance(function, FunctionType) and name not in _WRAPPERS
    if draws or any("attention" in operation.name for operation in operations):
        flags |= CHECKED
    return flags
