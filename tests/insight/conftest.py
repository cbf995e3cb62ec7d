"""Nothing of what a test has compiled or asked for is known in the next one."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _facts, filter_jit
from eqx_fastjit.insight import _explain
from eqx_fastjit.insight.record import _events


@pytest.fixture(autouse=True)
def _forget():
    _facts.history.clear()  # where a lambda of the same line is created again
    yield
    _events.unwatch(_explain.describe_from_now_on)


class Scale(eqx.Module):
    by: jax.Array

    @filter_jit
    def ours(self, x):
        return self.by * x

    @eqx.filter_jit
    def equinox(self, x):
        return self.by * x

    def plain(self, x):
        return self.by * x

    __call__ = plain


@pytest.fixture(params=["ours", "equinox", "plain", "Scale"])
def named(request):
    """A name, and a method of an instance with an array, or the instance."""
    scale = Scale(jnp.ones(2))
    return request.param, getattr(scale, request.param, scale)
