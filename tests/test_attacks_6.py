"""Regression tests: faults found in a sixth adversarial review of the engine."""

from tests.processes import run_code


_COMMON = """
import jax
import jax.numpy as jnp

import eqx_fastjit
from tests.traces import count_traces


X = jnp.ones(())
"""


def _check(code, engine):
    out = run_code(code, common=_COMMON, engine=engine)
    assert out.returncode == 0, out.stderr[-2000:]


def test_keywords_that_compare_in_their_own_way(engine):
    """Python asks `==` whether a keyword is the name of a parameter."""
    _check(
        """
        class Unequal(str):
            __hash__ = str.__hash__

            def __eq__(self, other):
                return False

        class Equal(str):
            pass

        @eqx_fastjit.filter_jit
        def f(x, n=1, **more):
            return x * n, list(more.values())

        assert f(X, **{Unequal("n"): 3}) == (1, [3])
        assert f(X, **{Equal("n"): 3}) == (3, [])
        assert f(n=2, **{"x": X, Unequal("x"): 3}) == (2, [3])
        """,
        engine,
    )
