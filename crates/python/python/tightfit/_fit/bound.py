"""A plan in the form in which passes carry it out: by the number of each pack and unpack.

Decisions name operations. Seen from saved-tensor hooks, a step is a sequence of packs and unpacks, so every decision moves to
the next of these at which it can happen, and the prediction is made for what then happens.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from .lineage import LINEAGE, UNNAMED, beginning, is_name
from .program import CONVOLUTIONS, Program, program_of
from .rebuild import Impossible, Lives
from .recorded import External, ModuleCall, ModuleSaves, Pack, Step, View, external_of, inside
from .simulate import Outcome, simulate
from .unhooked import Stretch, stretches

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

__all__ = ["KEEP", "LEAF", "OFFLOAD", "REBUILD", "Bound", "Expected", "Order", "bind"]

KEEP, LEAF, OFFLOAD, REBUILD = range(4)
ALIGNMENT = 512


class Order(NamedTuple):
    """What to do besides: slots whose offload ends here, and slots that later packs do not need."""

    release: tuple[int, ...]
    forget: tuple[int, ...]


class Expected(NamedTuple):
    """What a pack that is not just kept is compared with.

    The lineage is None where nothing depends on what made the tensor: its bytes go to the host and come back, whatever they are. Of
    others, so many nodes are compared.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int
    calls: int
    lineage: tuple[Any, ...] | None
    nodes: int


@dataclass
class Bound:
    """A plan bound to the packs and unpacks of a step.

    Attributes
    ----------
    answers
        For each pack: what to do, its elements, what else to do, its tensor, and what else to expect.
    kept
        For each pack that is just kept, with nothing else to do, its elements; -1 for others. Most packs look no further.
    at_end
        What to do when the forward pass ends.
    calls, followed
        Modules whose tensors reruns read, in the order of their calls, with whether they are in training; and each once.
    unhooked
        By their first pack: stretches in which tensors are just kept, with nothing else to do.
    unpacks
        The pack that is unpacked at each turn of the backward pass, for those with hooks.
    fetch, drop, busy
        By turn: tensors to fetch, and tensors whose next reader comes after another rerun; and the turns that have either.
    on_demand
        Offloaded tensors that the plan fetches no earlier than their first reader.
    programs, convolves
        Reruns of each recomputed tensor, and whether they compute convolutions.
    externals
        The parameters, buffers and inputs that reruns read or lineages have: what they are, the module that has them, their name or
        number, and their view.
    slots
        Place of each offloaded tensor in the arena, and its bytes.
    host_bytes
        Length of the arena.
    outcome
        The prediction.
    """

    answers: list[tuple[int, int, Order | None, int, Expected]] = field(default_factory=list)
    kept: array[int] = field(default_factory=lambda: array("q"))
    at_end: Order = Order((), ())
    calls: list[ModuleCall] = field(default_factory=list)
    followed: set[str] = field(default_factory=set)
    unhooked: dict[int, Stretch] = field(default_factory=dict)
    unpacks: list[int] = field(default_factory=list)
    turns: dict[int, list[int]] = field(default_factory=dict)
    fetch: dict[int, list[int]] = field(default_factory=dict)
    on_demand: set[int] = field(default_factory=set)
    drop: dict[int, list[int]] = field(default_factory=dict)
    busy: set[int] = field(default_factory=set)
    programs: dict[int, list[Program]] = field(default_factory=dict)
    convolves: bool = False
    leaves: dict[int, list[int]] = field(default_factory=dict)
    kinds: dict[int, int] = field(default_factory=dict)
    externals: list[tuple[str, list[str], Any, View]] = field(default_factory=list)
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    keep_until_filled: set[int] = field(default_factory=set)
    host_bytes: int = 0
    decisions: dict[int, dict[str, Any]] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)

    def resolve(self, model: nn.Module | None, inputs: list[Any]) -> list[Tensor] | None:
        """The external tensors as they are now; None if one is gone or has another form."""
        found: list[Tensor] = []
        for what, path, name, view in self.externals:
            tensor: Any
            if what == "input":
                tensor = inputs[name]
            else:
                # As `get_submodule` and `getattr` find them, which take ten times as long.
                module: Any = model
                for part in path:
                    module = module._modules.get(part)
                    if module is None:
                        return None
                tensor = (module._parameters if what == "parameter" else module._buffers).get(name)
            if tensor is None or tensor.shape != view.shape or tensor.stride() != view.stride or tensor.dtype is not view.dtype:
                return None
            found.append(tensor)
        return found


class _Binder:
    def __init__(self, step: Step, lives: Lives, decisions: dict[int, dict[str, Any]]) -> None:
        self.step = step
        self.lives = lives
        self.decisions = {tensor: dict(decision) for tensor, decision in decisions.items()}
        self.bound = Bound()
        # The number of each external tensor that is needed, and all that there are, by what they are.
        self.numbers: dict[tuple[str, Any], int] = {}
        self.named = {(one.what, one.which): one for named in step.externals.values() for one in named}
        # Modules that have what reruns read, or run what reads it.
        self.modules: set[str] = set()
        self.packs_of: dict[int, list[int]] = defaultdict(list)
        for number, (tensor, operation) in enumerate(step.packs):
            if operation >= 0:
                self.packs_of[tensor].append(number)
        # Reruns of what is made later read what is made earlier, and come first.
        for tensor in sorted(self.decisions, key=lambda tensor: -lives.first[tensor]):
            if len(self.decisions[tensor]["rebuilt"]) > 1:
                self.decisions[tensor]["rebuilt"] = self.at_needs(tensor)

    def at_needs(self, tensor: int) -> list[dict[str, Any]]:
        """The reruns of a tensor that can happen, at what needs them: an unpack, or a rerun that reads the tensor.

        From an unpack on, autograd holds what it got until the last operation that reads it, so no rerun between these is one.
        """
        lives = self.lives
        unpacks = [operation for number, operation in self.step.unpacks if operation >= 0 and self.step.packs[number][0] == tensor]
        ends = [*unpacks[1:], len(lives.operations)]
        readers = [index for index in range(lives.turn, len(lives.operations)) if tensor in lives.operations[index]["reads"]]
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

    def bind(self, packs: list[Pack], calls: list[ModuleCall], saves: list[ModuleSaves]) -> Bound:
        bound = self.bound
        for tensor, decision in list(self.decisions.items()):
            if decision["decision"] == "keep" or tensor not in self.packs_of:
                del self.decisions[tensor]
        for tensor, decision in self.decisions.items():
            bound.kinds[tensor] = OFFLOAD if decision["decision"] == "offload" else REBUILD
        for tensor, kind in bound.kinds.items():
            if kind == REBUILD:
                entries = self.decisions[tensor]["rebuilt"]
                bound.programs[tensor] = [self.program(tensor, entry) for entry in entries]
                bound.leaves[tensor] = sorted({leaf for program in bound.programs[tensor] for leaf in program.leaves})
        for read in bound.leaves.values():
            for leaf in read:
                if leaf not in self.packs_of:
                    raise Impossible(f"a rerun reads tensor {leaf}, which is not saved")
                bound.kinds.setdefault(leaf, LEAF)
        compared = {leaf for read in bound.leaves.values() for leaf in read}
        for tensor in bound.leaves:
            for witness in self.witnesses(tensor):
                bound.kinds.setdefault(witness, LEAF)
                compared.add(witness)
        self.place()
        bound.followed = self.modules.intersection(call.name for call in calls)
        bound.calls = [call for call in calls if call.name in bound.followed]
        before = [0, *accumulate(call.name in bound.followed for call in calls)]
        releases = self.releases()
        forgets = self.forgets()
        for number, (tensor, _) in enumerate(self.step.packs):
            kind = bound.kinds.get(tensor, KEEP) if self.step.packs[number][1] >= 0 else KEEP
            order = Order(tuple(releases.get(number, ())), tuple(forgets.get(number, ())))
            view = packs[number].view
            nodes = self.nodes(tensor, kind, compared)
            made_by = self.lineage(packs[number], nodes) if nodes else None
            expected = Expected(view.shape, view.stride, view.dtype, view.offset, before[packs[number].calls], made_by, nodes)
            bound.answers.append((kind, view.shape.numel(), order if any(order) else None, tensor, expected))
        bound.kept = array("q", [-1 if kind != KEEP or order is not None else numel for kind, numel, order, _, _ in bound.answers])
        bound.at_end = Order(tuple(releases.get(-1, ())), ())
        self.turns()
        self.unhook(saves)
        bound.decisions = self.decisions
        bound.outcome = simulate(self.lives, self.decisions)
        for tensors in bound.fetch.values():
            tensors.sort(key=bound.outcome.needed.__getitem__)
        return bound

    def nodes(self, tensor: int, kind: int, compared: set[int]) -> int:
        """How many of the nodes that made a tensor matter: none where its bytes come back whatever they are. A rerun may read several
        saved tensors, each of which must be told from others, so it is not enough to compare its own nodes."""
        if kind == REBUILD or tensor in compared:
            return max(LINEAGE, self.step.proofs.get(tensor, 0))
        return 0

    def witnesses(self, tensor: int) -> list[int]:
        """What is compared in place of a tensor that has no lineage, before that is given up."""
        witness = self.step.witnesses.get(tensor)
        return [witness] if witness is not None and witness in self.packs_of else []

    def lineage(self, pack: Pack, nodes: int) -> tuple[Any, ...]:
        """What is compared of a lineage, with the numbers of parameters."""
        return tuple(self.number(self.named.get(entry)) if is_name(entry) else entry for entry in beginning(pack.lineage, nodes))

    def program(self, tensor: int, entry: dict[str, Any]) -> Program:
        """The rerun of a tensor, and of those that stay when it is made."""
        operations = entry["operations"]
        for index in operations:
            recorded = self.step.recorded[index]
            self.bound.convolves |= recorded is not None and recorded.name in CONVOLUTIONS
            if recorded is not None and any(self.lives.resident[tensor] for tensor in self.lives.operations[index]["reads"]):
                self.modules.add(recorded.group)
        made = {made for index in operations for made in self.lives.operations[index]["writes"]}
        held = {
            other
            for other in made
            if other in self.decisions
            and self.decisions[other]["decision"] == "recompute"
            and (
                other == tensor
                or not any(later["before"] > entry["before"] for later in self.decisions[other]["rebuilt"])
            )
        }
        return program_of(self.step, self.lives, operations, held, self.external)

    def external(self, tensor: int, view: View) -> tuple[int, View | None]:
        """The number of the external tensor that a view is of, and the view from where that begins."""
        external = external_of(self.step.externals[tensor], view)
        if external is None:
            raise Impossible(f"a rerun reads tensor {tensor}, which is no tensor of the model")
        if external.what != "input":
            self.modules.add(external.which.rpartition(".")[0])
        return self.number(external), inside(external.view, view)

    def number(self, external: External | None) -> int:
        """The number of an external tensor."""
        if external is None:
            return UNNAMED
        what, which, view = external
        number = self.numbers.get((what, which))
        if number is None:
            number = self.numbers[(what, which)] = len(self.bound.externals)
            path, _, name = ("", "", which) if what == "input" else which.rpartition(".")
            self.bound.externals.append((what, path.split(".") if path else [], name, view))
        return number

    def place(self) -> None:
        """Gives every offloaded tensor its place: all of them are on the host when the backward pass begins."""
        end = 0
        for tensor, kind in self.bound.kinds.items():
            if kind == OFFLOAD:
                size = self.raw_bytes(tensor)
                self.bound.slots[tensor] = (end, size)
                end += -(-size // ALIGNMENT) * ALIGNMENT
        self.bound.host_bytes = end

    def raw_bytes(self, tensor: int) -> int:
        return int(self.lives.bytes[tensor])

    def releases(self) -> dict[int, list[int]]:
        """For each pack, the slots that let go of their tensors there; -1 stands for the end of the forward pass."""
        found: dict[int, list[int]] = defaultdict(list)
        for tensor, decision in self.decisions.items():
            first = self.packs_of[tensor][0]
            wanted = decision["release_after"] or 0
            if decision["decision"] == "recompute":
                # Its rerun needs what is saved after it, or is proven by that.
                others = [*self.bound.leaves[tensor], *self.witnesses(tensor)]
                late = [self.packs_of[other][0] for other in others if self.packs_of[other][0] > first]
                if not late:
                    decision["release_after"] = self.lives.last_forward[tensor]
                    continue
                at = max(late)
                self.bound.keep_until_filled.add(tensor)
                # Orders are carried out before their pack is answered.
                after = [number for number in range(at + 1, len(self.step.packs)) if self.step.packs[number][1] >= 0]
            else:
                after = [
                    number
                    for number in range(first, len(self.step.packs))
                    if self.step.packs[number][1] >= max(wanted, self.step.packs[first][1])
                ]
            number = after[0] if after else -1
            found[number].append(tensor)
            decision["release_after"] = self.step.packs[number][1] if number >= 0 else self.lives.turn - 1
        return found

    def forgets(self) -> dict[int, list[int]]:
        """For each pack, the slots that no later one needs."""
        created: dict[int, int] = {}
        for tensor in self.bound.kinds:
            created[tensor] = self.packs_of[tensor][0]
        # A slot is created with the first that reads it, and so are those that it reads.
        for tensor in sorted(self.bound.leaves, key=lambda tensor: -self.lives.first[tensor]):
            for leaf in self.bound.leaves[tensor]:
                created[leaf] = min(created[leaf], created[tensor])
        last = {tensor: self.packs_of[tensor][-1] for tensor in self.bound.kinds}
        for tensor, leaves in self.bound.leaves.items():
            for leaf in leaves:
                last[leaf] = max(last[leaf], created[tensor])
        found: dict[int, list[int]] = defaultdict(list)
        for tensor, number in last.items():
            found[number + 1].append(tensor)
        return found

    def turns(self) -> None:
        bound, lives = self.bound, self.lives
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
        # As far as the hooks see, the backward pass begins with the first one and ends with the last.
        bound.busy = {*bound.fetch, *bound.drop, 0, len(bound.unpacks) - 1}

    def unhook(self, saves: list[ModuleSaves]) -> None:
        """Finds what needs no hooks, and counts the turns without it."""
        bound = self.bound
        needed = {number for turn, number in enumerate(bound.unpacks) if turn in bound.busy}
        found = stretches(saves, [elements < 0 or number in needed for number, elements in enumerate(bound.kept)])
        bound.unhooked = {stretch.first: stretch for stretch in found}
        without = {number for stretch in found for number in range(stretch.first, stretch.end)}
        stays = [number not in without for number in bound.unpacks]
        turns = [0, *accumulate(stays)]
        bound.unpacks = [number for number, stay in zip(bound.unpacks, stays, strict=True) if stay]
        bound.fetch = {turns[turn]: tensors for turn, tensors in bound.fetch.items()}
        bound.drop = {turns[turn]: tensors for turn, tensors in bound.drop.items()}
        bound.busy = {turns[turn] for turn in bound.busy}
        for turn, number in enumerate(bound.unpacks):
            bound.turns.setdefault(number, []).append(turn)


def bind(
    step: Step,
    lives: Lives,
    decisions: dict[int, dict[str, Any]],
    packs: list[Pack],
    calls: list[ModuleCall],
    saves: list[ModuleSaves],
) -> Bound:
    """Binds decisions to the packs and unpacks of a recorded step, in which modules were called in this order, and saved this.

    Raises
    ------
    Impossible
        If the decisions cannot be carried out.
    """
    return _Binder(step, lives, decisions).bind(packs, calls, saves)
