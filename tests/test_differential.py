"""Random sequences of calls (`tests/differential`): the short, fixed run."""

import dataclasses

import equinox as eqx
import hypothesis
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit

from .differential import harness
from .differential.callables import Fails
from .differential.harness import Call, Different, keep_programs, run, Sequence, Step
from .differential.strategies import sequences
from .differential.values import Array, Static


# These make 1,680 calls with hypothesis 6.170, on each engine.
_SEQUENCES = 50
_FEWEST_CALLS = 1500


@pytest.fixture
def programs_kept(tmp_path):
    with jax.numpy_dtype_promotion("standard"):
        keep_programs(str(tmp_path))
        yield
        keep_programs(None)


@pytest.mark.one_engine
@pytest.mark.slow
def test_random_sequences(programs_kept):
    tally = harness.Tally()

    @hypothesis.settings(
        max_examples=_SEQUENCES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(sequences())
    def check(sequence):
        run(sequence, tally)

    check()
    print(tally)
    assert tally["calls"] >= _FEWEST_CALLS
    assert not harness.too_often_stale(tally)
    # These situations did occur.
    for what in ("errors", "deleted buffers", "traces", "source: changed"):
        assert tally[what] >= 50, what


_X = Array("jax", "float32", (), False, 2)
_ONES = Sequence(
    kind="function",
    parameters="a, b",
    behaviour="by type",
    donate="none",
    eager=False,
    calls=tuple([Call(None, (_X, Static(name))) for name in ("1", "True", "1.0")]),
    steps=tuple([Step(i % 3, 0, "fresh") for i in range(6)]),
)


@pytest.mark.one_engine
def test_the_harness_passes_equal_statics_of_other_types(programs_kept):
    tally = harness.Tally()
    run(_ONES, tally)
    assert (tally["calls"], tally["traces"]) == (6, 3)


def _calls_equinox(f, fun):
    return eqx.filter_jit(fun)  # which takes some statics for others


def _adds_a_hundred(f, fun):
    return lambda a, b: {**f(a, b), "out": [a + 100]}


def _gives_integers(f, fun):
    return lambda a, b: {**f(a, b), "out": [jnp.int32(4)]}


def _forgets(f, fun):
    return lambda *args, **kwargs: (f.clear_cache(), f(*args, **kwargs))[1]


def _gives_no_errors(f, fun):
    def faulty(*args, **kwargs):
        try:
            return f(*args, **kwargs)
        except Fails:
            return None

    return faulty


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_calls_equinox, "4.0 and 6.0"),
        (_adds_a_hundred, "102.0"),
        (_gives_integers, "int32"),
        (_forgets, "was traced before"),
        (_gives_no_errors, "Fails"),
    ],
)
def test_the_harness_sees_a_fault(fault, message, programs_kept, monkeypatch):
    ours = eqx_fastjit.filter_jit
    monkeypatch.setattr(
        eqx_fastjit, "filter_jit", lambda fun, **_: fault(ours(fun), fun)
    )
    sequence = dataclasses.replace(_ONES, behaviour="raise")
    with pytest.raises(Different, match=message):
        run(sequence if fault is _gives_no_errors else _ONES, harness.Tally())


def test_dictionaries_that_cannot_be_sorted():
    # Only a few, since each costs a level of the recursion limit in jaxlib 0.10.2.
    for jit in (eqx.filter_jit, eqx_fastjit.filter_jit):
        f = jit(lambda x: x)
        for _ in range(2):
            with pytest.raises(ValueError, match="sorting pytree dictionary keys"):
                f({"a": 1, 0: jnp.ones(2)})
        assert f({"a": 1}) == {"a": 1}
