"""Least cuts, and the divisions that they give, compared with every division of small graphs."""

import itertools
import random

import pytest
from tightfit._budget.compiled.choose import Chooser
from tightfit._budget.compiled.cut import Pricing
from tightfit._native import least_cut
from tightfit._budget.compiled.graph import Graph, Rates, Value, simulate


@pytest.mark.parametrize("seed", range(60))
def test_a_cut_is_the_least_of_all_cuts(seed):
    pick = random.Random(seed)
    nodes = pick.randint(3, 7)
    arcs = [(pick.randrange(nodes), pick.randrange(nodes), pick.randint(1, 9)) for _ in range(pick.randint(3, 16))]
    arcs = [arc for arc in arcs if arc[0] != arc[1]]
    starts, ends, capacities = map(list, zip(*arcs, strict=True))

    def cost(near):
        return sum(capacity for start, end, capacity in arcs if near[start] and not near[end])

    found = least_cut(nodes, starts, ends, capacities, False)
    assert found[0] and not found[1]
    least = min(cost([True, False, *rest]) for rest in itertools.product((True, False), repeat=nodes - 2))
    last = least_cut(nodes, starts, ends, capacities, True)
    assert cost(found) == cost(last) == least
    assert all(late for early, late in zip(found, last, strict=True) if early)


def chain(pick, length):
    """A chain of kernels and fused operations; the backward pass reads each of their results, in reverse."""
    values = [Value("x", "input", 8, (), forward=True, resident=True)]
    for number in range(length):
        kind = pick.choice(["kernel", "fused"])
        values.append(Value(
            f"v{number}", kind, pick.randint(1, 9), (number,), forward=True, rerun=pick.choice(["may", "may", "never"]),
            us=float(pick.randint(1, 9)) if kind == "kernel" else 0.0,
        ))  # fmt: skip
    values.append(Value("loss", "kernel", 1, (length,), forward=True, returned=True, rerun="never"))
    values.append(Value("tangent", "tangent", 1, ()))
    before = len(values) - 1
    for number in range(length, -1, -1):
        values.append(Value(f"g{number}", "kernel", 2, (before, number), backward=True, wanted=number == 0))
        before = len(values) - 1
    return Graph(values, Rates(1.0, 0.0), fuses=False)


def sound(graph, saved):
    _, again = graph.backward_order(set(saved))
    return all(graph.values[place].rerun != "never" for place in again)


@pytest.mark.parametrize("seed", range(40))
def test_divisions_are_sound_and_hold_the_room_wherever_one_is_found(seed):
    pick = random.Random(seed)
    length = pick.randint(3, 7)
    graph = chain(pick, length)
    inner = range(1, length + 1)
    every = [frozenset((0, *some)) for size in range(length + 1) for some in itertools.combinations(inner, size)]
    every = [saved for saved in every if sound(graph, saved)]
    plain = frozenset(range(length + 1))
    peaks = {saved: simulate(graph, saved).peak for saved in every}
    found_some = 0
    for room in sorted(set(peaks.values())):
        chooser = Chooser(graph, ("plain", plain))
        choice = chooser.fitting(room)
        best = min(simulate(graph, saved).time_us for saved in every if peaks[saved] <= room)
        if choice is not None:
            found_some += 1
            assert sound(graph, choice.division.saved) and choice.division.peak <= room
            assert choice.division.time_us >= best - 1e-9
    # A room in which PyTorch's own fits is always met.
    assert found_some >= 1


@pytest.mark.parametrize("seed", range(40))
def test_more_bytes_are_never_slower(seed):
    """Each budget is searched separately."""
    pick = random.Random(seed)
    length = pick.randint(6, 24)
    graph, plain = chain(pick, length), frozenset(range(length + 1))
    rooms = [simulate(graph, plain).peak * percent / 100 for percent in range(5, 101, 5)]
    found = [choice.division.time_us for room in rooms if (choice := Chooser(graph, ("plain", plain)).fitting(room)) is not None]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("first", [5.0, 1e7])
def test_layers_that_are_alike_leave_little_room_unused(first):
    """If recomputing one value takes very long, all others are recomputed at any price that is tried."""
    values = [Value("x", "input", 8, (), forward=True, resident=True)]
    length = 24
    for number in range(2 * length):
        values.append(Value(f"v{number}", "kernel", 8, (number,), forward=True, rerun="may", us=(50.0 if number % 2 else 5.0) if number else first))
    values.append(Value("loss", "kernel", 1, (2 * length,), forward=True, returned=True))
    values.append(Value("tangent", "tangent", 1, ()))
    before = len(values) - 1
    for number in range(2 * length, -1, -1):
        values.append(Value(f"g{number}", "kernel", 2, (before, number), backward=True, wanted=number == 0))
        before = len(values) - 1
    graph = Graph(values, Rates(1000.0, 0.0), fuses=False)
    chooser = Chooser(graph, ("plain", frozenset(range(2 * length + 1))))
    whole, least = chooser.plain.peak, chooser.least().division.peak
    assert least < 0.7 * whole
    for room in range(int(1.2 * least), whole, 8):
        assert chooser.fitting(room).division.peak > room - 10


def test_the_least_is_the_same_for_every_budget():
    for seed in range(10):
        graph = chain(random.Random(seed), 7)
        plain = frozenset(range(8))
        peaks = set()
        for share in (0.95, 0.7, 0.3):
            chooser = Chooser(graph, ("plain", plain))
            chooser.fitting(chooser.plain.peak * share)
            peaks.add(chooser.least().division.peak)
        assert len(peaks) == 1


def test_what_must_not_run_again_is_saved_at_any_price():
    for seed in range(40):
        graph = chain(random.Random(seed), 6)
        pricing = Pricing(graph)
        for price in (0.0, 1e-3, 1.0, 1e3):
            assert sound(graph, pricing.cut(price, {}, {}))


def test_bytes_that_were_seen_count():
    graph = chain(random.Random(1), 5)
    plain = frozenset(range(6))
    chooser = Chooser(graph, ("plain", plain))
    before = chooser.peak(chooser.plain)
    chooser.note(chooser.theirs[0], False, 3 * before)
    chooser.note(chooser.theirs[0], True, 3 * before)
    assert chooser.peak(chooser.plain) >= 3 * before
    other = simulate(graph, frozenset({0, 1, 2, 3}))
    assert chooser.peak(other) > other.peak


def test_what_a_kernel_uses_while_it_runs_counts_there():
    graph = chain(random.Random(1), 5)
    plain = frozenset(range(6))
    before = simulate(graph, plain)
    kernel = next(place for place, value in enumerate(graph.values) if value.name == "g2")
    graph.values[kernel].extra = 1000
    after = simulate(graph, plain)
    assert after.at == "g2" and 1000 < after.peak <= 1000 + before.peak
    assert after.forward == before.forward


def test_values_that_are_recomputed_from_one_another_exist_at_once():
    """Inductor fuses them into one kernel, although they are read one after the other."""
    layers = 6
    values = [Value("x", "input", 8, (), forward=True, resident=True), Value("shared", "fused", 8, (0,), forward=True, rerun="may")]
    for layer in range(layers):
        values.append(Value(f"k{layer}", "kernel", 1, (0,), forward=True, rerun="may", us=9.0))
    rebuilt = len(values)
    for layer in range(layers):
        values.append(Value(f"r{layer}", "fused", 8, (1, 2 + layer), forward=True, rerun="may"))
    values += [Value("loss", "kernel", 1, tuple(range(rebuilt, rebuilt + layers)), forward=True, returned=True), Value("tangent", "tangent", 1, ())]
    before = len(values) - 1
    for layer in range(layers - 1, -1, -1):
        values.append(Value(f"g{layer}", "kernel", 2, (before, rebuilt + layer), backward=True, wanted=layer == 0))
        before = len(values) - 1
    saved = frozenset((0, *range(2, 2 + layers)))
    assert simulate(Graph(values, Rates(1.0, 0.0)), saved).backward >= 8 * layers
    assert simulate(Graph(values, Rates(1.0, 0.0), fuses=False), saved).backward < 8 * layers
