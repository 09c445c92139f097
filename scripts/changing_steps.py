"""The steps of random programs that change: a program, and the changes to its steps."""

import contextlib
import random
import sys
from pathlib import Path

import torch
from torch import nn

TESTS = Path(__file__).resolve().parents[1] / "crates" / "python" / "tests_torch"
sys.path.insert(0, str(TESTS))

import changing_programs  # noqa: E402
from changing_programs import OUTSIDE  # noqa: E402

# Changes have numbers from here on, after the numbers of blocks.
CHANGES, FROZEN = 100, 99


class Lost(Exception):
    """An exception that a program raises on purpose."""


class Program:
    """A program and its changes."""

    def __init__(self, seed, left_out=()):
        self.seed, self.left_out = seed, frozenset(left_out)
        self.model, self.words = changing_programs.root(self.rng, seed, self.left_out)
        rng = self.rng("program")
        self.steps = rng.randint(4, 7)
        self.adam = rng.random() < 0.4
        self.batch, self.size = rng.choice([2, 3, 4]), rng.choice([8, 10, 12])
        self.input_grad = rng.random() < 0.3
        if FROZEN not in self.left_out:
            self._freeze(self.rng(FROZEN))
        self.changes = []
        for number in range(CHANGES, CHANGES + rng.choice([0, 1, 1, 2, 3])):
            if number not in self.left_out:
                of_change = self.rng(number)
                name = of_change.choice(sorted(ACTIONS))
                self.changes.append((name, of_change.randint(1, 4), of_change.randrange(1 << 20)))
                self.words.append(f"{number}:{name} at {self.changes[-1][1]}")

    def _freeze(self, rng):
        """Freezes parameters from the first step on, and evaluates parts."""
        share = rng.choice([0.0, 0.0, 0.3, 0.7, 1.0])
        for parameter in self.model.parameters():
            parameter.requires_grad_(rng.random() >= share)
        for module in self.model.modules():
            if share and isinstance(module, nn.modules.batchnorm._BatchNorm) and rng.random() < 0.6:
                module.eval()
        self.input_grad = self.input_grad or share == 1.0 or rng.random() < share
        if share:
            self.words.append(f"{FROZEN}:{share} frozen")

    def rng(self, part):
        """The generator of a part of the program."""
        return random.Random(f"{self.seed}/{part}")


class Side:
    """A program as it runs plain, or fitted."""

    def __init__(self, program, model):
        self.program, self.model = program, model
        parameters = list(model.parameters())
        if program.adam:
            self.optimizer = torch.optim.AdamW(parameters, lr=1e-2)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
        self.loss_of, self.forward_of, self.kept = plain_loss, plain_forward, []
        self.steps_itself = False
        self.seen = {}

    def parts(self, number):
        """A part of the model, by any number."""
        found = [module for name, module in self.model.named_modules() if name and not name.startswith("blocks.0.parametrizations")]
        return found[number % len(found)]

    def input(self, n):
        program = self.program
        batch, size = program.batch, program.size
        for name, at, number in program.changes:
            if name == "shape" and n >= at:
                batch, size = (batch + 1, size) if number % 3 == 0 else (batch, size + 2) if number % 3 == 1 else (max(1, batch - n % 2), size)
        x = torch.randn(batch, 3, size, size)
        return x.requires_grad_() if program.input_grad else x

    def step(self, n):
        """Takes a step; answers all that it has left behind."""
        self.model.clock.step, self.seen = n, {}
        torch.manual_seed(self.program.seed * 100 + n)
        self.loss_of, self.forward_of = plain_loss, plain_forward
        for name, at, number in self.program.changes:
            ACTIONS[name](self, n - at, number)
        x = self.input(n)
        if not self.steps_itself:
            self.optimizer.zero_grad(set_to_none=bool(n % 2))
        loss = self.loss_of(self, x)
        found = self.seen
        if loss is not None:
            found["loss"] = loss.detach().clone()
        if x.grad is not None:
            found["input gradient"] = x.grad
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient of {name}"] = parameter.grad.clone()
        if not self.steps_itself:
            self.optimizer.step()
        for name, value in self.model.state_dict().items():
            found[name] = value.clone()
        found["random state"] = torch.get_rng_state()
        return found


def plain_forward(side, x):
    return side.model(x)


def plain_loss(side, x):
    loss = side.forward_of(side, x).float().square().mean()
    loss.backward()
    return loss


def retained(side, x):
    """Runs a graph twice."""
    loss = side.forward_of(side, x).float().square().mean()
    loss.backward(retain_graph=True)
    (loss * 0.5).backward()
    return loss


def penalized(side, x):
    """A gradient penalty."""
    x = x.detach().requires_grad_()
    y = side.forward_of(side, x).float()
    (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    loss = y.square().mean() + grad.square().mean()
    loss.backward()
    return loss


def partly(side, x):
    """Gradients of parts first."""
    loss = side.forward_of(side, x).float().square().mean()
    wanted = [p for p in side.model.parameters() if p.requires_grad][::2]
    found = torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True)
    side.seen.update({f"part {place}": grad for place, grad in enumerate(found) if grad is not None})
    loss.backward()
    return loss


def chosen(side, x):
    """A backward pass for some of the parameters, and then one for all."""
    loss = side.forward_of(side, x).float().square().mean()
    wanted = [p for p in side.model.parameters() if p.requires_grad][1::2]
    if wanted:
        loss.backward(inputs=wanted, retain_graph=True)
    loss.backward()
    return loss


def curved(side, x):
    """Gradients of gradients of all that trains."""
    y = side.forward_of(side, x).float()
    wanted = [p for p in [x, *side.model.parameters()] if p.requires_grad]
    found = torch.autograd.grad(y.sigmoid().sum(), wanted, create_graph=True, allow_unused=True)
    loss = y.square().mean() + sum(grad.float().square().sum() for grad in found if grad is not None and grad.requires_grad) * 0.1
    loss.backward()
    return loss


def in_pieces(side, x):
    """Backward passes of two parts of an output."""
    y = torch.sigmoid(side.forward_of(side, x).float())
    first, second = y.flatten().chunk(2)
    first.square().sum().backward(retain_graph=True)
    second.exp().mean().backward()
    return y.sum()


def accumulated(side, x):
    """Two forward passes before two backward passes, the second first."""
    first = side.forward_of(side, x).float().square().mean()
    second = side.forward_of(side, x.detach() * 0.5).float().mean()
    second.backward()
    first.backward()
    return first + second


def together(side, x):
    """Two forward passes before one backward pass."""
    loss = side.forward_of(side, x).float().square().mean() + side.forward_of(side, x.detach().flip(0)).float().mean()
    loss.backward()
    return loss


def dropped(side, x):
    """A graph that no backward pass reads, behind which another step comes."""
    side.kept = [side.forward_of(side, x)]
    return plain_loss(side, x)


def behind(side, x):
    """A backward pass of an earlier graph, when the next forward pass has ended."""
    y = side.forward_of(side, x).float().square().mean()
    before, side.kept = side.kept, [y]
    for one in before:
        if one.dim() == 0:
            one.backward()
    return y


def read_on(side, x):
    """Readers behind `detach`, and the output written in place."""
    y = side.forward_of(side, x)
    side.seen["read"] = y.detach().exp().sum()
    loss = y.float().square().mean()
    loss.backward()
    with torch.no_grad():
        y.add_(1.0)
    return loss


def written_between(side, x):
    """Something is written between the passes."""
    loss = side.forward_of(side, x).float().square().mean()
    values = [*side.model.parameters(), *(b for b in side.model.buffers() if b.is_floating_point())]
    with torch.no_grad():
        values[side.model.clock.step * 7 % len(values)].add_(0.05)
    loss.backward()
    return loss


def cast_forward(side, x):
    with torch.autocast("cpu", torch.bfloat16):
        return side.model(x)


def twice_cast(side, x):
    with torch.autocast("cpu", torch.bfloat16):
        return side.model(x) + side.model(x * 0.5)


def broken_forward(side, x):
    """A forward pass that raises in the middle, and then another."""
    place = side.parts(side.model.clock.step * 31)

    def stop(module, args):
        raise Lost

    handle = place.register_forward_pre_hook(stop)
    with contextlib.suppress(Lost):
        side.model(x)
    handle.remove()
    return side.model(x)


def with_loss(loss, rule=lambda since: since >= 0):
    def act(side, since, number):
        if rule(since) if number % 2 else since == 0:
            side.loss_of = loss

    return act


def with_forward(forward):
    def act(side, since, number):
        if since >= 0 if number % 2 else since % 2 == 0:
            side.forward_of = forward

    return act


def freeze(side, since, number):
    if since in (0, 2):
        for place, parameter in enumerate(side.model.parameters()):
            if (number >> place % 16) & 1:
                parameter.requires_grad_(since == 2)


def thaw(side, since, number):
    """Other parameters train in each step."""
    if since >= 0:
        for place, parameter in enumerate(side.model.parameters()):
            parameter.requires_grad_((number >> (place + since) % 17) & 1 > 0)


def evaluate(side, since, number):
    if since in (0, 2):
        (side.model if number % 5 == 0 else side.parts(number)).train(since == 2)


def overwrite(side, since, number):
    """Parameters written through `.data`, and in place, between the steps."""
    if since >= 0:
        parameters = list(side.model.parameters())
        parameters[(number + since) % len(parameters)].data.mul_(1.1)
        with torch.no_grad():
            parameters[(number + since + 1) % len(parameters)].add_(0.01)


def replace(side, since, number):
    """A parameter or a buffer replaced between the steps."""
    if since in (0, 1):
        owners = [module for module in side.model.modules() if module._parameters or module._buffers]
        module = owners[number % len(owners)]
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = nn.Parameter(value.detach() * 0.9, requires_grad=bool(number & 2))
        for name, value in module._buffers.items():
            if value is not None and value.is_floating_point():
                module._buffers[name] = value * 1.1


def hooked_output(side, since, number):
    """A forward hook of the program, whose number changes."""
    if since == 0:
        clock = side.model.clock
        side.parts(number).register_forward_hook(lambda module, args, out: out * (1 + 0.1 * clock.step) if isinstance(out, torch.Tensor) else None)


def hooked_gradient(side, since, number):
    if since == 0:
        module = side.parts(number)
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda grad: grad * 0.5)


def steps_in_hooks(side, since, number):
    """An optimizer that steps in backward hooks."""
    if since == 0 and not side.steps_itself:
        side.steps_itself = True
        for parameter in side.model.parameters():
            if parameter.requires_grad:
                own = torch.optim.SGD([parameter], lr=1e-2, momentum=0.5)

                def update(parameter, own=own):
                    own.step()
                    own.zero_grad()

                parameter.register_post_accumulate_grad_hook(update)


def tries(side, since, number):
    """An evaluation between the steps."""
    if since >= 0:
        side.model.train(bool(number % 2))
        with torch.no_grad():
            side.seen["tried"] = side.model(torch.ones(2, 3, side.program.size, side.program.size))
        side.model.train()


def nothing(side, since, number):
    """An input's form: see `input`."""


ACTIONS = {
    "retained": with_loss(retained), "penalized": with_loss(penalized), "partly": with_loss(partly), "in_pieces": with_loss(in_pieces),
    "accumulated": with_loss(accumulated), "together": with_loss(together), "dropped": with_loss(dropped), "behind": with_loss(behind),
    "read_on": with_loss(read_on), "written_between": with_loss(written_between), "cast": with_forward(cast_forward),
    "twice_cast": with_forward(twice_cast), "broken": with_forward(broken_forward), "freeze": freeze, "evaluate": evaluate,
    "overwrite": overwrite, "replace": replace, "hooked_output": hooked_output, "hooked_gradient": hooked_gradient,
    "chosen": with_loss(chosen), "curved": with_loss(curved), "thaw": thaw, "steps_in_hooks": steps_in_hooks, "tries": tries, "shape": nothing,
}  # fmt: skip
