"""Calls in words: values, no objects of the user's, and nothing that the user wrote.

Promise 41 of docs/reliability.md. What differs between two calls is in test_guard.py.
"""

import dataclasses
import functools
import gc
import weakref
from unittest import mock

import equinox as eqx
import jax
import numpy as np
import pytest

from eqx_fastjit._facts import is_users, user_frames
from eqx_fastjit._texts import describe_static
from eqx_fastjit.insight._describe import describe


X = np.ones((4, 2), np.float32)


@dataclasses.dataclass(frozen=True)
class Config:
    rate: object


class Hostile:
    """Everything about it raises."""

    def __repr__(self):
        raise AssertionError

    __str__ = __hash__ = __len__ = __bool__ = __repr__

    def __eq__(self, other):
        raise AssertionError

    def __getattr__(self, name):
        raise AssertionError(name)


def test_no_code_of_a_user_is_run():
    leaf, *_ = describe([("x", Hostile())])
    assert str(leaf) == "<Hostile>"
    deep = functools.reduce(lambda x, _: Config(x), range(400), 0.1)
    assert str(describe([("x", deep)])[0]) == "<Config>"
    assert describe_static([Hostile(), {1: Hostile()}]) == "<list>"


def test_no_value_of_an_array_is_in_it():
    values = np.full(2, 12345.0)
    assert "12345" not in str(describe([("x", values), ("config", Config(values))]))


@pytest.mark.parametrize("cls", [jax.Array, np.ndarray, jax.ShapeDtypeStruct])
def test_a_static_that_claims_to_be_an_array(cls):
    """A mock has no shape. JAX takes none for an array."""
    claims = mock.Mock(spec=cls)
    for x in (claims, Config(claims)):
        assert describe([("x", x)])[0].kind == "static"


def test_a_tracer_has_no_placement():
    traced = []
    jax.jit(lambda x: traced.extend(describe([("x", x), ("n", 3)])))(X)
    placed = describe([("x", jax.device_put(X, jax.devices()[0])), ("n", 3)])
    assert traced[0].sharding is None and placed[0].sharding
    assert placed[0]._replace(sharding=None) == traced[0] and placed[1] == traced[1]


def test_nothing_of_the_users_is_kept():
    class Module(eqx.Module):
        x: np.ndarray
        tag: object = eqx.field(static=True)

    class Tag:
        pass

    tag = Tag()
    kept = describe([("m", Module(X, tag))])
    died = weakref.ref(tag)
    del tag
    gc.collect()
    assert died() is None
    assert [x.path for x in kept if x.kind != "configuration"] == ["m", "m.x", "m.tag"]


def test_whose_code_a_line_is():
    assert is_users(__file__) and user_frames()[0].file == __file__
    assert not is_users(jax.__file__) and not is_users(dataclasses.__file__)
