"""Gaps between the blocks of PyTorch's allocator: predicted for recorded steps, and avoided."""

import gzip
import json
from pathlib import Path

import pytest
from tightfit._budget.memory.reservation import InitialReservation
from tightfit._budget.plan import reserved as predicted
from tightfit._budget.plan.decide import by_greedy
from tightfit._budget.plan.liveness import Lives
from tightfit._budget.plan.reserved import reserved, with_gaps
from tightfit._budget.plan.simulate import simulate

MEASURED = Path(__file__).parents[3] / "docs/measured"
STEPS = sorted((MEASURED / "steps").glob("*.json.gz"))
MIB = 1 << 20
PAGE = 20 * MIB


EACH = {"group": 0, "stage": "forward", "reads": [], "writes": [], "adds": [], "time_us": 1.0, "workspace_bytes": 0, "rerun": "same"}


FOLDER = Path(__file__).parent / "steps"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in FOLDER.glob("*.json.gz"))


class Recorded:
    """A step file."""

    def __init__(self, name):
        self.data = json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))
        self.lives = Lives(self.data)


def operation(name="aten.relu", **fields):
    return {**EACH, "name": name, **fields}


def step(operations, tensors):
    """A step file of one group."""
    return {
        "tightfit_step": 1, "name": "made", "batch": 1, "types": "f32", "mode": "training", "groups": [{"name": "all"}],
        "tensors": tensors, "operations": operations,
    }  # fmt: skip


def tensor(size, **fields):
    """A temporary tensor of ``size`` MiB."""
    return {"name": "block", "kind": "other", "bytes": int(size * MIB), "residence": "temporary", **fields}


def reserved_for(operations, spans, most=None, there=InitialReservation(), workspaces=None):
    """The bytes reserved for tensors of given MiB, which live from one operation to another, and for workspaces of operations."""
    data = step([operation(reads=[], writes=[]) for _ in range(operations)], [tensor(size) for _, _, size in spans])
    for number, (first, last, _) in enumerate(spans):
        data["operations"][first]["writes"].append(number)
        if last > first:
            data["operations"][last]["reads"].append(number)
    for index, sizes in (workspaces or {}).items():
        data["operations"][index]["workspaces"] = [int(size * MIB) if size > 0 else size for size in sizes]
    return reserved(Lives(data), {}, most, there)


@pytest.mark.parametrize(
    ("spans", "pages"),
    [
        # A freed block makes room for a later one.
        ([(0, 0, 20), (1, 2, 20)], 1),
        # A hole between two blocks is too short.
        ([(0, 0, 20), (0, 2, 20), (1, 2, 40)], 4),
        # Adjacent holes join.
        ([(0, 0, 20), (0, 0, 20), (0, 2, 20), (1, 2, 40)], 3),
        ([(0, 1, 20), (0, 0, 20), (0, 2, 20), (2, 2, 40)], 3),
        # The shortest hole that is long enough: the 60 find theirs afterwards.
        ([(0, 0, 60), (0, 3, 20), (0, 0, 20), (0, 3, 20), (1, 3, 20), (2, 3, 60)], 6),
        # The last hole grows, and is taken last.
        ([(0, 3, 20), (0, 0, 40), (1, 3, 20), (2, 3, 40)], 4),
        ([(0, 0, 40), (0, 3, 20), (0, 0, 20), (1, 3, 20), (2, 3, 40)], 5),
        # The rest of a page is part of it.
        ([(0, 2, 5), (1, 2, 15), (2, 2, 5)], 2),
        # The most small blocks at any time.
        ([(0, 0, 1), (1, 2, 0.5), (2, 2, 0.25)], 1 / 20),
    ],
)
def test_reserved_pages(spans, pages):
    assert reserved_for(5, spans) == (pages * PAGE, None)


def test_where_it_is_too_much():
    spans = [(0, 0, 20), (0, 2, 20), (1, 2, 40)]
    assert [reserved_for(4, spans, most * PAGE).at for most in (4, 3, 1)] == [None, 1, 0]


@pytest.mark.parametrize(
    ("workspaces", "pages"),
    [
        # The workspace is freed after the operation, and a later block fits into its hole.
        ([60, -1], 5),
        # Two that follow each other take the same block, two at once do not.
        ([60, -1, 60, -2], 5),
        ([60, 60, -1, -2], 8),
        # The result is allocated before the workspace, unless its place is given. Then little has room after it.
        ([20, 0, -1], 5),
        ([0, 20, -1], 4),
        # Small ones are elsewhere.
        ([1, -1], 4.05),
    ],
)
def test_workspaces_of_operations(workspaces, pages):
    spans = [(0, 3, 20), (1, 3, 20), (2, 2, 40)]
    assert reserved_for(4, spans, workspaces={1: workspaces}).bytes == pages * PAGE


@pytest.mark.parametrize(
    ("until", "size", "changed", "pages"),
    [
        # The input, a kept tensor, and the rerun's two blocks, of which one is freed.
        (3, 20, False, 4),
        (3, 60, False, 5),
        # The other block stays as long as it is needed, and the hole next to it is too short.
        (4, 20, False, 4),
        (4, 40, False, 6),
        # A rerun in place takes one.
        (3, 20, True, 3),
        (4, 40, True, 5),
    ],
)
def test_reserved_pages_of_a_rerun(until, size, changed, pages):
    tensors = [tensor(20, residence="resident"), *(tensor(20) for _ in range(3)), tensor(size)]
    tensors[2]["in_place_of"] = 1 if changed else None
    operations = [
        operation(reads=[0], writes=[1]),
        operation(reads=[1], writes=[2]),
        operation(writes=[3]),
        operation(stage="backward", reads=[2]),
        operation(stage="backward", reads=[2, 3] if until == 4 else [3], writes=[4]),
    ]
    rerun = {
        "tensor": 2, "decision": "recompute", "offload_after": None, "release_after": 1, "prefetch_before": None,
        "rebuilt": [{"before": 3, "operations": [0, 1]}],
    }  # fmt: skip
    assert reserved(Lives(step(operations, tensors)), {2: rerun}).bytes == pages * PAGE


def test_blocks_reserved_before_the_step():
    there = InitialReservation(7 * PAGE, (2 * PAGE, PAGE))
    resident = [(0, 2, 40), (0, 2, 40)]
    # Two of the four pages that are taken are the first, the others the second. A third one is not there yet.
    assert reserved_for(3, resident, there=there).bytes == 7 * PAGE
    assert reserved_for(3, [*resident, (0, 2, 20)], there=there).bytes == 7 * PAGE
    assert reserved_for(3, [*resident, (1, 1, 40), (1, 1, 20)], there=there).bytes == 7 * PAGE
    # Free blocks do not join, with each other or with the segment that grows.
    assert reserved_for(3, [*resident, (1, 1, 60)], there=there).bytes == 10 * PAGE


@pytest.mark.parametrize("path", STEPS, ids=lambda path: path.name.split(".")[0])
def test_reserved_bytes_of_plain_steps_on_a_gpu_are_predicted(path):
    """Within 2%, on the whole GPU in bf16; `docs/measured/budget.jsonl` has it."""
    lives = Lives(json.loads(gzip.decompress(path.read_bytes())))
    case = path.name.split(".")[0].replace("-", ":")
    plain, command = None, ""
    for line in map(json.loads, (MEASURED / "budget.jsonl").read_text().splitlines()):
        command = line.get("about", {}).get("command", command)
        is_whole = "THIRD" not in command and "tf32" not in command
        if is_whole and line.get("case") == case and line.get("variant") == "plain again":
            plain = line
    assert reserved(lives, {}).bytes == pytest.approx(plain["reserved_bytes"], rel=0.02)


@pytest.fixture
def fine(monkeypatch):
    """Pages and blocks to match the small steps of the tests."""
    monkeypatch.setattr(predicted, "SIZES", (512, 4 << 10))
    monkeypatch.setattr(predicted, "SECONDS", (0.3, 0.3))


def searched(found, budget, decided, most):
    return with_gaps(found.data, budget, found.lives, decided, most, hurried=True)


def decided_for(name):
    """A step, a budget and decisions for it."""
    found = Recorded(name)
    budget = simulate(found.lives, {}).peak * 8 // 10
    decided = by_greedy(found.lives, budget)
    assert decided.decisions and decided.fits
    return found, budget, decided


@pytest.mark.parametrize("name", NAMES)
def test_no_less_is_reserved_than_is_there(name, fine):
    found, _, decided = decided_for(name)
    for decisions in (decided.decisions, {}):
        there = reserved(found.lives, decisions)
        assert there.bytes >= max(simulate(found.lives, decisions).live) and there == reserved(found.lives, decisions, there.bytes)
        assert reserved(found.lives, decisions, there.bytes - 1).at is not None


@pytest.mark.parametrize("name", ["unet", "resnet"])
def test_decisions_are_found_for_which_there_is_room(name, fine):
    found, budget, decided = decided_for(name)
    there = reserved(found.lives, decided.decisions).bytes
    better = searched(found, budget, decided, there)
    assert better is decided or better.outcome.time_us < decided.outcome.time_us and reserved(found.lives, better.decisions).bytes <= there
    best = searched(found, budget, decided, there - 1)
    assert best is not decided and best.fits and best.gap is None
    again = simulate(found.lives, best.decisions)
    assert (again.peak, again.time_us) == (best.outcome.peak, best.outcome.time_us)
    assert again.peak <= budget and reserved(found.lives, best.decisions).bytes < there


def test_the_decisions_with_least_gaps_are_found_where_none_have_room(fine):
    found, budget, decided = decided_for("unet")
    best = searched(found, budget, decided, 1)
    assert best.outcome.peak <= budget
    assert reserved(found.lives, best.decisions).bytes < reserved(found.lives, decided.decisions).bytes


def test_no_more_is_moved_than_the_host_holds(fine):
    found, budget, decided = decided_for("resnet")
    assert searched(found, budget, decided, reserved(found.lives, decided.decisions).bytes - 1).outcome.host > 1000
    found.data["machine"]["host_bytes"] = 1000
    found.lives = Lives(found.data)
    decided = by_greedy(found.lives, budget)
    best = searched(found, budget, decided, reserved(found.lives, decided.decisions).bytes - 1)
    assert decided.fits and best is not decided and best.outcome.host <= 1000


def test_the_bound_of_all_plans_holds_for_plans_with_room(fine):
    found, budget, decided = decided_for("unet")
    decided.bound_us = decided.outcome.time_us / 1.1
    best = searched(found, budget, decided, reserved(found.lives, decided.decisions).bytes - 1)
    assert (1 + best.gap) / 1.1 == pytest.approx(best.outcome.time_us / decided.outcome.time_us)
