"""Models of PyTorch in the memory that there is, and uneven mini-batches.

Training within a budget::

    model = tightfit.torch.fit(model, budget="8GiB", optimizer=optimizer)         # or "60%" of what it needs
    plan = tightfit.torch.plan(model, x, budget="60%", optimizer=optimizer)       # asks, and runs nothing; plan.sweep(), plan.html(..)
    tightfit.torch.largest_batch(model, make_inputs, budget="8GiB")
    with tightfit.torch.budget("8GiB", model): ..                                 # several models and their losses
    logger.log(tightfit.torch.stats(model))

Uneven mini-batches under PyTorch's DistributedDataParallel, with the same result as on one device: each rank gets its own number of samples; the gradient is the mean over the whole mini-batch, as if one device had
processed all of it::

    rank   samples   mean over its samples   weighted by world * n / N    DDP takes the mean over ranks
    0      12        g0                      g0 * 3 * 12 / 32
    1      12        g1                      g1 * 3 * 12 / 32             (12 g0 + 12 g1 + 8 g2) / 32
    2       8        g2                      g2 * 3 *  8 / 32

The gradient is weighted where it enters the model, at the outputs, so the loss that a program prints is unchanged.
Weighting later, in DDP's communication hook, would be too late for batch norm over ranks, which sums the gradients of all
ranks during the backward pass. The hook also stays free for compression.

Use::

    torchrun --nproc-per-node 3 train.py          # or srun: see init_process_group

    import tightfit, tightfit.torch as tt
    tt.init_process_group()
    batches = tightfit.best_batch_size(32, names, network="resnet18", cache="cache.db")
    sampler = tt.UnevenBatchSampler(len(data), batches)
    model = tt.distribute(tt.sync_batch_norm(model), batches)
    for x, y in DataLoader(data, batch_sampler=sampler):
        loss(model(x), y).backward()              # tt.backward if a rank may have 0 samples

Plain BatchNorm computes its statistics from each rank's own samples, so its result differs from the result on one device; :func:`distribute` warns
about this.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map

from ._budget.api import Budget, LargestBatch, Plan, Sweep, budget, fit, largest_batch, plan, stats, unfit
from ._export import network
from .errors import BadInput
from .names import name_layers


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Budget",
    "LargestBatch",
    "Plan",
    "Sweep",
    "SyncBatchNorm",
    "UnevenBatchSampler",
    "backward",
    "budget",
    "distribute",
    "fit",
    "init_process_group",
    "largest_batch",
    "name_layers",
    "network",
    "plan",
    "stats",
    "sync_batch_norm",
    "unfit",
]


def init_process_group(**options: Any) -> int:
    """Joins the processes that torchrun or SLURM started, with NCCL if there are GPUs, otherwise gloo.

    Reads torchrun's ``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``; under srun alone, SLURM's ``SLURM_PROCID``,
    ``SLURM_NTASKS``, ``SLURM_LOCALID`` are used instead, and with several hosts ``MASTER_ADDR`` must name the first one.
    Makes the rank's GPU the current device.

    Parameters
    ----------
    **options
        Passed to ``torch.distributed.init_process_group``; ``backend`` overrides the choice.

    Returns
    -------
    int
        The rank on this host.

    Raises
    ------
    BadInput
        If neither torchrun nor SLURM started this process.
    """
    slurm = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    for name, of_slurm in slurm.items():
        if name not in os.environ and of_slurm in os.environ:
            os.environ[name] = os.environ[of_slurm]
    if any(name not in os.environ for name in slurm):
        raise BadInput("start with torchrun or srun: RANK, WORLD_SIZE and LOCAL_RANK are not set")
    if "MASTER_ADDR" not in os.environ:
        if int(os.environ.get("SLURM_NNODES", "1")) > 1:
            raise BadInput("several hosts: set MASTER_ADDR to the first, as `scontrol show hostnames | head -1` names it")
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    if "MASTER_PORT" not in os.environ:
        # Jobs that share a host get different ports; every rank of a job gets the same one.
        os.environ["MASTER_PORT"] = str(20000 + int(os.environ.get("SLURM_JOB_ID", "0")) % 20000)
    local_rank = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        # If the launcher shows each rank only its own GPU, that GPU is number 0 for every rank.
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    dist.init_process_group(**{"backend": "nccl" if on_gpu else "gloo", **options})
    return local_rank


class UnevenBatchSampler:
    """Yields ``batches[rank]`` samples of every mini-batch on each rank. For ``DataLoader(batch_sampler=..)``.

    Every rank shuffles in the same way, so together the mini-batches equal one device's with the same seed. A rank with 0 samples gets an empty list
    for every mini-batch, so that it takes as many steps as the others; its input is then an empty tensor, such as ``x[:0]``. The last mini-batch is
    dropped if it is incomplete.

    Parameters
    ----------
    samples
        Number of samples in the data set.
    batches
        Samples of each rank in every mini-batch.
    rank
        Rank of this process; ``None`` asks the process group.
    shuffle, seed
        Whether to shuffle each epoch, and the seed.
    """

    def __init__(
        self, samples: int, batches: Sequence[int], rank: int | None = None, *, shuffle: bool = True, seed: int = 0
    ) -> None:
        _check_batches(batches, None)
        self.samples = samples
        self.batches = list(batches)
        self.rank = dist.get_rank() if rank is None else rank
        if not 0 <= self.rank < len(self.batches):
            raise BadInput(f"rank {self.rank} of {len(self.batches)} batches")
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0

    @property
    def rank_batch(self) -> int:
        """Samples of this rank in every mini-batch."""
        return self.batches[self.rank]

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, which determines the order; call it on every rank before iterating."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.samples // sum(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(self.samples, generator=generator).tolist()
        else:
            order = list(range(self.samples))
        whole = sum(self.batches)
        first = sum(self.batches[: self.rank])
        for step in range(len(self)):
            start = step * whole + first
            yield order[start : start + self.rank_batch]


def _check_batches(batches: Sequence[int], world: int | None) -> None:
    if any(batch < 0 for batch in batches) or sum(batches) <= 0:
        raise BadInput(f"{list(batches)}: batches must not be negative, and at least one must be positive")
    if world is not None and len(batches) != world:
        raise BadInput(f"{len(batches)} batches for {world} ranks")


def distribute(module: nn.Module, batches: Sequence[int], **options: Any) -> DistributedDataParallel:
    """Wraps a module in DistributedDataParallel, with gradients that are means over the whole uneven mini-batch.

    Parameters
    ----------
    module
        Its loss must be a mean over samples (the default of every loss in torch).
    batches
        Samples of each rank in every mini-batch.
    **options
        Passed to ``DistributedDataParallel``.

    Warns
    -----
    UserWarning
        If the module has plain BatchNorm layers: see :func:`sync_batch_norm`.

    Raises
    ------
    BadInput
        If the number of batches differs from the number of ranks.
    """
    _check_batches(batches, dist.get_world_size())
    plain = [
        name
        for name, layer in module.named_modules()
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not isinstance(layer, (SyncBatchNorm, nn.SyncBatchNorm))
    ]
    if plain and module.training:
        warnings.warn(
            f"{len(plain)} BatchNorm layers ({plain[0]}, ..) compute their statistics from each rank's own samples, so the "
            "result differs from that of one device; tightfit.torch.sync_batch_norm(module) computes them over all ranks",
            stacklevel=2,
        )
    parallel = DistributedDataParallel(module, **options)
    weight = dist.get_world_size() * batches[dist.get_rank()] / sum(batches)

    def weigh(_module: nn.Module, _inputs: Any, outputs: Any) -> Any:
        return tree_map(lambda out: _Weigh.apply(out, weight) if isinstance(out, Tensor) else out, outputs)

    parallel.register_forward_hook(weigh)
    return parallel


class _Weigh(torch.autograd.Function):
    """The identity, with a weighted gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        return dy * ctx.weight, None


def backward(module: nn.Module, inputs: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Runs forward and backward on one rank's samples; a rank without samples contributes zeros to every collective.

    Parameters
    ----------
    module
        The result of :func:`distribute`.
    inputs
        The rank's samples, ``(n, ..)``; n may be 0.
    loss
        Maps outputs to the mean loss over the rank's samples. Not called for an empty batch, whose mean is undefined.

    Returns
    -------
    Tensor
        The rank's mean loss, detached; zero for an empty batch.
    """
    outputs = module(inputs)
    if len(inputs) == 0:
        outputs.sum().backward()
        return outputs.new_zeros(())
    value = loss(outputs)
    value.backward()
    return value.detach()


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(var + epsilon) by channel, over the samples of all ranks.

    One collective forward (sums of x and x², and the count, of each rank) and one backward (sums of dy and dy · x̂).
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, epsilon: float, group: dist.ProcessGroup | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dims = [0, *range(2, x.dim())]
        channels = x.size(1)
        # Center the sums on each rank first (Chan et al. 1982): subtracting squares of large means would cancel.
        wide = x if x.dtype == torch.float64 else x.float()
        count = wide.new_tensor([x.numel() // max(channels, 1)])
        mean = wide.sum(dims) / count.clamp(min=1)
        squares = (wide - _of_channel(mean, x)).square().sum(dims)
        mine = torch.cat([count, mean, squares])
        ranks = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(ranks, mine, group=group)
        counts, means, all_squares = torch.stack(ranks).split([1, channels, channels], dim=1)
        total = counts.sum()
        mean = (counts * means).sum(0) / total
        variance = (all_squares.sum(0) + (counts * (means - mean).square()).sum(0)) / total
        inverse = (variance + epsilon).rsqrt()
        normal = (wide - _of_channel(mean, x)) * _of_channel(inverse, x)
        ctx.save_for_backward(normal, inverse, total)
        ctx.group = group
        ctx.mark_non_differentiable(mean, variance, total)
        return normal.to(x.dtype), mean, variance, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Tensor) -> tuple[Tensor, None, None]:
        normal, inverse, total = ctx.saved_tensors
        dims = [0, *range(2, dy.dim())]
        wide = dy.to(normal.dtype)
        sums = torch.cat([wide.sum(dims), (wide * normal).sum(dims)])
        dist.all_reduce(sums, group=ctx.group)
        mean_dy, mean_dy_normal = (sums / total).chunk(2)
        dx = (wide - _of_channel(mean_dy, dy) - normal * _of_channel(mean_dy_normal, dy)) * _of_channel(inverse, dy)
        return dx.to(dy.dtype), None, None


def _of_channel(values: Tensor, like: Tensor) -> Tensor:
    """Per-channel values, shaped to broadcast with ``(n, c, ..)``."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm with statistics over the samples of all ranks, weighted by their number, on any device.

    For CPUs, where torch's own ``nn.SyncBatchNorm`` does not run. Takes ``(n, c, ..)``; n may be 0 on some ranks.
    """

    process_group: dist.ProcessGroup | None = None

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2:
            raise ValueError(f"{x.dim()} dimensions, at least (n, c) are needed")

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes over all ranks in training, and by the running statistics in evaluation."""
        self._check_input_dim(x)
        if not self.training and self.track_running_stats:
            return super().forward(x)
        normal, mean, variance, total = _Normalize.apply(x, self.eps, self.process_group)
        if self.training and self.track_running_stats:
            self._remember(mean, variance, total)
        if self.weight is not None:
            normal = normal * _of_channel(self.weight, x)
        return normal if self.bias is None else normal + _of_channel(self.bias, x)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, total: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = variance * (total / (total - 1).clamp(min=1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def sync_batch_norm(module: nn.Module, process_group: dist.ProcessGroup | None = None) -> nn.Module:
    """Replaces every BatchNorm by one over all ranks; keeps parameters and running statistics.

    On GPUs, uses torch's own ``nn.SyncBatchNorm``, which weights statistics by the samples of each rank; on CPUs, where that
    does not run, uses :class:`SyncBatchNorm`. Move the module to its device first.

    Parameters
    ----------
    module
        Changed in place, unless the module itself is a BatchNorm.
    process_group
        The ranks; all of them by default.
    """
    if any(parameter.is_cuda for parameter in module.parameters()):
        return nn.SyncBatchNorm.convert_sync_batchnorm(module, process_group)
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, SyncBatchNorm):
        made = SyncBatchNorm(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
        made.weight, made.bias = module.weight, module.bias
        for name, buffer in module.named_buffers():
            setattr(made, name, buffer)
        made.process_group = process_group
        return made.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, sync_batch_norm(child, process_group))
    return module
