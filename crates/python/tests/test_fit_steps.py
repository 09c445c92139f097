"""Training within a budget, without torch: recorded steps are planned, predicted, and their packs and unpacks replayed.

The planner, the simulator, the hooks' runtime and its reruns are those that run under PyTorch; `fit_steps.py` has the rest.
"""

import subprocess
import sys

import pytest

import fit_steps
from fit_steps import NAMES, Program, Recorded
from tightfit._fit.bound import bind
from tightfit._fit.decide import decide, decide_least
from tightfit._fit.passes import Pass
from tightfit._fit.rebuild import Lives
from tightfit._fit.simulate import simulate
from tightfit._fit.slots import Slot

# Links that make plans offload, and recompute.
LINKS = {"offloaded": 1e12, "recomputed": 1e6}


def recorded(name, link="offloaded"):
    found = Recorded(name)
    rate = LINKS[link]
    found.data["machine"].update(to_host_bytes_per_s=rate, to_device_bytes_per_s=rate, both_bytes_per_s=rate)
    found.lives = Lives(found.data)
    return found


def twice(lives):
    """Bytes of statistics before and after their update, which are in one place."""
    return sum(size for size, before, stays in zip(lives.bytes, lives.before, lives.resident, strict=True) if stays and before is not None)


def planned(found, share):
    """A plan for a share of what is not resident, or for the least that a plan is found for."""
    lives = found.lives
    resident = sum(size for size, stays in zip(lives.bytes, lives.resident, strict=True) if stays)
    plain = simulate(lives, {})
    decided = decide(found.data, int(resident + share * (plain.peak - resident)), lives, hurried=True)
    if not decided.fits:
        decided = decide_least(found.data, lives)
    assert decided.outcome.peak < plain.peak
    return bind(found.step, lives, decided.decisions, found.packs, [], [])


def replayed(found, bound=None, **options):
    program = Program(found, bound, **options)
    program.run()
    return program


def assert_as_predicted(program, outcome):
    """The device holds what was predicted at most, at every operation."""
    lives = program.lives
    scratch = [operation["workspace_bytes"] for operation in lives.operations]
    for index, (most, live) in enumerate(zip(program.most, outcome.live, strict=True)):
        assert most <= live - scratch[index] - twice(lives), (index, lives.operations[index]["name"])


@pytest.mark.parametrize("name", NAMES)
def test_what_keeps_everything_takes_what_is_predicted(name):
    found = recorded(name)
    plain, outcome = replayed(found), simulate(found.lives, {})
    assert_as_predicted(plain, outcome)
    assert max(plain.most) == outcome.peak - twice(found.lives)


@pytest.mark.parametrize("share", [0.8, 0.6, 0.5])
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("name", NAMES)
def test_every_reader_gets_what_it_would_get_and_the_peak_is_the_predicted_one(name, link, share):
    found = recorded(name, link)
    plain, bound = replayed(found), planned(found, share)
    program = replayed(found, bound)
    assert program.read == plain.read and program.result == plain.result
    assert_as_predicted(program, bound.outcome)
    assert max(program.most) == bound.outcome.peak - twice(found.lives)
    counts = vars(program.safe.counts)
    kinds = [decision["decision"] for decision in bound.decisions.values()]
    assert counts["packs"] == len(found.packs) and counts["fetched"] == kinds.count("offload")
    assert (counts["rebuilt"] > 0) == ("recompute" in kinds) and ("offload" if link == "offloaded" else "recompute") in kinds
    assert counts["strangers"] == counts["out_of_order"] == counts["late"] == 0
    assert program.memory.live == 0, "nothing outlives the step"


@pytest.mark.parametrize("name", NAMES)
def test_a_budget_is_met_or_refused(name):
    found = recorded(name, "recomputed")
    least = decide_least(found.data, found.lives)
    assert least.fits and least.outcome.peak < simulate(found.lives, {}).peak
    resident = sum(size for size, stays in zip(found.lives.bytes, found.lives.resident, strict=True) if stays)
    refused = decide(found.data, resident, found.lives, hurried=True)
    assert not refused.fits and refused.outcome.peak > resident
    bytes_of_host = 1 + sum(found.lives.bytes) // 100
    found.data["machine"]["host_bytes"] = bytes_of_host
    decided = decide(found.data, least.outcome.peak, Lives(found.data), hurried=True)
    assert decided.outcome.host <= bytes_of_host


def test_what_several_reruns_make_counts_once():
    """Pooling makes maxima, of which a cast copy is saved, and indices: the rerun for one of the two saved ones gives both."""
    found = recorded("half")
    lives, plain = found.lives, replayed(found)
    pooling = next(index for index, operation in enumerate(lives.operations) if "max_pool" in operation["name"])
    maxima, indices = lives.operations[pooling]["writes"]
    cast = next(index for index, operation in enumerate(lives.operations) if operation["reads"] == [maxima] and operation["writes"])
    (copy,) = lives.operations[cast]["writes"]
    assert lives.first_backward[copy] < lives.first_backward[indices], "the copy is needed first"
    need = lives.first_backward[copy]
    decisions = {
        tensor: {
            "tensor": tensor, "decision": "recompute", "offload_after": None, "release_after": lives.last_forward[tensor],
            "prefetch_before": None, "rebuilt": [{"before": need, "operations": operations}],
        }
        for tensor, operations in ((indices, [pooling]), (copy, [pooling, cast]))
    }
    bound = bind(found.step, lives, decisions, found.packs, [], [])
    program = replayed(found, bound)
    assert program.read == plain.read and program.result == plain.result
    assert program.safe.counts.rebuilt == 1
    assert_as_predicted(program, bound.outcome)
    assert bound.outcome.rebuilt_us == sum(float(lives.operations[index]["time_us"]) for index in (pooling, cast))
    scratch = lives.operations[need + 1]["workspace_bytes"]
    assert program.most[need + 1] == bound.outcome.live[need + 1] - scratch - twice(lives)


@pytest.mark.parametrize("name", NAMES)
def test_reruns_that_are_planned_early_are_predicted_where_they_are_needed(name):
    found = recorded(name, "recomputed")
    lives, bound = found.lives, planned(found, 0.5)
    early = {
        tensor: {**decision, "rebuilt": [{**entry, "before": lives.turn} for entry in decision["rebuilt"]]}
        for tensor, decision in bound.decisions.items()
        if len(decision["rebuilt"]) <= 1
    }
    assert len(early) > 3
    bound = bind(found.step, lives, early, found.packs, [], [])
    program = replayed(found, bound)
    assert_as_predicted(program, bound.outcome)
    assert program.read == replayed(found).read


def test_a_copy_that_is_not_waited_for_is_seen():
    found = recorded("densenet")
    bound, plain = planned(found, 0.5), replayed(found)
    whole = replayed(found, bound)
    program = Program(found, bound)
    # The last wait is for a copy into the device.
    program.copies.skip = whole.copies.waited
    program.run()
    assert program.read != plain.read


def test_a_rerun_that_leaves_an_operation_out_is_seen():
    found = recorded("vit", "recomputed")
    bound, plain = planned(found, 0.5), replayed(found)
    programs = next(programs for programs in bound.programs.values() if len(programs[0].lines) == 1 and programs[0].lines[0].results)
    line = programs[0].lines[0]
    line.function = lambda *tensors: 8 * [tensors[0].clone()]
    assert replayed(found, bound).read != plain.read


def test_bytes_that_are_not_given_back_are_seen(monkeypatch):
    found = recorded("densenet")
    bound = planned(found, 0.5)
    monkeypatch.setattr(Pass, "_release", lambda *_: None)
    monkeypatch.setattr(bound, "at_end", bound.at_end._replace(release=()))
    for number, (kind, size, order, tensor, expected) in enumerate(bound.answers):
        if order is not None:
            bound.answers[number] = (kind, size, order._replace(release=()), tensor, expected)
    program = replayed(found, bound)
    with pytest.raises(AssertionError):
        assert_as_predicted(program, bound.outcome)


def test_a_wrong_prediction_is_seen():
    found = recorded("densenet")
    bound = planned(found, 0.5)
    program = replayed(found, bound)
    early = {tensor: {**decision, "release_after": found.lives.last_forward[tensor]} for tensor, decision in bound.decisions.items()}
    assert any(decision["release_after"] != bound.decisions[tensor]["release_after"] for tensor, decision in early.items())
    with pytest.raises(AssertionError):
        assert_as_predicted(program, simulate(found.lives, early))


@pytest.mark.parametrize("link", LINKS)
def test_another_order_of_unpacks_is_counted_and_gives_the_same(link):
    found = recorded("unet", link)
    bound, plain = planned(found, 0.5), replayed(found)
    unpacks = [found.step.packs[number][0] for number, _ in found.step.unpacks]
    turn = next(turn for turn in range(len(unpacks) - 1) if found.step.unpacks[turn + 1][1] == found.step.unpacks[turn][1] + 1)
    swapped = {turn: turn + 1, turn + 1: turn}
    program = replayed(found, bound, order=swapped)
    assert unpacks[turn] != unpacks[turn + 1] and program.safe.counts.out_of_order == 1
    assert sorted(program.read, key=repr) == sorted(plain.read, key=repr) and program.result == plain.result


@pytest.mark.parametrize("link", LINKS)
def test_a_tensor_that_was_changed_in_place_raises(link, monkeypatch):
    """Also one that the program has let go of since."""
    found = recorded("densenet", link)
    changed = []

    class Changing(Pass):
        def pack(self, tensor):
            handle = super().pack(tensor)
            if not changed and isinstance(handle[0], Slot) and handle[0].tensor is not None:
                changed.append(handle)
                tensor.storage.version += 1
            return handle

    monkeypatch.setattr(fit_steps, "Pass", Changing)
    # A search in haste may find a plan that holds nothing of what it gives up.
    for share in (0.5, 0.6, 0.4, 0.7, 0.3):
        bound = planned(found, share)
        try:
            replayed(found, bound)
        except RuntimeError as error:
            assert changed and "modified by an inplace operation" in str(error)
            return
        assert not changed, "the change went unnoticed"
    pytest.fail("no plan holds a tensor that it gives up")


def test_none_of_this_imports_torch():
    modules = "decide, gaps, allocator, simulate, rebuild, recorded, bound, program, passes, replay, slots, lineage, host"
    code = f"import sys\nfrom tightfit._fit import {modules}\nsys.exit(any(name.split('.')[0] == 'torch' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
