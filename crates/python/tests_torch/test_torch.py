"""Uneven data parallelism against one device, on CPU processes with gloo, in fp64.

Every case spawns its ranks, takes a step (or 50) and compares with one process that has the whole mini-batch.
"""

import copy
import os
import socket
import warnings

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

import tightfit
import tightfit.torch as tt

# Sums over the same numbers in another order: some hundred roundings of 1.1e-16 in numbers of size 1.
ROUNDING = 1e-12
BATCHES = [[4, 4], [3, 5], [7, 1], [8, 0], [0, 8], [6, 5, 2], [5, 0, 2], [0, 0, 3]]


def plain_network():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(180, 7))


def normed_network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), nn.ReLU(),
        nn.Flatten(), nn.Linear(180, 6), nn.BatchNorm1d(6), nn.Linear(6, 7),
    )  # fmt: skip


def data(count):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(count, 3, 8, 8, generator=generator, dtype=torch.float64) * 3 + 5
    return x, torch.randint(7, (count,), generator=generator)


def network(normed):
    torch.manual_seed(1)
    return (normed_network() if normed else plain_network()).double()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def train(model, parts, backward, steps):
    """Losses weighted by samples, gradients after the first step, and parameters and statistics after the last."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, first = [], None
    for step in range(steps):
        x, y = parts[step % len(parts)]
        optimizer.zero_grad()
        losses.append(backward(model, x, y) * len(x))
        if first is None:
            first = [parameter.grad.clone() for parameter in model.parameters()]
        optimizer.step()
    return torch.stack(losses), first, [value.clone() for value in model.state_dict().values()]


def mini_batches(size, steps):
    x, y = data(size * min(steps, 4))
    return list(zip(x.split(size), y.split(size)))


def one_rank(rank, batches, normed, steps, port, out):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(len(batches)), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    tt.init_process_group(backend="gloo")
    result = train_part(rank, batches, normed, steps)
    if rank == batches.index(max(batches)):
        torch.save(result, out)
    leave()


def train_part(rank, batches, normed, steps):
    start = sum(batches[:rank])
    part = slice(start, start + batches[rank])
    parts = [(x[part], y[part]) for x, y in mini_batches(sum(batches), steps)]
    model = network(normed)
    model = tt.distribute(tt.sync_batch_norm(model) if normed else model, batches)
    loss = nn.functional.cross_entropy
    losses, first, last = train(model, parts, lambda m, x, y: tt.backward(m, x, lambda out: loss(out, y)), steps)
    dist.all_reduce(losses)
    return losses / sum(batches), first, last


def leave():
    """Ends together: a rank that is still talking to one that has gone would abort."""
    dist.barrier()
    dist.destroy_process_group()


def alone(batches, normed, steps):
    def backward(model, x, y):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    losses, first, last = train(network(normed), mini_batches(sum(batches), steps), backward, steps)
    return losses / sum(batches), first, last


def together(batches, normed, steps, folder):
    out = folder / "result.pt"
    mp.spawn(one_rank, (batches, normed, steps, free_port(), out), nprocs=len(batches))
    return torch.load(out)


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "sync-batch-norm"])
@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_one_step_is_that_of_one_device(batches, normed, tmp_path):
    expected, found = alone(batches, normed, 1), together(batches, normed, 1, tmp_path)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert (ours - theirs).abs().max() <= ROUNDING * max(1.0, float(theirs.abs().max())), batches
    for ours, theirs in zip(found[2], expected[2], strict=True):
        assert torch.allclose(ours.double(), theirs.double(), rtol=ROUNDING, atol=ROUNDING), batches


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "sync-batch-norm"])
def test_fifty_steps_have_the_loss_curve_of_one_device(normed, tmp_path):
    batches = [7, 3, 1]
    expected, found = alone(batches, normed, 50)[0], together(batches, normed, 50, tmp_path)[0]
    # Differences of rounding grow with each step; after 50 they are still far below what a plot shows.
    assert torch.allclose(found, expected, rtol=1e-7), (found - expected).abs().max()
    assert expected.min() < expected[0] - 0.01, "a flat curve compares nothing"


def unweighted_rank(rank, batches, port, out):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(len(batches)), LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo")
    x, y = data(8)
    part = slice(sum(batches[:rank]), sum(batches[: rank + 1]))
    model = nn.parallel.DistributedDataParallel(network(False))
    nn.functional.cross_entropy(model(x[part]), y[part]).backward()
    if rank == 0:
        torch.save([parameter.grad for parameter in model.parameters()], out)
    leave()


def test_without_weights_the_gradient_is_another(tmp_path):
    """The comparison above can fail: plain DDP takes the mean over ranks, whatever their samples."""
    out = tmp_path / "plain.pt"
    mp.spawn(unweighted_rank, ([7, 1], free_port(), out), nprocs=2)
    expected = alone([7, 1], False, 1)[1]
    assert any((ours - theirs).abs().max() > 1e-3 for ours, theirs in zip(torch.load(out), expected))


def lone_process(rank, port, folder):
    os.environ.update(SLURM_PROCID="0", SLURM_NTASKS="1", SLURM_LOCALID="0", SLURM_JOB_ID="7")
    os.environ["MASTER_PORT"] = str(port)
    assert tt.init_process_group(backend="gloo") == 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tt.distribute(network(True), [4])
    assert any("sync_batch_norm" in str(warning.message) for warning in seen), seen
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tt.distribute(tt.sync_batch_norm(network(True)), [4])
        tt.distribute(network(False), [4])
    with pytest.raises(tightfit.BadInput, match="2 batches for 1 ranks"):
        tt.distribute(network(False), [4, 4])
    (folder / "done").touch()
    dist.destroy_process_group()


def test_slurm_is_read_and_plain_batch_norm_is_warned_of(tmp_path):
    mp.spawn(lone_process, (free_port(), tmp_path), nprocs=1)
    assert (tmp_path / "done").exists()


def test_neither_torchrun_nor_slurm_is_an_error(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(tightfit.BadInput, match="torchrun or srun"):
        tt.init_process_group()


def test_batch_norm_of_one_process_is_torchs_own(tmp_path):
    """Outputs, input gradients and running statistics, in training and evaluation, with and without momentum."""
    mp.spawn(compare_batch_norm, (free_port(), tmp_path), nprocs=1)
    assert (tmp_path / "done").exists()


def compare_batch_norm(rank, port, folder):
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    tt.init_process_group(backend="gloo")
    x = data(6)[0]
    for options in [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}]:
        theirs = nn.BatchNorm2d(3, dtype=torch.float64, **options)
        ours = tt.sync_batch_norm(copy.deepcopy(theirs))
        assert isinstance(ours, tt.SyncBatchNorm)
        for training in (True, True, False):
            gradients = []
            for layer in (theirs, ours):
                layer.train(training)
                part = x.clone().requires_grad_()
                out = layer(part)
                (out * out.detach().sin()).sum().backward()
                gradients.append((out.detach(), part.grad))
            for mine, other in zip(*gradients):
                assert torch.allclose(mine, other, rtol=1e-10, atol=1e-10), options
        for mine, other in zip(theirs.buffers(), ours.buffers(), strict=True):
            assert torch.allclose(mine.double(), other.double(), rtol=1e-12), options
    (folder / "done").touch()
    dist.destroy_process_group()


def test_samplers_deal_every_mini_batch_once():
    batches, samples = [3, 0, 5], 43
    ranks = [tt.UnevenBatchSampler(samples, batches, rank) for rank in range(3)]
    for epoch in range(2):
        for sampler in ranks:
            sampler.set_epoch(epoch)
        dealt = [list(sampler) for sampler in ranks]
        assert [len(steps) for steps in dealt] == [5, 5, 5] == [len(sampler) for sampler in ranks]
        assert all([len(part) for part in step] == batches for step in zip(*dealt))
        seen = [index for step in zip(*dealt) for part in step for index in part]
        assert len(set(seen)) == 40 and set(seen) <= set(range(samples))
    ranks[0].set_epoch(0)
    assert list(ranks[0]) != dealt[0]
    in_order = tt.UnevenBatchSampler(8, batches, 2, shuffle=False)
    assert list(in_order) == [[3, 4, 5, 6, 7]]
    with pytest.raises(tightfit.BadInput):
        tt.UnevenBatchSampler(8, [0, 0], 0)


def test_importing_tightfit_imports_no_torch():
    import subprocess
    import sys

    heavy = "{'torch', 'numpy', 'pandas', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", f"import sys, tightfit; assert not {heavy}"], check=True)
