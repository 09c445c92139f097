"""Training by several processes: all ranks hold the same plan.

Ranks exchange text through the key-value store of their process group. No collective operation is involved, so a rank that compiles nothing stops
no other one: after a time limit, each rank plans alone.

Like `private.py`, this uses private interfaces of PyTorch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ..messages import say

__all__ = ["Ranks"]

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
