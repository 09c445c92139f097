"""Times of one convolution's algorithms."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _native
from ._device import samples, words
from ._networks import NetworkLike, name_of
from ._profile import PathLike, Profile, Size, size
from ._table import Table
from ._table import size as _size
from ._table import time as _time
from .errors import BadInput
from .results import MicroBatch, _plain


@dataclass(frozen=True)
class Skipped:
    """An algorithm that failed, and why."""

    problem: str
    algorithm: str
    reason: str

    def __repr__(self) -> str:
        return f"<{self.algorithm}: {self.reason}>"


@dataclass(frozen=True, repr=False)
class Measured(Table):
    """One convolution's candidates: the largest micro-batch first, then by time. Iterate over it, or index it.

    ``measured`` of them are new, ``cached`` were known, and measuring took ``measuring_us``. ``cache`` is the file that keeps
    them; ``cache_failure`` says why it does not.
    """

    problem: str
    layer: str
    operation: str
    batch: int
    types: str
    layout: str
    backend: str
    device: str
    library: str
    threads: int
    workspace_limit_bytes: int | None
    candidates: tuple[MicroBatch, ...]
    measured: int
    cached: int
    measuring_us: float
    skipped: tuple[Skipped, ...]
    cache: str | None
    cache_failure: str | None
    _svg: str = field(default="", repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.candidates)

    def __iter__(self) -> Iterator[MicroBatch]:
        return iter(self.candidates)

    def __getitem__(self, index: int) -> MicroBatch:
        return self.candidates[index]

    @property
    def fastest(self) -> MicroBatch:
        """The candidate with the least time per sample."""
        return min(self.candidates, key=lambda one: one.time_us / one.micro_batch)

    def _rows(self) -> list[dict[str, Any]]:
        return [dict(vars(one)) for one in self.candidates]

    def _shown(self) -> list[dict[str, str]]:
        return [
            {
                "micro-batch": str(one.micro_batch),
                "algorithm": one.algorithm,
                "time": _time(one.time_us),
                "per sample": _time(one.time_us / one.micro_batch),
                "workspace": _size(one.workspace_bytes),
            }
            for one in self.candidates
        ]

    def _picture(self) -> str:
        return self._svg

    def svg(self) -> str:
        """Time against workspace of the configurations that no other one beats, as an SVG document."""
        return self._svg

    def __repr__(self) -> str:
        best = self.fastest
        return (
            f"<Measured {self.layer} {self.operation} b{self.batch} on {self.device}: {len(self)} candidates, fastest "
            f"{best.micro_batch} {best.algorithm}, {_time(best.time_us)}, {_size(best.workspace_bytes)}>"
        )

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dictionaries and lists."""
        return _plain(self)


def measure(
    convolution: NetworkLike,
    layer: str | None = None,
    operation: str = "forward",
    batch: int | None = None,
    *,
    workspace: Size = "64MiB",
    sizes: str = "fit",
    divide: str = "both",
    types: str = "f32",
    layout: str = "nchw",
    backend: str = "auto",
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    device: int | str | None = None,
    threads: int | None = None,
    cudnn: PathLike | None = None,
    deterministic: bool = False,
    exact_class: bool = False,
) -> Measured:
    """Times the algorithms of one convolution, whole and in micro-batches.

    Does the work of ``tightfit profile`` for one kernel, and also times every algorithm on the whole mini-batch. Measurements are kept in the cache,
    also on Ctrl-C.

    Parameters
    ----------
    convolution
        A problem such as ``"forward n32 c64 h28 w28 k64 r3 s3 pad1 f32"``; or a network, with ``layer``.
    layer, operation, batch
        The layer of the network, ``"forward"``, ``"backward-data"`` or ``"backward-filter"``, and the mini-batch size, in
        samples; ``None`` uses the one stated in the network's file.
    workspace
        Candidates with more workspace are not run; bytes, strings such as ``"64MiB"``, or ``None`` for no limit.
    sizes, divide
        Micro-batch sizes (``"undivided"``, ``"power-of-two"``, ``"all"``, ``"fit"``), and along what to divide (``"batch"``,
        ``"space"``, ``"both"``, ``"off"``).
    types, layout
        For a network's layer; a problem has its own.
    backend
        ``"auto"`` (a GPU if there is one, else the CPU), ``"cpu"``, ``"cuda"``, or ``"replay"`` to answer from the cache.
    profile, cache
        Recorded measurements to use instead of a device; the file that keeps what is measured, or ``"none"`` (by default,
        the default cache).
    device, threads, cudnn
        The number of the GPU, or a part of the name of a recorded device; threads of the CPU; cuDNN's file or folder.
    deterministic, exact_class
        Use only deterministic algorithms; use only algorithms of the same numerical class as the undivided choice.

    Returns
    -------
    Measured
        Candidates with ``micro_batch`` (samples), ``algorithm``, ``time_us`` and ``workspace_bytes``.

    Raises
    ------
    DoesNotFit
        If nothing fits the workspace limit; ``needed_bytes`` is the smallest limit that would work.
    BackendError
        If the device fails, or measuring takes more memory than there is.
    BadInput
        If a name or option is unknown, or the problem cannot be read.

    Warns
    -----
    UserWarning
        If measurements could not be saved.

    Examples
    --------
    >>> recorded = "profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz"
    >>> found = measure("alexnet-1col", "conv2", batch=256, profile=recorded)
    >>> found.fastest
    <32 legacy:winograd-nonfused, 188.3 µs, 55.5 MiB>
    >>> {one.micro_batch for one in measure("forward n2 c1 h8 w8 k1 r3 s3 f32", backend="cpu", cache="none")}
    {1, 2}
    """
    what = name_of(convolution)
    is_problem = layer is None
    if is_problem and batch is not None:
        raise BadInput("a problem says its own batch, as in n32; name a layer to measure one of a network")
    if is_problem and " " not in what.strip():
        raise BadInput(
            f"name a layer of {what}, such as layer='conv1', or write a problem, such as "
            "'forward n32 c64 h28 w28 k64 r3 s3 pad1 f32'"
        )
    recordings, on = words(backend, profile, cache, device, threads, cudnn)
    text, svg = _native.measure(
        recordings,
        {
            "what": what,
            "layer": layer,
            "operation": operation,
            "batch": None if batch is None else samples(batch),
            "workspace": size(workspace),
            "sizes": sizes,
            "divide": divide,
            "types": types,
            "layout": layout,
            "deterministic": deterministic,
            "exact_class": exact_class,
            "on": on,
        },
    )
    document = json.loads(text)
    document["candidates"] = tuple(MicroBatch(**one) for one in document["candidates"])
    document["skipped"] = tuple(Skipped(**one) for one in document["skipped"])
    if document["cache_failure"] is not None:
        warnings.warn(f"could not save measurements: {document['cache_failure']}", stacklevel=2)
    return Measured(**document, _svg=svg)
