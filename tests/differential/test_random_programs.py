"""Random programs give what they give without jit, with Equinox, with the reference.

Promises 1, 2, 3, 15, 32 of docs/reliability.md.
"""

import json

import equinox as eqx
import pytest
from hypothesis import event, given, target

import eqx_fastjit
from tests.differential import draws, trees
from tests.differential.outcomes import results, run, without_jit
from tests.differential.reference_process import Reference


pytestmark = pytest.mark.filterwarnings(
    "ignore:A JAX array is being set as static",
    "ignore:Generating overly large repr",
)


@pytest.fixture(scope="module")
def reference():
    process = Reference()
    yield process
    process.close()


def _as_json(outcomes):
    return json.loads(json.dumps(outcomes))


@given(draws.programs(draws.ANY_TREE, changes=True))
def test_programs_give_what_they_give_without_jit(program):
    """Whatever the statics are, and whenever they change: never a stale result."""
    expected, found = without_jit(program), run(program, eqx_fastjit.filter_jit)
    for (ours, _), (theirs, _) in zip(found, expected, strict=True):
        assert ours[0] == theirs[0], program
        if len(theirs) == 2:
            _assert_same_arrays(ours[1], theirs[1])


def _assert_same_arrays(ours, theirs):
    # NumPy's dtypes become JAX's, and weak types are those of a trace.
    assert [x[1] for x in ours] == [x[1] for x in theirs]
    assert json.dumps([x[2] for x in ours]) == json.dumps([x[2] for x in theirs])


@given(draws.programs(draws.EQUINOX_TREE, changes=False))
def test_calls_are_those_of_equinox(program):
    """Results, types of errors and numbers of traces, where Equinox is right."""
    theirs, ours = run(program, eqx.filter_jit), run(program, eqx_fastjit.filter_jit)
    assert results(ours) == results(theirs)
    # An omitted default, and the same value, share a trace with ours alone.
    if len({step[2] == "default" for step in program["steps"]}) == 1:
        assert ours == theirs
    else:
        assert all(a <= b for (_, a), (_, b) in zip(ours, theirs, strict=True))


@given(program=draws.programs(draws.ANY_TREE, changes=True))
def test_both_engines_agree(program, reference):
    """The native engine and the reference: results, errors and numbers of traces."""
    ours = run(program, eqx_fastjit.filter_jit)
    target(float(ours[-1][1] if ours else 0), label="traces")
    event(f"traces: {ours[-1][1] if ours else 0}")
    assert json.dumps(_as_json(ours)) == json.dumps(reference.run(program))


@given(draws.ANY_TREE, draws.ANY_TREE)
def test_what_is_shown_alike_is_the_same(first, second):
    """Two values, made anew, share a trace if, and only if, they are seen alike."""
    steps = [["call", i, "position", False] for i in (0, 1, 0, 1)]
    program = {"values": [first, second], "callable": "function", "steps": steps}
    texts = {trees.show(trees.build(x)) for x in (first, second)}
    counts = [n for _, n in run(program, eqx_fastjit.filter_jit)]
    if len(texts) == 2:
        assert counts == [1, 2, 2, 2]
    else:
        assert counts[-1] == counts[1]
