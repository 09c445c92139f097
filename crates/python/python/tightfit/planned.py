"""A plan and its parts. Fields match the JSON of ``tightfit plan``: times in µs, sizes in bytes, ``None`` for null."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import _native
from ._sweep import SHARES, Sweep, sweep
from ._table import Table, data_frame, size, time

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor, and its fate between the forward and the backward pass.

    ``fate`` is ``"kept"``, ``"released"`` (nothing reads it again), ``"offloaded"`` or ``"recomputed"``, and ``why`` explains it in words.
    ``idle_us`` is the time until the backward pass reads it. ``copies_us`` is the time of its copies out and back. ``recomputed_us`` is the time of
    the operations that run again for it.
    """

    tensor: str
    kind: str
    bytes: int
    fate: str
    idle_us: float | None
    copies_us: float | None
    recomputed_us: float | None
    why: str

    def __repr__(self) -> str:
        return f"<{self.tensor}: {size(self.bytes)}, {self.fate}, {self.why}>"


@dataclass(frozen=True)
class PlannedLayer:
    """A layer: its bytes for the whole mini-batch, the time of its passes, and the fate of the map that it writes first.

    ``map`` is empty if it writes into its input's map, and ``reuse_us`` is the time until the map is read again.
    """

    layer: str
    output_bytes: int
    weights_bytes: int
    workspace_bytes: int
    forward_us: float
    backward_us: float
    map: str
    reuse_us: float | None

    def __repr__(self) -> str:
        fate = f", {self.map}" if self.map else ""
        return f"<{self.layer}: {size(self.output_bytes)}{fate}, {time(self.forward_us)} and {time(self.backward_us)} back>"


@dataclass(frozen=True)
class Attempt:
    """An attempt of a policy: its bytes on device and host, whether they fit, and its time if it was simulated."""

    attempt: str
    needed_bytes: int
    host_bytes: int
    fits: bool
    time_us: float | None
    taken: bool

    def __repr__(self) -> str:
        outcome = "taken" if self.taken else "fits" if self.fits else "does not fit"
        after = "" if self.time_us is None else f", {time(self.time_us)}"
        return f"<{self.attempt}: {size(self.needed_bytes)}{after}, {outcome}>"


@dataclass(frozen=True, repr=False)
class Plan(Table):
    """A step of a network under a budget.

    ``peak_bytes`` is the device memory that it takes, ``min_feasible_bytes`` the least budget under its policy, at which
    memory peaks at ``binding_layer``, and ``least_bytes`` the least budget under any policy. ``plain`` (also ``baseline_bytes``) and
    ``baseline_time_us`` are of the step without a plan, with the fastest algorithms; ``overhead`` is the added share
    of its time (0.05 for 5%). ``device`` is where times were measured; ``backend`` is ``"assumed"`` if they were not.
    """

    network: str
    batch: int
    types: str
    inference: bool
    policy: str
    algorithms: str
    backend: str
    device: str
    library: str
    budget_bytes: int | None
    host_budget_bytes: int | None
    peak_bytes: int
    host_bytes: int
    min_feasible_bytes: int
    binding_layer: str
    least_bytes: int
    baseline_bytes: int
    step_time_us: float
    baseline_time_us: float
    overhead: float
    gap: float | None
    offloaded_bytes: int
    recomputed_us: float
    copying_us: float
    exposed_us: float
    attempts: tuple[Attempt, ...]
    layers: tuple[PlannedLayer, ...]
    tensors: tuple[PlannedTensor, ...]
    _planned: _native.Planned = field(repr=False, compare=False)
    _asked: tuple[_native.Recordings | None, dict[str, Any]] = field(repr=False, compare=False)

    # The names that plans of `tightfit.torch.plan` have.

    @property
    def fits(self) -> bool:
        """True: a plan that does not fit raises :class:`tightfit.BudgetTooSmall`."""
        return True

    @property
    def peak(self) -> int:
        """As ``peak_bytes``."""
        return self.peak_bytes

    @property
    def needed(self) -> int:
        """As ``peak_bytes``."""
        return self.peak_bytes

    @property
    def plain(self) -> int:
        """As ``baseline_bytes``."""
        return self.baseline_bytes

    @property
    def least(self) -> int:
        """As ``least_bytes``."""
        return self.least_bytes

    @property
    def host(self) -> int:
        """As ``host_bytes``."""
        return self.host_bytes

    def __repr__(self) -> str:
        assumed = f", assumed {self.device}" if self.backend == "assumed" else ""
        of = "" if self.budget_bytes is None else f" of {size(self.budget_bytes)}"
        return (
            f"<Plan {self.network} b{self.batch}: {size(self.peak_bytes)}{of}, {time(self.step_time_us)}, {self.policy}{assumed}>"
        )

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(vars(layer)) for layer in self.layers]

    def _shown(self) -> list[dict[str, str]]:
        fates = {fate: [of for of in self.tensors if of.fate == fate] for fate in ("offloaded", "recomputed")}

        def moved(fate: str, more: str) -> str:
            of = fates[fate]
            return f"{len(of)} tensors, {size(sum(tensor.bytes for tensor in of))}{more}" if of else "nothing"

        figures = {
            "peak": f"{size(self.peak_bytes)} of a budget of {size(self.budget_bytes)}",
            "least budget": f"{size(self.min_feasible_bytes, enough=True)} ({self.policy}), "
            f"{size(self.least_bytes, enough=True)} (any policy)",
            "plain": f"{size(self.plain)}, {time(self.baseline_time_us)}",
            "step": f"{time(self.step_time_us)}, {100 * self.overhead:.1f}% over plain",
            "offloaded": moved("offloaded", f", copies add {time(self.exposed_us)}"),
            "recomputed": moved("recomputed", f", {time(self.recomputed_us)}"),
            "times": f"{'assumed' if self.backend == 'assumed' else self.backend}, {self.device}",
        }
        return [{"figure": figure, "value": value} for figure, value in figures.items()]

    def _picture(self) -> str:
        return self.svg()

    def frame(self, of: str = "layers") -> DataFrame:
        """The plan as a pandas frame, one row for each layer or tensor.

        Parameters
        ----------
        of
            ``"layers"``, with the columns of ``tightfit plan --format csv``, or ``"tensors"``, with the fields of
            :class:`PlannedTensor`.

        Raises
        ------
        ValueError
            If it is neither.
        ImportError
            If pandas is not installed.
        """
        rows = {"layers": self.layers, "tensors": self.tensors}
        if of not in rows:
            raise ValueError(f"{of!r}: use one of {', '.join(rows)}")
        return data_frame([dict(vars(row)) for row in rows[of]])

    def report(self) -> str:
        """The table that ``tightfit plan`` prints: every layer, every attempt, and the totals."""
        return self._planned.table()

    def svg(self) -> str:
        """Live bytes over the step, by kind, as an SVG document; the dashed line is the budget."""
        return self._planned.svg()

    def sweep(self, shares: Sequence[float] = SHARES) -> Sweep:
        """Plans the step with less memory: the added time under each of these shares of plain, down to the least budget of the policy.

        Measures what no cache has.

        Raises
        ------
        BadInput
            If a share is not above 0, or above 10, as percentages are.
        """
        recordings, asked = self._asked

        def within(budget: int) -> Plan:
            words = asked | {"budget": budget, "share": None}
            return read_plan(_native.plan(recordings, words), (recordings, words))

        device = f"{self.device} (assumed)" if self.backend == "assumed" else self.device

        def least(plans: Sequence[Any]) -> int:
            found: int = min([self.min_feasible_bytes, *(plan.needed for plan in plans)])
            return found

        return sweep(self, shares, within, least, lambda shares: _native.checkpoints_of(recordings, asked, shares), device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan for ``tightfit train --plan`` or ``tightfit predict --plan``; compressed if the name ends in ``.gz``.

        Raises
        ------
        BadInput
            If its times are assumed: such a plan cannot run.
        FileError
            If the file cannot be written; it is then left unchanged.
        """
        self._planned.save(path)

    def html(self, path: str | os.PathLike[str]) -> None:
        """Writes an HTML page with all pictures of the plan, as ``tightfit plan --html`` does.

        Raises
        ------
        FileError
            If the file cannot be written; it is then left unchanged.
        """
        self._planned.html(path)

    def to_dict(self) -> dict[str, Any]:
        """The output of ``tightfit plan --format json``, with every instruction of the step."""
        document: dict[str, Any] = json.loads(self._planned.json())
        return document


#: The keys of the command's JSON that are fields as they are.
_PLAIN = [name for name in Plan.__dataclass_fields__ if name not in ("attempts", "layers", "tensors", "_planned", "_asked")]


def read_plan(planned: _native.Planned, asked: tuple[_native.Recordings | None, dict[str, Any]]) -> Plan:
    """Reads the JSON of ``tightfit plan``, which was asked with these words."""
    document = json.loads(planned.json())
    maps = {of["layers"][0]: of for of in reversed(document["maps"]) if of["layers"]}
    layers = tuple(
        PlannedLayer(
            layer["layer"],
            layer["output_bytes"],
            layer["weight_bytes"],
            max(layer["forward_workspace_bytes"], layer["backward_workspace_bytes"]),
            layer["forward_us"],
            layer["backward_us"],
            maps[layer["layer"]]["fate"] if layer["layer"] in maps else "",
            maps[layer["layer"]]["reuse_distance_us"] if layer["layer"] in maps else None,
        )
        for layer in document["layers"]
    )
    return Plan(
        **{name: document[name] for name in _PLAIN},
        attempts=tuple(Attempt(**attempt) for attempt in document["decisions"]),
        layers=layers,
        tensors=tuple(PlannedTensor(**tensor) for tensor in json.loads(planned.tensors())),
        _planned=planned,
        _asked=asked,
    )
