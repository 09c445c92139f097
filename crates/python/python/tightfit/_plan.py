"""Plans of a training or inference step under a memory budget."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from . import _native
from ._device import samples, words
from ._networks import NetworkLike, name_of
from ._profile import PathLike, Profile, Size, size
from ._share import percent, share_of
from ._table import text
from .errors import BadInput, BudgetTooSmall
from .planned import Plan, read_plan

SOLVERS = ("sgd", "adamw")
# As for the command.
_BATCH = 32


def plan(
    network: NetworkLike | None = None,
    batch: int | None = None,
    *,
    budget: Size | float = None,
    policy: str = "optimal",
    host_budget: Size = None,
    algorithms: str | None = None,
    divide: str = "both",
    sizes: str = "fit",
    types: str = "f32",
    costs: str | None = None,
    inference: bool | None = None,
    solver: str = "sgd",
    momentum: float = 0.9,
    freeze: str | Iterable[str] = (),
    plan_time: float | None = None,
    assume: bool | None = None,
    backend: str = "auto",
    profile: Profile | PathLike | Iterable[PathLike] | None = None,
    cache: PathLike | None = None,
    device: int | str | None = None,
    threads: int | None = None,
    cudnn: PathLike | None = None,
    deterministic: bool = False,
    exact_class: bool = False,
    step: PathLike | None = None,
) -> Plan:
    """Plans one step of a network within a memory budget: tensors stay, are offloaded, or are computed again.

    Computes the plan that ``tightfit plan`` computes. Other Python threads keep running, and Ctrl-C interrupts it.

    Parameters
    ----------
    network
        A built-in network (see :func:`networks`), an ONNX model (``.onnx``), a network file (``.json``), or what
        :func:`network` returned.
    batch
        Mini-batch size, in samples; 32 by default.
    budget
        Device memory for weights, feature maps, gradients and workspaces together; bytes, strings such as ``"8GiB"``, or a
        share of plain, the step without a plan, such as ``"60%"`` or ``0.6``. By default the free memory of the measured
        device, the memory of the card that ``costs`` names, or unlimited.
    policy
        ``"optimal"`` (the least time), ``"overlap"`` (offloads as few maps as the budget requires), ``"baseline"`` (keeps
        all), or a policy of the vDNN paper: ``"vdnn-all"``, ``"vdnn-conv"``, ``"vdnn-dynamic"``.
    host_budget
        Pinned host memory for offloaded tensors.
    algorithms
        ``"memory"`` (least workspace), ``"performance"`` (fastest) or ``"fit"`` (fastest that fits, the default).
    divide, sizes
        Along what to divide convolutions (``"batch"``, ``"space"``, ``"both"``, ``"off"``), and into which micro-batches
        (``"undivided"``, ``"power-of-two"``, ``"all"``, ``"fit"``).
    types
        ``"f32"``, ``"tf32"``, ``"f16"``, ``"f16-f32"`` or ``"bf16"``.
    costs
        Rates of unmeasured work, and the memory of a card: ``"h200"``, ``"RTX 4090"``, ``"a100-80gb"`` and others; by default, the
        device's rates.
    inference
        Plan the forward pass only. By default, only for an ONNX model that was exported for inference.
    solver, momentum
        The solver to plan memory for: ``"sgd"`` with or without (0) momentum, or ``"adamw"``.
    freeze
        Beginnings of the names of layers that keep their parameters; one, or several.
    plan_time
        Seconds that ``"optimal"`` may search. By default it does a fixed amount of work, which gives the same plan each
        time.
    assume
        True measures nothing and assumes convolutions without workspace at the rates of ``costs``; False always measures.
        By default, a GPU is measured, and without one the times are assumed.
    backend
        The device to measure: ``"cuda"``, ``"cpu"``, ``"auto"`` (a GPU if there is one), or ``"replay"`` to answer from the cache.
    profile, cache
        Recorded measurements to use instead of a device; the file that keeps what is measured, or ``"none"`` (by default,
        the default cache).
    device, threads, cudnn
        The number of the GPU, or a part of the name of a recorded device; threads of the CPU; cuDNN's file or folder.
    deterministic, exact_class
        Use only deterministic algorithms; use only algorithms of the same numerical class as the undivided choice.
    step
        The file of a recorded step, to plan instead of a network.

    Returns
    -------
    Plan
        Sizes in bytes, times in µs.

    Raises
    ------
    BudgetTooSmall
        If no plan fits the budget; ``needed_bytes`` is the least budget under this policy.
    DoesNotFit
        If the offloaded tensors exceed the host budget.
    NotProfiled
        If a profile has too few measurements.
    BadInput
        If a name or option is unknown, or options do not go together.

    Warns
    -----
    UserWarning
        If times are assumed because no GPU was found, copies are assumed to be as fast as another device's, inference is planned because the model
        was exported for it, or measurements failed or could not be saved.

    Notes
    -----
    Source: Rhu et al. 2016. On Ctrl-C while it searches, the search ends in the background.

    Examples
    --------
    >>> found = plan("lenet", 64, budget="16MiB", policy="overlap", assume=True)
    >>> found
    <Plan lenet b64: 12.2 MiB of 16.0 MiB, 99.6 µs, overlap, assumed h200>
    >>> found.tensors[0].fate
    'kept'
    >>> print(found.sweep((1.0, 0.8)).table())
    <Sweep: lenet, plain 12.16 MiB, least 11.98 MiB, predicted for h200 (assumed)>
    <BLANKLINE>
      budget  of plain  added time        moved  recomputed  checkpoints
    12.2 MiB  100%      0.0%                0 B      0.0 ms  0.0%
    12.0 MiB  98%       6.0%          196.0 KiB      0.0 ms
     9.7 MiB  80%       does not fit
    <BLANKLINE>
    """
    if (network is None) == (step is None):
        raise BadInput("name a network, or a recorded step with step=, and not both")
    if solver not in SOLVERS:
        raise BadInput(f"solver={solver!r}: use one of {', '.join(SOLVERS)}")
    if step is not None and (batch, profile, assume) != (None, None, None):
        raise BadInput("a recorded step has its batch and its times; drop batch, profile and assume")
    if assume and (profile is not None or backend != "auto"):
        raise BadInput("assume=True measures nothing; drop it, or drop the backend and the profile")
    # A device that was asked for is measured.
    is_chosen = backend != "auto" or profile is not None
    share = share_of(budget)
    recordings, on = words(backend, profile, cache, device, threads, cudnn)
    asked = {
        "network": None if network is None else name_of(network),
        "step": step,
        "batch": _BATCH if batch is None else samples(batch),
        "budget": None if budget is None or share is not None else size(budget),
        "share": None if share is None else share.value,
        "host_budget": size(host_budget),
        "policy": policy,
        "algorithms": algorithms,
        "divide": divide,
        "sizes": sizes,
        "types": types,
        "costs": costs,
        "inference": inference,
        "adamw": solver == "adamw",
        "freeze": [freeze] if isinstance(freeze, str) else list(freeze),
        "momentum": momentum,
        "plan_time": plan_time,
        "assume": False if is_chosen else assume,
        "deterministic": deterministic,
        "exact_class": exact_class,
        "on": on,
    }
    try:
        planned = _native.plan(recordings, asked)
    except BudgetTooSmall as error:
        if share is None:
            raise
        plain = round(error.limit_bytes / share.value)
        what = f"{error}. The budget is {share} of plain's {text(plain)}; at least {percent(error.needed_bytes, plain)} is needed"
        raise BudgetTooSmall(what, error.needed_bytes, error.limit_bytes, error.least_bytes, error.layer) from None
    for note in planned.notes():
        warnings.warn(note, stacklevel=2)
    return read_plan(planned, (recordings, asked))
