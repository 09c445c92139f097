"""The graphs of a model that DistributedDataParallel splits by its buckets of gradients. They are planned together.

PyTorch compiles one part after another, in the order of the forward pass. The values that a part keeps stay while all later parts run::

    forward    part 0         part 1         part 2         loss
    backward                                                      part 2         part 1         part 0
    kept       by part 0 ----------------------------------------------------------------------->
                              by part 1 -------------------------------------------->
                                             by part 2 ----------------->

So the joint graphs of all parts are read before the first part is compiled. The lowest price of a byte at which all parts fit gives the bytes that
later parts need.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from . import private, properties
from .graph import Division, Rates
from .kernels import Kernels
from .plan import Plan, Planned, Terms

__all__ = ["SPARE", "Need", "Part", "Parts", "Reads", "mixed", "part_of_split", "peak_of", "read", "reserve"]

# Graphs that run one after another may need this share more than computed.
SPARE = 0.02
# More bytes than any part needs.
_MUCH = 1 << 50
_HALVINGS = 10


@dataclass(frozen=True)
class Need:
    """A division of a part in bytes: what it keeps between the passes, and its peak in one of them."""

    kept: int
    peak: int

    def toward(self, other: Need, share: float) -> Need:
        """The need at this share of the way to another one."""
        return Need(*(int(one + share * (more - one)) for one, more in ((self.kept, other.kept), (self.peak, other.peak))))


@dataclass
class Part:
    """A part that is being compiled.

    Attributes
    ----------
    split
        The model, as PyTorch has split it.
    number, count
        The place among all parts in the order of the forward pass, and their number.
    """

    split: fx.GraphModule
    number: int
    count: int

    @property
    def is_last(self) -> bool:
        return self.number == self.count - 1

    @property
    def inputs(self) -> list[Any]:
        """The inputs of the whole model, parameters included."""
        return [node.meta.get("example_value") for node in self.split.graph.nodes if node.op == "placeholder"]

    @property
    def buckets(self) -> int:
        """Bytes of the buckets of gradients."""
        return _gradients(self.inputs) if private.running_ddp() is not None else 0

    @property
    def later_gradients(self) -> int:
        """Bytes of the gradients of later parts in the backward pass of this one, in addition to the buckets."""
        model = private.running_ddp()
        if model is not None and model.gradient_as_bucket_view:
            return 0
        reads = {read for node in _parts(self.split)[self.number + 1 :] for read in node.all_input_nodes}
        return _gradients([read.meta.get("example_value") for read in reads])

    @property
    def splits(self) -> str:
        """The reason why parts need more memory than the whole model, and a way to need less."""
        return f"DistributedDataParallel splits the model into {self.count} parts, each of which keeps its inputs; a larger bucket_cap_mb makes fewer parts"

    @property
    def rest(self) -> list[Part]:
        """This part and all later ones."""
        return [Part(self.split, number, self.count) for number in range(self.number, self.count)]

    def graph(self) -> tuple[fx.GraphModule, list[Any]]:
        """A copy of the part's graph, and its inputs."""
        module = self.split.get_submodule(str(_parts(self.split)[self.number].target))
        graph = copy.deepcopy(module.graph)
        (output,) = graph.find_nodes(op="output")
        if not isinstance(output.args[0], tuple):
            output.args = (output.args,)
        return fx.GraphModule(module, graph), [node.meta.get("example_value") for node in graph.find_nodes(op="placeholder")]


@dataclass
class Parts:
    """The parts of one model so far.

    Attributes
    ----------
    reads
        The divisions of the parts from one part on; empty until they are read.
    budget
        The bytes of a budget that is a share of what all parts need; 0 until they are known.
    kept
        The bytes that the parts so far keep between the passes.
    """

    split: Any
    reads: list[Reads] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    budget: int = 0
    kept: int = 0

    def later(self, part: Part, room: int) -> int | None:
        """The bytes that later parts need; None for the last part."""
        return None if part.is_last else reserve(self._from(part), room)

    def least(self, part: Part) -> int:
        """The least bytes of a part and all later ones."""
        return peak_of([one.least for one in self._from(part)])

    @property
    def need(self) -> int:
        """The bytes of all parts that were read, as PyTorch divides them."""
        return peak_of([one.needs[0] for one in self.reads])

    def note(self, part: Part, planned: Planned | None) -> None:
        """Notes the plan of a part. If it is unknown, as of a graph from PyTorch's caches, the part is assumed to keep what PyTorch's own division keeps."""
        if planned is not None:
            self.planned.append(planned)
            self.kept += planned.kept
        elif self.reads:
            self.kept += self._from(part)[0].needs[0].kept

    def _from(self, part: Part) -> list[Reads]:
        return self.reads[part.number - part.count :]

    @property
    def whole(self) -> Planned:
        """The plans of all parts in one."""
        first, plain, kept, plain_kept = self.planned[0], 0, 0, 0
        for one in self.planned:
            plain = max(plain, one.plain - kept + plain_kept)
            kept += one.kept
            plain_kept += one.plain_kept
        return Planned(
            max(one.peak for one in self.planned), plain, first.of, sum(one.overhead_us for one in self.planned), sum(one.again for one in self.planned),
            sum(one.seconds for one in self.planned), sum(one.nodes for one in self.planned), all(one.is_plain for one in self.planned),
            moved={f"{number} {name}": size for number, one in enumerate(self.planned) for name, size in one.moved.items()}, kept=kept,
            plain_kept=plain_kept,
        )  # fmt: skip


class Reads(Plan):
    """Reads the divisions of a part without compiling it.

    Attributes
    ----------
    needs
        The divisions in bytes, from PyTorch's own to the one at the highest price of a byte.
    """

    shares = ()

    def __init__(self, part: Part, inner: str, kernels: Kernels, offloads: bool) -> None:
        # The values that a part keeps matter most, since they exist together with the values of all other parts.
        terms = Terms(0, 0, later=None if part.is_last else _MUCH, gradients=part.later_gradients, offloads=offloads)
        super().__init__(terms, inner, Rates(kernels.memory), kernels, ("tightfit reads", part.number))
        self.needs = [Need(0, 0)]

    @functools.cached_property
    def least(self) -> Need:
        """The division with the least bytes. It may offload values."""
        return _need(self.chooser.least().division) if self.chooser is not None else self.needs[0]

    def _choose(self, joint: fx.Graph, info: Any) -> list[fx.Node]:
        nodes = [node for node in joint.nodes if node.op != "output"]
        self.names = [node.name for node in nodes]
        self._read(joint, info, nodes)
        assert self.chooser is not None
        self.needs = list(map(_need, self.chooser.levels()))
        raise private.Enough

    def infers(self, kernels: list[fx.Node], peak: Callable[[], int]) -> None:
        """Called for a part without a backward pass."""
        self.needs = [Need(0, peak())]
        raise private.Enough


def _need(division: Division) -> Need:
    return Need(division.kept, max(division.forward, division.backward))


def read(part: Part, inner: str, kernels: Kernels, settings: dict[str, Any], offloads: bool) -> Reads:
    """Reads the divisions of a part."""
    reads = Reads(part, inner, kernels, offloads)
    private.pass_to(reads, inner, *part.graph(), settings)
    return reads


def reserve(parts: Sequence[Reads], room: int) -> int:
    """The bytes for all parts but the first one, while its values are kept, at the lowest price of a byte at which all parts fit.

    If they fit at no price, all parts keep as much more than the least as fits.
    """
    levels = range(max(len(part.needs) for part in parts))
    at = [[part.needs[min(level, len(part.needs) - 1)] for part in parts] for level in levels]
    found = next((needs for needs in at if peak_of(needs) * (1 + SPARE) <= room), None)
    if found is not None:
        return int(peak_of(found[1:]) * (1 + SPARE))
    smallest = min(at, key=peak_of)
    leasts = [part.least for part in parts]
    return peak_of(mixed(leasts, smallest, lambda needs: peak_of(needs) <= room)[1:])


def mixed(less: Sequence[Need], more: Sequence[Need], fits: Callable[[list[Need]], bool]) -> list[Need]:
    """Needs as far as fits on the way from some that fit to others that do not."""

    def at(share: float) -> list[Need]:
        return [one.toward(other, share) for one, other in zip(less, more, strict=True)]

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        share = (low + high) / 2
        low, high = (share, high) if fits(at(share)) else (low, share)
    return at(low)


def peak_of(needs: Sequence[Need]) -> int:
    """The peak of graphs that run one after another, and whose values stay."""
    kept = most = 0
    for need in needs:
        most = max(most, kept + need.peak)
        kept += need.kept
    return max(most, kept)


def part_of_split() -> Part | None:
    """The part that is being compiled, or None if no model is being split."""
    found = private.splitting()
    if found is None:
        return None
    split, now = found
    parts = _parts(split)
    return Part(split, parts.index(now), len(parts)) if now in parts and len(parts) > 1 else None


def _parts(split: fx.GraphModule) -> list[fx.Node]:
    return [node for node in split.graph.nodes if node.op == "call_module"]


def _gradients(values: Sequence[Any]) -> int:
    """Bytes of the gradients of the parameters among some values."""
    trained = [value for value in values if isinstance(value, torch.nn.Parameter) and value.requires_grad]
    return sum(_bytes(value) for value in trained)


def _bytes(value: Tensor) -> int:
    return int(properties.elements(value) * value.itemsize)
