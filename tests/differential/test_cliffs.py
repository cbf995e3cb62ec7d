"""Hunts for cliffs: arguments with which a call costs far more than it should.

Hypothesis draws trees, and `target` leads it to those with which a call takes longest
for their size, compared with `jax.jit` on a flat list of the same arrays. Both take
turns in this process, as in the benchmarks. The worst tree of a long run is kept in
`worst.json`, and each later run begins with it:

    HYPOTHESIS_PROFILE=night pytest tests/differential -o faulthandler_timeout=0
"""

import json
from pathlib import Path

import pytest
from hypothesis import event, example, given, reject, settings, strategies as st, target

from benchmarks.case import Case
from benchmarks.contenders import of_function
from benchmarks.timing import measure
from tests.differential import draws, trees


pytestmark = [
    pytest.mark.one_engine,
    pytest.mark.filterwarnings(
        "ignore:A JAX array is being set as static",
        "ignore:Generating overly large repr",
    ),
]

_WORST = Path(__file__).parent / "worst.json"
_KEPT = json.loads(_WORST.read_text())
# For each part of a tree, so many calls of a flat list. No noise is so large.
_CLIFF = 10.0
_ROUNDS = 4
_EXAMPLES = settings.default.max_examples // 4


def _size(description):
    """How many arrays, statics and containers a value has."""
    if not isinstance(description, list):
        return 0
    is_value = bool(description) and isinstance(description[0], str)
    return is_value + sum(map(_size, description))


def _cost(description, copies):
    """A call over one of `jax.jit` on a flat list, for each part of the tree.

    Each is that of its quickest round, which others on the machine disturb least.
    """
    value = [trees.build(description) for _ in range(copies)]
    makers = of_function(lambda tree: tree, value)
    case = Case("cliff", "", "", lambda: makers)
    rounds = [found["blocked"] for found in measure(case, _ROUNDS, ("ours", "flat"))]
    ours, flat = (min(times[name] for times in rounds) for name in ("ours", "flat"))
    return ours / flat / (1 + copies * _size(description))


@pytest.fixture(scope="module")
def worst():
    """The worst tree so far. A long run keeps it."""
    found = {"cost": 0.0}
    yield found
    if found["cost"] > _KEPT["cost"] and settings.default.database is not None:
        _WORST.write_text(json.dumps(found) + "\n")


@example(_KEPT["description"], _KEPT["copies"])
@given(draws.ANY_TREE, st.sampled_from([1, 8, 64]))
@settings(max_examples=_EXAMPLES)
def test_no_tree_is_a_cliff(worst, description, copies):
    """The cost of each part of an argument is bounded, whatever it is, and how many."""
    try:
        cost = _cost(description, copies)
        if cost > worst["cost"]:  # and not for noise
            cost = min(cost, _cost(description, copies))
    except (TypeError, ValueError):  # as with Equinox: keys that cannot be sorted, say
        reject()
    target(cost)
    event(f"cost below {0.25 * 2 ** int(4 * cost).bit_length()}")
    if cost > worst["cost"]:
        worst |= {"cost": cost, "description": description, "copies": copies}
    assert cost < _CLIFF
