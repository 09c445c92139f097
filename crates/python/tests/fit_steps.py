"""Recorded steps without torch: stand-ins for tensors, and a program that packs and unpacks them in the order of a step file.

A tensor here is its bytes as a number, and what was computed into them as a value that depends on the operation and on what it
read. So a replay shows whether every reader gets what it would get if nothing had been moved, and how many bytes were alive.
"""

import gzip
import json
import weakref
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

from tightfit._fit.passes import Pass
from tightfit._fit.rebuild import Lives
from tightfit._fit.recorded import External, Operation, Pack, Step, View
from tightfit._fit.slots import Counts

FOLDER = Path(__file__).parent / "steps"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))
POISON = "poison"


class Memory:
    """Bytes on the device: those alive, and the most that were since `most` was set."""

    def __init__(self):
        self.live = self.most = 0

    def take(self, storage, size):
        self.live += size
        self.most = max(self.most, self.live)
        weakref.finalize(storage, self.give, size).atexit = False

    def give(self, size):
        self.live -= size


class Storage:
    def __init__(self, memory, size, content):
        self.size, self.content, self.version, self.memory = size, content, 0, memory
        memory.take(self, size)

    def nbytes(self):
        return self.size


class Shape(tuple):
    __slots__ = ()

    def numel(self):
        return self[0]


class Stand:
    """Stands for a tensor of bytes that has all of its storage."""

    dtype, grad_fn, itemsize, requires_grad, is_leaf = "bytes", None, 1, False, False

    def __init__(self, storage):
        self.storage = storage
        self.shape = Shape([storage.size])

    @property
    def _version(self):
        return self.storage.version

    def type(self):
        return self.dtype

    def numel(self):
        return self.storage.size

    def stride(self):
        return (1,)

    def storage_offset(self):
        return 0

    def untyped_storage(self):
        return self.storage

    def detach(self):
        return Stand(self.storage)

    def as_strided(self, *_):
        return Stand(self.storage)

    def clone(self):
        return Stand(Storage(self.storage.memory, self.storage.size, self.storage.content))


class Arena:
    """Host memory; a part of it is told by where it begins."""

    def __init__(self, size):
        self.size, self.content = size, {}

    def numel(self):
        return self.size

    def __getitem__(self, part):
        return SimpleNamespace(arena=self, start=part.start, numel=lambda: part.stop - part.start)


class Late:
    """Copies that are done when they are waited for; until then their target holds poison."""

    def __init__(self, memory):
        self.memory, self.waited, self.skip = memory, 0, None

    def room(self, size):
        return Stand(Storage(self.memory, size, POISON))

    def out(self, tensor, host):
        host.arena.content[host.start] = POISON
        source = tensor.storage

        def copy():
            host.arena.content[host.start] = source.content

        return [copy]

    def into(self, host, device):
        def copy():
            device.storage.content = host.arena.content[host.start]

        return [copy]

    def wait(self, ticket):
        self.waited += 1
        if ticket and self.waited != self.skip:
            ticket.pop()()

    def computing(self):
        return nullcontext()


class Kept:
    """What takes tensors that a plan does not know: they stay."""

    def __init__(self):
        self.counts = Counts()

    def pack(self, tensor):
        return tensor.detach()

    def unpack(self, handle):
        return handle


class Function:
    """An operation of a step file, which computes a value from what it reads."""

    def __init__(self, recorded, index):
        self.recorded, self.index = recorded, index
        self._schema = SimpleNamespace(name=recorded.operations[index]["name"].replace(".", "::"))

    def __call__(self, *tensors):
        operation, recorded = self.recorded.operations[self.index], self.recorded
        given = dict(zip(recorded.arguments(operation), tensors, strict=True))
        changed = {recorded.lives.before[number] if number not in given else number: number for number in operation["adds"]}
        # Statistics that stay are not read where they are updated, and a rerun gets none.
        read = [number for number in given if number not in changed or not recorded.lives.resident[number]]
        value = hash((self.index, *(given[number].storage.content for number in read)))
        made = []
        for number in operation["writes"]:
            before = recorded.lives.before[number]
            if before is not None and before in operation["reads"]:
                made.append(given[before])
                self.change(given[before], hash((value, number)))
            else:
                made.append(Stand(Storage(recorded.memory, recorded.lives.bytes[number], hash((value, number)))))
        for place, number in changed.items():
            if given[place] is not None:
                self.change(given[place], hash((value, number, given[place].storage.content)))
        return made

    @staticmethod
    def change(tensor, content):
        tensor.storage.content = content
        tensor.storage.version += 1


class Flat:
    """Arguments by place alone."""

    @staticmethod
    def unflatten(arguments):
        return arguments, {}


class Recorded:
    """A step file, as a recording has it."""

    def __init__(self, name):
        self.data = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
        self.lives = Lives(self.data)
        self.operations = self.data["operations"]
        self.memory = Memory()
        view = self.view
        packs, unpacks, of_tensor = [], [], {}
        recorded, externals = [], {}
        for index, operation in enumerate(self.operations):
            function = Function(self, index)
            recorded.append(
                Operation(
                    function, [view(number) for number in self.arguments(operation)], Flat,
                    [view(number) for number in operation["writes"]], [], [], operation["adds"], operation["stage"], None, "", 0.0,
                )
            )  # fmt: skip
            if operation["name"] == "pack":
                tensor = operation["reads"][0]
                of_tensor.setdefault(tensor, []).append(len(packs))
                packs.append((tensor, index))
            elif operation["name"] == "unpack":
                # The file does not say which pack of a tensor it is: they are taken in turn.
                number = of_tensor[operation["reads"][0]].pop(0)
                of_tensor[operation["reads"][0]].append(number)
                unpacks.append((number, index))
        for number, tensor in enumerate(self.data["tensors"]):
            what, _, which = tensor["name"].partition(" ")
            if tensor["residence"] == "resident" and what in ("parameter", "buffer", "input"):
                externals[number] = [External(what, int(which) if what == "input" else which, view(number))]
        tensors = {(number, 0): number for number in range(len(self.lives.bytes))}
        self.step = Step(self.data, packs, unpacks, recorded, tensors, externals)
        self.packs = [Pack(view(tensor), False, "", 0, ()) for tensor, _ in packs]

    def arguments(self, operation):
        """The tensors that an operation is called with: one that it changes in place is not given twice."""
        added = [number for number in operation["adds"] if self.lives.before[number] not in operation["reads"]]
        return [*operation["reads"], *added]

    def view(self, number):
        return View(number, 0, Shape([self.lives.bytes[number]]), (1,), 0, "bytes")


class Program:
    """Runs a step: holds tensors as long as the recorded program did, and lets autograd hold what it saved."""

    def __init__(self, recorded, bound=None, order=None):
        self.recorded, self.lives, self.bound = recorded, recorded.lives, bound
        self.memory = recorded.memory = Memory()
        self.copies = Late(self.memory)
        self.safe = Kept()
        # What every operation read, and the most bytes that were alive at each.
        self.read, self.most = [], []
        # Turns of unpacks in another order than recorded.
        self.order = order or {}

    def run(self):
        lives, memory = self.lives, self.memory
        held = {}
        for number, stays in enumerate(lives.resident):
            if stays:
                before = lives.before[number]
                held[number] = Stand(Storage(memory, lives.bytes[number], number)) if before is None else held[before]
        hooks = self.hooks(held)
        handles, ends = self.ends()
        packed = {}
        turn = 0
        for index, operation in enumerate(lives.operations):
            if index == lives.turn:
                hooks.seal()
            memory.most = memory.live
            if operation["name"] == "pack":
                packed[len(packed)] = hooks.pack(held[operation["reads"][0]])
            elif operation["name"] == "unpack":
                number, _ = self.recorded.step.unpacks[self.order.get(turn, turn)]
                tensor = self.recorded.step.packs[number][0]
                held[tensor] = got = hooks.unpack(packed[number])
                self.read.append((tensor, got.storage.content))
                turn += 1
                del got
            else:
                self.compute(index, held)
            self.most.append(memory.most)
            for number in ends.get(index, ()):
                held.pop(number, None)
            for number in handles.get(index, ()):
                packed.pop(number, None)
        # Each number names its resident tensor, whose content is the step's result.
        self.result = {number: tensor.storage.content for number, tensor in held.items()}

    def hooks(self, held):
        if self.bound is None:
            pack, unpack = Stand.detach, lambda tensor: tensor
            return SimpleNamespace(pack=pack, unpack=unpack, seal=lambda: None)
        inputs = {}
        model = SimpleNamespace(_modules={}, _parameters={}, _buffers={})
        for number, ((what, which, _),) in self.recorded.step.externals.items():
            if what == "input":
                inputs[which] = held[number]
                continue
            *path, name = which.split(".")
            module = model
            for part in path:
                module = module._modules.setdefault(part, SimpleNamespace(_modules={}, _parameters={}, _buffers={}))
            (module._parameters if what == "parameter" else module._buffers)[name] = held[number]
        given = self.bound.resolve(model, inputs)
        return Pass(self.bound, self.copies, lambda active, _: Arena(active.bound.host_bytes), self.safe, given, set())

    def compute(self, index, held):
        operation = self.lives.operations[index]
        self.read += [(number, held[number].storage.content) for number in operation["reads"]]
        function = self.recorded.step.recorded[index].function
        made = function(*(held[number] for number in self.recorded.arguments(operation)))
        held.update(zip(operation["writes"], made, strict=True))

    def ends(self):
        """By operation: packs whose handles autograd lets go of after it, and tensors that nobody holds after it."""
        lives, step = self.lives, self.recorded.step
        unpacked = {}
        for number, index in step.unpacks:
            unpacked.setdefault(step.packs[number][0], []).append(index)
        ends, handles = {}, {}
        for tensor, last in enumerate(lives.last):
            if lives.resident[tensor] or last < 0:
                continue
            uses = [
                index
                for index, operation in enumerate(lives.operations)
                if tensor in operation["reads"] or tensor in operation["writes"] or tensor in operation["adds"]
            ]
            bounds = [0, *unpacked.get(tensor, []), len(lives.operations)]
            for begin, end in zip(bounds, bounds[1:], strict=False):
                ends.setdefault(max((index for index in uses if begin <= index < end), default=0), []).append(tensor)
        for number, (tensor, _) in enumerate(step.packs):
            own = [index for other, index in step.unpacks if other == number]
            later = [index for index in unpacked.get(tensor, []) if own and index > own[-1]]
            readers = [index for index, operation in enumerate(lives.operations) if tensor in operation["reads"]]
            # Nobody sees a handle that is never unpacked: it is there as long as its graph.
            last = max((index for index in readers if not later or index < later[0]), default=0) if own else len(lives.operations) - 1
            handles.setdefault(last, []).append(number)
        return handles, ends
