"""Translates a plan into orders for each pack and unpack of a step, by number.

Decisions name operations. Hooks on saved tensors see only packs and unpacks. So every decision moves to the next pack or unpack at which it can
take effect, and the prediction is for the moved decisions.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import defaultdict
from dataclasses import replace
from itertools import accumulate
from typing import Any

from ..record.data import ModuleSaves, Step
from ..record.marks import is_small
from ..record.recorder import Recorder
from ..record.rerunnable import CONVOLUTIONS
from ..record.step import OUTSIDE
from .liveness import Impossible, Lives, calls
from .pack_schedule import DROP, KEEP, LEAF, OFFLOAD, REBUILD, Expected, Look, Order, PackSchedule
from .simulate import Outcome, simulate

__all__ = ["bind", "copied_bytes"]

ALIGNMENT = 512
# With fewer saved tensors, removing the hooks takes longer than calling them.
QUIET = 2


class _Binder:
    def __init__(self, step: Step, lives: Lives, decisions: dict[int, dict[str, Any]], spares: bool) -> None:
        self.step = step
        self.spares = spares
        self.lives = lives
        self.decisions = {tensor: dict(decision) for tensor, decision in decisions.items()}
        self.schedule = PackSchedule()
        # By tensor and number of its rerun: the tensors that the rerun reads and does not make.
        self.reads: dict[tuple[int, int], list[int]] = {}
        self.packs_of: dict[int, list[int]] = defaultdict(list)
        for number, (tensor, operation) in enumerate(step.packs):
            if operation >= 0:
                self.packs_of[tensor].append(number)
        # Reruns of later tensors read earlier tensors, and come first.
        for tensor in sorted(self.decisions, key=lambda tensor: -lives.first[tensor]):
            if len(self.decisions[tensor]["rebuilt"]) > 1:
                self.decisions[tensor]["rebuilt"] = self.at_needs(tensor)

    def at_needs(self, tensor: int) -> list[dict[str, Any]]:
        """The reruns of a tensor that can take effect, each at the unpack or at the rerun of another tensor that needs it.

        After an unpack, autograd holds the tensor until the last operation that reads it. A rerun in between would have no effect.
        """
        lives = self.lives
        unpacks = [operation for number, operation in self.step.unpacks if operation >= 0 and self.step.packs[number][0] == tensor]
        ends = [*unpacks[1:], len(lives.operations)]
        readers = [index for index in range(lives.backward_start, len(lives.operations)) if tensor in lives.operations[index]["reads"]]
        holds = [(begin, max(index for index in readers if index < end)) for begin, end in zip(unpacks, ends, strict=True)]
        needs = {
            entry["before"]
            for decision in self.decisions.values()
            for entry in decision["rebuilt"]
            if any(tensor in lives.operations[index]["reads"] for index in entry["operations"])
        }
        free = [need for need in sorted({*unpacks, *needs}) if not any(begin < need <= end for begin, end in holds)]
        first, *others = self.decisions[tensor]["rebuilt"]
        found = {first["before"]: first}
        for entry in others:
            need = next((need for need in free if need >= entry["before"]), None)
            if need is not None:
                found.setdefault(need, {**entry, "before": need})
        return list(found.values())

    def bind(self, recorder: Recorder) -> PackSchedule:
        bound, packs = self.schedule, recorder.packs
        for tensor, decision in list(self.decisions.items()):
            if decision["decision"] == "keep" or tensor not in self.packs_of:
                del self.decisions[tensor]
        self.drops(recorder)
        for tensor, decision in self.decisions.items():
            bound.kinds[tensor] = OFFLOAD if decision["decision"] == "offload" else REBUILD
        for tensor in self.decisions:
            if bound.kinds[tensor] == REBUILD:
                self.reruns(tensor)
        self.stay_with_readers()
        for read in bound.leaves.values():
            for leaf in read:
                if leaf not in self.packs_of:
                    raise Impossible(f"a rerun reads tensor {leaf}, which is not saved")
                bound.kinds.setdefault(leaf, LEAF)
        self.place()
        releases = self.releases()
        forgets = self.forgets()
        made = {(view.storage, view.writes): view for one in recorder.operations if one.makes for view in one.outputs if view is not None}
        for number, (tensor, _) in enumerate(self.step.packs):
            kind = bound.kinds.get(tensor, KEEP) if self.step.packs[number][1] >= 0 else KEEP
            order = Order(tuple(releases.get(number, ())), tuple(forgets.get(number, ())))
            view = packs[number].view
            if kind in (REBUILD, LEAF) and (tensor in bound.dropped or made.get((view.storage, view.writes)) != view):
                # The pass inspects the node that saves the tensor, or only a noted call shows a tensor that the program does not hold.
                bound.noted.add(packs[number].group)
            bound.answers.append((kind, view.shape.numel(), order if any(order) else None, tensor, Expected(view.shape, view.dtype)))
        bound.kept = array("q", [-1 if kind != KEEP or order is not None else numel for kind, numel, order, _, _ in bound.answers])
        bound.at_end = Order(tuple(releases.get(-1, ())), ())
        self.turns()
        if bound.leaves:
            bound.functions = self.step.functions
            self.switches(recorder)
            self.wait(recorder)
        else:
            bound.noted.clear()
        bound.needs_hooks = any(kind != DROP for kind in bound.kinds.values())
        if bound.needs_hooks:
            self.silence(recorder)
        for save in sorted(recorder.saves, key=lambda save: save.first):
            if save.name in bound.switches or save.name in bound.quiet:
                bound.places.setdefault(save.name, []).append((save.first, save.end))
        for turn, number in enumerate(bound.unpacks):
            bound.turns.setdefault(number, []).append(turn)
        saved = {pack.view.storage for pack in packs}
        bound.saved_names = {one.which for number in saved for one in recorder.storages[number].named if one.what == "parameter"}
        bound.decisions = self.decisions
        bound.outcome = self.with_copies(simulate(self.lives, self.decisions), recorder)
        for tensors in bound.fetch.values():
            tensors.sort(key=bound.outcome.needed.__getitem__)
        return bound

    def with_copies(self, outcome: Outcome, recorder: Recorder) -> Outcome:
        """Adds to an outcome the bytes of small outside tensors that a pass copies for its noted calls."""
        copies = copied_bytes(recorder, self.schedule.noted)
        if not copies:
            return outcome
        stages = [operation["stage"] for operation in self.lives.operations]
        live = [size if stage == "update" else size + copies for size, stage in zip(outcome.live, stages, strict=True)]
        at = max(range(len(live)), key=live.__getitem__)
        return replace(outcome, live=live, at=at, peak=live[at])

    def reruns(self, tensor: int) -> None:
        """Notes the tensors that the reruns of a tensor read, and the tensors that stay afterwards."""
        bound, entries = self.schedule, self.decisions[tensor]["rebuilt"]
        bound.rounds[tensor] = len(entries)
        leaves: set[int] = set()
        for round, entry in enumerate(entries):
            operations = entry["operations"]
            self.reads[(tensor, round)] = [leaf for leaf in self.lives.native.leaves(list(operations)) if not self.lives.resident[leaf]]
            leaves.update(self.reads[(tensor, round)])
            for index in operations:
                bound.convolves |= any(part.name in CONVOLUTIONS for part in self.step.parts[index])
                bound.noted.update(part.group for part in self.step.parts[index])
            made = {made for index in operations for made in self.lives.operations[index]["writes"]}
            stay = {other for other in made if other == tensor or self.stays(other, entry["before"])}
            # Raises `Impossible` if the rerun cannot be carried out.
            calls(self.lives, operations, stay)
            bound.stay[(tensor, round)] = frozenset(stay)
        bound.leaves[tensor] = sorted(leaves)

    def stay_with_readers(self) -> None:
        """Lets recomputed tensors that a rerun reads stay after it, because the plan makes them before the same operation at the latest.

        Autograd asks for the last tensor of a chain first. Its rerun makes the whole chain, each tensor once.
        """
        stay = self.schedule.stay
        # The tensors that a rerun reads are made before its own, so their sets are complete.
        for tensor, round in sorted(self.reads, key=lambda one: self.lives.first[one[0]]):
            before = self.decisions[tensor]["rebuilt"][round]["before"]
            for leaf in self.reads[(tensor, round)]:
                entries = self.decisions[leaf]["rebuilt"] if leaf in self.decisions else ()
                rounds = [number for number, entry in enumerate(entries) if entry["before"] <= before]
                if rounds:
                    stay[(tensor, round)] |= stay[(leaf, rounds[-1])]

    def shown(self, recorder: Recorder) -> set[int]:
        """Unread tensors that module ends reveal as unread, except tensors that are read to recompute another unread tensor."""
        found = {tensor for tensor in self.step.dropped if all(number in recorder.shown for number in self.packs_of[tensor])}
        others = [tensor for tensor in self.step.dropped if tensor not in found]
        while others:
            needed = found.intersection(self.lives.native.leaves(list(self.step.dropped[others.pop()])))
            found -= needed
            others += needed
        return found

    def drops(self, recorder: Recorder) -> None:
        """Notes the unread tensors. If a program asks for one after all, it is recomputed like other recomputed tensors."""
        bound = self.schedule
        shown = self.shown(recorder) if self.spares else set()
        for tensor in shown:
            bound.kinds[tensor] = DROP
            for number in self.packs_of[tensor]:
                name, call = recorder.shown[number]
                looks = bound.looks.setdefault(name, [])
                looks += [Look(0, 0)] * (call + 1 - len(looks))
                size, is_sign = self.lives.bytes[tensor], number in recorder.signs
                looks[call] = Look(looks[call].dropped + size * (not is_sign), looks[call].masked + size * is_sign)
        dropped = {tensor: operations for tensor, operations in self.step.dropped.items() if tensor not in shown}
        bound.dropped, bound.masked = frozenset(dropped), frozenset(self.step.masked & dropped.keys())
        for tensor, operations in dropped.items():
            bound.kinds[tensor] = REBUILD
            bound.rounds[tensor] = 1
            bound.noted.update(part.group for index in operations for part in self.step.parts[index])
            bound.convolves |= any(part.name in CONVOLUTIONS for index in operations for part in self.step.parts[index])
            found = self.lives.native.leaves(list(operations))
            bound.leaves[tensor] = [leaf for leaf in found if not self.lives.resident[leaf]]

    def stays(self, tensor: int, before: int) -> bool:
        """Whether a tensor that is recomputed before an operation stays from then on."""
        decision = self.decisions.get(tensor)
        if decision is None or decision["decision"] != "recompute":
            return False
        return not any(later["before"] > before for later in decision["rebuilt"])

    def switches(self, recorder: Recorder) -> None:
        """Finds the modules at which noting begins or ends."""
        bound = self.schedule
        names = {save.name for save in recorder.saves} | {""}
        # Reshapings of recomputed tensors are noted too.
        involved = {*bound.rounds, *(tensor for tensor, kind in bound.kinds.items() if kind == LEAF)}
        entries = (entry for decision in self.decisions.values() for entry in decision["rebuilt"])
        runs = [*(entry["operations"] for entry in entries), *(self.step.dropped[tensor] for tensor in bound.dropped)]
        involved |= {made for operations in runs for index in operations for made in self.lives.operations[index]["writes"]}
        storages = {storage for (storage, _), tensor in self.step.tensors.items() if tensor in involved}
        for operation in recorder.operations:
            if operation.stage == "forward" and not operation.makes and any(storage in storages for storage, _ in operation.reads):
                bound.noted.add(operation.group)
        bound.noted -= recorder.unnoted
        for name in sorted(names - {""}):
            parent = name
            while parent:
                parent = parent.rpartition(".")[0]
                if parent in names:
                    break
            if (name in bound.noted) != (parent in bound.noted):
                bound.switches[name] = name in bound.noted

    def silence(self, recorder: Recorder) -> None:
        """Finds the modules that need no hooks on saved tensors, and counts the turns without them."""
        bound = self.schedule
        busy = {number for turn, number in enumerate(bound.unpacks) if turn in bound.busy}
        needs = [kind not in (KEEP, DROP) or order is not None for kind, _, order, _, _ in bound.answers]
        others = [0, *accumulate(need or number in busy for number, need in enumerate(needs))]
        calls: dict[str, list[ModuleSaves]] = defaultdict(list)
        for save in recorder.saves:
            calls[save.name].append(save)
        loud = {name[: end if end >= 0 else None] for name in bound.noted for end in _ends(name)}
        found = {
            name
            for name, saves in calls.items()
            if name and name not in loud and all(others[save.first] == others[save.end] and save.end - save.first >= QUIET for save in saves)
        }
        bound.quiet = {name for name in found if not any(name[:end] in found for end in _ends(name) if end >= 0)}
        without = {number for name in bound.quiet for save in calls[name] for number in range(save.first, save.end)}
        stays = [number not in without for number in bound.unpacks]
        turns = [0, *accumulate(stays)]
        bound.unpacks = [number for number, stay in zip(bound.unpacks, stays, strict=True) if stay]
        bound.fetch = {turns[turn]: tensors for turn, tensors in bound.fetch.items()}
        bound.drop = {turns[turn]: tensors for turn, tensors in bound.drop.items()}
        bound.busy = {turns[turn] for turn in bound.busy}

    def wait(self, recorder: Recorder) -> None:
        """Finds when the tensors that operations without notes save may be released: at the end of the module, or else at the next pack of another
        operation."""
        operations, groups = self.lives.operations, self.lives.data["groups"]
        run = [at for at in range(self.lives.backward_start) if operations[at]["name"] not in ("pack", "held")]
        for tensor, decision in self.decisions.items():
            number = self.packs_of[tensor][0]
            group = recorder.packs[number].group
            if decision["decision"] != "recompute" or group in self.schedule.noted:
                continue
            # The first operation behind the call that saves the tensor.
            call, begin = recorder.packs[number].call, bisect(run, self.step.packs[number][1])
            behind = [at for at in run[begin : begin + 8] if call < 0 or all(part.call != call for part in self.step.parts[at])][call < 0 :][:1]
            name = groups[operations[behind[0]]["group"]]["name"] if behind else OUTSIDE
            if group and group not in recorder.unnoted and not f"{name}.".startswith(f"{group}."):
                self.schedule.flushes.add(group)
                continue
            end = next((at for _, at in self.step.packs[number + 1 :] if behind and at > behind[0]), self.lives.backward_start - 1)
            decision["release_after"] = max(decision["release_after"], end)

    def place(self) -> None:
        """Places every offloaded tensor in the arena: all of them are on the host when the backward pass begins."""
        end = 0
        for tensor, kind in self.schedule.kinds.items():
            if kind == OFFLOAD:
                size = self.lives.bytes[tensor]
                self.schedule.slots[tensor] = (end, size)
                end += -(-size // ALIGNMENT) * ALIGNMENT
        self.schedule.host_bytes = end

    def releases(self) -> dict[int, list[int]]:
        """For each pack, the slots that release their tensors there; -1 stands for the end of the forward pass."""
        found: dict[int, list[int]] = defaultdict(list)
        for tensor, decision in self.decisions.items():
            first = self.packs_of[tensor][0]
            wanted = decision["release_after"] or 0
            if decision["decision"] == "recompute":
                # Its rerun needs what is saved after it.
                late = [self.packs_of[other][0] for other in self.schedule.leaves[tensor] if self.packs_of[other][0] > first]
                if not late:
                    decision["release_after"] = self.lives.last_forward[tensor]
                    continue
                at = max(late)
                self.schedule.keep_until_filled.add(tensor)
                # Orders are carried out before their pack is answered.
                start, reached = at + 1, 0
            else:
                start, reached = first, max(wanted, self.step.packs[first][1])
            number = next((number for number in range(start, len(self.step.packs)) if self.step.packs[number][1] >= reached), -1)
            found[number].append(tensor)
            decision["release_after"] = self.step.packs[number][1] if number >= 0 else self.lives.backward_start - 1
        return found

    def forgets(self) -> dict[int, list[int]]:
        """For each pack, the slots that this pack and all later packs do not need."""
        created: dict[int, int] = {}
        for tensor, kind in self.schedule.kinds.items():
            if kind != DROP:
                created[tensor] = self.packs_of[tensor][0]
        # A slot is created with the first slot that reads it, together with the slots that it reads.
        for tensor in sorted(self.schedule.leaves, key=lambda tensor: -self.lives.first[tensor]):
            for leaf in self.schedule.leaves[tensor]:
                created[leaf] = min(created[leaf], created[tensor])
        last = {tensor: self.packs_of[tensor][-1] for tensor in created}
        for tensor, leaves in self.schedule.leaves.items():
            for leaf in leaves:
                last[leaf] = max(last[leaf], created[tensor])
        found: dict[int, list[int]] = defaultdict(list)
        for tensor, number in last.items():
            found[number + 1].append(tensor)
        return found

    def turns(self) -> None:
        bound, lives = self.schedule, self.lives
        bound.unpacks = [number for number, _ in self.step.unpacks]
        places = [(operation, turn) for turn, (_, operation) in enumerate(self.step.unpacks) if operation >= 0]
        for tensor, decision in self.decisions.items():
            if decision["decision"] == "offload":
                early = [place for place in places if place[0] <= decision["prefetch_before"]]
                # The hooks see nothing of the backward pass before its first unpack.
                operation, turn = early[-1] if early else places[0]
                first = lives.first_backward[tensor]
                if operation < first:
                    bound.fetch.setdefault(turn, []).append(tensor)
                    decision["prefetch_before"] = operation
                else:
                    decision["prefetch_before"] = first
                    bound.on_demand.add(tensor)
            else:
                entries = decision["rebuilt"]
                for later in entries[1:]:
                    reached = [turn for operation, turn in places if operation >= later["before"]]
                    if reached:
                        bound.drop.setdefault(reached[0], []).append(tensor)
        # The hooks see the backward pass begin with the first unpack and end with the last.
        bound.busy = {*bound.fetch, *bound.drop, 0, len(bound.unpacks) - 1}


def copied_bytes(recorder: Recorder, noted: set[str] | None = None) -> int:
    """Bytes of the small outside tensors that noted calls copy, in the given modules or in all."""
    saved = {pack.view.storage for pack in recorder.packs}
    read = {
        storage
        for operation in recorder.operations
        if operation.stage == "forward" and operation.call >= 0 and (noted is None or operation.group in noted)
        for storage, _ in operation.reads
        if storage not in operation.changes
    }
    found = 0
    for storage in map(recorder.storages.__getitem__, read):
        # Inputs are new tensors in each pass, so it is not known in time whether autograd saves them.
        named = [one for one in storage.named if one.what == "input" or storage.number not in saved]
        if any(is_small(len(one.view.shape), storage.bytes, is_leaf=True) for one in named):
            found += storage.bytes
    return found


def _ends(name: str) -> list[int]:
    """The positions in a module's name at which the names of the modules around it end; -1 stands for the end of the whole name."""
    return [-1, *(place for place, letter in enumerate(name) if letter == ".")]


def bind(step: Step, lives: Lives, decisions: dict[int, dict[str, Any]], recorder: Recorder, spares: bool = False) -> PackSchedule:
    """Binds decisions to the packs and unpacks of a recorded step. If `spares`, no call is noted only to recompute unread tensors,
    where the ends of modules show that they are unread.

    Raises
    ------
    Impossible
        If the decisions cannot be carried out.
    """
    return _Binder(step, lives, decisions, spares).bind(recorder)
