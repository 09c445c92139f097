"""Train in the memory you have, as fast as that memory allows.

Models of PyTorch are trained within a budget by :mod:`tightfit.torch` (``fit``, ``plan``, ``largest_batch``), or unmodified by the command
``tightfit run --budget 8GiB -- python train.py``. This module has the parts without PyTorch: profiles as data, mu-cuDNN's optimizers (WR, WD), plans of steps under a budget (vDNN), and uneven mini-batches for mixed
GPUs::

    import tightfit

    profile = tightfit.Profile.open("profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz")
    best = tightfit.optimize("alexnet-1col", 256, workspace="64MiB", profile=profile)
    print(best.speedup, best.kernels[3].configuration)  # 8 x 32 legacy:winograd-nonfused

    tightfit.plan("vgg16", 64, budget="5GiB", assume=True).html("plan.html")
    tightfit.measure("vgg16", "conv3_1", batch=4, backend="cpu").frame()
    tightfit.verify("lenet", 16, workspace="1MiB").passed
    tightfit.best_batch_size(256, ["K80", "K80", "K20Xm"], network="resnet18", cache="cache.db")

Commands that start programs or train for long are not in Python, such as ``tightfit run -- python train.py`` and ``tightfit train vgg16 --batch 64
--data DIR``. ``python -m tightfit`` is the same command.

Importing this package never imports torch, numpy, pandas or matplotlib; ``tightfit.torch`` does.
"""

from typing import Any

from .errors import BackendError, BadInput, BudgetTooSmall, DoesNotFit, Error, FileError, NotPreloaded, NotProfiled
from ._measure import Measured, Skipped, measure
from ._mixed import best_batch_size, record_steps, split, split_times
from ._networks import BuiltInNetwork, Network, NetworkLayer, Networks, network, networks
from ._optimize import front, optimize
from ._plan import plan
from ._profile import Profile, default_cache, merge
from ._verify import verify
from ._sweep import Sweep
from .limits import set_limits
from .planned import Attempt, Plan, PlannedLayer, PlannedTensor
from .results import (
    Configuration,
    DeviceShare,
    Front,
    Kernel,
    MicroBatch,
    MixedSplit,
    Optimized,
    Point,
    SideBySide,
    Undivided,
    Verification,
    Verified,
    VerifiedKernel,
)

__all__ = [
    "Attempt",
    "BackendError",
    "BadInput",
    "BudgetTooSmall",
    "BuiltInNetwork",
    "Configuration",
    "DeviceShare",
    "DoesNotFit",
    "Error",
    "FileError",
    "Front",
    "Kernel",
    "Measured",
    "MicroBatch",
    "MixedSplit",
    "Network",
    "NetworkLayer",
    "Networks",
    "NotPreloaded",
    "NotProfiled",
    "Optimized",
    "Plan",
    "PlannedLayer",
    "PlannedTensor",
    "Point",
    "Profile",
    "SideBySide",
    "Skipped",
    "Sweep",
    "Undivided",
    "Verification",
    "Verified",
    "VerifiedKernel",
    "best_batch_size",
    "default_cache",
    "front",
    "measure",
    "merge",
    "network",
    "networks",
    "optimize",
    "plan",
    "record_steps",
    "set_limits",
    "split",
    "split_times",
    "verify",
]


def __getattr__(name: str) -> Any:
    # Reading the installed package's metadata takes longer than importing the package.
    if name == "__version__":
        from importlib.metadata import version

        return version("tightfit")
    # `import tightfit` alone imports no torch; these attributes do.
    if name == "torch":
        from importlib import import_module

        return import_module("tightfit.torch")
    there = "; it is in tightfit.torch" if name in ("budget", "fit", "largest_batch", "stats", "unfit") else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{there}")
