"""DeepBench in half precision against the mu-cuDNN paper's baseline: TRUE_HALF alone, without algorithms that sum in f32."""

import gzip
import json
import re
import statistics
from collections.abc import Iterable
from typing import Any

from .tables import MIB, ROOT

Json = dict[str, Any]
LIMIT = 64 * MIB


def pseudo(algorithm: str) -> bool:
    """Whether it sums in f32: PSEUDO_HALF."""
    return "f32" in algorithm


def true_half(profiles: Iterable[str]) -> dict[tuple[str, int], float]:
    """By problem without its mini-batch, and mini-batch: microseconds of the fastest undivided TRUE_HALF within 64 MiB."""
    found: dict[tuple[str, int], float] = {}
    for profile in profiles:
        with gzip.open(ROOT / profile, "rt") as lines:
            measured = [line for line in map(json.loads, lines) if "algorithm" in line and not pseudo(line["algorithm"])]
        for line in measured:
            for batch, nanoseconds, workspace, *_ in line["rows"]:
                if workspace <= LIMIT:
                    key = line["problem"], batch
                    found[key] = min(found.get(key, float("inf")), nanoseconds / 1e3)
    return found


def over_true_half(kernels: list[Json], profiles: Iterable[str]) -> list[float]:
    """For each kernel, the speedup of its configuration over TRUE_HALF undivided."""
    known = true_half(profiles)
    gains = []
    for kernel in kernels:
        batch = int(re.search(r" n(\d+)", kernel["problem"])[1])
        gains.append(known[re.sub(r" n\d+", "", kernel["problem"]), batch] / kernel["time_us"])
    return gains


def sentence(kernels: list[Json], profiles: Iterable[str]) -> str:
    gains = over_true_half(kernels, profiles)
    mixed = sum(pseudo(kernel["undivided"]["algorithm"]) for kernel in kernels)
    return (
        f"over TRUE_HALF alone undivided, the paper's baseline: mean {statistics.mean(gains):.2f}, largest {max(gains):.2f}; "
        f"undivided above is PSEUDO_HALF in {mixed} kernels"
    )
