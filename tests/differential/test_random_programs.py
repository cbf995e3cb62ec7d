"""Random programs give what they give without jit, with Equinox, with the reference."""

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


@given(draws.programs(draws.ANY_TREE, changes=True))
def test_programs_give_what_they_give_without_jit(program):
    """Whatever the statics are, and whenever they change: never a stale result."""
    ours = results(run(program, eqx_fastjit.filter_jit))
    assert json.dumps(ours) == json.dumps(results(without_jit(program))), program


@given(draws.programs(draws.EQUINOX_TREE, changes=False))
def test_calls_are_those_of_equinox(program):
    """Results, types of errors and numbers of traces, where Equinox is right."""
    theirs = run(program, eqx.filter_jit)
    ours = run(program, eqx_fastjit.filter_jit)
    assert results(ours) == results(theirs)

    # An omitted default, and the same value, share a trace with ours alone.
    defaults = {spelling == "default" for _, _, spelling, _ in program["steps"]}
    for (_, our_traces), (_, their_traces) in zip(ours, theirs, strict=True):
        assert our_traces <= their_traces
        assert our_traces == their_traces or len(defaults) == 2


@given(program=draws.programs(draws.ANY_TREE, changes=True))
def test_both_engines_agree(program, reference):
    """The native engine and the reference: results, errors and numbers of traces."""
    ours = run(program, eqx_fastjit.filter_jit)
    n_traces = ours[-1][1] if ours else 0
    target(float(n_traces), label="traces")
    event(f"traces: {n_traces}")
    assert json.dumps(ours) == json.dumps(reference.run(program))


@given(draws.ANY_TREE, draws.ANY_TREE)
def test_what_is_shown_alike_is_the_same(first, second):
    """Two values, built each time, share a trace if, and only if, they look alike."""
    steps = [["call", i, "position", False] for i in (0, 1, 0, 1)]
    program = {"values": [first, second], "callable": "function", "steps": steps}
    texts = {trees.show(trees.build(x)) for x in (first, second)}
    n_traces = [n for _, n in run(program, eqx_fastjit.filter_jit)]
    assert n_traces == ([1, 2, 2, 2] if len(texts) == 2 else [1, 1, 1, 1])
