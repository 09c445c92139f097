"""Compiled steps that offload: budgets in shares of PyTorch's least, PyTorch's own offloading, and timelines with the share of overlapped copies."""

import gzip
import json

import torch
from torch.utils._pytree import tree_map


def bytes_beside(model, loss):
    """Bytes of weights, gradients, AdamW's state, inputs and the loss."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    there = torch.cuda.memory_allocated() + 3 * weights
    found = []

    def forward(*args, **kwargs):
        with torch.no_grad():
            found.append(model(*args, **kwargs))
        return found[-1]

    def given(*args, **kwargs):
        return tree_map(lambda one: one.detach().requires_grad_() if isinstance(one, torch.Tensor) and one.is_floating_point() else one, found[0])

    with torch.autocast("cuda", torch.bfloat16):
        loss(forward)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss(given).backward()
    beside = torch.cuda.max_memory_allocated() - before
    found.clear()
    torch.cuda.empty_cache()
    return there + beside


def offload_all():
    """Turns on PyTorch's own offloading of every saved value of at least 1 MiB, on a separate stream, with prefetching."""
    from torch._functorch import config, partitioners

    config.enable_activation_offloading = config.activation_offload_separate_stream = True
    config.activation_offload_sink_wait = config.activation_reload_prefetch = True
    own = partitioners.choose_saved_values_set

    def choose(joint, *args, **kwargs):
        for node in joint.nodes:
            value = node.meta.get("val")
            if node.op == "call_function" and isinstance(value, torch.Tensor) and value.numel() * value.element_size() >= 1 << 20:
                node.meta["should_offload"] = True
        return own(joint, *args, **kwargs)

    partitioners.choose_saved_values_set = choose


def traced(step, folder):
    """Profiles a step: a timeline for Perfetto in the folder, and the share of the time of copies in which kernels run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profiler:
        step()
        torch.cuda.synchronize()
    path = folder / "timeline.json.gz"
    profiler.export_chrome_trace(str(path))
    with gzip.open(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if "dur" in event]
    kernels = union((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "kernel")
    found = {}
    for way in ("HtoD", "DtoH"):
        copies = union((event["ts"], event["ts"] + event["dur"]) for event in events if event.get("cat") == "gpu_memcpy" and way in event["name"])
        spent = sum(end - start for start, end in copies)
        overlapped = sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in copies for begin, stop in kernels)
        found[way] = {"us": round(spent), "overlapped": round(overlapped / spent, 4) if spent else None}
    return found


def union(spans):
    """Spans without overlaps, in order."""
    found = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1][1] = max(found[-1][1], end)
        else:
            found.append([start, end])
    return found


def planned():
    """The bytes that the plans offload, the predictions, and the rates of the link in bytes per microsecond."""
    from tightfit._budget.compiled.held import all_held

    plans = [one for held in all_held() for one in held.planned]
    links = [held.kernels.link for held in all_held()]
    return {
        "moved_bytes": sum(sum(one.moved.values()) for one in plans), "predicted_peak_bytes": max((one.peak for one in plans), default=0),
        "predicted_us": sum(one.overhead_us for one in plans), "link": [[link.out, link.into] for link in links],
    }  # fmt: skip
