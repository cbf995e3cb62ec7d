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
from eqx_fastjit.insight._compare import Cause, compare
from eqx_fastjit.insight._describe import describe, is_below
from eqx_fastjit.insight._events import Event


INFO = FunctionInfo("f", "f", Place("a.py", 1, "f"), 1)


def event(arguments, info=INFO, **fields):
    fields = {"traced": True, "compile": 1.0, **fields}
    return Event(info, signature=describe(list(arguments.items())), **fields)


def compared(old, new, **fields):
    cause, found, _ = compare(event(new, **fields), [event(old)])
    return cause, [d.path for d in found]


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float
    name: str = "a"


X = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("old", "new", "cause", "first"),
    [
        (X, X[:2], Cause.SHAPE, "x"),
        (X, X.astype(np.int32), Cause.DTYPE, "x"),
        (jnp.float32(1), jnp.asarray(1.0), Cause.DTYPE, "x"),
        (1, 2, Cause.STATIC, "x"),
        (1, 1.0, Cause.STATIC, "x"),
        (0.0, -0.0, Cause.STATIC, "x"),
        (1, X, Cause.STATIC, "x"),
        (None, X, Cause.STRUCTURE, "x"),
        ([X], [X, X], Cause.STRUCTURE, "x"),
        ({"a": X}, {"b": X}, Cause.STRUCTURE, "x['b']"),
        (Config(0.1), Config(0.2), Cause.STATIC, "x.rate"),
        (
            types.SimpleNamespace(rate=0.1),
            types.SimpleNamespace(rate=0.2),
            Cause.STATIC,
            "x.rate",
        ),
        ("a" * 99, "a" * 98, Cause.STATIC, "x"),
    ],
)
def test_what_differs(old, new, cause, first):
    found_cause, found = compared({"x": old}, {"x": new})
    assert (found_cause, found[0]) == (cause, first)
    assert not any(is_below(path, first) for path in found)


def test_equal_calls_differ_in_nothing():
    for value in (X, 1, None, [X, "a"], {"a": X}, Config(0.1), float("nan"), {1, 2}):
        assert compared({"x": value}, {"x": value}) == (Cause.CONFIGURATION, [])
    for old, new in ((X, jnp.asarray(X)), (jnp.asarray(X), X)):
        assert compared({"x": old}, {"x": new}) == (Cause.CONFIGURATION, [])


def test_a_length_follows_a_shape():
    cause, found = compared({"n": 4, "x": X}, {"n": 2, "x": X[:2]})
    assert cause is Cause.SHAPE and found == ["x", "n"]


def test_the_nearest_call_is_compared_with():
    history = [event({"x": X, "n": 1}), event({"x": X[:2], "n": 2})]
    cause, found, _ = compare(event({"x": X[:2], "n": 1}), history)
    assert len(found) == 1
    assert compare(event({"x": X[:2], "n": 3}), history).differences[0].old.text == "2"
    assert cause in (Cause.STATIC, Cause.SHAPE)


def test_another_function_of_the_line_was_made_anew():
    other = INFO._replace(number=2)
    history = [event({"x": X})]
    cause, found, _ = compare(event({"x": X}, other), history)
    assert cause is Cause.NEW_FUNCTION and found[0].path == "f"
    assert compare(event({"x": X}), []) == (Cause.NEW_FUNCTION, (), ())


def test_a_compilation_without_a_trace_is_a_placement():
    first, second = jax.devices()[:2]
    old, new = jax.device_put(X, first), jax.device_put(X, second)
    for other in (new, jnp.asarray(X)):
        cause, found = compared({"x": old}, {"x": other}, traced=False)
        assert (cause, found) == (Cause.PLACEMENT, ["x"])


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
