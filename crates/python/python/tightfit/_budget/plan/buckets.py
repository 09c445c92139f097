"""Memory of DistributedDataParallel in addition to the model: a copy of all gradients, in buckets."""

from __future__ import annotations

import torch
from torch import distributed, nn

from ..record.builder import GRANULE

__all__ = ["bucket_bytes"]

# The default of DistributedDataParallel's `bucket_cap_mb`.
_CAP = 25 << 20


def bucket_bytes(model: nn.Module, device: torch.device) -> int:
    """Bytes of the buckets in which gradients are averaged over the ranks; 0 without a process group.

    They have the sizes of DistributedDataParallel's defaults: with ``gradient_as_bucket_view``, gradients lie in them and take no more.
    """
    if not distributed.is_available() or not distributed.is_initialized():
        return 0
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return 0
    # They fill in the order in which the backward pass makes gradients, about the reverse of the parameters'.
    parameters.reverse()
    buckets, _ = distributed._compute_bucket_assignment_by_size(parameters, [distributed._DEFAULT_FIRST_BUCKET_BYTES, _CAP])
    granule = GRANULE.get(device.type, 1)
    sizes = (sum(parameters[index].numel() * parameters[index].itemsize for index in bucket) for bucket in buckets)
    return sum(-(-size // granule) * granule for size in sizes)
