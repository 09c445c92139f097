"""Turns a recording into a step: tensors and operations as data, in the form of a step file.

Packs and unpacks become operations that take no time. They are the clock of a plan, because hooks see nothing else of a step.
If the program holds a tensor beyond its last reader, the last operation before its death also reads it, or an operation named
`held` after that one. So the lifetimes in the step are exact.
"""

from __future__ import annotations

import torch

from ..memory.host import bare_rerun_us, copy_us, operation_us
from .builder import HOSTED, Builder
from .cost import rates_of
from .data import Operation, Step, View
from .recorder import Recorder
from .times import Times

__all__ = ["OUTSIDE", "build"]

# The slowdown of operations that run at the same time as copies: 0.5 to 2% in steps on H200s.
SLOWDOWN = 1.015
# The group of operations that no submodule runs.
OUTSIDE = "outside modules"


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
        The recording.
    device
        Where the model is; tensors elsewhere do not count.
    gradients
        Storages of the parameters' gradients.
    name
        The name of the step.
    optimizer
        Bytes of the optimizer's state, and bytes it needs while it updates.
    outside_bytes
        Bytes on the device that are not of this step.
    times
        Measurements of the device; without them, times are estimates.
    host_bytes
        Host memory for offloaded tensors, or None for no limit.
    between_bytes
        Bytes that the program needs between the passes in addition to the recorded ones.
    before_bytes
        Bytes of the outputs of the pass before, which are there until the model has given its own.
    recomputes
        Whether anything may run again.
    """
    rates = rates_of(device)
    builder = Builder(recorder, device, rates, times, recomputes)
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
            stage = "forward" if event == "pack" or position < recorder.outer else "backward"
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
            # A function call with several operations. Its packs of other tensors come before it, its packs of its own results after it.
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
            builder.add_call([recorder.operations[number]], set())
        else:
            add_pack(event, number)
        _hold(builder, held.get(position, []))
        position += 1
    is_hosted = device.type in HOSTED and _wait_for_host(builder, operation_us(device), bare_rerun_us(device))
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
            **({"copy_host_us": copy_us(device)} if is_hosted else {}),
            "host_bytes": host_bytes,
            "link_share": 1.0,
        },
    }
    assumed = [f"workspaces of {name} that were not measured are as large for their size as others" for name in sorted(builder.guessed)]
    return Step(data, packs, unpacks, builder.recorded, builder.of, builder.externals, builder.functions, assumed, given, builder.parts)


def _wait_for_host(builder: Builder, least_us: float, rerun_us: float) -> bool:
    """Raises the time of each operation, and of its rerun, to the host's time for it, if the step takes longer on the host than on the device.

    Returns whether it does.
    """
    timed = [operation for operation in builder.operations if operation["time_us"] > 0]
    if least_us * len(timed) <= sum(operation["time_us"] for operation in timed):
        return False
    for operation in timed:
        operation["time_us"] = max(operation["time_us"], least_us)
        if operation.get("rerun_time_us"):
            operation["rerun_time_us"] = max(operation["rerun_time_us"], rerun_us)
    return True


def _calls(recorder: Recorder) -> dict[int, int]:
    """For each function call with several operations: its begin and its end in the timeline."""
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


def _tensor_of(builder: Builder, pack: int) -> int:
    view = builder.recorder.packs[pack].view
    return builder.of.get((view.storage, view.writes), -1)


def _made_anew(builder: Builder, tensor: int, parts: list[Operation]) -> bool:
    """Whether a tensor exists only inside one call."""
    makes = {value for part in parts for value in part.makes}
    return all(value in makes for value in builder.values[tensor])


def _held(recorder: Recorder) -> dict[int, list[tuple[int, int]]]:
    """For each position of the timeline, the storages that die there, with the begin of the span that ends."""
    found: dict[int, list[tuple[int, int]]] = {}
    for storage in recorder.storages:
        if storage.external is not None:
            continue
        for start, end in storage.spans:
            found.setdefault(end - 1, []).append((storage.number, start))
    return found


def _hold(builder: Builder, dying: list[tuple[int, int]]) -> None:
    """Makes the last operation read the tensors that die here."""
    if not dying or not builder.operations:
        return
    last = builder.operations[-1]
    used = {*last["reads"], *last["writes"], *last["adds"]}
    tensors = []
    for number, _ in dying:
        # The current tensor of this storage.
        tensor = _current(builder, number)
        if tensor is not None and tensor not in used and tensor not in tensors:
            tensors.append(tensor)
    if last["rerun"] == "never" and last["name"] != "pack":
        last["reads"] += tensors
    elif tensors:
        # A rerun of the last operation must not read these tensors, so a separate operation does.
        builder.add(None, "", last["stage"], "held", reads=tensors)


def _current(builder: Builder, number: int) -> int | None:
    for writes in range(builder.last_writes[number], -1, -1):
        tensor = builder.of.get((number, writes))
        if tensor is not None:
            return tensor
    return None


def _outputs_before(builder: Builder, size: int) -> list[int]:
    """The outputs of the previous pass, as a tensor that exists when the step begins."""
    if size <= 0:
        return []
    builder.tensors.append(
        {"name": "outputs of the pass before", "bytes": size, "kind": "other", "residence": "temporary", "result": False, "alias": None}
    )
    tensor = len(builder.tensors) - 1
    builder.add(None, "", "forward", "held", writes=[tensor])
    return [tensor]


def _update(builder: Builder, gradients: set[int], optimizer: tuple[int, int], outside_bytes: int) -> None:
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
