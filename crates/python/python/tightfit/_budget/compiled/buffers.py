"""The buffers of a graph that Inductor has fused and ordered: their bytes by step, and the places of the copies of offloaded values.

Like `private.py`, this uses private interfaces of Inductor.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from . import operators, properties
from .moves import course, course_back

if TYPE_CHECKING:
    from .divider import Divider

__all__ = ["Buffers", "is_library", "lay_out_as_saved"]


def is_library(target: Any) -> bool:
    """Whether Inductor calls a library for an operation. It generates code for all others."""
    from torch._inductor import lowering

    # Inductor has other rules for the last group, which call libraries.
    return target not in lowering.lowerings or target in lowering.fallbacks or properties.name_of(target) in ("convolution", *properties.PRODUCTS)


@functools.cache
def lay_out_as_saved() -> None:
    """Makes Inductor lay out offloaded values as it lays out saved ones. Another layout would add a copy on the host."""
    from torch._inductor import ir, lowering
    from torch._inductor.virtualized import V

    def lays_out(node: Any, x: Any) -> tuple[tuple[Any], dict[str, Any]]:
        (source,) = node.args
        # Else `release` would compute the value once more, and hold that copy instead.
        x.realize()
        strides = source.meta["val"].stride()
        if len(strides) == 4 and source in V.graph.nodes_prefer_channels_last:
            strides = ir.FlexibleLayout.stride_ordered_for_memory_format(x.get_size(), torch.channels_last)
        return (ir.ExternKernel.require_exact_strides(x, strides) if len(strides) else x,), {}

    lowering.make_fallback(operators.offload, lays_out, warn=False)


@dataclass
class _Copy:
    """A copy, by its operator: the scheduler's nodes of the call and of its result, and the buffers that it reads."""

    of: str
    nodes: list[Any]
    reads: list[str]

    @property
    def buffers(self) -> set[str]:
        return {buffer for node in self.nodes for buffer in node.get_buffer_names()}


class Buffers:
    """The buffers of one graph, in Inductor's order.

    Inputs that may be freed count until their last use. Parameters, inputs of the program and host memory do not count.

    Attributes
    ----------
    bytes
        By step, the bytes that exist while it runs.
    copies
        The copies of offloaded values.
    is_sound
        Whether the copies alone read host memory, since no other reader would wait for them, and whether each value is held until its copy has ended.
    """

    def __init__(self, graph: Any, extra: dict[str, int]) -> None:
        self.graph = graph
        self.scheduler = graph.scheduler
        self.extra = extra
        self.nodes: list[Any] = list(self.scheduler.nodes)
        self.copies = _copies(self.nodes)
        self.is_sound = self._is_sound()
        if self.copies and self.is_sound:
            # Inductor assumes no alignment for values that come from the host, but their memory on the device is aligned.
            graph.unaligned_buffers.difference_update(*(copy.buffers for copy in self.copies))
            self._settle()
        self.bytes = self._timeline()

    @property
    def peak(self) -> int:
        """Bytes at the peak."""
        return max(self.bytes, default=0)

    def _is_sound(self) -> bool:
        ours = {node for copy in self.copies for node in copy.nodes}
        made = {buffer: copy.of for copy in self.copies for buffer in copy.buffers}
        host = {buffer for buffer, of in made.items() if of in ("offload", "release")}
        host |= {read for copy in self.copies if copy.of == "prefetch" for read in copy.reads}
        if any(read.name in host for node in self.nodes if node not in ours for read in node.read_writes.reads):
            return False
        source = {buffer: copy.reads for copy in self.copies if copy.of == "offload" for buffer in copy.buffers}
        for copy in self.copies:
            copied = {read for name in copy.reads for read in source.get(name, ())}
            if copy.of == "release" and copied != {read for read in copy.reads if read not in source}:
                return False
            if copy.of == "wait" and made.get(copy.reads[0]) != "prefetch":
                return False
        return True

    def place(self, divider: Divider) -> int:
        """Places the copies so that they run at the same time as kernels, within the room. Returns the bytes at the peak."""
        is_backward = bool(self.graph.is_backward)
        step_of = {node: step for step, node in enumerate(self.nodes)}
        moves = [(step_of[copy.nodes[0]], copy) for copy in self.copies if copy.of == ("prefetch" if is_backward else "release")]
        moves.sort(key=lambda move: move[0])
        ours = {node for copy in self.copies for node in copy.nodes}
        times = [0.0 if node in ours else self._us(node, divider) for node in self.nodes]
        find, rate = (course_back, divider.link.into) if is_backward else (course, divider.link.out)
        found = find(times, self.bytes, [(step, self._size(copy)) for step, copy in moves], rate, divider.room(is_backward))
        here: dict[int, list[Any]] = {}
        for (_, copy), at in zip(moves, found.steps, strict=True):
            here.setdefault(at, []).extend(copy.nodes)
        moving = {node for _, copy in moves for node in copy.nodes}
        placed: list[Any] = []
        for step, node in enumerate([*self.nodes, None]):
            placed += here.get(step, [])
            if node not in moving:
                placed.append(node)
        self._order(placed)
        return found.peak

    def _order(self, nodes: list[Any]) -> None:
        self.nodes = self.scheduler.nodes = [node for node in nodes if node is not None]
        self.scheduler.compute_last_usage()

    def _settle(self) -> None:
        """Moves each copy to where its value is free to go, or needed."""
        ours = {node for copy in self.copies for node in copy.nodes}
        rest = [node for node in self.nodes if node not in ours]
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for step, node in enumerate(rest):
            last.update(dict.fromkeys(node.get_buffer_names(), step))
            for read in node.read_writes.reads:
                first.setdefault(read.name, step)
                last[read.name] = step
        made = {buffer: copy for copy in self.copies for buffer in copy.buffers}
        after: dict[int, list[Any]] = {}
        before: dict[int, list[Any]] = {}
        for copy in self.copies:
            other = next((made[read] for read in copy.reads if read in made), None)
            if copy.of == "release" and other is not None:
                value = next(read for read in copy.reads if read not in made)
                after.setdefault(last[value], []).extend((*other.nodes, *copy.nodes))
            elif copy.of == "wait" and other is not None:
                step = min((first[buffer] for buffer in copy.buffers if buffer in first), default=len(rest))
                before.setdefault(step, []).extend((*other.nodes, *copy.nodes))
        self._order([one for step, node in enumerate([*rest, None]) for one in (*before.get(step, ()), node, *after.get(step, ()))])

    def _size(self, copy: _Copy) -> int:
        """The bytes on the device that a copy gives back or allocates."""
        if copy.of == "prefetch":
            return max(int(buffer.mpi_buffer.size_alloc) for buffer in copy.nodes[0].get_outputs())
        hosts = {buffer for other in self.copies for buffer in other.buffers}
        return max(int(self.scheduler.name_to_buf[read].mpi_buffer.size_free) for read in copy.reads if read not in hosts)

    def _us(self, node: Any, divider: Divider) -> float:
        known = _known(node, divider.us)
        return known if known is not None else float(node.get_read_write_buffers_sizes()) / divider.memory

    def _timeline(self) -> list[int]:
        from torch._inductor import memory
        from torch._inductor.scheduler import FusedSchedulerNode

        graph, scheduler, nodes = self.graph, self.scheduler, self.nodes
        outputs = set(graph.get_output_names())
        names = scheduler.name_to_buf, scheduler.name_to_fused_node
        _, inputs = memory.prepare_planning_info(nodes, *names, _ordered(graph.graph_inputs), _ordered(outputs))
        buffers, _, _ = memory.compute_memory_timeline(nodes, inputs, _ordered(outputs))
        now = 0
        on_host, arriving, arrived = self._special(inputs)
        # By step, the bytes of the buffers that are freed there and of the buffers that are allocated there.
        freed: list[dict[str, int]] = [{} for _ in nodes]
        made: list[list[tuple[Any, int]]] = [[] for _ in nodes]
        for one in buffers:
            name = one.buffer.get_name() if hasattr(one.buffer, "get_name") else one.buffer.name
            if name in on_host:
                continue
            step = one.start_step
            if one.buffer in inputs.values():
                now += one.size_free
            elif name not in arrived:
                node = nodes[step]
                if isinstance(node, FusedSchedulerNode) and name not in outputs and all(user is node for user in one.buffer.mpi_buffer.succ_nodes):
                    continue
                made[step].append((one.buffer, one.size_alloc))
            if name not in outputs and name not in arriving:
                freed[one.end_step if one.end_step >= 0 else step][name] = one.size_free
        found = []
        for step, node in enumerate(nodes):
            for buffer, size in made[step]:
                taken = _overwritten(scheduler, node, buffer, size, freed[step])
                if taken is None:
                    now += size
                else:
                    del freed[step][taken]
            found.append(int(now + (_known(node, self.extra) or 0)))
            now -= sum(freed[step].values())
        return found

    def _special(self, inputs: Any) -> tuple[set[str], set[str], set[str]]:
        """Names of the buffers on the host, of the buffers that are being copied to the device, and of the same buffers afterwards."""
        names: dict[str, set[str]] = {"offload": set(), "prefetch": set(), "wait": set()}
        for copy in self.copies:
            names["offload" if copy.of == "release" else copy.of] |= copy.buffers
            if copy.of == "prefetch":
                names["offload"].update(read for read in copy.reads if read in inputs)
        return names["offload"], names["prefetch"], names["wait"]


def _copies(nodes: list[Any]) -> list[_Copy]:
    """The copies among the scheduler's nodes. Inductor has one node for the call of an operator, and one for its result."""
    found: dict[str, _Copy] = {}
    copies = []
    for node in nodes:
        kernel = getattr(node, "node", None)
        name = str(getattr(getattr(kernel, "op_overload", None), "_name", ""))
        reads = [read.name for read in node.read_writes.reads]
        if name.startswith(f"{operators.NAMESPACE}::"):
            copies.append(_Copy(name.removeprefix(f"{operators.NAMESPACE}::"), [node], reads))
            found.update(dict.fromkeys(node.get_buffer_names(), copies[-1]))
        elif type(kernel).__name__ == "MultiOutput" and reads[0] in found:
            found[reads[0]].nodes.append(node)
    return copies


def _known(node: Any, of: dict[str, Any]) -> Any:
    """The entry of the graph's node that a kernel of a library computes, by the node's name; None without an entry."""
    kernel = getattr(node, "node", None)
    if type(kernel).__name__ == "MultiOutput":
        # Inductor has a node for each result of a kernel. Only the call itself has the entry.
        return None
    # Several kernels may come from one node, such as a convolution and the addition of its bias. Then they have no `origin_node`.
    source = getattr(kernel, "fx_node", None) or getattr(kernel, "origin_node", None)
    return of.get(getattr(source, "name", ""))


def _overwritten(scheduler: Any, node: Any, buffer: Any, size: int, freed: dict[str, int]) -> str | None:
    """The buffer in whose place Inductor writes a result: its last reader is the same operation, and reads it at the same index."""
    made_by = buffer.defining_op
    if not size or made_by is None:
        return None
    here = node.get_operation_names() - made_by.ancestors
    for read in made_by.read_writes.reads:
        before = scheduler.name_to_donated_buffer.get(read.name) or scheduler.name_to_buf.get(read.name)
        if before is None or freed.get(read.name) != size:
            continue
        left = [user for user in before.users if user.get_name() in here]
        if len(left) != 1 or left[0].node is not made_by or not left[0].can_inplace:
            continue
        if len({dep for part in node.get_nodes() for dep in part.read_writes.reads_and_writes() if dep.name == read.name}) <= 1:
            return str(read.name)
    return None


def _ordered(names: Any) -> Any:
    from torch.utils._ordered_set import OrderedSet

    return OrderedSet(names.keys() if hasattr(names, "keys") else names)
