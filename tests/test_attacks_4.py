"""Regression tests: faults found in a fourth adversarial review of the engine."""

import argparse
import collections
import copy
import functools
import os
import subprocess
import sys
import types
import typing

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import filter_jit
from tests.traces import count_traces


X = jnp.arange(3.0)


class _Holder(eqx.Module):
    x: typing.Any
    static: typing.Any = eqx.field(static=True)


# --- types of which only some instances are arrays -----------------------------------


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="an older JAX")
@pytest.mark.parametrize("ref_first", [True, False])
def test_tracers_of_references(ref_first):
    """Their tracers have the type of array tracers, but are statics without a hash."""

    def of_ref(x, y):
        with pytest.raises(TypeError, match="cannot be hashed"):
            f(jax.new_ref(x), y)
        return x

    # Forget what is known of the type of tracers, as in a new process.
    type("Fresh", (eqx.Module,), {})
    f, _ = count_traces(lambda x, y: x * 2 + y)
    calls = [lambda: jax.jit(of_ref)(X, X), lambda: jax.jit(f)(X, X)]
    for call in calls if ref_first else reversed(calls):
        call()
    np.testing.assert_array_equal(jax.jit(f)(X, X), 3 * X)
    np.testing.assert_array_equal(jax.vmap(f)(X, X), 3 * X)


class _Proxy:
    """Reports the class of its value, like the proxies of `wrapt` and Django."""

    def __init__(self, value):
        self._value = value

    @property
    def __class__(self):
        return type(self._value)

    def __getattr__(self, name):
        return getattr(self._value, name)

    def __hash__(self):
        return hash(self._value)

    def __eq__(self, other):
        return self._value == other._value


@pytest.mark.parametrize("array_first", [True, False])
def test_proxies_of_arrays_and_of_others(array_first):
    class Proxy(_Proxy):
        pass

    f, traces = count_traces(lambda x, n: x * n._value)
    values = [np.ones(2), 3, 4, 3] if array_first else [3, X, 4, 3]
    for value in values:
        if isinstance(value, int):
            np.testing.assert_array_equal(f(X, Proxy(value)), X * value)
        else:
            with pytest.raises(TypeError):
                f(X, Proxy(value))
            with pytest.raises(TypeError):
                f.lower(X, Proxy(value))
    assert len(traces) == 2


# --- statics compared by their contents ----------------------------------------------


@functools.cache
def _subclass(base):
    return type("Sub", (base,), {})


def _msgspec(frozen):
    msgspec = pytest.importorskip("msgspec")
    return msgspec.defstruct("Struct", [("a", typing.Any)], frozen=frozen)


def _root_model():
    pydantic = pytest.importorskip("pydantic")
    return pydantic.RootModel[typing.Any]


_HOLDERS = {
    "namespace": lambda: lambda n: _subclass(types.SimpleNamespace)(a=n),
    "user dict": lambda: lambda n: _subclass(collections.UserDict)(a=n),
    "user list": lambda: lambda n: _subclass(collections.UserList)([n]),
    "chain map": lambda: lambda n: _subclass(collections.ChainMap)({"a": n}),
    "arguments": lambda: lambda n: argparse.Namespace(a=n),
    "subclass of arguments": lambda: lambda n: _subclass(argparse.Namespace)(a=n),
    "struct": lambda: _msgspec(False),
    "frozen struct": lambda: _msgspec(True),
    "root model": lambda: _root_model(),
}


@pytest.mark.parametrize("name", _HOLDERS)
def test_holders_are_compared_by_type_and_bits(name):
    make = _HOLDERS[name]()
    f, traces = count_traces(lambda h: (h.x, repr(h.static)))
    for n in (1, 1.0, True, 1, 1.0):
        assert f(_Holder(X, make(n)))[1] == repr(make(n))
    assert len(traces) == 3


# --- pickling ------------------------------------------------------------------------


_DEFINES = """
import cloudpickle, pickle, sys
from eqx_fastjit import filter_jit

@filter_jit
def double(x):
    return x * 2 if x.ndim else double(x[None])

class Model:
    @filter_jit
    def step(self, x):
        return double(x)

assert pickle.loads(pickle.dumps(double)) is double
with open(sys.argv[1], "wb") as file:
    cloudpickle.dump((double, Model.step), file)
"""
_LOADS = """
import jax.numpy as jnp, pickle, sys
with open(sys.argv[1], "rb") as file:
    double, step = pickle.load(file)
assert double(jnp.array(2.0)) == 4 and step(None, jnp.array(3.0)) == 6
"""


@pytest.mark.one_engine
def test_functions_of_the_main_program_are_copied_by_cloudpickle(tmp_path, engine):
    """They are pickled by value, as without `filter_jit` and under Equinox, because a
    worker process cannot import them.
    """
    pytest.importorskip("cloudpickle")
    for program in (_DEFINES, _LOADS):
        subprocess.run(
            [sys.executable, "-c", program, tmp_path / "pickle"],
            env=dict(os.environ, EQX_FASTJIT_ENGINE=engine),
            check=True,
        )


def test_a_copy_of_the_arrays_of_a_jitted_module():
    f = filter_jit(eqx.nn.Linear(3, 3, key=jax.random.key(0)))
    arrays, rest = eqx.partition(f, eqx.is_array)
    for a, b in ((copy.copy(arrays), rest), (arrays, copy.copy(rest))):
        np.testing.assert_array_equal(eqx.combine(a, b)(X), f(X))
