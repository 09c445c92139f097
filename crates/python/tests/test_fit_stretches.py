"""Stretches without hooks on saved tensors, found in the calls of a recorded step."""

import pytest

from tightfit._fit.recorded import ModuleSaves
from tightfit._fit.unhooked import Stretch, stretches

# Two blocks of two layers each, as their calls end: a model saves one more between the blocks, and one at its end.
CALLS = [
    ModuleSaves("a.0", 0, 3),
    ModuleSaves("a.1", 3, 6),
    ModuleSaves("a", 0, 6),
    ModuleSaves("b.0", 7, 10),
    ModuleSaves("b.1", 10, 13),
    ModuleSaves("b", 7, 13),
]


def found(calls, hooked, packs=14):
    each = stretches(calls, [number in hooked for number in range(packs)])
    return [(stretch.first, stretch.end, stretch.begins, stretch.ends) for stretch in each]


@pytest.mark.parametrize(
    ("hooked", "expected"),
    [
        # Of modules that begin at one pack, names decide; of those that end at one, the first to end is taken.
        ({}, [(0, 13, "a", "b.1")]),
        # A pack that needs its hook ends a stretch, which ends where a module does.
        ({6}, [(0, 6, "a", "a.1"), (7, 13, "b", "b.1")]),
        ({12}, [(0, 10, "a", "b.0")]),
        ({0}, [(3, 13, "a.1", "b.1")]),
        # What is left is too short.
        ({8}, [(0, 6, "a", "a.1")]),
        ({2, 8}, []),
        (set(range(14)), []),
    ],
)
def test_the_longest_stretches_without_a_hook(hooked, expected):
    assert found(CALLS, hooked) == expected


def test_modules_that_are_called_again():
    # One that ends twice on the way would put the hooks back too early.
    assert found([ModuleSaves("r", 0, 1), ModuleSaves("c", 1, 7), ModuleSaves("r", 7, 8)], {}, 8) == [(0, 7, "r", "c")]
    # Two calls that begin at one pack, such as a first one without gradients, cannot be told apart.
    assert found([ModuleSaves("m", 0, 0), ModuleSaves("m", 0, 6)], {}, 6) == []
    assert found([ModuleSaves("m", 0, 6), ModuleSaves("m", 6, 12)], {}, 12) == [(0, 6, "m", "m")]
    assert found([], {}) == []


def test_more_nodes_than_those_of_watched_passes_are_another_path():
    made = Stretch(0, 6, "a", "a")
    assert made.is_usual(20, watched=True) and made.is_usual(30, watched=True) and made.is_usual(20, watched=True)
    assert made.is_usual(30, watched=False) and not made.is_usual(31, watched=False)
    # Without a watch, the first pass says how many.
    made = Stretch(0, 6, "a", "a")
    assert made.is_usual(20, watched=False) and made.is_usual(19, watched=False) and not made.is_usual(21, watched=False)
