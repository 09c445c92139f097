"""Times the operations of a recorded step on the device, before its first pass, while most of the budget is still free.

Each form of an operation runs a few times back to back on scratch tensors. Its workspace is the memory that it allocates in addition to its results.
Only operations on a list are run: operations that may run again, and others that have no effect but their results.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_unflatten

from ..memory.allocator import SMALL
from ..memory.copies import Copies, current
from .cost import Rates, bytes_of_call, estimate
from .data import Operation, View
from .recorder import Recorder
from .rehearse import no_autocast, random_states_kept
from .rerunnable import gives_only_results
from .times import Times, key_of

__all__ = ["MEASURED", "measure", "measure_copies", "start_libraries"]

# Kinds of devices on which operations are timed; elsewhere they cost what their arithmetic and traffic say.
MEASURED = {"cuda"}
# How long is measured at most. With `cudnn.benchmark`, most of that is PyTorch trying algorithms, which the first step would do otherwise.
SECONDS, BENCHMARK_SECONDS = 4.0, 20.0
# Calls between two clocks, and how often that is done.
CALLS, ROUNDS = 4, 2
# A time is not believed if it is longer than these seconds, and than this multiple of the estimate.
UNLIKELY = 0.02, 30.0
COPY_BYTES, LEAST_COPY_BYTES = 64 << 20, 64 << 10


class _Clock(Protocol):
    def seconds(self, run: Callable[[], None]) -> float:
        """Time that the device takes for what ``run`` starts."""


class _CpuClock:
    def seconds(self, run: Callable[[], None]) -> float:
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin


class _CudaClock:
    def __init__(self, device: torch.device) -> None:
        self.device = device

    def seconds(self, run: Callable[[], None]) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with current(self.device):
            # The device sleeps briefly, so that all calls are queued before the clock starts. Launches are then not part of the measurement.
            torch.cuda._sleep(200_000)
            begin.record()
            run()
            end.record()
            end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def _clock(device: torch.device) -> _Clock:
    return _CudaClock(device) if device.type == "cuda" else _CpuClock()


def start_libraries(device: torch.device) -> None:
    """Makes cuBLAS allocate the workspace that it keeps for this thread, so that it is counted even if nothing is measured."""
    with torch.no_grad(), no_autocast():
        square = torch.ones(64, 64, device=device)
        torch.addmm(square[0], square, square)


def measure(recorder: Recorder, device: torch.device, rates: Rates, times: Times, free_bytes: int) -> int:
    """Times each form of operation without a measurement. Forms with the most estimated time in a step come first.

    Stops after a few seconds. Random states are restored.

    Parameters
    ----------
    free_bytes
        Bytes of scratch tensors at one time. A convolution that needs more is timed with a part of the mini-batch; other operations are not timed.

    Returns
    -------
    int
        The number of timed forms.
    """
    forms: dict[str, list[Operation]] = {}
    for operation in recorder.operations:
        if gives_only_results(operation.function) and _on(operation, recorder, device) and not _scatters(operation):
            forms.setdefault(key_of(operation), []).append(operation)
    weights = {key: len(found) * estimate(found[0], rates) for key, found in forms.items()}
    unknown = sorted((key for key in forms if key not in times.known or _lacks_blocks(key, times)), key=lambda key: -weights[key])
    if not unknown:
        return 0
    end = time.monotonic() + (BENCHMARK_SECONDS if torch.backends.cudnn.benchmark else SECONDS)
    clock, done = _clock(device), 0
    with random_states_kept(), torch.no_grad(), no_autocast():
        for key in unknown:
            if time.monotonic() > end:
                break
            for part, times_over in _parts(forms[key][0]):
                if times_over > 1 and (key in times.known or time.monotonic() > end):
                    break
                if bytes_of_call(part) > free_bytes // 2:
                    continue
                try:
                    if key not in times.known:
                        time_us, workspace = _time(part, device, clock, 1e-6 * estimate(part, rates))
                        times.known[key] = round(times_over * time_us, 3), int(times_over * workspace)
                        done += 1
                        if times_over > 1:
                            times.rough.add(key)
                    if _lacks_blocks(key, times) and (found := _blocks(part, device)) is not None:
                        times.blocks[key] = [int(times_over * size) if size > 0 else size for size in found]
                except torch.OutOfMemoryError:
                    continue
                except (RuntimeError, TypeError, ValueError, NotImplementedError):
                    # The operation rejects scratch arguments. Its time stays an estimate.
                    pass
                break
    _scale(forms, rates, times)
    return done


def _on(operation: Operation, recorder: Recorder, device: torch.device) -> bool:
    """Whether all inputs of an operation are on the device, and it produces a tensor."""
    views = [argument for argument in operation.arguments if isinstance(argument, View)]
    return bool(views) and bool(operation.makes) and all(recorder.storages[view.storage].device.type == device.type for view in views)


def _scatters(operation: Operation) -> bool:
    """Whether an operation writes results at indices. With scratch indices, all writes would hit one element, which is thousands of times slower."""
    views = [argument for argument in operation.arguments if isinstance(argument, View)]
    by_index = any(not view.dtype.is_floating_point and view.dtype is not torch.bool for view in views)
    return by_index and any(word in str(operation.function) for word in ("backward", "scatter", "index_add", "index_put"))


def _parts(operation: Operation) -> Iterator[tuple[Operation, float]]:
    """Yields an operation with the factor 1. For a convolution, in case memory is short, it also yields smaller and smaller parts of the mini-batch,
    each with the number of such parts in the whole. That multiple of a part's workspace overestimates the workspace of the whole, unless the
    workspace grows with the samples."""
    yield operation, 1.0
    of_samples = {"convolution": 1, "convolution_backward": 2}.get(operation.name, 0)
    batch = operation.arguments[0].shape[0] if of_samples else 0
    samples = batch // 2

    def cut(view: View) -> View:
        return view._replace(shape=torch.Size([samples, *view.shape[1:]]))

    while samples:
        maps = [cut(view) for view in operation.arguments[:of_samples]]
        outputs = [cut(view) if view is not None and view.shape[:1] == (batch,) else view for view in operation.outputs]
        flops = operation.flops * samples / batch
        yield replace(operation, arguments=[*maps, *operation.arguments[of_samples:]], outputs=outputs, flops=flops), batch / samples
        samples //= 2


def _on_scratch(operation: Operation, device: torch.device) -> Callable[[], Any]:
    """A call of an operation on scratch tensors."""
    generator = torch.Generator(device)
    generator.manual_seed(0)
    flat = [_scratch(value, device, generator) if isinstance(value, View) else value for value in operation.arguments]
    args, kwargs = tree_unflatten(flat, operation.structure)
    return lambda: operation.function(*args, **kwargs)


def _time(operation: Operation, device: torch.device, clock: _Clock, expected: float) -> tuple[float, int]:
    """Time of a call in us, and bytes of its workspace.

    Raises
    ------
    RuntimeError
        If it takes much longer than the expected seconds, because scratch tensors cannot be like real ones.
    """
    call = _on_scratch(operation, device)

    def calls() -> None:
        for _ in range(CALLS):
            call()

    workspace = 0
    if device.type == "cuda":
        call()
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        begin = time.perf_counter()
        results = call()
        torch.cuda.synchronize(device)
        if time.perf_counter() - begin > UNLIKELY[0] + UNLIKELY[1] * expected:
            raise RuntimeError("the operation takes too long on scratch tensors")
        made = torch.cuda.memory_allocated(device) - before
        workspace = max(0, torch.cuda.max_memory_allocated(device) - before - max(0, made))
        del results
    else:
        call()
    seconds = min(clock.seconds(calls) for _ in range(ROUNDS)) / CALLS
    return round(1e6 * seconds, 3), workspace


def _lacks_blocks(key: str, times: Times) -> bool:
    """Whether only the size of an operation's workspace is known, but not its blocks."""
    return key in times.known and times.known[key][1] > SMALL and key not in times.blocks


def _blocks(operation: Operation, device: torch.device) -> list[int] | None:
    """The blocks that a call allocates and frees in addition to its results, in order. A positive number is the bytes of a new block, 0 is a result,
    -1 is the release of the first block, -2 of the second. Small blocks are left out. The result is None if the program records its allocations
    itself, or if this version of PyTorch records none."""
    is_recording = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    if device.type != "cuda" or is_recording is None or is_recording():
        return None
    call = _on_scratch(operation, device)
    memory = torch.cuda.memory
    memory._record_memory_history(context=None, max_entries=10_000)
    try:
        results = call()
        torch.cuda.synchronize(device)
        traces = memory._snapshot(device)["device_traces"]
    finally:
        memory._record_memory_history(enabled=None)
    del results
    return blocks_of(traces[torch.cuda.current_device() if device.index is None else device.index])


def blocks_of(events: list[dict[str, Any]]) -> list[int]:
    """The blocks of a call, as :func:`_blocks` returns them, from the allocator's recording of the call."""
    found: list[int] = []
    there: dict[int, tuple[int, int]] = {}
    for event in events:
        if event["action"] == "alloc" and event["size"] > SMALL:
            there[event["addr"]] = len(found), event["size"]
            found.append(0)
        elif event["action"] == "free_completed" and event["addr"] in there:
            place, size = there.pop(event["addr"])
            found[place] = size
            found.append(place - len(events))
    # Blocks are numbered in the order of their allocation.
    numbers = {place: number for number, place in enumerate((place for place, size in enumerate(found) if size > 0), 1)}
    return [size if size >= 0 else -numbers[size + len(events)] for size in found]


def _scratch(view: View, device: torch.device, generator: torch.Generator) -> Tensor:
    """A tensor of this form. Floats have ordinary sizes; integers are 0, which is a valid index."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(view.shape, view.stride, strict=True)) if view.shape.numel() else 0
    storage = torch.empty(length, dtype=view.dtype, device=device)
    if view.dtype.is_floating_point:
        storage.normal_(generator=generator)
    else:
        storage.zero_()
    return storage.as_strided(view.shape, view.stride)


def _scale(forms: dict[str, list[Operation]], rates: Rates, times: Times) -> None:
    """Derives from the measured operations how far estimates are off and how large workspaces are, for the others."""
    found: dict[str, list[float]] = {"flops": [], "traffic": []}
    for key, operations in forms.items():
        guess = estimate(operations[0], rates)
        if key in times.known and times.known[key][1]:
            name = operations[0].name
            share = times.known[key][1] / max(1, bytes_of_call(operations[0]))
            times.workspaces[name] = max(times.workspaces.get(name, 0.0), share)
        # Below the time of a few calls, the comparison would be of the overhead of calls.
        if key in times.known and guess > 4 * rates.call_us:
            found["flops" if operations[0].flops else "traffic"].append(times.known[key][0] / guess)
    for kind, ratios in found.items():
        if ratios:
            times.scales[kind] = statistics.median(ratios)


def measure_copies(copies: Copies, times: Times, free_bytes: int) -> None:
    """Measures the rates of copies in each direction and in both at once, with the host memory that passes use."""
    if "both" in times.rates:
        return
    size = min(COPY_BYTES, free_bytes // 4)
    if size < LEAST_COPY_BYTES:
        return
    clock = _clock(copies.device)
    host, other = copies.arena(size), copies.arena(size)
    first = torch.empty(size, dtype=torch.uint8, device=copies.device)
    second = torch.empty(size, dtype=torch.uint8, device=copies.device)

    def out() -> None:
        copies.wait(copies.out(first, host))

    def into() -> None:
        copies.wait(copies.into(other, second))

    def both() -> None:
        tickets = copies.out(first, host), copies.into(other, second)
        for ticket in tickets:
            copies.wait(ticket)

    for name, run, moved in (("out", out, size), ("in", into, size), ("both", both, 2 * size)):
        run()
        times.rates[name] = moved / max(min(clock.seconds(run) for _ in range(ROUNDS)), 1e-9)
