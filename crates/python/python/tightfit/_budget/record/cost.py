"""Estimated costs of operations and copies, from their arithmetic and traffic, until they are measured."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ...errors import BadInput
from .data import Operation, View

__all__ = ["Card", "Rates", "assuming", "bytes_of_call", "card_of", "device_name", "estimate", "flops", "rates_of"]


@dataclass(frozen=True)
class Rates:
    """Rates of a device: arithmetic in FLOP/s by width of the type, memory and links in bytes/s, and a call's fixed time."""

    wide: float
    narrow: float
    memory: float
    link: float
    call_us: float


_CPU = Rates(1e11, 1e11, 1e10, 1e10, 5.0)
# A GPU that is not among the cards known by name.
_GPU = Rates(3e13, 8e13, 7e11, 2.0e10, 4.0)


def device_name(device: torch.device) -> str:
    """The device of a prediction, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else "an unknown GPU"
    return "this CPU" if device.type == "cpu" else f"a device of type {device.type}"


@dataclass(frozen=True)
class Card:
    """A card that is known by name: its rates, and its memory for plans; None for any."""

    name: str
    rates: Rates
    room: int | None


def card_of(name: str) -> Card:
    """The card of this name, by the table of ``tightfit plan --costs``.

    Raises
    ------
    BadInput
        With all names, for any other.
    """
    # The table is read only when it is needed.
    from ..._native import card

    known = json.loads(card(name))
    rates = Rates(known["tf32"], known["half"], known["memory"], known["to_host"], 4.0 if name != "cpu" else 5.0)
    return Card(name, rates, known["room"])


_assumed: ContextVar[Card | None] = ContextVar("assumed", default=None)


@contextmanager
def assuming(of: Card | None) -> Iterator[None]:
    """Predicts times for a card, if one is given."""
    token = _assumed.set(of)
    try:
        yield
    finally:
        _assumed.reset(token)


def rates_of(device: torch.device) -> Rates:
    """Rates of a device, by the name of its GPU; or of the card that is assumed."""
    of = _assumed.get()
    if of is not None:
        return of.rates
    if device.type != "cuda":
        return _CPU
    return _rates_of_gpu(torch.cuda.get_device_name(device) if torch.cuda.is_available() else "")


@functools.lru_cache
def _rates_of_gpu(device: str) -> Rates:
    """Rates of a GPU of this name, such as ``NVIDIA A100-SXM4-80GB``, which has a card's name among its words."""
    words = re.split("[ -]", device.lower())
    # Laptops have cards of the same names with other rates.
    for word in words if "laptop" not in words else ():
        try:
            return card_of(word).rates
        except BadInput:
            continue
    return _GPU


def flops(function: Any, args: Any, kwargs: Any, out: Any) -> float:
    """Floating-point operations of a call; 0 for those whose time is their traffic."""
    packet = function._overloadpacket
    if packet not in flop_registry:
        return 0.0
    if function._schema.name == "aten::convolution_backward":
        # PyTorch's own formula ignores groups.
        gradient, inputs, weight = args[:3]
        outer = (inputs if args[7] else gradient).shape
        once = 2 * outer[0] * math.prod(outer[2:]) * weight.numel()
        return float(once * sum(map(bool, args[-1][:2])))
    try:
        return float(flop_registry[packet](*args, **kwargs, out_val=out))
    except Exception:  # a formula that does not know this overload
        return 0.0


def bytes_of_call(operation: Operation) -> int:
    """Bytes that a call reads and writes."""
    views = [value for value in (*operation.arguments, *operation.outputs) if isinstance(value, View)]
    return sum(view.shape.numel() * view.dtype.itemsize for view in views)


def estimate(operation: Operation, rates: Rates) -> float:
    """Time of a call in us: its arithmetic or its traffic, whichever takes longer."""
    traffic = bytes_of_call(operation)
    narrow = any(view.dtype.itemsize == 2 for view in (*operation.arguments, *operation.outputs) if isinstance(view, View))
    rate = rates.narrow if narrow else rates.wide
    return float(round(1e6 * max(operation.flops / rate, traffic / rates.memory) + rates.call_us, 3))
