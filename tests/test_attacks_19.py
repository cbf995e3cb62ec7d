"""Regression tests: faults found in a nineteenth adversarial review: semantics."""

import copy
import functools
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from tests.traces import count_traces


X = np.arange(3.0, dtype=np.float32)


class Scaled(eqx.Module):
    """Its `__init__` leaves a field to its default."""

    w: jax.Array
    n: int = eqx.field(static=True, default=2)

    def __init__(self, w):
        self.w = w

    def __call__(self, x):
        return self.w * x * self.n


@pytest.mark.parametrize(
    "wrap", [lambda f: f, filter_jit, eqx.filter_vmap, eqx.filter_checkpoint]
)
def test_wrapping_a_module_that_lacks_fields_and_was_built_again(wrap, engine):
    # Newer versions of Equinox then give it a `__name__` and the like that are no
    # strings, and their own `filter_jit` raises: after any `eqx.apply_updates`, say.
    first = Scaled(jnp.asarray(X))
    model = jtu.tree_map(lambda x: x, first)
    for each in (first, model):
        f = filter_jit(wrap(each))
        for again in (f, copy.deepcopy(f), jtu.tree_map(lambda x: x, f)):
            out = again(X)  # `filter_vmap` maps both
            np.testing.assert_array_equal(
                jnp.diag(out) if out.ndim > 1 else out, 2 * X * X
            )
    assert filter_jit(model).__doc__ == Scaled.__doc__
    assert filter_jit(model)._function is filter_jit(first)._function


class Cached(eqx.Module):
    w: jax.Array
    n: int = eqx.field(static=True, default=2)
    act: typing.Any = None

    def __init__(self, w, **others):
        self.w = w
        for name, value in others.items():
            setattr(self, name, value)

    @functools.cached_property
    def size(self):
        return self.w.size


class Holder(eqx.Module):
    static: Cached = eqx.field(static=True)
    x: jax.Array


@pytest.mark.parametrize("others", [{}, {"act": None}, {"act": None, "n": 2}])
@pytest.mark.parametrize("doc", [None, "a"])
def test_a_module_that_keeps_a_cached_property_is_traced_as_often(others, doc, engine):
    # What Equinox built from it was traced again: each step of a training loop, once.
    def make(*, read):
        model = Cached(jnp.asarray(X), **others)
        if doc is not None:
            object.__setattr__(model, "__doc__", doc)
        if read:
            assert model.size == 3
        return model

    def steps(jit):
        traces, seen = [], []

        @jit
        def step(model):
            traces.append(None)
            return eqx.tree_at(lambda m: m.w, model, model.w + 1)

        for read in (True, False, True):
            model = make(read=read)
            for _ in range(3):
                model = step(model)
                seen.append((len(traces), [*vars(model)], vars(model).get("__doc__")))
        return seen

    assert steps(filter_jit) == steps(eqx.filter_jit)


def test_a_cached_property_of_a_static_module(engine):
    f, traces = count_traces(lambda h: h.x * h.static.n)
    for n in (1, 2, 1, 2):
        static = eqx.filter(Cached(jnp.asarray(X), n=n, act=None), lambda _: False)
        object.__setattr__(static, "size", 3)
        np.testing.assert_array_equal(f(Holder(static, jnp.asarray(X))), n * X)
    assert len(traces) == 2
