"""One case of scripts/gpu-fit.sh: training steps plain, within budgets, and as others save memory; a JSON line each.

bf16 by autocast (--types tf32: none), channels last, AdamW (fused). Peaks are torch's allocated and reserved bytes; times are medians of steps.
"""

import argparse
import contextlib
import functools
import gc
import gzip
import itertools
import json
import math
import statistics
import time
import zlib
from pathlib import Path

import tightfit.torch as tt
import torch
from fit_models import build
from tightfit import DoesNotFit
from tightfit._budget.api import session_of
from tightfit._budget.plan.make import least_of
from torch import nn
from torch.utils.checkpoint import checkpoint

# Steps within a budget until no plan or bound changes any more.
SETTLING = 40


class Streams(torch.autograd.graph.saved_tensors_hooks):
    """Moves saved tensors to pinned memory and back on a separate stream, except parameters and tensors under 1 KiB.

    The last five that are on their way out stay on the device. Source: torchtune's OffloadActivations with `use_streams`.
    """

    def __init__(self):
        super().__init__(self.pack, self.unpack)
        self.stream, self.leaving = torch.cuda.Stream(), []

    def pack(self, tensor):
        if tensor.numel() * tensor.itemsize < 1024 or isinstance(tensor, nn.Parameter) or not tensor.is_cuda:
            return tensor
        host = torch.empty_like(tensor, device="cpu", pin_memory=True)
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            host.copy_(tensor, non_blocking=True)
        self.leaving.append((tensor.detach(), self.stream.record_event()))
        if len(self.leaving) > 5:
            _, left = self.leaving.pop(0)
            torch.cuda.current_stream().wait_event(left)
        return host, tensor.device

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        for _, left in self.leaving:
            torch.cuda.current_stream().wait_event(left)
        self.leaving.clear()
        host, device = packed
        with torch.cuda.stream(self.stream):
            tensor = host.to(device, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.stream)
        tensor.record_stream(torch.cuda.current_stream())
        return tensor


def length(tensors):
    """The Euclidean length of all of them as one vector."""
    return math.hypot(*(float(tensor.norm()) for tensor in tensors))


def checksum(tensor):
    """Of all bytes of a tensor."""
    return zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())


class Case:
    def __init__(self, options):
        self.case, self.count, self.bits, self.save = options.case, options.steps, options.bits, options.save
        self.cast = options.types == "bf16"
        self.recompute = not options.keep
        self.plain_trace = self.traced_from = None
        torch.manual_seed(0)
        model, x, self.loss, self.blocks = build(options.case)
        layout = {5: torch.channels_last_3d, 4: torch.channels_last}.get(x.dim(), torch.contiguous_format)
        self.model = model.cuda().to(memory_format=layout).train()
        self.x = x.cuda().to(memory_format=layout)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, fused=True)
        self.plain_ms = self.expected = None
        # The context around each forward pass.
        self.around = contextlib.nullcontext

    def forward(self):
        with torch.autocast("cuda", torch.bfloat16, enabled=self.cast), self.around():
            return self.loss(self.model(self.x))

    def step(self):
        self.optimizer.zero_grad()
        self.forward().backward()
        self.optimizer.step()

    def gradients(self):
        """Gradients of one step, on the host, from the same random state."""
        torch.manual_seed(1)
        self.optimizer.zero_grad()
        self.forward().backward()
        found = [gradient.cpu() for gradient in self.present()]
        self.optimizer.zero_grad()
        return found

    def present(self):
        """The gradients that there are."""
        return (parameter.grad for parameter in self.model.parameters() if parameter.grad is not None)

    def trace(self):
        """Checksums of the gradients and statistics of some steps that change the weights, and of the random state after them."""
        before = {name: value.cpu().clone() for name, value in self.model.state_dict().items()}
        # Earlier steps have changed weights and statistics: all traces begin from the same ones.
        if self.traced_from is None:
            self.traced_from = before
        self.model.load_state_dict(self.traced_from)
        torch.manual_seed(1)
        found = []
        try:
            for _ in range(self.bits):
                self.optimizer.zero_grad()
                self.forward().backward()
                # Nothing holds a gradient when the next step begins: there is no room for two of each.
                found.append([checksum(value) for value in (*self.present(), *self.model.buffers())])
                with torch.no_grad():
                    for parameter in self.model.parameters():
                        if parameter.grad is not None:
                            parameter.add_(parameter.grad, alpha=-1e-4)
            found.append([checksum(torch.cuda.get_rng_state()), checksum(torch.get_rng_state())])
        finally:
            self.optimizer.zero_grad()
            self.model.load_state_dict(before)
        return found

    def measure(self, variant, warm=4, **figures):
        """Some steps to warm up, then the median of others, one after another and each waited for, and their peak."""
        try:
            first = time.perf_counter()
            self.step()
            torch.cuda.synchronize()
            first = time.perf_counter() - first
            for _ in range(warm - 1):
                self.step()
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            # As most programs train: the host runs ahead of the device.
            events = [torch.cuda.Event(enable_timing=True) for _ in range(self.count + 2)]
            for event in events[:-1]:
                event.record()
                self.step()
            events[-1].record()
            torch.cuda.synchronize()
            times = [begin.elapsed_time(end) for begin, end in itertools.pairwise(events[1:])]
            figures.update(
                step_ms=round(statistics.median(times), 2), first_step_s=round(first, 2),
                peak_bytes=torch.cuda.max_memory_allocated(), reserved_bytes=torch.cuda.max_memory_reserved(),
            )  # fmt: skip
            if self.plain_ms is not None:
                figures["overhead"] = round(figures["step_ms"] / self.plain_ms - 1, 4)
        except Exception as error:  # a line for what failed, and on to the next
            figures["error"] = f"{type(error).__name__}: {error}"[:400]
            self.optimizer.zero_grad()
        self.tell(variant, figures)
        return figures

    def tell(self, variant, figures):
        print(json.dumps({"case": self.case, "variant": variant, **figures}), flush=True)

    def checkpointed(self):
        def chosen(module):
            return id(module) in self.blocks if isinstance(self.blocks, set) else isinstance(module, self.blocks)

        found = [module for module in self.model.modules() if chosen(module)]
        for module in found:
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
        self.measure("checkpoint", blocks=len(found))
        for module in found:
            del module.forward

    def offloaded(self, variant, around):
        """Everything that is saved waits on the host."""
        self.around = around
        self.peer(variant)
        self.around = contextlib.nullcontext

    def compiled(self):
        """Compiled as a whole, with half of the saved bytes."""
        from torch._functorch import config

        with config.patch(activation_memory_budget=0.5):
            self.peer("compile", torch.compile)

    def peer(self, variant, compiler=None):
        """Measures a way of others, and compares its gradients with plain ones."""
        model = self.model
        try:
            if compiler is not None:
                torch._dynamo.reset()
                self.model = compiler(model)
            failed = "error" in self.measure(variant)
            if self.expected is not None and not failed:
                found = self.gradients()
                off = [mine - plain for mine, plain in zip(found, self.expected, strict=True)]
                self.tell(f"{variant} gradients", {"difference": length(off) / max(length(self.expected), 1e-30)})
        except Exception as error:  # a line for what failed, and on to the next
            self.tell(f"{variant} gradients", {"error": f"{type(error).__name__}: {error}"[:400]})
        self.model = model
        self.optimizer.zero_grad()
        gc.collect()
        torch.cuda.empty_cache()

    def within(self, share, budget):
        """Measures training within a budget. Returns the plan, or None if there was no plan."""
        tt.fit(self.model, budget, optimizer=self.optimizer, loss=self.loss, recompute=self.recompute)
        session = session_of(self.model)
        figures = {"share": share, "budget_bytes": budget, "recompute": self.recompute}
        fitted = None
        try:
            torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            found = self.gradients()
            # Of the first step and its plan; measuring resets the peak, so this is the step's own.
            figures.update(whole_first_step_s=round(time.perf_counter() - begin, 2), first_peak_bytes=torch.cuda.max_memory_allocated())
            figures["identical"] = all(map(torch.equal, self.expected, found)) if self.expected is not None else None
            if session.last is None:
                # Recorded on that step; planned now.
                self.step()
            fitted = session.last
            self.save_step(share, fitted)
            figures.update(
                predicted_bytes=fitted.peak, predicted_plain_bytes=fitted.plain, predicted_overhead=round(fitted.overhead, 4), gap=fitted.gap,
                record_s=round(fitted.recorded_s, 2), plan_s=round(fitted.seconds - fitted.recorded_s, 2),
                moved_bytes=fitted.outcome.moved, rebuilt_us=round(fitted.outcome.rebuilt_us),
            )  # fmt: skip
            self.measure("ours", SETTLING, **figures, counts=vars(fitted.counts))
            if self.plain_trace is not None:
                self.tell("bits", {"share": share, "steps": self.bits, "identical": self.trace() == self.plain_trace})
        except DoesNotFit as error:
            self.tell("ours", {**figures, "least_bytes": error.needed_bytes, "error": str(error)[:400]})
        except Exception as error:  # a line for what failed, and on to the next
            self.tell("ours", {**figures, "error": f"{type(error).__name__}: {error}"[:400]})
        self.optimizer.zero_grad()
        tt.unfit(self.model)
        del session
        gc.collect()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        return fitted

    def save_step(self, share, fitted):
        """Writes the recorded step, which is nearly the same within every budget."""
        if self.save is not None:
            self.save.mkdir(parents=True, exist_ok=True)
            path = self.save / f"{self.case.replace(':', '-')}-{share}.json.gz"
            path.write_bytes(gzip.compress(json.dumps(fitted.step.data).encode()))

    def least(self, fitted):
        """The least budget that is found, and one step of 1% below it."""
        begin = time.perf_counter()
        least = least_of(fitted).needed
        self.tell("least", {"bytes": least, "search_s": round(time.perf_counter() - begin, 2)})
        # Free the bytes that a plan leaves for gaps between blocks.
        del fitted
        gc.collect()
        self.within("least", least)
        self.within("below", least * 99 // 100)


PEERS = ("checkpoint", "offload", "streams", "compile")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, help="smoke, resnet50:256, vitl:128, convnextb:128, vae:4, unet2d:16, unet3d:2, detector:8")
    parser.add_argument("--shares", type=int, nargs="*", default=[80, 60, 40], help="percent of plain's measured peak")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--least", action="store_true", help="search the least budget, and train at it")
    parser.add_argument("--benchmark", action="store_true", help="cudnn.benchmark, with backward passes on this thread, so that all variants have the same algorithms")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, help="what is measured beside ours; none leaves all out")
    parser.add_argument("--types", choices=("bf16", "tf32"), default="bf16", help="bf16 by autocast, or tf32 without it")
    parser.add_argument("--bits", type=int, default=0, metavar="N", help="compare the bits of N steps with plain's, where plain repeats itself")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="write the recorded step of each budget that is met, for `tightfit plan --step`")
    parser.add_argument("--keep", action="store_true", help="compute nothing again: tensors are kept or moved")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = options.benchmark
    if options.benchmark:
        # PyTorch keeps algorithms by thread, and ours computes the backward pass on this one.
        torch.autograd.set_multithreading_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    case = Case(options)
    plain = case.measure("plain", gpu=torch.cuda.get_device_name(0), torch=torch.__version__, cudnn=torch.backends.cudnn.version())
    case.plain_ms = plain.get("step_ms")
    if case.plain_ms is not None:
        case.expected, again = case.gradients(), case.gradients()
        case.tell("repeats", {"identical": all(map(torch.equal, case.expected, again))})
        del again
    if options.bits and case.plain_ms is not None:
        trace = case.trace()
        repeats = trace == case.trace()
        case.tell("repeats", {"steps": options.bits, "identical": repeats})
        case.plain_trace = trace if repeats else None
    if "checkpoint" in options.peers:
        case.checkpointed()
    if "peak_bytes" in plain:
        fitted = None
        for share in (102, *options.shares):
            fitted = case.within(share, plain["peak_bytes"] * share // 100) or fitted
        # Compared once, not at the least budget too.
        case.plain_trace = None
        if options.least and fitted is not None:
            case.least(fitted)
    case.measure("plain again")
    # Peers that may take minutes to compile or to move come last: a time limit loses nothing else.
    if "offload" in options.peers:
        case.offloaded("offload", functools.partial(torch.autograd.graph.save_on_cpu, pin_memory=True))
    if "streams" in options.peers:
        case.offloaded("streams", Streams)
    if "compile" in options.peers:
        case.compiled()


if __name__ == "__main__":
    main()
