#!/usr/bin/env python3
"""What PyTorch's caching allocator reserves for training VGG-16 when each convolution asks for a workspace of its own size.

usage: scripts/torch-blocks.py [--batch N] [--least MIB] [--most MIB] [--networks N]

Replays the requests of a training step in fp32 (feature maps, indices, gradients, workspaces) on the allocator's rules: 2 MiB
blocks for requests up to 1 MiB, 20 MiB up to 10 MiB, whole multiples of 2 MiB beyond; the smallest free block that fits is cut;
neighbors that are free are joined. Prints, for each network of random sizes between the bounds, the peak that is allocated and
what is reserved then and after the cache was emptied, in GiB. No GPU and no PyTorch needed.
"""

import argparse
import random

MIB, GIB = 1 << 20, 1 << 30

# Channels in, channels out, extent; None for a pooling.
LAYERS = [(3, 64, 224), (64, 64, 224), None, (64, 128, 112), (128, 128, 112), None, (128, 256, 56), (256, 256, 56), (256, 256, 56)]
LAYERS += [None, (256, 512, 28), (512, 512, 28), (512, 512, 28), None, (512, 512, 14), (512, 512, 14), (512, 512, 14), None]
LINEAR = [(25088, 4096), (4096, 4096), (4096, 1000)]


class Block:
    def __init__(self, place, size, is_small):
        self.place, self.size, self.is_small = place, size, is_small
        self.before = self.after = None
        self.is_free = True


class Allocator:
    def __init__(self):
        self.free, self.segments = [], 0
        self.reserved = self.most_reserved = self.allocated = self.most_allocated = 0

    def take(self, size):
        size = max(512, -(-size // 512) * 512)
        is_small = size <= MIB
        fitting = [block for block in self.free if block.is_small == is_small and block.size >= size]
        if fitting:
            block = min(fitting, key=lambda block: (block.size, block.place))
            self.free.remove(block)
        else:
            segment = 2 * MIB if is_small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            self.segments += 1
            block = Block((self.segments, 0), segment, is_small)
            self.reserved += segment
            self.most_reserved = max(self.most_reserved, self.reserved)
        if block.size - size >= (512 if is_small else MIB + 1):
            rest = Block((block.place[0], block.place[1] + size), block.size - size, is_small)
            rest.before, rest.after = block, block.after
            if block.after:
                block.after.before = rest
            block.after, block.size = rest, size
            self.free.append(rest)
        block.is_free = False
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def give(self, block):
        self.allocated -= block.size
        block.is_free = True
        if block.before and block.before.is_free:
            block = self.join(block.before, block)
        if block.after and block.after.is_free:
            self.free.append(block)
            block = self.join(block, block.after)
        self.free.append(block)

    def join(self, first, second):
        """Joins two neighbors, of which one is in the list of free blocks; neither is afterwards."""
        self.free = [block for block in self.free if block is not first and block is not second]
        first.size, first.after = first.size + second.size, second.after
        if second.after:
            second.after.before = first
        return first

    def empty(self):
        for block in [block for block in self.free if not block.before and not block.after]:
            self.free.remove(block)
            self.reserved -= block.size
        self.most_reserved = self.reserved


def step(allocator, batch, gradients, workspace):
    """One training step; leaves the gradients of weights until the next."""
    take, give = allocator.take, allocator.give
    while gradients:
        give(gradients.pop())

    def convolve(operation, layer):
        bytes_ = workspace(operation, layer)
        if bytes_:
            give(take(bytes_))

    # What is saved of each layer, in the order of the forward pass.
    saved, channels, extent = [], 0, 0
    for layer in LAYERS:
        if layer:
            _, channels, extent = layer
            saved.append((take(4 * batch * channels * extent**2),))
            convolve("forward", layer)
        else:
            extent //= 2
            saved.append(tuple(take(bytes_ * batch * channels * extent**2) for bytes_ in (4, 8)))
    pooled = take(4 * batch * LINEAR[0][0])
    hidden = [(take(4 * batch * outputs), take(4 * batch * outputs), take(batch * outputs)) for _, outputs in LINEAR[:-1]]
    scores = take(4 * batch * LINEAR[-1][1])

    gradient = take(4 * batch * LINEAR[-1][1])

    def passed(bytes_):
        """The gradient of a layer's input in place of that of its output."""
        new = take(bytes_)
        give(gradient)
        return new

    for inputs, outputs in reversed(LINEAR):
        if outputs == LINEAR[-1][1]:
            here = (scores,)
        else:
            here = hidden.pop()
            gradient = passed(4 * batch * outputs)
            gradient = passed(4 * batch * outputs)
        backward = take(4 * batch * inputs)
        gradients += [take(4 * inputs * outputs), take(4 * outputs)]
        give(gradient)
        gradient = backward
        for block in here:
            give(block)
    gradient = passed(4 * batch * LINEAR[0][0])
    give(pooled)
    for place in reversed(range(len(LAYERS))):
        layer = LAYERS[place]
        if layer:
            inputs, channels, extent = layer
            gradient = passed(4 * batch * channels * extent**2)
            give(saved[place][0])
            backward = None
            if place > 0:
                backward = take(4 * batch * inputs * extent**2)
                convolve("backward-data", layer)
            gradients.append(take(4 * inputs * channels * 9))
            convolve("backward-filter", layer)
            gradients.append(take(4 * channels))
            give(gradient)
            gradient = backward
        else:
            _, channels, extent = LAYERS[place - 1]
            gradient = passed(4 * batch * channels * extent**2)
            for block in reversed(saved[place]):
                give(block)


def train(batch, workspace):
    allocator, gradients = Allocator(), []
    for layer in filter(None, LAYERS):
        allocator.take(36 * layer[0] * layer[1])
        allocator.take(4 * layer[1])
    for inputs, outputs in LINEAR:
        allocator.take(4 * inputs * outputs)
        allocator.take(4 * outputs)
    allocator.take(4 * batch * 3 * 224**2)
    for _ in range(3):
        step(allocator, batch, gradients, workspace)
    before = allocator.most_reserved
    allocator.empty()
    for _ in range(5):
        step(allocator, batch, gradients, workspace)
    return [bytes_ / GIB for bytes_ in (allocator.most_allocated, before, allocator.most_reserved)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--least", type=int, default=240)
    parser.add_argument("--most", type=int, default=512)
    parser.add_argument("--networks", type=int, default=20)
    options = parser.parse_args()
    print("allocated  reserved  after emptying (GiB)")
    for seed in range(options.networks):
        sizes, draw = {}, random.Random(seed)

        def workspace(*kernel):
            return sizes.setdefault(kernel, draw.randint(options.least * MIB, options.most * MIB))

        print("{:9.2f}  {:8.2f}  {:8.2f}".format(*train(options.batch, workspace)))


if __name__ == "__main__":
    main()
