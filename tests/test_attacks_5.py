"""What a fifth hostile reader of the engine found: each of these was once wrong."""

from tests.processes import run_code


_STATICS = """
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import eqx_fastjit
from tests.traces import count_traces


class Holder(eqx.Module):
    x: jax.Array
    static: Any = eqx.field(static=True)


x = jnp.ones(())
"""


def _check(code, engine):
    out = run_code(code, common=_STATICS, engine=engine)
    assert out.returncode == 0, out.stderr[-2000:]


def test_masks_of_arrays_in_static_fields(engine):
    _check(
        """
        f, traces = count_traces(lambda h: h.x * float(h.static.sum() or 0))

        def masked(mask):
            return Holder(x, np.ma.array([1.0], mask=[mask]))

        assert f(masked(False)) == 1 and f(masked(True)) == 0
        assert f(masked(False)) == 1 and f(masked(True)) == 0
        assert len(traces) == 2

        array = np.ma.array([1.0, 2.0], mask=[False, True])
        assert f(Holder(x, array)) == 1
        array.mask = [False, False]
        assert f(Holder(x, array)) == 3
        array[0] = np.ma.masked
        assert f(Holder(x, array)) == 2
        """,
        engine,
    )


def test_arrays_in_static_fields_that_were_donated(engine):
    """Equinox compares them by identity first; nobody can read them."""
    _check(
        """
        f, traces = count_traces(lambda h: h.x * 2)
        keys = jax.random.key(0)
        for array in (jnp.ones(()), jnp.ones((2,)), keys, jnp.ones(())):
            before = len(traces)
            array.delete()
            for _ in range(2):
                assert f(Holder(x, array)) == 2
            assert len(traces) == before + 1
            f.clear_cache()
        # Known before it was donated.
        array = jnp.ones(())
        f(Holder(x, array))
        before = len(traces)
        array.delete()
        assert f(Holder(x, array)) == 2
        assert len(traces) == before
        """,
        engine,
    )
