"""Training by several processes: all ranks hold the same plan, and the graphs that DistributedDataParallel splits share one budget.

Ranks exchange text through the key-value store of their process group. No collective operation is involved, so a rank that compiles nothing stops
no other one: after a time limit, each rank plans alone.

Like `private.py`, this uses private interfaces of PyTorch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, fx

from ..messages import say
from . import properties

__all__ = ["Part", "Ranks", "part_of_split"]

# Seconds for which a rank waits for the others.
_WAIT = 60


class Ranks:
    """The ranks of a program. Each of them compiles the same graphs in the same order."""

    def __init__(self) -> None:
        self.compiled = 0
        self.alone = False

    @property
    def count(self) -> int:
        """The number of ranks that plan together."""
        import torch.distributed as distributed

        if self.alone or not distributed.is_available() or not distributed.is_initialized():
            return 1
        return int(distributed.get_world_size())

    def next_graph(self) -> None:
        """Begins the exchange for another graph."""
        self.compiled += 1

    def largest(self, name: str, value: int) -> int:
        """The largest of the values of all ranks."""
        told = self._exchange(name, str(value), range(self.count))
        return max(map(int, told)) if told else value

    def tell(self, name: str, decision: Any) -> None:
        """Tells the other ranks a decision without asking for theirs."""
        self._exchange(name, json.dumps(decision), [])

    def of_first(self, name: str, decision: Any) -> Any:
        """The decision of the first rank."""
        told = self._exchange(name, json.dumps(decision), [0])
        return json.loads(told[0]) if told else decision

    def _exchange(self, name: str, value: str, of: Sequence[int]) -> list[str]:
        """The values of these ranks; none if there is a single rank, or a rank is late."""
        if self.count == 1:
            return []
        from torch.distributed import distributed_c10d, get_rank

        try:
            store = distributed_c10d._get_default_store()
            keys = [f"tightfit/{self.compiled}/{name}/{rank}" for rank in of]
            store.set(f"tightfit/{self.compiled}/{name}/{get_rank()}", value)
            if keys:
                store.wait(keys, timedelta(seconds=_WAIT))
            return [bytes(store.get(key)).decode() for key in keys]
        except (AttributeError, RuntimeError, ValueError) as error:
            self.alone = True
            say(f"compiled: another rank compiles something else ({str(error).splitlines()[0]}); this rank plans alone")
            return []


@dataclass
class Part:
    """A graph of a model that DistributedDataParallel splits by its buckets of gradients.

    Attributes
    ----------
    split
        The model.
    share
        The graph's share of the bytes of intermediate results of this graph and all later ones.
    later_gradients
        Bytes of the gradients of later graphs, which exist in its backward pass.
    is_last
        Whether no graph comes later.
    """

    split: Any
    share: float
    later_gradients: int
    is_last: bool


def part_of_split() -> Part | None:
    """The part that is being compiled, or None if no model is being split."""
    frame: Any = sys._getframe()
    while frame is not None:
        # PyTorch passes one part after another to the backend, as it interprets the split model.
        if frame.f_code.co_name == "run_node" and type(frame.f_locals.get("self")).__name__ == "SubmodCompiler":
            return _part(frame.f_locals["self"].module, frame.f_locals.get("n"))
        frame = frame.f_back
    return None


def _part(split: fx.GraphModule, now: Any) -> Part | None:
    nodes = [node for node in split.graph.nodes if node.op == "call_module"]
    if now not in nodes or len(nodes) < 2:
        return None
    later = nodes[nodes.index(now) :]
    made = [max(_made(split.get_submodule(str(node.target))), 1) for node in later]
    return Part(split, made[0] / sum(made), sum(map(_gradients, later[1:])), len(later) == 1)


def _made(module: Any) -> int:
    """Bytes of intermediate results."""
    return sum(_bytes(node) for node in module.graph.nodes if node.op not in ("placeholder", "output"))


def _gradients(node: fx.Node) -> int:
    """Bytes of the gradients of the parameters that a part reads."""
    values = [read.meta.get("example_value") for read in node.all_input_nodes if read.op == "placeholder"]
    return sum(properties.elements(value) * value.itemsize for value in values if isinstance(value, torch.nn.Parameter) and value.requires_grad)


def _bytes(node: fx.Node) -> int:
    value = node.meta.get("example_value")
    return properties.elements(value) * value.itemsize if isinstance(value, Tensor) else 0
