"""The settings of PyTorch that choose the kernel of a call, apart from autocast.

Each has a function that reads it and one that writes it. Programs set them around a forward pass (``sdpa_kernel``,
``mkldnn.flags(enabled=False)``), so a call that runs again in the backward pass gets its own settings.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

__all__ = ["CHOICES", "Choice"]

_C: Any = torch._C


class Choice(NamedTuple):
    """One setting. `other` reads it where `read` raises."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    other: Callable[[], Any] | None = None


def _switches(**named: str) -> list[Choice]:
    """Settings of which PyTorch has a function to read and one to write; other versions lack some."""
    return [Choice(getattr(_C, f"_get_{read}"), getattr(_C, f"_set_{write}")) for read, write in named.items() if hasattr(_C, f"_get_{read}")]


def _precision(library: str, what: str) -> Callable[[], str] | None:
    """Reads a precision by PyTorch's newer interface. Where a program uses that, the older one raises."""
    read = getattr(_C, "_get_fp32_precision_getter", None)
    return None if read is None else partial(read, library, what)


def _set_determinism(value: bool) -> None:
    _C._set_deterministic_algorithms(value, warn_only=_C._get_deterministic_algorithms_warn_only())


def _set_warnings(value: bool) -> None:
    _C._set_deterministic_algorithms(_C._get_deterministic_algorithms(), warn_only=value)


def _set_matrices(library: str, value: str) -> None:
    if value in ("highest", "high", "medium"):
        _C._set_float32_matmul_precision(value)
    else:
        _C._set_fp32_precision_setter(library, "matmul", value)


def _set_convolutions(value: bool | str) -> None:
    if isinstance(value, bool):
        _C._set_cudnn_allow_tf32(value)
    else:
        _C._set_fp32_precision_setter("cuda", "conv", value)


def _matrices(library: str) -> Choice:
    return Choice(_C._get_float32_matmul_precision, partial(_set_matrices, library), _precision(library, "matmul"))


_EVERYWHERE = [
    Choice(_C._get_deterministic_algorithms, _set_determinism),
    Choice(_C._get_deterministic_algorithms_warn_only, _set_warnings),
    Choice(torch.get_default_dtype, torch.set_default_dtype),
    *_switches(flash_sdp_enabled="sdp_use_flash", math_sdp_enabled="sdp_use_math", mem_efficient_sdp_enabled="sdp_use_mem_efficient"),
]
# By the kind of device; all other kinds have the settings of "cpu".
CHOICES = {
    "cuda": [
        *_EVERYWHERE,
        _matrices("cuda"),
        Choice(_C._get_cudnn_allow_tf32, _set_convolutions, _precision("cuda", "conv")),
        *_switches(
            cudnn_enabled="cudnn_enabled", cudnn_deterministic="cudnn_deterministic", cudnn_benchmark="cudnn_benchmark",
            cudnn_sdp_enabled="sdp_use_cudnn", sdp_priority_order="sdp_priority_order",
        ),
    ],
    "cpu": [*_EVERYWHERE, _matrices("mkldnn"), *_switches(mkldnn_enabled="mkldnn_enabled", nnpack_enabled="nnpack_enabled")],
}  # fmt: skip
