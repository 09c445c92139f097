"""A step that is recorded for real has plain's bits: a dispatch mode changes what a few of PyTorch's operations compute, and these run outside it."""

import contextlib
import copy
import warnings

import pytest
import tightfit.torch as tt
import torch
from fit_support import equal
from tightfit._budget.record.modes import NODES
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class Otherwise(nn.Module):
    """Cannot be rehearsed, since it asks for a value; each part computes otherwise under a mode."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 17)
        self.fill = nn.Parameter(torch.ones(()))
        self.register_buffer("weight", torch.rand(17))

    def forward(self, x, targets):
        h = self.first(x)
        if float(h.sum()) > 1e9:
            return h
        h = h.cumprod(-1) + (1 + 0.01 * h).prod(-1, keepdim=True) + torch.sigmoid(h).masked_fill(h > 0.5, self.fill)
        return F.cross_entropy(self.last(torch.tanh(h)), targets, self.weight, label_smoothing=0.1)


def test_a_step_that_is_recorded_for_real_has_the_same_bits():
    torch.manual_seed(0)
    model = Otherwise()
    fitted = tt.fit(copy.deepcopy(model), "200%", optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(4):
        x, targets = torch.randn(300, 32), torch.randint(0, 17, (300,))
        targets[torch.rand(300) < 0.3] = -100
        sides = []
        for one in (model, fitted):
            one.zero_grad()
            one(x, targets).backward()
            sides.append([parameter.grad for parameter in one.parameters()])
        assert equal(*sides), step


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def bits(tensor):
    flat = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else flat


def results(operation, sample, mode):
    """The outputs of an operation and its gradients."""
    torch.manual_seed(0)
    first, args, kwargs = tree_map(
        lambda value: value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value,
        (sample.input, sample.args, sample.kwargs),
    )
    leaves = [value for value in tree_flatten((first, args, kwargs))[0] if isinstance(value, torch.Tensor) and value.requires_grad]
    with mode():
        outputs = [value for value in tree_flatten(operation(first, *args, **kwargs))[0] if isinstance(value, torch.Tensor)]
        roots = [value for value in outputs if value.requires_grad]
        found = torch.autograd.grad(roots, leaves, [torch.randn_like(root) for root in roots], allow_unused=True) if roots and leaves else ()
    return [bits(value) for value in (*outputs, *found) if value is not None and value.layout is torch.strided], {name for root in roots for name in nodes(root)}


def nodes(root):
    found, waiting = set(), [root.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node.name().rstrip("0123456789") for node in found}


@pytest.mark.long
def test_no_other_operation_computes_otherwise_under_a_mode():
    """All operations that PyTorch's own tests know, on their samples."""
    common = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    otherwise, compared = [], 0
    for operation in common.op_db:
        # Its elements are what memory held.
        if torch.float32 not in operation.dtypes or operation.name.startswith("empty") or operation.name.startswith("new_empty"):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = list(operation.sample_inputs("cpu", torch.float32, requires_grad=operation.supports_autograd))
            for sample in samples[:20]:
                # Samples that need a GPU, or a library that is missing.
                with contextlib.suppress(Exception):
                    plain, twice = (results(operation, sample, contextlib.nullcontext) for _ in range(2))
                    if not equal(plain[0], twice[0]) or plain[1] & NODES:
                        continue
                    compared += 1
                    if not equal(plain[0], results(operation, sample, Nothing)[0]):
                        otherwise.append((operation.name, sample.args, sample.kwargs))
    assert compared > 3000
    assert not otherwise
