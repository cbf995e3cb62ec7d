"""Calls in words, and what differs between two: values, no objects of the user's.

Promise 41 of docs/reliability.md.
"""

import dataclasses
import functools
import gc
import types
import weakref
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit._facts import FunctionInfo, is_users, Place, user_frames
from eqx_fastjit._texts import describe_static
from eqx_fastjit.insight._compare import reason_of
from eqx_fastjit.insight._describe import describe
from eqx_fastjit.insight._events import Event


INFO = FunctionInfo("f", "f", Place("a.py", 1, "f"), 1)


def event(arguments, info=INFO, **fields):
    fields = {"traced": True, "compile": 1.0, **fields}
    return Event(info, signature=describe(list(arguments.items())), **fields)


def compared(old, new, **fields):
    """The paths of what differs between two calls."""
    reason = reason_of(event(new, **fields), [event(old)])
    return [x.path for x in reason.parts]


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    name: str = "a"


X = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (X, X[:2], "x"),
        (X, X.astype(np.int32), "x"),
        (jnp.float32(1), jnp.asarray(1.0), "x"),
        (1, 2, "x"),
        (1, 1.0, "x"),
        (0.0, -0.0, "x"),
        (1, X, "x"),
        (None, X, "x"),
        ([X], [X, X], "x"),
        ({"a": X}, {"b": X}, "x['a']"),
        (Config(0.1), Config(0.2), "x.rate"),
        (types.SimpleNamespace(rate=0.1), types.SimpleNamespace(rate=0.2), "x.rate"),
        ("a" * 99, "a" * 98, "x"),
    ],
)
def test_what_differs(old, new, path):
    assert compared({"x": old}, {"x": new})[0] == path


def test_equal_calls_differ_in_nothing():
    for value in (X, 1, None, [X, "a"], {"a": X}, Config(0.1), float("nan"), {1, 2}):
        assert compared({"x": value}, {"x": value}) == [""]
    for old, new in ((X, jnp.asarray(X)), (jnp.asarray(X), X)):
        assert compared({"x": old}, {"x": new}) == [""]


def test_a_length_follows_a_shape():
    assert compared({"n": 4, "x": X}, {"n": 2, "x": X[:2]}) == ["x", "n"]


def test_the_nearest_call_is_compared_with():
    history = [event({"x": X, "n": 1}), event({"x": X[:2], "n": 2})]
    (part,) = reason_of(event({"x": X[:2], "n": 1}), history).parts
    assert part.path == "n"
    (part,) = reason_of(event({"x": X[:2], "n": 3}), history).parts
    assert part.values == ("2", "3")


def test_another_function_of_the_line_was_made_anew():
    other = INFO._replace(number=2)
    (part,) = reason_of(event({"x": X}, other), [event({"x": X})]).parts
    assert (part.rule, part.path) == ("function", "f")
    assert reason_of(event({"x": X}), []) == ("first call", ())


def test_a_compilation_without_a_trace_is_a_placement():
    first, second = jax.devices()[:2]
    old, new = jax.device_put(X, first), jax.device_put(X, second)
    for other in (new, jnp.asarray(X)):
        found = reason_of(event({"x": other}, traced=False), [event({"x": old})])
        assert [(x.rule, x.path) for x in found.parts] == [("placement", "x")]


def test_a_tracer_has_no_placement():
    traced = []
    jax.jit(lambda x: traced.extend(describe([("x", x), ("n", 3)])))(X)
    placed = describe([("x", jax.device_put(X, jax.devices()[0])), ("n", 3)])
    assert traced[0].sharding is None and placed[0].sharding
    assert placed[0]._replace(sharding=None) == traced[0] and placed[1] == traced[1]


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


@pytest.mark.parametrize("cls", [jax.Array, np.ndarray, jax.ShapeDtypeStruct])
def test_a_static_that_claims_to_be_an_array(cls):
    """A mock has no shape. JAX takes none for an array."""
    claims = mock.Mock(spec=cls)
    for x in (claims, Config(claims)):
        assert describe([("x", x)])[0].kind == "static"


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
