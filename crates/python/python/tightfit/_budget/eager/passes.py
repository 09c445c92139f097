"""Carries out a plan through saved-tensor hooks: one object for each forward pass and the backward pass of its graph.

A plan decides by places: the n-th tensor that autograd saves, counted again where modules begin whose calls are noted. These places are hints.
It is right to keep or to offload any tensor, and a tensor is given up only if the calls that this pass has noted make it again. So a pass that
does otherwise than the recorded step has the right gradients, and only its memory differs from the prediction.

Autograd holds a handle for every tensor that it saves. A handle refers to a slot, a slot that is rebuilt refers to the call that makes
it, and the call refers to the tensors that it reads. An object without references is freed, so nothing outlives the graph, however that ends.

PyTorch does not check for in-place writes to what hooks pack. Versions are compared here instead, at unpack and before every rerun.
"""

from __future__ import annotations

from typing import Any

import torch

from ..record.marks import active_modes, is_alone, take_away
from ..record.unwatched import asks, would_differ
from .running import hooks_are_alone, pop_hooks, push_hooks
from .state import State
from .unpacks import Unpacks
from .unread import drop_after

__all__ = ["Pass"]


class Pass(Unpacks):
    """One forward pass under a plan, which follows the modules that it runs, and the backward pass of its graph."""

    def begins(self, name: str) -> None:
        """A module begins at which something changes."""
        bound = self.schedule
        is_quiet = name in bound.quiet
        notes = bound.switches.get(name)
        if notes is None and not is_quiet:
            # Of another plan of the model.
            return
        self.flush()
        visit = self.visits.get(name, 0)
        self.visits[name] = visit + 1
        places = bound.places[name]
        if visit < len(places):
            self.k = places[visit][0]
        if notes is not None:
            self._note(notes)
        if is_quiet and self.without is None and hooks_are_alone(self):
            pop_hooks(self)
            self.without = name

    def ends(self, name: str) -> None:
        """It has ended."""
        bound = self.schedule
        notes = bound.switches.get(name)
        if notes is None and name not in bound.quiet:
            if name in bound.flushes:
                self.flush()
            return
        self.flush()
        places, visit = bound.places[name], self.visits.get(name, 1) - 1
        if visit < len(places):
            self.k = places[visit][1]
        if self.without == name:
            push_hooks(self)
            self.without = None
        if notes is not None:
            self._note(not notes)

    def shows(self, name: str, outputs: Any) -> None:
        """A module has ended whose outputs show what nobody reads."""
        looks, call = self.schedule.looks.get(name, ()), self.looked.get(name, 0)
        self.looked[name] = call + 1
        if call >= len(looks) or not any(looks[call]):
            return
        if not drop_after(self.schedule, self.counts, name, outputs, looks[call].masked > 0):
            # Some of it is read, now that other parameters train.
            self.counts.unplanned += 1
            self.unplanned_bytes += sum(looks[call])

    def pause(self) -> None:
        """A module begins that runs unwatched."""
        self.paused = True
        self.flush()
        self._note(self.notes)

    def resume(self) -> None:
        """It has ended."""
        self.paused = False
        self.flush()
        self._note(self.notes)

    def enter(self, model: Any, inputs: Any) -> None:
        """The model begins."""
        self._note("" in self.schedule.noted and not (asks(model) and would_differ(model, inputs)))

    def _note(self, notes: bool) -> None:
        noting = self.noting
        if noting is None:
            return
        self.notes = notes
        notes = notes and not self.paused and is_alone()
        noting.on = notes
        count = torch._C._len_torch_function_stack()
        is_top = count > 0 and torch._C._get_function_stack_at(count - 1) is noting
        if notes and not is_top and not any(mode is noting for mode in active_modes()):
            torch._C._push_on_torch_function_stack(noting)
        elif not notes and is_top:
            torch._C._pop_torch_function_stack()

    def stop_noting(self) -> None:
        """Takes the mode away, wherever it is among other modes."""
        if self.noting is not None:
            self.noting.on = False
            take_away(self.noting)

    def seal(self) -> None:
        """Ends the forward pass."""
        if self.sealed:
            return
        self.sealed = True
        self.stop_noting()
        self.flush()
        self.state = State()
        self._act(self.schedule.at_end)
        # Releases that were due earlier, or after the last pack, may not have come.
        for reference in self.alive.values():
            slot = reference()
            if slot is not None and slot.kept and slot.tensor is not None and (slot.host is not None or slot.call is not None):
                self._release(slot)
        self.slots.clear()
        self.saved.clear()
        self.copied.clear()
        if self.noting is not None:
            self.noting.forget()
        # It refers to this pass.
        self.noting = None
        self.counts.packs += self.k
        self.counts.unplanned_bytes = max(self.counts.unplanned_bytes, self.unplanned_bytes)
        if self.watch is not None:
            self.watch.forward_ended()
