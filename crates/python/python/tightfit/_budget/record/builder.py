"""The tensors and operations of a recorded step as data: which bytes are one tensor, and the tensors and costs of each operation.

A storage that is changed in place is one tensor, unless something reads or saves it between two changes. Then each part of its life is a separate
tensor, which has the bytes of the earlier one.
"""

from __future__ import annotations

from typing import Any

import torch

from ..memory.allocator import ROUND
from ..memory.host import rerun_us
from .cost import Rates, bytes_of_call, estimate
from .data import External, Operation, View
from .functions import kinds_of
from .marks import is_small
from .recorder import Other, Recorder
from .rerunnable import BATCH_NORMS, may_run_again
from .times import Times, key_of

__all__ = ["GRANULE", "HOSTED", "Builder"]

# Smaller tensors are always kept: moving them takes longer than it frees.
LEAST_BYTES = 16 << 10
GRANULE = {"cuda": ROUND}
# Devices that compute while the host goes on.
HOSTED = {"cuda"}
_KINDS = {"parameter": "weight", "buffer": "weight", "gradient": "weight-gradient", "input": "input"}


class Builder:
    """The tensors and operations of a step, as data."""

    def __init__(
        self,
        recorder: Recorder,
        device: torch.device,
        rates: Rates,
        times: Times | None,
        recomputes: bool,
    ) -> None:
        self.recorder = recorder
        self.device = device
        self.rates = rates
        self.times = times
        self.granule = GRANULE.get(device.type, 1)
        # Names of operations whose workspaces were not all measured.
        self.guessed: set[str] = set()
        self.tensors: list[dict[str, Any]] = []
        self.operations: list[dict[str, Any]] = []
        self.recorded: list[Operation | None] = []
        self.groups: dict[str, int] = {}
        self.of: dict[tuple[int, int], int] = {}
        self.values: dict[int, list[tuple[int, int]]] = {}
        self.externals: dict[int, list[External]] = {}
        self.saved = {(pack.view.storage, pack.view.writes) for pack in recorder.packs}
        self.parts: list[list[Operation]] = []
        # Their conjugation does not lie in their bytes.
        self.complex = {pack.view.storage for pack in recorder.packs if pack.view.dtype.is_complex}
        # A pass inside of the forward pass reads them, for which nothing is planned: they stay.
        read_inside = (recorder.packs[number].view for number in recorder.read_inside)
        self.read_inside = {(view.storage, view.writes) for view in read_inside}
        self.last_writes = [storage.writes for storage in recorder.storages]
        # The functions that may be called again, and the storages that autograd saves during each call.
        self.functions = kinds_of(recorder.marked, recorder.operations) if recomputes else {}
        self.saved_in: dict[int, set[int]] = {}
        for pack in recorder.packs:
            self.saved_in.setdefault(pack.call, set()).add(pack.view.storage)

    def on_device(self, number: int) -> bool:
        storage = self.recorder.storages[number]
        return storage.device.type == self.device.type and storage.bytes > 0

    def split(self) -> set[tuple[int, int]]:
        """Values that are read or saved and then overwritten, so that the next write begins another tensor."""
        ends = {value for value in self.saved if value[1] < self.last_writes[value[0]]}
        for operation in self.recorder.operations:
            for storage, writes in operation.reads:
                if writes < self.last_writes[storage] and storage not in operation.changes:
                    ends.add((storage, writes))
        return ends

    def sums(self, gradients: set[int]) -> dict[int, int]:
        """For each storage of a sum of gradients, the storage of the first gradient. Autograd adds the others to it in place, if nothing else needs
        it. The recorded fake tensors are added out of place."""
        last: dict[int, int] = {}
        made: set[int] = set()
        for index, operation in enumerate(self.recorder.operations):
            made.update(storage for storage, _ in operation.makes)
            last.update((storage, index) for storage, _ in (*operation.reads, *operation.makes))
        kept = gradients | {storage for storage, _ in self.saved}
        found = {}
        for index, operation in enumerate(self.recorder.operations):
            if operation.stage != "backward" or operation.name != "add" or operation.changes or len(operation.makes) != 1:
                continue
            first, (number, _) = operation.arguments[0], operation.makes[0]
            # A sum of two tensors, without a factor.
            if len(operation.arguments) != 2 or not all(isinstance(argument, View) for argument in operation.arguments):
                continue
            if first.storage == number or first.storage not in made or last[first.storage] > index:
                continue
            sizes = {self.recorder.storages[one].bytes for one in (first.storage, number)}
            on_device = self.on_device(number) and self.on_device(first.storage)
            if len(sizes) == 1 and on_device and not kept & {first.storage, number}:
                found[number] = first.storage
        return found

    def add_tensors(self, gradients: set[int]) -> None:
        ends, sums = self.split(), self.sums(gradients)
        made_in: dict[tuple[int, int], Operation] = {}
        for operation in self.recorder.operations:
            for value in operation.makes:
                made_in[value] = operation
        for storage in self.recorder.storages:
            if not self.on_device(storage.number):
                continue
            first = sums.get(storage.number)
            index = self.of[(first, self.last_writes[first])] if first is not None else -1
            for writes in range(storage.writes + 1):
                value = (storage.number, writes)
                if index < 0 or (storage.number, writes - 1) in ends:
                    index = self.add_tensor(storage.number, made_in.get(value), gradients, index)
                self.of[value] = index
                if value in self.saved and value not in self.read_inside and storage.number not in self.complex:
                    self.mark_saved(index, made_in.get(value))

    def add_tensor(self, number: int, maker: Operation | None, gradients: set[int], before: int) -> int:
        storage = self.recorder.storages[number]
        external = storage.external
        if external is None and maker is None and before < 0:
            external = storage.external = ("unknown", number)
        kind, residence, name = "feature-map", "temporary", ""
        if external is not None:
            what, which = external
            kind = _KINDS.get(what, "other")
            residence, name = "resident", f"{what} {which}"
        elif number in gradients:
            kind, name = "weight-gradient", "gradient"
        elif maker is not None:
            if maker.stage == "backward":
                kind = "gradient-map"
            name = f"{maker.group} {maker.name}".strip()
        if external is not None:
            self.externals[len(self.tensors)] = storage.named
        self.tensors.append(
            {
                "name": name or f"storage {number}",
                "bytes": -(-storage.bytes // self.granule) * self.granule,
                "kind": kind,
                "residence": residence,
                "result": number in gradients,
                "alias": None,
                "in_place_of": before if before >= 0 else None,
                "sample_bytes": None,
            }
        )
        return len(self.tensors) - 1

    def mark_saved(self, index: int, maker: Operation | None) -> None:
        tensor = self.tensors[index]
        if tensor["residence"] == "resident" or (maker is not None and maker.stage != "forward"):
            return
        if tensor["bytes"] >= LEAST_BYTES:
            tensor["residence"] = "movable"

    def group(self, name: str) -> int:
        return self.groups.setdefault(name, len(self.groups))

    def add(self, recorded: Operation | None, group: str, stage: str, name: str, **fields: Any) -> int:
        operation = {
            "group": self.group(group),
            "name": name,
            "stage": stage,
            "reads": [],
            "writes": [],
            "adds": [],
            "time_us": 0.0,
            "workspace_bytes": 0,
            "workspaces": None,
            "rerun": "never",
            "rerun_time_us": None,
            "independent_samples": False,
            **fields,
        }
        self.operations.append(operation)
        self.recorded.append(recorded)
        self.parts.append([recorded] if recorded is not None else [])
        return len(self.operations) - 1

    def add_call(self, parts: list[Operation], inner: set[int]) -> int:
        """Adds an operation, or the operations of a call of a function as one, whose own temporary tensors are its workspace."""
        made = list(dict.fromkeys(self.of[value] for part in parts for value in part.makes if value in self.of))
        read = list(dict.fromkeys(self.of[value] for part in parts for value in part.reads if value in self.of))
        written: set[int] = set()
        reads = []
        for part in parts:
            reads += [self.of[value] for value in part.reads if value in self.of and self.of[value] not in written]
            written.update(self.of[value] for value in part.makes if value in self.of)
        reads = list(dict.fromkeys(reads))
        makers = [part for part in parts if any(value in self.of for value in part.makes)]
        if not makers and not (read and any(isinstance(part.function, Other) for part in parts)):
            # A view is not an operation: its readers read its storage.
            return -1
        adds = [tensor for tensor in made if tensor in reads or self.tensors[tensor]["residence"] == "resident"]
        costs = [self.cost(part) if part.makes else (0.0, 0) for part in makers]
        scratch = self.scratch(parts, inner, dict(zip(map(id, makers), costs, strict=True)))
        main = max(zip(costs, range(len(makers)), strict=True))[1] if makers else 0
        first = makers[main] if makers else parts[0]
        rerun: Any = self.rerun(parts)
        residents = [tensor for tensor in adds if self.tensors[tensor]["residence"] == "resident"]
        if rerun == "same" and residents:
            rerun = {"read_only": residents}
        keyed = self.times.blocks.get(key_of(first)) if makers and self.times is not None and len(makers) == 1 else None
        index = self.add(
            first,
            first.group,
            first.stage,
            f"aten.{first.name}",
            reads=[tensor for tensor in reads if tensor not in adds and tensor not in inner],
            writes=[tensor for tensor in made if tensor not in adds and tensor not in inner],
            adds=adds,
            time_us=sum(time_us for time_us, _ in costs),
            workspace_bytes=-(-scratch // self.granule) * self.granule,
            workspaces=keyed,
            rerun=rerun if makers else "never",
        )
        if rerun != "never" and makers and self.device.type in HOSTED:
            # The step may wait for its host, so a rerun takes at least the host's time for a call.
            self.operations[index]["rerun_time_us"] = max(self.operations[index]["time_us"], rerun_us(self.device))
        self.parts[index] = parts
        return index

    def scratch(self, parts: list[Operation], inner: set[int], costs: dict[int, tuple[float, int]]) -> int:
        """The peak bytes of a call in addition to its results: workspaces, and tensors that exist only inside the call."""
        last: dict[int, int] = {}
        for place, part in enumerate(parts):
            for value in (*part.reads, *part.makes):
                if self.of.get(value) in inner:
                    last[self.of[value]] = place
        most, there = 0, set[int]()
        for place, part in enumerate(parts):
            there.update(self.of[value] for value in part.makes if self.of.get(value) in inner)
            held = sum(int(self.tensors[tensor]["bytes"]) for tensor in there)
            most = max(most, held + costs.get(id(part), (0.0, 0))[1])
            there = {tensor for tensor in there if last[tensor] > place}
        return most

    def rerun(self, parts: list[Operation]) -> str:
        """Whether a call may run again from tensors that are still available in the backward pass."""
        if parts[0].stage != "forward":
            return "never"
        number = parts[0].call
        if number < 0 or parts[0].group in self.recorder.unnoted or self.recorder.marked[number].function not in self.functions:
            return "never"
        if not all(map(may_run_again, parts)):
            return "never"
        saved = self.saved_in.get(number, set())
        made = {value for part in parts for value in part.makes}
        casts = {
            view.storage
            for part in parts
            if part.name == "_to_copy" and any(value[0] in saved for value in part.makes)
            for view in part.arguments
            if isinstance(view, View)
        }
        for part in parts:
            statistics = _statistics(part)
            for value in part.reads:
                storage = self.recorder.storages[value[0]]
                named = storage.named[0].view if storage.named else None
                if value in made or value[0] in statistics or is_small(len(named.shape) if named else 2, storage.bytes, named is not None):
                    continue
                if value not in self.of:
                    return "never"
                # A tensor that exists before the step and is too large to copy is available only if autograd keeps it.
                if self.of[value] in self.externals and value[0] not in saved and value[0] not in casts:
                    return "never"
            if any(self.of.get(value) in self.externals and value[0] not in statistics for value in part.makes):
                return "never"
        return "same"

    def cost(self, operation: Operation) -> tuple[float, int]:
        """Time of a call in us, and bytes of its workspace: measured, or else estimated. For an estimate, workspaces are as large for their size as
        the largest measured workspace of the same operation."""
        guess = estimate(operation, self.rates)
        if self.times is None:
            return guess, 0
        known = self.times.known.get(key_of(operation))
        if known is not None:
            return known
        workspace = int(self.times.workspaces.get(operation.name, 0.0) * bytes_of_call(operation))
        if workspace:
            self.guessed.add(operation.name)
        return guess * self.times.scales.get("flops" if operation.flops else "traffic", 1.0), workspace


def _statistics(operation: Operation) -> set[int]:
    """Storages of the running statistics that a batch normalization updates. A rerun does not need them."""
    if operation.name not in BATCH_NORMS:
        return set()
    found = [value.storage for value in operation.arguments[3:5] if isinstance(value, View)]
    return {storage for storage in found if storage in operation.changes}
