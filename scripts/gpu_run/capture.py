#!/usr/bin/env python3
"""A training step captured as a CUDA graph and replayed, against the same step eagerly: one JSON line a case.

usage: [tightfit run .. --] python scripts/gpu_run/capture.py --label NAME NETWORK:BATCH:PRECISION ..

`same_bits`: whether the graph's gradients are the eager ones' (deterministic algorithms asked for).
"""

import argparse

import torch
from measure import milliseconds, tell
from models import build, loss_of


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--label", default="plain")
    options = parser.parse_args()
    torch.backends.cudnn.deterministic = True
    for case in options.cases:
        network, batch, precision = case.split(":")
        model, x, target = build(network, int(batch), precision)

        def step():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
            loss_of(model, x, target).backward()

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(stream)
        eager = [parameter.grad.clone() for parameter in model.parameters()]
        eager_ms = milliseconds(step, 5, 1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for parameter in model.parameters():
            # A replay that left gradients unwritten would show.
            parameter.grad.fill_(1.0)
        graph.replay()
        torch.cuda.synchronize()
        pairs = list(zip(eager, (parameter.grad for parameter in model.parameters()), strict=True))
        same = all(torch.equal(a, b) for a, b in pairs)
        error = max(((a - b).double().norm() / a.double().norm().clamp_min(1e-30)).item() for a, b in pairs)
        graph_ms = milliseconds(graph.replay, 5, 1)
        tell(label=options.label, case=case, same_bits=same, error=error, eager_ms=eager_ms, graph_ms=graph_ms)
        del graph, model, eager, pairs
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
