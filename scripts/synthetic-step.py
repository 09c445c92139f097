#!/usr/bin/env python3
"""Write a step file like a recorded one: residual blocks or a U-shape, with views, in-place operations and choices.

    scripts/synthetic-step.py residual --blocks 8 > step.json
    scripts/synthetic-step.py unet --blocks 3 --scale 20
    scripts/synthetic-step.py eager --blocks 6
"""

import argparse
import json


class Step:
    """Tensors and operations in the order of the forward pass; the backward pass mirrors it."""

    def __init__(self):
        self.tensors, self.operations, self.groups, self.undo = [], [], [], []

    def tensor(self, name, size, kind="feature-map", residence="movable", **more):
        self.tensors.append({"name": name, "bytes": size, "kind": kind, "residence": residence, **more})
        return len(self.tensors) - 1

    def group(self, name):
        self.groups.append({"name": name})
        return len(self.groups) - 1

    def operation(self, group, name, stage, reads, writes, adds=(), time=10.0, **more):
        operation = {"group": group, "name": name, "stage": stage, "reads": list(reads), "writes": list(writes)}
        operation |= {"adds": list(adds), "rerun": "same" if stage == "forward" else "never"}
        operation |= more if "choices" in more else {"time_us": time, **more}
        self.operations.append(operation)

    def convolution(self, name, x, size, time):
        group = self.group(name)
        y = self.tensor(f"{name} output", size, sample_bytes=size // 8)
        w = self.tensor(f"{name} weight", 65536, "weight", "resident")
        choices = [{"time_us": 2 * time, "workspace_bytes": 0}, {"time_us": time, "workspace_bytes": size // 2}]
        self.operation(group, "convolution", "forward", [x, w], [y], choices=choices, independent_samples=True)
        self.undo.append(("convolution", group, x, y, w, time, size))
        return y

    def normalization(self, name, x, size, time):
        group = self.group(name)
        y = self.tensor(f"{name} output", size, sample_bytes=size // 8)
        saved = self.tensor(f"{name} saved statistics", 512, "other", "temporary")
        running = self.tensor(f"{name} running statistics", 512, "weight", "resident")
        rerun = {"read_only": [saved, running]}
        self.operation(group, "batch_norm", "forward", [x], [y, saved], [running], time, rerun=rerun, rerun_time_us=0.7 * time)
        # In place.
        self.operation(group, "relu_", "forward", [], [], [y], time / 2, independent_samples=True)
        self.undo.append(("normalization", group, x, y, saved, time, size))
        return y

    def dropout(self, name, x, size, time):
        group = self.group(name)
        y = self.tensor(f"{name} output", size)
        self.operation(group, "dropout", "forward", [x], [y], time=time, rerun="never")
        self.undo.append(("dropout", group, y, y, None, time, size))
        return y

    def joined(self, name, one, other, size, time):
        group = self.group(name)
        y = self.tensor(f"{name} output", size)
        flat = self.tensor(f"{name} output, flat", size, alias=y)
        self.operation(group, "cat", "forward", [one, other], [y], time=time)
        self.undo.append(("join", group, None, y, None, time, size))
        return flat

    def finish(self):
        group = self.group("loss")
        last = self.undo[-1][3]
        gradient = self.tensor("gradient of loss", self.tensors[last]["bytes"], "gradient-map", "temporary")
        loss = self.tensor("loss", 256, "other", "movable", result=True)
        self.operation(group, "loss", "forward", [last], [loss], time=5.0, rerun="never")
        self.operation(group, "loss backward", "backward", [last], [gradient], time=5.0)
        for what, group, x, y, side, time, size in reversed(self.undo):
            new = self.tensor(f"gradient in {self.groups[group]['name']}", size, "gradient-map", "temporary")
            reads = [tensor for tensor in (x, y, side, gradient) if tensor is not None]
            if what == "convolution":
                reads = [x, side, gradient]
                grad = self.tensor(f"{self.groups[group]['name']} weight gradient", 65536, "weight-gradient", "resident")
                self.operation(group, "convolution backward", "backward", reads, [new, grad], time=2 * time)
            elif what == "join":
                self.operation(group, "split", "backward", [gradient], [new], time=time)
            else:
                self.operation(group, f"{what} backward", "backward", reads, [new], time=1.4 * time)
            gradient = new
        for place, tensor in enumerate(list(self.tensors)):
            if tensor["kind"] == "weight" and tensor["name"].endswith("weight"):
                gradients = [at for at, other in enumerate(self.tensors) if other["name"] == f"{tensor['name']} gradient"]
                self.operation(group, "update", "update", gradients, [], [place], 3.0)


def residual(step, blocks, scale):
    x = step.tensor("input", 4 * scale)
    step.operation(step.group("input"), "load", "forward", [], [x], time=4.0, rerun="never")
    for block in range(blocks):
        size = max(scale * 16 >> (2 * block // max(blocks, 1)), 512)
        y = step.convolution(f"block{block}.conv1", x, size, 20.0)
        y = step.normalization(f"block{block}.bn1", y, size, 6.0)
        y = step.convolution(f"block{block}.conv2", y, size, 24.0)
        y = step.normalization(f"block{block}.bn2", y, size, 6.0)
        if block % 3 == 2:
            y = step.dropout(f"block{block}.drop", y, size, 3.0)
        x = step.joined(f"block{block}.cat", y, x, 2 * size, 5.0)


def eager(step, blocks, scale):
    """As recorded from eager PyTorch: what is not saved is temporary, and saving takes operations of no time."""
    x = step.tensor("input", 4 * scale)
    step.operation(step.group("input"), "load", "forward", [], [x], time=4.0, rerun="never")
    size = 16 * scale
    for block in range(blocks):
        group = step.group(f"block{block}")
        w = step.tensor(f"block{block} weight", 65536, "weight", "resident")
        y = step.tensor(f"block{block} convolution", size)
        step.operation(group, "convolution", "forward", [x, w], [y], time=20.0)
        z = step.tensor(f"block{block} batch_norm", size, residence="temporary")
        step.operation(group, "batch_norm", "forward", [y], [z], time=6.0)
        step.operation(group, "detach", "forward", [z], [], time=0.0, rerun="never")
        a = step.tensor(f"block{block} relu", size)
        step.operation(group, "relu", "forward", [z], [a], time=3.0)
        for saved in (y, a):
            step.operation(group, "pack", "forward", [saved], [], time=0.0, rerun="never")
        step.undo.append(("normalization", group, y, a, None, 10.0, size))
        x = a


def unet(step, blocks, scale):
    x = step.tensor("input", 4 * scale)
    step.operation(step.group("input"), "load", "forward", [], [x], time=4.0, rerun="never")
    skips = []
    for level in range(blocks):
        size = scale * 32 >> level
        x = step.normalization(f"down{level}.norm", step.convolution(f"down{level}.conv", x, size, 30.0), size, 8.0)
        skips.append((x, size))
    for level in reversed(range(blocks)):
        skip, size = skips[level]
        x = step.joined(f"up{level}.cat", x, skip, 2 * size, 6.0)
        x = step.normalization(f"up{level}.norm", step.convolution(f"up{level}.conv", x, size, 40.0), size, 8.0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=["eager", "residual", "unet"])
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--scale", type=int, default=4096, help="bytes of a small tensor")
    options = parser.parse_args()
    step = Step()
    {"eager": eager, "residual": residual, "unet": unet}[options.shape](step, options.blocks, options.scale)
    step.finish()
    machine = {"to_host_bytes_per_s": 5e9, "to_device_bytes_per_s": 5e9, "both_bytes_per_s": 9e9}
    machine |= {"slowdown_beside_copies": 1.03, "host_bytes": None, "link_share": 1.0}
    document = {"tightfit_step": 1, "name": f"{options.shape}-{options.blocks}", "batch": 8, "types": "bf16"}
    document |= {"mode": "training", "tensors": step.tensors, "groups": step.groups, "operations": step.operations}
    print(json.dumps(document | {"machine": machine}, indent=None, separators=(",", ":")))


if __name__ == "__main__":
    main()
