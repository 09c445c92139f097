"""Properties of the operations in a joint graph, by public interfaces of PyTorch."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

__all__ = ["OF_SEEDS", "POINTWISE", "PRODUCTS", "REDUCTIONS", "changed", "elements", "is_apart", "is_drawn", "is_random", "may_be_saved", "may_rerun", "name_of"]

# Operations that draw seeds. Inductor computes random numbers from a seed, so they can be recomputed.
_SEEDS = ("inductor_seed", "inductor_seeds")
# Functions of seeds.
OF_SEEDS = ("inductor_random", "inductor_randint", "inductor_lookup_seed")
# The most elements that one block of a kernel reduces.
_ROW = 1 << 16
# Operations that Inductor fuses although PyTorch's partitioner does not know them as fusible.
POINTWISE = ("constant_pad_nd", "copy", "fma", "select_scatter", "slice_scatter")
# Matrix products.
PRODUCTS = ("_int_mm", "_scaled_mm", "addmm", "baddbmm", "bmm", "mm")
REDUCTIONS = ("sum", "mean", "amax", "amin", "var", "var_mean", "argmax", "any", "std")


def name_of(target: Any) -> str:
    """The name of an operation without its overload; nothing for inputs and outputs."""
    return str(getattr(target, "__name__", "")).split(".")[0]


def is_random(node: fx.Node) -> bool:
    """Whether an operation draws random numbers, so that its result differs when it runs again."""
    name = name_of(node.target)
    if name in OF_SEEDS:
        return False
    return name in _SEEDS or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def is_drawn(node: fx.Node) -> bool:
    """Whether an operation computes random numbers from a seed."""
    return name_of(node.target) in ("inductor_random", "inductor_randint")


def may_be_saved(value: Any) -> bool:
    """Whether the forward pass can save a value: tensors, sizes, and opaque objects can be saved."""
    return not isinstance(value, torch.SymFloat | torch.SymBool | list | tuple | None)


def changed(joint: fx.Graph, output: fx.Node) -> set[fx.Node]:
    """Inputs that the program changes. In the backward pass, they no longer hold the values that the forward pass read."""
    copied = {node.args[0] for node in joint.nodes if node.op == "call_function" and node.target is torch.ops.aten.copy_.default}
    of = {node.meta.get("desc"): node for node in joint.nodes if node.op == "placeholder"}
    told = [one for one in output.meta.get("desc") or () if type(one).__name__ == "InputMutationAOTOutput"]
    return {node for node in (*copied, *(of.get(one.mutated_input) for one in told)) if isinstance(node, fx.Node) and node.op == "placeholder"}


def is_apart(node: fx.Node) -> bool:
    """Whether a reduction is over more than the elements of a row. Inductor then computes what reads the result in another kernel."""
    made = node.args[0] if node.target is operator.getitem and node.args and isinstance(node.args[0], fx.Node) else node
    if name_of(made.target) not in REDUCTIONS or not made.args or not isinstance(made.args[0], fx.Node):
        return False
    value = made.args[0].meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.dim():
        return False
    dims = made.args[1] if len(made.args) > 1 and isinstance(made.args[1], list | tuple) else range(value.dim())
    try:
        reduced = {int(dim) % value.dim() for dim in dims}
        if len(reduced) == value.dim():
            return elements(value) > _ROW
        strides = value.stride()
        # In a row, the reduced dimensions have the smallest strides.
        inner = sorted((strides[dim], dim) for dim in range(value.dim()) if value.shape[dim] != 1)
        return {dim for _, dim in inner[: len(reduced)]} != reduced & {dim for _, dim in inner}
    except (TypeError, ValueError, RuntimeError):
        return True


def may_rerun(node: fx.Node) -> bool:
    """Whether an operation is a function of its inputs. Custom operations are not run again."""
    target = node.target
    if target is operator.getitem or not isinstance(target, torch._ops.OpOverload):
        # Arithmetic on sizes may run again; higher-order operations may not.
        return target is operator.getitem or getattr(target, "__module__", "") in ("_operator", "math")
    if name_of(target) in OF_SEEDS:
        return True
    return target.namespace in ("aten", "prims") and not target._schema.is_mutable


def elements(value: torch.Tensor) -> int:
    """The number of elements of a tensor. For symbolic sizes, the hints count."""
    size = 1
    for one in value.shape:
        size *= one if isinstance(one, int) else int(one.node.hint or 1)
    return size
