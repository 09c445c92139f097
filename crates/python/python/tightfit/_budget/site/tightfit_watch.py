"""Reports a budget that was not applied. `tightfit run --budget` starts this beside the command, as ``PID FILE``.

The processes that read `tightfit_start.py` note in the file how far they have come. A process with torch and no note was started with an
environment of its own, or by a Python that ignores the environment. A line names it as soon as it is seen. After the command, a line reports
that no model was met.
"""

from __future__ import annotations

import os
import select
import sys
import time

# Seconds between looks at the command's processes, in its first minute and later.
_SOON, _LATER = 1.0, 10.0
_MINUTE = 60.0


def _say(line: str) -> None:
    try:
        os.write(2, f"tightfit: {line}\n".encode())
    except OSError:
        pass


def _noted(path: str) -> dict[str, set[int]]:
    """The processes that have noted each stage."""
    stages: dict[str, set[int]] = {}
    with open(path) as file:
        for line in file:
            number, _, stage = line.strip().partition(" ")
            stages.setdefault(stage, set()).add(int(number))
    return stages


def _processes() -> dict[int, tuple[int, str]]:
    """The parent of each process, and the address of its stack, which a fork inherits and a new program does not."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(name)] = (int(fields[1]), fields[25])
    return found


def _has_torch(process: int) -> bool:
    try:
        with open(f"/proc/{process}/maps") as file:
            return any("/libtorch_cpu.so" in line for line in file)
    except OSError:
        return False


def _strangers(root: int, noted: set[int]) -> list[int]:
    """The processes of the command that have loaded torch without the budget."""
    processes = _processes()
    known: dict[int, tuple[bool, bool]] = {root: (True, root in noted)}

    def status(process: int) -> tuple[bool, bool]:
        """Whether a process belongs to the command, and whether it has noted anything or is a fork of a process that has."""
        if process not in known:
            known[process] = (False, False)
            if process in processes:
                parent, stack = processes[process]
                is_ours, is_noted = status(parent)
                is_fork = parent in processes and processes[parent][1] == stack
                known[process] = (is_ours, process in noted or is_noted and is_fork)
        return known[process]

    return [process for process in processes if status(process) == (True, False) and _has_torch(process)]


def _watch(root: int, path: str) -> None:
    named: set[int] = set()
    poll = select.poll()
    try:
        poll.register(os.pidfd_open(root), select.POLLIN)
    except ProcessLookupError:
        return
    began = time.monotonic()
    while not poll.poll(1000 * (_SOON if time.monotonic() - began < _MINUTE else _LATER)):
        for process in _strangers(root, set().union(*_noted(path).values())):
            if process not in named:
                named.add(process)
                _say(
                    f"process {process} has loaded torch without the budget, and nothing limits it: it was started with an environment of its own, or "
                    "by python -I, -E or -S; start it with the environment of tightfit run"
                )
    stages = _noted(path)
    if "model" in stages or "said" in stages or named:
        return
    reason = (
        "no model ran with gradients"
        if "torch" in stages
        else "no process imported torch"
        if "python" in stages
        else "no Python was started with the environment of tightfit run"
    )
    _say(f"the budget was not applied: {reason}")


if __name__ == "__main__":
    # This must not be a child of the command, because the command may wait for all of its children.
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    try:
        _watch(int(sys.argv[1]), sys.argv[2])
    except FileNotFoundError:
        # The command was not started.
        pass
    finally:
        try:
            os.unlink(sys.argv[2])
        except OSError:
            pass
