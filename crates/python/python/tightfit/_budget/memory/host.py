"""The host memory available for offloaded tensors, and the host's time for calls."""

from __future__ import annotations

import functools
import os
import resource
import time
from pathlib import Path

import torch

__all__ = ["bare_rerun_us", "copy_us", "host_bytes", "operation_us", "pin_limits", "rerun_us"]

# The largest share of the available memory to use. The rest is for the program's data and workers.
_SHARE = 0.7
_MEMORY = Path("/proc/meminfo")
# The memory limit of a container and its current use, for both versions of cgroups.
_GROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)


# Host times in units of the time to call a small operation again and again. The first is of a call that runs again while the device is busy, the second
# of one operation of a step with the Python code around it. Where the device waits for its host, the third is of a call that is noted and runs again, and
# the fourth of a copy either way with its hook. In a step, caches are cold: on the host of an H200, a copy took 150 us, and such a call 300 us.
_CALLS_OF_RERUN, _CALLS_OF_OPERATION, _CALLS_OF_BARE_RERUN, _CALLS_OF_COPY = 8, 3, 24, 14
# The number of calls in a timed series, and the number of series.
_TIMED, _ROUNDS = 50, 3


def rerun_us(device: torch.device) -> float:
    """This host's time for a call that runs again, in microseconds, where the device is busy meanwhile."""
    return _CALLS_OF_RERUN * _call_us(device)


def operation_us(device: torch.device) -> float:
    """This host's time for an operation of a step, in microseconds."""
    return _CALLS_OF_OPERATION * _call_us(device)


def bare_rerun_us(device: torch.device) -> float:
    """The same where no device hides any of it."""
    return _CALLS_OF_BARE_RERUN * _call_us(device)


def copy_us(device: torch.device) -> float:
    """This host's time for a copy of a saved tensor, in microseconds."""
    return _CALLS_OF_COPY * _call_us(device)


@functools.cache
def _call_us(device: torch.device) -> float:
    """This host's time for a call of a small operation, in microseconds."""
    x = torch.ones(16, device=device, requires_grad=True)
    rounds = []
    for _ in range(_ROUNDS):
        begin = time.perf_counter()
        for _ in range(_TIMED):
            torch.relu(x)
        rounds.append(time.perf_counter() - begin)
    return 1e6 * min(rounds) / _TIMED


def host_bytes() -> int | None:
    """Host memory that this process may take, shared evenly with the other ranks of this machine, or None if that is unknown.

    The limit on locked memory (``ulimit -l``) is ignored, because most GPU drivers can pin memory beyond it. Pinning is tried before the first pass.
    """
    found = [free for free in (_available(), *(_of_group(*paths) for paths in _GROUPS)) if free is not None]
    if not found:
        return None
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(_SHARE * max(0, min(found)) / max(1, int(ranks) if ranks.isdigit() else 1))


def pin_limits(size: int) -> str:
    """Why pinning has failed for this size, and advice, for the end of a sentence."""
    found = []
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked != resource.RLIM_INFINITY and locked < size:
        found.append(f"`ulimit -l` allows {locked} bytes: raise it (`ulimit -l unlimited`, `docker run --ulimit memlock=-1`)")
    groups = [free for free in (_of_group(*paths) for paths in _GROUPS) if free is not None]
    if groups and min(groups) < size:
        found.append(f"the container has {min(groups)} bytes left: give it more")
    return f" ({'; '.join(found)})" if found else " (the driver refuses more: close what else pins memory, or give a larger budget)"


def _available() -> int | None:
    for line in _text(_MEMORY).splitlines():
        if line.startswith("MemAvailable:"):
            return 1024 * int(line.split()[1])
    return None


def _of_group(limit: Path, used: Path) -> int | None:
    most, now = _text(limit).strip(), _text(used).strip()
    # "max", or a number near 2^63: a group without a limit.
    if not most.isdigit() or not now.isdigit() or int(most) >= 1 << 60:
        return None
    return int(most) - int(now)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
