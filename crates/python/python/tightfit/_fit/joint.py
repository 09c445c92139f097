"""Reads a joint graph as a recording: what runs, what it reads and makes, and what the backward pass needs of the forward one.

Nothing runs: AOT autograd has left a fake tensor at every node, and views share their storages::

    node         convolution   getitem   relu   view   ..   detach(relu)   threshold_backward
    makes        s1            s2        s3     -           -              s4
    saved                                s3 ................s3
"""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_flatten, tree_map

from .aot import Joint, hint, is_symbolic
from .cost import flops
from .recorded import External, Operation, Pack, Storage, View
from .recorder import Other, Recorder
from .rerun import may_run_again_in_graph, reads_no_statistics

__all__ = ["Reading", "read"]

# How Dynamo writes the paths of modules: L['self']._modules['layer1'].conv.
_ROOT = re.compile(r"^L\['\w+'\]\.?")
_INDEX = re.compile(r"_modules\['(\w+)'\]")


class Reading:
    """A joint graph as a recording.

    Attributes
    ----------
    recorder
        The recording; saved storages are packed where they are made, and unpacked where they are first read again.
    gradients
        Storages of the parameters' gradients.
    maker
        The node that makes each storage: for one of several results, that which takes it.
    node_of
        The node of each operation, by identity.
    held
        Storages that the program has, whatever is decided: its outputs.
    """

    def __init__(self, joint: Joint) -> None:
        self.joint = joint
        self.recorder = Recorder()
        self.gradients: set[int] = set()
        self.maker: dict[int, fx.Node] = {}
        self.node_of: dict[int, fx.Node] = {}
        self.held: set[int] = set()
        self.keys: dict[int, Storage] = {}
        self.mutated: set[int] = set()

    def storage(self, tensor: Tensor) -> Storage:
        raw = tensor.untyped_storage()
        found = self.keys.get(raw._cdata)
        if found is None:
            recorder = self.recorder
            found = Storage(len(recorder.storages), hint(raw.nbytes()), tensor.device)
            recorder.storages.append(found)
            self.keys[raw._cdata] = found
        return found

    def view(self, tensor: Tensor) -> View:
        storage = self.storage(tensor)
        shape, stride = torch.Size(map(hint, tensor.shape)), tuple(map(hint, tensor.stride()))
        return View(storage.number, storage.writes, shape, stride, hint(tensor.storage_offset()), tensor.dtype)

    def may_rerun(self, operation: Operation) -> bool:
        """Whether an operation gives the same again: it is on the list, and what it reads is as it was."""
        name = operation.name
        if operation.device is None or not may_run_again_in_graph(name, operation.function, operation.device.type == "cuda"):
            return False
        statistics = set()
        if reads_no_statistics(name, operation.arguments):
            statistics = {value.storage for value in operation.arguments[3:5] if isinstance(value, View)}
        return all(number in statistics or number not in self.mutated for number, _ in operation.reads)


def read(joint: Joint) -> Reading:
    """Reads a joint graph."""
    reading = Reading(joint)
    recorder = reading.recorder
    _inputs(reading)
    known = {storage.number for storage in recorder.storages}
    packs: dict[int, int] = {}
    unpacked: set[int] = set()
    for node in joint.module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem or is_symbolic(node):
            continue
        backward = joint.in_backward(node)
        if backward and recorder.stage == "forward":
            recorder.stage = "backward"
            known |= _tangents(reading)
        operation = _operation(reading, node, known)
        if backward:
            for number, _ in operation.reads:
                if number in packs and number not in unpacked:
                    unpacked.add(number)
                    recorder.timeline.append(("unpack", packs[number]))
        reading.node_of[id(operation)] = node
        recorder.add(operation)
        if not backward:
            for view in operation.outputs:
                if view is not None and (view.storage, view.writes) in operation.makes and view.storage not in packs:
                    packs[view.storage] = len(recorder.packs)
                    recorder.packs.append(Pack(view, False, operation.group, -1))
                    recorder.timeline.append(("pack", packs[view.storage]))
    _forget(recorder, {packs[number] for number in unpacked})
    _outputs(reading)
    return reading


def _inputs(reading: Reading) -> None:
    """Names what is there before the step."""
    joint = reading.joint
    for node, gradient in zip(joint.primals, joint.gradients, strict=False):
        value = node.meta.get("val")
        if not isinstance(value, Tensor):
            continue
        storage = reading.storage(value)
        what = "input" if node not in joint.static else "buffer" if gradient is None else "parameter"
        storage.external = storage.external or (what, node.name)
        storage.named.append(External(what, node.name, reading.view(value)))
        reading.maker.setdefault(storage.number, node)
        if node in joint.mutated:
            reading.mutated.add(storage.number)


def _tangents(reading: Reading) -> set[int]:
    """The gradients of the outputs, which the program makes when the backward pass begins."""
    values = [node.meta["val"] for node in reading.joint.tangents if isinstance(node.meta.get("val"), Tensor)]
    views = [reading.view(value) for value in values]
    makes = list({(view.storage, 0) for view in views})
    for node, view in zip(reading.joint.tangents, views, strict=False):
        reading.maker.setdefault(view.storage, node)
    reading.recorder.add(
        Operation(Other("gradients"), [], None, list(views), [], makes, [], "backward", None, "", 0.0)
    )
    return {number for number, _ in makes}


def _operation(reading: Reading, node: fx.Node, known: set[int]) -> Operation:
    args, kwargs = tree_map(lambda value: value.meta.get("val") if isinstance(value, fx.Node) else value, (node.args, node.kwargs))
    out = node.meta.get("val")
    flat, structure = tree_flatten((args, kwargs))
    arguments = [reading.view(value) if isinstance(value, Tensor) else value for value in flat]
    reads = list(dict.fromkeys((value.storage, value.writes) for value in arguments if isinstance(value, View)))
    function: Any = node.target
    if not isinstance(function, torch._ops.OpOverload):
        function = Other(getattr(function, "__name__", str(function)))
    changes = _changes(reading, function, args, kwargs)
    makes = [(number, reading.recorder.storages[number].writes) for number in changes]
    outputs: list[View | None] = []
    device = None
    for place, value in enumerate(tree_flatten(out)[0]):
        if not isinstance(value, Tensor):
            outputs.append(None)
            continue
        view = reading.view(value)
        outputs.append(view)
        device = value.device
        if view.storage not in known:
            known.add(view.storage)
            makes.append((view.storage, view.writes))
            reading.maker[view.storage] = _taken(node, place) if isinstance(out, list | tuple) else node
    whole = all(isinstance(size, int) for value in flat if isinstance(value, Tensor) for size in value.shape)
    work = flops(function, args, kwargs, out) if whole and isinstance(function, torch._ops.OpOverload) else 0.0
    stage = reading.recorder.stage
    return Operation(function, arguments, structure, outputs, reads, makes, changes, stage, device, _group(node), work)


def _taken(node: fx.Node, place: int) -> fx.Node:
    """The node that takes one of several results."""
    return next((user for user in node.users if user.target is operator.getitem and user.args[1] == place), node)


def _changes(reading: Reading, function: Any, args: Any, kwargs: Any) -> list[int]:
    """Storages that a call changes in place."""
    schema = getattr(function, "_schema", None)
    found: list[int] = []
    for position, argument in enumerate(getattr(schema, "arguments", ())):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for tensor in tree_flatten(value)[0]:
            if isinstance(tensor, Tensor):
                storage = reading.storage(tensor)
                storage.writes += 1
                reading.mutated.add(storage.number)
                found.append(storage.number)
    return list(dict.fromkeys(found))


def _group(node: fx.Node) -> str:
    """The module that a node is of."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(stack.values())), "")
    return _INDEX.sub(r"\1", _ROOT.sub("", path))


def _forget(recorder: Recorder, needed: set[int]) -> None:
    """Leaves out packs of what the backward pass does not read."""
    number_of = {old: new for new, old in enumerate(sorted(needed))}
    recorder.packs = [pack for old, pack in enumerate(recorder.packs) if old in needed]
    recorder.timeline = [
        (event, number if event == "operation" else number_of[number])
        for event, number in recorder.timeline
        if event == "operation" or number in needed
    ]


def _outputs(reading: Reading) -> None:
    """Ends the step: the program has the outputs until then."""
    joint, recorder = reading.joint, reading.recorder
    for node in joint.outputs:
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if isinstance(value, Tensor):
            reading.held.add(reading.storage(value).number)
    for primal, gradient in zip(joint.primals, joint.gradients, strict=False):
        value = gradient.meta.get("val") if isinstance(gradient, fx.Node) else None
        if isinstance(value, Tensor) and primal in joint.static:
            reading.gradients.add(reading.storage(value).number)
    reads = [(number, recorder.storages[number].writes) for number in sorted(reading.held)]
    recorder.stage = "backward"
    recorder.add(Operation(Other("outputs"), [], None, [], reads, [], [], "backward", None, "", 0.0))
