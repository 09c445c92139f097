"""Decisions for steps: of the planner and the greedy search, on recorded steps and on small chains."""

import itertools
import json

import pytest
import tightfit.torch as tt
import torch
from fit_models import resnet
from fit_support import FAST, SLOW, set_link, sgd, tight_budget
from tightfit import _native
from tightfit._budget.memory import host
from tightfit._budget.memory.reservation import InitialReservation
from tightfit._budget.plan import make as fitted_plans
from tightfit._budget.plan.bind import bind, copied_bytes
from tightfit._budget.plan.decide import HURRIED_SECONDS, SMALL_GAP, TRIES, Decided, by_planner, decide, decide_least
from tightfit._budget.plan.liveness import Impossible, Lives
from tightfit._budget.plan.simulate import Outcome, simulate
from tightfit._budget.record import builder
from tightfit._budget.record import step as recorded
from torch import nn


def offloading(monkeypatch):
    """A plan that offloads."""
    set_link(monkeypatch, FAST)
    model, x = resnet()
    plan = tt.plan(model, x, budget=tight_budget(model, x, 0.5), optimizer=sgd(model))
    return plan._fitted


def test_more_host_memory_does_not_refuse(monkeypatch):
    """Copies take the place of reruns that free more: with a kilobyte for them, there is a plan."""
    set_link(monkeypatch, FAST)
    parts = [nn.Sequential(nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for i in range(6)]
    model, x = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), torch.randn(8, 3, 32, 32)
    for host in (1024, "1MiB", "100GiB", None):
        plan = tt.plan(model, x, budget="2MiB", optimizer=sgd(model), host_budget=host)
        assert plan.fits, host


def test_what_is_fetched_at_once_comes_in_the_order_in_which_it_is_needed(monkeypatch):
    fitted = offloading(monkeypatch)
    fitted.step.data["machine"].update(to_host_bytes_per_s=1e9, to_device_bytes_per_s=1e9)
    lives = Lives(fitted.step.data)
    given = {tensor: {**decision, "prefetch_before": lives.backward_start} for tensor, decision in fitted.schedule.decisions.items()}
    assert len(given) > 2
    by_need = sorted(given, key=lambda tensor: lives.first_backward[tensor])
    stalls = []
    for order in (by_need, by_need[::-1]):
        bound = bind(fitted.step, lives, {tensor: given[tensor] for tensor in order}, fitted.recorder)
        (fetched,) = bound.fetch.values()
        assert fetched == [tensor for tensor in by_need if tensor in fetched]
        stalls.append(bound.outcome.stalled_us)
    assert stalls[0] == pytest.approx(stalls[1]) and stalls[0] > 0


def test_where_the_device_waits_for_its_host_each_copy_takes_time_and_fewer_are_made(monkeypatch):
    fitted = offloading(monkeypatch)
    data, moved = fitted.step.data, {tensor: one for tensor, one in fitted.schedule.decisions.items() if one["decision"] == "offload"}
    waiting = {**data, "machine": {**data["machine"], "copy_host_us": 50.0}}
    before, after = (simulate(Lives(step), moved) for step in (data, waiting))
    assert after.time_us - after.stalled_us == pytest.approx(before.time_us - before.stalled_us + 100.0 * len(moved))
    costly = {**data, "machine": {**data["machine"], "copy_host_us": 1e5}}
    counts = [sum(one["decision"] == "offload" for one in decide(step, fitted.budget, hurried=True).decisions.values()) for step in (data, costly)]
    assert counts[1] < counts[0]


def test_a_step_that_waits_for_its_host_has_the_times_of_the_host(monkeypatch):
    for module in (builder, recorded):
        monkeypatch.setattr(module, "HOSTED", {"cpu"})
    model, x = resnet()
    for call_us, waits in ((0.0, False), (1e4, True)):
        monkeypatch.setattr(host, "_call_us", lambda device, call_us=call_us: call_us)
        data = tt.plan(model, x, budget=tight_budget(model, x, 0.8), optimizer=sgd(model))._fitted.step.data
        assert data["machine"].get("copy_host_us", 0.0) == (host.copy_us(x.device) if waits else 0.0)
        again = [operation["rerun_time_us"] for operation in data["operations"] if operation["rerun_time_us"]]
        assert again and all(time >= host.bare_rerun_us(x.device) for time in again)


def test_what_the_planner_copies_out_but_never_fetches_is_kept(monkeypatch):
    """It has not left the device: a copy back would be one more, and waited for."""
    fitted = offloading(monkeypatch)
    step, lives = fitted.step.data, fitted.lives
    tensor, other = list(fitted.schedule.decisions)[:2]
    decisions = [{**fitted.schedule.decisions[tensor], "prefetch_before": None}, fitted.schedule.decisions[other]]
    monkeypatch.setattr("tightfit._native.plan_step", lambda *_: json.dumps({"tensors": decisions}))
    assert list(by_planner(step, 1 << 40, lives, fitted.decided.plain, 1.0).decisions) == [other]


def test_the_planner_plans_for_less_where_its_plan_needs_more_as_it_is_carried_out(monkeypatch):
    set_link(monkeypatch, SLOW)
    model, x = resnet()
    plan = tt.plan(model, x, optimizer=sgd(model))
    step, lives, plain = plan._fitted.step.data, plan._fitted.lives, plan._fitted.decided.plain
    budget, known, asked = plain.peak * 8 // 10, _native.plan_step, []

    def generous(step, budget, seconds):
        asked.append(budget)
        return known(step, budget * 21 // 20, seconds)

    monkeypatch.setattr("tightfit._native.plan_step", generous)
    found = by_planner(step, budget, lives, plain, 1.0)
    assert found.fits and found.outcome.peak <= budget
    assert 1 < len(asked) <= 1 + TRIES and asked[0] == budget and asked == sorted(set(asked), reverse=True)


def test_the_least_budget_is_one_that_the_planner_finds(monkeypatch):
    """Where the greedy search ends early, the planner's plans for less are tried."""
    set_link(monkeypatch, SLOW)
    model, x = resnet()
    plan = tt.plan(model, x, optimizer=sgd(model))
    step, lives = plan._fitted.step.data, plan._fitted.lives
    greedy = decide(step, plan.plain - 1, lives)
    short = HURRIED_SECONDS[0]
    tried, found = [], {short: 700_000, 1.0: 690_000, 5.0: 680_000, 15.0: 680_000}

    def planned(step, budget, lives, plain, seconds):
        tried.append(seconds)
        outcome = Outcome(peak=max(budget, found[seconds]), live=[0], time_us=0.0)
        return Decided(greedy.decisions, outcome, plain, budget >= found[seconds], "planner")

    monkeypatch.setattr("tightfit._budget.plan.decide.by_planner", planned)
    least = decide_least(step, lives)
    # The longer search, which a budget gets before it is refused, does not find a plan for a step less either.
    assert least.by == "planner" and 680_000 <= least.outcome.peak <= 680_000 * 1.01
    assert tried.count(short) < 16 and tried.count(1.0) < 6 and tried.count(5.0) < 6


def searched(monkeypatch, answers):
    """The decisions where the planner answers so, by seconds: time as a multiple of the greedy search's, gap, whether they fit; and the
    seconds that were tried."""
    model, x = resnet()
    plan = tt.plan(model, x, optimizer=sgd(model))
    step, lives = plan._fitted.step.data, plan._fitted.lives
    greedy, tried = decide(step, plan.plain - 1, lives), []

    def planned(step, budget, lives, plain, seconds):
        tried.append(seconds)
        if answers[seconds] is None:
            return None
        times, gap, fits = answers[seconds]
        time_us = times * greedy.outcome.time_us
        bound_us = time_us / (1 + gap) if gap is not None else None
        return Decided({0: {}}, Outcome(time_us=time_us), plain, fits, f"planner in {seconds:.0f} s", bound_us)

    monkeypatch.setattr("tightfit._budget.plan.decide.by_planner", planned)
    found = decide(step, plan.plain - 1, lives)
    assert (found.gap is None) == all(answers[seconds] is None or answers[seconds][1] is None for seconds in tried)
    return found.by, tried


def test_the_planner_searches_longer_where_its_plan_may_be_far_from_the_best(monkeypatch):
    set_link(monkeypatch, SLOW)
    monkeypatch.setattr("tightfit._budget.plan.decide.by_planner", lambda *_: None)
    near, far, better, worse = SMALL_GAP / 2, 2 * SMALL_GAP, 0.9, 1.1
    for one, five, by, tried in (
        ((better, near, True), None, "planner in 1 s", [1.0]),
        # A longer search could not make it much better.
        ((worse, near, True), (better, near, True), "greedy", [1.0]),
        ((better, far, True), (better - 0.1, near, True), "planner in 5 s", [1.0, 5.0]),
        ((better, far, True), (worse, near, True), "planner in 1 s", [1.0, 5.0]),
        ((better, None, True), None, "planner in 1 s", [1.0, 5.0]),
        ((better, near, False), (worse, far, True), "greedy", [1.0, 5.0]),
        (None, None, "greedy", [1.0, 5.0]),
        # Only what would be carried out and is still far is searched for that long.
        ((worse, far, True), (worse, far, True), "greedy", [1.0, 5.0]),
        (None, (better, far, True), "planner in 15 s", [1.0, 5.0, 15.0]),
    ):
        with monkeypatch.context() as patch:
            assert searched(patch, {1.0: one, 5.0: five, 15.0: (better - 0.2, near, True)}) == (by, tried), (one, five)


def test_a_long_search_comes_before_slack_is_given_up(monkeypatch):
    set_link(monkeypatch, SLOW)
    model, x = resnet()
    plan = tt.plan(model, x, optimizer=sgd(model))._fitted
    budget, decided = plan.plain * 8 // 10, plan.decided

    def searches(slack, answers):
        """The searches, if only `answers` find anything: bytes of slack, and whether in a hurry."""
        asked = []

        def searched(step, target, lives, hurried):
            asked.append((budget - target, hurried))
            return Decided({}, Outcome(peak=target), decided.plain, asked[-1] in answers)

        with monkeypatch.context() as patch:
            patch.setattr(fitted_plans, "decide", searched)
            found = fitted_plans._within(budget, plan.step, plan.lives, plan.recorder, slack, None, InitialReservation())
        assert (found is None) == (asked[-1] not in answers)
        return asked

    # Copies of small tensors take room as well, as long as there is any.
    copies = copied_bytes(plan.recorder)
    order = [(64 + copies, True), (64 + copies, False), (32 + copies, True), (copies, True), (0, True)]
    for count in range(1, len(order) + 1):
        assert searches(64, order[count - 1 : count]) == order[:count]
    assert searches(64, []) == order
    assert searches(0, []) == [(copies, True), (copies, False), (0, True)]


def test_what_takes_effect_later_than_planned_is_planned_for_less(monkeypatch):
    set_link(monkeypatch, SLOW)
    model, x = resnet()
    budget, known = tight_budget(model, x, 0.8), fitted_plans.with_gaps
    asked = []

    def near(step, target, lives, decided, *arguments, hurried):
        asked.append((target, hurried))
        if len(asked) == 1:
            # Its peak is over the budget in fact.
            decided.decisions = dict(list(decided.decisions.items())[:1])
            return decided
        return known(step, target, lives, decided, *arguments, hurried=hurried)

    monkeypatch.setattr(fitted_plans, "with_gaps", near)
    # Plans with signs are others.
    monkeypatch.setattr(fitted_plans, "_unsaved", lambda step, lives, *others: (step, lives))
    fitted = tt.plan(model, x, budget=budget, optimizer=sgd(model))._fitted
    assert fitted.peak <= budget
    assert len(asked) > 1 and not asked[0][1] and all(hurried for _, hurried in asked[1:])
    assert asked == sorted(asked, reverse=True, key=lambda one: one[0]) and asked[1][0] < asked[0][0]


def chain(sizes, rerun, link=1e3):
    """A chain of maps: operation i makes map i from map i - 1; its backward pass reads both."""
    tensors = [{"name": "x", "bytes": 1, "kind": "feature-map", "residence": "resident"}]
    tensors += [{"name": f"map {i}", "bytes": size, "kind": "feature-map", "residence": "movable"} for i, size in enumerate(sizes)]
    gradients = len(tensors)
    tensors += [{"name": f"gradient {i}", "bytes": 1, "kind": "gradient-map", "residence": "temporary"} for i in range(len(sizes))]
    operations = []

    def add(name, stage, reads, writes, time_us=0.0, again="never"):
        fields = {"adds": [], "workspace_bytes": 0, "rerun": again, "rerun_time_us": None, "group": 0}
        operations.append({"name": name, "stage": stage, "reads": reads, "writes": writes, "time_us": time_us, **fields})

    for i in range(1, len(sizes) + 1):
        add("make", "forward", [i - 1], [i], float(i), "same" if rerun[i - 1] else "never")
        add("pack", "forward", [i], [])
    for i in range(len(sizes), 0, -1):
        add("unpack", "backward", [i], [])
        add("back", "backward", [i], [gradients + i - 1], 1.0)
    for tensor in tensors:
        tensor.update(result=False, alias=None, sample_bytes=None)
    for operation in operations:
        operation["independent_samples"] = False
    machine = {"to_host_bytes_per_s": link, "to_device_bytes_per_s": link, "both_bytes_per_s": 2 * link, "host_bytes": None}
    machine.update(slowdown_beside_copies=1.0, link_share=1.0)
    about = {"tightfit_step": 1, "name": "chain", "batch": 1, "types": "f32", "mode": "training"}
    return {**about, "tensors": tensors, "groups": [{"name": ""}], "operations": operations, "machine": machine}


def test_the_simulator_counts_a_chain_as_by_hand():
    lives = Lives(chain([8, 4, 2], [True, True, True]))
    # All three maps at once, x, and the first gradient.
    assert simulate(lives, {}).peak == 1 + 8 + 4 + 2 + 1
    assert simulate(lives, {}).time_us == 1 + 2 + 3 + 3
    again = {"tensor": 1, "decision": "recompute", "release_after": 2, "rebuilt": [{"before": 10, "operations": [0]}]}
    outcome = simulate(lives, {1: again})
    # Map 0 lives from operation 0 to 2, where map 1 is made, and from 10 on; all three gradients stay.
    assert outcome.live[0:3] == [1 + 8, 1 + 8, 1 + 8 + 4] and outcome.live[4] == 1 + 4 + 2
    assert outcome.live[10] == 1 + 8 and outcome.rebuilt_us == 1.0


def test_the_simulator_refuses_what_cannot_run():
    lives = Lives(chain([8, 4, 2], [False, True, True]))
    plan = {"tensor": 1, "decision": "recompute", "release_after": 2, "rebuilt": [{"before": 10, "operations": [0]}]}
    with pytest.raises(Impossible, match="may not run again"):
        simulate(lives, {1: plan})
    with pytest.raises(Impossible, match="no rerun is given"):
        simulate(lives, {1: {**plan, "rebuilt": []}})


def exhaustive_least(lives):
    """The least peak of all ways to keep, offload or rebuild every map alone, copies being instantaneous."""
    options = {}
    for tensor in (t for t in range(len(lives.tensors)) if lives.movable[t]):
        pack = next(i for i, o in enumerate(lives.operations) if o["name"] == "pack" and o["reads"] == [tensor])
        need = lives.first_backward[tensor]
        fields = {"tensor": tensor, "offload_after": pack, "release_after": pack, "prefetch_before": need}
        options[tensor] = [None, {**fields, "decision": "offload", "rebuilt": []}]
        entry = {"before": need, "operations": [index for index, one in enumerate(lives.operations[: lives.backward_start]) if tensor in (*one["writes"], *one["adds"])]}
        options[tensor].append({**fields, "decision": "recompute", "rebuilt": [entry]})
    peaks = []
    for choice in itertools.product(*options.values()):
        try:
            decisions = {tensor: what for tensor, what in zip(options, choice, strict=True) if what is not None}
            peaks.append(simulate(lives, decisions).peak)
        except Impossible:
            continue
    return min(peaks)


@pytest.mark.parametrize("sizes", list(itertools.permutations([8, 4, 3, 2]))[::5])
@pytest.mark.parametrize("rerun", [(True,) * 4, (True, False, True, False), (False,) * 4])
def test_decisions_hold_their_budget_on_small_chains(sizes, rerun):
    step = chain(list(sizes), rerun)
    lives = Lives(step)
    plain = simulate(lives, {}).peak
    reached = decide(step, 1).outcome.peak
    for budget in range(reached, plain + 1):
        found = decide(step, budget)
        assert found.fits and found.outcome.peak <= budget, (budget, reached)
        assert simulate(lives, found.decisions).peak == found.outcome.peak
    least = decide_least(step, lives).outcome.peak
    assert exhaustive_least(lives) <= least <= reached
    assert decide(step, plain).decisions == {}
