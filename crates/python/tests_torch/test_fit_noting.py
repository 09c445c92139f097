"""Notes of calls, which are native."""

import gc
import weakref
from types import SimpleNamespace

import torch
from tightfit._budget.eager.noting import Noting
from torch import nn

CALLS = 100_000


class Pass:
    """A pass that keeps nothing but its notes."""

    def __init__(self):
        self.schedule = SimpleNamespace(keeps={}, looks={}, dropped=frozenset())
        self.pending, self.k = [], 0
        self.noting = Noting({torch.add: 1, torch.relu: 1}, self, torch.device("cpu"))

    def small(self, tensor):
        return tensor.detach().clone()

    def note_kept(self, tensor):
        self.schedule.keeps[id(tensor)] = weakref.ref(tensor), False


def test_a_long_chain_of_calls_is_dropped():
    """Each call refers to the call before it: dropping one inside the other would need a stack for all of them."""
    active = Pass()
    y = nn.Parameter(torch.ones(2))
    with active.noting:
        for _ in range(CALLS):
            y = torch.add(y, 1.0)
    value = active.noting.value_in(y)
    assert value is not None and value.call.function is torch.add
    active.noting.forget()
    del y, value


def test_notes_are_freed_with_their_pass():
    active = Pass()
    weight = nn.Parameter(torch.ones(2))
    with active.noting:
        y = torch.relu(torch.add(weight, 1.0))
    value = active.noting.value_in(y)
    assert value is not None and value.tensor() is y and value.call.function is torch.relu
    there = weakref.ref(active)
    del active, value
    gc.collect()
    assert there() is None
