"""Offloaded values of compiled graphs as data: the course of their bytes, compared with the rule step by step, and the divisions that fit."""

import itertools
import random

import pytest
from tightfit._budget.compiled.choose import Chooser
from tightfit._budget.compiled.graph import Graph, Rates, Value, simulate
from tightfit._budget.compiled.moves import Link, Moves, course, course_back


def random_pass(pick):
    steps = pick.randint(1, 8)
    times = [float(pick.randint(0, 5)) for _ in range(steps)]
    bytes = [pick.randint(0, 9) for _ in range(steps)]
    moves = sorted((pick.randrange(steps), pick.randint(1, 9)) for _ in range(pick.randint(0, 4)))
    return times, bytes, moves, float(pick.randint(1, 4)), pick.randint(5, 20)


def held_at(step, moves, steps):
    """Bytes of moved values that are held in a step, in addition to the step's own bytes."""
    return sum(size for (left, size), given in zip(moves, steps, strict=True) if left < step < given)


@pytest.mark.parametrize("seed", range(200))
def test_values_are_held_within_the_room_until_they_are_copied(seed):
    times, bytes, moves, rate, room = random_pass(random.Random(seed))
    found = course(times, bytes, moves, rate, room)
    # The peak is the largest step, and over the room only if the step itself is.
    peaks = [existing + held_at(step, moves, found.steps) for step, existing in enumerate(bytes)]
    assert found.peak == max(peaks)
    assert all(peak <= max(room, existing) for peak, existing in zip(peaks, bytes, strict=True))
    # Played once more from the steps alone, the device waits as long.
    clock = until = stall = 0.0
    ends = {}
    for step in range(len(times) + 1):
        for move, given in enumerate(found.steps):
            if given == step:
                stall, clock = stall + max(ends[move] - clock, 0.0), max(clock, ends[move])
        if step < len(times):
            clock += times[step]
            for move, (left, size) in enumerate(moves):
                if left == step:
                    ends[move] = until = max(until, clock) + size / rate
    assert found.stall_us == pytest.approx(stall)
    assert all(left < given for (left, _), given in zip(moves, found.steps, strict=True))


@pytest.mark.parametrize("seed", range(100))
def test_the_way_back_is_the_way_out_in_reversed_time(seed):
    times, bytes, moves, rate, room = random_pass(random.Random(seed))
    back = course_back(times, bytes, moves, rate, room)
    held = [sum(size for (first, size), at in zip(moves, back.steps, strict=True) if at <= step < first) for step in range(len(bytes))]
    assert all(at <= first for (first, _), at in zip(moves, back.steps, strict=True))
    assert all(existing + more <= max(room, existing) for existing, more in zip(bytes, held, strict=True))
    assert back.peak == max(existing + more for existing, more in zip(bytes, held, strict=True))


def test_without_a_wait_nothing_is_slower_and_with_a_slow_link_it_is():
    # The second step hides the copy of four bytes at a rate of 1, not at a rate of 1/2.
    assert course([1.0, 4.0, 1.0], [4, 4, 8], [(0, 4)], 1.0, 8.0).stall_us == 0
    assert course([1.0, 4.0, 1.0], [4, 4, 8], [(0, 4)], 0.5, 8.0).stall_us == 4


def layers(count, us=10.0, size=100):
    """Kernels in a row that may not run again."""
    values = [Value("x", "input", size, (), forward=True, resident=True)]
    for number in range(count):
        values.append(Value(f"v{number}", "kernel", size, (number,), forward=True, us=us))
    values.append(Value("loss", "kernel", 1, (count,), forward=True, returned=True))
    values.append(Value("tangent", "tangent", 1, ()))
    for number in range(count, -1, -1):
        values.append(Value(f"g{number}", "kernel", size, (len(values) - 1, number), backward=True, wanted=number == 0, us=2 * us))
    return Graph(values, Rates(1e3, 0.0), fuses=False)


def chooser_of(graph, link):
    plain = frozenset(place for place, value in enumerate(graph.values) if value.kind in ("kernel", "input") and not value.backward and value.name != "loss")
    chooser = Chooser(graph, ("plain", plain))
    chooser.moves = Moves(graph, 0, link, [True] * len(graph.values), chooser.plain)
    return chooser


def test_what_may_not_run_again_is_offloaded_and_as_little_as_fits():
    graph = layers(8)
    chooser = chooser_of(graph, Link(100.0, 100.0))
    plain, least = chooser.plain.peak, chooser.least().division.peak
    assert least < plain / 2
    before = None
    for room in range(plain, least - 1, -50):
        choice = chooser.fitting(room)
        assert chooser.peak(choice.division) <= room
        assert (not choice.division.moved) == (room >= plain)
        # Bytes that come back last leave first.
        moved = sorted(choice.division.moved)
        assert moved == list(range(1, 1 + len(moved)))
        assert before is None or len(moved) >= before
        before = len(moved)
    assert chooser.fitting(least - 1) is None


@pytest.mark.parametrize(("rate", "offloads"), [(1e6, True), (1e-3, False)])
def test_offloading_is_chosen_where_it_is_faster_than_recomputing(rate, offloads):
    graph = layers(8, us=100.0)
    for value in graph.values:
        if value.name in ("v1", "v3", "v5"):
            value.rerun = "may"
    chooser = chooser_of(graph, Link(rate, rate))
    choice = chooser.fitting(0.8 * chooser.plain.peak)
    assert bool(choice.division.moved) == offloads
    assert choice.division.again == 0 if offloads else choice.division.again > 0


def test_what_the_program_gets_stays_on_the_device():
    graph = layers(4)
    graph.values[2].returned = True
    chooser = chooser_of(graph, Link(100.0, 100.0))
    assert sorted(chooser.moves._movable(chooser.plain)) == [1, 3, 4]


def test_a_moved_value_counts_up_to_its_last_reader_and_from_its_first():
    graph = layers(3)
    saved = frozenset({0, 1, 2, 3})
    kept, moved = simulate(graph, saved), simulate(graph, saved, moved=frozenset({1, 2}))
    # Of v0 to v2, v2 and the second result alone are there at the end of the forward pass.
    assert kept.start - moved.start == 200
    assert moved.forward < kept.forward and moved.backward < kept.backward
    for count in range(4):
        for some in itertools.combinations((1, 2, 3), count):
            assert simulate(graph, saved, moved=frozenset(some)).peak <= kept.peak
