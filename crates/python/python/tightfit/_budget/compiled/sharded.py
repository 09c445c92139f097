"""Models whose parameters FSDP2 shards, and parts of a model that are compiled one by one.

FSDP2 gathers the parameters of each part before it runs. In the backward pass, it also gathers the parameters of the part before::

    gathered   part 0 | part 1 | part 2          part 2, 1 | part 1, 0 | part 0
    gradients                                    .. shards of part 2, of part 1, .. stay until the update

Parts that are alike have the same graph. It is called once for each of them before the backward pass begins.
"""

from __future__ import annotations

import gc
from typing import Any

from torch import nn

from ..record.optimizer import local_part
from . import private

__all__ = ["alike", "sharded_bytes"]


def sharded_bytes(optimizer: Any) -> int:
    """The bytes that this process holds of an optimizer's sharded parameters."""
    parameters = [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]
    shards = [local_part(parameter) for parameter in parameters if hasattr(parameter, "to_local")]
    return sum(shard.numel() * shard.itemsize for shard in shards)


def alike() -> int:
    """The number of modules like the one whose graph is being compiled, itself included. Each of them is expected to call the graph in a step."""
    module, outer = private.compiled_module()
    if module is None:
        return 1
    if module is outer:
        # Of the same model only: copies of a model run in other steps.
        parts = max((_modules(one) for one in gc.get_objects() if issubclass(type(one), nn.Module)), key=lambda parts: len(parts) * (id(module) in parts))
        compiled = map(private.compiled_by, parts.values())
        found = {id(one): one for one in compiled if one is not None}
    else:
        found = _modules(outer)
    form = _form(module)
    return max(1, sum(type(one) is type(module) and _form(one) == form for one in found.values()))


def _modules(module: nn.Module) -> dict[int, Any]:
    # A module may be in the middle of its construction.
    return {id(one): one for one in module.modules()} if "_modules" in module.__dict__ else {}


def _form(module: nn.Module) -> list[Any]:
    return [module.training, *((name, tuple(value.shape), value.requires_grad) for name, value in module.named_parameters())]
