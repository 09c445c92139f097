"""Turns a recording into a step: tensors and operations as data, in the form of a step file.

Packs and unpacks become operations that take no time: they are the clock by which a plan is carried out, since nothing else
of a step can be seen from outside. Where the program holds a tensor longer than its last reader does, the operation that ran
last before it died reads it too, or one named `held` behind that, so that lives are exact.

A storage that is changed in place is one tensor, unless something reads or saves it between two changes: then each part of
its life is a tensor of its own, which has the earlier one's bytes (`alias`).
"""

from __future__ import annotations

from typing import Any

import torch

from ..memory.allocator import ROUND
from ..memory.host import rerun_us
from .cost import Rates, bytes_of_call, estimate, rates_of
from .data import External, Operation, Step, View
from .functions import kinds_of
from .marks import is_small
from .recorder import Other, Recorder
from .rerunnable import BATCH_NORMS, may_run_again
from .times import Times, key_of

__all__ = ["OUTSIDE", "build"]

# Smaller tensors are always kept: moving them takes longer than it frees.
LEAST_BYTES = 16 << 10
# How much longer operations take beside copies: 0.5 to 2% as steps on H200s show it.
SLOWDOWN = 1.015
# The group of operations that no submodule runs.
OUTSIDE = "outside modules"
GRANULE = {"cuda": ROUND}
# Devices that compute beside the host.
HOSTED = {"cuda"}
_KINDS = {"parameter": "weight", "buffer": "weight", "gradient": "weight-gradient", "input": "input"}


class _Builder:
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
        self.stage_of_event = [""] * len(recorder.timeline)
        self.saved = {(pack.view.storage, pack.view.writes) for pack in recorder.packs}
        self.parts: list[list[Operation]] = []
        # Their conjugation is no part of their bytes.
        self.complex = {pack.view.storage for pack in recorder.packs if pack.view.dtype.is_complex}
        self.last_writes = [storage.writes for storage in recorder.storages]
        # What may be called again, and the storages that autograd saves during each call.
        self.functions = kinds_of(recorder) if recomputes else {}
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
        """For storages of sums of gradients, that of the first one: autograd adds others to it in place, if nothing else needs it. To fake
        tensors, which were recorded, it does not."""
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
            # Of two tensors, without a factor.
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
                    index = self.add_tensor(storage.number, value, made_in.get(value), gradients, index)
                self.of[value] = index
                if value in self.saved and storage.number not in self.complex:
                    self.mark_saved(index, made_in.get(value))

    def add_tensor(
        self, number: int, value: tuple[int, int], maker: Operation | None, gradients: set[int], before: int
    ) -> int:
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

    def add_operation(self, operation: Operation) -> int:
        return self.add_call([operation], set())

    def add_call(self, parts: list[Operation], inner: set[int]) -> int:
        """Adds the operations of a call of a function as one, whose own temporary tensors are its workspace."""
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
            # A view: what reads it reads its storage.
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
            # The host may be what a step waits for.
            self.operations[index]["rerun_time_us"] = max(self.operations[index]["time_us"], rerun_us(self.device))
        self.parts[index] = parts
        return index

    def scratch(self, parts: list[Operation], inner: set[int], costs: dict[int, tuple[float, int]]) -> int:
        """The most that a call takes beside its results: workspaces, and tensors that only it has."""
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
        """Whether a call may run again from what can be found again when the backward pass runs."""
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
                # What exists before the step, and is too large for a copy, must be what autograd keeps.
                if self.of[value] in self.externals and value[0] not in saved and value[0] not in casts:
                    return "never"
            if any(self.of.get(value) in self.externals and value[0] not in statistics for value in part.makes):
                return "never"
        return "same"

    def cost(self, operation: Operation) -> tuple[float, int]:
        """Time of a call in us, and bytes of its workspace: as measured, or else as its kind has for its size at most."""
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
    """Storages of running statistics that a batch normalization updates, and does not need when it runs again."""
    if operation.name not in BATCH_NORMS:
        return set()
    found = [value.storage for value in operation.arguments[3:5] if isinstance(value, View)]
    return {storage for storage in found if storage in operation.changes}


def build(
    recorder: Recorder,
    device: torch.device,
    gradients: set[int],
    name: str,
    optimizer: tuple[int, int],
    outside_bytes: int = 0,
    types: str = "f32",
    times: Times | None = None,
    host_bytes: int | None = None,
    between_bytes: int = 0,
    before_bytes: int = 0,
    recomputes: bool = True,
) -> Step:
    """Makes the step of a finished recording.

    Parameters
    ----------
    recorder
        What was recorded.
    device
        Where the model is; tensors elsewhere do not count.
    gradients
        Storages of the parameters' gradients.
    name
        What to call the step.
    optimizer
        Bytes of the optimizer's state, and bytes it needs while it updates.
    outside_bytes
        Bytes on the device that are not of this step.
    times
        What was measured on the device; without it, times are estimates.
    host_bytes
        Host memory for what is offloaded; None for no limit.
    between_bytes
        Bytes that the program needs between the passes beside what was recorded there.
    before_bytes
        Bytes of the outputs of the pass before, which are there until the model has given its own.
    recomputes
        Whether anything may run again.
    """
    rates = rates_of(device)
    builder = _Builder(recorder, device, rates, times, recomputes)
    link = times.rates if times is not None else {}
    builder.add_tensors(gradients)
    for value, tensor in builder.of.items():
        builder.values.setdefault(tensor, []).append(value)
    held = _held(recorder)
    packs = [(-1, -1)] * len(recorder.packs)
    unpacks: list[tuple[int, int]] = []
    outputs, given = _outputs_before(builder, before_bytes), 0

    def add_pack(event: str, number: int) -> None:
        pack = recorder.packs[number]
        tensor = builder.of.get((pack.view.storage, pack.view.writes), -1)
        operation = -1
        if tensor >= 0 and tensor not in builder.externals:
            stage = "forward" if event == "pack" else "backward"
            operation = builder.add(None, pack.group, stage, event, reads=[tensor])
        if event == "pack":
            packs[number] = (tensor, operation)
        else:
            unpacks.append((number, operation))

    spans = _calls(recorder)
    position = 0
    while position < len(recorder.timeline):
        event, number = recorder.timeline[position]
        if position == recorder.given:
            if outputs:
                builder.add(None, "", "forward", "held", reads=outputs)
            given = len(builder.operations)
        end = spans.get(position, position + 1)
        events = recorder.timeline[position:end]
        parts = [recorder.operations[one] for kind, one in events if kind == "operation"]
        if len(parts) > 1:
            # A call: what it saves of others comes before it, and what it saves of its own behind it.
            made = {builder.of.get(value, -1) for part in parts for value in part.makes}
            own = [one for kind, one in events if kind == "pack" and _tensor_of(builder, one) in made]
            dying = [storage for at in range(position, end) for storage, _ in held.get(at, [])]
            known = {_tensor_of(builder, one) for one in own}
            inner = {builder.of[(storage, recorder.storages[storage].writes)] for storage in dying if (storage, recorder.storages[storage].writes) in builder.of}
            inner = {one for one in inner & made - known if builder.tensors[one]["residence"] == "temporary" and _made_anew(builder, one, parts)}
            for kind, one in events:
                if kind == "pack" and one not in own:
                    add_pack(kind, one)
            builder.add_call(parts, inner)
            for one in own:
                add_pack("pack", one)
            _hold(builder, [(storage, start) for at in range(position, end) for storage, start in held.get(at, []) if _current(builder, storage) not in inner])
            position = end
            continue
        if event == "operation":
            if between_bytes and recorder.operations[number].stage == "backward":
                builder.add(None, "", "backward", "between the passes", workspace_bytes=between_bytes)
                between_bytes = 0
            builder.add_operation(recorder.operations[number])
        else:
            add_pack(event, number)
        _hold(builder, held.get(position, []))
        position += 1
    _update(builder, gradients, optimizer, outside_bytes)
    data = {
        "tightfit_step": 1,
        "name": name,
        "batch": _batch(recorder),
        "types": types,
        "mode": "training",
        "tensors": builder.tensors,
        "groups": [{"name": group or OUTSIDE} for group in builder.groups],
        "operations": builder.operations,
        "machine": {
            "to_host_bytes_per_s": link.get("out", rates.link),
            "to_device_bytes_per_s": link.get("in", rates.link),
            "both_bytes_per_s": link.get("both", 1.6 * rates.link),
            "slowdown_beside_copies": SLOWDOWN,
            "host_bytes": host_bytes,
            "link_share": 1.0,
        },
    }
    assumed = [f"workspaces of {name} that were not measured are as large for their size as others" for name in sorted(builder.guessed)]
    return Step(data, packs, unpacks, builder.recorded, builder.of, builder.externals, builder.functions, assumed, given, builder.parts)


def _calls(recorder: Recorder) -> dict[int, int]:
    """Where in the timeline calls of functions begin that have several operations, and where they end."""
    found: dict[int, int] = {}
    first, call, count = 0, -1, 0
    for position, (event, number) in enumerate([*recorder.timeline, ("end", -1)]):
        of = -1
        if event == "operation":
            of = recorder.operations[number].call
        elif event == "pack":
            of = recorder.packs[number].call
        if of != call or of < 0:
            if call >= 0 and count > 1:
                found[first] = position
            first, call, count = position, of, 0
        count += int(event == "operation")
    return found


def _tensor_of(builder: _Builder, pack: int) -> int:
    view = builder.recorder.packs[pack].view
    return builder.of.get((view.storage, view.writes), -1)


def _made_anew(builder: _Builder, tensor: int, parts: list[Operation]) -> bool:
    """Whether all of a tensor's life is in one call."""
    makes = {value for part in parts for value in part.makes}
    return all(value in makes for value in builder.values[tensor])


def _held(recorder: Recorder) -> dict[int, list[tuple[int, int]]]:
    """For each position of the timeline, the storages that die there, and where each of their spans began."""
    found: dict[int, list[tuple[int, int]]] = {}
    for storage in recorder.storages:
        if storage.external is not None:
            continue
        for start, end in storage.spans:
            found.setdefault(end - 1, []).append((storage.number, start))
    return found


def _hold(builder: _Builder, dying: list[tuple[int, int]]) -> None:
    """Lets the last operation read what dies here."""
    if not dying or not builder.operations:
        return
    last = builder.operations[-1]
    used = {*last["reads"], *last["writes"], *last["adds"]}
    tensors = []
    for number, _ in dying:
        # The latest part of its life that exists by now.
        tensor = _current(builder, number)
        if tensor is not None and tensor not in used and tensor not in tensors:
            tensors.append(tensor)
    if last["rerun"] == "never" and last["name"] not in ("pack", "unpack"):
        last["reads"] += tensors
    elif tensors:
        # A rerun of the last operation does not need them, and neither does autograd.
        builder.add(None, "", last["stage"], "held", reads=tensors)


def _current(builder: _Builder, number: int) -> int | None:
    for writes in range(builder.last_writes[number], -1, -1):
        tensor = builder.of.get((number, writes))
        if tensor is not None:
            return tensor
    return None


def _outputs_before(builder: _Builder, size: int) -> list[int]:
    """The outputs of the pass before, as a tensor that is there when the step begins."""
    if size <= 0:
        return []
    builder.tensors.append(
        {"name": "outputs of the pass before", "bytes": size, "kind": "other", "residence": "temporary", "result": False, "alias": None}
    )
    tensor = len(builder.tensors) - 1
    builder.add(None, "", "forward", "held", writes=[tensor])
    return [tensor]


def _update(builder: _Builder, gradients: set[int], optimizer: tuple[int, int], outside_bytes: int) -> None:
    """The optimizer's step: reads all gradients, changes all weights."""
    state_bytes, scratch_bytes = optimizer
    weights = [index for index, named in builder.externals.items() if any(external.what == "parameter" for external in named)]
    of_gradients = sorted({builder.of[(number, builder.last_writes[number])] for number in gradients if builder.on_device(number)})
    state = []
    for name, size, kind in (("optimizer state", state_bytes, "optimizer-state"), ("outside the step", outside_bytes, "other")):
        if size > 0:
            builder.tensors.append(
                {"name": name, "bytes": size, "kind": kind, "residence": "resident", "result": False, "alias": None}
            )
            state.append(len(builder.tensors) - 1)
    if weights:
        builder.add(None, "", "update", "optimizer", reads=of_gradients, adds=[*weights, *state], workspace_bytes=scratch_bytes)


def _batch(recorder: Recorder) -> int:
    """Samples: the first length of the largest input."""
    views = [
        value
        for operation in recorder.operations
        for value in operation.arguments
        if isinstance(value, View) and (recorder.storages[value.storage].external or ("",))[0] == "input"
    ]
    largest = max(views, key=lambda view: view.shape.numel(), default=None)
    return int(largest.shape[0]) if largest is not None and largest.shape else 1
