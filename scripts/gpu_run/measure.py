"""Times by device events, and peaks as torch counts them and as the driver (NVML) does."""

import contextlib
import json
import statistics
import threading
import time

import torch

GIB = float(1 << 30)


def tell(**figures):
    """Prints one JSON line, numbers with five digits."""
    print(json.dumps({n: float(f"{v:.5g}") if isinstance(v, float) else v for n, v in figures.items()}), flush=True)


def milliseconds(step, count, warm_up=3):
    """The median of `count` calls, each between two events."""
    for _ in range(warm_up):
        step()
    times = []
    for _ in range(count):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


class Peak:
    """The most memory in use while it is open: `torch` bytes allocated, `driver` bytes in use on the device, read every
    millisecond (a shorter peak may be missed); `driver` is None without NVML."""

    def __init__(self):
        self.torch = self.driver = None
        self._done = threading.Event()

    def __enter__(self):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with contextlib.suppress(ImportError):
            import pynvml

            pynvml.nvmlInit()
            self._poll = threading.Thread(target=self._watch, args=(pynvml,), daemon=True)
            self._poll.start()
        return self

    def _watch(self, nvml):
        # By its own name: NVML counts devices that CUDA_VISIBLE_DEVICES hides.
        device = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
        while not self._done.is_set():
            self.driver = max(self.driver or 0, nvml.nvmlDeviceGetMemoryInfo(device).used)
            time.sleep(0.001)

    def __exit__(self, *_):
        torch.cuda.synchronize()
        self._done.set()
        if hasattr(self, "_poll"):
            self._poll.join()
        self.torch = torch.cuda.max_memory_allocated()

    def gib(self):
        """Both in GiB, by the names that the JSON lines have for them."""
        return {"torch_peak_gib": self.torch / GIB, "driver_peak_gib": self.driver and self.driver / GIB}
