"""Divides a joint graph so that its step holds a budget: what the forward pass keeps, and what the backward pass computes again.

The joint planner decides, for what is saved, between keeping and computing again. A rerun stands right before the operation that
needs it, as in the plan, so the memory of the graph is that of the plan::

    kept everything   x = conv(..), y = relu(x), ..   | save x, y  |  .. f(y), g(x)
    planned           x = conv(..), y = relu(x), ..   | save x     |  .. y = relu(x), f(y), g(x)
"""

from __future__ import annotations

import operator
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from .aot import Joint, is_symbolic, split
from .budget import reserve_of
from .decide import Decided, decide, decide_least
from .fitted import misfit
from .joint import Reading, read
from .optimizer import assumed_bytes, optimizer_bytes
from .rebuild import Lives
from .recorded import Step
from .sizes import text
from .step import build

__all__ = ["Planned", "carry_out", "plan_joint"]


@dataclass
class Planned:
    """A plan of a joint graph.

    Attributes
    ----------
    reading, step, lives
        What was read of the graph.
    decided
        The decisions, with the prediction.
    seconds
        Time of planning.
    assumed
        What was assumed, in words.
    """

    reading: Reading
    step: Step
    lives: Lives
    decided: Decided
    budget: int
    seconds: float
    assumed: str

    @property
    def again(self) -> dict[int, list[dict[str, Any]]]:
        """The reruns of each tensor that is computed again."""
        return {
            tensor: decision["rebuilt"]
            for tensor, decision in self.decided.decisions.items()
            if decision["decision"] == "recompute"
        }

    @property
    def saved_bytes(self) -> int:
        """Bytes that the forward pass keeps for the backward pass, beside what exists before."""
        saved = {tensor for tensor, _ in self.step.packs if tensor >= 0}
        return sum(self.lives.bytes[tensor] for tensor in saved if tensor not in self.again and not self.lives.resident[tensor])

    def line(self) -> str:
        """What the plan does, on one line."""
        found, plain = self.decided.outcome, self.decided.plain
        if not self.decided.decisions:
            return f"compiled graph: predicted peak {text(found.peak)} fits in {text(self.budget)}; nothing is changed{self.assumed}"
        return (
            f"compiled graph: predicted peak {text(found.peak)} of {text(self.budget)} (plain {text(plain.peak)}), "
            f"overhead {100 * (found.time_us / max(plain.time_us, 1e-9) - 1):.1f}%, {found.rebuilt_us / 1e3:.1f} ms recomputed, "
            f"planned in {self.seconds:.1f} s{self.assumed}"
        )


def plan_joint(joint: Joint, budget: int, optimizer: Any = None) -> Planned:
    """Plans a joint graph.

    Raises
    ------
    DoesNotFit
        If no plan within the budget is found; it has the least budget found, and names the operation that needs it.
    """
    started = time.monotonic()
    reading = read(joint)
    device = _device(joint)
    trained = [
        storage.bytes for storage in reading.recorder.storages if (storage.external or ("",))[0] == "parameter"
    ]
    if optimizer is None:
        state, scratch, assumed = assumed_bytes(trained, device)
    else:
        state, scratch, assumed = optimizer_bytes(optimizer, None, device)
    outside = 0
    if device.type == "cuda":
        there = sum(storage.bytes for storage in reading.recorder.storages if storage.external is not None)
        of_optimizer = state if optimizer is not None and optimizer.state else 0
        outside = max(0, torch.cuda.memory_allocated(device) - there - of_optimizer) + reserve_of(budget, device)
    step = build(
        reading.recorder, device, reading.gradients, "the compiled graph", (state, scratch), outside,
        host_bytes=0, may_rerun=reading.may_rerun,
    )  # fmt: skip
    for number in reading.held:
        tensor = step.tensors.get((number, 0), -1)
        if tensor >= 0 and step.data["tensors"][tensor]["residence"] == "movable":
            step.data["tensors"][tensor]["residence"] = "temporary"
    lives = Lives(step.data)
    decided = decide(step.data, budget, lives)
    if not decided.fits:
        decided = decide_least(step.data, lives)
        if decided.outcome.peak > budget:
            raise misfit("the compiled graph", step, decided.outcome, budget, decided.outcome.peak)
    seconds = time.monotonic() - started
    return Planned(reading, step, lives, decided, budget, seconds, f"; assuming that {assumed}" if assumed else "")


def _device(joint: Joint) -> torch.device:
    """Where the graph computes."""
    devices = [node.meta["val"].device for node in joint.primals if isinstance(node.meta.get("val"), Tensor)]
    return next((device for device in devices if device.type == "cuda"), devices[0] if devices else torch.device("cpu"))


def carry_out(joint: Joint, planned: Planned) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Forward and backward graphs of a plan."""
    module, saved = _Writer(joint, planned).write()
    return split(module, len(joint.outputs), saved)


class _Writer:
    """Writes a joint graph anew, with reruns in its backward pass where the plan has them.

    The forward pass is copied as it is. Of its values, the backward pass finds those that are saved; others are computed again,
    and views of them each time they are read, so that nothing holds a tensor longer than the plan does.
    """

    def __init__(self, joint: Joint, planned: Planned) -> None:
        self.joint = joint
        self.planned = planned
        self.graph = fx.Graph()
        reading, step = planned.reading, planned.step
        self.again = planned.again
        self.tensor_of = {
            reading.maker[number]: tensor
            for (number, writes), tensor in step.tensors.items()
            if writes == 0 and number in reading.maker
        }
        self.maker_of = {tensor: node for node, tensor in self.tensor_of.items()}
        self.recorded = {reading.node_of[key]: index for index, key in enumerate(map(id, step.recorded)) if key in reading.node_of}
        # What the backward pass can read, in the new graph.
        self.now: dict[fx.Node, fx.Node] = {}
        self.done: dict[int, int] = {}

    def write(self) -> tuple[fx.GraphModule, list[fx.Node]]:
        """The new graph, and the nodes of it that are saved."""
        nodes = list(self.joint.module.graph.nodes)
        forward: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            if node.op == "placeholder" or node.op != "output" and not self.joint.in_backward(node):
                forward[node] = self.graph.node_copy(node, lambda read: forward[read])
        reading = self.planned.reading
        kept = [
            reading.maker[pack.view.storage]
            for pack, (tensor, _) in zip(reading.recorder.packs, self.planned.step.packs, strict=True)
            if tensor not in self.again
        ]
        saved = [*self.joint.primals, *kept]
        there = [*saved, *self.joint.tangents, *(node for node in forward if is_symbolic(node) or node.op == "get_attr")]
        self.now.update((node, forward[node]) for node in there)
        self.backward([node for node in nodes if node.op != "placeholder" and self.joint.in_backward(node)])
        (output,) = (node for node in nodes if node.op == "output")
        gradients = {node: self.value(node, {}) for node in self.joint.gradients if node is not None}
        results = [forward.get(node, node) for node in self.joint.outputs]
        results += [gradients.get(node) for node in self.joint.gradients]
        self.graph.output(tuple(results)).meta.update(output.meta)
        self.graph.lint()
        of_tensors = [node for node in dict.fromkeys(saved) if isinstance(node.meta.get("val"), Tensor)]
        return fx.GraphModule(self.joint.module, self.graph), [forward[node] for node in of_tensors]

    def backward(self, nodes: list[fx.Node]) -> None:
        """Writes the operations of the backward pass, and each rerun before the operation that it is planned for."""
        due: dict[int, list[tuple[int, int]]] = {}
        for tensor, entries in self.again.items():
            for order, entry in enumerate(entries):
                due.setdefault(entry["before"], []).append((order, tensor))
        at = self.planned.lives.turn
        for node in nodes:
            index = self.recorded.get(node, at - 1)
            while at <= index:
                for order, tensor in sorted(due.get(at, ())):
                    self.planned_rerun(tensor, order)
                at += 1
            if node.target is not operator.getitem or node.args[0] not in self.recorded:
                local: dict[fx.Node, fx.Node] = {}
                self.copy(node, local)
                self.now.update((made, local[made]) for made in (node, *node.users) if made in local)

    def planned_rerun(self, tensor: int, order: int) -> None:
        """Computes a tensor again, unless it is there for its first reader."""
        maker = self.maker_of[tensor]
        if order == 0 and maker in self.now:
            return
        self.now.pop(maker, None)
        self.done[tensor] = order
        self.rerun(tensor)

    def rerun(self, tensor: int) -> None:
        """Runs the operations that make a tensor."""
        entries = self.again[tensor]
        entry = entries[min(self.done.get(tensor, 0), len(entries) - 1)]
        lives = self.planned.lives
        local: dict[fx.Node, fx.Node] = {}
        made: set[int] = set()
        for index in entry["operations"]:
            self.copy(self.planned.reading.node_of[id(self.planned.step.recorded[index])], local)
            made.update(lives.operations[index]["writes"])
        for other in made & self.again.keys():
            # What is made on the way stays if no later rerun makes it.
            if other == tensor or not any(later["before"] > entry["before"] for later in self.again[other]):
                self.now[self.maker_of[other]] = local[self.maker_of[other]]

    def value(self, node: fx.Node, local: dict[fx.Node, fx.Node]) -> fx.Node:
        """A node's value in the new graph, computed if it is not there."""
        found = local.get(node) or self.now.get(node)
        if found is not None:
            return found
        if self.tensor_of.get(node) in self.again:
            self.rerun(self.tensor_of[node])
            return self.now[node]
        self.copy(node, local)
        return local[node]

    def copy(self, node: fx.Node, local: dict[fx.Node, fx.Node]) -> None:
        """Copies a node and what takes its results: a tuple holds all of them."""
        backward = self.joint.in_backward(node)
        if not backward:
            self.check(node)
        for read in node.all_input_nodes:
            if read not in local and read not in self.now:
                self.value(read, local)
        made = (None if backward else self.without_statistics(node, local)) or self.graph.node_copy(
            node, lambda read: self.value(read, local)
        )
        made.meta["partitioner_tag"] = "is_backward"
        local[node] = made
        if isinstance(node.meta.get("val"), list | tuple):
            for user in node.users:
                if user.target is operator.getitem and self.joint.in_backward(user) <= backward:
                    local[user] = self.graph.node_copy(user, lambda read: local[read])
                    local[user].meta["partitioner_tag"] = "is_backward"

    def check(self, node: fx.Node) -> None:
        """What may not run again never does."""
        index = self.recorded.get(node)
        if index is not None:
            recorded = self.planned.step.recorded[index]
            assert recorded is not None
            if recorded.makes and not self.planned.reading.may_rerun(recorded):
                raise RuntimeError(f"tightfit: {node} would run twice; please report this")

    def without_statistics(self, node: fx.Node, local: dict[fx.Node, fx.Node]) -> fx.Node | None:
        """A batch normalization that updates no statistics: those that it would read have changed."""
        if node.target is not torch.ops.aten._native_batch_norm_legit_functional.default or not node.args[5]:
            return None
        args = fx.map_arg((*node.args[:3], *node.args[5:]), lambda read: self.value(read, local))
        made = self.graph.call_function(torch.ops.aten._native_batch_norm_legit.no_stats, args)
        made.meta.update(node.meta)
        made.meta["val"] = node.meta["val"][:3]
        return made
