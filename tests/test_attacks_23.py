"""Regression tests: faults found in a twenty-third adversarial review.

Results of compiled calls within traces.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit


class Listed(eqx.Module):
    w: jax.Array
    static: list = eqx.field(static=True)


def listed():
    return Listed(jnp.ones(()), [1])


@pytest.mark.parametrize("how", ["compiled", "trace"])
def test_a_compiled_call_inside_of_a_trace(how, engine):
    # Of constants: its result has the list that it was traced for. The outer function
    # then returned [5] for one that nobody had changed.
    x, first, other = jnp.ones(2), listed(), listed()
    inner = filter_jit(lambda x, model: model)
    compiled = inner.lower(x, first).compile()
    traces = []

    @filter_jit
    def outer(y, model):
        traces.append(model.static)
        model = Listed(first.w, model.static)
        if how == "compiled":
            return y, Listed(y, compiled(x, model).static)
        return y, Listed(y, inner.trace(x, model).out_info.static)

    for _ in range(2):
        assert outer(x, other)[1].static == [1]
    assert len(traces) == 1
    first.static[0] = 5
    if how == "compiled":
        with pytest.raises(TypeError, match="a static list was changed since then"):
            outer(x, other)
    else:
        assert outer(x, other)[1].static == [1]
