"""Calls do what they do under `equinox.filter_jit`.

Results, dtypes, weak types, shardings, numbers of traces and deleted buffers are the
same: all of `tests/support/corpus.py`.
"""

import equinox as eqx
import pytest

import eqx_fastjit
from tests.support.corpus import CASES
from tests.support.same import assert_same


def _run(case, jit):
    """Each result, and how often the function was traced until then."""
    traces = []
    steps = case(jit, lambda: traces.append(None))
    return [(step, len(traces)) for step in steps]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
def test_same_as_equinox(name):
    """Each call of the case gives what it gives under Equinox."""
    theirs = _run(CASES[name], eqx.filter_jit)
    ours = _run(CASES[name], eqx_fastjit.filter_jit)
    assert len(theirs) == len(ours)
    for i, ((a, traces_a), (b, traces_b)) in enumerate(zip(theirs, ours, strict=True)):
        assert_same(b, a)
        assert traces_b == traces_a, f"step {i}: {traces_a} traces, ours {traces_b}"
