"""Signs of a tensor as bits. The backward pass of a ReLU reads nothing else of its result.

A bit is `not (x <= 0)`, since a NaN lets gradients pass. It is unpacked to 1 or 0, in a tensor with the strides of the saved one. On a GPU, one
kernel packs and one unpacks. Elsewhere, and where no kernel can be compiled, PyTorch's own operations work on one part after another. They read 8
truth values of one byte each as one integer, and gather the bits by a multiplication.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["TYPES", "Mask", "bytes_of", "mask_of"]

# Elements of such a part.
PART = 1 << 22
# A kernel's count has 32 bits.
MAX_INT32_ELEMENTS = 1 << 31
# The alignment of a kernel's reads and writes in bytes.
ALIGNED = 16
_GATHER = 0x0102040810204080
# For each floating-point type: the bits of infinity and of 1, and the C type of the same size.
TYPES = {
    torch.float32: (0x7F800000, 0x3F800000, "unsigned int"),
    torch.float16: (0x7C00, 0x3C00, "unsigned short"),
    torch.bfloat16: (0x7F80, 0x3F80, "unsigned short"),
}
_SOURCE = """
union Eight { uint4 wide[sizeof(TYPE) / 2]; TYPE one[8]; };
extern "C" __global__ void pack(const TYPE* from, unsigned char* to, int count) {
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x, first = 8 * at;
    if (first >= count) return;
    Eight x;
    if (first + 8 <= count)
        for (int k = 0; k < sizeof(TYPE) / 2; k++) x.wide[k] = ((const uint4*)(from + first))[k];
    else
        for (int k = 0; k < 8; k++) x.one[k] = first + k < count ? from[first + k] : 0;
    unsigned char bits = 0;
    for (int k = 0; k < 8; k++) {
        TYPE size = x.one[k] & SIZE;
        bits |= (unsigned char)(size > INFINITE || size != 0 && size == x.one[k]) << k;
    }
    to[at] = bits;
}
extern "C" __global__ void unpack(const unsigned char* from, TYPE* to, int count) {
    long long at = (long long)blockIdx.x * blockDim.x + threadIdx.x, first = 8 * at;
    if (first >= count) return;
    Eight x;
    for (int k = 0; k < 8; k++) x.one[k] = from[at] >> k & 1 ? ONE : 0;
    if (first + 8 <= count)
        for (int k = 0; k < sizeof(TYPE) / 2; k++) ((uint4*)(to + first))[k] = x.wide[k];
    else
        for (int k = 0; first + k < count; k++) to[first + k] = x.one[k];
}
"""
_THREADS = 256


class Mask:
    """The signs of a tensor, as bits."""

    __slots__ = ("bits", "form")

    def __init__(self, bits: Tensor, form: tuple[Any, ...]) -> None:
        self.bits = bits
        # Shape, strides, type and device.
        self.form = form

    def tensor(self) -> Tensor:
        """1 where the tensor was not 0 or less, else 0."""
        shape, stride, dtype, device = self.form
        made = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        flat = made.as_strided((made.numel(),), (1,))
        with torch.no_grad():
            if (kernels := _kernels(dtype, device, flat.numel() < MAX_INT32_ELEMENTS)) is not None:
                _launch(kernels[1], self.bits, flat, flat.numel())
            else:
                _spread(self.bits, flat)
        return made


def mask_of(tensor: Tensor) -> Mask | None:
    """The signs of a tensor, or None if its type or alignment is not supported, or if its elements leave gaps or overlap."""
    if tensor.dtype not in TYPES or not _is_dense(tensor) or tensor.data_ptr() % ALIGNED:
        return None
    form = tensor.shape, tensor.stride(), tensor.dtype, tensor.device
    with torch.no_grad():
        flat = tensor.detach().as_strided((tensor.numel(),), (1,))
        bits = torch.empty(bytes_of(flat.numel()), dtype=torch.uint8, device=tensor.device)
        if (kernels := _kernels(tensor.dtype, tensor.device, flat.numel() < MAX_INT32_ELEMENTS)) is not None:
            _launch(kernels[0], flat, bits, flat.numel())
        else:
            _gather(flat, bits)
    return Mask(bits, form)


def bytes_of(elements: int) -> int:
    """Bytes of the signs of a tensor with this number of elements."""
    return -(-elements // 8)


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements fill a part of its storage without gaps or overlap."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _gather(flat: Tensor, bits: Tensor) -> None:
    for begin in range(0, flat.numel(), PART):
        part = flat[begin : begin + PART]
        count = part.numel()
        truths = torch.zeros(8 * bytes_of(count), dtype=torch.bool, device=flat.device)
        torch.le(part, 0, out=truths[:count])
        truths[:count].logical_not_()
        whole = truths.view(torch.int64).mul_(_GATHER).bitwise_right_shift_(56)
        bits[begin // 8 : begin // 8 + whole.numel()].copy_(whole.bitwise_and_(0xFF))


def _spread(bits: Tensor, flat: Tensor) -> None:
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    for begin in range(0, flat.numel(), PART):
        part = flat[begin : begin + PART]
        some = bits[begin // 8 : begin // 8 + bytes_of(part.numel())]
        part.copy_(some[:, None].bitwise_right_shift(places).bitwise_and_(1).flatten()[: part.numel()])


@cache
def _kernels(dtype: torch.dtype, device: torch.device, is_countable: bool) -> tuple[Any, Any] | None:
    """The kernels that pack and unpack on a GPU, or None if they cannot be compiled."""
    compiles = getattr(torch.cuda, "_compile_kernel", None)
    if device.type != "cuda" or compiles is None or not is_countable:
        return None
    infinite, one, kind = TYPES[dtype]
    size = "0x7FFFFFFF" if dtype.itemsize == 4 else "0x7FFF"
    source = _SOURCE.replace("TYPE", kind).replace("SIZE", size).replace("INFINITE", hex(infinite)).replace("ONE", hex(one))
    try:
        with torch.cuda.device(device):
            return compiles(source, "pack"), compiles(source, "unpack")
    except Exception:
        return None


def _launch(kernel: Any, source: Tensor, target: Tensor, count: int) -> None:
    blocks = -(-bytes_of(count) // _THREADS)
    with torch.cuda.device(source.device):
        kernel(grid=(blocks, 1, 1), block=(_THREADS, 1, 1), args=[source, target, count])
